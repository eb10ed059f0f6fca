"""Personal layers on this machine: two federations over the same digits, with and without them."""

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
"""Every fifth digit of a client is one that it does not learn from."""

KINDS = {"personal": "the last layer is each client's own", "shared": "one model for all"}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="personal_layers", description="Personal layers, on this machine.")
    p.add_argument("--rounds", type=int, default=20, help="default 20")
    p.add_argument("--clients", type=int, default=4, help="of each of the two federations (default 4)")
    local_run.add_options(p, "build/personal_layers")
    return p


def write_data(clients: int, seed: int, folder: Path) -> list[tuple[Path, Path]]:
    """Deals all digits, and permutes the labels of each client but the first; shard and exam of each."""
    x, y = data.load_digits()
    shards = data.split(y, clients, seed=seed, test_fraction=0).shards
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, rows in enumerate(shards):
        names = np.arange(data.CLASSES) if number == 0 else rng.permutation(data.CLASSES)
        paths = folder / f"client-{number}.npz", folder / f"exam-{number}.npz"
        for path, own in zip(paths, (rows[np.arange(len(rows)) % EXAM > 0], rows[::EXAM]), strict=True):
            np.savez(path, x=x[own], y=names[y[own]])
        found.append(paths)
    return found


def score_of(node: str, value: object) -> tuple[int, float]:
    """Round and mean accuracy of an event `round`. RunError where somebody did not answer."""
    if not (isinstance(value, list) and len(value) == 3 and len(value[1]) == 1):
        raise local_run.RunError(f"{node} says {value}, expected [round, [accuracy], missing]")
    if value[2]:
        raise local_run.RunError(f"{node}: no answer of {', '.join(map(str, value[2]))}")
    return int(value[0]), float(value[1][0])


def main(argv: Sequence[str] | None = None) -> int:
    a = parser().parse_args(argv)
    scores: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}

    def body(run: local_run.LocalRun) -> None:
        from bb_host.build import compile_edge
        from personal_layers.personal import program

        shards = write_data(a.clients, a.seed, a.out / "data")
        began = time.monotonic()
        for kind in KINDS:
            module, compiler = program(kind == "personal", a.seed, rounds=a.rounds, clients=a.clients)
            compile_edge(module, compiler, a.out / kind)
        run.note(f"compiled twice in {time.monotonic() - began:.2f} s")
        run.start_broker()
        for kind in KINDS:
            server, client = (a.out / kind / f"PersonalDigits.{t}.edge.onnx" for t in ("Server", "Client"))
            for number, (shard, exam) in enumerate(shards):
                own = ("--set", f"shard.path={shard}", "--set", f"exam.path={exam}")
                run.start(f"{kind}-{number}", client, "Client", *own, group=kind)
            run.start(kind, server, "Server", "--until-done", group=kind)
        run.note(f"two federations started, of {a.clients} clients and a server each")
        for node, record in run.heard(list(KINDS)):
            if record.get("event") == "round":
                number, accuracy = score_of(node, record.get("value"))
                scores[node][number] = accuracy
                if all(number in rounds for rounds in scores.values()):
                    both = "  ".join(f"{kind} {rounds[number]:.3f}" for kind, rounds in scores.items())
                    run.progress(number, a.rounds, both)

    def finish() -> None:
        print("\naccuracy at the end, each client on digits that it did not learn from:")
        for kind, text in KINDS.items():
            print(f"  {kind:<9} {scores[kind][a.rounds]:.3f}  {text}")
        curves = [(text, list(scores[kind]), list(scores[kind].values())) for kind, text in KINDS.items()]
        title = f"{a.clients} clients, each with its own names for the digits"
        local_run.show_picture(curves, a.out / "personal.png", title, "round", "accuracy")

    return local_run.run(a, body, finish)


if __name__ == "__main__":
    sys.exit(main())
