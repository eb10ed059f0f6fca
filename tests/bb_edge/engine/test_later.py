"""Components that answer later: from any thread, once, within a deadline, one at a time."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.registry import Registry
from bb_edge.roles import TRIGGER, Codec, DataSource, PeerSelector
from bb_edge.roles.errors import CompletionExpiredError


class Slow(Codec):
    """`compress` answers when a test says so, `decompress` at once."""

    TYPE_NAME: ClassVar[str] = "test.Slow"

    def __init__(self) -> None:
        self.open: list[tuple[Any, Any]] = []  # (Later, input)
        self.how = "later"
        self.seen: list[float] = []

    @classmethod
    def construct(cls, env: Any) -> Slow:
        return cls()

    def compress(self, ctx: Any, t: Any) -> Any:
        self.seen.append(float(t[0]))
        if self.how == "now":
            return t
        later = ctx.later()
        self.open.append((later, t))
        if self.how == "fails":
            raise ValueError("after all")
        if self.how == "changes its mind":
            return t
        if self.how == "twice":
            second = ctx.later()
            self.open.append((second, t))
            return second
        if self.how == "another's":
            return self.open[0][0]
        return later

    def decompress(self, ctx: Any, code: Any) -> Any:
        return code * 10


class Unhurried(Slow):
    """The same, with several ops in flight."""

    TYPE_NAME: ClassVar[str] = "test.Unhurried"
    concurrent: ClassVar[bool] = True


class SlowSource(DataSource):
    """Two outputs, later."""

    TYPE_NAME: ClassVar[str] = "test.SlowSource"

    def __init__(self) -> None:
        self.open: list[Any] = []

    @classmethod
    def construct(cls, env: Any) -> SlowSource:
        return cls()

    def next_batch(self, ctx: Any) -> Any:
        self.open.append(ctx.later())
        return self.open[-1]

    def num_samples(self, ctx: Any) -> Any:
        return np.asarray(1)


class SlowView(PeerSelector):
    """Shared, yet with one op in flight."""

    TYPE_NAME: ClassVar[str] = "test.SlowView"

    def __init__(self) -> None:
        self.open: list[Any] = []

    @classmethod
    def construct(cls, env: Any) -> SlowView:
        return cls()

    def sample(self, ctx: Any, *, n: int, min: int = 0) -> Any:
        return self.current_view(ctx)

    def current_view(self, ctx: Any) -> Any:
        self.open.append(ctx.later())
        return self.open[-1]


@pytest.fixture
def registry():
    found = Registry()
    for cls in (Slow, Unhurried, SlowSource, SlowView):
        found.register(cls)
    return found


PROGRAM = """
program Demo {module=Demo, binding.Main.c="codec|TYPE|1"}
function program.Main(x: F32, y: F32) -> () {entry=1, partition=self}
  slot c: codec
  out: F32 = role.compressor.Compress(x) {slot=c DEADLINE}
  syscall.AppEmit<name="out">(out)
  fast: F32 = role.compressor.Decompress(y) {slot=c}
  syscall.AppEmit<name="fast">(fast)
