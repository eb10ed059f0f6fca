"""A node's whole state as bytes, and back (docs/design/durability.md).

    "BBSNAP\\r\\n" | version u16 | length u64 | SHA-256 of the body | body

The body is canonical CBOR: who the node is (peer, module, digest of the artifact, targets), when it was
written, and one item per part of the engine. Between two polls everything that a node knows stands in its
tables, so the tables are all there is to write. Absolute times move with the clock of the node that
restores. Restoring checks everything about the bytes before it touches the node; a part that does not fit
all the same makes the node useless, and the caller installs another one.

Rule D8 of the specification.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bb_edge.engine.disk_steps import StateUpgraded
from bb_edge.engine.engine import Parts
from bb_edge.engine.net.arrivals import Raw
from bb_edge.engine.net.ingress import Entry
from bb_edge.engine.net.routing import cause_of
from bb_edge.engine.net.units import Unit
from bb_edge.engine.older_snapshots import ANEW, OLDEST, upgraded
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.program.program import Program
from bb_edge.engine.run import saved_waiting
from bb_edge.engine.run.frames import Execution
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.roles.errors import ComponentStateError
from bb_edge.wire import cbor, envelope
from bb_edge.wire.bodies import Shelf, Shelved
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.outbox import Cause

MAGIC = b"BBSNAP\r\n"
VERSION = 4
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


def _sections(p: Parts, shift: Shift) -> tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...]:
    """The body in the order in which it is restored: each item's name, what writes it, and what reads it.

    A section has the name that it was given first.
    """
    run, pool, naming, callbacks = p.scheduler, p.scheduler.pool, p.naming, p.runtime.callbacks
    claims, ingress, timers = run.waiting.claims, p.ingress, p.runtime.timers

    def save_core() -> dict[str, Any]:
        generators = [dump(ctx.generator_state) for ctx in p.contexts]
        return {**p.runtime.save(), **run.save(), "generators": generators, "rings": p.states.save_rings()}

    def restore_core(plain: Any) -> None:
        p.runtime.restore(plain)
        run.restore(plain)
        for ctx, state in zip(p.contexts, plain["generators"], strict=True):
            ctx.generator_state = load(state)
        p.states.restore_rings(plain["rings"])

    def restore_components(plain: Any) -> None:
        p.runtime.steps.extend(run.components.restore(plain))

    def restore_executions(plain: Any) -> None:
        pool.restore(plain, shift, naming, callbacks)
        for execution in pool.active.values():
            if execution.bootstrap is not None:
                p.bootstraps.find(*execution.bootstrap)
            run.ledger.recharge(execution.source, execution.bytes_held)
            run.ledger.recharge(None, execution.answer_bytes)

    def save_ingress() -> dict[str, Any]:
        return {**ingress.save(callbacks), **p.admission.journal.save()}

    def restore_ingress(plain: Any) -> None:
        ingress.restore(plain, shift, callbacks)
        p.admission.restore_journal(plain, shift)

    return (
        ("core", save_core, restore_core),
        ("components", run.components.save, restore_components),
        ("neighbours", p.peers.save, lambda plain: p.peers.restore(plain, shift)),
        (
            "links",
            lambda: p.links.snapshot(p.runtime.now_ns),
            lambda plain: p.links.restore(plain, p.runtime.now_ns, bodies=shift.bodies),
        ),
        ("executions", lambda: pool.save(callbacks), restore_executions),
        ("requests", p.requests.save, lambda plain: p.requests.restore(plain, shift, naming)),
        (
            "parked",
            lambda: saved_waiting.save(run.waiting),
            lambda plain: saved_waiting.restore(run, plain, naming),
        ),
        ("claims", claims.save, lambda plain: claims.restore(plain, naming)),
        ("ops", p.states.save, p.states.restore),
        ("cycle", p.sources.save, p.sources.restore),
        ("bootstraps", p.bootstraps.save, p.bootstraps.restore),
        ("ingress", save_ingress, restore_ingress),
        ("outbound", p.outgoing.save, lambda plain: p.outgoing.restore(plain, shift)),
        ("control", p.control.save, p.control.restore),
        ("timers", lambda: timers.save(callbacks), lambda plain: timers.restore(plain, shift, callbacks)),
    )


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

    @property
    def program(self) -> bytes:
        """A digest of all but the peer, which the files of a state folder carry."""
        return hashlib.sha256(cbor.dumps(self.plain()[1:])).digest()

    def plain(self) -> list[object]:
        return [self.peer, self.module, self.digest, list(self.targets)]


def save(parts: Parts, identity: Identity, now_ns: int) -> list[cbor.Buffer]:
    """The bytes of a node, in pieces that are to be used before the node goes on: they are not copied.

    SnapshotError where a value in a slot has no written form; names the part.
    """
    parts.runtime.advance(max(parts.runtime.now_ns, now_ns))
    parts.wish.taken()
    _name_causes(parts)
    body: dict[str, object] = {"identity": identity.plain(), "now_ns": parts.runtime.now_ns}
    shelf = Shelf()

    def place(value: object) -> object:
        if isinstance(value, Shelved):
            return shelf.place(value.body)
        raise cbor.CborError(f"a {type(value).__name__} has no plain CBOR form")

    for name, write, _ in _sections(parts, Shift(0)):
        try:
            body[name] = cbor.Encoded(cbor.pieces(write(), place))
        except BBError as error:
            raise SnapshotError(f"{name}: {error.what}", error.where or "snapshot", error.hint) from error
    body["slots"] = _slots(parts)
    body["sends"] = [list(row) for row in parts.naming.sends]
    body["bodies"] = shelf.bodies  # complete now that all parts are written
    data = cbor.pieces(body)
    digest, size = hashlib.sha256(), 0
    for piece in data:
        digest.update(piece)
        size += len(piece)
    head = MAGIC + VERSION.to_bytes(2, "big") + size.to_bytes(8, "big")
    return [head + digest.digest(), *data]


def _name_causes(parts: Parts) -> None:
    """Gives a cause to all that a snapshot is to hold and that may send durably: each node that is given it
    sends the same, and finds by its cause what has been written down since.

    It comes before any part is written: the parts hold what giving causes changes, so that a node at which
    nothing happens gives the same bytes each time.
    """
    waiting: list[Execution | Entry | Raw] = [
        *parts.scheduler.pool.active.values(),
        *parts.ingress.entries,
        *list(parts.ingress.envelopes),
    ]
    for one in waiting:
        if one.cause is None:
            one.cause = parts.runtime.new_cause()
    for unit in _units(parts):
        if unit.durable and unit.cause is None:
            unit.cause = parts.runtime.new_cause()


def _units(parts: Parts) -> Iterator[Unit]:
    """All that waits to leave, replies that were put off among them."""
    yield from parts.outgoing.queued
    for timer in parts.runtime.timers.running():
        yield from (arg for arg in timer.due.args if isinstance(arg, Unit))


def _slots(parts: Parts) -> list[Any]:
    """Which component is whose: for readers that have no artifact."""
    return [[target, slot, index] for (target, slot), index in parts.scheduler.components.slots.items()]


def look_into(data: bytes) -> tuple[Identity, dict[str, Any]]:
    """Whose snapshot it is, and its body. SnapshotDamagedError, SnapshotVersionError."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEADER:
        raise SnapshotDamagedError(
            "it is not a snapshot, or it is cut off", "snapshot", "use the one before it"
        )
    version = int.from_bytes(data[8:10], "big")
    if not OLDEST <= version <= VERSION:
        older = "run the runtime that wrote it, or move the state folder aside to start anew"
        raise SnapshotVersionError(
            f"schema version {version}, this runtime reads {OLDEST} to {VERSION}",
            "snapshot",
            "update the runtime" if version > VERSION else older,
        )
    size, digest, content = int.from_bytes(data[10:18], "big"), data[18:_HEADER], data[_HEADER:]
    if len(content) != size or hashlib.sha256(content).digest() != digest:
        raise SnapshotDamagedError("its checksum is wrong", "snapshot", "use the one before it")
    try:
        body: Any = cbor.loads(content, max_items=len(content) + 1, max_depth=_MAX_DEPTH)
        peer, module, digest_of, targets = body["identity"]
        return Identity(peer, module, digest_of, tuple(targets)), upgraded(version, dict(body))
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
        shift = Shift(now_ns - int(body["now_ns"]), body["bodies"])
        section = "slots"
        if body.get("slots", named := _slots(parts)) != named:  # the first versions did not name them
            raise ValueError("other slots than the artifact's")
        for section, _, take in _sections(parts, shift):
            take(body[section])
    except ComponentStateError as error:
        raise SnapshotDamagedError(f"{error.where}: {error.what}", "snapshot", error.hint) from error
    except _MISFITS as error:
        raise SnapshotDamagedError(
            f"its part {section!r} does not fit: {type(error).__name__}: {error}", "snapshot"
        ) from error
    for version, anew in body.get(ANEW, ()):
        parts.runtime.emit(StateUpgraded(version, anew))
    parts.requests.ask_again()


