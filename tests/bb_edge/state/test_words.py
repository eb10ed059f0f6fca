"""What the store says of what it cannot do, what its calls cost, and what its defaults are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
from stores import rewrite

from bb_edge import state
from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.state import (
    StateDamagedError,
    StateError,
    StateFullError,
    StateReadError,
    StateStore,
    StateVersionError,
    StateWriteError,
    StoreLimits,
    files,
    record_framing,
)
from bb_edge.state.files import Files, Log, LogState
from bb_edge.state.keeper import Keeper, key_bytes
from bb_edge.wire.cbor import Buffer
from bb_edge.wire.resend import EnvelopeKey
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk

Opened = Callable[..., StateStore]
TINY = StoreLimits(journal_bytes=100, outbox_bytes=200, snapshot_bytes=50)


class Telling(AtomicStorage):
    """A storage that tells what it was asked, and fails when it is told to."""

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__(disk.open())
        self.asked: list[tuple[object, ...]] = []
        self.fails: set[str] = set()

    def _said(self, *what: object) -> None:
        self.asked.append(what)
        if what[0] in self.fails:
            raise StorageError(str(what[0]), str(what[-1]), OSError("no"))

    def write_atomic(self, name: str, data: bytes | Sequence[Buffer]) -> None:
        self._said("write", name)
        super().write_atomic(name, data)

    def append(self, name: str, data: bytes | Sequence[Buffer], sync: bool) -> None:
        self._said("append", name, sync)
        super().append(name, data, sync)

    def remove(self, name: str, sync: bool) -> None:
        self._said("remove", name, sync)
        super().remove(name, sync)

    def read(self, name: str) -> bytes:
        self._said("read", name)
        return super().read(name)

    def list(self) -> list[str]:
        self._said("list")
        return super().list()


def telling(limits: StoreLimits | None = None) -> tuple[Telling, StateStore]:
    storage = Telling(FakeDisk())
    store = StateStore(storage, (StorageError,), limits)
    store.open()
    storage.asked.clear()
    return storage, store


def written(storage: Telling) -> list[tuple[object, ...]]:
    found = [what for what in storage.asked if what[0] not in ("read", "list")]
    storage.asked.clear()
    return found


def said(error: pytest.ExceptionInfo[StateError]) -> str:
    return str(error.value)


def test_the_names_of_the_package() -> None:
    assert set(state.__all__) <= set(dir(state))
    for name in state.__all__:
        assert getattr(state, name)
    with pytest.raises(AttributeError, match="no attribute 'Shelf'"):
        state.Shelf  # type: ignore[attr-defined] # noqa: B018


def test_the_defaults() -> None:
    mib = 1 << 20
    assert StoreLimits() == StoreLimits(8 * mib, 64 * mib, 64 * mib)
    assert StoreLimits.edge() == StoreLimits(4 * mib, 8 * mib, 16 * mib)
    with pytest.raises(StateError) as caught:
        StoreLimits(0)
    assert said(caught) == "state: journal_bytes: a limit below 1 byte (leave it out, or give at least 1)"
    assert StoreLimits(1, 1, 1).journal_bytes == 1


# --- what its calls cost ------------------------------------------------------------------------------


def test_only_what_must_not_be_lost_is_synced_and_each_in_one_call() -> None:
    storage, store = telling()
    store.append_journal([b"a", b"b"])
    assert written(storage) == [("append", "journal-0", True)]
    store.append_outbox([(b"k", b"r"), (b"l", b"s")])
    assert written(storage) == [("append", "outbox-0", True)]
    assert store.counters["state.syncs"] == 2
    store.write_snapshot(b"first")
    assert written(storage) == [
        ("append", "journal-1", False),
        ("append", "outbox-1", False),
        ("write", "snapshot-1"),
    ]
    assert store.counters["state.syncs"] == 3
    store.drop([b"k"])
    assert written(storage) == [("append", "outbox-1", False)]
    store.write_snapshot(b"second")
    assert written(storage) == [
        ("append", "journal-2", False),
        ("append", "outbox-1", True),  # what is dropped later goes into another file
        ("append", "outbox-2", False),
        ("write", "snapshot-2"),
    ]
    store.drop([b"l"])
    assert written(storage) == [("remove", "journal-0", False), ("append", "outbox-2", False)]
    assert store.counters["state.syncs"] == 5


@pytest.mark.parametrize("gone", [(b"a", b"long", b"c"), (b"long", b"", b"a"), (b"", b"c")])
def test_several_records_are_let_go_at_once(gone: tuple[bytes, ...]) -> None:
    _, store = telling()
    keys = (b"a", b"long", b"", b"c")
    store.append_outbox([(key, b"of " + key) for key in keys])
    store.write_snapshot(b"1")
    store.drop([*gone, b"nobody's"])
    assert store.open().outbox == tuple(b"of " + key for key in keys if key not in gone)


def test_nothing_costs_nothing() -> None:
    storage, store = telling()
    store.append_journal([])
    store.append_outbox([])
    assert storage.asked == []
    assert store.counters["state.bytes_written"] == 0


def test_a_record_that_is_added_again_takes_its_room_once() -> None:
    _, store = telling(replace(TINY, outbox_bytes=100))
    for size in (20, 60, 20):
        store.append_outbox([(b"k", bytes(size))])
    store.append_outbox([(b"l", bytes(72))])  # a row has four bytes more: 24 and 76
    with pytest.raises(StateFullError):
        store.append_outbox([(b"m", b"")])


# --- what is kept -------------------------------------------------------------------------------------


def generations(storage: Telling, store: StateStore, count: int) -> None:
    """Snapshots that leave their predecessors behind, because nothing can be removed."""
    storage.fails = {"remove"}
    for number in range(1, count + 1):
        store.append_journal([b"j"])
        store.write_snapshot(b"%d" % number)
        with pytest.raises(StateWriteError) if number > 1 else nullcontext():
            store.drop([])
    storage.fails = set()


@pytest.mark.parametrize(
    ("count", "lost", "kept"),
    [
        (3, (), ["journal-2", "journal-3", "snapshot-2", "snapshot-3"]),
        (1, (), ["journal-0", "journal-1", "snapshot-1"]),
        (3, ("snapshot-1", "snapshot-2", "journal-0"), ["journal-3", "snapshot-3"]),
        (3, ("snapshot-1", "snapshot-2"), ["journal-0", "journal-1", "journal-2", "journal-3", "snapshot-3"]),
    ],
)
def test_tidying_up_after_a_restart_keeps_what_a_fall_back_needs(
    count: int, lost: tuple[str, ...], kept: list[str]
) -> None:
    storage, store = telling()
    generations(storage, store, count)
    for name in lost:
        storage.remove(name, True)
    store.open()
    store.drop([])
    assert [name for name in storage.list() if not name.startswith("outbox")] == kept


@pytest.mark.parametrize("more", [b"x", record_framing.framed(record_framing.SNAPSHOT, 2, 2, [b"more"])])
def test_a_snapshot_with_something_behind_it_is_none(more: bytes) -> None:
    storage, store = telling()
    generations(storage, store, 2)
    storage.append("snapshot-2", more, True)
    found = store.open()
    assert (found.snapshot, found.notes) == (b"1", ("snapshot-2 cannot be used: its checksum is wrong",))


def test_a_snapshot_that_cannot_be_read_says_why() -> None:
    class Broken(Telling):
        def read(self, name: str) -> bytes:
            if name == "snapshot-2":
                raise StorageError("folder", "read", "worn out")
            return super().read(name)

    disk = FakeDisk()
    store = StateStore(Broken(disk), (StorageError,))
    store.open()
    for data in (b"1", b"2"):
        store.write_snapshot(data)
    found = store.open()
    assert (found.snapshot, found.notes) == (b"1", ("snapshot-2 cannot be used: read folder: worn out",))


@pytest.mark.parametrize(("sequence", "damaged"), [(2, True), (17, True), (18, False)])
def test_whole_records_are_looked_for_sixteen_numbers_ahead(sequence: int, damaged: bool) -> None:
    data = (
        record_framing.header(record_framing.JOURNAL, 1)
        + b"?" * 7
        + record_framing.framed(record_framing.JOURNAL, 1, sequence, [b"a"])
    )
    assert record_framing.parse(data, record_framing.JOURNAL, 1, "journal-1").damaged is damaged


# --- words --------------------------------------------------------------------------------------------


def test_what_is_full_says_by_how_much(make_store: Opened) -> None:
    store = make_store(FakeDisk(), TINY)
    store.open()
    with pytest.raises(StateFullError) as caught:
        store.write_snapshot(bytes(51))
    assert said(caught) == "snapshot: the snapshot has 51 bytes, 50 are allowed"
    store.write_snapshot(bytes(50))
    store.append_journal([bytes(100)])
    held = store.journal_bytes
    with pytest.raises(StateFullError) as caught:
        store.append_journal([bytes(100)])
    assert said(caught) == (
        f"journal: the journal holds {held} bytes, 113 more are requested, 200 allowed "
        "(a snapshot frees space)"
    )
    store.append_outbox([(b"key", bytes(100))])
    with pytest.raises(StateFullError) as caught:
        store.append_outbox([(b"key", bytes(100))])
    assert said(caught) == (
        "outbox: the outbox holds 106 of 200 bytes, 106 more are requested "
        "(acknowledgements and a snapshot free space)"
    )


def test_what_cannot_be_read_or_written_names_the_file() -> None:
    storage, store = telling()
    storage.fails = {"append", "write"}
    with pytest.raises(StateWriteError) as caught:
        store.append_journal([b"a"])
    assert (caught.value.where, caught.value.hint) == ("journal-0", "look at the disk")
    with pytest.raises(StateWriteError) as caught:
        store.append_outbox([(b"k", b"r")])
    assert caught.value.where == "outbox-0"
    storage.fails = {"list"}
    with pytest.raises(StateReadError) as error:
        store.open()
    assert (error.value.where, error.value.hint) == (
        "state",
        "look at the disk, or give another state folder",
    )
    storage.fails = set()
    store.append_journal([b"a"])
    storage.fails = {"read"}
    with pytest.raises(StateReadError) as error:
        store.open()
    assert error.value.where == "journal-0"


def test_a_snapshot_that_cannot_be_written_is_named() -> None:
    storage, store = telling()
    storage.fails = {"write"}
    with pytest.raises(StateWriteError) as caught:
        store.write_snapshot(b"s")
    assert caught.value.where == "snapshot-1"


def test_a_file_that_cannot_be_removed_is_named() -> None:
    storage, store = telling()
    for data in (b"1", b"2"):
        store.append_journal([b"a"])
        store.write_snapshot(data)
    storage.fails = {"remove"}
    with pytest.raises(StateWriteError) as caught:
        store.drop([])
    assert caught.value.where == "journal-0"


def test_whether_a_failed_snapshot_is_there_is_open_where_the_folder_cannot_be_read() -> None:
    for fails, generation in (({"write"}, 0), ({"write", "list"}, 1)):
        storage, store = telling()
        storage.fails = fails
        with pytest.raises(StateWriteError):
            store.write_snapshot(b"first")
        storage.fails = set()
        store.append_journal([b"a"])
        assert ("append", f"journal-{generation}", True) in storage.asked, "the other answer would lose it"
        store.append_journal([b"b"])
        found = store.open()
        said = (
            "snapshot-1 is missing: the node comes back from the journals"
            ", and asks anew what it had asked in that file alone"
        )
        assert (found.snapshot, found.journal) == (None, (b"a", b"b"))
        assert found.notes == ((said,) if generation else ()), "it was begun, and what follows is behind it"


def test_nothing_to_fall_back_on(make_store: Opened) -> None:
    store = make_store(FakeDisk())
    store.open()
    with pytest.raises(StateDamagedError) as caught:
        store.fall_back("why")
    assert said(caught) == "state: there is no snapshot to fall back from (start anew)"


def test_damage_names_the_file_and_what_to_do(make_store: Opened) -> None:
    disk = FakeDisk()
    rewrite(disk, "journal-3", record_framing.header(record_framing.JOURNAL, 3))
    with pytest.raises(StateDamagedError) as caught:
        make_store(disk).open()
    hint = "put one back from a copy of this folder, or move the folder aside to start anew"
    assert said(caught) == f"state: the snapshots are missing ({hint})"
    disk = FakeDisk()
    rewrite(
        disk,
        "outbox-0",
        record_framing.header(record_framing.OUTBOX, 0)
        + record_framing.framed(record_framing.OUTBOX, 0, 1, [b"\x01"]),
    )
    with pytest.raises(StateDamagedError) as caught:
        make_store(disk).open()
    assert caught.value.what.startswith("not a row: ") and caught.value.what[20:] != "None"
    assert (caught.value.where, caught.value.hint) == ("outbox-0", "move the file aside")
    disk = FakeDisk()
    rewrite(disk, "snapshot-1", b"x")
    with pytest.raises(StateDamagedError, match="snapshot-1 cannot be used: its checksum is wrong"):
        make_store(disk).open()


def test_a_newer_format_is_named(make_store: Opened) -> None:
    disk = FakeDisk()
    rewrite(disk, "journal-0", record_framing.header(record_framing.JOURNAL, 0, version=4))
    with pytest.raises(StateVersionError) as caught:
        make_store(disk).open()
    assert said(caught) == (
        "journal-0: written in version 4 of the format, this is version 3 "
        "(update this node, or give it another state folder)"
    )


@pytest.mark.parametrize("more", [b"", b"x", bytes(20)])
def test_a_torn_end_is_told_and_written_over(make_store: Opened, more: bytes) -> None:
    disk = FakeDisk()
    whole = record_framing.header(record_framing.JOURNAL, 0) + record_framing.framed(
        record_framing.JOURNAL, 0, 1, [b"a"]
    )
    rewrite(disk, "journal-0", whole + more)
    store = make_store(disk)
    found = store.open()
    notes = (f"journal-0 is torn: {len(more)} bytes after the first {len(whole)} are given up",)
    assert found.notes == (notes if more else ())
    store.append_journal([b"b"])
    disk.crash(CrashMode.KEEP)
    assert disk.files["journal-0"] == whole + record_framing.framed(record_framing.JOURNAL, 0, 2, [b"b"])


def test_names_and_numbers_of_files() -> None:
    names = [
        "journal-3",
        "journal-10",
        "journal-03",
        "journal--1",
        "journal-",
        "journal-x",
        "journal-²",
        "outbox-1",
    ]
    assert files.numbers([*names, "journal-" + "9" * 18, "journal-" + "9" * 19], record_framing.JOURNAL) == [
        3,
        10,
        10**18 - 1,
    ]
    assert files.log_name(record_framing.OUTBOX, 7) == "outbox-7"


def test_a_log_is_written_whole_or_grown() -> None:
    disk = FakeDisk()
    all_files = Files(AtomicStorage(disk.open()), (StorageError,))
    one, two = Log(all_files, record_framing.OUTBOX, 1, 5), Log(all_files, record_framing.OUTBOX, 2)
    one.create([b"a", b"b"])
    assert one.append([b"c"]) == 12 + 1
    assert one.length == len(disk.files["outbox-1"])
    assert two.append([b"a"]) == two.length == record_framing.HEADER_BYTES + 13
    again = Log(all_files, record_framing.OUTBOX, 1)
    assert again.load().bodies == again.bodies() == (b"a", b"b", b"c")
    assert (again.floor, again.length, again.state) == (5, one.length, LogState.WHOLE)
    again.append([b"d"])
    assert Log(all_files, record_framing.OUTBOX, 1).load().bodies == (b"a", b"b", b"c", b"d")


# --- the keeper ---------------------------------------------------------------------------------------


class Node:
    """A node that has nothing to keep."""

    counters: dict[str, int]

    def __init__(self) -> None:
        self.counters = {}
        self.failed: list[int] = []

    def snapshot_pieces(self, now_ns: int) -> list[bytes]:
        return [b"x"]

    def snapshot_written(self) -> tuple[EnvelopeKey, ...]:
        return ()

    def persisted(self, token: int) -> None:
        raise AssertionError

    def persist_failed(self, token: int, error: BaseException) -> None:
        self.failed.append(token)


def test_what_the_keeper_says_and_counts() -> None:
    storage, store = telling()
    node, reported = Node(), list[steps.EngineStep]()
    keeper = Keeper(node, store, report=reported.append)
    storage.fails = {"write", "append"}
    assert [keeper.snapshot(0), keeper.snapshot(1)] == [False, False]
    assert [(s.what, type(s.error)) for s in reported if isinstance(s, steps.StorageFailed)] == [
        ("snapshot", StateWriteError)
    ] * 2
    peer = PeerId.from_name("a")
    keeper.take([steps.Journal(1, peer, [b"j"]), steps.Journal(2, peer, [b"k"])], 2)
    assert node.failed == [1, 2]
    assert keeper.failures == keeper.counters["state.failures"] == 3
    storage.fails = set()
    assert keeper.snapshot(3)
    store.append_journal([b"j"])
    storage.fails = {"remove"}
    reported.clear()
    assert keeper.snapshot(4), "the snapshot is there though the old files cannot go"
    assert [(s.what, type(s.error)) for s in reported if isinstance(s, steps.StorageFailed)] == [
        ("tidying up", StateWriteError)
    ]
    assert (keeper.snapshots, keeper.failures) == (2, 4)


def test_the_name_of_a_record() -> None:
    peer = PeerId.from_name("a")
    assert key_bytes(EnvelopeKey(peer, 1, 2)) == peer.to_bytes() + bytes(7) + b"\x01" + bytes(7) + b"\x02"
