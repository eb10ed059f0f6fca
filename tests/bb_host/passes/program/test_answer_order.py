"""Requests wait for what their answers will need of the asking execution."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.ir import keys
from bb_host import Compiler, Module, S
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
