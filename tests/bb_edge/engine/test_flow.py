"""Executions, sources, joins and routing ops, on a real node under simulated time."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import re

import numpy as np
import pytest
from arrays import f32

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.ledger import IngressFull
from bb_edge.inputs import InvokeError

ADD = """
program Demo {module=Demo}
function program.Main(a: F32[2], b: F32[2]) -> (total) {entry=1, partition=self}
  total: F32[2] = Add(a, b)
"""


def test_an_output_surfaces_as_an_event(bench):
    b = bench(ADD)
    number = b.node.invoke("Main", {"a": f32(1, 2), "b": f32(3, 4)})
    b.settle()
    (event,) = b.of(steps.AppEvent)
    assert (event.topic, event.execution, event.target) == ("total", number, "Main")
    np.testing.assert_array_equal(event.value, f32(4, 6))
    (ended,) = b.of(steps.ExecutionEnded)
    assert (ended.execution, ended.failed) == (number, False)
    assert b.node.poll(10) == []


def test_numbers_of_a_host_become_the_declared_type(bench):
    b = bench(ADD)
    b.node.invoke("Main", {"a": [1, 2.5], "b": (3, True)})
    b.settle()
    (event,) = b.of(steps.AppEvent)
    np.testing.assert_array_equal(event.value, f32(4, 3.5))
    assert event.value.dtype == np.float32


def test_a_half_fed_op_is_reported_as_starved(bench):
    b = bench(ADD)
    number = b.node.invoke("Main", {"a": f32(1, 2)})
    b.settle()
    (starved,) = b.of(steps.ExecutionStarved)
    assert starved.execution == number
    assert len(starved.ops) == 1
    assert b.of(steps.ExecutionEnded)[0].failed


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"c": f32(1, 2)}, "no input 'c'"),
        ({"a": np.zeros(2, np.float64)}, "expected dtype float32, got float64"),
        ({"a": f32(1, 2, 3)}, "expected shape [2], got [3]"),
        ({"a": b"\xff\xff"}, "Main, input 'a'"),
        ({"a": [1, 1e300]}, "1e+300 does not fit float32"),
        ({"a": [1, None]}, "[1, None] is not a number or a list of numbers"),
        ({"a": "text"}, "'text' is not a number or a list of numbers"),
    ],
)
def test_wrong_inputs_are_refused_at_the_door(bench, inputs, says):
    b = bench(ADD)
    with pytest.raises(InvokeError, match=re.escape(says)):
        b.node.invoke("Main", inputs)
    assert b.node.next_deadline_ns() is None


def test_an_unknown_target_is_named(bench):
    with pytest.raises(InvokeError, match="Nobody"):
        bench(ADD).node.invoke("Nobody", {})


def test_executions_wait_for_a_place_and_are_refused_beyond_the_queue(bench):
    b = bench(ADD, config=NodeConfig(max_executions=1, ingress_entries=2, answer_entries=8))
    for _ in range(2):
        b.node.invoke("Main", {"a": f32(1, 2), "b": f32(3, 4)})
    b.settle()
    assert len(b.of(steps.ExecutionEnded)) == 2
    for _ in range(2):
        b.node.invoke("Main", {"a": f32(1, 2), "b": f32(3, 4)})
    with pytest.raises(IngressFull):
        b.node.invoke("Main", {"a": f32(1, 2), "b": f32(3, 4)})


def test_an_op_that_fails_ends_its_branch_only(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: Tensor, b: Tensor) -> (total, same) {entry=1, partition=self}
  total: Tensor = Add(a, b)
  same: Tensor = Identity(a)
"""
    )
    b.node.invoke("Main", {"a": np.zeros((2, 3), np.float32), "b": np.zeros((4, 5), np.float32)})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert "Add" in failed.op or "Add" in str(failed.error)
    assert len(b.events("same")) == 1
    assert b.node.counters["ops.failed"] == 1


def test_any_passes_the_first_arrival_of_its_execution(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: F32, b: F32) -> () {entry=1, partition=self}
  first: F32 = syscall.Any(a, b)
  syscall.AppEmit<name="first">(first)
