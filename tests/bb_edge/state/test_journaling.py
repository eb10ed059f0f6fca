"""Rows of the journal that are written beside the polls: what shares a write, and what is told when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.state import Recovered, StateError, StateStore, StoreLimits, record_framing
from bb_edge.state.keeper import Keeper
from bb_edge.state.writer import ThreadWriter
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.durable_rows import OutboxName
from bb_shims import StorageError, open_folder
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

PEER = PeerId.from_name("other")
LIMITS = StoreLimits(journal_bytes=2000, outbox_bytes=10_000, snapshot_bytes=10_000)
S = 1_000_000_000

Opened = Callable[..., StateStore]
Look = Callable[[FakeDisk], Recovered]


class Node:
    """What a node is told, in order. Its snapshot is how many rows it has been told of."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.failed: dict[int, str] = {}
        self.counters: dict[str, int] = {}
        self.gone: list[OutboxName] = []  # what the next snapshot no longer needs

    def snapshot_pieces(self, now_ns: int) -> list[bytes]:
        return [b"%d" % len(self.told)]

    def snapshot_written(self) -> Iterable[OutboxName]:
        gone, self.gone = self.gone, []
        return gone

    def persisted(self, token: int) -> None:
        self.told.append(token)

    def persist_failed(self, token: int, error: BaseException) -> None:
        self.failed[token] = str(error)


class Later:
    """A writer that writes when it is told to, or when somebody waits for it."""

    def __init__(self) -> None:
        self.least_bytes = 100
        self.busy = self.closed = False
        self._work: Callable[[], None] | None = None
        self._error: StateError | None = None

    @property
    def done(self) -> bool:
        return self.busy and self._work is None

    def begin(self, work: Callable[[], None]) -> None:
        assert not self.busy
        self.busy, self._work = True, work

    def work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            try:
                work()
            except StateError as error:
                self._error = error

    def finish(self) -> StateError | None:
        self.work()
        error, self._error = self._error, None
        self.busy = False
        return error

    def close(self) -> None:
        self.work()
        self.closed = True


class World:
    def __init__(
        self, make: Opened, look: Look, limits: StoreLimits | None = LIMITS, beside: bool = True
    ) -> None:
        self.disk = FakeDisk()
        self.store = make(self.disk, limits)
        self.store.open()
        self.node, self.writer = Node(), Later()
        self.reported: list[steps.EngineStep] = []
        self.keeper = Keeper(
            self.node, self.store, report=self.reported.append, writer=self.writer if beside else None
        )
        self.keeper.take((), 0)
        self._look = look
        self._token = 0
        self.disk.counts.clear()

    def take(self, *rows: bytes, also: Iterable[steps.EngineStep] = (), now_ns: int = 0) -> None:
        found: list[steps.EngineStep] = []
        for row in rows:
            self._token += 1
            found.append(steps.Journal(self._token, PEER, [row]))
        self.keeper.take([*found, *also], now_ns)

    @property
    def journal(self) -> list[bytes]:
        return list(self._look(self.disk).journal)


@pytest.fixture
def world(make_store: Opened, look: Look) -> World:
    return World(make_store, look)


def large(letter: bytes, size: int = 100) -> bytes:
    return letter * size


WANTED = steps.SnapshotWanted("the test")


def test_what_comes_while_a_write_is_under_way_shares_the_next_write_and_sync(world: World) -> None:
    rows = [large(letter) for letter in (b"a", b"b", b"c", b"d")]
    world.take(rows[0])
    for row in rows[1:]:
        world.take(row)
    world.keeper.settle(False)
    assert (world.node.told, world.journal) == ([], []), "the write is under way still"
    world.writer.work()
    assert world.node.told == [], "it is told between two polls, by `settle`"
    world.keeper.settle(False)
    assert (world.node.told, world.journal) == ([1], rows[:1])
    world.writer.work()
    world.keeper.settle(False)
    assert (world.node.told, world.journal) == ([1, 2, 3, 4], rows)
    assert world.disk.counts["sync"] == 2
    assert not world.writer.busy, "nothing waits"


