"""Ops whose state belongs to the op: Hold, Serialize, Limit; and the host's ops."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import f32

from bb_edge.engine import steps
from bb_edge.engine.config import ConfigError, NodeConfig
from bb_edge.engine.errors import CapacityError, LoadError, OpError
from bb_edge.roles import TRIGGER

HOLD = """
program Demo {module=Demo}
function program.Main(keep: F32, flush: Trigger) -> () {entry=1, partition=self}
  syscall.Hold.Stash<slot="s">(keep)
  out: F32 = syscall.Hold.Flush<slot="s">(flush)
  syscall.AppEmit<name="out">(out)
"""


def test_hold_releases_the_newest_value_once(bench):
    b = bench(HOLD)
    b.node.invoke("Main", {"keep": f32(1)})
    b.node.invoke("Main", {"keep": f32(2)})
    b.node.invoke("Main", {"flush": TRIGGER})
    b.node.invoke("Main", {"flush": TRIGGER})
    b.settle()
    assert [float(v[0]) for v in b.events("out")] == [2.0]


QUEUE = """
program Demo {module=Demo}
function program.Main(put: F32, take: Trigger) -> () {entry=1, partition=self}
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(put)
  syscall.AppNotify<name="put">(done)
  out: F32 = syscall.Serialize.Dequeue<queue="q">(take)
  syscall.AppEmit<name="out">(out)
"""


def test_a_queue_is_first_in_first_out_and_takers_wait(bench):
    b = bench(QUEUE)
    early = b.node.invoke("Main", {"take": TRIGGER})
    b.settle()
    assert b.events("out") == []
    for value in (1, 2, 3):
        b.node.invoke("Main", {"put": f32(value)})
    later = [b.node.invoke("Main", {"take": TRIGGER}) for _ in range(2)]
    b.settle()
    outs = {e.execution: float(e.value[0]) for e in b.of(steps.AppEvent) if e.topic == "out"}
    assert outs == {early: 1.0, later[0]: 2.0, later[1]: 3.0}


@pytest.mark.parametrize("bound", [1, 3])
def test_a_full_queue_fails_the_newcomer_and_keeps_what_it_has(bench, bound):
    b = bench(QUEUE, config=NodeConfig(op_state_entries=bound))
    for value in range(bound + 1):
        b.node.invoke("Main", {"put": f32(value)})
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert isinstance(failed.error, CapacityError)
    for _ in range(bound):
        b.node.invoke("Main", {"take": TRIGGER})
    b.settle()
    assert [float(v[0]) for v in b.events("out")] == [float(v) for v in range(bound)]


LIMIT = """
program Demo {module=Demo}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  in: Trigger = syscall.Limit.Acquire<name="l", n=2>(go)
  syscall.AppNotify<name="in">(in)
  slept: Trigger = syscall.Sleep<duration_ns=100>(in)
  RELEASE
"""


@pytest.mark.parametrize(
    "release", ['syscall.Limit.Release<name="l">(slept)', 'syscall.AppNotify<name="end">(slept)']
)
def test_a_limit_lets_n_in_and_permits_end_with_their_execution(bench, release):
    b = bench(LIMIT.replace("RELEASE", release))
    numbers = [b.node.invoke("Main", {"go": TRIGGER}) for _ in range(5)]
    b.poll()
    entered = [e.execution for e in b.of(steps.AppEvent) if e.topic == "in"]
    assert entered == numbers[:2]
    b.settle()
    assert [e.execution for e in b.of(steps.AppEvent) if e.topic == "in"] == numbers
    assert b.now_ns == 300
    assert b.of(steps.OpFailed) == []


def test_release_without_a_permit_fails(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(go: Trigger, other: Trigger) -> () {entry=1, partition=self}
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(go)
  syscall.Limit.Release<name="l">(other)
  syscall.AppNotify<name="in">(in)
"""
    )
    b.node.invoke("Main", {"other": TRIGGER})
    b.settle()
    assert isinstance(b.of(steps.OpFailed)[0].error, OpError)


