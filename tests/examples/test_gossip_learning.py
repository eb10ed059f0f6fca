"""Gossip learning: every peer comes to know what only others see; and the example as its user starts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_host import S
from bb_host.build import build_edge
from federated_digits.data import class_counts, load_digits, split, write_shards
from gossip_learning.gossip import NEIGHBOURS, program
from gossip_learning.run import ALPHA
from tests.aids.example_runs import printed
from tests.aids.told_events import told

RUN = Path(__file__).resolve().parents[2] / "examples" / "gossip_learning" / "run.py"
ROUNDS, PEERS = 20, 5


def test_every_peer_comes_to_know_what_only_others_see(tmp_path: Path) -> None:
    x, y = load_digits()
    parts = split(y, PEERS, alpha=ALPHA, seed=1)
    exam, shards = write_shards(tmp_path, x, y, parts)
    nodes = {
        f"peer-{n}": ("Peer", {"shard": {"path": str(shard)}, "exam": {"path": str(exam)}})
        for n, shard in enumerate(shards)
    }
    module, compiler = program(seed=1, rounds=ROUNDS, pause_ms=100)
    values = told(build_edge(module, compiler), nodes, "round", 600 * S)
    for name, rounds in values.items():
        assert [int(v.values[0]) for v in rounds] == list(range(1, ROUNDS + 1)), name
        assert all(int(v.values[2]) <= 1 + NEIGHBOURS for v in rounds)
    # Without others a peer is right about what is of the kinds that it sees, at most.
    counts = class_counts(y, parts.test)
    seen = [
        counts[np.flatnonzero(class_counts(y, shard) > 15)].sum() / counts.sum() for shard in parts.shards
    ]
    last = [float(np.mean([float(v.values[1]) for v in rounds[-3:]])) for rounds in values.values()]
    assert min(last) > min(seen) + 0.1 and np.mean(last) > 0.75, (last, seen)


@pytest.mark.broker
@pytest.mark.slow
def test_the_example_runs_from_nothing(tmp_path: Path) -> None:
    out = printed(RUN, "--rounds", "3", "--peers", "3", "--out", tmp_path)
    assert "   3/3  accuracy 0." in out and "on all kinds of digits" in out
    assert (tmp_path / "gossip.png").read_bytes().startswith(b"\x89PNG")
