"""Personal layers win where clients name things differently; and the example as its user starts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import S
from bb_host.build import build_edge
from federated_digits.data import load_digits
from personal_layers.personal import program
from personal_layers.run import write_data
from tests.aids.example_runs import printed
from tests.aids.told_events import told

RUN = Path(__file__).resolve().parents[2] / "examples" / "personal_layers" / "run.py"
ROUNDS, CLIENTS = 10, 3


def last_score(personal: bool, folder: Path) -> float:
    module, compiler = program(personal, seed=1, rounds=ROUNDS, clients=CLIENTS)
    nodes = {
        f"client-{n}": ("Client", {"shard": {"path": str(shard)}, "exam": {"path": str(exam)}})
        for n, (shard, exam) in enumerate(write_data(CLIENTS, 1, folder))
    }
    values = told(build_edge(module, compiler), {**nodes, "server": ("Server", {})}, "round", 600 * S)
    assert [int(v.values[0]) for v in values["server"]] == list(range(1, ROUNDS + 1))
    return float(values["server"][-1].values[1][0])


def test_personal_heads_win_over_one_model_for_all(tmp_path: Path) -> None:
    personal, shared = last_score(True, tmp_path), last_score(False, tmp_path)
    assert personal > 0.8 and shared < 0.6  # 0.9 and 0.4


def test_what_is_sent_is_the_first_layer() -> None:
    module, compiler = program(True)
    main = next(f for f in compiler.run(module).program.functions if f.name == "Client")
    (params,) = (op for op in main.ops if op.op_type == "Params")
    assert main.types[params.outputs[0]].shape == (64 * 32 + 32,)


def test_all_but_the_first_client_have_names_of_their_own(tmp_path: Path) -> None:
    x, y = load_digits()
    names = {row.tobytes(): int(digit) for row, digit in zip(x, y, strict=True)}
    for number, paths in enumerate(write_data(CLIENTS, 1, tmp_path)):
        pairs: set[tuple[int, int]] = set()
        for path in paths:
            with np.load(path) as own:
                pairs |= {(names[row.tobytes()], int(n)) for row, n in zip(own["x"], own["y"], strict=True)}
        assert len(pairs) == len(dict(pairs)) == 10  # one name per digit, in shard and exam alike
        assert all(digit == name for digit, name in pairs) == (number == 0)


@pytest.mark.broker
@pytest.mark.slow
def test_the_example_runs_from_nothing(tmp_path: Path) -> None:
    out = printed(RUN, "--rounds", "3", "--clients", "2", "--out", tmp_path)
    assert "   3/3  personal 0." in out and "one model for all" in out
    assert (tmp_path / "personal.png").read_bytes().startswith(b"\x89PNG")