@pytest.mark.parametrize("line", ['  syscall.AppEmit<name="y">(x)\n', "  y: Tensor = Neg(x)\n"])
def test_an_event_beyond_its_budget_comes_without_its_value(bench, line):
    outputs = "y" if line.startswith("  y") else ""
    text = "program Demo {module=Demo}\n"
    text += f"function program.Main(x: Tensor) -> ({outputs}) {{entry=1, partition=self}}\n{line}"
    for size, omitted in ((64, 0), (68, 68)):
        b = bench(text, config=NodeConfig(app_event_bytes=64))
        b.node.invoke("Main", {"x": np.zeros(size // 4, np.float32)})
        b.settle()
        (event,) = b.of(steps.AppEvent)
        assert (event.topic, event.omitted_bytes, event.value is None) == ("y", omitted, omitted > 0)
        assert b.node.counters.get("app_events.omitted", 0) == (1 if omitted else 0)
        assert not b.of(steps.ExecutionEnded)[0].failed


def test_rings_keep_the_newest_and_counters_add(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(x: F32) -> () {entry=1, partition=self}
  syscall.Record<name="ring">(x)
  syscall.IncrMetric<name="hits", delta=2>(x)
""",
        config=NodeConfig(record_entries=2),
    )
    for value in (1, 2, 3):
        b.node.invoke("Main", {"x": f32(value)})
    b.settle()
    assert [float(v[0]) for v in b.node.ring("ring")] == [2.0, 3.0]
    assert b.node.counters["hits"] == 6


def test_interval_ticks_and_skips_when_its_predecessor_waits(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  tick: Timestamp = syscall.Interval<period_ns=100>()
  syscall.AppEmit<name="tick">(tick)
"""
    )
    b.settle(until_ns=350)
    assert b.events("tick") == [100, 200, 300]
    b.poll(1000)
    assert len(b.events("tick")) == 4


def test_lifecycle_phases_fire_their_entries(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  down: Trigger = syscall.LifecyclePhase<phase=1>()
  syscall.AppNotify<name="down">(down)
  pulse: Trigger = syscall.Pulse()
  syscall.AppNotify<name="pulse">(pulse)
"""
    )
    b.settle()
    assert [e.topic for e in b.of(steps.AppEvent)] == ["pulse"]
    b.node.fire_lifecycle(steps.Phase.SHUTDOWN)
    b.settle()
    assert [e.topic for e in b.of(steps.AppEvent)] == ["pulse", "down"]
    assert b.of(steps.LifecycleFired) == [steps.LifecycleFired(1)]


def test_bus_events_reach_their_subscribers(bench):
    b = bench(
        """
program Demo {module=Demo}
function program.Main(a: Tensor, b: Tensor) -> () {entry=1, partition=self}
  bad: Tensor = MatMul(a, b)
  failure: EventKind = syscall.EventSource<kind=1>()
  syscall.AppEmit<name="failure">(failure)
"""
    )
    b.node.invoke("Main", {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 3), np.float32)})
    b.settle()
    assert b.events("failure") == [1]


def test_an_event_that_this_runtime_does_not_know_is_refused(bench):
    text = """program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  later: EventKind = syscall.EventSource<kind=99>()
  syscall.AppEmit<name="later">(later)
"""
    with pytest.raises(LoadError, match="no event of kind 99"):
        bench(text)


def test_clock_and_rng_are_handed_in(bench):
    text = """
program Demo {module=Demo}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  now: Timestamp = syscall.Clock(go)
  syscall.AppEmit<name="now">(now)
  r: U64[] = syscall.RngU64(go)
  syscall.AppEmit<name="r">(r)
"""
    seen = []
    for _ in range(2):
        b = bench(text)
        b.now_ns = 12345
        b.node.invoke("Main", {"go": TRIGGER})
        b.settle()
        assert b.events("now") == [12345]
        seen.append(int(b.events("r")[0]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("field", ["max_executions", "ingress_bytes", "cycle_op_budget"])
def test_capacities_are_at_least_one(field):
    with pytest.raises(ConfigError, match=field):
        NodeConfig(**{field: 0})


def test_ids_and_random_numbers_of_one_seed_are_different_streams(bench):
    lines = ("r: U64[] = syscall.RngU64(go)", "r: CorrelationToken = syscall.CorrelateTag(go)")
    drawn = []
    for line in lines:
        b = bench(f"""
program Demo {{module=Demo}}
function program.Main(go: Trigger) -> () {{entry=1, partition=self}}
  {line}
  syscall.AppEmit<name="r">(r)
""")
        for _ in range(3):
            b.node.invoke("Main", {"go": TRIGGER})
        b.settle()
        drawn.append({int(value) for value in b.events("r")})
    assert len(drawn[0]) == len(drawn[1]) == 3
    assert drawn[0].isdisjoint(drawn[1])
