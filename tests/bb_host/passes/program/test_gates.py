"""Which gates the gate passes insert, and where."""

# ruff: noqa: E501 - programs have one op per line
from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from bb_edge.ir import keys
from bb_host.compiler import Stats
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Program
from bb_host.ir.spelling import written
from bb_host.passes.analysis.rx_chain import RX_GATES
from bb_host.passes.analysis.tx_chain import TX_GATES
from bb_host.passes.pipeline import CANONICAL_PASS_NAMES

RX_PASSES = [name for name in CANONICAL_PASS_NAMES if name.endswith("_gate_rx")]
TX_PASSES = [name for name in CANONICAL_PASS_NAMES if name.endswith("_gate_tx")]
TEXT = """
    program P {module=P}

    function program.A(x: F32, p: PeerIdVec) -> () {partition=A, entry=1}
      h: Trigger = wire.Send(x, p) {wire.wire_id=1, dest_site_name.x=v, wire_correlation=none}
      r: WireReqId = wire.SendReqBatched(x, p, p) {wire.wire_id=2, wire_correlation=request}
      a: F32, t: PeerIdVec = wire.RecvResp() {wire.wire_id=3, wire.request=2, wire_correlation=response}
      c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=3, wire.request=2}
      f: Trigger = wire.Send<peer=0x00>(x, "") {wire.wire_id=9}

    function program.B() -> (v) {partition=B, entry=1}
      v: F32, s: PeerIdVec = wire.Recv() {wire.wire_id=1, wire_correlation=none, source=b.py:1}
      y: F32 = Relu(v)
      u: F32, o: PeerIdVec, q: WireReqId = wire.RecvReq() {wire.wire_id=2, wire_correlation=request}
      z: Trigger = wire.SendResp(u, o, q) {wire.wire_id=3, wire.request=2, dest_site_name.u=a, wire_correlation=response}

    function program.Library() -> ()
    """


@pytest.mark.parametrize(("name", "gate"), list(zip(RX_PASSES, RX_GATES, strict=True)))
def test_an_rx_gate_alone(name: str, gate: str, run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass(name, TEXT, stats)
    ops = done.functions[1].ops
    assert [op.op_type for op in ops] == ["Recv", gate, "Relu", "RecvReq", gate, "SendResp"]
    recv, guard, reader = ops[:3]
    assert guard.inputs == recv.outputs == ("v__received", "s__received")
    assert guard.outputs == ("v", "s")
    assert reader.inputs == ("v",)
    assert guard.facts == OpFacts(wire_id="1", source="b.py:1")
    assert ops[4].outputs == ("u", "o", "q")
    assert done.functions[1].types["v__received"] == done.functions[1].types["v"]
    assert done.functions[1].opsets[keys.GATE_DOMAIN] == 1
    assert [op.op_type for op in done.functions[0].ops].count(gate) == 1  # RecvResp, not RecvRespBatched
    assert stats.counters == {"gates_inserted": 3}


def test_senders_follow_the_names_of_what_arrives(run_pass: Callable[..., Program]) -> None:
    done = run_pass(RX_PASSES[0], TEXT)
    assert written(done.functions[0].ops[0].facts)[keys.DEST_SITE_NAME_PREFIX + "x"] == "v__received"
    assert written(done.functions[1].ops[-1].facts)[keys.DEST_SITE_NAME_PREFIX + "u"] == "a__received"


def test_the_rx_chain_in_order(run_pass: Callable[..., Program]) -> None:
    done: Program | str = TEXT
    for name in RX_PASSES:
        done = run_pass(name, done)
    assert isinstance(done, Program)
    chain = done.functions[1].ops[: len(RX_GATES) + 2]
    assert [op.op_type for op in chain] == ["Recv", *RX_GATES, "Relu"]
    for before, after in itertools.pairwise(chain[:-1]):
        assert before.outputs == after.inputs
    assert chain[-2].outputs == ("v", "s")
    assert written(done.functions[0].ops[0].facts)[keys.DEST_SITE_NAME_PREFIX + "x"] == "v__received"


@pytest.mark.parametrize(("name", "gate"), list(zip(TX_PASSES, TX_GATES, strict=True)))
def test_a_tx_gate_alone(name: str, gate: str, run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass(name, TEXT, stats)
    ops = done.functions[0].ops
    assert [op.op_type for op in ops[:4]] == [gate, "Send", gate, "SendReqBatched"]
    assert ops[0].inputs == ("p",)
    assert ops[1].inputs == ("x", *ops[0].outputs)
    assert ops[3].inputs == ("x", *ops[2].outputs, "p")
    assert ops[-1].inputs == ("x", "")  # a fixed peer
    assert gate not in [op.op_type for op in done.functions[1].ops]  # replies pass none
    assert stats.counters == {"gates_inserted": 2}


def test_the_tx_chain_in_order(run_pass: Callable[..., Program]) -> None:
    done: Program | str = TEXT
    for name in TX_PASSES:
        done = run_pass(name, done)
    assert isinstance(done, Program)
    gates = len(TX_GATES)
    ops = done.functions[0].ops[: 2 * gates + 2]
    assert [op.op_type for op in ops] == [*TX_GATES, "Send", *TX_GATES, "SendReqBatched"]
    for before, after in itertools.pairwise(ops[:gates]):
        assert before.outputs == after.inputs
    assert (ops[0].inputs, ops[0].outputs) == (("p",), ("p__up_1",))
    assert ops[gates].inputs == ("x", *ops[gates - 1].outputs)
    assert ops[-1].inputs == ("x", *ops[-2].outputs, "p")


@pytest.mark.parametrize("name", [*RX_PASSES, *TX_PASSES])
def test_without_wire_ops_nothing_happens(name: str, program: Callable[[str], Program]) -> None:
    from bb_host.compiler import Options
    from tests.aids.passes import pass_named

    given = program("program P {module=P}\n\nfunction program.P(x: F32) -> (y) {entry=1}\n  y: F32 = Relu(x)")
    assert pass_named(name).run(given, Options(), Stats()) is given


def test_names_that_are_taken_are_left_alone(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        RX_PASSES[0],
        """
        program P {module=P}

        function program.A() -> () {entry=1}
          v: F32, s: PeerIdVec = wire.Recv() {wire.wire_id=1}
          v__received: F32 = Relu(v)
        """,
    )
    assert done.functions[0].ops[0].outputs == ("v__received_", "s__received")
