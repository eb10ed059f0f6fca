"""Loops and branches that the engine runs: one frame, whatever they hold, and however often they go round."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32
from components import Restartable, Slow
from envelopes import fill
from kinds_of_steps import of
from peers import HERE
from plays import installer
from texts import compiled
from times import S

from bb_edge import install
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.errors import LoadError, OpError
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles.errors import CompletionLostError
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, decode, encode

DOUBLED = """
program Demo {module=Demo}
function program.Main(n: I64, x: F32) -> (y, rows) {entry=1, partition=self}
  done: Trigger, y: F32, rows: F32[?,?] = syscall.Loop<body="Main.loop_1", carried=1>(n, "", x)
  syscall.AppNotify<name="done">(done)
function module.Main.loop_1(i: I64, going: BOOL, c: F32) -> () {module_phase=body}
  next: F32 = Add(c, c)
  told: Trigger = syscall.AppEmit<name="i">(i)
  syscall.BodyEnd<yields=2>(next, c, told)
"""


def count(number: int) -> np.ndarray[Any, Any]:
    return np.array(number, np.int64)


@pytest.mark.covers("syscall", "Loop")
@pytest.mark.parametrize("times", [0, -3, 1, 3])
def test_a_loop_carries_values_and_stacks_rows(bench, times):
    b = bench(DOUBLED)
    b.node.invoke("Main", {"n": count(times), "x": f32(1, 2)})
    b.settle()
    b.assert_clean()
    n = max(times, 0)
    assert b.events("i") == list(range(n))
    (y,), (rows,) = b.events("y"), b.events("rows")
    assert y.tolist() == [2**n, 2 * 2**n]
    assert rows.tolist() == [[2**k, 2 * 2**k] for k in range(n)]
    assert (rows.dtype, rows.ndim) == (np.float32, 2), "without an iteration too"
    assert len(b.events("done")) == 1


def test_frames_are_made_at_install_and_one_serves_all_iterations(bench):
    b = bench(DOUBLED)
    for _ in range(3):
        b.node.invoke("Main", {"n": count(50), "x": f32(0)})
    b.settle()
    assert b.node.counters["frames.grown"] == 0
    assert b.node.counters["executions.active"] == 0


@pytest.mark.covers("syscall", "BodyEnd")
def test_an_iteration_begins_when_all_of_the_one_before_is_done(bench):
    """The sleep is of no use to anybody, and is waited for all the same."""
    text = DOUBLED.replace(
        '  told: Trigger = syscall.AppEmit<name="i">(i)',
        """\
  begins: Trigger = syscall.AppEmit<name="i">(i)
  slept: Trigger = syscall.Sleep<duration_ns=1000>(begins)
  told: Trigger = syscall.AppNotify<name="slept">(slept)""",
    )
    b = bench(text)
    b.node.invoke("Main", {"n": count(3), "x": f32(1)})
    b.settle()
    b.assert_clean()
    assert [t for t in b.topics() if t in ("i", "slept")] == ["i", "slept"] * 3
    assert b.now_ns >= 3000


WHILE = """
program Demo {module=Demo}
function program.Main(x: F32, go: BOOL) -> (y) {entry=1, partition=self}
  "": Trigger, y: F32 = syscall.Loop<body="Main.loop_1", carried=1, condition=1>("", go, x)
function module.Main.loop_1(i: I64, going: BOOL, c: F32) -> () {module_phase=body}
  two: F32 = Constant<value=F32[]{2}>()
  next: F32 = Mul(c, two)
  most: F32 = Constant<value=F32[]{100}>()
  again: BOOL = Less(next, most)
  syscall.BodyEnd<yields=2>(again, next)
"""


@pytest.mark.parametrize(("go", "y"), [(True, 128.0), (False, 1.0)])
def test_a_condition_ends_a_loop_without_a_number(bench, go, y):
    b = bench(WHILE.replace('"": Trigger, y', "_d: Trigger, y"))
    b.node.invoke("Main", {"x": np.float32(1), "go": np.array(go)})
    b.settle()
    b.assert_clean()
    assert [float(v) for v in b.events("y")] == [y]


NESTED = """
program Demo {module=Demo}
function program.Main(n: I64, x: I64) -> (y) {entry=1, partition=self}
  d: Trigger, y: I64 = syscall.Loop<body="Main.loop_2", carried=1>(n, "", x)
function module.Main.loop_1(i: I64, going: BOOL, c: I64, outer: I64) -> () {module_phase=body}
  next: I64 = Add(c, outer)
  syscall.BodyEnd<yields=1>(next)
function module.Main.loop_2(i: I64, going: BOOL, c: I64) -> () {module_phase=body}
  d: Trigger, next: I64 = syscall.Loop<body="Main.loop_1", carried=1>(i, "", c, i)
  syscall.BodyEnd<yields=1>(next, d)
