"""The fakes of simulations: what they add to the conformance test."""

from __future__ import annotations

from pathlib import Path

import pytest
from times import S

from bb_shims import WALL_FLOOR_NS, ClockError, MissingFileError, StorageError
from bb_shims.testing import CrashMode, FakeBoard, FakeDisk, Fault, FaultKind, PowerCut


def test_time_stands_until_it_is_advanced() -> None:
    clock = FakeBoard().clock
    start, wall = clock.monotonic_ns(), clock.wall_ns()
    assert clock.monotonic_ns() == start
    clock.advance(3 * S)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (start + 3 * S, wall + 3 * S)
    with pytest.raises(ClockError):
        clock.advance(-1)
    clock.set_wall(5)
    assert not clock.wall_is_set()
    clock.set_wall(WALL_FLOOR_NS)
    assert clock.wall_is_set()
    assert clock.monotonic_ns() == start + 3 * S


def test_chance_is_seeded() -> None:
    one, same, other = (FakeBoard(seed=seed).entropy for seed in (1, 1, 2))
    drawn = [(e.u64(), e.bytes(9)) for e in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_watchdog_remembers_that_it_was_left_alone() -> None:
    board = FakeBoard(watchdog_timeout_ns=10 * S)
    for _ in range(3):
        board.clock.advance(10 * S)
        board.watchdog.pet()
    assert (board.watchdog.pets, board.watchdog.expired) == (3, False)
    board.clock.advance(10 * S + 1)
    board.watchdog.pet()
    assert board.watchdog.expired
    quiet = FakeBoard(watchdog_timeout_ns=10 * S)
    quiet.watchdog.close()
    quiet.clock.advance(100 * S)
    assert not quiet.watchdog.expired


def test_each_folder_is_a_disk_of_its_own() -> None:
    board = FakeBoard()
    board.storage("a").write_atomic("x", b"1")
    with pytest.raises(MissingFileError):
        board.storage("b").read("x")


def test_a_crash_ends_what_was_open() -> None:
    board = FakeBoard()
    storage = board.storage("state")
    storage.write_atomic("x", b"1")
    board.crash()
    with pytest.raises(PowerCut):
        storage.read("x")
    fresh = board.storage("state")
    storage.close()
    with pytest.raises(StorageError):
        board.storage("state")
    assert fresh.read("x") == b"1"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (CrashMode.LOSE, {"old": b"1"}),
        (CrashMode.KEEP, {"old": b"1+", "new": b"2"}),
        (CrashMode.NAMES, {"old": b"1", "new": b""}),
    ],
)
def test_what_survives_a_crash(mode: CrashMode, expected: dict[str, bytes]) -> None:
    board = FakeBoard()
    storage = board.storage("state")
    storage.write_atomic("old", b"1")
    storage.append("old", b"+", sync=False)
    storage.append("new", b"2", sync=False)
    board.crash(mode)
    assert board.disk("state").files == expected


def test_the_seed_decides_what_survives() -> None:
    outcomes = []
    for seed in [*range(40), *range(40)]:
        board = FakeBoard()
        storage = board.storage("state")
        storage.append("journal", b"abcdefgh", sync=True)
        storage.append("journal", b"ijklmnop", sync=False)
        storage.append("other", b"x", sync=False)
        board.crash(CrashMode.SEEDED, seed)
        outcomes.append(tuple(sorted(board.disk("state").files.items())))
    assert outcomes[:40] == outcomes[40:]
    assert len(set(outcomes)) > 8


def test_faults_strike_once_at_their_operation() -> None:
    disk = FakeDisk()
    board = FakeBoard()
    board.mount("state", disk)
    storage = board.storage("state")
    disk.inject(Fault(FaultKind.FAIL, 2, "sync"))
    storage.write_atomic("a", b"1")
    with pytest.raises(StorageError, match="sync fake disk/a"):
        storage.write_atomic("a", b"2")
    storage.write_atomic("a", b"3")
    assert disk.armed == 0
    disk.inject(Fault(FaultKind.FULL, 100))
    assert disk.armed == 1
    disk.disarm()
    assert disk.armed == 0


def test_after_a_power_cut_nothing_works_until_the_power_is_back() -> None:
    board = FakeBoard()
    storage = board.storage("state")
    board.disk("state").inject(Fault(FaultKind.CUT_INSIDE, 1, "write"))
    with pytest.raises(PowerCut):
        storage.write_atomic("a", b"1234")
    assert board.disk("state").dead
    with pytest.raises(PowerCut):
        storage.list()
    with pytest.raises(PowerCut):
        storage.free_bytes()
    storage.close()
    board.crash()
    assert board.storage("state").list() == []


def test_a_disk_can_be_mirrored_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"kept")
    board = FakeBoard()
    board.mount("state", FakeDisk(tmp_path))
    storage = board.storage("state")
    assert storage.read("old") == b"kept"
    storage.write_atomic("new", b"1")
    storage.append("journal", b"a", sync=True)
    storage.append("journal", b"b", sync=False)
    storage.remove("old")

    def on_disk() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert on_disk() == {"new": b"1", "journal": b"ab"}
    board.crash()
    assert on_disk() == {"new": b"1", "journal": b"a"}