def test_who_waits_for_room_waits_for_the_write_that_is_under_way_alone(world: World) -> None:
    rows = [large(letter) for letter in (b"a", b"b", b"c")]
    for row in rows:
        world.take(row)
    world.keeper.settle(True)
    assert (world.node.told, world.journal) == ([1], rows[:1])
    assert world.writer.busy, "the others are written beside the polls, in one write"
    world.keeper.settle(True)
    assert (world.node.told, world.journal) == ([1, 2, 3], rows)
    assert world.disk.counts["sync"] == 2 and not world.writer.busy


def test_a_small_row_is_written_at_once_but_not_before_one_that_is_under_way(world: World) -> None:
    world.take(b"small")
    assert world.node.told == [1]
    world.take(large(b"a"))
    world.take(b"behind it")
    assert world.node.told == [1]
    world.writer.work()
    world.keeper.settle(False)
    assert world.journal == [b"small", large(b"a"), b"behind it"]
    assert world.node.told == [1, 2, 3]


def test_so_much_waits_and_then_the_poller_waits(world: World) -> None:
    world.take(large(b"a"))
    for _ in range(4):
        world.take(large(b"b"))  # with its head 116 bytes; 500 may wait
    assert world.node.told == []
    world.take(large(b"c"))
    assert world.node.told == [1], "the write that is under way has been waited for"
    world.writer.work()
    world.keeper.settle(False)
    assert world.node.told == [1, 2, 3, 4, 5, 6]


def test_a_row_of_more_than_a_quarter_of_the_journal_is_written_at_once(world: World) -> None:
    world.take(large(b"a", 501))
    assert (world.node.told, world.writer.busy) == ([1], False)


def heavy(size: int) -> bytes:
    """A row that counts for so many bytes."""
    return bytes(size - 16)


def test_a_write_goes_beside_the_polls_from_its_least_size_up_to_a_quarter_of_the_journal(
    make_store: Opened, look: Look
) -> None:
    for size, goes in ((99, False), (100, True), (500, True), (501, False)):
        world = World(make_store, look)
        world.take(heavy(size))
        assert (world.writer.busy, world.node.told) == (goes, [] if goes else [1]), size


@pytest.mark.parametrize("size", [499, 500])
def test_the_poller_waits_once_a_quarter_of_the_journal_waits(world: World, size: int) -> None:
    world.take(large(b"a"))
    world.take(heavy(250), heavy(size - 250))
    assert world.node.told == ([1] if size == 500 else [])


def test_patient_rows_wait_below_128_kib(make_store: Opened, look: Look) -> None:
    for size, waits in (((128 << 10) - 1, True), (128 << 10, False)):
        world = World(make_store, look, StoreLimits())
        world.keeper.take([steps.Journal(1, PEER, [heavy(size)], patient=True)], S)
        assert (world.keeper.next_ns is not None, world.writer.busy) == (waits, not waits)
        world.keeper.take((), 2 * S)
        assert world.keeper.next_ns is None


def test_rows_that_fill_the_journal_to_its_end_share_one_write(make_store: Opened, look: Look) -> None:
    for more, syncs in ((0, [1, 1]), (1, [1, 2])):
        world = World(make_store, look, beside=False)
        room = 2 * LIMITS.journal_bytes - world.store.journal_bytes
        counts: list[int] = []
        world.node.persisted = lambda token, w=world, c=counts: c.append(w.disk.counts["sync"])  # type: ignore[misc,method-assign]
        world.take(heavy(2000), heavy(room - 2000 + more))
        assert counts == syncs


def test_rows_of_the_outbox_wait_for_the_write_that_is_under_way(world: World) -> None:
    world.take(large(b"a"))
    world.take(also=[steps.PersistOutbox(77, PEER, b"row", name=1)])
    assert world.node.told == [1, 77], "one at a time uses the files"


