"""Straight-line schedules against the scheduler's loop: nothing shows but the time that they save."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles.programs import BackendProgram

TEXT = """program Demo {module=Demo}
function program.Main(x: F32, b: F32) -> (y, z) {entry=1, partition=self}
  y: F32, w: F32, z: F32 = backend.subgraph_0(x, b)
  syscall.AppEmit<name="__w">(w)
function backend.subgraph_0(x: F32, b: F32) -> (y, w, z) {backend_slot=backend}
  y: F32 = Add(x, b)
  w: F32 = Neg(y)
  z: F32 = Mul(w, b)
"""
PLAIN = "\n".join(line for line in TEXT.splitlines() if "AppEmit" not in line)
TWICE = """function module.Twice(v: F32) -> (w) {}
  w: F32 = Add(v, v)
"""
ONE = """program Demo {module=Demo}
function program.Main(x: F32) -> (y) {entry=1, partition=self}
  y: F32 = backend.subgraph_0(x)
function backend.subgraph_0(x: F32) -> (y) {backend_slot=backend}
  y: F32 = Neg(x)
"""


def straight(node: Node) -> list[str]:
    """The targets whose invokes run straight where nothing else waits."""
    found: list[str] = node.inspect().node["straight"]
    return found


def on_the_long_way(bench: Any, text: str, **config: Any) -> Any:
    b = bench(text, config=NodeConfig(**config))
    b.node.observe_ops(lambda op: op.run)
    assert not straight(b.node)
    return b


def said(b: Any) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for step in b.said:
        value = getattr(step, "value", None)
        parts = (getattr(step, name, None) for name in ("target", "execution", "topic", "op", "failed"))
        error = getattr(step, "error", None)
        found.append((type(step), *parts, None if value is None else np.asarray(value).tolist(), str(error)))
    return found


def same(a: Any, b: Any) -> None:
    assert said(a) == said(b)
    assert a.node.counters == b.node.counters
    assert a.node.next_deadline_ns() == b.node.next_deadline_ns()


def values(size: int = 3, other: int | None = None) -> dict[str, object]:
    rng = np.random.default_rng(size)
    return {
        "x": rng.random(size, np.float32),
        "b": rng.random(size if other is None else other, np.float32),
    }


@pytest.mark.parametrize("budget", [1, 2, 3, 1000])
@pytest.mark.parametrize("waiting", [1, 2, 40])
def test_the_same_is_said_and_counted(bench: Any, budget: int, waiting: int) -> None:
    short = bench(PLAIN, config=NodeConfig(cycle_op_budget=budget))
    long = on_the_long_way(bench, PLAIN, cycle_op_budget=budget)
    assert straight(short.node) == ["Main"]
    for b in (short, long):
        for _ in range(3):
            for number in range(waiting):
                b.node.invoke("Main", values(number + 1))
            b.settle()
    same(short, long)
    assert len(short.of(steps.AppEvent)) == 2 * 3 * waiting


def test_a_call_that_fails_is_named_and_a_value_that_is_too_large_is_left_out(bench: Any) -> None:
    short = bench(PLAIN, config=NodeConfig(app_event_bytes=64))
    long = on_the_long_way(bench, PLAIN, app_event_bytes=64)
    assert straight(short.node)
    for b in (short, long):
        for inputs in (values(), values(3, 2), values(17), values()):
            b.node.invoke("Main", inputs)
            b.settle()
    same(short, long)
    assert [s.failed for s in short.of(steps.ExecutionEnded)] == [False, True, False, False]
    assert len(short.of(steps.OpFailed)) == 1 and short.node.counters["ops.failed"] == 1
    assert [s.omitted_bytes for s in short.of(steps.AppEvent)] == [0, 0, 68, 68, 0, 0]
    assert short.node.counters["app_events.omitted"] == 2


def test_with_an_input_missing_it_starves_as_ever(bench: Any) -> None:
    short, long = bench(PLAIN), on_the_long_way(bench, PLAIN)
    for b in (short, long):
        b.node.invoke("Main", {"x": np.ones(2, np.float32)})
        b.settle()
    assert [s.failed for s in short.of(steps.ExecutionEnded)] == [True]
    assert len(short.of(steps.ExecutionStarved)) == 1
    assert [type(s) for s in short.said] == [type(s) for s in long.said]


def test_who_wants_to_see_every_op_sees_every_op(bench: Any) -> None:
    assert not straight(bench(PLAIN, config=NodeConfig(trace=True)).node)
    b, seen = bench(PLAIN), []
    b.node.invoke("Main", values())  # waits already

    def wrap(op: Any) -> Any:
        inner = op.run

        def run(ctx: Any, *inputs: Any) -> Any:
            seen.append((op.spec.op_type, ctx.execution.id))
            return inner(ctx, *inputs)

        return run

    b.node.observe_ops(wrap)
    b.settle()
    assert [kind for kind, _ in seen] == ["subgraph_0", "__output__", "__output__"]


def test_more_than_tensor_work_goes_the_long_way(bench: Any) -> None:
    assert straight(bench(TEXT).node) and straight(bench(ONE).node)
    for line in (
        '  syscall.IncrMetric<name="n">(y)',
        '  syscall.Record<name="r">(y)',
        "  t: F32 = syscall.PassThrough(y)",
        "  t: F32 = module.Twice(y)",
    ):
        text = ONE.replace("_0(x)\nf", f"_0(x)\n{line}\nf") + TWICE
        assert line in text and not straight(bench(text).node), line


def graph(dice: random.Random) -> str:
    """Tensor work of some ops, one of whose inputs may have a wrong size; everything is told."""
    known, lines = ["x", "b", "bad"], []
    for number in range(dice.randrange(1, 25)):
        name, a, b = f"v{number}", dice.choice(known), dice.choice(known)
        kind = dice.randrange(6)
        if kind < 2:
            lines.append(f"  {name}: F32 = {dice.choice(('Add', 'Mul', 'Sub'))}({a}, {b})")
        elif kind == 2:
            lines.append(f"  {name}: F32 = {dice.choice(('Neg', 'Exp'))}({a})")
        elif kind == 3:
            lines.append(f"  {name}: F32, {name}b: F32 = backend.subgraph_0({a}, {b})")
            known.append(f"{name}b")
        elif kind == 4:
            lines.append(f"  {name}: F32 = Clip({a}, low, high)")
        else:
            lines.append(f'  syscall.AppEmit<name="{name}">({a})')
            continue
        known.append(name)
    outputs = ", ".join(dict.fromkeys(dice.choice(known) for _ in range(3)))
    return f"""program Demo {{module=Demo}}
