"""The keeper: what of a poll is written when, what the node is told, and when a snapshot is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from stores import opened, rewrite
from times import S

from bb_edge.engine import steps
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.state import (
    Recovered,
    StateDamagedError,
    StateFullError,
    StateStore,
    StoreLimits,
    record_framing,
)
from bb_edge.state.journaling import GATHERED_BYTES, GATHERED_NS
from bb_edge.state.keeper import ENCLOSED_BYTES, Keeper, key_bytes, name_of_key, restore
from bb_edge.state.segment_rows import add_rows
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.durable_rows import RowName
from bb_edge.wire.outbox import OutboxRecord, body_record, name_of
from bb_edge.wire.resend import EnvelopeKey
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

PEER = PeerId.from_name("other")

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


class Refused(BBError):
    """A snapshot that the node does not take."""


class Node:
    """A node's doors for a keeper; its state is a number that polls would change."""

    def __init__(self, snapshot: bytes | None = None) -> None:
        if snapshot is not None and snapshot.startswith(b"bad"):
            raise Refused("digest differs", "snapshot")
        self.state = 0 if snapshot is None else int(snapshot)
        self.kept: list[int] = []
        self.failed: dict[int, BaseException] = {}
        self.gone: list[EnvelopeKey] = []
        self.written = 0
        self.counters: dict[str, int] = {}
        self.outbox: list[bytes] = []
        self.journal: list[bytes] = []
        self.error: BBError | None = None
        self.at_ns: list[int] = []
        self.needed: set[int | BodyName] = set()

    def needs_row(self, name: int | BodyName) -> bool:
        return name in self.needed

    def snapshot_pieces(self, now_ns: int) -> list[bytes]:
        self.at_ns.append(now_ns)
        if self.error is not None:
            raise self.error
        return [b"%d" % self.state]

    def snapshot_written(self) -> Iterable[EnvelopeKey]:
        self.written += 1
        gone, self.gone = self.gone, []
        return gone

    def persisted(self, token: int) -> None:
        self.kept.append(token)

    def persist_failed(self, token: int, error: BaseException) -> None:
        self.failed[token] = error

    def adopt_outbox(self, records: Iterable[bytes], now_ns: int, wall_ns: int) -> None:
        self.outbox = [*records, b"%d %d" % (now_ns, wall_ns)]

    def replay(self, records: Iterable[bytes]) -> None:
        assert self.outbox, "the outbox comes first"
        self.journal = list(records)


class World:
    """A disk, a store, a node and its keeper."""

    def __init__(self, make: Opened, look: Look, limits: StoreLimits | None, **options: Any) -> None:
        self.disk = FakeDisk()
        self.store = make(self.disk, limits)
        self.store.open()
        self.node = Node()
        self.reported: list[steps.EngineStep] = []
        self.keeper = Keeper(self.node, self.store, report=self.reported.append, **options)
        self._look = look

    def take(self, *found: steps.EngineStep, now_ns: int = 0) -> None:
        self.keeper.take(found, now_ns)

    @property
    def on_disk(self) -> Recovered:
        return self._look(self.disk)


@pytest.fixture
def world(make_store: Opened, look: Look) -> Callable[..., World]:
    def make(limits: StoreLimits | None = None, **options: Any) -> World:
        return World(make_store, look, limits, **options)

    return make


def record(seq: int, size: int = 10) -> OutboxRecord:
    return OutboxRecord(EnvelopeKey(PEER, 7, seq), b"x" * size)


def outgoing(token: int, seq: int, size: int = 10) -> steps.PersistOutbox:
    return steps.PersistOutbox(token, PEER, record(seq, size).to_bytes(), name=seq)


def incoming(token: int, data: bytes = b"journaled") -> steps.Journal:
    return steps.Journal(token, PEER, [data])


def ran(token: int, data: bytes = b"ran") -> steps.Journal:
    """What the node has run already."""
    return steps.Journal(token, PEER, [data], ahead=True)


def answer(token: int, seq: int, size: int = 10) -> steps.PersistOutbox:
    """A row that may come of what has run."""
    return steps.PersistOutbox(token, PEER, record(seq, size).to_bytes(), name=seq, with_journal=True)


def patient(token: int, data: bytes = b"patient") -> steps.Journal:
    """What may wait for others."""
    return steps.Journal(token, PEER, [data], patient=True)


def event() -> steps.AppEvent:
    return steps.AppEvent("Main", 1, "x")


def test_the_first_poll_writes_the_first_snapshot(world: Callable[..., World]) -> None:
    w = world()
    w.node.state = 5
    w.take()
    assert (w.on_disk.snapshot, w.node.written, w.keeper.snapshots) == (b"5", 1, 1)
    w.take(event())
    assert w.keeper.snapshots == 1


def test_a_snapshot_is_of_the_time_of_its_poll(world: Callable[..., World]) -> None:
    w = world()
    for now_ns in (3, S):
        w.take(wanted(), now_ns=now_ns)
    assert w.node.at_ns == [3, S]


