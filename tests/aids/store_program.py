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

    def matches(self, found: Recovered, part_of: int = 0, around: int = 0) -> bool:
        """`part_of`: so many records at the end may be missing, the last ones first; `around`: so many of
        those that are enclosed, and all of them where the journal lacks one.
        """
        assert not found.losses, found.losses
        if found.snapshot != self.snapshot:
            return False
        if found.journal not in [self.journal[: len(self.journal) - n] for n in range(part_of + 1)]:
            return False
        wanted = [record for _, record in self.enclosed + self.outbox]
        back = {record for _, record in self.hints}
        rest = [record for record in found.outbox if record not in back or record in wanted]
        if around:
            lacking = range(around if len(found.journal) < len(self.journal) else 0, around + 1)
            enclosed = [self.enclosed[: len(self.enclosed) - n] for n in lacking]
            return rest in [[record for _, record in pairs + self.outbox] for pairs in enclosed]
        return rest in [wanted[: len(wanted) - n] for n in range(part_of + 1)]


@dataclass(frozen=True)
class Call:
    """One call and its effect; `records`: how many it adds (a cut may leave the first few of them), `around`:
    how many of them are rows of the outbox in the journal.

    `begun` is what a cut may leave of one that does two things, and counts as not done.
    """

    label: str
    run: Callable[[StateStore], None]
    effect: Callable[[Model], Model]
    records: int = field(default=0)
    begun: Callable[[Model], Model] = field(default=lambda model: model)
    around: int = field(default=0)


def journal(*records: bytes) -> Call:
    return Call(
        f"journal {records!r}",
        lambda s: s.append_journal(records),
        lambda m: replace(m, journal=m.journal + records),
        len(records),
    )


def answered(record: bytes, *keys: bytes) -> Call:
    """An input, and rows of the outbox that came of it, in one write."""
    pairs = tuple((key, key * 10) for key in keys)
    return Call(
        f"answered {record!r} {keys!r}",
        lambda s: s.append_journal([record], pairs),
        lambda m: replace(m, journal=(*m.journal, record), enclosed=m.enclosed + pairs),
        1 + len(keys),
        around=len(keys),
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
    answered(b"k1", b"t", b"u"),
    journal(b"j6", b"j7"),
    answered(b"k2", b"v"),
    discard(b"v"),
    snapshot(b"third " * 9, b"r", b"s", b"u"),
    answered(b"k3", b"w"),
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
