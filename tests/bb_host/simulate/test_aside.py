"""Memory that lies in a file: what is in it stays, whoever looks at it keeps it, and others can read it."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bb_host.errors import WorkerError
from bb_host.simulate import aside as aside_module
from bb_host.simulate.aside import FROM, Aside
from bb_host.simulate.lying import Lying, OpenFiles

SIZE = 3 * FROM + 100


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """Where nothing stays in memory first."""
    monkeypatch.setattr(aside_module, "IN_MEMORY", 0)
    made = Aside(tmp_path / "aside")
    yield made
    made.close()


@pytest.fixture
def files():
    made = OpenFiles()
    yield made
    made.close()


def filled(aside: Aside, seed: int) -> np.ndarray:
    array = aside.array(SIZE)
    assert array is not None
    array[:] = np.random.default_rng(seed).integers(0, 256, SIZE)
    return array


def resident(array: np.ndarray) -> int:
    """How much of the mapping that the array lies in is in this process's memory, in KiB."""
    address, found = array.ctypes.data, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if line[0] in "0123456789abcdef":
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                found = start <= address < end
            elif found and line.startswith("Rss:"):
                return int(line.split()[1])
    raise AssertionError("there is no such mapping")


def test_what_is_left_has_no_pages_and_is_what_it_was(aside):
    array = filled(aside, 1)
    copy = array.copy()
    assert resident(array)
    aside.leave(array)
    assert not resident(array)
    assert np.array_equal(array, copy)
    array[7] ^= 255
    copy[7] ^= 255
    aside.leave(array)
    assert np.array_equal(array, copy)


def test_room_is_used_again_once_nobody_looks_at_it(aside):
    first = filled(aside, 1)
    place = first.ctypes.data
    view = first.view(np.uint16)[:4].reshape(2, 2)
    kept = view.copy()
    del first
    gc.collect()
    second = filled(aside, 2)
    assert second.ctypes.data != place and np.array_equal(view, kept)
    del view
    assert filled(aside, 3).ctypes.data == place


def test_bytes_are_kept_once_and_whole(aside):
    body, other = os.urandom(SIZE), os.urandom(SIZE)
    kept = aside.keep(body)
    assert kept == body and kept.readonly and aside.keep(body) is kept
    assert aside.keep(other) == other and kept == body
    aside.forget()
    assert aside.keep(body) is not kept
    assert aside.keep(kept) is None  # it is here already


def test_what_is_small_stays_in_memory(aside):
    assert aside.array(FROM - 1) is None and aside.keep(b"small") is None


def test_an_envelope_has_its_rest_behind_the_body_and_a_second_one_is_a_copy(aside):
    body = os.urandom(SIZE)
    kept = aside.keep(body)
    first = aside.joined(kept, b"the first")
    second = aside.joined(kept, b"another one")
    assert first == body + b"the first" and second == body + b"another one" and kept == body
    assert isinstance(first, memoryview) and isinstance(second, bytes)
    assert aside.joined(b"body", b"rest") == b"bodyrest"
    assert aside.joined(aside.keep(os.urandom(SIZE)), bytes(10_000))[-10_000:] == bytes(10_000)
    del kept
    aside.forget()
    gc.collect()
    assert all(aside.keep(os.urandom(SIZE)) for _ in range(3)) and first == body + b"the first"


def test_of_an_envelope_whose_ends_are_read_two_pages_are_in_memory(aside):
    size = 40 * mmap.PAGESIZE
    kept = aside.keep(os.urandom(size))
    envelope = aside.joined(kept, b"the rest")
    aside.leave(kept)  # on its way it is nobody's any more, but the receiver's
    assert (envelope[0], bytes(envelope[size:])) == (kept[0], b"the rest")
    assert 0 < resident(np.asarray(envelope)) <= 2 * mmap.PAGESIZE >> 10
    del envelope
    assert not resident(np.asarray(kept))
    assert len(aside.joined(kept, b"again")) == size + 5 and resident(np.asarray(kept))
    aside.leave(kept)
    assert not resident(np.asarray(kept))


def test_another_process_reads_what_lies_here(aside, files):
    aside.keep(os.urandom(SIZE))
    body = os.urandom(SIZE)
    lies = aside.lying(aside.keep(body))
    assert type(lies) is Lying and lies.read(files) == body == lies.read(files)
    assert aside.lying(body) is None and aside.lying(memoryview(body)) is None


def test_a_file_that_is_too_short_is_told(tmp_path, files):
    (tmp_path / "short").write_bytes(b"four")
    with pytest.raises(WorkerError, match=r"4 of 5 bytes of an envelope"):
        Lying.at(tmp_path / "short", 0, 5).read(files)


def test_without_room_on_the_disk_it_stays_in_memory(aside, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert aside.array(SIZE) is None and aside.keep(bytes(SIZE)) is None


def test_the_first_bodies_stay_in_memory_and_make_room_for_others_as_they_go(aside, monkeypatch):
    monkeypatch.setattr(aside_module, "IN_MEMORY", 2 * SIZE)
    bodies = [np.random.default_rng(seed).bytes(SIZE) for seed in range(5)]
    first, second, third = (aside.keep(body) for body in bodies[:3])
    assert [aside.lying(view) is not None for view in (first, second, third)] == [False, False, True]
    assert aside.keep(bodies[0]) is first, "the node and the network have the same one"
    aside.leave(first)
    assert (first, second, third) == tuple(bodies[:3])
    assert aside.joined(first, b"rest") == bodies[0] + b"rest"
    aside.forget()
    del first
    fourth, fifth = (aside.keep(body) for body in bodies[3:])
    assert [aside.lying(view) is not None for view in (fourth, fifth)] == [False, True]


def test_more_than_a_piece_of_the_file_fits(aside, monkeypatch):
    monkeypatch.setattr(aside_module, "SEGMENT", 4 * FROM)
    arrays = [filled(aside, seed) for seed in range(5)]
    for array in arrays:
        aside.leave(array)
    large = aside.array(20 * FROM)
    assert large is not None and len(large) == 20 * FROM
    for seed, array in enumerate(arrays):
        assert np.array_equal(array, np.random.default_rng(seed).integers(0, 256, SIZE).astype(np.uint8))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="a system without /proc")
def test_the_file_has_no_name_and_another_process_reads_it(aside, tmp_path):
    """A simulation that is killed leaves nothing behind on the disk."""
    view = aside.keep(bytes(range(256)) * (FROM // 256 + 1))
    assert list(tmp_path.iterdir()) == []
    read = "import sys; from bb_host.simulate.lying import Lying, OpenFiles\n"
    read += "sys.stdout.buffer.write(Lying(sys.argv[1].encode()).read(OpenFiles()))"
    where = aside.lying(view).decode()
    assert subprocess.run([sys.executable, "-c", read, where], capture_output=True, check=True).stdout == view


def test_a_file_whose_worker_has_ended_is_a_typed_error(files):
    with pytest.raises(WorkerError, match="has ended"):
        Lying.at(Path("/proc/0/fd/7"), 0, 10).read(files)
