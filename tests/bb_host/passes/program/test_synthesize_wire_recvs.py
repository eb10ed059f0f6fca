"""The halves that each wire op becomes."""

# ruff: noqa: E501 - programs have one op per line
from __future__ import annotations

from collections.abc import Callable

import pytest
from program_text import parse

from bb_edge.ir import keys
from bb_edge.ir.ids import site_id
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Op, Program
from bb_host.ir.spelling import written
from tests.aids.passes import pass_named

HEAD = """program P {module=P}

function program.P(x: F32[4], n: I64[]) -> () {home=Server}
  p: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=clients, home_class=Server, peer_class="p=Client"}
"""
ASK = (
    "r: WireReqId, v: F32[4], s: PeerIdVec = wire.SendReqBatched<deadline_ns=5>(x, p, p) {wire.wire_id=1, port=ask, "
    'wire.answer_mode=%s, home_class=Server, peer_class="s=Server", durable=1}'
)
REPLY = (
    "a: F32[4], b: I64[], t: PeerIdVec = wire.SendResp(y, n, s, r) {wire.wire_id=2, wire.request=1, "
    'home_class=Client, peer_class="t=Client"}'
)
NEG = "y: F32[4] = Neg(v) {home_class=Client}"


def run(*lines: str, inputs: str = "") -> Program:
    given = parse(HEAD + "\n".join("  " + line for line in lines))
    done = pass_named("synthesize_wire_recvs").run(given, Options(module="Mod"), Stats())
    assert pass_named("synthesize_wire_recvs").run(done, Options(module="Mod"), Stats()) is done
    return done


def wire(done: Program) -> dict[str, Op]:
    return {op.op_type: op for op in done.functions[0].ops if op.domain == keys.WIRE_DOMAIN}


def sites(port: str, direction: str, count: int) -> str:
    return ",".join(f"{site_id('Mod', port, direction, i):016x}" for i in range(count))


def test_a_send_whose_value_is_read_gets_its_recv() -> None:
    done = run(
        "v: F32[4], w: I64[], s: PeerIdVec = wire.Send(x, n, p) {wire.wire_id=1, port=hello, home_class=Server, "
        'peer_class="s=Server", source=a.py:3}',
        "y: F32[4] = Relu(v) {home_class=Client}",
    )
    found = wire(done)
    send, recv = found["Send"], found["Recv"]
    assert (send.inputs, send.outputs) == (("x", "n", "p"), ("__send_sentinel_1",))
    assert (recv.inputs, recv.outputs) == ((), ("v", "w", "s"))
    for half in (send, recv):
        assert written(half.facts)[keys.SITE_IDS_KEY] == sites("hello", "ask", 2)
        assert half.facts.correlation == "none"
        assert half.facts.wire_id == "1"
        assert half.facts.source == "a.py:3"
    assert (written(send.facts)[keys.HOME_CLASS_KEY], written(recv.facts)[keys.HOME_CLASS_KEY]) == (
        "Server",
        "Client",
    )
    assert recv.facts.made_from == "1"
    assert written(recv.facts)[keys.PEER_CLASS_KEY] == "s=Server"
    assert keys.PEER_CLASS_KEY not in written(send.facts)
    assert done.functions[0].types["__send_sentinel_1"].node.id == "Trigger"


def test_a_send_that_nobody_reads_from_is_an_open_port() -> None:
    found = wire(
        run("v: F32[4], s: PeerIdVec = wire.Send(x, p) {wire.wire_id=1, port=hello, home_class=Server}")
    )
    assert list(found) == ["Send"]
    assert written(found["Send"].facts)[keys.SITE_IDS_KEY] == sites("hello", "ask", 1)


def test_answers_one_by_one() -> None:
    done = run(
        ASK % "each",
        NEG,
        REPLY,
        "c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1, home_class=Server}",
        "z: F32[4] = Abs(a) {home_class=Server}",
    )
    found = wire(done)
    assert found["SendReqBatched"].outputs == ("r",)
    assert found["RecvReq"].outputs == ("v", "s", "r__asked")
    assert written(found["RecvReq"].facts)[keys.HOME_CLASS_KEY] == "Client"
    assert found["SendResp"].inputs == ("y", "n", "s", "r__asked")
    assert found["SendResp"].outputs == ("__send_sentinel_2",)
    assert found["RecvResp"].outputs == ("a", "b", "t")
    assert written(found["RecvResp"].facts)[keys.HOME_CLASS_KEY] == "Server"
    assert found["RecvResp"].facts.request == "1"
    assert keys.WIRE_REQUEST_KEY not in written(found["RecvReq"].facts)
    assert written(found["RecvResp"].facts)[keys.SITE_IDS_KEY] == sites("ask", "reply", 2)
    assert written(found["SendResp"].facts)[keys.SITE_IDS_KEY] == sites("ask", "reply", 2)
    assert keys.SITE_IDS_KEY not in written(found["RecvRespBatched"].facts)
    assert [found[k].facts.correlation for k in ("RecvReq", "SendResp", "RecvResp")] == [
        "request",
        "response",
        "response",
    ]
    assert all(written(op.facts)[keys.DURABLE_KEY] == "1" for op in found.values())


def test_answers_as_a_batch() -> None:
    found = wire(
        run(
            ASK % "batch",
            "c: Trigger, m: PeerIdVec, ra: F32[?,4], rb: I64[?] = wire.RecvRespBatched(r) "
            "{wire.wire_id=2, wire.request=1, home_class=Server}",
            NEG,
            REPLY,
            "z: F32[?,4] = Abs(ra) {home_class=Server}",
        )
    )
    assert "RecvResp" not in found
    assert written(found["RecvRespBatched"].facts)[keys.SITE_IDS_KEY] == sites("ask", "reply", 2)


