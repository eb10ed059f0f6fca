"""A single file, with every system call failing in turn and the power cut around and inside each of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bb_shims import open_folder, write_whole
from bb_shims.single_file import put
from bb_shims.testing import CrashMode, FakeDisk, Fault, FaultKind, PowerCut

OLD, NEW = b"the old file " * 9, b"the new file, which is longer " * 9
CRASHES = [(mode, 0) for mode in CrashMode if mode is not CrashMode.SEEDED]
CRASHES += [(CrashMode.SEEDED, seed) for seed in range(12)]
OPERATIONS = ("create", "write", "sync", "rename", "sync_folder")


def written() -> FakeDisk:
    """A disk that has the old file."""
    disk = FakeDisk()
    session = disk.open()
    put(session, "model.npz", OLD)
    session.close()
    disk.counts.clear()
    return disk


def test_one_write_makes_these_calls_and_its_file_outlives_a_power_cut() -> None:
    disk = written()
    put(disk.open(), "model.npz", NEW)
    assert tuple(disk.counts) == OPERATIONS
    disk.crash(CrashMode.LOSE)
    assert disk.files == {"model.npz": NEW}


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "model.npz").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_whole(tmp_path / "model.npz", NEW)
    assert caught.value.filename == str(tmp_path / "model.npz") and caught.value.filename2 is None
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


@pytest.mark.parametrize("kind", [FaultKind.CUT_BEFORE, FaultKind.CUT_INSIDE, FaultKind.CUT_AFTER])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_power_cut_leaves_the_old_file_or_the_new_one(operation: str, kind: FaultKind) -> None:
    for mode, seed in CRASHES:
        disk = written()
        session = disk.open()
        disk.inject(Fault(kind, operation=operation))
        with pytest.raises(PowerCut):
            put(session, "model.npz", NEW)
        disk.crash(mode, seed)
        assert disk.files["model.npz"] in (OLD, NEW), (mode, seed)
        put(disk.open(), "model.npz", NEW)  # whatever was left beside it
        assert disk.files == {"model.npz": NEW}


@pytest.mark.parametrize("kind", [FaultKind.FAIL, FaultKind.FULL, FaultKind.TORN])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_fails_is_told_and_leaves_nothing_beside_the_file(
    operation: str, kind: FaultKind
) -> None:
    disk = written()
    session = disk.open()
    disk.inject(Fault(kind, operation=operation))
    with pytest.raises(OSError):
        put(session, "model.npz", NEW)
    assert disk.files == {"model.npz": NEW if operation == "sync_folder" else OLD}
    assert session.open_handles == 0


def test_short_writes_go_on() -> None:
    disk = written()
    disk.inject(Fault(FaultKind.SHORT, operation="write"))
    put(disk.open(), "model.npz", NEW)
    assert disk.files == {"model.npz": NEW} and disk.counts["write"] == 2


def test_a_folder_may_be_in_use_and_is_not_made(tmp_path: Path) -> None:
    with open_folder(tmp_path) as storage:
        storage.write_atomic("model.npz", OLD)
        write_whole(tmp_path / "model.npz", NEW)
        assert storage.read("model.npz") == NEW and storage.list() == ["model.npz"]
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "model.npz", NEW)
    assert os.listdir(tmp_path) == ["model.npz"]


def test_whoever_may_read_new_files_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_whole(tmp_path / "model.npz", NEW)
    assert (tmp_path / "model.npz").stat().st_mode == (tmp_path / "other").stat().st_mode
