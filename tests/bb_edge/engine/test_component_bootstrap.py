"""Bootstraps of components and of several targets: who waits for whom."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from times import S

from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import (
    AlreadyTransitivelyQueued,
    BootstrapAll,
    BootstrapStatus,
    ModuleNames,
    Slots,
    UnknownTarget,
)
from bb_edge.registry import Registry
from bb_edge.roles import Index, Model
from tests.aids.bootstraps import bootstrap_status


class Store(Index):
    """An index that is filled by its bootstrap, when a test completes it."""

    TYPE_NAME: ClassVar[str] = "test.Store"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.later: Any = None
        self.fails = False

    @classmethod
    def construct(cls, env: Any) -> Store:
        return cls()

    def bootstrap(self, ctx: Any) -> Any:
        self.log.append("bootstrap")
        if self.fails:
            raise ValueError("no disk")
        self.later = ctx.later(deadline_ns=100 * S)
        return self.later

    def add(self, ctx: Any, vec: Any) -> None:
        self.log.append(f"add {float(vec[0]):g}")

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        self.log.append(f"search {float(query[0]):g}")
        return np.zeros(k, np.int64), np.zeros(k, np.float32)


class Weights(Model):
    """An unshared component that writes down who wrote."""

    TYPE_NAME: ClassVar[str] = "test.Weights"

    def __init__(self) -> None:
        self.log: list[float] = []

    @classmethod
    def construct(cls, env: Any) -> Weights:
        return cls()

    def forward(self, ctx: Any, input: Any) -> Any:
        self.log.append(float(input[0]))
        return input

    def apply_delta(self, ctx: Any, delta: Any) -> None:
        self.log.append(float(delta[0]))

    def load_parameters(self, ctx: Any, params: Any) -> None:
        self.log.append(float(params[0]))

    def params(self, ctx: Any) -> Any:
        return f32(0)


@pytest.fixture
def registry():
    found = Registry()
    found.register(Store)
    found.register(Weights)
    return found


def of_slot(slot: str) -> str:
    return f"""  ids_{slot}: I64, d_{slot}: F32 = role.index.Search<k=1>(q_{slot}) {{slot={slot}}}
  syscall.AppNotify<name="{slot}">(ids_{slot})
"""


STORES = (
    'program Demo {module=Demo, binding.Main.a="index|test.Store|1", binding.Main.b="index|test.Store|2"}\n'
    "function program.Main(q_a: F32, q_b: F32) -> () {entry=1, partition=self}\n"
    "  slot a: index\n  slot b: index\n" + of_slot("a") + of_slot("b")
)


def test_body_ops_wait_for_the_components_bootstrap_and_others_go_on(bench, registry):
    b = bench(STORES, registry=registry)
    assert bootstrap_status(b.node, "a") is BootstrapStatus.READY
    b.node.run_bootstrap(Slots(("a",)))
    b.poll()
    assert bootstrap_status(b.node, "a") is BootstrapStatus.RUNNING
    number = b.node.invoke("Main", {"q_a": f32(1), "q_b": f32(2)})
    b.poll()
    assert b.topics() == ["b"]
    (waiting,) = b.of(steps.WaitingOnBootstrap)
    assert (waiting.target, waiting.execution) == ("Main", number)
    b.node.component("a").later.complete()
    b.settle()
    assert b.topics() == ["b", "a"]
    assert b.node.component("a").log == ["bootstrap", "search 1"]
    assert b.of(steps.BootstrapComplete) == [steps.BootstrapComplete("Main", False, "a")]
    assert bootstrap_status(b.node, "a") is BootstrapStatus.DONE
    assert b.node.counters["executions.active"] == 0


def test_before_it_is_started_nobody_waits(bench, registry):
    b = bench(STORES, registry=registry)
    b.node.invoke("Main", {"q_a": f32(1)})
    b.settle()
    assert b.topics() == ["a"]


def test_disjoint_ones_run_at_once_and_each_is_named(bench, registry):
    b = bench(STORES, registry=registry)
    b.node.run_bootstrap(BootstrapAll())
    b.poll()
    assert [bootstrap_status(b.node, s) for s in "ab"] == [BootstrapStatus.RUNNING] * 2
    with pytest.raises(AlreadyTransitivelyQueued):
        b.node.run_bootstrap(Slots(("b",)))
    for slot in "ba":
        b.node.component(slot).later.complete()
        b.poll()
    assert [s.slot for s in b.of(steps.BootstrapComplete)] == ["b", "a"]


def test_one_that_fails_is_said_and_can_be_run_again(bench, registry):
    b = bench(STORES, registry=registry)
    store = b.node.component("a")
    store.fails = True
    b.node.run_bootstrap(Slots(("a",)))
    b.node.invoke("Main", {"q_a": f32(1)})
    b.settle()
    assert bootstrap_status(b.node, "a") is BootstrapStatus.FAILED
    assert "no disk" in str(b.of(steps.OpFailed)[0].error)
    assert b.topics() == ["a"], "who waited goes on"
    store.fails = False
    b.node.run_bootstrap(BootstrapAll())
    b.poll()
    store.later.complete()
    b.node.component("b").later.complete()
    b.settle()
    assert bootstrap_status(b.node, "a") is BootstrapStatus.DONE


@pytest.mark.parametrize(
    "what", [Slots(("backend",)), Slots(("nowhere",)), ModuleNames(("Main",)), Slots(("a", "x"))]
)
def test_what_has_no_bootstrap_is_refused_and_nothing_staged(bench, registry, what):
    b = bench(STORES, registry=registry)
    with pytest.raises(UnknownTarget):
        b.node.run_bootstrap(what)
    assert bootstrap_status(b.node, "a") is BootstrapStatus.READY


# --- targets whose bootstraps overlap -----------------------------------------------------------------

SLEEPY = """function program.{t}__bootstrap() -> () {{module_phase=bootstrap}}
  slot {slot}: model
  one: F32[1] = Constant<value=F32[1]{{{mark}}}>()
  w0: CommandId = role.model.ApplyDelta(one) {{slot={slot}}}
  t: Trigger = syscall.OnTrigger(w0)
  late: Trigger = syscall.Sleep<duration_ns=100>(t)
  again: F32[1] = syscall.GateDispatch(one, late)
  w1: CommandId = role.model.ApplyDelta(again) {{slot={slot}}}