def test_a_snapshot_comes_after_all_rows_and_the_poll_that_delivers_them(world: World) -> None:
    world.take(large(b"a"))
    world.take(large(b"b"), also=[WANTED])
    assert (world.node.told, world.keeper.snapshots) == ([1, 2], 1)
    world.take(large(b"c"))
    assert world.keeper.snapshots == 2, "it is not put off again by a row that comes meanwhile"
    assert world.node.told == [1, 2, 3]


def test_a_journal_that_grows_without_a_pause_gets_its_snapshots(world: World) -> None:
    for _ in range(200):
        world.take(large(b"a"))
        world.writer.work()
        world.keeper.settle(False)
        assert world.store.journal_bytes < 2 * LIMITS.journal_bytes
    assert not world.node.failed
    assert world.keeper.snapshots > 200 * 112 / (1.5 * LIMITS.journal_bytes)


def test_while_snapshots_fail_rows_go_beside_the_polls_again(world: World) -> None:
    world.disk.inject(Fault(FaultKind.FULL, 1, "create"))
    world.take(also=[WANTED])
    assert world.keeper.failing
    world.take(large(b"a"))
    assert world.writer.busy
    world.take(large(b"b"), now_ns=S)
    assert (world.node.told, world.keeper.failing, world.keeper.next_ns) == ([1, 2], True, 0)
    world.take(now_ns=S)
    assert (world.keeper.failing, world.keeper.next_ns) == (False, None)


def test_a_write_that_fails_is_told_of_its_rows_alone(world: World) -> None:
    world.take(large(b"a"))
    world.take(large(b"b"))
    world.disk.inject(Fault(FaultKind.FULL, 1, "write"))
    world.writer.work()
    world.keeper.settle(False)
    assert list(world.node.failed) == [1]
    assert "No space left" in world.node.failed[1]
    assert world.keeper.counters["state.failures"] == 1
    world.writer.work()
    world.keeper.settle(False)
    assert (world.node.told, world.journal) == ([2], [large(b"b")])


def test_a_journal_without_room_refuses_the_rows_that_do_not_fit_and_no_others(world: World) -> None:
    world.disk.inject(Fault(FaultKind.FULL, 1, "create"))
    world.take(also=[WANTED])  # and none will be tried until a second has passed
    world.take(large(b"a", 90))
    for _ in range(25):
        world.take(large(b"a", 90), large(b"b", 90))
        while world.writer.busy:
            world.keeper.settle(True)
    room = 2 * LIMITS.journal_bytes - record_framing.HEADER_BYTES
    fit = room // (90 + record_framing.OVERHEAD_BYTES)
    assert fit % 2 == 0, "of a pair one fits"
    assert (world.node.told, len(world.journal)) == ([*range(1, fit + 1)], fit)
    assert list(world.node.failed) == [*range(fit + 1, 52)]


def generations(world: World) -> int:
    """Brings a world to where the next snapshot makes files old, and returns how many files there are."""
    world.take(large(b"a"), also=[WANTED])
    world.take()
    world.writer.work()
    world.keeper.settle(False)
    assert not world.writer.busy
    return len(world.disk.files)


def test_what_a_snapshot_makes_old_is_removed_beside_the_polls(world: World) -> None:
    before = generations(world)
    world.take(large(b"b"), also=[WANTED])
    world.take()
    assert (world.keeper.snapshots, world.writer.busy) == (3, True)
    assert len(world.disk.files) > before
    world.take(large(b"c"))
    assert world.node.told == [1, 2], "one at a time uses the files"
    world.writer.work()
    world.keeper.settle(False)
    assert len(world.disk.files) == before
    world.keeper.settle(True)
    assert (world.node.told, world.keeper.failing) == ([1, 2, 3], False)


@pytest.mark.parametrize("more", [-1, 0, 400])
def test_how_large_a_snapshot_is_says_where_old_files_are_removed(world: World, more: int) -> None:
    size = world.writer.least_bytes - world.store.journal_bytes + more
    world.node.snapshot_pieces = lambda now_ns: [bytes(size - 10), bytes(10)]  # type: ignore[method-assign]
    world.take(also=[WANTED])
    assert (world.keeper.has_chore, world.writer.busy) == (more < 0, more >= 0)


