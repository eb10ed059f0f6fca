"""This project's side of `simulators.py`: prints what `simulators_rivals.py` prints.

    PYTHONPATH=.:examples python -m benchmarks.simulators_ours mlp|cnn CLIENTS ROUNDS ROWS.npz WORKERS

Workers import this file too, so it imports what they need: what compiling takes is not for them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bb_host.apart import apart
from bb_host.simulate import Dealt, Event, Group, Rule, Scenario, simulate

BATCH, STEPS, TEST_ROWS, LEARNING_RATE, CLASSES = 32, 2, 360, 0.1, 10


def prepared(kind: str, clients: int, rounds: int, path: Path, test: Path) -> dict[str, bytes]:
    """The artifacts of our side; the rows to score on are in `test`."""
    import numpy as np

    from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
    from bb_host import Compiler
    from bb_host.build import build_edge
    from bb_host.learn import trainable
    from benchmarks.training_nets import digits_cnn, small_mlp
    from federated_digits.federation import FederatedDigits

    net = digits_cnn() if kind == "cnn" else small_mlp()
    compiler = (
        Compiler()
        .bind_model(
            "model", GraphModel, trainable(net, loss="softmax_cross_entropy", learning_rate=LEARNING_RATE)
        )
        .bind_aggregator("agg", FedAvg)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": CLASSES})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": CLASSES})
    )
    with np.load(path) as file:
        np.savez(test, x=file["x"][:TEST_ROWS], y=file["y"][:TEST_ROWS])
    module = FederatedDigits(rounds=rounds, clients=clients, local_steps=STEPS, at_least=clients)
    return {a.target: a.data for a in build_edge(module, compiler).artifacts}


def ours(kind: str, clients: int, rounds: int, path: Path, workers: int) -> None:
    """Runs it, and tells of each round as it ends."""
    test = path.with_suffix(".test.npz")
    files = apart(prepared, kind, clients, rounds, path, test)
    last = time.perf_counter()

    def tell(event: Event) -> None:
        nonlocal last
        now = time.perf_counter()
        print(json.dumps([event.value[0], now - last, event.value[2]]), flush=True)
        last = now

    simulate(
        Scenario(
            (
                Group("Server", "Server", files["Server"], 1, large=True),
                Group("Client", "Client", files["Client"], clients),
            ),
            settings={"test": {"path": str(test)}},
            dealt=(Dealt("shard", path, Rule.parse("draw:64")),),
        ),
        workers,
        event=tell,
    )


if __name__ == "__main__":
    net, of_clients, of_rounds, rows, of_workers = sys.argv[1:]
    ours(net, int(of_clients), int(of_rounds), Path(rows), int(of_workers))
