"""A unit: what one firing of one op sends to one peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from bb_edge.engine.plain import Shift, dump, load
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Fill
from bb_edge.wire.envelope_records import Failure
from bb_edge.wire.outbox import Cause


@dataclass(slots=True)
class Unit:
    """Fills for one peer from one firing of one op.

    `body` are large fills as bytes, which the units to other peers share (`envelope.shared_body`).
    `deadline_ns` is absolute, 0: none. `group` lets plain sends of one burst share an envelope. `wire_id` and
    `cause` (the durable envelope, or the round, that the sending execution came from) tell a durable unit
    from its repetition after a restart. `failure` stands in place of the fills of a reply.
    """

    peer: PeerId
    fills: Sequence[Fill]
    _: KW_ONLY
    body: bytes = b""
    kind: int = envelope.NONE
    wire_req_id: int = 0
    deadline_ns: int = 0
    durable: bool = False
    group: tuple[object, ...] | None = None
    wire_id: int = 0
    cause: Cause | None = None
    failure: Failure | None = None

    def save(self) -> list[Any]:
        """The unit as plain values; `restored` reads them."""
        fills = [[f.dest_suffix, bytes(f.payload), f.trigger_only, f.type_hash] for f in self.fills]
        return [
            dump(self.peer),
            fills,
            self.kind,
            self.wire_req_id,
            self.deadline_ns,
            self.durable,
            dump(self.group),
            self.wire_id,
            dump(self.cause),
            None if self.failure is None else [self.failure.code, self.failure.detail],
        ]

    @classmethod
    def restored(cls, row: Any, shift: Shift) -> Unit:
        """The unit that `save` wrote, with its deadline moved by `shift`."""
        peer, fills, kind, req_id, deadline_ns, durable, group, wire_id, cause, failure = row
        read = [Fill(*fill) for fill in fills]
        return cls(
            load(peer),
            read,
            body=envelope.shared_body(read),
            kind=kind,
            wire_req_id=req_id,
            deadline_ns=shift.time(deadline_ns),
            durable=durable,
            group=load(group),
            wire_id=wire_id,
            cause=load(cause),
            failure=None if failure is None else Failure(*failure),
        )