function program.Main(x: F32, b: F32, bad: F32) -> ({outputs}) {{entry=1, partition=self}}
  low: F32 = Constant<value=F32[]{{-1}}>()
  high: F32 = Constant<value=F32[]{{1}}>()
{chr(10).join(lines)}
function backend.subgraph_0(p: F32, q: F32) -> (r, s) {{backend_slot=backend}}
  r: F32 = Add(p, q)
  s: F32 = Sub(p, r)
"""


@pytest.mark.parametrize("seed", range(60))
def test_any_tensor_work_says_and_counts_the_same(bench: Any, seed: int) -> None:
    dice = random.Random(seed)
    text, budget = graph(dice), dice.choice((1, 3, 12, 1000))
    short = bench(text, config=NodeConfig(cycle_op_budget=budget))
    long = on_the_long_way(bench, text, cycle_op_budget=budget)
    assert straight(short.node) == ["Main"]
    for size in (3, 2, 3):
        inputs = {name: np.full(3, i, np.float32) for i, name in enumerate(("x", "b", "bad"))}
        inputs["bad"] = np.full(size, 0.5, np.float32)
        for b in (short, long):
            b.node.invoke("Main", inputs)
            b.settle()
        same(short, long)
    for names in (("bad", "b", "x"), ("x", "b")):  # in another order, and with one missing
        for b in (short, long):
            b.node.invoke("Main", {name: np.ones(3, np.float32) for name in names})
            b.settle()
        assert said(short) == said(long)


OTHERS = """
function program.Others() -> () {entry=1, partition=self}
  t: Timestamp = syscall.Interval<period_ns=100>()
  syscall.AppEmit<name="tick">(t)
  p: Trigger = syscall.LifecyclePhase<phase=2>()
  syscall.AppNotify<name="phase">(p)
  e: EventKind = syscall.EventSource<kind=1>()
  syscall.AppEmit<name="failure">(e)
  u: EventKind = syscall.EventSource<kind=2>()
  syscall.AppEmit<name="up">(u)
