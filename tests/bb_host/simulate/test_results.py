"""The files of `--out`: there before the first run, and left with what came where one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bb_host.errors import ScenarioError
from bb_host.simulate import Event
from bb_host.simulate.results import Results

EVENT = Event(5_000_000, "server", "round", [1, 0.5])


def test_events_stand_in_their_file_as_they_come(tmp_path: Path) -> None:
    results = Results(tmp_path / "a" / "b")
    with results.events_of("seed=1") as write:
        write(EVENT)
        (line,) = (tmp_path / "a" / "b" / "events.seed=1.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "round", "time": 0.005, "node": "server", "value": [1, 0.5]}
    results.add({"run": "seed=1"})
    results.add({"run": "seed=2"})
    summary = json.loads((tmp_path / "a" / "b" / "summary.json").read_text())
    assert [told["run"] for told in summary] == ["seed=1", "seed=2"]


def test_what_is_there_stays_until_something_comes_of_a_new_run(tmp_path: Path) -> None:
    old = [tmp_path / name for name in ("events.seed=0.jsonl", "events.jsonl", "summary.json", "picture.png")]
    for path in (*old, tmp_path / "notes.txt"):
        path.write_text("old")
    with pytest.raises(ScenarioError, match="refused"), Results(tmp_path).events_of(""):
        raise ScenarioError("refused", "simulate")
    assert all(path.read_text() == "old" for path in old)
    results = Results(tmp_path)
    with results.events_of("seed=1") as write:
        write(EVENT)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["events.seed=1.jsonl", "notes.txt"]
    with results.events_of("seed=2"):
        pass
    results.add({"run": "seed=2"})
    names = ["events.seed=1.jsonl", "events.seed=2.jsonl", "notes.txt", "summary.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = Results(None)
    with results.events_of("") as write:
        write(EVENT)
    results.add({})
    assert results.draw(None, {}) and not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    for path in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(ScenarioError, match="cannot be written: it is not a folder") as caught:
            Results(path)
        assert caught.value.where == str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    results = Results(tmp_path)
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(ScenarioError, match="No space left") as caught,
        results.events_of("") as write,
    ):
        write(EVENT)
    assert caught.value.where == str(tmp_path / "events.jsonl")


PROGRAM = """
from bb_host import Compiler, MS, Module


class Ticks(Module):
    home = "Server"

    def body(self, g):
        g.app_emit("tick", g.constant([1.0]), after=g.interval(100 * MS))


def program():
    return Ticks(), Compiler()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_it_without_a_traceback_and_leaves_what_came(tmp_path: Path) -> None:
    (tmp_path / "ticks.py").write_text(PROGRAM)
    command = [
        "-m",
        "bb_host.cli",
        "simulate",
        "ticks.py",
        "--for",
        "1e8",
        "--quiet",
        "-o",
        "out",
        "--workers",
        "1",
    ]
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    lines = tmp_path / "out" / "events.jsonl"
    until = time.monotonic() + 60
    while not (lines.exists() and lines.stat().st_size > 1000):
        assert process.poll() is None and time.monotonic() < until
        os.sched_yield()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said.strip() == "bb-host: interrupted"
    assert json.loads(lines.read_text().splitlines()[0])["event"] == "tick"
    assert not list(tmp_path.glob("bb-simulate-*"))
