"""What only a real folder can show: permissions, links, pipes, locks between processes, descriptors."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bb_shims import MissingFileError, StorageError, folder_in_use, open_folder


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_and_the_folder_are_the_owners_alone(tmp_path: Path) -> None:
    with open_folder(tmp_path / "state") as storage:
        storage.write_atomic("snapshot", b"secret weights")
        storage.append("journal", b"secret", sync=True)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for name in ("snapshot", "journal"):
        assert stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) == 0o600


def test_a_length_is_told_without_reading(tmp_path: Path) -> None:
    with open_folder(tmp_path / "state") as storage:
        storage.append("journal", b"secret", sync=True)
        os.truncate(tmp_path / "state" / "journal", 1 << 40)  # sparse: no memory holds it
        assert storage.size("journal") == 1 << 40
        with pytest.raises(MissingFileError):
            storage.size("snapshot")


def test_a_file_that_was_removed_is_not_appended_to(tmp_path: Path) -> None:
    with open_folder(tmp_path / "state") as storage:
        storage.append("journal", b"one", sync=True)
        (tmp_path / "state" / "journal").unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match=r"removed the file.*what it held is lost"):
                storage.append("journal", b"two", sync=True)
        storage.write_atomic("journal", b"whole")  # the file is there again, under its name
        storage.append("journal", b"three", sync=True)
    assert (tmp_path / "state" / "journal").read_bytes() == b"wholethree"


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".bb-new-snapshot").write_bytes(b"half")
    (tmp_path / "snapshot").write_bytes(b"whole")
    with open_folder(tmp_path) as storage:
        assert storage.list() == ["snapshot"]
        assert storage.read("snapshot") == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_a_link_is_not_followed_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "journal").symlink_to(outside)
    with open_folder(folder) as storage:
        assert storage.list() == []
        with pytest.raises(StorageError):
            storage.read("journal")
        with pytest.raises(StorageError):
            storage.append("journal", b"x", sync=True)
        storage.write_atomic("journal", b"new")
        assert storage.read("journal") == b"new"
    assert outside.read_bytes() == b"precious"


def test_a_pipe_or_a_folder_in_a_files_place_is_an_error_not_a_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub").mkdir()
    with open_folder(tmp_path) as storage:
        assert storage.list() == []
        for name in ("pipe", "sub"):
            with pytest.raises(StorageError):
                storage.read(name)
            with pytest.raises(StorageError):
                storage.append(name, b"x", sync=True)
        with pytest.raises(StorageError):
            storage.write_atomic("sub", b"x")
        assert not (tmp_path / ".bb-new-sub").exists()


def test_a_file_in_the_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="open"):
        open_folder(tmp_path / "file")


def test_nothing_leaks(tmp_path: Path) -> None:
    before = descriptors()
    for _ in range(20):
        with open_folder(tmp_path) as storage:
            storage.write_atomic("a", b"1")
            for index in range(12):
                storage.append(f"journal{index}", b"x", sync=False)
            with pytest.raises(MissingFileError):
                storage.read("absent")
            with pytest.raises(StorageError):
                open_folder(tmp_path)
    assert descriptors() == before


def test_a_forgotten_storage_gives_its_lock_back(tmp_path: Path) -> None:
    storage = open_folder(tmp_path)
    storage.append("journal", b"x", sync=True)
    del storage
    open_folder(tmp_path).close()


def test_a_folder_in_use_is_told_without_a_change(tmp_path: Path) -> None:
    with open_folder(tmp_path):
        assert folder_in_use(tmp_path)
    assert not folder_in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        folder_in_use(tmp_path / "nowhere")


def test_a_moved_folder_is_still_the_same(tmp_path: Path) -> None:
    with open_folder(tmp_path / "before") as storage:
        (tmp_path / "before").rename(tmp_path / "after")
        storage.write_atomic("snapshot", b"x")
    assert (tmp_path / "after" / "snapshot").read_bytes() == b"x"
    assert not (tmp_path / "before").exists()


CHILD = """
import sys
from bb_shims import open_folder
storage = open_folder(sys.argv[1])
storage.append("journal", b"[synced]", sync=True)
print("ready", flush=True)
index = 0
while True:
    index += 1
    storage.write_atomic("snapshot", b"%d" % index * 5000)
"""


def test_a_killed_process_leaves_whole_files_and_no_lock(tmp_path: Path) -> None:
    import bb_shims

    path = os.path.dirname(os.path.dirname(bb_shims.__file__))
    folder = tmp_path / "state"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(StorageError, match="folder of its own"):
            open_folder(folder)
        while not (folder / "snapshot").exists():
            assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with open_folder(folder) as storage:
        assert storage.read("journal") == b"[synced]"
        snapshot = storage.read("snapshot")
        number = snapshot[: len(snapshot) // 5000]
        assert snapshot == number * 5000 and int(number) >= 1
        assert storage.list() == ["journal", "snapshot"]
