"""Split learning: both halves learn, whichever side asks; and the example as its user starts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import S
from bb_host.build import build_edge
from split_learning.run import Scores, write_data
from split_learning.split import FIRST, REST, program
from tests.aids.example_runs import printed, started
from tests.aids.told_events import told

RUN = Path(__file__).resolve().parents[2] / "examples" / "split_learning" / "run.py"
ROUNDS, CLIENTS = 80, 3
LEARNED = 0.8
"""A tenth is what guessing gives; after 80 batches of each client it is 0.85 to 0.9."""


@pytest.mark.parametrize("asked_by", ["server", "client"])
def test_both_halves_learn_whichever_side_asks(asked_by: str, tmp_path: Path) -> None:
    module, compiler = program(asked_by, seed=1, rounds=ROUNDS, clients=CLIENTS)
    nodes = {
        f"client-{n}": ("Client", {"shard": {"path": str(shard)}, "exam": {"path": str(exam)}})
        for n, (shard, exam) in enumerate(write_data(CLIENTS, 1, tmp_path))
    }
    values = told(build_edge(module, compiler), {**nodes, "server": ("Server", {})}, "round", 600 * S)
    asking = {name: v for name, v in values.items() if v}
    assert list(asking) == (["server"] if asked_by == "server" else list(nodes))
    for rounds in asking.values():
        assert [int(v.values[0]) for v in rounds] == list(range(1, ROUNDS + 1))
        accuracy = [float(v.values[1][1]) for v in rounds]
        assert np.mean(accuracy[:3]) < 0.5 and np.mean(accuracy[-5:]) > LEARNED


def test_both_sides_have_several_layers() -> None:
    assert len(FIRST) > 2 and len(REST) > 2 and FIRST[-1] == REST[0]


def test_the_exam_holds_digits_that_nobody_learns_from(tmp_path: Path) -> None:
    rows = []
    for paths in write_data(CLIENTS, 1, tmp_path):
        for path in paths:
            with np.load(path) as arrays:
                rows.append(np.column_stack([arrays["x"], arrays["y"]]))
    together = np.concatenate(rows)
    assert len(together) == 1797  # all digits, each once
    shard, exam = map(len, rows[:2])
    assert exam == pytest.approx((shard + exam) / 5, abs=1)


def test_scores_are_means_over_those_that_told() -> None:
    scores = Scores()
    assert scores.take("client-0", [2, [1.0, 0.5]]) == 2
    scores.take("client-1", [2, [3.0, 0.7]])
    assert scores.mean(2) == (2.0, pytest.approx(0.6))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("asked_by", ["server", "client"])
def test_the_example_runs_from_nothing(asked_by: str, tmp_path: Path) -> None:
    out = printed(RUN, "--asked-by", asked_by, "--rounds", "4", "--clients", "2", "--out", tmp_path)
    assert "   4/4  accuracy" in out and "digits that nobody learned from: 0." in out
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")


def test_the_example_says_why_it_cannot_run(tmp_path: Path) -> None:
    found = started(RUN, "--broker", "nonsense", "--clients", "1", "--out", tmp_path)
    assert found.returncode == 1
    assert "nonsense" in found.stderr and "Traceback" not in found.stderr
