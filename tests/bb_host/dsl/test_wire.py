"""Sends, requests, hand-made wire ops: what they record, and what they refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.ir import types
from bb_edge.ir.errors import AuthoringError
from bb_edge.ir.types import ValueType
from bb_host import Graph, S
from bb_host.errors import (
    AnswerModeError,
    ArityError,
    AttributeValueError,
    MissingDeadline,
    PortNameError,
    UnpairedWireRequest,
    ValueTypeError,
    WireInBootstrap,
    WireInSubgraph,
)
from bb_host.ir.program import Program

Record = Callable[..., Program]
Text = Callable[..., str]


def peers_of(g: Graph) -> Any:
    return g.input("peers", "PeerIdVec")


def test_a_send_returns_the_receivers_view(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        p = g.net_out("hello", peers_of(g), g.input("x", "F32", (3,)))
        assert p.type == ValueType(types.TENSOR_F32, (3,))
        g.output("seen", p)
        g.output("from", p.sender)

    assert notation(record(body)) == (
        "function program.Main(peers: PeerIdVec, x: F32[3]) -> (seen, from) {home=self}\n"
        "  seen: F32[3], from: PeerIdVec = wire.Send(x, peers) "
        "{wire.wire_id=1, wire_correlation=none, port=hello}\n"
    )


def test_a_list_travels_in_one_envelope(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        p = g.net_out(
            "both", peers_of(g), [g.input("x", "F32"), g.input("t", "Trigger")], durable=True, deadline_ns=5
        )
        x, t = p
        assert (x.node, t.node) == (types.TENSOR_F32, types.TRIGGER)
        g.net_out("back", p.sender, x)

    assert notation(record(body)).splitlines()[1:] == [
        (
            "  both_1: F32, both_2: Trigger, both_sender_1: PeerIdVec = "
            "wire.Send<deadline_ns=5>(x, t, peers) "
            "{wire.wire_id=1, wire_correlation=none, port=both, durable=1}"
        ),
        (
            "  back_1: F32, back_sender_1: PeerIdVec = wire.Send(both_1, both_sender_1) "
            "{wire.wire_id=2, wire_correlation=none, port=back}"
        ),
    ]


def test_after_gates_the_first_payload(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        g.net_out("late", peers_of(g), g.input("x", "F32"), after=[g.input("a", "Trigger"), g.input("b")])

    assert notation(record(body)).splitlines()[1:] == [
        "  x_1: F32 = syscall.GateManyDispatch(x, a, b)",
        (
            "  late_1: F32, late_sender_1: PeerIdVec = wire.Send(x_1, peers) "
            "{wire.wire_id=1, wire_correlation=none, port=late}"
        ),
    ]


def test_a_request_gathered_as_a_batch(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        r = g.request("ask", peers_of(g), g.input("x", "F32"), deadline_ns=S, enough=2, durable=True)
        r.reply([g.onnx.relu(r.value), g.onnx.constant(1.0)])
        first, second = r.responses
        assert first.type == ValueType(types.TENSOR_F32)
        assert second.type == ValueType(types.TENSOR_F32, (None,))
        g.output("missing", r.missing)
        g.output("first", first)

    assert notation(record(body)).splitlines()[1:] == [
        (
            "  ask_req_1: WireReqId, ask_1: F32, ask_sender_1: PeerIdVec = "
            "wire.SendReqBatched<deadline_ns=1000000000>(x, peers, peers) {wire.wire_id=1, "
            "wire_correlation=request, port=ask, durable=1, wire.answer_mode=batch, enough=2}"
        ),
        "  relu_1: F32 = Relu(ask_1)",
        "  const_1: F32[] = Constant<value=F32[]{1.0}>()",
        (
            "  ask_answer_1: F32, ask_answer_2: F32[], ask_answer_sender_1: PeerIdVec = "
            "wire.SendResp(relu_1, const_1, ask_sender_1, ask_req_1) {wire.wire_id=2, "
            "wire_correlation=response, port=ask, durable=1, wire.request=1}"
        ),
        (
            "  ask_closed_1: Trigger, missing: PeerIdVec, first: F32, ask_responses_1: F32[?] = "
            "wire.RecvRespBatched(ask_req_1) {wire.wire_id=2, "
            "wire_correlation=response, port=ask, durable=1, "
            "wire.request=1}"
        ),
    ]


@pytest.mark.parametrize(
    ("read", "mode", "outputs"), [("answer", "each", 2), ("responses", "batch", 3), ("closed", "none", 2)]
)
def test_the_answer_mode_is_what_is_read(record: Record, read: str, mode: str, outputs: int) -> None:
    def body(g: Graph) -> None:
        r = g.request("ask", peers_of(g), g.input("x", "F32"), deadline_ns=S)
        r.reply(r.value)
        g.output("read", getattr(r, read))

    ask, _, tail = record(body).functions[0].ops[:3]
    assert ask.facts.answer_mode == mode
    assert len(tail.outputs) == outputs


def test_closed_may_be_read_before_the_reply(record: Record) -> None:
    def body(g: Graph) -> None:
        r = g.request("ask", peers_of(g), g.input("x", "F32"), deadline_ns=S)
        g.app_notify("closed", r.closed)
        r.reply(r.value)

    ops = record(body).functions[0].ops
    assert [op.op_type for op in ops] == ["SendReqBatched", "RecvRespBatched", "AppNotify", "SendResp"]
    assert ops[1].facts.wire_id == ops[3].facts.wire_id == "2"


def test_values_of_a_request_are_a_tuple_when_a_list_was_asked(record: Record) -> None:
    def body(g: Graph) -> None:
        r = g.request("ask", peers_of(g), [g.input("x", "F32"), g.input("y", "I64")], deadline_ns=S)
        x, y = r.value
        assert r.values == (x, y)
        assert r.value.sender is r.sender
        r.reply(y)
        assert r.answer.node is types.TENSOR_I64
        assert r.answer.sender.node is types.PEER_ID_VEC

    record(body)


def test_two_requests_have_wire_ids_of_their_own(record: Record) -> None:
    def body(g: Graph) -> None:
        peers, x = peers_of(g), g.input("x", "F32")
        for name in ("a", "b"):
            r = g.request(name, peers, x, deadline_ns=S)
            r.reply(r.value)

    ids = [op.facts.wire_id for op in record(body).functions[0].ops]
    assert ids == ["1", "2", "2", "3", "4", "4"]


def test_ports_can_be_looked_up(record: Record) -> None:
    def body(g: Graph) -> None:
        p = g.net_out("hello", peers_of(g), g.input("x", "F32"))
        assert g.lookup_output("hello") is p
        g.output("y", p)
        assert g.lookup_output("y") is p

    record(body)


def test_a_send_to_another_program_may_be_durable_and_expire(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        x, sender = g.wire.recv("in", "F32")
        g.wire.send("out", sender, x, durable=True, deadline_ns=S)

    last = notation(record(body)).splitlines()[-1]
    assert "wire.Send<deadline_ns=1000000000>" in last
    assert "durable" in last


def test_open_ports_are_recorded_by_hand(record: Record, notation: Text) -> None:
    def body(g: Graph) -> None:
        x, sender, trigger = g.wire.recv("enc", "F32", trigger=True)
        assert trigger.node is types.TRIGGER
        g.wire.send("pong", sender, x)
        req = g.wire.send_req_batched("grads", sender, x, deadline_ns=S)
        _, _, batch = g.wire.recv_resp_batched(req, "F32")
        g.output("batch", batch)
        query, who, req_id = g.wire.recv_req("serve", "I64")
        g.wire.send_resp("serve", who, req_id, query)

    assert notation(record(body)).splitlines()[1:] == [
        (
            "  enc_1: F32, enc_sender_1: PeerIdVec, enc_trigger_1: Trigger = "
            "wire.Recv<payload_type=type(F32)>() "
            "{wire.wire_id=1, wire_correlation=none, port=enc, wire.trigger_output=1}"
        ),
        (
            "  pong_1: F32, pong_sender_1: PeerIdVec = wire.Send(enc_1, enc_sender_1) "
            "{wire.wire_id=2, wire_correlation=none, port=pong}"
        ),
        (
            "  grads_req_1: WireReqId = wire.SendReqBatched<deadline_ns=1000000000>(enc_1, enc_sender_1, "
            "enc_sender_1) {wire.wire_id=3, wire_correlation=request, port=grads, wire.answer_mode=batch}"
        ),
        (
            "  grads_closed_1: Trigger, grads_missing_1: PeerIdVec, batch: F32 = "
            "wire.RecvRespBatched(grads_req_1) {wire.wire_id=4, wire_correlation=response, port=grads, "
            "wire.request=3}"
        ),
        (
            "  serve_1: I64, serve_sender_1: PeerIdVec, serve_req_1: WireReqId = "
            "wire.RecvReq<payload_type=type(I64)>() {wire.wire_id=5, wire_correlation=request, port=serve}"
        ),
        (
            "  wire.SendResp(serve_1, serve_sender_1, serve_req_1) "
            "{wire.wire_id=6, wire_correlation=response, port=serve, wire.request=5}"
        ),
    ]


def two_replies(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)
    r.reply(r.value)
    r.reply(r.value)  # here


def no_reply(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)  # here
    g.app_emit("asked", r.value)


def no_deadline(g: Graph) -> None:
    g.request("ask", peers_of(g), 1.0)  # here


def both_modes(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)
    r.reply(r.value)
    g.app_emit("one", r.answer)
    g.app_emit("all", r.responses)  # here


def both_modes_reversed(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)
    r.reply(r.value)
    g.app_emit("all", r.responses)
    g.app_emit("one", r.answer)  # here


def answer_before_reply(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)
    g.app_emit("one", r.answer)  # here


def stack_of_triggers(g: Graph) -> None:
    r = g.request("ask", peers_of(g), 1.0, deadline_ns=S)
    r.reply(g.on_trigger(g.input("t", "Trigger")))
    g.app_emit("all", r.responses)  # here


def port_taken(g: Graph) -> None:
    peers = peers_of(g)
    g.net_out("p", peers, 1.0)
    g.request("p", peers, 1.0, deadline_ns=S)  # here


def bad_port(g: Graph) -> None:
    g.net_out("a/b", peers_of(g), 1.0)  # here


def peers_are_a_tensor(g: Graph) -> None:
    g.net_out("p", g.input("x", "F32"), 1.0)  # here


def empty_payload(g: Graph) -> None:
    g.net_out("p", peers_of(g), [])  # here


def zero_deadline(g: Graph) -> None:
    g.net_out("p", peers_of(g), 1.0, deadline_ns=0)  # here


def enough_of_none(g: Graph) -> None:
    g.request("p", peers_of(g), 1.0, deadline_ns=S, enough=0)  # here


def in_a_branch(g: Graph) -> None:
    peers = peers_of(g)
    g.onnx.if_(
        g.input("c", "BOOL"),
        lambda h: h.net_out("p", peers, 1.0),  # here
        lambda h: h.onnx.constant(1.0),
    )


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (UnpairedWireRequest, two_replies, "has a second reply"),
        (UnpairedWireRequest, no_reply, "has no reply"),
        (MissingDeadline, no_deadline, "has no deadline"),
        (AnswerModeError, both_modes, "both .answer and .responses"),
        (AnswerModeError, both_modes_reversed, "both .answer and .responses"),
        (AnswerModeError, answer_before_reply, ".answer is read before .reply"),
        (ValueTypeError, stack_of_triggers, "cannot be stacked"),
        (PortNameError, port_taken, "network port 'p' is there already"),
        (PortNameError, bad_port, "'a/b' is not a valid name for the network port"),
        (ValueTypeError, peers_are_a_tensor, "peers are a PeerIdVec"),
        (ArityError, empty_payload, "an empty list"),
        (AttributeValueError, zero_deadline, "above 0, not 0"),
        (AttributeValueError, enough_of_none, "enough is a number of peers"),
        (WireInSubgraph, in_a_branch, "stands in a branch"),
    ],
)
def test_refusals_at_the_authors_line(
    module: Callable[..., Any], kind: type[AuthoringError], body: Callable[[Graph], None], what: str
) -> None:
    with pytest.raises(kind) as caught:
        module(body).build()
    source, start = inspect.getsourcelines(body)
    line = start + next(i for i, text in enumerate(source) if "# here" in text)
    assert what in caught.value.what
    assert (caught.value.file, caught.value.line) == (__file__, line)
    assert caught.value.where == f"test_wire.py:{line}"


def test_no_wire_in_a_bootstrap(module: Callable[..., Any]) -> None:
    def bootstrap(g: Graph) -> None:
        g.net_out("p", peers_of(g), 1.0)

    with pytest.raises(WireInBootstrap, match="net_out 'p' stands in a bootstrap"):
        module(lambda g: None, bootstrap=bootstrap).build()


def test_lists_of_peers_pass_through_what_picks_and_joins(record: Record) -> None:
    def body(g: Graph) -> None:
        peers = peers_of(g)
        some = g.onnx.concat([peers[0], peers[2:4], g.onnx.gather(peers, [1])], axis=0)
        for value in (peers[0], some, g.onnx.identity(peers), g.onnx.unsqueeze(peers, [0])):
            assert value.node is types.PEER_ID_VEC
        g.net_out("hello", some, g.constant(1.0))

    program = record(body)
    used = [op.op_type for op in program.functions[0].ops if op.op_type != "Constant"]
    picked = ["Slice", "Squeeze", "Slice", "Gather", "Concat", "Slice", "Squeeze"]
    assert used == [*picked, "Identity", "Unsqueeze", "Send"]


def test_peers_are_no_numbers(record: Record) -> None:
    with pytest.raises(ValueTypeError, match="expects a Tensor, got"):
        record(lambda g: peers_of(g) + 1)
    with pytest.raises(ValueTypeError, match="expects a Tensor, got"):
        record(lambda g: g.onnx.gather(g.constant([1.0]), peers_of(g)))
