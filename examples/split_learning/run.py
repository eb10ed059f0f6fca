"""Split learning on this machine: compile, start a broker, a server and its clients, watch them learn."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

import local_run  # noqa: E402
from federated_digits import data  # noqa: E402

EXAM = 5
"""Every fifth digit of a client is one that nobody learns from."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="split_learning", description="Split learning of digits on this machine."
    )
    p.add_argument("--rounds", type=int, default=150, help="default 150; a round is a batch of 32 per client")
    p.add_argument("--clients", type=int, default=4, help="default 4")
    p.add_argument("--asked-by", choices=("server", "client"), default="server", help="default server")
    local_run.add_options(p, "build/split_learning")
    return p


class Scores:
    """What the exams gave: by node and round, the share of right guesses."""

    def __init__(self) -> None:
        self.accuracy: dict[str, dict[int, float]] = {}
        self.loss: dict[str, dict[int, float]] = {}

    def take(self, node: str, value: object) -> int:
        """An event `round`; the round's number."""
        if not (isinstance(value, list) and len(value) >= 2 and len(value[1]) == 2):
            raise local_run.RunError(f"{node} says {value}, expected [round, [loss, accuracy], …]")
        number = int(value[0])
        loss, accuracy = map(float, value[1])
        self.loss.setdefault(node, {})[number] = loss
        self.accuracy.setdefault(node, {})[number] = accuracy
        return number

    def mean(self, number: int) -> tuple[float, float]:
        """Loss and accuracy of a round, over the nodes that have told it."""
        there = [node for node, rounds in self.loss.items() if number in rounds]
        return (
            float(np.mean([self.loss[n][number] for n in there])),
            float(np.mean([self.accuracy[n][number] for n in there])),
        )


def write_data(clients: int, seed: int, folder: Path) -> list[tuple[Path, Path]]:
    """Deals all digits; of each client what it learns from, and its exam."""
    x, y = data.load_digits()
    shards = data.split(y, clients, seed=seed, test_fraction=0).shards
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, rows in enumerate(shards):
        paths = folder / f"client-{number}.npz", folder / f"exam-{number}.npz"
        for path, own in zip(paths, (rows[np.arange(len(rows)) % EXAM > 0], rows[::EXAM]), strict=True):
            np.savez(path, x=x[own], y=y[own])
        found.append(paths)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    a = parser().parse_args(argv)
    scores = Scores()

    def body(run: local_run.LocalRun) -> None:
        from bb_host.build import compile_edge
        from split_learning.split import program

        shards = write_data(a.clients, a.seed, a.out / "data")
        began = time.monotonic()
        module, compiler = program(a.asked_by, a.seed, rounds=a.rounds, clients=a.clients)
        compile_edge(module, compiler, a.out)
        server, client = (a.out / f"SplitDigits.{target}.edge.onnx" for target in ("Server", "Client"))
        sizes = ", ".join(f"{path.name} {path.stat().st_size:,} bytes" for path in (server, client))
        run.note(f"compiled in {time.monotonic() - began:.2f} s: {sizes}")
        run.start_broker()
        names = [f"client-{number}" for number in range(a.clients)]
        done = {"server": ["server"], "client": names}[a.asked_by]
        for name, (shard, exam) in zip(names, shards, strict=True):
            until = ("--until-done",) if name in done else ()
            own = ("--set", f"shard.path={shard}", "--set", f"exam.path={exam}")
            run.start(name, client, "Client", *own, *until)
        run.start("server", server, "Server", *(("--until-done",) if "server" in done else ()))
        run.note(f"{a.clients} clients and a server started, asked by the {a.asked_by}")
        for node, record in run.heard(done):
            if record.get("event") != "round":
                continue
            number = scores.take(node, record.get("value"))
            if all(number in scores.loss.get(name, {}) for name in done):
                loss, accuracy = scores.mean(number)
                run.progress(number, a.rounds, f"accuracy {accuracy:.3f}  loss {loss:.3f}")

    def finish() -> None:
        last = max(max(rounds) for rounds in scores.loss.values())
        print(f"\naccuracy of the two halves, on digits that nobody learned from: {scores.mean(last)[1]:.3f}")
        curves = [(n, list(rounds), list(rounds.values())) for n, rounds in sorted(scores.accuracy.items())]
        title = f"Split learning, {a.clients} clients, asked by the {a.asked_by}"
        local_run.show_picture(curves, a.out / "split.png", title, "round", "accuracy")

    return local_run.run(a, body, finish)


if __name__ == "__main__":
    sys.exit(main())
