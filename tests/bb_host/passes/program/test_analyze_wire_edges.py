"""What wire ops carry: transport, hashes, sizes, groups and destinations."""

# ruff: noqa: E501 - programs have one op per line
from __future__ import annotations

from collections.abc import Callable

import pytest
from program_text import parse

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Op, Program
from bb_host.ir.spelling import written
from tests.aids.passes import pass_named

HEAD = """program P {module=P}

function program.A(%s, p: PeerIdVec, q: PeerIdVec) -> () {partition=A, entry=1}
  %s

function program.B() -> (%s) {partition=B, entry=1}
  %s
"""


def edge(
    payload: str, *readers: str, send: str = "", recv: str = "", outputs: str = "", stats: Stats | None = None
) -> tuple[Op, Op, Program]:
    """One Send of value `x` and its Recv; `readers` are ops of the receiving side."""
    send = send or "h: Trigger = wire.Send(x, p) {wire.wire_id=1, wire.site_ids=1}"
    recv = recv or f"v: {payload}, s: PeerIdVec = wire.Recv() {{wire.wire_id=1, wire.site_ids=1}}"
    given = parse(HEAD % (f"x: {payload}", send, outputs, "\n  ".join([recv, *readers])))
    done = pass_named("analyze_wire_edges").run(given, Options(), stats or Stats())
    assert pass_named("analyze_wire_edges").run(done, Options(), Stats()) is done
    return done.functions[0].ops[0], done.functions[1].ops[0], done


@pytest.mark.parametrize(
    ("payload", "readers", "transport"),
    [
        ("F32[2]", ("y: F32[2] = Relu(v)",), "data"),
        ("F32[2]", (), "data"),
        ("F32[2]", ("y: Trigger = syscall.OnTrigger(v)",), "trigger_only"),
        ("F32[2]", ("y: Trigger = syscall.OnTrigger(v)", "z: F32[2] = Relu(v)"), "data"),
        ("F32[2]", ("w: F32 = role.model.Params(v) {slot=m, control_inputs=1}",), "trigger_only"),
        (
            "F32[2]",
            ("k: F32[] = Constant<value=F32[]{1}>()", "y: F32[] = syscall.GateDispatch(k, v)"),
            "trigger_only",
        ),
        ("F32[2]", ("y: F32[2] = syscall.GateDispatch(v, v)",), "data"),
        ("F32[2]", ('syscall.AppEmit<name="n">(v)',), "data"),
        ("CommandId", ("y: Trigger = syscall.OnTrigger(v)",), "trigger_only"),
        ("Trigger", ('syscall.AppEmit<name="n">(v)',), "trigger_only"),
        ("Trigger", (), "trigger_only"),
    ],
)
def test_transport(payload: str, readers: tuple[str, ...], transport: str) -> None:
    stats = Stats()
    send, recv, done = edge(payload, *readers, stats=stats)
    assert send.facts.transport == recv.facts.transport == transport
    assert stats.counters[f"wire_edges_{transport}"] == 1
    if transport == "trigger_only":
        assert written(send.facts)[keys.WIRE_TYPES_KEY] == written(recv.facts)[keys.WIRE_TYPES_KEY] == "a"
        assert done.functions[1].types["v"].node.id == "Trigger"
        assert done.functions[0].types["x"].node.id == payload.replace("F32[2]", "Tensor<F32>")


def test_a_value_that_is_handed_out_travels() -> None:
    send, _, _ = edge("F32[2]", "y: Trigger = syscall.OnTrigger(v)", outputs="v")
    assert send.facts.transport == "data"


@pytest.mark.parametrize(
    ("payload", "type_hash", "size"),
    [
        ("F32[2,3]", "101", str(24 + 1024)),
        ("I64[n]", "10a", "0"),
        ("BOOL[4]", "106", str(4 + 1024)),
        ("BF16[4]", "107", str(8 + 1024)),
        ("Tensor", "0", "0"),
        ("PeerIdVec", "12", "0"),
        ("Composite", "302", "0"),
        ("WireReqId", "11", "16"),
    ],
)
def test_hashes_and_sizes_stand_on_both_halves(payload: str, type_hash: str, size: str) -> None:
    send, recv, _ = edge(payload, 'syscall.AppEmit<name="n">(v)')
    for half in (send, recv):
        assert written(half.facts)[keys.WIRE_TYPES_KEY] == type_hash
        assert written(half.facts)[keys.WIRE_MAX_BYTES_KEY] == size


def test_what_does_not_travel_is_refused() -> None:
    with pytest.raises(errors.NotWireEligible) as caught:
        edge(
            "CommandId",
            'syscall.AppEmit<name="n">(v)',
            send="h: Trigger = wire.Send(x, p) {wire.wire_id=1, wire.site_ids=1, source=a.py:4}",
        )
    assert caught.value.where == "a.py:4"
    assert "'x' is CommandId" in caught.value.what


def test_destinations_have_the_receivers_names() -> None:
    send, _, _ = edge(
        "F32[2]",
        "y: F32[2] = Add(v, w)",
        send='h: Trigger = wire.Send(x, x, p) {wire.wire_id=1, wire.site_ids="1,2"}',
        recv='v: F32[2], w: F32[2], s: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids="1,2"}',
    )
    assert written(send.facts)[keys.DEST_SITE_NAME_PREFIX + "x"] == "v"


def test_sends_to_the_same_peers_share_a_group_and_requests_share_with_nobody() -> None:
    given = parse(
        """program P {module=P}

function program.A(x: F32, p: PeerIdVec, q: PeerIdVec) -> () {partition=A, entry=1}
  a: Trigger = wire.Send(x, p) {wire.wire_id=1, wire.site_ids=1}
  b: Trigger = wire.Send(x, p) {wire.wire_id=2, wire.site_ids=2}
  c: Trigger = wire.Send(x, q) {wire.wire_id=3, wire.site_ids=3}
  r: WireReqId = wire.SendReqBatched(x, p, p) {wire.wire_id=4, wire.site_ids=4}

function program.B(x: F32, p: PeerIdVec) -> () {partition=B, entry=1}
  a: Trigger = wire.Send(x, p) {wire.wire_id=5, wire.site_ids=5}
"""
    )
    done = pass_named("analyze_wire_edges").run(given, Options(), Stats())
    groups = [written(op.facts)[keys.BATCH_GROUP_ID_KEY] for f in done.functions for op in f.ops]
    assert groups == ["1", "1", "2", "3", "4"]


def test_open_ports_are_stamped_by_themselves(run_pass: Callable[..., Program]) -> None:
    done = run_pass(
        "analyze_wire_edges",
        """
        program P {module=P}

        function program.A(x: F32[2], p: PeerIdVec) -> () {partition=A, entry=1}
          r: WireReqId = wire.SendReqBatched(x, p, p) {wire.wire_id=4, wire.site_ids=4}
          c: Trigger, m: PeerIdVec, a: I64[?,2] = wire.RecvRespBatched(r) {wire.wire_id=5, wire.request=4, wire.site_ids=5}
          v: F32[2], s: PeerIdVec, t: Trigger = wire.Recv() {wire.wire_id=6, wire.site_ids=6, wire.trigger_output=1}
          e: Trigger, n: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=9, wire.request=4}
        """,
    )
    found = [(op.facts.transport, written(op.facts).get(keys.WIRE_TYPES_KEY)) for op in done.functions[0].ops]
    assert found == [("data", "101"), ("data", "10a"), ("data", "101"), ("data", None)]
    assert written(done.functions[0].ops[1].facts)[keys.WIRE_MAX_BYTES_KEY] == str(16 + 1024)
