"""Two tiers with aggregators: a leaf that never answers, one that fails, deadlines that do not fit.

What the server averages is what the leaves that were heard have said, each with its weight, and no round
waits for ever for those that were not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import Moody
from kinds_of_steps import of

from bb_edge.components import FedAvg
from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import default_registry
from bb_edge.transport.in_process import Simulation
from bb_host import MS, AggregatorSlot, CodecSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.build import build_edge

LEAVES = 4
RELAYS = 2


class Tiers(Module):
    """Each relay averages all leaves, and the server the relays, by how many leaves each has heard."""

    name, home = "Tiers", "Server"
    relays = PeerSelectorSlot("relays", peer_class="Relay", at="Server")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf", at="Relay")
    top = AggregatorSlot("top", at="Server")
    middle = AggregatorSlot("middle", at="Relay")
    codec = CodecSlot("codec", at="Leaf")

    def __init__(self, inner_ns: int) -> None:
        super().__init__()
        self.inner_ns = inner_ns

    def body(self, g: Any) -> None:
        x = g.input("x", "F32", (2,))
        r = g.request("outer", self.relays.current_view(g, after=x), x, deadline_ns=4 * S)
        q = g.request("inner", self.leaves.current_view(g, after=r.value), r.value, deadline_ns=self.inner_ns)
        q.reply(self.codec.compress(g, q.value))
        self.middle.contribute(g, q.answer, peer=q.answer.sender)
        mean, heard = self.middle.aggregate(g, after=q.closed)
        r.reply([mean, heard])
        part, weight = r.answer
        self.top.contribute(g, part, weight, peer=r.answer.sender)
        mean, total = self.top.aggregate(g, after=r.closed)
        g.app_emit("round", g.bundle([x, mean, total, r.missing]))


class Forward(Module):
    """Each relay answers with what the first leaf says."""

    name, home = "Forward", "Server"
    relays = PeerSelectorSlot("relays", peer_class="Relay", at="Server")
    leaves = PeerSelectorSlot("leaves", peer_class="Leaf", at="Relay")
    codec = CodecSlot("codec", at="Leaf")

    def body(self, g: Any) -> None:
        x = g.input("x", "F32", (2,))
        r = g.request("outer", self.relays.current_view(g, after=x), x, deadline_ns=4 * S)
        q = g.request("inner", self.leaves.current_view(g, after=r.value), r.value, deadline_ns=S)
        q.reply(self.codec.compress(g, q.value))
        r.reply(q.answer)
        g.app_emit("answer", r.answer)
        g.app_emit("closed", r.missing)


@pytest.fixture
def simulated():
    """`simulated(module, compiler)`: (simulation, server, relays, leaves); Moody is known meanwhile."""
    registry = default_registry()
    registry.register(Moody)

    def make(module, compiler):
        compiler = (
            compiler.bind_peer_selector("relays", "bb.PresenceSelector")
            .bind_peer_selector("leaves", "bb.PresenceSelector")
            .bind_codec("codec", Moody)
        )
        data = {a.target: a.data for a in build_edge(module, compiler).artifacts}
        sim = Simulation(seed=3, jitter_ns=3 * MS)
        names = ["Server", *["Relay"] * RELAYS, *["Leaf"] * LEAVES]
        made = [
            install(PeerId.from_name(f"n{number}"), (), data[target], [target], seed=number)
            for number, target in enumerate(names, 1)
        ]
        for node in made:
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, made[0], made[1 : 1 + RELAYS], made[1 + RELAYS :]

    yield make
    registry.forget(Moody.TYPE_NAME)


@pytest.fixture
def world(simulated):
    """`world(inner_ns)`: the same of `Tiers`."""
    return lambda inner_ns: simulated(
        Tiers(inner_ns), Compiler().bind_aggregator("top", FedAvg).bind_aggregator("middle", FedAvg)
    )


@pytest.fixture
def forwarding(simulated):
    return simulated(Forward(), Compiler())


@pytest.mark.parametrize("inner_ns", [1 * S, 60 * S])
def test_averages_are_right_and_no_round_waits_for_ever(world, inner_ns):
    sim, server, relays, leaves = world(inner_ns)
    leaves[0].deliver_inbound = lambda *_arguments, **_more: None
    leaves[1].component("codec").mood = "fails"
    took = []
    for number in range(1, 21):
        began = sim.now_ns
        before = len(sim.events("round"))
        server.invoke("Server", {"x": np.full(2, number, np.float32)})
        sim.run(until=lambda before=before: len(sim.events("round")) > before)
        took.append((sim.now_ns - began) // MS)
        sim.run(for_ns=50 * MS)
    # What a leaf answers is the number of its round, so that a sum of two rounds shows.
    for number, event in enumerate(sim.events("round"), 1):
        x, mean, total, missing = event.value.values
        assert x.tolist() == mean.tolist() == [number, number], (number, mean)
        assert (float(total), missing) == (2 * RELAYS, ()), "two leaves are heard through each relay"
    assert all(ms < 4000 for ms in took), "what a relay has goes home before its asker gives up"
    assert sum(ms > 200 for ms in took) <= 5 and max(took[-8:]) < 200, took
    assert not [s.step for s in sim.seen if isinstance(s.step, steps.ExecutionStarved)]
    assert (
        len(of(steps.PeerFailing, (s.step for s in sim.seen if s.peer in {r.peer_id for r in relays})))
        >= RELAYS
    )


def rounds(sim, server, first, last):
    """Runs these rounds; what the server reported of each: [mean, total, number of missing relays]."""
    for number in range(first, last + 1):
        before = len(sim.events("round"))
        server.invoke("Server", {"x": np.full(2, number, np.float32)})
        sim.run(until=lambda before=before: len(sim.events("round")) > before)
    told = [event.value.values for event in sim.events("round")[first - 1 : last]]
    return [[mean.tolist(), float(total), len(missing)] for _, mean, total, missing in told]


def reasons(sim, port):
    """Why peers were missing from the requests of that port."""
    closed = [s for s in of(steps.RequestClosed, (s.step for s in sim.seen)) if s.port == port]
    return {reason for step in closed for _, reason in step.missing}


def test_relays_whose_leaves_are_gone_have_nothing_and_stay(world):
    sim, server, relays, leaves = world(1 * S)
    for leaf in leaves:
        sim.remove(leaf.peer_id)
    sim.run(for_ns=S)
    assert rounds(sim, server, 1, 8) == [[[], 0.0, RELAYS]] * 8
    assert reasons(sim, "outer") == {"nothing"}
    assert not of(steps.PeerFailing, (s.step for s in sim.seen))
    own = {r.peer_id for r in relays}
    told = [(s.peer, s.step.why) for s in sim.seen if isinstance(s.step, steps.NobodyHeard)]
    assert {peer for peer, _ in told} == own and len(told) == 8 * RELAYS, "each relay says so itself"
    assert {why for _, why in told} == {"nobody was there whom it could ask in turn"}
    assert not of(steps.OpFailed, (s.step for s in sim.seen)), "an empty reply is not a contribution"
    for leaf in leaves:
        sim.add(leaf)
    sim.run(for_ns=S)
    again = [[9.0, 9.0], float(RELAYS * LEAVES), 0]
    assert rounds(sim, server, 9, 9) == [again], "at once, not after a back-off"


def test_a_leaf_that_answers_with_nothing_is_failing_until_an_answer_counts(world):
    sim, server, _, leaves = world(1 * S)
    lazy = leaves[0]
    lazy.component("codec").mood = "is empty"
    assert rounds(sim, server, 1, 5)[-1] == [[5.0, 5.0], float(RELAYS * (LEAVES - 1)), 0]
    failing = [(s.peer, s.failing) for s in of(steps.PeerFailing, (s.step for s in sim.seen))]
    assert failing == [(lazy.peer_id, True)] * RELAYS, "as said by each relay"
    assert reasons(sim, "inner") == {"refused"}
    lazy.component("codec").mood = "well"
    sim.run(for_ns=60 * S)
    rounds(sim, server, 6, 8)
    assert rounds(sim, server, 9, 9) == [[[9.0, 9.0], float(RELAYS * LEAVES), 0]]


def test_relays_that_only_pass_answers_on_have_nothing_either(forwarding):
    sim, server, _, leaves = forwarding
    for leaf in leaves:
        leaf.component("codec").mood = "fails"
    for _ in range(8):
        before = len(sim.events("closed"))
        server.invoke("Server", {"x": np.ones(2, np.float32)})
        sim.run(until=lambda before=before: len(sim.events("closed")) > before)
    assert reasons(sim, "outer") == {"nothing"} and "failed" in reasons(sim, "inner")
    told = of(steps.RequestFailed, (s.step for s in sim.seen))
    assert {s.code for s in told if s.port == "outer"} == {"NOTHING"}
    failing = {s.peer for s in of(steps.PeerFailing, (s.step for s in sim.seen))}
    assert failing == {leaf.peer_id for leaf in leaves}, "those that fail, and nobody else"
    heard = of(steps.NobodyHeard, (s.step for s in sim.seen))
    assert heard[0].why == "nobody answered what it asked in turn" and "RequestClosed" in heard[0].remedy


def test_rounds_that_overlap_do_not_mix(world):
    sim, server, _, leaves = world(2 * S)
    leaves[0].deliver_inbound = lambda *_arguments, **_more: None
    for number in range(1, 5):
        server.invoke("Server", {"x": np.full(2, number, np.float32)})
        sim.run(for_ns=100 * MS)
    sim.run(until=lambda: len(sim.events("round")) == 4)
    told = sorted(
        (e.value.values[0].tolist(), e.value.values[1].tolist(), float(e.value.values[2]))
        for e in sim.events("round")
    )
    assert told == [([n, n], [n, n], float((LEAVES - 1) * RELAYS)) for n in (1.0, 2.0, 3.0, 4.0)]
