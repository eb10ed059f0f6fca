"""A node's whole state as bytes, and back (docs/design/durability.md).

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bb_edge.engine.parts import Parts
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.program.program import Program
from bb_edge.engine.run import saved_components, saved_executions, saved_waiting
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.roles.errors import ComponentStateError
from bb_edge.wire import cbor

MAGIC = b"BBSNAP\r\n"
VERSION = 3
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


def _save_core(p: Parts) -> dict[str, Any]:
    return {
        **p.runtime.save(),
        **p.scheduler.save(),
        "generators": [dump(ctx.generator_state) for ctx in p.contexts],
        "rings": p.states.save_rings(),
    }


def _restore_core(p: Parts, plain: Any, _: Shift) -> None:
    p.runtime.restore(plain)
    p.scheduler.restore(plain)
    for ctx, state in zip(p.contexts, plain["generators"], strict=True):
        ctx.generator_state = load(state)
    p.states.restore_rings(plain["rings"])


def _restore_components(p: Parts, plain: Any, _: Shift) -> None:
    for step in saved_components.restore(p.scheduler.components, plain):
        p.runtime.emit(step)


def _restore_neighbours(p: Parts, plain: Any, shift: Shift) -> None:
    p.peers.restore(plain, shift)
    p.admission.restore(plain["noticed"], shift)


def _restore_executions(p: Parts, plain: Any, shift: Shift) -> None:
    pool, ledger = p.scheduler.pool, p.scheduler.ledger
    saved_executions.restore(pool, p.runtime, plain, shift, p.naming, p.bootstraps.find)
    for execution in pool.active.values():
        ledger.recharge(execution.source, execution.bytes_held)
        ledger.recharge(None, execution.answer_bytes)


def _save_ingress(p: Parts) -> dict[str, Any]:
    return {**p.ingress.save(p.runtime.callbacks), **p.admission.journal.save()}


def _restore_ingress(p: Parts, plain: Any, shift: Shift) -> None:
    p.ingress.restore(plain, shift, p.runtime.callbacks)
    p.admission.restore_journal(plain, shift)


class Section(NamedTuple):
    """One item of the body, which one owner or several have written."""

    name: str
    save: Callable[[Parts], Any]
    restore: Callable[[Parts, Any, Shift], None]


SECTIONS = (
    Section("core", _save_core, _restore_core),
    Section("components", lambda p: saved_components.save(p.scheduler.components), _restore_components),
    Section("neighbours", lambda p: {**p.peers.save(), "noticed": p.admission.save()}, _restore_neighbours),
    Section(
        "links",
        lambda p: p.links.snapshot(p.runtime.now_ns),
        lambda p, plain, _: p.links.restore(plain, p.runtime.now_ns, same_outbox=True),
    ),
    Section("executions", lambda p: saved_executions.save(p.scheduler.pool, p.runtime), _restore_executions),
    Section(
        "requests",
        lambda p: p.requests.save(),
        lambda p, plain, shift: p.requests.restore(plain, shift, p.naming),
    ),
    Section(
        "parked",
        lambda p: saved_waiting.save(p.scheduler.waiting),
        lambda p, plain, _: saved_waiting.restore(p.scheduler, plain, p.naming),
    ),
    Section(
        "claims",
        lambda p: p.scheduler.waiting.claims.save(),
        lambda p, plain, _: p.scheduler.waiting.claims.restore(plain, p.naming),
    ),
    Section("ops", lambda p: p.states.save(), lambda p, plain, _: p.states.restore(plain)),
    Section("cycle", lambda p: p.sources.save(), lambda p, plain, _: p.sources.restore(plain)),
    Section("bootstraps", lambda p: p.bootstraps.save(), lambda p, plain, _: p.bootstraps.restore(plain)),
    Section("ingress", _save_ingress, _restore_ingress),
    Section(
        "outbound", lambda p: p.outgoing.save(), lambda p, plain, shift: p.outgoing.restore(plain, shift)
    ),
    Section("control", lambda p: p.control.save(), lambda p, rows, _: p.control.restore(rows)),
    Section(
        "timers",
        lambda p: p.runtime.timers.save(p.runtime.callbacks),
        lambda p, plain, shift: p.runtime.timers.restore(plain, shift, p.runtime.callbacks),
    ),
)
"""The body, in the order in which it is restored. A section has the name that it was given first."""


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
    return [[target, slot, index] for (target, slot), index in parts.scheduler.components.slots.items()]


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
    """Gives a freshly installed node the state of `body`, and asks again what nobody would answer any more.

    SnapshotDamagedError; the node is useless then.
    """
    parts.runtime.advance(now_ns)
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
    parts.requests.ask_again()