def small_generations(world: World) -> int:
    """Snapshots that nothing large was written between; how many files they leave, with the old ones."""
    for letter in (b"a", b"b", b"c"):
        world.keeper.tidy()
        world.take(letter, also=[WANTED])
    return len(world.disk.files)


def test_few_old_files_are_removed_in_a_pause(world: World) -> None:
    before = small_generations(world)
    assert world.keeper.has_chore and not world.writer.busy
    world.keeper.settle(False)
    assert len(world.disk.files) == before, "not between two polls: something may have to be sent"
    world.keeper.tidy()
    assert (world.keeper.has_chore, len(world.disk.files) < before) == (False, True)
    world.keeper.tidy()
    assert world.keeper.counters["state.failures"] == 0


@pytest.mark.parametrize("use", ["journal", "outbox", "snapshot", "close"])
def test_old_records_are_dropped_before_the_store_is_used_again(world: World, use: str) -> None:
    """A body that comes again while its old row is still to be dropped would have no row."""
    row = steps.PersistOutbox(100, PEER, b"body", body=b"the body", body_name=BodyName(32), name=1)
    world.take(also=[row])
    name = row.body_name
    assert world.store.has_outbox(name)
    world.node.gone = [1, name]
    world.take(also=[WANTED])
    assert world.keeper.has_chore and world.store.has_outbox(name)
    if use == "journal":
        world.take(b"row")
    elif use == "outbox":
        world.take(also=[steps.PersistOutbox(101, PEER, b"again", body=b"the body", body_name=name, name=2)])
    elif use == "snapshot":
        world.keeper.snapshot(1)
    else:
        world.keeper.close()
    assert world.keeper.has_chore == (use == "snapshot"), "of the snapshot that came"
    assert world.store.has_outbox(name) == (use == "outbox")


def test_a_file_that_cannot_be_removed_is_told(make_store: Opened, look: Look) -> None:
    for end in (lambda w: w.keeper.settle(True), lambda w: w.keeper.close()):
        world = World(make_store, look)
        generations(world)
        world.take(large(b"b"), also=[WANTED])
        world.disk.inject(Fault(FaultKind.FAIL, 1, "unlink"))
        world.take()
        assert world.keeper.counters["state.failures"] == 0
        end(world)
        assert world.keeper.counters["state.failures"] == 1
        assert world.node.told == [1, 2]
        (told,) = [str(step) for step in world.reported]
        assert "tidying up" in told and "Input/output error" in told


def test_no_snapshot_is_due_for_a_length_that_the_last_one_is_about_to_mend(world: World) -> None:
    """The outbox is full of records that the snapshot drops; until they are dropped it asks for another."""
    rows = [steps.PersistOutbox(100 + n, PEER, large(b"r", 900), name=n) for n in range(9)]
    world.node.gone = list(range(9))
    world.take(large(b"a"), also=rows)
    world.take()
    count = world.keeper.snapshots
    assert world.writer.busy
    world.take()
    world.take()
    assert world.keeper.snapshots == count
    world.writer.work()
    world.keeper.settle(False)
    world.take()
    assert world.keeper.snapshots == count


def test_closing_waits(world: World, make_store: Opened, look: Look) -> None:
    world.take(large(b"a"))
    world.keeper.close()
    assert (world.writer.closed, world.journal) == (True, [large(b"a")])
    without = World(make_store, look, beside=False)
    without.take(large(b"a"))
    assert (without.node.told, without.journal) == ([1], [large(b"a")]), "it is written at once"
    without.keeper.close()


# --- the power goes ---------------------------------------------------------------------------------------


