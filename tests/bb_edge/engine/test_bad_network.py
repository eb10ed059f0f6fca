"""A network that loses, repeats and reorders, and peers that die: nothing twice, nothing hangs, nothing grows."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest
from times import MS, S
from wire_ops import ASK, REPLY

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.ledger import IngressFull
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation

CLIENTS = 6
ROUNDS = 12


FEDERATION = f"""
program Demo {{module=Demo, binding.Server.p="peer_selector|bb.PresenceSelector|1", binding.Server.agg="aggregator|bb.FedAvg|2"}}
function program.Server() -> () {{entry=1, partition=Server}}
  slot p: peer_selector peer_class=Client
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times={ROUNDS}, pause_ns=100000000>()
  all: PeerIdVec = role.peer_selector.CurrentView(round) {{slot=p, control_inputs=1}}
  up: PeerIdVec = gate.PeerHealthGateTx(all)
  to: PeerIdVec = gate.BackoffGateTx(up)
  one: F32[1] = Constant<value=F32[1]{{1}}>()
  x: F32[1] = syscall.GateDispatch(one, round)
  r: WireReqId = wire.SendReqBatched(x, to, all) {{{ASK}, wire.answer_mode=each, deadline_ns=8000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  c: CommandId = role.aggregator.Contribute(y, "", who, round) {{slot=agg}}
  syscall.AppEmit<name="answer">(who)
  t: Tensor, n: F32[] = role.aggregator.Aggregate(closed) {{slot=agg, control_inputs=1}}
  syscall.AppEmit<name="n">(n)
  syscall.AppEmit<name="missing">(missing)
function program.Client() -> () {{entry=1, partition=Client}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  syscall.AppNotify<name="worked">(x)
  t: Trigger = syscall.OnTrigger(x)
  late: Trigger = syscall.Sleep<duration_ns=50000000>(t)
  y: F32[1] = syscall.GateDispatch(x, late)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""


def roughen(sim: Simulation, node: Any, chance: random.Random, loss: float, repeat: float) -> None:
    """What is sent to the node may be lost, come twice, or come late."""
    deliver = node.deliver_inbound

    def door(data: bytes, peer: PeerId, observed: bytes | None = None) -> None:
        def arrive() -> None:
            with contextlib.suppress(IngressFull):
                deliver(data, peer, observed)

        if chance.random() < loss:
            return
        for _ in range(2 if chance.random() < repeat else 1):
            sim.at(sim.now_ns + chance.randrange(200 * MS), arrive)

    node.deliver_inbound = door


@pytest.mark.parametrize("seed", range(6))
def test_rounds_come_to_their_end_and_count_everybody_once(compile_text, seed):
    data = compile_text(FEDERATION)
    chance = random.Random(seed)
    sim = Simulation(seed=seed, jitter_ns=20 * MS)
    config = NodeConfig(max_executions=4, max_children=2, max_requests=4)
    server = install(PeerId.from_name("hub"), (), data, ["Server"], config, seed=seed)
    clients = [
        install(PeerId.from_name(f"c{n}"), (), data, ["Client"], config, seed=100 * seed + n)
        for n in range(CLIENTS)
    ]
    for node in (*clients, server):
        roughen(sim, node, chance, loss=0.25, repeat=0.3)
        sim.add(node)
    dies, comes_back = clients[0], clients[1]
    sim.at(3 * S, lambda: sim.remove(dies.peer_id))
    sim.at(4 * S, lambda: sim.remove(comes_back.peer_id))
    sim.at(9 * S, lambda: sim.add(comes_back))
    sim.run(until=lambda: server.open_rounds == 0)
    sim.run(for_ns=30 * S)

    totals = [float(e.value) for e in sim.events("n")]
    missing = [len(e.value) for e in sim.events("missing")]
    answers = sim.events("answer")
    assert len(totals) == len(missing) >= ROUNDS
    assert sum(totals) == len(answers), "each accepted answer is one child execution and one contribution"
    assert len({(e.execution) for e in answers}) == len(answers)
    assert len(sim.events("worked")) >= len(answers)
    asked = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed)]
    assert sum(c.answered for c in asked) == len(answers)
    # A request reaches its peer once, however often it is repeated on the way.
    assert len(sim.events("worked")) <= sum(c.asked for c in asked)
    assert sum(totals) >= 2 * ROUNDS, "the network is bad, not cut"
    for node in (server, *clients[1:]):  # the dead one is no longer polled
        counters = node.counters
        assert (
            counters["executions.active"] == counters["pending_async.count"] == counters["requests.open"] == 0
        )
        assert counters["ingress.bytes"] == 0
        assert counters.get("executions.starved", 0) == 0
    assert not [s.step for s in sim.seen if isinstance(s.step, steps.OpFailed | steps.WireReceiveFailed)]
    assert server.counters["wire.resent"] > 0
    assert sum(n.counters.get("ingress.duplicates", 0) for n in (server, *clients)) > 0


def test_same_seed_same_network(compile_text):
    data = compile_text(FEDERATION)
    found = []
    for _ in range(2):
        chance = random.Random(1)
        sim = Simulation(seed=1, jitter_ns=20 * MS)
        nodes = [install(PeerId.from_name("hub"), (), data, ["Server"], seed=1)]
        nodes += [install(PeerId.from_name(f"c{n}"), (), data, ["Client"], seed=n) for n in range(3)]
        for node in nodes:
            roughen(sim, node, chance, loss=0.2, repeat=0.2)
            sim.add(node)
        sim.run(for_ns=20 * S)
        found.append((sim.trace_hash(), [np.asarray(e.value).tolist() for e in sim.events("n")]))
    assert found[0] == found[1]


QUIET = (
    FEDERATION.replace(f"<times={ROUNDS}, pause_ns=100000000>", "<pause_ns=100000000>")
    .replace("deadline_ns=8000000000", "deadline_ns=1000000000")
)  # fmt: skip


@pytest.mark.parametrize("deaf", [1, 3])
def test_peers_that_stop_answering_are_tried_again_though_they_never_speak_first(compile_text, deaf):
    """One of three, and all three: their connections stand, so no presence tells that they hear again."""
    data = compile_text(QUIET)
    sim = Simulation(seed=deaf)
    server = install(PeerId.from_name("hub"), (), data, ["Server"], seed=1)
    clients = [install(PeerId.from_name(f"c{n}"), (), data, ["Client"], seed=n) for n in range(3)]
    for node in (server, *clients):
        sim.add(node)
    doors = [node.deliver_inbound for node in clients]
    sim.run(for_ns=2 * S)
    for node in clients[:deaf]:
        node.deliver_inbound = lambda *_: None  # type: ignore[method-assign]
    sim.run(for_ns=40 * S)
    assert server.counters["peers.down"] == deaf
    before = len(sim.events("n"))
    sim.run(for_ns=20 * S)
    if deaf < 3:  # nobody waits for who is tried: rounds go on at the pace of the others
        assert len(sim.events("n")) - before > 60
        assert {len(e.value) for e in sim.events("missing")[before:]} <= {0, 1}
    for node, door in zip(clients, doors, strict=True):
        node.deliver_inbound = door  # type: ignore[method-assign]
    sim.run(for_ns=65 * S)  # the longest back-off and a round
    sim.seen.clear()
    sim.run(for_ns=5 * S)
    assert {who for e in sim.events("answer") for who in e.value} == {node.peer_id for node in clients}
    assert server.peers_up("Client") == tuple(sorted(node.peer_id for node in clients))
