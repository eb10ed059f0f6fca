"""Ops whose results have one reader each run in a row: nobody can tell it from turns of the loop."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from times import MS

from bb_edge import NodeConfig, PeerId, install
from bb_edge.backends import NumPyBackend
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine import steps
from bb_edge.registry import Registry
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.ir.proto import to_proto
from bb_host.learn import mlp, trainable

BLOCK = 2
MORE = {"beside others": ("model", "data", "other", "more"), "same model": ("model", "data", "more")}
KINDS = ("alone", "free data", *MORE)
QUIET = (steps.OpCompleted, steps.OpSink, steps.AsyncSuspended, steps.OpTrigger)


class Block(Module):
    """Two steps of training, and beside them those of other data, with another model or the same one."""

    name = "Block"
    model, data = ModelSlot("model"), DataSourceSlot("data")
    other, more = ModelSlot("other"), DataSourceSlot("more")

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def body(self, g: Graph) -> None:
        go = g.input("go", np.int64, [])
        pairs = [(self.model, self.data)]
        if self._kind in MORE:
            pairs.append((self.model if self._kind == "same model" else self.other, self.more))
        for number, (model, data) in enumerate(pairs):
            done = go
            for _ in range(BLOCK):
                loss = model.train(g, *data.next_batch(g, after=done))
                done = model.step(g, after=loss)
            g.output(f"params-{number}", model.params(g, after=done))


@dataclass
class Run:
    """A node, what it said in each poll, and what its components did."""

    node: Any
    said: list[list[str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)  # that an observer saw
    open: list[Any] = field(default_factory=list)
    params: list[bytes] = field(default_factory=list)
    clock_ns: int = 0

    def poll(self) -> None:
        told = []
        for step in self.node.poll(self.clock_ns):
            if isinstance(step, steps.AppEvent):
                self.params.append(np.asarray(step.value).tobytes())
            if not isinstance(step, QUIET):
                told.append(str(step))
        self.said.append(told)

    def settle(self) -> None:
        for _ in range(100):
            self.poll()
            while self.open:
                self.open.pop()()
            if self.node.next_deadline_ns() != 0:
                return
        raise AssertionError("it never comes to rest")

    def found(self) -> tuple[Any, ...]:
        return self.said, self.order, self.params, self.node.counters


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Gives a function that makes a run, of components with a trouble: the op, and what it does instead."""
    path = tmp_path / "shard.npz"
    rng = np.random.default_rng(1)
    np.savez(path, x=rng.standard_normal((8, 4)).astype(np.float32), y=np.arange(8) % 3)

    def make(
        trouble: str = "",
        *,
        kind: str = "alone",
        config: NodeConfig | None = None,
        timed: bool = False,
        snapshot: bytes = b"",
    ) -> Run:
        run = Run(None)
        where, _, how = trouble.partition(" ")

        def troubled(ctx: Any, op: str, slot: str, result: Any) -> Any:
            """It meets the second call of the first slot's op."""
            run.order.append(f"{op} {slot}")
            run.clock_ns += 60 * MS * timed
            if op != where or run.order.count(f"{op} {slot}") != 2 or slot not in ("data", "model"):
                return result
            if how == "fails":
                raise ValueError("it is over")
            if how == "gives nothing":
                return None
            if how == "gives one":
                return result[0], None
            later = ctx.later()
            run.open.append(lambda: later.complete(result))
            return later

        class Rows(ArrayDataSource):
            TYPE_NAME = "test.Rows"
            shared = concurrent = kind == "free data"  # nobody claims it, and it is never busy

            @classmethod
            def construct(cls, env: Any) -> Any:
                source = super().construct(env)
                source.slot = env.slot
                return source

            def next_batch(self, ctx: Any) -> Any:
                return troubled(ctx, "next_batch", self.slot, super().next_batch(ctx))

        class Learner(GraphModel):
            TYPE_NAME = "test.Learner"

            @classmethod
            def construct(cls, env: Any) -> Any:
                model = super().construct(env)
                model.slot = env.slot
                return model

            def train(self, ctx: Any, input: Any, target: Any) -> Any:
                return troubled(ctx, "train", self.slot, super().train(ctx, input, target))

            def step(self, ctx: Any, grads: Any = None) -> Any:
                return troubled(ctx, "step", self.slot, super().step(ctx, grads))

        registry = Registry()
        for each in (Rows, Learner, NumPyBackend):
            registry.register(each)
        compiler = Compiler()
        slots = MORE.get(kind, ("model", "data"))
        for seed, slot in enumerate(slots):
            if slot in ("model", "other"):
                compiler = compiler.bind_model(slot, Learner, trainable(mlp([4, 3], seed=seed)))
            else:
                compiler = compiler.bind_data_source(slot, Rows, {"batch_size": 2, "one_hot": 3})
        artifact = to_proto(compiler.run(Block(kind)).program).SerializeToString()
        more: dict[str, Any] = {"snapshot": snapshot} if snapshot else {}
        if timed:
            more["clock"] = lambda: run.clock_ns
        components = {name: {"path": str(path)} for name in slots if name in ("data", "more")}
        run.node = install(
            PeerId.from_name("n"), (), artifact, ["Block"], config or NodeConfig(),
            components=components, seed=1, registry=registry, **more,
        )  # fmt: skip
        return run

    return make


