"""What an iteration costs that the engine runs: a loop against the same ops, as often as it goes round.

Both are compiled programs that a node runs whole, invoke to result. A training step is next batch, forward,
backward and update of a small net, as a client of a federation takes it; the smallest body is an addition and
an op of the engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bb_edge import NodeConfig, PeerId, install
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.steps import AppEvent, ExecutionEnded
from bb_edge.ir.values import TRIGGER
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable
from benchmarks.measuring import Row, in_turns, nanoseconds

TRIPS = 44
SAMPLES = 359


class Steps(Module):
    """Local steps of training, `TRIPS` of them."""

    name = "Steps"
    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def __init__(self, looped: bool) -> None:
        super().__init__()
        self.looped = looped

    def body(self, g: Graph) -> None:
        done: Any = g.input("x", "Trigger")
        if self.looped:
            with g.loop(TRIPS, after=done) as steps:
                x, y = self.shard.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            done = steps
        else:
            for _ in range(TRIPS):
                x, y = self.shard.next_batch(g, after=done)
                done = self.model.step(g, after=self.model.train(g, x, y))
        g.output("y", self.model.params(g, after=done))


class Additions(Module):
    """An addition and a syscall, `TRIPS` times."""

    name = "Steps"

    def __init__(self, looped: bool) -> None:
        super().__init__()
        self.looped = looped

    def body(self, g: Graph) -> None:
        x = g.input("x", "F32", (4,))
        if self.looped:
            with g.loop(TRIPS, carry=x) as step:
                step.next(g.pass_through(step.carried + 1.0))
            x = step.result
        else:
            for _ in range(TRIPS):
                x = g.pass_through(x + 1.0)
        g.output("y", x)


def side(module: Module, data: Path, given: object) -> tuple[Callable[[], float], Callable[[], Any]]:
    """(nanoseconds per iteration, one result) of a node that runs the module."""
    compiler = Compiler()
    if isinstance(module, Steps):
        net = trainable(mlp([64, 32, 10], seed=0), loss="softmax_cross_entropy", learning_rate=0.1)
        source = {"batch_size": 32, "one_hot": 10, "path": str(data)}
        compiler = compiler.bind_model("model", GraphModel, net)
        compiler = compiler.bind_data_source("shard", ArrayDataSource, source)
    (artifact,) = build_edge(module, compiler).artifacts
    node = install(PeerId.from_name("bench"), (), artifact.data, ["Steps"], NodeConfig.host(), seed=1)
    clock = [0]

    def once() -> Any:
        node.invoke("Steps", {"x": given})
        found: Any = None
        while True:
            clock[0] += 1
            for step in node.poll(clock[0]):
                if isinstance(step, AppEvent):
                    found = step.value
                if isinstance(step, ExecutionEnded):
                    return found

    return lambda: nanoseconds(once) / TRIPS, once


def run(rounds: int = 60, seconds: float = 20.0) -> list[Row]:
    """One row per body; raises AssertionError where a loop and its unrolled form disagree."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "shard.npz"
        rng = np.random.default_rng(0)
        np.savez(data, x=rng.random((SAMPLES, 64), np.float32), y=rng.integers(0, 10, SAMPLES))
        for what, kind, given, goal in (
            ("training step, 64-32-10", Steps, TRIGGER, 1.05),
            ("an addition and a syscall", Additions, np.zeros(4, np.float32), None),
        ):
            looped, looped_once = side(kind(True), data, given)
            unrolled, unrolled_once = side(kind(False), data, given)
            np.testing.assert_array_equal(looped_once(), unrolled_once())
            found = in_turns({"looped": looped, "unrolled": unrolled}, rounds, seconds / 2)
            figures = {name: value / 1000 for name, value in found.items()}
            rows.append(Row(what, figures, "µs", found["looped"] / found["unrolled"], goal))
    return rows
