"""Nodes that begin at the same moment below a folder that is not there yet."""

from __future__ import annotations

import threading
from pathlib import Path

from bb_edge.cli.kept import check_folder
from bb_edge.ir.errors import BBError


def test_a_trial_takes_nothing_away_from_others_and_leaves_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / "state" / f"client-{number}" for number in range(4)]
    failed: list[BBError] = []
    start = threading.Barrier(len(folders))

    def begin(folder: Path) -> None:
        start.wait()
        try:
            for _ in range(200):
                check_folder(folder, "--state")
        except BBError as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert not [*tmp_path.iterdir()]
