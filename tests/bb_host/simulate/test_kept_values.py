"""Values that clients keep: each its own, whatever number of workers serves them, and while they sleep."""

from __future__ import annotations

from typing import Any

import pytest

from bb_edge.components import FedAvg, PresenceSelector
from bb_host import AggregatorSlot, Graph, Module, PeerSelectorSlot, S, ValueSlot
from bb_host.build import build_edge
from bb_host.simulate import Group, Scenario, simulate

CLIENTS, ROUNDS = 12, 9


class Turns(Module):
    """Clients count how often they were asked; the server sums the counts of a round, and keeps the sum."""

    home = "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    counts = AggregatorSlot("counts", FedAvg, at="Server")
    asked = ValueSlot("asked", at="Client")
    total = ValueSlot("total", at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds(ROUNDS) as start:
            peers = self.clients.sample(g, n=3, min=3, after=start)
            r = g.request("count", peers, g.onnx.cast(start.round, to="F32"), deadline_ns=2 * S)
            one = r.value * 0.0 + 1.0
            r.reply(self.asked.add(g, g.onnx.reshape(one, [1])))
            self.total.add(g, g.onnx.reshape(r.answer, [1]))  # once per answer
            self.counts.contribute(g, r.answer, peer=r.answer.sender)
            mean, _ = self.counts.aggregate(g, after=r.closed)
            g.app_emit("round", g.bundle([mean, self.total.add(g, mean * 0.0)]))


def rounds(workers: int, clients: int = CLIENTS) -> list[Any]:
    groups = []
    for artifact in build_edge(Turns()).artifacts:
        is_server = artifact.target == "Server"
        count = 1 if is_server else clients
        groups.append(Group(artifact.target, artifact.target, artifact.data, count, is_server))
    outcome = simulate(Scenario(tuple(groups), seed=3), workers, "here")
    assert not outcome.trouble
    return [event.value for event in outcome.events if event.topic == "round"]


@pytest.mark.parametrize("workers", [1, 3])
def test_each_client_has_a_value_of_its_own(workers: int) -> None:
    found = rounds(workers)
    assert found == rounds(1)
    assert len(found) == ROUNDS
    # Who is asked for the first time says 1: with one value for all, the mean would grow by 3 each round.
    means = [float(mean[0]) for mean, _ in found]
    assert means[0] == 1 and max(means) < ROUNDS
    assert float(found[-1][1][0]) == pytest.approx(3 * sum(means))


def test_who_is_asked_each_round_counts_them() -> None:
    found = rounds(2, clients=3)
    assert [float(mean[0]) for mean, _ in found] == list(range(1, ROUNDS + 1))