"""
    )
    b.node.invoke("Main", {"a": f32(1), "b": f32(2)})
    b.node.invoke("Main", {"b": f32(3)})
    b.settle()
    assert [float(v[0]) for v in b.events("first")] == [1.0, 3.0]
    assert b.of(steps.ExecutionStarved) == []


def test_any_of_one_group_pass_one_arrival_of_their_execution(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: F32, b: F32, c: F32) -> (p, q, other, alone, called) {entry=1, partition=self}
  p: F32 = syscall.Any<group="G">(a, b)
  q: F32 = syscall.Any<group="G">(b, c)
  other: F32 = syscall.Any<group="H">(a, b)
  alone: F32 = syscall.Any(b)
  called: F32 = module.Inner(a)
function module.Inner(v: F32) -> (w) {}
  w: F32 = syscall.Any<group="G">(v)
"""
    )
    b.node.invoke("Main", {"a": f32(1), "b": f32(2)})
    b.node.invoke("Main", {"b": f32(3)})
    b.node.invoke("Main", {"c": f32(4), "a": f32(5)})
    b.settle()
    assert [v.tolist() for v in b.events("p")] == [[1.0], [3.0]]
    assert [v.tolist() for v in b.events("q")] == [[4.0]]
    assert [v.tolist() for v in b.events("other")] == [[1.0], [3.0], [5.0]]
    assert [v.tolist() for v in b.events("alone")] == [[2.0], [3.0]]
    assert [v.tolist() for v in b.events("called")] == [[1.0], [5.0]]


def test_a_group_is_over_after_a_restart_too(compile_text):
    data = compile_text(
        """
program Demo {module=Demo}
function program.Main(a: F32) -> (p, q) {entry=1, partition=self}
  p: F32 = syscall.Any<group="G">(a)
  t: Trigger = syscall.Sleep<duration_ns=1000>(p)
  late: F32 = syscall.GateDispatch(a, t)
  q: F32 = syscall.Any<group="G">(late)
"""
    )
    old = install(PeerId.from_name("n"), (), data, ["Main"], seed=1)
    old.invoke("Main", {"a": f32(1)})
    assert [s.topic for s in old.poll(0) if isinstance(s, steps.AppEvent)] == ["p"]
    new = install(PeerId.from_name("n"), (), data, ["Main"], seed=1, snapshot=old.snapshot(0))
    found = [*new.poll(1000), *new.poll(2000)]
    assert not [s for s in found if isinstance(s, steps.AppEvent)]
    assert new.counters["executions.active"] == 0


def test_threshold_counts_over_executions_and_rearms(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: F32) -> () {entry=1, partition=self}
  t: Trigger = syscall.Threshold<n=3>(a)
  syscall.AppNotify<name="three">(t)
"""
    )
    numbers = [b.node.invoke("Main", {"a": f32(1)}) for _ in range(7)]
    b.settle()
    assert [e.execution for e in b.of(steps.AppEvent)] == [numbers[2], numbers[5]]


def test_sources_fire_once_when_an_op_needs_them(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: PeerIdVec) -> () {entry=1, partition=self}
  slot view: peer_selector
  peers: PeerIdVec = role.peer_selector.CurrentView() {slot=view}
  c: Composite = composite.Bundle<.composite.child_count=2, .composite.child_types="bb.peer_id_vec,bb.peer_id_vec">(a, peers)
  d: Composite = composite.Bundle<.composite.child_count=2, .composite.child_types="bb.peer_id_vec,bb.peer_id_vec">(a, peers)
  syscall.AppEmit<name="out">(c)
  syscall.AppEmit<name="out">(d)
""".replace(
            "program Demo {module=Demo}",
            'program Demo {module=Demo, binding.Main.view="peer_selector|bb.ConstantView|1"}',
        )
    )
    b.node.invoke("Main", {"a": ()})
    b.settle()
    assert len(b.events("out")) == 2
    assert b.of(steps.OpFailed) == []


def test_after_delays_in_the_execution_it_came_from(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: Trigger) -> () {entry=1, partition=self}
  t: Trigger = syscall.After<delay_ns=5000>(a)
  syscall.AppNotify<name="late">(t)
