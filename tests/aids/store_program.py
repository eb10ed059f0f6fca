"""Calls of a state store with their effects, and what a restart should find after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bb_edge.state import Recovered, StateStore
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, FaultKind

CUTS = (FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER)
CRASHES = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
CRASHES += [(CrashMode.SEEDED, seed) for seed in range(6)]


@dataclass(frozen=True)
class Model:
    """What a restart should find. `hints` are keys that were let go, which a power cut may bring back."""

    snapshot: bytes | None = None
    journal: tuple[bytes, ...] = ()
    outbox: tuple[tuple[bytes, bytes], ...] = ()
    hints: tuple[tuple[bytes, bytes], ...] = ()
    enclosed: tuple[tuple[bytes, bytes], ...] = ()

    def matches(self, found: Recovered, part_of: int = 0) -> bool:
        """`part_of`: so many records at the end may be missing, the last ones first."""
        assert not found.losses, found.losses
        if found.snapshot != self.snapshot:
            return False
        if found.journal not in [self.journal[: len(self.journal) - n] for n in range(part_of + 1)]:
            return False
        wanted = [record for _, record in self.enclosed + self.outbox]
        back = {record for _, record in self.hints}
        rest = [record for record in found.outbox if record not in back or record in wanted]
        return rest in [wanted[: len(wanted) - n] for n in range(part_of + 1)]


@dataclass(frozen=True)
class Call:
    """One call and its effect; `records`: how many it adds (a cut may leave the first few of them).

    `begun` is what a cut may leave of one that does two things, and counts as not done.
    """

    label: str
    run: Callable[[StateStore], None]
    effect: Callable[[Model], Model]
    records: int = field(default=0)
    begun: Callable[[Model], Model] = field(default=lambda model: model)


def journal(*records: bytes) -> Call:
    return Call(
        f"journal {records!r}",
        lambda s: s.append_journal(records),
        lambda m: replace(m, journal=m.journal + records),
        len(records),
    )


def outbox(*keys: bytes, size: int = 10) -> Call:
    pairs = tuple((key, key * size) for key in keys)
    return Call(
        f"outbox {keys!r}",
        lambda s: s.append_outbox(pairs),
        lambda m: replace(m, outbox=m.outbox + pairs),
        len(keys),
    )


def snapshot(data: bytes, *enclosed: bytes) -> Call:
    pairs = tuple((key, key * 10) for key in enclosed)
    return Call(
        f"snapshot {data!r} {enclosed!r}",
        lambda s: s.write_snapshot(data, dict(pairs)),
        lambda m: replace(m, snapshot=data, journal=(), enclosed=pairs),
    )


def drop(*keys: bytes) -> Call:
    def effect(m: Model) -> Model:
        gone = tuple(pair for pair in m.outbox if pair[0] in keys)
        left = tuple(pair for pair in m.outbox if pair[0] not in keys)
        return replace(m, outbox=left, hints=m.hints + gone)

    return Call(f"drop {keys!r}", lambda s: s.drop(keys), effect)


def discard(*keys: bytes, instead: bytes = b"") -> Call:
    """As an operator drops them: no power cut brings them back, whichever snapshot can be read."""
    added = ((instead, instead),) if instead else ()

    def effect(m: Model) -> Model:
        left = tuple(pair for pair in m.outbox if pair[0] not in keys)
        return replace(
            m, outbox=left + added, enclosed=tuple(pair for pair in m.enclosed if pair[0] not in keys)
        )

    return Call(
        f"discard {keys!r} {instead!r}",
        lambda s: s.discard(keys, added),
        effect,
        begun=lambda m: replace(m, outbox=m.outbox + added),
    )


PROGRAM = [
    journal(b"j1"),
    outbox(b"a", b"b", b"c"),
    journal(b"j2", b"j3", b"j4"),
    snapshot(b"first " * 9),
    drop(b"a"),
    journal(b"j5"),
    outbox(b"d", b"e", b"m", b"n"),
    discard(b"m"),
    snapshot(b"second " * 9, b"q", b"r"),
    drop(b"b", b"c"),
    discard(b"q", instead=b"Q"),
    discard(b"n", b"nobody's", instead=b"N"),
    outbox(b"f", size=120),
    journal(b"j6", b"j7"),
    snapshot(b"third " * 9, b"r", b"s"),
    drop(b"f", b"s"),
    snapshot(b"fourth " * 9),
    drop(),  # compacts
    journal(b"j8"),
    outbox(b"g"),
    snapshot(b""),
    drop(b"d", b"e", b"g"),
    snapshot(b"sixth"),
    drop(),
    journal(b"j9"),
    outbox(b"h"),
]


def run_program(store: StateStore, calls: list[Call]) -> None:
    for call in calls:
        call.run(store)


def made(disk: FakeDisk, old: int = 0) -> StateStore:
    return StateStore(AtomicStorage(disk.open()), (StorageError,), old_generations=old)
