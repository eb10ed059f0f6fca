"""A node's whole state as bytes, and back (semantics §9; docs/design/durability.md).

    "BBSNAP\\r\\n" | version u16 | length u64 | SHA-256 of the body | body

The body is canonical CBOR: who the node is (peer, module, digest of the artifact, targets), when it was
written, and one item per part of the engine. Between two polls everything that a node knows stands in its
tables, so the tables are all there is to write. Absolute times move with the clock of the node that
restores. Restoring checks everything about the bytes before it touches the node; a part that does not fit
all the same makes the node useless, and the caller installs another one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bb_edge.engine import snapshot_tables as tables
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run import saved_components, saved_executions, saved_waiting
from bb_edge.engine.snapshot_parts import Parts
from bb_edge.ir.errors import BBError
from bb_edge.roles.errors import ComponentStateError
from bb_edge.wire import cbor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bb_edge.engine.program.program import Program
    from bb_edge.ir.ids import PeerId

MAGIC = b"BBSNAP\r\n"
VERSION = 2
"""Of the rows' columns: raised with each change of them."""
_HEADER = len(MAGIC) + 2 + 8 + 32
_MAX_DEPTH = 32
_MISFITS = (
    BBError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    struct.error,
)
"""What reading a part of another shape than expected ends in."""


def _save_core(parts: Parts) -> dict[str, Any]:
    return {
        **parts.engine.runtime.save(),
        **parts.engine.save(),
        "generators": [dump(ctx.generator_state) for ctx in parts.contexts],
        "rings": parts.states.save_rings(),
    }


def _restore_core(parts: Parts, plain: Any, _shift: Shift) -> None:
    parts.engine.runtime.restore(plain)
    parts.engine.restore(plain)
    for ctx, state in zip(parts.contexts, plain["generators"], strict=True):
        ctx.generator_state = load(state)
    parts.states.restore_rings(plain["rings"])


def _restore_components(parts: Parts, plain: Any, _shift: Shift) -> None:
    for step in saved_components.restore(parts.engine.components, plain):
        parts.engine.runtime.emit(step)


def _save_executions(parts: Parts) -> list[Any]:
    return saved_executions.save(parts.engine.pool, parts.engine.runtime)


def _restore_executions(parts: Parts, plain: Any, shift: Shift) -> None:
    pool, ledger = parts.engine.pool, parts.engine.ledger
    saved_executions.restore(pool, parts.engine.runtime, plain, shift, parts.naming, parts.bootstraps.find)
    for execution in pool.active.values():
        ledger.recharge(execution.source, execution.bytes_held)
        ledger.recharge(None, execution.answer_bytes)


def _save_links(parts: Parts) -> dict[str, Any]:
    return parts.cycle.links.snapshot(parts.engine.runtime.now_ns)


def _restore_links(parts: Parts, data: Any, shift: Shift) -> None:
    parts.cycle.links.restore(data, parts.engine.runtime.now_ns, same_outbox=True)


def _restore_outbound(parts: Parts, data: Any, shift: Shift) -> None:
    parts.cycle.outgoing.restore(data, shift)


def _restore_requests(parts: Parts, plain: Any, shift: Shift) -> None:
    parts.cycle.requests.restore(plain, shift, parts.naming)


def _restore_parked(parts: Parts, plain: Any, shift: Shift) -> None:
    saved_waiting.restore(parts.engine, plain, parts.naming)


def _restore_claims(parts: Parts, plain: Any, shift: Shift) -> None:
    parts.engine.waiting.claims.restore(plain, parts.naming)


SECTIONS: tuple[tuple[str, Any, Any], ...] = (
    ("core", _save_core, _restore_core),
    ("components", lambda p: saved_components.save(p.engine.components), _restore_components),
    ("neighbours", tables.save_neighbours, tables.restore_neighbours),
    ("links", _save_links, _restore_links),
    ("executions", _save_executions, _restore_executions),
    ("requests", lambda p: p.cycle.requests.save(), _restore_requests),
    ("parked", lambda p: saved_waiting.save(p.engine.waiting), _restore_parked),
    ("claims", lambda p: p.engine.waiting.claims.save(), _restore_claims),
    ("ops", lambda p: p.states.save(), lambda p, plain, _: p.states.restore(plain)),
    ("cycle", lambda p: p.cycle.sources.save(), lambda p, data, _: p.cycle.sources.restore(data)),
    ("bootstraps", lambda p: p.bootstraps.save(), lambda p, plain, _: p.bootstraps.restore(plain)),
    ("ingress", tables.save_ingress, tables.restore_ingress),
    ("outbound", lambda p: p.cycle.outgoing.save(), _restore_outbound),
    ("control", lambda p: p.cycle.control.save(), lambda p, rows, _: p.cycle.control.restore(rows)),
    ("timers", tables.save_timers, tables.restore_timers),
)
"""(name, save(parts) -> plain data, restore(parts, data, shift)), in the order in which they are restored."""


