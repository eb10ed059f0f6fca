"""The same federation in one process under simulated time: the seed decides everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_edge.node import Node
from bb_edge.transport.in_process import Simulation


@dataclass
class Simulated:
    """A federation in one process."""

    simulation: Simulation
    server: Node
    clients: list[Node]

    def rounds(self) -> list[tuple[int, float, float, float, int]]:
        """(number, loss, accuracy, samples, missing) of every round that somebody was asked in."""
        found = [e.value.values for e in self.simulation.events("round")]
        told = [(int(v[0]), float(v[1]), float(v[2]), float(v[3]), len(v[4])) for v in found]
        return [r for r in told if r[3] or r[4]]

    def finish(self, rounds: int) -> None:
        self.simulation.run(until=lambda: len(self.rounds()) >= rounds)


@pytest.fixture
def simulated(artifacts):
    """`simulated(seed, rounds=…)`: server and clients, installed and joined."""
    from bb_edge import install

    def make(seed: int = 0, jitter_ns: int = 0, **options: int) -> Simulated:
        server, client = (load(path.read_bytes()) for path in artifacts.get(**({"local_steps": 5} | options)))
        simulation = Simulation(seed, jitter_ns=jitter_ns)

        def join(name: str, program, target: str, number: int, **components) -> Node:
            node = install(
                PeerId.from_name(name),
                (),
                program,
                [target],
                NodeConfig.host(),
                seed=seed * 100 + number,
                components=components,
            )
            simulation.add(node)
            return node

        clients = [
            join(f"client-{n}", client, "Client", n, shard={"path": str(path)})
            for n, path in enumerate(artifacts.shards)
        ]
        return Simulated(
            simulation, join("server", server, "Server", 99, test={"path": str(artifacts.test)}), clients
        )

    return make


def test_the_same_seed_gives_the_same_bytes(simulated):
    hashes = set()
    for _ in range(2):
        s = simulated(7, jitter_ns=300_000, rounds=4, at_least=3)
        s.finish(4)
        hashes.add(s.simulation.trace_hash())
    assert len(hashes) == 1


def test_another_seed_gives_others(simulated):
    hashes = set()
    for seed in (7, 8):
        s = simulated(seed, jitter_ns=300_000, rounds=2, at_least=3)
        s.finish(2)
        hashes.add(s.simulation.trace_hash())
    assert len(hashes) == 2


def test_it_learns(simulated, artifacts):
    s = simulated(1, rounds=20, local_steps=44, at_least=3)
    s.finish(20)
    rounds = s.rounds()
    assert rounds[-1][2] >= 0.93
    assert all(r[3] == artifacts.samples and r[4] == 0 for r in rounds)
    assert not [x for x in s.simulation.seen if isinstance(x.step, (steps.OpFailed, steps.ExecutionStarved))]


def test_the_average_is_the_weighted_one(simulated, artifacts):
    s = simulated(1, rounds=1, at_least=3)
    before = np.array(s.clients[0].component("model").params(None))
    s.finish(1)
    s.simulation.run(for_ns=1)
    weights = [len(np.load(path)["y"]) for path in artifacts.shards]
    each = [np.array(c.component("model").params(None), np.float64) for c in s.clients]
    expected = sum(w * p for w, p in zip(weights, each, strict=True)) / sum(weights)
    got = np.array(s.server.component("model").params(None))
    assert not np.allclose(got, before, atol=1e-4)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_rounds_go_on_without_a_client_that_dies(simulated, artifacts):
    s = simulated(1, rounds=6)
    s.finish(2)
    s.simulation.remove(s.clients[0].peer_id)
    s.finish(6)
    rounds = s.rounds()
    assert 0 < rounds[-1][3] < artifacts.samples
    assert [r[0] for r in rounds] == list(range(rounds[0][0], rounds[0][0] + 6))


def test_a_round_that_nobody_answers_keeps_the_model(simulated):
    s = simulated(1, rounds=3)
    s.finish(1)
    before = np.array(s.server.component("model").params(None))
    for client in s.clients:
        s.simulation.remove(client.peer_id)
    s.finish(2)
    told = s.rounds()[1]
    assert told[3] == 0
    assert told[4] == len(s.clients)
    np.testing.assert_array_equal(np.array(s.server.component("model").params(None)), before)