"""


def test_loops_nest_and_an_inner_one_reads_the_outer_iteration(bench):
    b = bench(NESTED)
    b.node.invoke("Main", {"n": count(5), "x": count(7)})
    b.settle()
    b.assert_clean()
    assert [int(v) for v in b.events("y")] == [7 + sum(i * i for i in range(5))]
    assert b.node.counters["frames.grown"] == 0


BRANCHES = """
program Demo {module=Demo}
function program.Main(p: BOOL, x: F32) -> (y) {entry=1, partition=self}
  d: Trigger, y: F32 = syscall.If<then_branch="Main.then_1", else_branch="Main.else_2">(p, x)
  syscall.AppNotify<name="done">(d)
function module.Main.then_1(p: BOOL, x: F32) -> () {module_phase=body}
  t: Trigger = syscall.AppEmit<name="then">(x)
  y: F32 = Neg(x)
  syscall.BodyEnd<yields=1>(y, t)
function module.Main.else_2(p: BOOL, x: F32) -> () {module_phase=body}
  syscall.BodyEnd<yields=1>(x)
"""


@pytest.mark.covers("syscall", "If")
def test_one_branch_runs(bench):
    b = bench(BRANCHES)
    for p in (True, False):
        b.node.invoke("Main", {"p": np.array(p), "x": f32(3)})
    b.settle()
    b.assert_clean()
    assert [v.tolist() for v in b.events("y")] == [[-3], [3]]
    assert (len(b.events("then")), len(b.events("done"))) == (1, 2)
    assert b.node.counters["frames.grown"] == 0


# --- what goes wrong ------------------------------------------------------------------------------------


def test_a_branch_that_fails_ends_the_loop_and_frees_its_frame(bench):
    text = DOUBLED.replace("next: F32 = Add(c, c)", "next: F32 = MatMul(c, c)")
    b = bench(text)
    b.node.invoke("Main", {"n": count(3), "x": np.ones((2, 3), np.float32)})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert failed.op.startswith("MatMul")
    assert (b.events("done"), b.events("y")) == ([], [])
    b.node.invoke("Main", {"n": count(3), "x": np.ones((2, 2), np.float32)})
    b.settle()
    assert len(b.events("y")) == 1
    assert b.node.counters["executions.active"] == b.node.counters["frames.grown"] == 0


@pytest.mark.parametrize(
    ("text", "values", "what"),
    [
        (DOUBLED, {"n": np.array([1, 2]), "x": f32(1)}, "the number of trips is one number"),
        (DOUBLED.replace("y, rows)", "y)"), {"n": count(40), "x": f32(*range(99))}, "the rows that the loop collects take"),
        (DOUBLED.replace("Add(c, c)", "Concat<axis=0>(c, c)"), {"n": count(2), "x": f32(1)}, "a row changes its shape"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_said(bench, text, values, what):
    b = bench(text, config=NodeConfig.edge().with_(tensor_bytes=20_000))
    b.node.invoke("Main", values)
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert isinstance(failed.error, OpError)
    assert what in str(failed.error)
    assert b.node.counters["executions.active"] == 0


TWICE = """\
  f: F32 = module.Twice(c)
  syscall.BodyEnd<yields=2>(next, f, told)
function module.Twice(x: F32) -> (y) {module_phase=body}
  y: F32 = Neg(x)
"""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('body="Main.loop_1"', 'body="gone"', "the artifact has no function 'gone'"),
        ("going: BOOL, c: F32", "going: BOOL", "reads 'c'|takes 2 values"),
        ("  syscall.BodyEnd<yields=2>(next, c, told)\n", "", "does not end in one BodyEnd"),
        ("yields=2", "yields=9", "yields 9 of 3 values"),
        ("carried=1", "carried=7", "7 carried values, and 3 outputs"),
        (
            "  next: F32 = Add(c, c)",
            '  d: Trigger, next: F32 = syscall.Loop<body="Main.loop_1", carried=1>(i, "", c)',
            "calls itself",
        ),
        (
            "  syscall.BodyEnd<yields=2>(next, c, told)\n",
            TWICE,
            "bodies call nothing",
        ),
    ],
)
def test_a_body_that_does_not_fit_is_refused_at_install(bench, old, new, what):
    assert old in DOUBLED
    with pytest.raises((OpError, LoadError), match=what):
        bench(DOUBLED.replace(old, new))


def test_a_loop_without_an_end_is_stopped(bench, monkeypatch):
    from bb_edge.syscalls import bodies

    monkeypatch.setattr(bodies, "MAX_ITERATIONS", 500)
    b = bench(WHILE.replace('"": Trigger, y', "_d: Trigger, y"), config=NodeConfig.edge())
    b.node.invoke("Main", {"x": np.float32(0), "go": np.array(True)})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert "has not ended after 500 iterations" in str(failed.error)


def test_others_are_served_between_iterations(bench):
    """The op budget of a poll bounds a loop as it does everything else."""
    b = bench(DOUBLED, config=NodeConfig.edge().with_(cycle_op_budget=10))
    b.node.invoke("Main", {"n": count(100), "x": f32(0)})
    b.node.invoke("Main", {"n": count(1), "x": f32(5)})
    b.poll()
    b.poll()
    assert b.of(steps.ExecutionEnded) == []
    b.settle()
    b.assert_clean()


ASKED = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=Main}
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  n: I64[] = Constant<value=I64[]{1000000}>()
  d: Trigger, y: F32[1] = syscall.Loop<body="Main.loop_1", carried=1>(n, "", x)
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
function module.Main.loop_1(i: I64, going: BOOL, c: F32[1]) -> () {module_phase=body}
  t: Trigger = syscall.OnTrigger(c)
  BODY
  syscall.BodyEnd<yields=1>(c, done)
"""


