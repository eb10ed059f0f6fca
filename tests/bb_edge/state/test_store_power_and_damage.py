"""A power cut, and then the newest snapshot cannot be read: the one before and the journals carry it all."""

from __future__ import annotations

import pytest
from store_program import CRASHES, CUTS, PROGRAM, Call, Model, made
from stores import flip, rewrite

from bb_edge.state import Recovered, segments
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut


@pytest.fixture(autouse=True)
def compact_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 100)


class Generations:
    """Per generation that the calls began: its snapshot, and the rows that were journaled in it."""

    def __init__(self) -> None:
        self.all: list[tuple[bytes | None, tuple[bytes, ...]]] = [(None, ())]
        self.model = Model()
        self.enclosed: list[set[bytes]] = [set()]
        """The rows that came with each snapshot: with an older one a node sends them anew. Those that the
        journal behind it has are found from an older one, too.
        """
        self.journaled: set[bytes] = set()
        self.discarded: set[bytes] = set()

    def add(self, call: Call) -> None:
        before, self.model = self.model, call.effect(self.model)
        if call.label.startswith("snapshot"):
            self.all.append((self.model.snapshot, ()))
            self.enclosed.append({record for _, record in self.model.enclosed})
        else:
            if call.label.startswith("answered"):
                new = {record for _, record in self.model.enclosed[-call.around :]}
                self.enclosed[-1] |= new
                self.journaled |= new
            snapshot, rows = self.all[-1]
            self.all[-1] = snapshot, rows + self.model.journal[len(before.journal) :]
        if call.label.startswith("discard"):
            gone = before.outbox + before.enclosed
            self.discarded |= {record for _, record in gone} - {
                record for _, record in self.model.outbox + self.model.enclosed
            }


def run_until_the_cut(disk: FakeDisk, old: int, fault: Fault) -> tuple[Generations, int]:
    """What was done, the interrupted call included, and the place of that call."""
    store = made(disk, old)
    store.open()
    disk.inject(fault)
    done, index = Generations(), -1
    with pytest.raises(PowerCut):
        for call in PROGRAM:
            index += 1
            done.add(call)
            call.run(store)
    return done, index


def damage(disk: FakeDisk, name: str, at: int) -> None:
    """A bit of it is another one, or, every fourth time, the file is emptied."""
    if at % 4:
        flip(disk, name, at % len(disk.files[name]))
    else:
        disk.crash(CrashMode.KEEP)
        rewrite(disk, name, b"")


def carried(found: Recovered, intact: Recovered, done: Generations) -> None:
    """That the older snapshot and both journals hold what the newest snapshot and its journal held."""
    snapshot, rows = done.all[intact.generation - 1]
    assert not found.losses
    assert (found.snapshot, found.generation) == (snapshot, intact.generation - 1)
    assert found.journal == rows + intact.journal
    gone = done.enclosed[intact.generation] - done.enclosed[intact.generation - 1] - done.journaled
    kept = [record for record in found.outbox if record in intact.outbox]
    assert kept == [record for record in intact.outbox if record not in gone], "in their order"
    assert not {*found.outbox} & done.discarded - {*intact.outbox}, "an operator's drops stay"


@pytest.mark.parametrize("old", [0, 2])
@pytest.mark.parametrize("kind", CUTS)
def test_after_a_power_cut_a_damaged_snapshot_is_carried_by_the_one_before(kind: FaultKind, old: int) -> None:
    """Each cut with a third of what may outlive it: all of it takes two minutes."""
    at, tried = 0, 0
    while True:
        at += 1
        probe = FakeDisk()
        try:
            run_until_the_cut(probe, old, Fault(kind, at))
        except pytest.fail.Exception:
            break  # there is no call of that number
        for mode, seed in CRASHES[at % 3 :: 3]:
            disk = FakeDisk()
            done, index = run_until_the_cut(disk, old, Fault(kind, at))
            disk.crash(mode, seed)
            intact = made(disk, old).open()
            if not intact.generation:
                continue
            tried += 1
            damage(disk, f"snapshot-{intact.generation}", at)
            store = made(disk, old)
            found = store.open()
            assert [note for note in found.notes if f"snapshot-{intact.generation} cannot be used" in note]
            carried(found, intact, done)
            # And on from there, with a snapshot that stands for what was found.
            around = dict(store.enclosed)
            store.write_snapshot(b"carried on", around)
            store.drop([])
            rest = [call for call in PROGRAM[index + 1 :] if not call.label.startswith("snapshot")]
            records = [record for record in found.outbox if record not in around.values()]
            outbox = tuple((record[:1], record) for record in records)
            model = Model(b"carried on", outbox=outbox, enclosed=tuple(around.items()))
            for call in rest:
                model = call.effect(model)
                call.run(store)
            disk.crash(CrashMode.LOSE)
            assert model.matches(made(disk, old).open())
    assert at > 120 and tried > 400