"""


def main(target: str, slot: str) -> str:
    return f"""function program.{target}(x: F32[1], hold: F32[1], r: F32[1]) -> () {{entry=1, partition={target}}}
  slot {slot}: model
  w: CommandId = role.model.ApplyDelta(x) {{slot={slot}}}
  a: CommandId = role.model.ApplyDelta(hold) {{slot={slot}}}
  t: Trigger = syscall.OnTrigger(a)
  late: Trigger = syscall.Sleep<duration_ns=50>(t)
  y: F32[1] = syscall.GateDispatch(hold, late)
  b: CommandId = role.model.ApplyDelta(y) {{slot={slot}}}
  seen: F32[1] = role.model.Forward(r) {{slot={slot}}}
"""


TARGETS = (
    'program Demo {module=Demo, binding.One.m="model|test.Weights|1", binding.Two.m="model|test.Weights|1", '
    'binding.Three.n="model|test.Weights|2"}\n'
    + "".join(main(t, s) for t, s in (("One", "m"), ("Two", "m"), ("Three", "n")))
    + "".join(
        SLEEPY.format(t=t, slot=s, mark=v)
        for t, s, v in (("One", "m", 1), ("Two", "m", 2), ("Three", "n", 3))
    )
)


@pytest.fixture
def three(bench, registry):
    return bench(TARGETS, targets=("One", "Two", "Three"), registry=registry)


def test_overlapping_ones_follow_each_other_in_install_order(three):
    three.node.run_bootstrap(ModuleNames(("Two", "Three", "One")))
    three.poll()
    status = [bootstrap_status(three.node, t) for t in ("One", "Two", "Three")]
    assert status == [BootstrapStatus.RUNNING, BootstrapStatus.QUEUED, BootstrapStatus.RUNNING]
    three.settle()
    assert three.node.component("m").log == [1, 1, 2, 2]
    assert three.node.component("n").log == [3, 3]
    assert three.now_ns == 200
    assert [s.target for s in three.of(steps.BootstrapComplete)] == ["One", "Three", "Two"]


def test_a_bootstrap_waits_for_the_claimant_and_the_body_for_the_bootstrap(three):
    """The claimant's second write comes before the bootstrap's first: neither waits for the other for ever."""
    node = three.node
    node.invoke("One", {"hold": f32(7)})
    three.poll()
    node.run_bootstrap(ModuleNames(("One",)))
    three.poll()
    assert bootstrap_status(node, "One") is BootstrapStatus.QUEUED
    node.invoke("Two", {"x": f32(8)})
    node.invoke("Two", {"r": f32(9)})
    three.poll()
    assert node.component("m").log == [7, 9], "who only reads is not held back by who waits"
    three.settle()
    assert node.component("m").log == [7, 9, 7, 1, 1, 8]
    assert node.counters["executions.active"] == 0


def test_readers_wait_while_it_runs(three):
    three.node.run_bootstrap(ModuleNames(("One",)))
    three.poll()
    three.node.invoke("Two", {"r": f32(9)})
    three.node.invoke("Three", {"r": f32(5)})
    three.settle()
    assert three.node.component("m").log == [1, 1, 9]
    assert three.node.component("n").log == [5]
    assert [w.target for w in three.of(steps.WaitingOnBootstrap)] == ["Two"]


def test_more_waiting_bodies_than_places_do_not_keep_the_bootstrap_out(bench, registry):
    from bb_edge.engine.config import NodeConfig

    b = bench(
        TARGETS, targets=("One", "Two", "Three"), registry=registry, config=NodeConfig(max_executions=3)
    )
    b.node.run_bootstrap(ModuleNames(("One", "Two")))
    b.poll()
    for n in range(6):
        b.node.invoke("One", {"x": f32(10 + n)})
    b.settle()
    log = b.node.component("m").log
    assert sorted(log) == [1, 1, 2, 2, 10, 11, 12, 13, 14, 15] and log[:2] == [1, 1]
    assert log.index(2) + 1 == len(log) - 1 - log[::-1].index(2), "nobody between the bootstrap's own ops"
    assert b.node.counters["executions.active"] == 0