@pytest.mark.parametrize(
    "body", ["done: Trigger = syscall.OnTrigger(t)", "done: Trigger = syscall.Sleep<duration_ns=1000000>(t)"]
)
def test_a_loop_ends_with_its_asker(bench, body):
    """Whether it waits or works: between two iterations the deadline is looked at."""
    b = bench(ASKED.replace("BODY", body), config=NodeConfig.edge().with_(cycle_op_budget=100))
    asker = PeerId.from_name("asker")
    b.node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
    b.poll()
    b.node.deliver_inbound(encode(Envelope([fill(0xA1, 3)], REQUEST, 7, 2 * S, epoch=5, seq=1)), asker)
    for _ in range(300):
        b.poll(10_000_000)
    sent = [decode(s.payload, HOST_CAPS) for s in b.of(steps.SendEnvelope)]
    (answer,) = [m for m in sent if m.kind == RESPONSE]
    assert answer.failure is not None and answer.failure.name == "OUT_OF_TIME"
    assert b.node.counters["executions.active"] == b.node.counters["frames.grown"] == 0
    assert b.node.inspect().parked == []


# --- restarts ---------------------------------------------------------------------------------------------

SLOW = """
program Demo {module=Demo, binding.Main.a="codec|test.Slow|1"}
function program.Main(n: I64, x: F32, k: F32) -> (y, rows) {entry=1, partition=self}
  slot a: codec
  d: Trigger, y: F32, rows: F32[?,?] = syscall.Loop<body="Main.loop_1", carried=1>(n, "", x, k)
function module.Main.loop_1(i: I64, going: BOOL, c: F32, k: F32) -> () {module_phase=body}
  slot a: codec
  z: F32 = role.compressor.Compress(c) {slot=a}
  next: F32 = Add(z, k)
  syscall.BodyEnd<yields=2>(next, c)
"""


@pytest.mark.parametrize("kind", [Restartable, Slow])
def test_a_restart_in_the_middle_goes_on_or_says_what_was_lost(kind):
    """As for any execution: an op whose component may be asked again is, others fail."""
    make = installer(SLOW, kind)
    node = make()
    node.invoke("Main", {"n": count(4), "x": f32(1), "k": f32(10)})
    said: list[Any] = []
    now = 0
    for turn in range(40):
        now += 1
        said += node.poll(now)
        if turn == 5 or (turn == 11 and kind is Restartable):
            node = make(node.snapshot(now), now)
            continue
        component = node.component("a")
        if turn % 3 == 2:
            for later, value in component.open:
                later.complete(value)
            component.open.clear()
    if kind is Slow:
        (failed,) = of(steps.OpFailed, said)
        assert isinstance(failed.error, CompletionLostError)
    else:
        assert of(steps.OpFailed, said) == []
        values = {s.topic: s.value.tolist() for s in of(steps.AppEvent, said)}
        assert values == {"y": [41.0], "rows": [[1.0], [11.0], [21.0], [31.0]]}
    assert node.counters["executions.active"] == 0


def test_memory_does_not_grow_with_the_iterations():
    """Sizes of snapshots tell: what one in the middle holds is the same after 3 iterations and after 300."""
    registry = Registry()
    registry.register(Slow)
    text = SLOW.replace("Main(n: I64, x: F32, k: F32) -> (y, rows)", "Main(n: I64, x: F32, k: F32) -> (y)")
    text = text.replace(", rows: F32[?,?] =", " =").replace("yields=2>(next, c)", "yields=1>(next)")
    node = install(PeerId.from_name("node"), (), compiled(text), ("Main",), registry=registry, seed=7)
    node.invoke("Main", {"n": count(10**6), "x": f32(*range(64)), "k": f32(*range(64))})
    sizes = []
    for turn in range(1, 301):
        node.poll(turn)
        (opened,) = node.component("a").open
        if turn in (3, 300):
            sizes.append(len(node.snapshot(turn)))
        node.component("a").open.clear()
        opened[0].complete(opened[1])
    assert abs(sizes[1] - sizes[0]) < 64
    assert node.counters["frames.grown"] == 0