SUM = "m: F32[4] = role.aggregator.Aggregate(%s) {slot=sum, home_class=%s}"
GATHER = (
    "c: Trigger, l: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1, home_class=Server}"
)


@pytest.mark.parametrize(
    ("lines", "sole"),
    [
        ([SUM % ("a", "Server")], True),
        ([], False),
        ([SUM % ("v", "Client")], False),
        ([SUM % ("a", "Server"), 'q: PeerIdVec = role.peer_selector.Sample<n=1>() {slot=top, home_class=Top, peer_class="q=Server"}', 'w: F32[4] = wire.Send(m, q) {home_class=Top}'], False),
    ],
    ids=["a server", "sensors that ask a hub", "who asks does not aggregate", "somebody chooses among it"],
)  # fmt: skip
def test_one_peer_should_ask_where_its_class_aggregates_and_nobody_sends_to_it(
    lines: list[str], sole: bool
) -> None:
    found = wire(run(ASK % "each", NEG, REPLY, GATHER, *lines))
    assert (written(found["RecvReq"].facts).get(keys.SOLE_SENDER_KEY) == "1") is sole
    assert not any(
        keys.SOLE_SENDER_KEY in written(op.facts) for name, op in found.items() if name != "RecvReq"
    )


def test_a_request_whose_answers_nobody_reads_gathers_them_all_the_same() -> None:
    done = run(ASK % "none", NEG, REPLY)
    gather = wire(done)["RecvRespBatched"]
    assert gather.outputs == ("r__closed", "r__missing", "r__closed__response_0", "r__closed__response_1")
    assert written(gather.facts)[keys.SITE_IDS_KEY] == sites("ask", "reply", 2)
    assert gather.facts.wire_id == "2"
    assert str(done.functions[0].types["r__closed__response_0"]) == "Tensor<F32>[?,4]"


def test_wire_ids_and_ports_are_minted_where_they_are_missing() -> None:
    found = wire(run("v: F32[4], s: PeerIdVec = wire.Send(x, p) {home_class=Server}", "y: F32[4] = Neg(v)"))
    assert found["Send"].facts.wire_id == found["Recv"].facts.wire_id == "1"
    assert found["Send"].facts.port == "wire1"


def test_hand_made_halves_are_stamped_and_stay_alone() -> None:
    found = wire(
        run(
            "v: F32[4], s: PeerIdVec, q: WireReqId, g: Trigger = wire.RecvReq() "
            "{wire.wire_id=7, port=in, wire.trigger_output=1, home_class=Server}",
            "wire.SendResp(v, s, q) {wire.wire_id=8, port=in, wire.request=7, home_class=Server}",
        )
    )
    assert set(found) == {"RecvReq", "SendResp"}
    assert written(found["RecvReq"].facts)[keys.SITE_IDS_KEY] == sites("in", "ask", 1)
    assert written(found["SendResp"].facts)[keys.SITE_IDS_KEY] == sites("in", "reply", 1)


@pytest.mark.parametrize(
    ("error", "lines", "what"),
    [
        (errors.UnpairedWireRequest, (ASK % "each",), "nobody replies"),
        (
            errors.UnpairedWireRequest,
            (ASK % "each", NEG, REPLY, REPLY.replace("wire_id=2", "wire_id=3")),
            "has a reply",
        ),
        (errors.UnpairedWireRequest, (REPLY.replace("y, n, s, r", "x, n, p, q"),), "answers no request"),
        (
            errors.UnpairedWireRequest,
            ("c: Trigger, m: PeerIdVec = wire.RecvRespBatched(q) {wire.wire_id=2, wire.request=1}",),
            "gathers the answers to no request",
        ),
        (
            errors.DuplicatePort,
            (
                "v: F32[4], s: PeerIdVec = wire.Send(x, p) {wire.wire_id=1, port=o, source=a.py:1}",
                "w: F32[4], t: PeerIdVec = wire.Send(x, p) {wire.wire_id=2, port=o, source=a.py:2}",
            ),
            "(a.py:1)",
        ),
        (errors.MalformedWireOp, ("s: PeerIdVec = wire.Recv() {wire.wire_id=1}",), "no output for a payload"),
        (
            errors.MalformedWireOp,
            (
                ASK % "batch",
                NEG,
                REPLY,
                "c: Trigger, m: PeerIdVec, ra: F32 = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}",
            ),
            "1 stacks for 2 values",
        ),
        (
            errors.MalformedWireOp,
            (
                ASK % "each",
                NEG,
                REPLY,
                "c: Trigger, m: PeerIdVec, ra: F32, rb: I64 = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}",
                "z = Neg(ra)",
            ),
            "one by one and as a batch",
        ),
    ],
)
def test_refusals(error: type[errors.PassError], lines: tuple[str, ...], what: str) -> None:
    given = parse(HEAD + "\n".join("  " + line for line in lines))
    with pytest.raises(error) as caught:
        pass_named("synthesize_wire_recvs").run(given, Options(module="Mod"), Stats())
    assert what in caught.value.what


def test_gossip_within_one_class_has_both_halves_there(run_until: Callable[..., Program]) -> None:
    done = run_until(
        "partition_by_wire_ops",
        """
        program Gossip {module=Gossip}

        function program.Gossip(x: F32[4]) -> ()
          slot peers: peer_selector
          p: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=peers, slot_id=1, required_trait=peer_selector}
          v: F32[4], s: PeerIdVec = wire.Send(x, p) {wire.wire_id=1, port=o}
          syscall.AppEmit<name="got">(v)
        """,
    )
    (main,) = done.functions
    assert main.name == "Gossip"
    assert [op.op_type for op in main.ops] == ["Sample", "Send", "Recv", "AppEmit"]