def test_records_are_on_the_medium_before_the_node_is_told(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    said: list[tuple[int, Recovered]] = []
    w.node.persisted = lambda token: said.append((token, w.on_disk))  # type: ignore[method-assign]
    w.disk.counts.clear()
    w.take(incoming(1, b"a"), outgoing(2, 1), event(), incoming(3, b"b"), outgoing(4, 2))
    assert [token for token, _ in said] == [2, 4, 1, 3]
    assert said[0][1].outbox == (record(1).to_bytes(), record(2).to_bytes())
    assert said[2][1].journal == (b"a", b"b")
    assert w.disk.counts["sync"] == 2, "one per file, however many records"


def test_a_failed_record_is_told_and_the_others_are_kept(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    w.take(outgoing(1, 1), outgoing(2, 2), incoming(3))
    assert set(w.node.failed) == {1, 2}
    assert "No space left" in str(w.node.failed[1])
    assert w.node.kept == [3]
    assert w.keeper.counters["state.failures"] == 1
    w.take(outgoing(4, 1))
    assert w.node.kept == [3, 4]
    assert w.on_disk.outbox == (record(1).to_bytes(),)


@pytest.mark.parametrize("fault", [None, Fault(FaultKind.FULL, 1, "write")], ids=["", "the disk refuses"])
def test_a_full_outbox_takes_the_numbers_by_which_it_empties(
    world: Callable[..., World], fault: Fault | None
) -> None:
    """They are asked for together with a record that has no room, and alone."""
    first = len(add_rows([(key_bytes(1), record(1, 50).to_bytes())])[0])
    w = world(StoreLimits(outbox_bytes=first + 10))
    w.take()
    w.take(outgoing(1, 1, 50))
    number = steps.PersistOutbox(2, PEER, b"number", name=RowName(PEER, 7, 1))
    with pytest.raises(StateFullError):
        w.store.append_outbox([(key_bytes(number.name), number.record)])
    if fault is not None:
        w.disk.inject(fault)
    w.take(outgoing(3, 2, 200), number)
    assert set(w.node.failed) == ({3} if fault is None else {2, 3})
    assert "are requested" in str(w.node.failed[3])
    w.take(replace(number, token=4))
    assert w.node.kept == ([1, 2, 4] if fault is None else [1, 4])
    assert w.on_disk.outbox[-1] == b"number"


def test_what_has_run_and_its_answer_are_one_write_and_one_sync(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.node.needed = {1, 2}
    said: list[tuple[int, Recovered]] = []
    w.node.persisted = lambda token: said.append((token, w.on_disk))  # type: ignore[method-assign]
    w.disk.counts.clear()
    w.take(answer(1, 1), ran(2, b"a"), ran(4, b"b"), answer(3, 2))
    assert [token for token, _ in said] == [2, 4, 1, 3]
    both = (record(1).to_bytes(), record(2).to_bytes())
    assert all((found.journal, found.outbox) == ((b"a", b"b"), both) for _, found in said)
    assert w.disk.counts["sync"] == 1 and not w.store.has_outbox(key_bytes(1))
    w.node.needed = {2}
    w.take(wanted())
    assert (w.on_disk.journal, w.on_disk.outbox) == ((), both[1:]), "its snapshot has what is needed"


def test_what_may_not_share_the_journal_is_written_behind_it(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.counts.clear()
    w.take(outgoing(1, 1), ran(2), answer(3, 2), incoming(4))
    assert w.node.kept == [2, 3, 1, 4]
    assert w.store.has_outbox(key_bytes(1)) and not w.store.has_outbox(key_bytes(2))
    assert w.on_disk.journal == (b"ran", b"journaled") and w.disk.counts["sync"] == 3


def test_a_journal_that_refuses_what_has_run_holds_up_the_outbox(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    w.take(outgoing(1, 1), ran(2), answer(3, 2))
    assert [*w.node.failed] == [2, 3, 1] and not w.node.kept
    assert (w.on_disk.journal, w.on_disk.outbox) == ((), ())
    w.take(ran(2))
    assert w.node.kept == [2] and w.on_disk.journal == (b"ran",)


def test_answers_that_are_settled_take_no_room_of_those_that_are_not(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    for number in range(1, 6):
        w.node.needed = {number}  # the one before is acknowledged
        w.take(ran(10 + number), answer(number, number, ENCLOSED_BYTES // 2))
        assert not w.store.has_outbox(key_bytes(number)), number
        assert [*w.store.enclosed] == [key_bytes(number)]
    w.node.needed = {5, 6}
    w.take(ran(20), answer(6, 6, ENCLOSED_BYTES // 2))
    assert w.store.has_outbox(key_bytes(6)), "two of them are too much for each snapshot"
    assert [*w.store.enclosed] == [key_bytes(5)]


def test_a_journal_of_an_older_version_goes_on_without_rows_of_the_outbox(make_store: Opened) -> None:
    disk, kind = FakeDisk(), record_framing.JOURNAL
    opened(make_store, disk).append_journal([b"x"])
    disk.crash(CrashMode.KEEP)
    before = record_framing.header(kind, 0, version=record_framing.VERSION)
    rewrite(disk, "journal-0", before + record_framing.framed(kind, 0, 1, [b"\x03as it was"]))
    store = make_store(disk)
    assert store.open().journal == (b"\x03as it was",)
    node = Node()
    keeper = Keeper(node, store)
    store.append_journal([b"\x01and more"])
    assert not store.journal_encloses
    keeper.take([ran(1), answer(2, 1)], 0)
    assert node.kept == [1, 2]
    disk.crash(CrashMode.KEEP)
    found = make_store(disk).open()
    assert not store.enclosed and found.outbox == (record(1).to_bytes(),)


def test_what_is_patient_shares_the_write_of_what_is_not(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.counts.clear()
    w.take(patient(1, b"a"), now_ns=1 * S)
    assert not w.node.kept and w.keeper.next_ns == 1 * S + GATHERED_NS
    w.take(patient(2, b"b"), now_ns=1 * S + GATHERED_NS - 1)
    assert not w.node.kept and w.keeper.next_ns == 1 * S + GATHERED_NS, "the first one decides"
    w.take(incoming(3, b"c"), now_ns=1 * S + GATHERED_NS - 1)
    assert w.node.kept == [1, 2, 3] and w.on_disk.journal == (b"a", b"b", b"c")
    assert w.disk.counts["sync"] == 1 and w.keeper.next_ns is None


def test_what_is_patient_is_written_in_time(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.take(patient(1), now_ns=S)
    w.take(event(), now_ns=S + GATHERED_NS - 1)
    assert not w.node.kept
    w.take(now_ns=S + GATHERED_NS)
    assert w.node.kept == [1] and w.keeper.next_ns is None
    w.take(patient(2), now_ns=2 * S)
    w.take(patient(3), now_ns=2 * S + GATHERED_NS)
    assert w.node.kept == [1, 2, 3], "nobody waits for the next one"
    w.take(patient(4), patient(5, bytes(GATHERED_BYTES)), now_ns=3 * S)
    assert w.node.kept == [1, 2, 3, 4, 5], "so much is worth a write"


def test_a_snapshot_waits_a_poll_for_what_is_patient(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.take(patient(1), now_ns=S)
    w.take(wanted(), now_ns=S + 1)
    assert w.node.kept == [1] and w.keeper.snapshots == 1 and w.keeper.next_ns == 0
    w.take(now_ns=S + 2)
    assert w.keeper.snapshots == 2


def test_the_next_time_is_that_of_whatever_comes_first(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.take(patient(1), now_ns=S)
    w.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    w.keeper.snapshot(S)
    assert w.node.failed.keys() == {1} and w.keeper.snapshots == 2
    w.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    assert not w.keeper.snapshot(S)
    w.take(patient(2), now_ns=S + 1)
    assert w.keeper.next_ns == S + 1 + GATHERED_NS
    w.take(now_ns=S + 1 + GATHERED_NS)
    assert w.keeper.next_ns == 2 * S


def test_a_snapshot_comes_last_and_lets_records_go(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.take(outgoing(1, 1), outgoing(2, 2), incoming(3))
    w.node.gone = [1]
    w.node.state = 9
    w.take(wanted(), outgoing(4, 3))
    assert w.on_disk == Recovered(b"9", (), (record(2).to_bytes(), record(3).to_bytes()), 2, ())
    assert w.node.kept == [1, 2, 3, 4]


def wanted() -> steps.SnapshotWanted:
    return steps.SnapshotWanted("a durable request")


def held_back(token: int, seq: int, body: bytes = b"", size: int = 10) -> steps.PersistOutbox:
    """The row of a request, which leaves after a snapshot."""
    name = name_of(body) if body else BodyName()
    row = record(seq, size).to_bytes()
    return steps.PersistOutbox(token, PEER, row, body, name, seq, with_snapshot=True)


def test_a_request_comes_with_its_snapshot_in_one_write(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    said: list[int] = []
    w.node.persisted = lambda token: said.append(w.on_disk.generation)  # type: ignore[method-assign]
    w.node.needed = {1, 2, name_of(b"body")}
    w.disk.counts.clear()
    w.take(held_back(1, 1, b"body"), held_back(2, 2, b"body"), wanted())
    assert said == [1, 1], "before the snapshot, which then holds that they wait for it"
    rows = (body_record(b"body"), record(1).to_bytes(), record(2).to_bytes())
    assert w.on_disk == Recovered(b"0", (), rows, 2, ())
    assert w.disk.counts["sync"] == 1 and not w.store.has_outbox(key_bytes(1))


def test_rows_stay_with_the_snapshots_while_the_node_needs_them(
    world: Callable[..., World], make_store: Opened
) -> None:
    w = world()
    w.node.needed = {1, 2, name_of(b"body")}
    w.take(held_back(1, 1, b"body"), held_back(2, 2, b"body"))
    assert len(w.on_disk.outbox) == 3, "nothing is told of a row that nobody wants a snapshot for"
    w.node.needed = {2, name_of(b"body")}
    w.node.gone = [1]
    w.take(wanted())
    assert w.on_disk.outbox == (body_record(b"body"), record(2).to_bytes())
    w.disk.crash(CrashMode.LOSE)
    store = make_store(w.disk)
    node, restored = restore(store, Node, Refused, 0, 0)
    assert restored.outbox == 2
    node.needed = {2, name_of(b"body")}
    keeper = Keeper(node, store)
    keeper.snapshot(1)
    assert w.on_disk.outbox == (body_record(b"body"), record(2).to_bytes()), "a restart has them, too"
    node.needed = set()
    keeper.snapshot(2)
    assert w.on_disk.outbox == ()


def test_what_is_large_is_no_part_of_each_snapshot(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.node.needed = {1, 2, 3}
    w.take(held_back(1, 1, size=ENCLOSED_BYTES // 2), wanted())
    assert w.store.enclosed and not w.store.has_outbox(key_bytes(1))
    w.take(held_back(2, 2, size=ENCLOSED_BYTES // 2), wanted())
    assert w.store.has_outbox(key_bytes(2)) and [*w.store.enclosed] == [key_bytes(1)]
    assert w.node.kept == [1, 2] and len(w.on_disk.outbox) == 2


def test_rows_that_are_too_large_for_snapshots_keep_their_place_among_the_others(
    world: Callable[..., World],
) -> None:
    w = world()
    w.take()
    w.take(outgoing(1, 1), held_back(2, 2, size=ENCLOSED_BYTES), outgoing(3, 3))
    assert sorted(w.node.kept) == [1, 2, 3] and len(w.on_disk.outbox) == 3


def size_of(wanted: int) -> int:
    """The size for `record` whose row has so many bytes."""
    return wanted - len(record(1, wanted).to_bytes()) + wanted


@pytest.mark.parametrize("more", [0, 1])
def test_rows_come_with_snapshots_and_the_journal_up_to_128_kib(
    world: Callable[..., World], more: int
) -> None:
    size = size_of(ENCLOSED_BYTES + more)
    assert len(record(1, size).to_bytes()) == ENCLOSED_BYTES + more == (128 << 10) + more
    for steps_taken in ([held_back(1, 1, size=size)], [ran(2), answer(1, 1, size)]):
        w = world()
        w.take()
        w.node.needed = {1}
        w.take(*steps_taken)
        assert w.store.has_outbox(key_bytes(1)) is bool(more) and len(w.on_disk.outbox) == 1


def test_a_body_is_written_for_the_first_row_that_names_it_alone(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    body = bytes(1000)
    for token in (1, 2, 3):
        before = w.store.counters["state.bytes_written"]
        row = steps.PersistOutbox(token, PEER, record(token).to_bytes(), body, name_of(body), token)
        w.take(row)
        assert (w.store.counters["state.bytes_written"] - before > 1000) is (token == 1)
    assert w.store.counters["state.outbox_records"] == 4


def test_a_body_that_an_enclosed_row_has_is_written_for_the_outbox_too(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    name = name_of(b"body")
    w.node.needed = {1, name}
    w.take(held_back(1, 1, b"body"), wanted())
    w.take(steps.PersistOutbox(2, PEER, record(2).to_bytes(), b"body", name, 2))
    w.node.needed = {2, name}
    w.take(wanted())
    assert w.store.enclosed == {name: body_record(b"body")} and w.store.has_outbox(name)
    w.node.needed = set()
    w.take(wanted())
    assert w.on_disk.outbox == (body_record(b"body"), record(2).to_bytes())


def test_rows_that_wait_for_a_snapshot_that_fails_come_with_the_next_one(
    world: Callable[..., World],
) -> None:
    w = world()
    w.take()
    w.node.needed = {1}
    w.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    w.take(held_back(1, 1), wanted(), now_ns=0)
    assert w.keeper.failing and w.on_disk.outbox == () and w.store.enclosed == {}
    w.take(now_ns=S)
    assert w.on_disk == Recovered(b"0", (), (record(1).to_bytes(),), 2, ())


def test_a_snapshot_that_fails_is_reported_and_tried_again_after_a_while(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    assert w.keeper.next_ns is None
    w.disk.capacity_bytes = 0
    tries = []
    w.take(wanted(), now_ns=0)
    assert w.keeper.next_ns == S and w.keeper.failing
    for second in range(1, 200):
        before = len(w.reported)
        w.take(now_ns=second * S)
        if len(w.reported) > before:
            tries.append(second)
    assert tries == [1, 3, 7, 15, 31, 63, 123, 183]
    step = w.reported[0]
    assert isinstance(step, steps.StorageFailed)
    assert "No space left" in str(step)
    w.disk.capacity_bytes = 10_000
    assert w.keeper.next_ns == 243 * S
    w.take(now_ns=243 * S)
    assert w.keeper.next_ns is None and not w.keeper.failing
    assert (w.node.written, w.on_disk.generation) == (2, 2)
    w.take(now_ns=244 * S)
    assert isinstance(w.reported[-1], steps.StorageRecovered)
    w.take(wanted(), now_ns=244 * S)
    assert w.on_disk.generation == 3


def recovered(w: World) -> list[steps.EngineStep]:
    found = [step for step in w.reported if isinstance(step, steps.StorageRecovered)]
    w.reported.clear()
    return found


def test_a_disk_that_takes_all_again_is_told_once(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.capacity_bytes = 0
    for second in range(4):
        w.take(outgoing(1, 1), outgoing(2, 2), now_ns=second * S)
    assert [*w.node.failed] == [1, 2] and not recovered(w)
    w.disk.capacity_bytes = 100_000
    w.take(now_ns=4 * S)
    assert not recovered(w), "nothing was written yet"
    w.take(outgoing(1, 1), now_ns=20 * S)
    assert not recovered(w), "the other one waits for its turn"
    w.take(outgoing(2, 2), now_ns=21 * S)
    assert recovered(w) == [steps.StorageRecovered(4, 3 * S)]
    w.take(outgoing(3, 3), now_ns=22 * S)
    assert not recovered(w)


def test_a_disk_that_was_not_written_to_since_has_not_recovered(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.capacity_bytes = 0
    w.take(incoming(1), now_ns=0)  # which its sender repeats
    w.disk.capacity_bytes = 100_000
    w.take(now_ns=10 * S)
    assert not recovered(w)
    w.take(incoming(1), now_ns=11 * S)
    assert recovered(w) == [steps.StorageRecovered(1, 0)]


def test_while_snapshots_are_refused_the_disk_has_not_recovered(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.node.error = BBError("a component cannot be serialized", "agg")
    w.take(wanted(), now_ns=0)
    for second in (1, 3, 7):
        w.take(incoming(second), now_ns=second * S)
    assert (w.node.kept, w.keeper.next_ns) == ([1, 3, 7], 15 * S)
    w.take(incoming(8), now_ns=14 * S)
    assert not recovered(w), "records alone are taken"
    w.node.error = None
    w.take(now_ns=15 * S)
    assert recovered(w) == [steps.StorageRecovered(4, 7 * S)]


def test_a_disk_that_takes_every_second_write_has_not_recovered(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    for second in range(0, 20, 2):
        w.disk.capacity_bytes = 0
        w.take(incoming(second), now_ns=second * S)
        w.disk.capacity_bytes = 100_000
        w.take(incoming(100 + second), now_ns=(second + 1) * S)
    assert len(w.node.failed) == 10 and not recovered(w)
    w.take(incoming(200), now_ns=24 * S)
    assert recovered(w) == [steps.StorageRecovered(10, 18 * S)]


def test_records_that_nobody_asks_for_again_hold_up_no_recovery(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.capacity_bytes = 0
    w.take(outgoing(1, 1), now_ns=0)  # it expires
    w.disk.capacity_bytes = 100_000
    w.take(outgoing(2, 2), now_ns=30 * S)
    assert not recovered(w)
    w.take(now_ns=71 * S)
    assert recovered(w) == [steps.StorageRecovered(1, 0)]


def test_a_node_that_cannot_be_written_down_is_reported(world: Callable[..., World]) -> None:
    w = world()
    w.node.error = BBError("a component cannot be serialized", "agg")
    w.take(incoming(1))
    assert w.node.kept == [1]
    assert len(w.reported) == 1
    assert w.keeper.snapshots == 0
    w.node.error = None
    w.take(now_ns=S)
    assert w.keeper.snapshots == 1


def test_tidying_up_that_fails_does_not_undo_the_snapshot(world: Callable[..., World]) -> None:
    w = world()
    w.take()
    w.disk.inject(Fault(FaultKind.FAIL, 1, "unlink"))
    w.take(wanted())
    w.take(wanted())
    assert (w.keeper.snapshots, len(w.reported)) == (3, 1)
    assert w.on_disk.generation == 3


def test_without_anybody_to_report_to(make_store: Opened) -> None:
    store = make_store(FakeDisk(capacity_bytes=0))
    store.open()
    keeper = Keeper(Node(), store)
    keeper.take((), 0)
    assert keeper.failures == 1


def test_the_interval(world: Callable[..., World]) -> None:
    w = world(interval_ns=10 * S)
    w.take(now_ns=0)
    for now in (1, 5, 9):
        w.take(event(), now_ns=now * S)
    assert w.keeper.snapshots == 1
    w.take(now_ns=10 * S)
    assert w.keeper.snapshots == 2
    for now in range(11, 100):
        w.take(now_ns=now * S)
    assert w.keeper.snapshots == 2, "nothing happened since"
    w.node.counters["ops"] = 1
    w.take(now_ns=100 * S)
    w.take(now_ns=101 * S)
    assert w.keeper.snapshots == 3, "something happened that no step told of"


def test_an_interval_in_which_nothing_happened_is_followed_by_a_whole_one(
    world: Callable[..., World],
) -> None:
    w = world(interval_ns=10 * S)
    for second in range(11):
        w.take(now_ns=second * S)
    w.take(event(), now_ns=11 * S)
    assert w.keeper.snapshots == 1
    w.take(now_ns=20 * S)
    assert w.keeper.snapshots == 2


def test_rounds_are_on_disk_in_the_poll_after_their_end(world: Callable[..., World]) -> None:
    ended = 0
    w = world(rounds=1, rounds_ended=lambda: ended)
    w.take(now_ns=1)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (1, None)
    ended = 1
    w.take(event(), now_ns=2 * S)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (1, 2 * S), "the poll after is due at once"
    w.take(now_ns=2 * S + 1)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (2, None)
    w.take(event(), now_ns=9 * S)
    assert w.keeper.snapshots == 2, "no round has ended since"


def test_rounds_of_a_node_that_came_back_count_from_there(make_store: Opened) -> None:
    store = make_store(FakeDisk())
    store.open()
    store.write_snapshot(b"8")
    ended = 5
    keeper = Keeper(Node(), store, rounds=1, rounds_ended=lambda: ended)
    assert keeper.next_ns is None
    keeper.take((), 0)
    keeper.take((), S)
    assert (keeper.snapshots, keeper.next_ns) == (0, None), "its five rounds are in the snapshot"
    ended = 6
    keeper.take((), 2 * S)
    assert keeper.next_ns == 2 * S
    keeper.take((), 2 * S)
    assert keeper.snapshots == 1


def test_the_first_round_of_a_node_that_came_back_waits_for_nothing(make_store: Opened) -> None:
    store = make_store(FakeDisk())
    store.open()
    store.write_snapshot(b"8")
    ended = 0
    keeper = Keeper(Node(), store, rounds=1, rounds_ended=lambda: ended)
    ended = 1
    keeper.take((), 0)
    assert keeper.next_ns == 1, "0 is the time of none"
    keeper.take((), 1)
    assert keeper.snapshots == 1


def test_a_round_that_begins_with_a_durable_question_takes_one_snapshot(world: Callable[..., World]) -> None:
    ended = 0
    w = world(rounds=1, rounds_ended=lambda: ended)
    w.take(now_ns=1)
    ended = 1
    w.take(event(), now_ns=2 * S)
    w.take(wanted(), now_ns=2 * S + 1)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (2, None)
    w.take(event(), now_ns=4 * S)
    assert w.keeper.snapshots == 2


def test_short_rounds_are_written_once_a_second_and_several_rounds_where_that_is_asked(
    world: Callable[..., World],
) -> None:
    ended = 0
    w = world(rounds=2, rounds_ended=lambda: ended)
    w.take(now_ns=1)
    for poll in range(100):
        ended += 1
        w.take(event(), now_ns=1 + (poll + 1) * S // 50)
    assert w.keeper.snapshots == 1 + 2, "after a hundred rounds in two seconds"
    ended += 1
    for _ in range(3):
        w.take(now_ns=9 * S)
    assert w.keeper.snapshots == 1 + 2, "one round of two"


def test_rounds_of_which_the_snapshot_fails_are_tried_again(world: Callable[..., World]) -> None:
    ended = 0
    w = world(rounds=1, rounds_ended=lambda: ended)
    w.take(now_ns=1)
    ended = 1
    w.take(now_ns=2 * S)
    w.disk.capacity_bytes = 0
    w.take(now_ns=2 * S)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (1, 3 * S)
    w.disk.capacity_bytes = 1 << 20
    w.take(now_ns=3 * S)
    assert (w.keeper.snapshots, w.keeper.next_ns) == (2, None)


def test_the_interval_of_a_node_that_came_back(make_store: Opened) -> None:
    disk = FakeDisk()
    store = make_store(disk)
    store.open()
    store.write_snapshot(b"8")
    keeper = Keeper(Node(), store, interval_ns=10 * S)
    for now in range(1, 11):
        keeper.take((), now * S)
    assert keeper.snapshots == 0
    keeper.take((), 11 * S)
    assert keeper.snapshots == 1, "a node that came back is not the one of the snapshot"


def test_without_an_interval_nothing_is_written_by_itself(world: Callable[..., World]) -> None:
    w = world()
    for now in range(100):
        w.take(event(), now_ns=now * S)
    assert w.keeper.snapshots == 1


def test_a_full_journal_asks_for_a_snapshot(world: Callable[..., World]) -> None:
    w = world(StoreLimits(journal_bytes=200))
    w.take()
    w.take(incoming(1, b"x" * 100))
    assert w.keeper.snapshots == 1
    w.take(incoming(2, b"x" * 100))
    assert (w.keeper.snapshots, w.on_disk.journal) == (2, ())


def test_a_journal_that_is_beyond_its_budget_refuses(world: Callable[..., World]) -> None:
    w = world(StoreLimits(journal_bytes=200))
    w.take()
    w.take(incoming(1, b"x" * 500))
    assert f"the journal holds {record_framing.HEADER_BYTES} bytes" in str(w.node.failed[1])


def test_it_counts(world: Callable[..., World]) -> None:
    w = world()
    w.take(outgoing(1, 1))
    counters = w.keeper.counters
    assert (counters["state.snapshots"], counters["state.outbox_records"]) == (1, 1)
    assert counters["state.bytes_written"] > 0


def test_keys_tell_peer_epoch_and_number_apart() -> None:
    keys = [EnvelopeKey(PEER, 7, 1), EnvelopeKey(PEER, 1, 7), EnvelopeKey(PeerId.from_name("third"), 7, 1)]
    assert len({key_bytes(key) for key in keys}) == 3


def test_keys_are_those_that_are_on_disks(world: Callable[..., World]) -> None:
    """A row is dropped by its key, also one that an older version wrote."""
    rest = PEER.to_bytes() + bytes(6) + b"\x01\x02" + bytes(7) + b"\x03"
    assert key_bytes(EnvelopeKey(PEER, 258, 3)) == rest
    assert key_bytes(RowName(PEER, 258, 3)) == b"N" + rest
    assert key_bytes(258) == bytes(6) + b"\x01\x02" and name_of_key(key_bytes(258)) == 258


# --- restarts ---------------------------------------------------------------------------------------------


def test_a_new_folder_gives_a_new_node(make_store: Opened) -> None:
    node, found = restore(make_store(FakeDisk()), Node, Refused, 3, 4)
    assert (node.state, node.outbox, node.journal) == (0, [b"3 4"], [])
    assert (found.generation, found.journal, found.outbox, found.notes) == (0, 0, 0, ())


def test_what_a_snapshot_starts_runs_in_the_poll_before_it(make_store: Opened) -> None:
    store = make_store(FakeDisk())
    store.open()
    said: list[str] = []
    keeper = Keeper(Node(), store, interval_ns=10 * S, announce=lambda: said.append("announced"))
    fired = steps.LifecycleFired(steps.Phase.SNAPSHOT)

    def take(*found: steps.EngineStep, now_ns: int = 0) -> tuple[int, int]:
        keeper.take(found, now_ns)
        return len(said), keeper.snapshots

    assert take() == (1, 0), "the first of a folder"
    assert take(fired, wanted()) == (1, 1)
    assert take(event(), now_ns=10 * S) == (2, 1), "the interval's"
    assert take(fired, now_ns=10 * S) == (2, 2)
    assert take(fired, wanted()) == (2, 3), "the host fired the phase itself: once"
    keeper.announce()
    keeper.announce()
    assert (len(said), keeper.snapshots) == (3, 3)
    assert take(steps.LifecycleFired(steps.Phase.SHUTDOWN), now_ns=10 * S) == (3, 4), "the last"


def test_a_snapshot_waits_for_what_it_starts_for_a_while(make_store: Opened) -> None:
    store = make_store(FakeDisk())
    store.open()
    runs = [True]
    keeper = Keeper(Node(), store, announce=lambda: None, still_runs=lambda: runs[0])
    fired = steps.LifecycleFired(steps.Phase.SNAPSHOT)

    def take(*found: steps.EngineStep, now_ns: int) -> int:
        keeper.take(found, now_ns)
        return keeper.snapshots

    assert [take(now_ns=0), take(fired, now_ns=1), take(now_ns=2)] == [0, 0, 0]
    runs[0] = False
    assert take(now_ns=3) == 1
    runs[0] = True
    assert [take(wanted(), now_ns=4), take(fired, now_ns=5), take(now_ns=5 * S + 4)] == [1, 1, 1]
    assert take(now_ns=5 * S + 5) == 2


def test_a_restart_brings_back_snapshot_outbox_and_journal(
    world: Callable[..., World], make_store: Opened
) -> None:
    w = world()
    w.node.state = 8
    w.take()
    w.take(outgoing(1, 1), incoming(2, b"a"), incoming(3, b"b"))
    w.disk.crash(CrashMode.LOSE)
    store = make_store(w.disk)
    node, found = restore(store, Node, Refused, 3, 4)
    assert (node.state, node.outbox, node.journal) == (8, [record(1).to_bytes(), b"3 4"], [b"a", b"b"])
    assert (found.generation, found.snapshot_bytes, found.journal, found.outbox) == (1, 1, 2, 1)
    Keeper(node, store).take((), 0)
    assert w.on_disk.generation == 1, "the folder has its first snapshot"


def test_a_snapshot_that_the_node_finds_damaged_gives_way(
    world: Callable[..., World], make_store: Opened
) -> None:
    w = world()
    w.node.state = 8
    w.take()
    w.take(incoming(1, b"a"))
    w.node.snapshot_pieces = lambda now_ns: [b"b", b"ad"]  # type: ignore[method-assign]
    w.take(wanted())
    w.take(incoming(2, b"b"))
    w.disk.crash(CrashMode.LOSE)
    node, found = restore(make_store(w.disk), Node, Refused, 0, 0)
    assert (node.state, node.journal, found.generation) == (8, [b"a", b"b"], 1)
    assert found.notes[0] == "snapshot-2 cannot be used: snapshot: digest differs"
    assert found.losses == ()


def test_what_a_node_refuses_for_another_reason_goes_through(make_store: Opened) -> None:
    def make(snapshot: bytes | None) -> Node:
        raise Refused("nothing to do with it")

    with pytest.raises(Refused):
        restore(make_store(FakeDisk()), make, Refused, 0, 0)


def test_when_both_snapshots_are_refused_there_is_nothing_left(
    world: Callable[..., World], make_store: Opened
) -> None:
    w = world()
    w.node.snapshot_pieces = lambda now_ns: [b"bad"]  # type: ignore[method-assign]
    for _ in range(3):
        w.take(wanted())
    w.disk.crash(CrashMode.LOSE)
    with pytest.raises(StateDamagedError, match="move the folder aside"):
        restore(make_store(w.disk), Node, Refused, 0, 0)


def test_a_young_folder_of_which_the_node_takes_no_snapshot_is_not_begun_anew(
    world: Callable[..., World], make_store: Opened
) -> None:
    """Its files are whole: what they hold is the operator's to give up."""
    w = world()
    w.node.snapshot_pieces = lambda now_ns: [b"bad"]  # type: ignore[method-assign]
    w.take(wanted())
    w.disk.crash(CrashMode.LOSE)
    before = w.disk.files
    with pytest.raises(Refused, match="digest differs"):
        restore(make_store(w.disk), Node, Refused, 0, 0)
    assert w.disk.files == before


def test_rows_from_another_folder_are_on_disk_before_the_node_has_its_outbox(make_store: Opened) -> None:
    disk = FakeDisk()
    rows = [(number, b"row %d" % number) for number in (1, 2, 3)]

    def start(generation: int = 0) -> list[bytes]:
        store = make_store(disk)
        node, found = restore(store, Node, Refused, 3, 4, lambda: rows)
        assert found.generation == generation and found.outbox == len(node.outbox) - 1
        return node.outbox[:-1]

    assert start() == [b"row 1", b"row 2", b"row 3"]
    disk.crash(CrashMode.LOSE)
    assert start() == [b"row 1", b"row 2", b"row 3"], "a start that ended before its first snapshot"
    disk.crash(CrashMode.LOSE)
    store = make_store(disk)
    store.open()
    store.append_outbox([(key_bytes(4), b"its own")])
    store.discard([key_bytes(2)])
    disk.crash(CrashMode.LOSE)
    assert start() == [b"row 1", b"row 3", b"its own"], "what an operator dropped stays dropped"
    disk.crash(CrashMode.LOSE)
    store = make_store(disk)
    store.open()
    store.write_snapshot(b"7")
    store.drop([key_bytes(1)])
    disk.crash(CrashMode.LOSE)
    assert b"row 2" not in start(generation=1), "a snapshot of its own: nothing is taken from elsewhere"


def test_a_disk_that_does_not_take_those_rows_ends_the_start(make_store: Opened) -> None:
    disk = FakeDisk()
    store = make_store(disk, StoreLimits(outbox_bytes=10))
    with pytest.raises(StateFullError):
        restore(store, Node, Refused, 3, 4, lambda: [(1, b"longer than that")])


def test_what_an_operator_dropped_is_told_at_the_next_start(make_store: Opened) -> None:
    disk = FakeDisk()
    store = opened(make_store, disk)
    store.append_outbox([(key_bytes(1), b"row 1"), (key_bytes(2), b"row 2")])
    store.discard([key_bytes(2)])
    disk.crash(CrashMode.LOSE)
    node, found = restore(make_store(disk), Node, Refused, 3, 4)
    assert (node.outbox, found.discarded) == ([b"row 1", b"3 4"], (b"row 2",))


# --- the power goes -----------------------------------------------------------------------------------

JOURNALED = {token: b"row %d" % token for token in (1, 3, 5, 7, 9, 11, 13)}
SENT = {token: record(token).to_bytes() for token in (2, 4, 6, 8, 10, 12)}
CRASHES = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
CRASHES += [(CrashMode.SEEDED, seed) for seed in range(6)]


@pytest.mark.parametrize("kind", [FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER])
@pytest.mark.parametrize("mode,seed", CRASHES)
def test_a_power_cut_at_any_system_call_leaves_what_the_node_was_told(
    world: Callable[..., World], kind: FaultKind, mode: CrashMode, seed: int
) -> None:
    at, cut = 0, True
    while cut:
        at += 1
        w, cut = world(), False
        w.node.needed = {10, 12}
        let_go: set[int] = set()

        def told(token: int, node: Node = w.node) -> None:
            node.kept.append(token)
            node.state += token in JOURNALED  # its state has in it what it was told

        w.node.persisted = told  # type: ignore[method-assign]
        w.disk.inject(Fault(kind, at))
        try:
            w.take(incoming(1, JOURNALED[1]), outgoing(2, 2), incoming(3, JOURNALED[3]))
            w.take(outgoing(4, 4), now_ns=1)
            w.node.gone, let_go = [2], {2}
            w.take(incoming(5, JOURNALED[5]), wanted(), now_ns=2)
            w.take(outgoing(6, 6), incoming(7, JOURNALED[7]), now_ns=3)
            w.take(wanted(), now_ns=4)
            w.take(outgoing(8, 8), incoming(9, JOURNALED[9]), now_ns=5)
            w.take(ran(11, JOURNALED[11]), answer(10, 10), now_ns=6)
            w.take(wanted(), now_ns=7)
            w.take(ran(13, JOURNALED[13]), answer(12, 12), now_ns=8)
        except PowerCut:
            cut = True
        w.disk.crash(mode, seed)
        found = w.on_disk
        rows = list(JOURNALED.values())
        known = [*rows[: int(found.snapshot or b"0")], *found.journal]
        assert known == rows[: len(known)] and not found.losses
        assert len(known) >= len([token for token in w.node.kept if token in JOURNALED])
        kept = {SENT[token] for token in w.node.kept if token in SENT and token not in let_go}
        assert kept <= set(found.outbox)
        answers = {token for token in (10, 12) if SENT[token] in found.outbox}
        assert all(JOURNALED[token + 1] in known for token in answers), "no answer without what it answers"
    assert at > 20
    assert w.node.kept == [2, 1, 3, 4, 5, 6, 7, 8, 9, 11, 10, 13, 12], "the last world ran to its end"
