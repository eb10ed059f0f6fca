"""What every board must do. A new board is one more line in ``BOARDS``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bb_shims
from bb_shims import Board, MissingFileError, Storage, StorageError, detect
from bb_shims.testing import FakeBoard

BOARDS = ("this machine", "generic", "rpi", "jetson", "fake")


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest, tree, trees) -> Board:
    if request.param == "this machine":
        return detect(environ={})
    if request.param == "fake":
        return FakeBoard(seed=1).board
    return detect(tree(trees[request.param]), environ={})


@pytest.fixture
def folder(board: Board, tmp_path: Path) -> Path:
    return tmp_path / "state" / "node"


@pytest.fixture
def storage(board: Board, folder: Path) -> Iterator[Storage]:
    storage = board.storage(folder)
    yield storage
    storage.close()


def test_the_board_has_a_name_and_a_model(board: Board) -> None:
    assert board.name in ("generic", "rpi", "jetson", "fake")
    assert board.model
    assert "\0" not in board.model


def test_monotonic_time_is_whole_nanoseconds_and_never_goes_back(board: Board) -> None:
    moments = [board.clock.monotonic_ns() for _ in range(1000)]
    assert all(type(moment) is int for moment in moments)
    assert moments == sorted(moments)
    assert moments[0] > 0


def test_the_wall_clock_knows_whether_it_is_set(board: Board) -> None:
    assert type(board.clock.wall_ns()) is int
    assert board.clock.wall_is_set() == (board.clock.wall_ns() >= bb_shims.WALL_FLOOR_NS)


@pytest.mark.parametrize("n", [0, 1, 32, bb_shims.MAX_ENTROPY_BYTES])
def test_entropy_gives_as_many_bytes_as_asked_for(board: Board, n: int) -> None:
    assert len(board.entropy.bytes(n)) == n


@pytest.mark.parametrize("n", [-1, bb_shims.MAX_ENTROPY_BYTES + 1])
def test_entropy_refuses_impossible_amounts(board: Board, n: int) -> None:
    with pytest.raises(bb_shims.EntropyError, match=str(n)):
        board.entropy.bytes(n)


def test_entropy_does_not_repeat_itself(board: Board) -> None:
    assert board.entropy.bytes(32) != board.entropy.bytes(32)
    numbers = {board.entropy.u64() for _ in range(64)}
    assert len(numbers) == 64
    assert all(0 <= number < 1 << 64 for number in numbers)
    assert any(number >= 1 << 32 for number in numbers)


def test_memory_figures_fit_together(board: Board) -> None:
    info = board.memory.info()
    assert info.source in ("cgroup2", "cgroup1", "meminfo")
    assert 0 <= info.available_bytes <= info.limit_bytes
    assert 0 < info.rss_bytes <= info.peak_rss_bytes
    assert info.limit_bytes > 1 << 20


def test_memory_that_is_not_there_is_refused_with_the_missing_bytes(board: Board) -> None:
    available = board.memory.info().available_bytes
    bb_shims.require_memory(board.memory, 0, "nothing")
    with pytest.raises(bb_shims.MemoryLimitError, match="the arena needs") as caught:
        bb_shims.require_memory(board.memory, available * 2 + (1 << 40), "the arena")
    assert caught.value.missing == caught.value.requested - caught.value.available > 0


def test_the_temperature_is_plausible_or_unknown(board: Board) -> None:
    celsius = board.thermal.celsius()
    assert celsius is None or -60 <= celsius <= 150


def test_the_power_status_can_be_read(board: Board) -> None:
    status = board.power.status()
    assert status.throttled in (None, True, False)
    assert status.mode is None or status.mode


def test_a_watchdog_tells_its_timeout_and_can_be_petted_and_closed(board: Board) -> None:
    if board.watchdog is None:
        assert board.notifier is None, "without a service manager nothing watches"
        return
    assert board.watchdog.timeout_ns > 0
    board.watchdog.pet()
    board.watchdog.close()
    board.watchdog.close()


# ---------------------------------------------------------------------------------------------------- storage


def test_what_is_written_is_read_again(storage: Storage) -> None:
    for data in (b"", b"x", bytes(range(256)) * 1000, b"short"):
        storage.write_atomic("snapshot", data)
        assert storage.read("snapshot") == data
    assert storage.list() == ["snapshot"]


def test_appended_records_follow_each_other(storage: Storage) -> None:
    for index in range(20):
        storage.append("journal", b"%d," % index, sync=index % 3 == 0)
    assert storage.read("journal") == b"".join(b"%d," % index for index in range(20))


def test_a_file_may_be_written_whole_and_appended_to_by_turns(storage: Storage) -> None:
    storage.append("journal", b"old", sync=True)
    storage.write_atomic("journal", b"new")
    storage.append("journal", b"+", sync=False)
    storage.append("journal", b"+", sync=True)
    assert storage.read("journal") == b"new++"
    storage.remove("journal")
    storage.append("journal", b"again", sync=True)
    assert storage.read("journal") == b"again"


def test_more_journals_than_are_kept_open(storage: Storage) -> None:
    names = [f"journal-{index:02}" for index in range(20)]
    for turn in (b"a", b"b"):
        for name in names:
            storage.append(name, turn, sync=turn == b"b")
    assert storage.list() == names
    assert {storage.read(name) for name in names} == {b"ab"}


def test_a_missing_file_is_told_apart(storage: Storage) -> None:
    for operation in (storage.read, storage.remove):
        with pytest.raises(MissingFileError, match="absent"):
            operation("absent")
    with pytest.raises(FileNotFoundError):
        storage.read("absent")


def test_a_removed_file_is_gone(storage: Storage) -> None:
    storage.write_atomic("one", b"1")
    storage.write_atomic("two", b"2")
    storage.remove("one")
    assert storage.list() == ["two"]
    with pytest.raises(MissingFileError):
        storage.read("one")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/etc/passwd",
        "..\\up",
        "a..b",
        ".hidden",
        "nul\0",
        "line\n",
        "n" * 201,
        "ü" * 101,
    ],
)
def test_names_that_are_not_plain_are_refused(storage: Storage, name: str) -> None:
    for operation in (
        lambda: storage.write_atomic(name, b"x"),
        lambda: storage.read(name),
        lambda: storage.append(name, b"x", sync=True),
        lambda: storage.remove(name),
    ):
        with pytest.raises(StorageError, match="plain"):
            operation()
    assert storage.list() == []


def test_the_longest_name_works(storage: Storage) -> None:
    storage.write_atomic("n" * 200, b"x")
    assert storage.read("n" * 200) == b"x"


def test_free_bytes_shrink(storage: Storage) -> None:
    assert storage.free_bytes() > 0


def test_files_outlive_the_storage(board: Board, folder: Path) -> None:
    first = board.storage(folder)
    first.write_atomic("snapshot", b"kept")
    first.append("journal", b"record", sync=True)
    first.close()
    second = board.storage(folder)
    assert (second.read("snapshot"), second.read("journal")) == (b"kept", b"record")
    second.append("journal", b"+", sync=True)
    assert second.read("journal") == b"record+"
    second.close()


def test_one_folder_has_one_storage(board: Board, folder: Path) -> None:
    first = board.storage(folder)
    with pytest.raises(StorageError, match="folder of its own"):
        board.storage(folder)
    first.close()
    board.storage(folder).close()


def test_a_closed_storage_does_nothing(board: Board, folder: Path) -> None:
    storage = board.storage(folder)
    storage.close()
    storage.close()
    for operation in (
        lambda: storage.write_atomic("a", b""),
        lambda: storage.read("a"),
        lambda: storage.append("a", b"", sync=True),
        lambda: storage.remove("a"),
        storage.list,
        storage.free_bytes,
    ):
        with pytest.raises(StorageError, match="closed"):
            operation()