def may_run(parts: Parts) -> Callable[[Cause], bool]:
    """Tells of a cause whether something of it is still to come; for use before the next poll."""
    rounds = {rounds.own_number: rounds for rounds in parts.sources.rounds}
    present = set(_present(parts))

    def still(cause: Cause) -> bool:
        if cause.peer == parts.runtime.own_peer:
            if (source := rounds.get(cause.epoch)) is not None:
                return source.may_run(cause.seq)
            if parts.sources.intervals.may_run(cause):
                return True
        return cause in present

    return still


def _present(parts: Parts) -> Iterator[Cause | None]:
    """The causes of all that has begun or waits to begin."""
    for execution in parts.scheduler.pool.active.values():
        yield execution.cause
    for cohort in parts.requests.cohorts.values():
        for answer in cohort.waiting:
            yield answer.cause
    for entry in parts.ingress.entries:
        yield entry.cause
        if len(entry.args) > 1 and isinstance(entry.args[1], Envelope):
            yield cause_of(entry.args[0], entry.args[1])
    for unit in _units(parts):
        yield unit.cause
    for raw in parts.ingress.envelopes:
        yield raw.cause
    received = [(raw.peer, raw.data) for raw in parts.ingress.envelopes]
    journal = parts.admission.journal
    for arrival in (*journal.accepted, *journal.held.values()):
        yield cause_of(arrival.raw.peer, arrival.message)
    received += [(record.peer, record.data) for record in journal.replaying]
    for peer, data in received:
        try:
            yield cause_of(peer, envelope.decode(data, parts.runtime.config.caps))
        except BBError:  # the poll that takes it will say so
            continue