"""


@pytest.mark.parametrize(
    ("what", "heard"),
    [
        ("nothing", ["y", "z"]),
        ("timer", ["y", "z", "tick"]),
        ("phase", ["y", "z", "phase"]),
        ("failure", ["failure"]),
        ("presence", ["y", "z", "up"]),
    ],
)
def test_whatever_else_there_is_happens_in_the_same_poll(bench: Any, what: str, heard: list[str]) -> None:
    heads, rest = PLAIN.split("function backend", 1)
    text = f"{heads}{OTHERS.strip()}\nfunction backend{rest}"
    targets = ("Main", "Others")
    short, long = bench(text, targets), bench(text, targets)
    long.node.observe_ops(lambda op: op.run)
    assert straight(short.node) == ["Main"]
    for b in (short, long):
        b.poll()
        inputs = values(3, 2) if what == "failure" else values()
        if what == "phase":
            b.node.fire_lifecycle(steps.Phase.SNAPSHOT)
        elif what == "presence":
            b.node.peer_presence(PeerId.from_name("other"), True)
        b.node.invoke("Main", inputs)
        b.poll(100 if what == "timer" else 0)
        assert [s.topic for s in b.of(steps.AppEvent)] == heard
    same(short, long)


def test_values_go_with_their_last_reader(bench: Any) -> None:
    """A chain of a hundred large values holds two or three of them at a time."""
    names = ["x", *(f"v{i}" for i in range(100))]
    body = "\n".join(f"  {b}: F32 = Add({a}, {a})" for a, b in itertools.pairwise(names))
    text = f"""program Demo {{module=Demo}}
function program.Main(x: F32) -> (v99) {{entry=1, partition=self}}
{body}
"""
    b = bench(text, config=NodeConfig(invoke_bytes=1 << 20, app_event_bytes=1 << 20))
    assert straight(b.node)
    x = np.zeros(1 << 16, np.float32)
    for _ in range(2):
        tracemalloc.start()
        try:
            b.node.invoke("Main", {"x": x})
            b.settle()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 4 * x.nbytes


class Interrupted(NumPyBackend):
    """A backend whose ops are interrupted by whoever stops the process."""

    TYPE_NAME: ClassVar[str] = "test.Interrupted"

    def prepare(self, *_: object, **__: object) -> BackendProgram:
        class Stopped(BackendProgram):
            def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
                raise KeyboardInterrupt

        return Stopped()


def test_a_stopped_process_has_no_open_execution(compile_text: Any) -> None:
    registry = Registry()
    registry.register(Interrupted)
    model = ModelProto.FromString(compile_text(ONE))
    for prop in model.metadata_props:
        prop.value = prop.value.replace(NumPyBackend.TYPE_NAME, Interrupted.TYPE_NAME)
    artifact = model.SerializeToString()
    node = install(PeerId.from_name("node"), (), artifact, ["Main"], registry=registry, seed=7)
    assert straight(node) == ["Main"]
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    with pytest.raises(KeyboardInterrupt):
        node.poll(1)
    assert [s.failed for s in node.poll(2) if isinstance(s, steps.ExecutionEnded)] == [True]
    assert node.counters["executions.active"] == 0


def test_it_may_be_invoked_from_other_threads(bench: Any) -> None:
    b = bench(ONE, config=NodeConfig(ingress_entries=1000))
    numbers: list[int] = []

    def ask() -> None:
        for _ in range(50):
            numbers.append(b.node.invoke("Main", {"x": np.ones(2, np.float32)}))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        b.settle()
    b.settle()
    assert sorted(s.execution for s in b.of(steps.ExecutionEnded)) == sorted(numbers)
    assert len(set(numbers)) == 200 and not any(s.failed for s in b.of(steps.ExecutionEnded))
