"""Pass 16."""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.ir import keys
from bb_host.compiler import Options, Stats
from bb_host.compiler.pipeline import pass_named
from bb_host.program import Program

TEXT = """
    program P {module=P}

    function program.A(x: F32, p: PeerIdVec) -> () {partition=A, entry=1}
      h: Trigger = wire.Send(x, x, p) {wire.wire_id=1, deadline_ns=5, dest_site_name.x=v, source=a.py:1}
      i: Trigger = wire.Send(x, p) {wire.wire_id=2, deadline_ns=0}
      r: WireReqId = wire.SendReqBatched(y, p, p) {wire.wire_id=3, deadline_ns=7, dest_site_name.y=w}
      c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=4, wire.request=3}
      y: F32 = Relu(x)
      t: Trigger = syscall.Sleep<duration_ns=90000000000>(c)
      f: F32 = role.model.Forward(x) {slot=m}
      g: F32 = role.model.Forward(x) {slot=m, deadline_ns=44}
      k: F32 = "my.ops"::Go(x) {slot=k}
      u: Trigger = wire.SendResp(x, p, r) {wire.wire_id=5}

    function component.m.forward(x) -> (y)
      y = role.model.Forward(x) {slot=n}
    """


def test_what_gets_a_deadline(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    done = run_pass("insert_async_deadlines", TEXT, stats)
    found = {op.outputs[0]: op.meta.get(keys.DEADLINE_NS_KEY) for op in done.functions[0].ops}
    assert found == {
        "x__in_time_1": None,
        "h": "5",
        "i": "0",
        "y__in_time_3": None,
        "r": "7",
        "c": "7",
        "y": None,
        "t": None,
        "f": "30000000000",
        "g": "44",
        "k": "30000000000",
        "u": None,
    }
    assert keys.DEADLINE_NS_KEY not in done.functions[1].ops[0].meta
    assert stats.counters == {"async_deadlines_stamped": 5}


def test_the_first_payload_is_checked_and_its_destination_follows(run_pass: Callable[..., Program]) -> None:
    done = run_pass("insert_async_deadlines", TEXT)
    check, send = done.functions[0].ops[:2]
    assert (check.op_type, check.inputs, check.outputs) == ("DeadlineCheck", ("x",), ("x__in_time_1",))
    assert check.attrs == {"deadline_ns": 5}
    assert check.meta == {keys.SOURCE_LINE_KEY: "a.py:1"}
    assert send.inputs == ("x__in_time_1", "x", "p")
    prefix = keys.DEST_SITE_NAME_PREFIX
    assert (send.meta[prefix + "x__in_time_1"], send.meta[prefix + "x"]) == ("v", "v")
    request = done.functions[0].ops[4]
    assert prefix + "y" not in request.meta
    assert done.functions[0].types["x__in_time_1"] == done.functions[0].types["x"]
    assert done.functions[0].opsets[keys.SYSCALL_DOMAIN] == 1


def test_onnx_alone_is_left_as_it_is(program: Callable[[str], Program]) -> None:
    given = program("program P {module=P}\n\nfunction program.P(x: F32) -> (y)\n  y: F32 = Relu(x)")
    assert pass_named("insert_async_deadlines").run(given, Options(), Stats()) is given
