"""A file of records moves by its transition table: what is at its end decides how it is written next."""

from __future__ import annotations

import pytest

from bb_edge.state import StateWriteError, record_framing
from bb_edge.state.files import LOG, Files, Log, LogState
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import FakeDisk, Fault, FaultKind
from tests.aids.transitions import assert_decides_by


def test_a_log_is_decided_by_its_table() -> None:
    def walk() -> None:
        disk = FakeDisk()
        storage = AtomicStorage(disk.open())
        files = Files(storage, (StorageError,))

        def log(number: int) -> Log:
            return Log(files, record_framing.JOURNAL, number)

        created = log(1)
        created.create([b"a"])  # absent: written
        created.append([b"b"])  # whole: written
        assert created.bodies() == (b"a", b"b")

        again = log(1)
        again.load()  # absent: read_whole
        again.append([b"c"])
        assert again.bodies() == (b"a", b"b", b"c")

        storage.append("journal-1", b"torn", sync=True)
        ragged = log(1)
        ragged.load()  # absent: read_ragged
        ragged.append([b"d"])  # ragged: written
        assert ragged.bodies() == (b"a", b"b", b"c", b"d")
        assert ragged.state is LogState.WHOLE

        begun = log(2)
        disk.inject(Fault(FaultKind.TORN, operation="write"))
        with pytest.raises(StateWriteError):
            begun.append([b"a"])  # absent: begun
        assert begun.state is LogState.RAGGED
        begun.append([b"a"])
        assert begun.bodies() == (b"a",)

    assert_decides_by(LOG, walk)
