"""Gossip learning on this machine: peers, a broker, and no server."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):
    sys.path.insert(0, str(HERE.parent))

import local_run  # noqa: E402
from federated_digits import data  # noqa: E402

ALPHA = 0.3
"""Of the Dirichlet distribution that deals the digits: most peers see a few kinds of them."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="gossip_learning", description="Gossip learning, on this machine.")
    p.add_argument("--rounds", type=int, default=30, help="of each peer (default 30)")
    p.add_argument("--peers", type=int, default=6, help="default 6")
    local_run.add_options(p, "build/gossip_learning")
    return p


def score_of(node: str, value: object) -> tuple[int, float]:
    """Round and accuracy of an event `round`."""
    if not (isinstance(value, list) and len(value) == 3):
        raise local_run.RunError(f"{node} says {value}, expected [round, accuracy, models]")
    return int(value[0]), float(value[1])


def main(argv: Sequence[str] | None = None) -> int:
    a = parser().parse_args(argv)
    names = [f"peer-{number}" for number in range(a.peers)]
    scores: dict[str, dict[int, float]] = {name: {} for name in names}

    def body(run: local_run.LocalRun) -> None:
        from bb_host.build import compile_edge
        from gossip_learning.gossip import program

        x, y = data.load_digits()
        parts = data.split(y, a.peers, alpha=ALPHA, seed=a.seed)
        exam, shards = data.write_shards(a.out / "data", x, y, parts)
        began = time.monotonic()
        compile_edge(*program(a.seed, rounds=a.rounds), a.out)
        artifact = a.out / "GossipDigits.Peer.edge.onnx"
        size = artifact.stat().st_size
        run.note(f"compiled in {time.monotonic() - began:.2f} s: {artifact.name} {size:,} bytes")
        run.start_broker()
        for name, shard in zip(names, shards, strict=True):
            run.start(name, artifact, "Peer", "--set", f"shard.path={shard}", "--set", f"exam.path={exam}")
        run.note(f"{a.peers} peers started, no server")
        shown = 0
        # A peer that is done stays up: others still ask it.
        for node, record in run.heard(names):
            if record.get("event") == "round":
                number, accuracy = score_of(node, record.get("value"))
                scores[node][number] = accuracy
            done = min(map(len, scores.values()))
            if done > shown:
                shown = done
                there = sorted(rounds[done] for rounds in scores.values())
                run.progress(done, a.rounds, f"accuracy {there[0]:.3f} to {there[-1]:.3f}")
            if done >= a.rounds:
                return

    def finish() -> None:
        last = [rounds[a.rounds] for rounds in scores.values()]
        print(f"\naccuracy at the end, on all kinds of digits: {min(last):.3f} to {max(last):.3f}")
        curves = [(name, list(rounds), list(rounds.values())) for name, rounds in scores.items()]
        title = f"{a.peers} peers without a server, Dirichlet {ALPHA:g}"
        local_run.show_picture(curves, a.out / "gossip.png", title, "round of the peer", "accuracy")

    return local_run.run(a, body, finish)


if __name__ == "__main__":
    sys.exit(main())
