"""Where inbound values go: the payloads of the ops that receive, by their site's number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bb_edge.engine.run.bound import BoundGraph, BoundOp
from bb_edge.ir import keys, types
from bb_edge.roles import TRIGGER, BackendError
from bb_edge.wire.codecs import WireReceiveError, WireReceiveErrorKind, decode_value
from bb_edge.wire.envelope import Fill

if TYPE_CHECKING:
    from bb_edge.roles import Backend
    from bb_edge.wire.caps import EnvelopeCaps


@dataclass(frozen=True, slots=True)
class Port:
    """A payload of a Recv-flavored op: where an inbound fill goes. `index` counts the payloads of its op."""

    graph: BoundGraph
    op: BoundOp
    index: int
    count: int
    site: int
    expected: int
    trigger_only: bool
    backend: Backend | None

    def value_of(self, fill: Fill, caps: EnvelopeCaps) -> object:
        """Decodes a fill for this site. WireReceiveError where it is not what the site expects."""
        if fill.trigger_only:
            if self.trigger_only or self.expected in (0, types.TRIGGER.wire_hash):
                return TRIGGER
            raise WireReceiveError(
                WireReceiveErrorKind.TypeMismatch, f"a trigger where {self.expected:#x} is expected"
            )
        if self.expected and fill.type_hash != self.expected:
            raise WireReceiveError(
                WireReceiveErrorKind.TypeMismatch,
                f"type hash {fill.type_hash:#x}, {self.expected:#x} is expected",
            )
        if self.backend is not None and fill.type_hash in types.TENSOR_HASHES:
            backend = self.backend
            try:
                # A slot holds arrays: its other readers know nothing of a backend's handles.
                return backend.to_array(backend.materialize_from_wire(fill.type_hash, fill.payload))
            except BackendError as error:
                raise WireReceiveError(WireReceiveErrorKind.BackendMaterializeFailed, error.what) from error
            # The border to users' backends: whatever they raise, this fill alone is lost.
            except Exception as error:
                what = f"backend {backend.TYPE_NAME}: {type(error).__name__}: {error}"
                raise WireReceiveError(WireReceiveErrorKind.BackendMaterializeFailed, what) from error
        return decode_value(fill.type_hash, fill.payload, caps)


def ports_of(graph: BoundGraph, op: BoundOp, backend: Backend | None) -> list[tuple[int, Port]]:
    """(travelling site id, port) of each payload that a Recv-flavored op declares.

    ValueError where its metadata are no numbers.
    """
    meta = op.spec.meta
    sites = meta.get(keys.SITE_IDS_KEY, "")
    if not sites:
        return []
    hashes = meta.get(keys.WIRE_TYPES_KEY, "")
    expected = [int(h, 16) for h in hashes.split(",")] if hashes else []
    trigger = meta.get(keys.WIRE_TRANSPORT_KEY) == keys.WIRE_TRANSPORT_TRIGGER_ONLY
    found = []
    texts = sites.split(",")
    for index, text in enumerate(texts):
        first = 2 if op.spec.op_type == "RecvRespBatched" else 0
        site = op.outs[first + index] if first + index < len(op.outs) else -1
        port = Port(
            graph,
            op,
            index,
            len(texts),
            site,
            expected[index] if index < len(expected) else 0,
            trigger,
            backend,
        )
        found.append((int(text, 16), port))
    return found