class SnapshotError(BBError):
    """A snapshot that this node cannot take."""


class SnapshotDamagedError(SnapshotError):
    """The bytes are cut off or changed."""


class SnapshotVersionError(SnapshotError):
    """Written by a runtime whose rows have other columns."""


class SnapshotForeignError(SnapshotError):
    """Of another peer, artifact or set of targets."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose snapshot it is."""

    peer: bytes
    module: str
    digest: str
    targets: tuple[str, ...]

    @classmethod
    def of(cls, peer: PeerId, program: Program, targets: Iterable[str]) -> Identity:
        return cls(peer.to_bytes(), program.module, program.digest, tuple(sorted(targets)))

    def plain(self) -> list[object]:
        return [self.peer, self.module, self.digest, list(self.targets)]


def save(parts: Parts, identity: Identity, now_ns: int) -> bytes:
    """The bytes of a node. SnapshotError where a value in a slot has no written form; names the part."""
    body: dict[str, object] = {"identity": identity.plain(), "now_ns": now_ns}
    for name, write, _ in SECTIONS:
        try:
            body[name] = write(parts)
        except BBError as error:
            raise SnapshotError(f"{name}: {error.what}", error.where or "snapshot", error.hint) from error
    body["slots"] = _slots(parts)
    data = cbor.dumps(body)
    head = MAGIC + VERSION.to_bytes(2, "big") + len(data).to_bytes(8, "big")
    return head + hashlib.sha256(data).digest() + data


def _slots(parts: Parts) -> list[Any]:
    """Which component is whose: for readers that have no artifact."""
    return [[target, slot, index] for (target, slot), index in parts.engine.components.slots.items()]


def look_into(data: bytes) -> tuple[Identity, dict[str, Any]]:
    """Whose snapshot it is, and its body. SnapshotDamagedError, SnapshotVersionError."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEADER:
        raise SnapshotDamagedError("it is no snapshot, or cut off", "snapshot", "use the one before it")
    version = int.from_bytes(data[8:10], "big")
    if version != VERSION:
        older = "run the runtime that wrote it, or move the state folder aside to start anew"
        raise SnapshotVersionError(
            f"schema version {version}, this runtime reads {VERSION}",
            "snapshot",
            "update the runtime" if version > VERSION else older,
        )
    size, digest, content = int.from_bytes(data[10:18], "big"), data[18:_HEADER], data[_HEADER:]
    if len(content) != size or hashlib.sha256(content).digest() != digest:
        raise SnapshotDamagedError("its checksum is wrong", "snapshot", "use the one before it")
    try:
        body: Any = cbor.loads(content, max_items=len(content) + 1, max_depth=_MAX_DEPTH)
        peer, module, digest_of, targets = body["identity"]
        return Identity(peer, module, digest_of, tuple(targets)), dict(body)
    except (cbor.CborError, TypeError, ValueError, LookupError) as error:
        raise SnapshotDamagedError(f"its body is damaged: {error}", "snapshot") from error


def read(data: bytes, identity: Identity) -> dict[str, Any]:
    """The body of a snapshot of that identity. SnapshotDamagedError, SnapshotVersionError,
    SnapshotForeignError.
    """
    found, body = look_into(data)
    for what in ("peer", "module", "digest", "targets"):
        if getattr(found, what) != getattr(identity, what):
            raise SnapshotForeignError(
                f"it is of another {'artifact' if what == 'digest' else what}",
                "snapshot",
                "give the node the state folder that is its own, or move this one aside to start anew",
            )
    return body


def restore(parts: Parts, body: dict[str, Any], now_ns: int) -> None:
    """Gives a freshly installed node the state of `body`. SnapshotDamagedError; the node is useless then."""
    parts.engine.runtime.advance(now_ns)
    section = "now_ns"
    try:
        shift = Shift(now_ns - int(body["now_ns"]))
        section = "slots"
        if body.get("slots", _slots(parts)) != _slots(parts):  # absent where an older runtime wrote
            raise ValueError("other slots than the artifact's")
        for section, _, take in SECTIONS:
            take(parts, body[section], shift)
    except ComponentStateError as error:
        raise SnapshotDamagedError(f"{error.where}: {error.what}", "snapshot", error.hint) from error
    except _MISFITS as error:
        raise SnapshotDamagedError(
            f"its part {section!r} does not fit: {type(error).__name__}: {error}", "snapshot"
        ) from error
