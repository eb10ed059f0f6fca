"""Requests wait for what their answers will need of the asking execution."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.components import FedAvg
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from bb_host import AggregatorSlot, Compiler, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.errors import CrossExecutionJoin
from bb_host.ir.spelling import written


class TwoRequests(Module):
    """Both ask; the answers of the second need what the batch of the first gives, or each the other's."""

    home = "Server"

    def __init__(self, crossed: bool) -> None:
        super().__init__()
        self.crossed = crossed

    def body(self, g):
        x = g.input("x", np.float32, [2])
        peers = g.input("Client", "PeerIdVec")
        late = g.request("late", peers, x, deadline_ns=S)
        late.reply(late.value + 1.0)
        early = g.request("early", peers, x, deadline_ns=S)
        early.reply(early.value * 2.0)
        if self.crossed:
            g.app_emit("late", g.gate(late.answer, early.closed))
            g.app_emit("early", g.gate(early.answer, late.closed))
        else:
            total = g.onnx.reduce_sum(early.responses, [0], keepdims=0)
            g.app_emit("sum", late.answer + total + x)


def _server(crossed: bool):
    program = Compiler().compile_program(TwoRequests(crossed))
    return next(f for f in program.functions if written(f.facts).get(keys.PARTITION_KEY) == "Server")


def test_a_request_is_sent_behind_what_its_answers_read():
    server = _server(crossed=False)
    by_output = {name: op for op in server.ops for name in op.outputs}
    asks = {op.facts.port: op for op in server.ops if op.op_type == "SendReqBatched"}
    check = by_output[asks["late"].inputs[0]]
    gate = by_output[check.inputs[0]] if check.op_type == "DeadlineCheck" else check
    assert gate.op_type == "GateDispatch"
    assert gate.inputs[0] == "x"
    assert [by_output[name].op_type for name in gate.inputs[1:]] == ["ReduceSum"]
    assert server.types[gate.outputs[0]] == server.types["x"]
    order = [op.op_type for op in server.ops]
    assert order.index("ReduceSum") < order.index("GateDispatch")


def test_what_was_there_before_the_request_is_no_reason_to_wait():
    server = _server(crossed=False)
    asks = {op.facts.port: op for op in server.ops if op.op_type == "SendReqBatched"}
    by_output = {name: op for op in server.ops for name in op.outputs}
    assert by_output[asks["early"].inputs[0]].op_type == "DeadlineCheck"
    assert by_output[asks["early"].inputs[0]].inputs == ("x",)


def test_requests_whose_answers_wait_for_each_other_are_refused():
    with pytest.raises(CrossExecutionJoin, match="which comes only when it is closed") as caught:
        _server(crossed=True)
    assert caught.value.file == "test_answer_order.py"


class AskedAgain(Module):
    """Each answer is sent to all once more, and an answer to that meets the values of both askers."""

    name, home = "AskedAgain", "Client"
    servers = PeerSelectorSlot("servers", peer_class="Server", at="Client")
    agg = AggregatorSlot("agg", FedAvg, at="Client")

    def body(self, g):
        x = g.input("x", "F32", (2,))
        servers = self.servers.current_view(g, after=x)
        r = g.request("up", servers, x, deadline_ns=10 * S)
        r.reply(r.value * 2.0)
        gained = r.answer - x
        q = g.request("down", servers, r.answer, deadline_ns=5 * S)
        q.reply(q.value * 3.0)
        self.agg.contribute(g, q.answer, peer=q.answer.sender)
        g.app_emit("both", g.bundle([x, gained]), after=q.answer)
        mean, weight = self.agg.aggregate(g, after=q.closed)
        g.app_emit("mean", g.bundle([gained, mean, weight]))


@pytest.fixture
def asked_again():
    """AskedAgain compiled, and its client among two servers: (program, simulation, client)."""
    compiler = Compiler().bind_peer_selector("servers", "bb.PresenceSelector")
    data = {a.target: a.data for a in build_edge(AskedAgain(), compiler).artifacts}
    sim = Simulation(seed=3)
    nodes = [
        install(PeerId.from_name(f"n{number}"), (), data[target], [target], seed=number)
        for number, target in enumerate(["Client", "Server", "Server"], 1)
    ]
    for node in nodes:
        sim.add(node)
    sim.run(for_ns=S)
    return compiler.compile_program(AskedAgain()), sim, nodes[0]


def test_an_answer_stays_behind_its_request_where_that_waits(asked_again):
    client = next(f for f in asked_again[0].functions if f.facts.partition == "Client")
    asked = {op.facts.wire_id: at for at, op in enumerate(client.ops) if op.op_type == "SendReqBatched"}
    answered = {op.facts.request: at for at, op in enumerate(client.ops) if op.op_type == "RecvResp"}
    assert len(asked) == 2 and asked.keys() == answered.keys()
    assert all(asked[number] < at for number, at in answered.items())


def test_an_answer_to_an_answer_meets_the_values_of_both_askers(asked_again):
    _, sim, client = asked_again
    client.invoke("Client", {"x": np.array([1, 5], np.float32)})
    sim.run(until=lambda: len(sim.events("both")) == 4)
    assert [[part.tolist() for part in e.value.values] for e in sim.events("both")] == [[[1, 5], [1, 5]]] * 4
    sim.run(until=lambda: len(sim.events("mean")) == 2)
    assert [[part.tolist() for part in e.value.values] for e in sim.events("mean")] == [
        [[1, 5], [6, 30], 2]
    ] * 2
