"""The cost of a snapshot is measured on snapshots that a node would take again."""

from __future__ import annotations

from pathlib import Path

from bb_edge.state import StateStore
from bb_shims import AtomicStorage, StorageError
from bb_shims.disk import LinuxDisk
from benchmarks.snapshots import measure


def test_a_snapshot_is_about_the_parameters_of_the_model(tmp_path: Path) -> None:
    parameters = 4 * (256 * 96 + 96 + 96 * 10 + 10)
    cost = measure((256, 96, 10), tmp_path / "state", repeats=2)
    assert parameters < cost.size < parameters + 10_000
    found = StateStore(AtomicStorage(LinuxDisk(tmp_path / "state")), (StorageError,)).open()
    assert (found.generation, len(found.snapshot or b""), found.notes) == (2, cost.size, ())