def invoked(run: Run, times: int = 1) -> Run:
    for _ in range(times):
        run.node.invoke("Block", {"go": np.zeros((), np.int64)})
    return run


def slowly(**settings: Any) -> NodeConfig:
    """A node that shows each op gives each a turn of its own."""
    return NodeConfig(trace=True, **settings)


TROUBLES = (
    "",
    *("next_batch fails", "next_batch comes later", "next_batch gives one"),
    *("train fails", "train comes later", "step fails", "step comes later", "train gives nothing"),
)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("timed", [False, True], ids=["untimed", "timed"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_is_what_happens_to_ops_by_turns(made: Any, trouble: str, timed: bool, kind: str):
    runs = []
    for config in (NodeConfig(), slowly()):
        run = invoked(made(trouble, kind=kind, timed=timed, config=config), times=2)
        run.settle()
        runs.append(run)
    assert runs[0].found() == runs[1].found()
    failed = [line for told in runs[0].said for line in told if line.startswith("OpFailed")]
    op, _, how = trouble.partition(" ")
    names = {"next_batch": "NextBatch", "train": "Train", "step": "Step"}
    assert len(failed) == how.startswith(("fails", "gives"))
    assert all(f"op='{names[op]}_" in line for line in failed)


@pytest.mark.parametrize("budget", range(1, 8))
def test_a_poll_ends_between_any_two_of_them_and_a_snapshot_goes_on_there(made: Any, budget: int):
    whole = invoked(made())
    whole.settle()
    runs = [invoked(made(config=kind(cycle_op_budget=budget))) for kind in (NodeConfig, slowly)]
    for run in runs:
        run.poll()
    short, long = runs
    kept = short.node.snapshot(1)
    assert kept == long.node.snapshot(1)
    assert len(short.order) == min(budget, 3 * BLOCK)
    restored = made(snapshot=kept)
    for run in (*runs, restored):
        run.settle()
    assert short.found() == long.found()
    assert short.order == whole.order == short.order[:budget] + restored.order
    assert short.params == restored.params == whole.params


def test_an_observer_sees_each_of_them(made: Any):
    run = made()

    def observed(op: Any) -> Any:
        inner = op.run
        return lambda ctx, *values: run.ops.append(ctx.op.spec.op_type) or inner(ctx, *values)

    run.node.observe_ops(observed)
    invoked(run).settle()
    assert run.ops == ["NextBatch", "Train", "Step"] * BLOCK + ["Params", "__output__"]


@pytest.mark.parametrize("slow", [False, True])
def test_values_are_handed_over_without_the_way_of_all_values(made: Any, slow: bool):
    run = invoked(made(config=slowly() if slow else NodeConfig()))
    calls: Counter[str] = Counter()
    sys.setprofile(lambda frame, what, _: calls.update([frame.f_code.co_name] if what == "call" else []))
    try:
        run.poll()
    finally:
        sys.setprofile(None)
    assert calls["next_batch"] >= BLOCK
    assert calls["write_all"] == 1 + BLOCK * slow  # the input, and batches with their labels
