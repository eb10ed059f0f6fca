"""Hops of requests, and the deadlines that cannot be met by them."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host import Compiler, Module
from bb_host.errors import InfeasibleDeadline
from bb_host.passes.analysis.hops import request_hops

HOP = 1_000_000


class Relay(Module):
    """The client asks `depth - 1` more before it replies, each within the one before."""

    home = "Server"

    def __init__(self, depth: int, deadline_ns: int, batch: bool = False) -> None:
        super().__init__()
        self.depth = depth
        self.deadline_ns = deadline_ns
        self.batch = batch

    def body(self, g):
        x = g.input("x", np.float32, [2])
        g.output("y", self.ask(g, 0, g.input("Client", "PeerIdVec"), x))

    def ask(self, g, level, peers, x):
        r = g.request(f"ask{level}", peers, x, deadline_ns=self.deadline_ns - 2 * level * HOP)
        value = r.value + 1.0
        if level + 1 < self.depth:
            value = self.ask(g, level + 1, r.sender, value)
        r.reply(value)
        if self.batch:
            return g.onnx.reduce_sum(r.responses, [0], keepdims=0)
        return r.answer


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_takes_two_hops_and_those_within(depth, batch):
    program = Relay(depth, 6 * HOP, batch).record()
    asks = [op for op in program.functions[0].ops if op.op_type == "SendReqBatched"]
    hops = request_hops(program.functions[0].ops)
    assert [hops[op.facts.wire_id] for op in asks] == [2 * (depth - n) for n in range(depth)]


def test_sends_on_the_way_count_and_others_do_not():
    class Detour(Module):
        home = "Server"

        def body(self, g):
            r = g.request("ask", g.input("Client", "PeerIdVec"), 1.0, deadline_ns=HOP)
            back = g.net_out("to_server", r.sender, r.value)
            again = g.net_out("to_client", back.sender, back)
            g.net_out("elsewhere", g.input("Other", "PeerIdVec"), g.input("z", np.float32))
            r.reply(again)
            g.output("y", r.answer)

    hops = request_hops(Detour().record().functions[0].ops)
    assert list(hops.values()) == [4]


def test_a_deadline_below_the_sum_of_its_hops_is_refused():
    module = Relay(3, 6 * HOP)
    Compiler().with_per_hop_budget_ns(HOP).compile_program(module)
    with pytest.raises(InfeasibleDeadline, match="less than 6 hops") as caught:
        Compiler().with_per_hop_budget_ns(HOP + 1).compile_program(module)
    assert caught.value.file == "test_hops.py"
    Compiler().compile_program(module)
