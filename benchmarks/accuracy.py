"""What federated averaging costs in accuracy: digits, in folds, against central training of the same model.

    PYTHONPATH=.:examples python -m benchmarks.accuracy --net cnn-bn --folds 5 --torch /venv/bin/python

All 1,797 digits, each once in a test set. The program is the example's, simulated in one process. Even data
on four clients, four passes over its shard per client and round, and Dirichlet(0.3) on ten, against central
training of as many passes: in PyTorch, by the interpreter of `--torch`, from the same first weights on the
same rows; else by the same program with one client that has everything. Gates: 1 point below central training
for even data, 2.5 points for uneven ones, over the mean of the folds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import Compiler
from bb_host.build import build_edge
from bb_host.learn import TrainableModel, mlp, trainable
from bb_host.simulate import Dealt, Group, Rule, Scenario, simulate
from benchmarks.training_nets import CLASSES, digits_cnn, digits_cnn_bn
from federated_digits import data
from federated_digits.federation import BATCH, FederatedDigits

EVEN_GATE, UNEVEN_GATE = 0.010, 0.025
PASSES = 4
"""Over its shard, by each client in each round."""


class Federation(NamedTuple):
    """Who takes part: how many clients, and how unevenly they are dealt to."""

    clients: int
    alpha: float | None = None


CENTRAL, EVEN, UNEVEN = Federation(1), Federation(4), Federation(10, 0.3)


def image(x: data.Floats) -> data.Floats:
    """Rows of pixels as images of one channel."""
    return x.reshape(-1, 1, 8, 8)


def source(kind: str) -> onnx.ModelProto:
    """One of the models, as an exporter writes it."""
    if kind == "mlp":
        return mlp([data.PIXELS, 32, CLASSES], seed=0)
    return digits_cnn_bn() if kind == "cnn-bn" else digits_cnn()


def net(kind: str) -> TrainableModel:
    """One of the models, ready to be trained."""
    updates = "update" if kind == "cnn-bn" else "frozen"
    return trainable(source(kind), learning_rate=_rate(kind), batch_norm=updates)


def _rate(kind: str) -> float:
    return 0.1 if kind == "mlp" else 0.05


def folds(labels: data.Labels, count: int) -> list[data.Indices]:
    """Test sets that have every row once, each with as many of every digit."""
    order = np.random.default_rng(0).permutation(len(labels))
    by_digit = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(by_digit[fold::count]) for fold in range(count)]


def accuracy(kind: str, who: Federation, test: data.Indices, rounds: int, folder: Path, seed: int) -> float:
    """The share of the test set that the model of the last round names right; `seed` is the dealing's."""
    x, y = data.load_digits()
    x = x if kind == "mlp" else image(x)
    rest = np.setdiff1d(np.arange(len(y)), test)
    parts = data.split(y[rest], who.clients, who.alpha, seed=seed, test_fraction=0)
    client = np.empty(len(rest), np.int64)
    for number, shard in enumerate(parts.shards):
        client[shard] = number
    np.savez(folder / "test.npz", x=x[test], y=y[test])
    np.savez(folder / "train.npz", x=x[rest], y=y[rest], client=client)
    steps = max(1, PASSES * len(rest) // (who.clients * BATCH))
    module = FederatedDigits(rounds=rounds, clients=who.clients, local_steps=steps, at_least=who.clients)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, net(kind))
        .bind_aggregator("agg", FedAvg)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": CLASSES})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": CLASSES})
    )
    artifacts = {a.target: a.data for a in build_edge(module, compiler).artifacts}
    scenario = Scenario(
        (
            Group("Server", "Server", artifacts["Server"], 1, large=True),
            Group("Client", "Client", artifacts["Client"], who.clients),
        ),
        settings={"test": {"path": str(folder / "test.npz")}},
        dealt=(Dealt("shard", folder / "train.npz", Rule.parse("column:client")),),
    )
    outcome = simulate(scenario, on="here")
    scored = [event.value for event in outcome.events if event.topic == "round"]
    if len(scored) != rounds:
        raise SystemExit(f"{len(scored)} of {rounds} rounds were scored: {outcome.trouble}")
    return float(scored[-1][2])


def torch_accuracy(python: str, kind: str, test: data.Indices, rounds: int, folder: Path, seed: int) -> float:
    """The same share after central training in PyTorch, by another interpreter; `seed` orders the rows."""
    x, y = data.load_digits()
    x = x if kind == "mlp" else image(x)
    rest = np.setdiff1d(np.arange(len(y)), test)
    first = [numpy_helper.to_array(tensor) for tensor in source(kind).graph.initializer]
    if kind == "mlp":  # [in, out] here, rows of outputs there
        first = [np.ascontiguousarray(array.T) for array in first]
    path = folder / "central.npz"
    np.savez(
        path, kind=kind, rate=_rate(kind), passes=PASSES * rounds, batch=BATCH, seed=seed, x=x[rest],
        y=y[rest], test_x=x[test], test_y=y[test], **{f"w{i}": array for i, array in enumerate(first)},
    )  # fmt: skip
    # Not as a file: its folder would come first in sys.path, with modules called `compile` and `inference`.
    run = "import runpy, sys; runpy.run_path(sys.argv[1])['central'](sys.argv[2])"
    words = [python, "-c", run, str(Path(__file__).with_name("accuracy_torch.py")), str(path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} has not trained: it needs torch and numpy")
    return float(done.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 1 where a gate is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", choices=("mlp", "cnn", "cnn-bn"), default="mlp")
    parser.add_argument("--folds", type=int, default=5, help="of the five, how many are run")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--torch", metavar="PYTHON", help="train centrally in PyTorch, by this interpreter")
    given = parser.parse_args(arguments)
    tests = folds(data.load_digits()[1], 5)[: given.folds]
    found: dict[Federation, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for who in (CENTRAL, EVEN, UNEVEN):
            found[who] = [
                torch_accuracy(given.torch, given.net, test, given.rounds, Path(folder), seed)
                if given.torch and who is CENTRAL
                else accuracy(given.net, who, test, given.rounds, Path(folder), seed)
                for seed, test in enumerate(tests)
            ]
            print(
                who,
                " ".join(f"{share:.4f}" for share in found[who]),
                f"mean {mean(found[who]):.4f}",
                flush=True,
            )
    missed = 0
    for who, gate in ((EVEN, EVEN_GATE), (UNEVEN, UNEVEN_GATE)):
        lost = mean(found[CENTRAL]) - mean(found[who])
        missed += lost > gate
        print(f"{who.clients} clients: {100 * lost:+.2f} points lost, at most {100 * gate:.1f}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
