"""Nodes that begin at the same moment below a folder that is not there yet."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from bb_edge.cli import main
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


def test_the_doctor_makes_no_folder_that_others_may_begin_in(tmp_path: Path, capsys) -> None:
    """What it makes and removes lies below a name of its own."""
    made: list[Path] = []
    listening = [True]

    def heard(event: str, details: tuple[object, ...]) -> None:  # such a hook stays for the process's life
        if listening and event == "os.mkdir":
            made.append(Path(str(details[0])))

    sys.addaudithook(heard)
    main(["doctor", "--state", str(tmp_path / "new" / "client-0"), "--json"])
    listening.clear()
    (found,) = (c for c in json.loads(capsys.readouterr().out)["checks"] if c["check"] == "storage")
    assert (
        found["status"] in ("ok", "warning")
        and f"{tmp_path / 'new' / 'client-0'} is writable" in found["detail"]
    )
    trials = [place.relative_to(tmp_path).parts[0] for place in made if place.is_relative_to(tmp_path)]
    assert trials and all(name.startswith(".bb-trial-") for name in trials)
    assert not [*tmp_path.iterdir()]