"""
    )
    from bb_edge.roles import TRIGGER

    number = b.node.invoke("Main", {"a": TRIGGER})
    b.poll()
    assert b.of(steps.AppEvent) == []
    assert b.node.next_deadline_ns() == 5000
    b.poll(4999)
    assert b.of(steps.AppEvent) == []
    b.poll(1)
    assert [e.execution for e in b.of(steps.AppEvent)] == [number]


def test_rounds_follow_one_another_and_end(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  round: I64[] = syscall.Repeat<times=3, pause_ns=10>()
  syscall.AppEmit<name="round">(round)
"""
    )
    b.settle()
    assert [int(v) for v in b.events("round")] == [1, 2, 3]
    assert b.of(steps.RoundsCompleted) == [steps.RoundsCompleted("Main", 3)]
    assert b.now_ns == 20


def test_a_failed_round_backs_off_and_goes_on(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  round: I64[] = syscall.Repeat<times=3>()
  shape: Tensor = Constant<value=F32[2]{1, 2}>()
  bad: Tensor = MatMul(round, shape)
"""
    )
    b.settle()
    backed_off = b.of(steps.RoundBackedOff)
    assert [s.wait_ns for s in backed_off] == [1_000_000_000, 2_000_000_000]
    assert [(s.reason, s.in_a_row, s.reached_nobody) for s in backed_off] == [
        ("failed", 1, 0),
        ("failed", 2, 0),
    ]
    assert b.node.open_rounds == 0


def test_the_op_budget_ends_a_cycle_early_and_nothing_is_lost(bench):
    b = bench(ADD, config=NodeConfig(cycle_op_budget=3))
    for _ in range(4):
        b.node.invoke("Main", {"a": f32(1, 2), "b": f32(3, 4)})
    b.poll()
    assert len(b.of(steps.CycleBudgetExceeded)) == 1
    b.settle()
    assert len(b.events("total")) == 4


def test_a_called_function_runs_in_the_same_execution(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: F32[2]) -> (out) {entry=1, partition=self}
  x: F32[2] = module.Twice(a)
  y: F32[2] = module.Twice(x)
  out: F32[2] = Add(x, y)
function module.Twice(v: F32[2]) -> (w) {}
  w: F32[2] = Add(v, v)
"""
    )
    b.node.invoke("Main", {"a": f32(1, 2)})
    b.settle()
    np.testing.assert_array_equal(b.events("out")[0], f32(6, 12))
    assert b.node.counters["executions.ended"] == 1


def test_what_a_child_sees_of_its_parent_does_not_starve_it(bench):
    """A child joins its answer with two of its parent's values; a gate of its own drops one answer."""
    ask = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
    reply = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
    b = bench(
        f"""
program Demo {{module=Demo, binding.Main.p="peer_selector|bb.PresenceSelector|1"}}
function program.Main(x: F32[1], to: PeerIdVec, late: Trigger) -> () {{entry=1, partition=self}}
  r: WireReqId = wire.SendReqBatched(x, to, to) {{{ask}, wire.answer_mode=each, deadline_ns=1000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{reply}}}
  two: Trigger = syscall.Threshold<n=2>(y)
  never: F32[1] = Add(x, y)
  gated: F32[1] = syscall.GateDispatch(x, two)
  syscall.AppEmit<name="sum">(never)
function program.Client() -> () {{entry=1, partition=Client}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ask}}}
  h: Trigger = wire.SendResp(x, s, r) {{{reply}}}
""",
        targets=("Main", "Client"),
    )
    b.node.invoke("Main", {"x": f32(1), "to": (b.node.peer_id,)})
    b.settle()
    assert len(b.events("sum")) == 1
    assert b.of(steps.ExecutionStarved) == [], "`gated` got a value of the parent's only"
    assert b.of(steps.OpFailed) == []


def test_no_entry_reaches_it_an_invoke_without_inputs_starts_it(bench):
    b = bench(
        """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(q: F32[2]) -> () {entry=1, partition=self}
  slot i: index
  c: F32[2] = Constant<value=F32[2]{3, 4}>()
  cmd: CommandId = role.index.Add(c) {slot=i}
  ids: I64, d: F32 = role.index.Search<k=1>(q) {slot=i}
  syscall.AppEmit<name="d">(d)
"""
    )
    b.node.invoke("Main", {"q": f32(3, 4)})
    b.settle()
    assert np.isinf(b.events("d")[0]).all(), "nothing is stored yet"
    b.node.invoke("Main", {})
    b.node.invoke("Main", {"q": f32(3, 4)})
    b.settle()
    assert float(b.events("d")[-1].ravel()[0]) == 0