"""


@pytest.fixture
def slow(bench, registry):
    """`slow(type, config, deadline)`: (bench, component)."""

    def make(kind=Slow, config=None, deadline=""):
        text = PROGRAM.replace("TYPE", kind.TYPE_NAME).replace("DEADLINE", deadline)
        b = bench(text, registry=registry, config=config)
        return b, b.node.component("c")

    return make


def test_a_thread_completes_it_and_wakes_the_poller(slow):
    b, component = slow()
    woken = threading.Event()
    b.node.invoke("Main", {"x": f32(1)})
    b.poll()
    assert b.node.counters["pending_async.count"] == 1
    b.node.set_waker(woken.set)
    later, value = component.open[0]
    thread = threading.Thread(target=later.complete, args=(value + 1,))
    thread.start()
    thread.join()
    assert woken.is_set() and b.node.next_deadline_ns() == 0
    b.poll()
    assert b.events("out")[0].tolist() == [2]
    assert b.node.counters["executions.active"] == b.node.counters["pending_async.count"] == 0


def test_the_deadline_fires_if_nobody_does(slow):
    b, component = slow(config=NodeConfig(later_deadline_ns=5 * S))
    b.node.invoke("Main", {"x": f32(1)})
    b.settle()
    assert b.now_ns == 5 * S
    error = b.of(steps.OpFailed)[0].error
    assert isinstance(error, CompletionExpiredError)
    assert "within 5 s" in str(error) and "raise limits.later_deadline_ns" in str(error)
    assert component.open[0][0].complete(f32(1)) is False
    b.poll()
    assert b.node.counters["completions.late"] == 1 and b.events("out") == []


def test_the_compilers_deadline_outranks_the_nodes(slow):
    b, _ = slow(deadline=", deadline_ns=2000000000")
    b.node.invoke("Main", {"x": f32(1)})
    b.settle()
    assert b.now_ns == 2 * S


def test_what_came_before_the_deadline_counts_even_if_polled_after_it(slow):
    b, component = slow(config=NodeConfig(later_deadline_ns=5 * S))
    b.node.invoke("Main", {"x": f32(1)})
    b.poll()
    component.open[0][0].complete(f32(7))
    b.poll(9 * S)
    assert b.events("out")[0].tolist() == [7] and b.of(steps.OpFailed) == []


def test_a_failure_ends_the_branch(slow):
    b, component = slow()
    b.node.invoke("Main", {"x": f32(1)})
    b.poll()
    component.open[0][0].fail(ValueError("broken"))
    b.settle()
    assert "broken" in str(b.of(steps.OpFailed)[0].error)
    assert b.of(steps.ExecutionEnded)[0].failed


def test_one_op_at_a_time(slow):
    b, component = slow()
    numbers = [b.node.invoke("Main", {"x": f32(n)}) for n in range(3)]
    b.poll()
    assert component.seen == [0], "Compress claims nothing, but the component is busy"
    for n in range(3):
        component.open[n][0].complete(f32(n))
        b.poll()
        assert component.seen == list(range(min(n + 2, 3)))
    assert [e.execution for e in b.of(steps.AppEvent)] == numbers


def test_everybody_who_waits_is_served_when_the_first_of_them_answers_at_once(slow):
    b, component = slow()
    for n in range(4):
        b.node.invoke("Main", {"x": f32(n)})
    b.poll()
    component.how = "now"
    component.open[0][0].complete(f32(0))
    b.settle()
    assert sorted(float(v[0]) for v in b.events("out")) == [0, 1, 2, 3]
    assert b.node.counters["executions.active"] == 0


def test_a_concurrent_component_has_several_in_flight(slow):
    b, component = slow(Unhurried)
    for n in range(3):
        b.node.invoke("Main", {"x": f32(n)})
    b.poll()
    assert component.seen == [0, 1, 2]
    for n in (2, 0, 1):
        component.open[n][0].complete(f32(n))
    b.poll()
    assert [float(v[0]) for v in b.events("out")] == [2, 0, 1]


@pytest.mark.parametrize(
    ("how", "result"),
    [("fails", "after all"), ("changes its mind", None), ("another's", "Later of another call")],
)
def test_a_later_that_is_not_returned_parks_nothing(slow, how, result):
    b, component = slow()
    if how == "another's":
        b.node.invoke("Main", {"x": f32(1)})
        b.poll()
        component.open[0][0].complete(f32(1))
        b.poll()
    component.how = how
    b.node.invoke("Main", {"x": f32(2)})
    b.node.invoke("Main", {"y": f32(3)})
    b.poll()
    if result is None:
        assert b.events("out")[-1].tolist() == [2]
    else:
        assert result in str(b.of(steps.OpFailed)[-1].error)
    assert b.events("fast")[0].tolist() == [30], "the next op is not taken for the parked one"
    assert b.node.counters["pending_async.count"] == b.node.counters["executions.active"] == 0
    assert component.open[-1][0].complete(f32(9)) is False


def test_a_second_later_in_one_call_takes_the_place_of_the_first(slow):
    b, component = slow()
    component.how = "twice"
    b.node.invoke("Main", {"x": f32(1)})
    b.poll()
    first, second = (later for later, _ in component.open)
    assert first.complete(f32(5)) is False
    assert second.complete(f32(6)) is True
    b.poll()
    assert b.events("out")[0].tolist() == [6]
    assert b.node.counters["executions.active"] == 0


def test_a_result_beyond_its_budget_fails_the_op(slow):
    for size, fits in ((16, True), (17, False)):
        b, component = slow(config=NodeConfig(completion_bytes=64))
        b.node.invoke("Main", {"x": f32(1)})
        b.poll()
        component.open[0][0].complete(np.zeros(size, np.float32))
        b.poll()
        assert bool(b.events("out")) is fits
        assert [type(s.error) for s in b.of(steps.OpFailed)] == ([] if fits else [CapacityError])


def test_the_number_of_parked_ops_is_bounded(slow):
    b, _ = slow(Unhurried, config=NodeConfig(pending_async=2))
    for n in range(3):
        b.node.invoke("Main", {"x": f32(n)})
    b.poll()
    (failed,) = b.of(steps.OpFailed)
    assert isinstance(failed.error, OpError) and "pending_async" in str(failed.error)


@pytest.mark.parametrize(
    "outs", ["x: F32 = role.data_loader.NextBatch", "x: F32, y: F32 = role.data_loader.NextBatch"]
)
def test_a_later_with_several_outputs(bench, registry, outs):
    b = bench(
        'program Demo {module=Demo, binding.Main.d="data_source|test.SlowSource|1"}\n'
        "function program.Main(go: Trigger) -> () {entry=1, partition=self}\n  slot d: data_source\n"
        f'  {outs}(go) {{slot=d, control_inputs=1}}\n  syscall.AppEmit<name="x">(x)',
        registry=registry,
    )
    b.node.invoke("Main", {"go": TRIGGER})
    b.poll()
    b.node.component("d").open[0].complete((f32(4), f32(5)))
    b.poll()
    assert b.events("x")[0].tolist() == [4]


def test_a_shared_component_has_one_op_in_flight_too(bench, registry):
    b = bench(
        'program Demo {module=Demo, binding.Main.p="peer_selector|test.SlowView|1"}\n'
        "function program.Main(go: Trigger) -> () {entry=1, partition=self}\n  slot p: peer_selector\n"
        '  v: PeerIdVec = role.peer_selector.CurrentView(go) {slot=p, control_inputs=1}\n  syscall.AppEmit<name="v">(v)',
        registry=registry,
    )
    b.node.invoke("Main", {"go": TRIGGER})
    b.node.invoke("Main", {"go": TRIGGER})
    b.poll()
    component = b.node.component("p")
    assert len(component.open) == 1
    for n in range(2):
        component.open[n].complete(())
        b.poll()
    assert b.events("v") == [(), ()]


def test_offloaded_work_runs_on_the_executor_and_inline_without_one(compile_text, registry):
    from concurrent.futures import ThreadPoolExecutor

    from bb_edge.installer import install
    from bb_edge.ir.ids import PeerId

    class Heavy(Slow):
        TYPE_NAME: ClassVar[str] = "test.Heavy"
        threads: ClassVar[list[str]] = []

        def compress(self, ctx: Any, t: Any) -> Any:
            def work() -> Any:
                self.threads.append(threading.current_thread().name)
                if t[0] < 0:
                    raise ValueError("below zero")
                return t * 2

            return ctx.offload(work)

    registry.register(Heavy)
    data = compile_text(PROGRAM.replace("TYPE", "test.Heavy").replace("DEADLINE", ""))
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        for executor in (None, pool):
            node = install(
                PeerId.from_name("n"), (), data, ["Main"], registry=registry, seed=1, executor=executor
            )
            came = threading.Semaphore(0)
            seen: list[Any] = []
            for value in (3, -1):
                node.invoke("Main", {"x": f32(value)})
                node.set_waker(came.release)
                seen += node.poll(0)
                assert came.acquire(timeout=60)
                node.set_waker(None)
                seen += node.poll(1)
            assert [s.value.tolist() for s in seen if isinstance(s, steps.AppEvent)] == [[6]]
            assert ["below zero" in str(s.error) for s in seen if isinstance(s, steps.OpFailed)] == [True]
            assert node.counters["executions.active"] == 0
    assert Heavy.threads[:2] == [threading.current_thread().name] * 2
    assert all(name.startswith("pool") for name in Heavy.threads[2:]) and len(Heavy.threads) == 4
