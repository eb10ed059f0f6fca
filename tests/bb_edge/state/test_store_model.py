"""The store against a model, by random walks: restarts, power cuts, faults, damaged snapshots."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bb_edge.state import Recovered, StateError, StateStore, segments
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

RECORD = st.binary(max_size=60)


def _pairs(records: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [(record.partition(b":")[0], record) for record in records]


class Machine(RuleBasedStateMachine):
    """What must be found, and what may be: records of a call that was interrupted, drops that were lost."""

    old_generations = 0

    @initialize()
    def begin(self) -> None:
        self.disk = FakeDisk()
        self.snapshots: list[bytes | None] = [None]  # those of the last two generations
        self.enclosed: list[list[bytes]] = [[]]  # in these
        self.journals: list[list[bytes]] = [[]]
        self.answers: list[list[bytes]] = [[]]  # rows of the outbox that went with those
        self.records: dict[bytes, bytes] = {}
        self.dropped: list[dict[bytes, bytes]] = [{}]  # by the snapshots above
        self.maybe: set[bytes] = set()  # keys whose drop may have been lost
        self.behind: list[bytes] = []  # of the journal's pending records
        self.serial = 0
        self.pending: tuple[str, list[bytes]] | None = None
        self.start()

    def start(self) -> Recovered:
        storage = AtomicStorage(self.disk.open())
        self.store = StateStore(storage, (StorageError,), old_generations=self.old_generations)
        return self.store.open()

    def record(self, data: bytes) -> bytes:
        self.serial += 1
        return b"%d:" % self.serial + data

    @rule(data=st.lists(RECORD, max_size=4), answers=st.lists(RECORD, max_size=2))
    def journal(self, data: list[bytes], answers: list[bytes]) -> None:
        """Answers go behind the records, in the same write."""
        records = [self.record(item) for item in data]
        rows = [self.record(item) for item in answers] if records else []
        self.pending = ("journal", records)
        self.behind = rows
        self.store.append_journal(records, _pairs(rows))
        self.journals[-1] += records
        self.answers[-1] += rows
        self.pending = None

    @rule(data=st.lists(RECORD, max_size=3))
    def outbox(self, data: list[bytes]) -> None:
        records = [self.record(item) for item in data]
        pairs = _pairs(records)
        self.pending = ("outbox", records)
        self.store.append_outbox(pairs)
        self.records.update(pairs)
        self.pending = None

    @rule(data=RECORD, rows=st.lists(RECORD, max_size=2))
    def snapshot(self, data: bytes, rows: list[bytes]) -> None:
        data, rows = self.record(data), [self.record(row) for row in rows]
        self.pending = ("snapshot", [data, *rows])
        self.store.write_snapshot(data, dict(_pairs(rows)))
        self.began(data, rows)
        self.pending = None
        keys = [key for key in self.records if int(key) % 3]
        self.dropped[-1] = {key: self.records.pop(key) for key in keys}
        self.maybe |= set(keys)
        self.store.drop(keys)
        assert len([name for name in self.disk.files if name.startswith("snapshot")]) <= 2 + (
            self.old_generations
        )

    def began(self, data: bytes, rows: list[bytes]) -> None:
        self.snapshots = [self.snapshots[-1], data]
        self.enclosed = [self.enclosed[-1], rows]
        self.journals = [self.journals[-1], []]
        self.answers = [self.answers[-1], []]
        self.dropped = [self.dropped[-1], {}]

    @rule(
        kind=st.sampled_from([FaultKind.FAIL, FaultKind.FULL, FaultKind.TORN]),
        at=st.integers(1, 12),
        act=st.sampled_from(["journal", "outbox", "snapshot"]),
        data=st.lists(RECORD, min_size=1, max_size=3),
    )
    def a_call_fails(self, kind: FaultKind, at: int, act: str, data: list[bytes]) -> None:
        self.disk.inject(Fault(kind, at))
        try:
            self.call(act, data)
        except StateError as error:
            if self.pending is None:
                pass  # a drop, whose rows come later
            elif "power cut may undo it" in str(error):
                self.disk.crash(CrashMode.KEEP)
                self.restart()
        self.disk.disarm()
        self.pending = None

    def call(self, act: str, data: list[bytes]) -> None:
        if act == "snapshot":
            self.snapshot(data[0], data[1:])
        elif act == "journal":
            self.journal(data, data[1:])
        else:
            self.outbox(data)

    @rule(
        kind=st.sampled_from([FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER]),
        at=st.integers(1, 12),
        act=st.sampled_from(["journal", "outbox", "snapshot"]),
        data=st.lists(RECORD, min_size=1, max_size=3),
        mode=st.sampled_from(list(CrashMode)),
        seed=st.integers(0, 99),
    )
    def the_power_goes(
        self, kind: FaultKind, at: int, act: str, data: list[bytes], mode: CrashMode, seed: int
    ) -> None:
        self.disk.inject(Fault(kind, at))
        with contextlib.suppress(PowerCut):
            self.call(act, data)
        self.disk.disarm()
        self.disk.crash(mode, seed)
        self.restart()

    @rule(mode=st.sampled_from(list(CrashMode)), seed=st.integers(0, 99))
    def a_restart(self, mode: CrashMode, seed: int) -> None:
        self.disk.crash(mode, seed)
        self.restart()

    def restart(self) -> None:
        """Takes over what an interrupted call left: nothing, some, or all of it."""
        found = self.start()
        if self.pending is not None:
            act, data = self.pending
            if act == "snapshot" and found.snapshot == data[0]:
                self.began(data[0], data[1:])
            elif act == "journal":
                left = [record for record in data if record in found.journal]
                answers = [row for row in self.behind if row in found.outbox]
                assert left == data or not answers, "an answer is on disk, and what it follows from is not"
                self.journals[-1] += left
                self.answers[-1] += answers
            elif act == "outbox":
                self.records.update(_pairs([record for record in data if record in found.outbox]))
            self.pending = None
        self.check(found)

    @precondition(lambda self: len(self.snapshots) > 1 and self.snapshots[-2] is not None)
    @rule()
    def the_node_refuses_the_snapshot(self) -> None:
        """Only looks: the walk goes on from the snapshot that was refused."""
        found = self.store.fall_back("refused")
        assert not found.losses
        assert found.snapshot == self.snapshots[-2]
        assert list(found.journal) == self.journals[-2] + self.journals[-1]
        wanted = {*self.records.values(), *self.dropped[-1].values(), *self.enclosed[-2]}
        wanted.update(*self.answers)
        assert wanted <= set(found.outbox)
        self.check(self.store.open())

    def check(self, found: Recovered) -> None:
        assert not found.losses, "a restart or a power cut is not a loss"
        assert found.snapshot == self.snapshots[-1]
        assert list(found.journal) == self.journals[-1]
        wanted = [*self.enclosed[-1], *self.answers[-1], *self.records.values()]
        extra = set(found.outbox) - set(wanted)
        assert [record for record in found.outbox if record not in extra] == wanted
        assert {record.partition(b":")[0] for record in extra} <= self.maybe


@pytest.fixture(autouse=True)
def compact_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "COMPACTED_FROM_BYTES", 100)


class Leisurely(Machine):
    old_generations = 3


for machine in (Machine, Leisurely):
    machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStoreAgainstItsModel = Machine.TestCase
TestStoreThatRemovesSeldom = Leisurely.TestCase
