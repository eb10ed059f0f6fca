"""docs/tutorials/first-federation.md holds: its files and commands, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from federated_digits.processes import Child, Ended, Events, Line

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-federation.md"
TEXT = PAGE.read_text(encoding="utf-8")
MODULES = {"bb-host": "bb_host.cli", "bb-edge": "bb_edge.cli"}
pytestmark = [pytest.mark.broker, pytest.mark.slow]


def commands() -> list[list[str]]:
    """Every command of the page but those that install."""
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)).replace("\\\n", " ").splitlines()
    return [
        shlex.split(line) for line in lines if line.split()[:1] and line.split()[0] in (*MODULES, "python")
    ]


def argv(words: list[str], broker: str = "") -> list[str]:
    """The command as this interpreter runs it; nodes dial the test's broker."""
    words = [broker if word == "mqtt://localhost" else word for word in words]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    return [sys.executable, "-m", MODULES[words[0]], *words[1:]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files, in the folder in which everything runs."""
    for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        name = re.match(r"# (\S+\.py)\n", text)
        assert name is not None, "a block begins with the name of its file"
        (tmp_path / name[1]).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(words: list[str]) -> str:
    done = subprocess.run(
        argv(words), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def test_every_step_of_the_page_works(folder, mosquitto_broker):
    nodes = [words for words in commands() if words[:2] == ["bb-edge", "run"]]
    before, after = [], []
    for words in commands():
        if words not in nodes:
            (after if {"net.py", "export"} & set(words) else before).append(words)
    simulated = [ran(words) for words in before][1]
    rounds = [line for line in simulated.splitlines() if " round " in line]
    assert len(rounds) == 20 and rounds[-1].endswith(", 400.0]")
    losses = [float(re.search(r"\[\d+, ([\d.]+),", line)[1]) for line in rounds]
    assert losses[-1] < 0.7 * losses[0]

    events = Events()
    children = [
        Child(
            words[words.index("--peer") + 1], argv(words, mosquitto_broker.url), folder / f"{n}.log", events
        )
        for n, words in enumerate(nodes)
    ]
    try:
        server = children[-1]
        assert server.ended.wait(60), server.tail
    finally:
        for child in children:
            child.end(within_s=0)
    told = [
        e.record["value"] for e in events.drain() if isinstance(e, Line) and e.record.get("event") == "round"
    ]
    assert [value[0] for value in told] == list(range(1, 21)) and told[-1][2] == 1600.0
    assert not any(isinstance(e, Ended) and e.child is server and e.code for e in events.drain())

    for words in after:
        ran(words)
    (accuracy,) = re.findall(r"accuracy ([\d.]+)", ran(["python", "use.py"]))
    assert float(accuracy) > 0.9