def _calls(world: World) -> Iterator[Callable[[], None]]:
    """Two writes of several large rows each, a snapshot between them, and small rows."""
    yield lambda: world.take(large(b"a"))
    yield lambda: world.take(large(b"b"), large(b"c"))
    yield world.writer.work
    yield lambda: world.keeper.settle(False)
    yield lambda: world.take(b"small")
    yield world.writer.work
    yield lambda: world.keeper.settle(False)
    yield lambda: world.take(large(b"d"))
    yield lambda: world.take(large(b"e"), also=[WANTED])
    yield lambda: world.take(large(b"f"))
    yield lambda: world.take(large(b"g"))
    yield lambda: world.keeper.settle(True)
    yield lambda: world.take(large(b"h"), also=[WANTED])
    yield world.take  # what is old goes beside the polls
    yield lambda: world.take(large(b"i"))
    yield world.writer.work
    yield lambda: world.keeper.settle(False)
    yield lambda: world.keeper.settle(True)


ROWS = [large(b"a"), large(b"b"), large(b"c"), b"small", *(large(b"%c" % letter) for letter in b"defghi")]
CRASHES = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
CRASHES += [(CrashMode.SEEDED, seed) for seed in range(6)]


@pytest.mark.parametrize("kind", [FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER])
@pytest.mark.parametrize("mode,seed", CRASHES)
def test_a_power_cut_at_any_system_call_leaves_the_first_rows_and_all_that_were_told(
    make_store: Opened, look: Look, kind: FaultKind, mode: CrashMode, seed: int
) -> None:
    at, cut = 0, True
    while cut:
        at += 1
        world, cut = World(make_store, look), False
        world.disk.inject(Fault(kind, at))
        try:
            for call in _calls(world):
                call()
        except PowerCut:
            cut = True
        told = world.node.told
        assert told == sorted(told)
        world.disk.crash(mode, seed)
        found = look(world.disk)
        # A snapshot stands for as many rows as it says, and the journal goes on behind them.
        rows = [*ROWS[: int(found.snapshot or b"0")], *found.journal]
        assert rows == ROWS[: len(rows)]
        assert len(rows) >= len(told), f"the node was told of {len(told)} rows"
        assert not found.losses
    assert at > 20 and len(told) == len(ROWS), "the last world ran to its end"


# --- the thread -------------------------------------------------------------------------------------------


def test_a_thread_writes_to_a_folder_and_wakes_the_poller(tmp_path: Path) -> None:
    woken = threading.Semaphore(0)
    rows = [large(b"%c" % letter, 200_000) for letter in b"abcd"]
    with open_folder(tmp_path / "state") as storage:
        store = StateStore(storage, (StorageError,))
        store.open()
        node = Node()
        keeper = Keeper(node, store, writer=ThreadWriter(woken.release))
        keeper.take((), 0)
        keeper.take([steps.Journal(1, PEER, [rows[0]])], 0)
        keeper.take([steps.Journal(2, PEER, [rows[1][:5], rows[1][5:]])], 0)
        while len(node.told) < 2:
            assert woken.acquire(timeout=60)
            keeper.settle(False)
        (thread,) = [each for each in threading.enumerate() if each.name == "bb-journal"]
        assert thread.daemon, "who ends without `close`, because something else went wrong, does not hang"
        keeper.take([steps.Journal(3, PEER, [rows[2]])], 0)
        keeper.take([steps.Journal(4, PEER, [rows[3]])], 0)
        while len(node.told) < 4:
            keeper.settle(True)
        assert node.told == [1, 2, 3, 4]
        keeper.close()
        keeper.close()
    with open_folder(tmp_path / "state") as storage:
        assert list(StateStore(storage, (StorageError,)).open().journal) == rows


def test_what_goes_wrong_in_the_thread_is_raised_where_it_was_begun() -> None:
    writer = ThreadWriter(lambda: None)

    def refuse() -> None:
        raise StateError("full", "journal")

    def fail() -> None:
        raise RuntimeError("a bug")

    writer.begin(refuse)
    assert str(writer.finish()) == "journal: full"
    writer.begin(fail)
    with pytest.raises(RuntimeError, match="a bug"):
        writer.finish()
    assert not writer.busy
    writer.begin(lambda: None)
    assert writer.finish() is None
    writer.close()
