"""The rate of reports is that of reports which a device finds in its outbox when it starts again."""

from __future__ import annotations

from pathlib import Path

from bb_edge.state import StateStore
from bb_shims import StorageError, open_folder
from benchmarks.reports import compiled, measure


def test_every_report_is_in_the_outbox_and_those_of_a_poll_share_a_sync(tmp_path: Path) -> None:
    rate = measure(compiled(1000), 1000, 4, 16, tmp_path / "state")
    assert (rate.reports, rate.syncs) == (16, 0.25)
    assert 1000 < rate.written < 1300 and rate.per_second > 0 and rate.sync_ms > 0
    with open_folder(tmp_path / "state") as storage:
        found = StateStore(storage, (StorageError,)).open()
    assert len([row for row in found.outbox if len(row) > 1000]) == 16
    assert found.losses == ()
