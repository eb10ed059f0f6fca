"""Loops and branches from the recorder to a node, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine import steps
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable
from bb_host.report.drawing import draw
from bb_host.report.inspection import describe

BATCH = 8


class Local(Module):
    """Epochs over a shard, as many steps as its size says; or the same unrolled."""

    name = "Local"
    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def __init__(self, epochs: int, unrolled: int = 0) -> None:
        super().__init__()
        self.epochs, self.unrolled = epochs, unrolled

    def body(self, g: Graph) -> None:
        done: Any = g.input("go", "Trigger")
        if self.unrolled:
            for _ in range(self.unrolled):
                x, y = self.shard.next_batch(g, after=done)
                done = self.model.step(g, after=self.model.train(g, x, y))
        else:
            count = self.shard.num_samples(g, after=done) * self.epochs
            with g.loop(g.onnx.div(count, BATCH), after=done) as step:
                x, y = self.shard.next_batch(g)
                loss = self.model.train(g, x, y)
                self.model.step(g, after=loss)
                losses = step.collect(loss)
            g.output("losses", losses)
            done = step
        g.output("params", self.model.params(g, after=done))


def node_of(module: Module, path: Path) -> Node:
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(mlp([4, 3, 2], seed=3), loss="softmax_cross_entropy"))
        .bind_data_source("shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": 2, "path": str(path)})
    )
    (artifact,) = build_edge(module, compiler).artifacts
    return install(PeerId.from_name("x"), (), artifact.data, ["Local"], NodeConfig.edge(), seed=7)


def run(node: Node, *inputs: dict[str, Any]) -> dict[str, Any]:
    for given in inputs:
        node.invoke("Local", given)
    found: list[Any] = []
    for now in range(1, 20):
        found += node.poll(now)
    assert [s for s in found if isinstance(s, steps.OpFailed | steps.ExecutionStarved)] == []
    return {s.topic: s.value for s in found if isinstance(s, steps.AppEvent)}


@pytest.mark.parametrize("rows", [40, 17])
def test_local_epochs_are_a_loop_over_the_size_of_the_shard(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "shard.npz"
    rng = np.random.default_rng(1)
    np.savez(path, x=rng.random((rows, 4), np.float32), y=rng.integers(0, 2, rows))
    trips = 3 * rows // BATCH
    found = run(node_of(Local(3), path), {"go": TRIGGER})
    same = run(node_of(Local(3, unrolled=trips), path), {"go": TRIGGER})
    assert found["losses"].shape == (trips,)
    np.testing.assert_array_equal(found["params"], same["params"])


class Chosen(Module):
    """One of two ways, with ops of a role in both, and a module called in one."""

    name = "Local"
    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def body(self, g: Graph) -> None:
        count = g.onnx.if_(
            g.input("p", "BOOL", ()),
            self.shard.num_samples,
            lambda b: b.onnx.cast(b.onnx.reduce_sum(self.shard.next_batch(b)[1], keepdims=0), to="I64"),
        )
        g.output("count", count)
        g.output("last", g.onnx.loop(2, None, g.input("x", "F32", ()), body=told))


def told(h: Graph, i: Any, going: Any, x: Any) -> Any:
    h.app_emit("told", x)
    return going, x + 1


def test_branches_and_loops_of_functions_hold_what_the_engine_runs(tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    np.savez(path, x=np.zeros((40, 4), np.float32), y=np.zeros(40, np.int64))
    node = node_of(Chosen(), path)
    for p, count in ((True, 40), (False, BATCH)):
        found = run(node, {"p": np.array(p), "x": np.float32(5)})
        assert (int(found["count"]), float(found["told"]), float(found["last"])) == (count, 6, 7)


class Tells(Module):
    """A topic that stands in a loop's body alone."""

    name = "Tells"

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic

    def body(self, g: Graph) -> None:
        with g.loop(3, after=g.input("go", "Trigger")) as step:
            g.app_emit(self.topic, step.index)


def test_what_a_body_holds_is_part_of_which_program_it_is() -> None:
    one, same, other = (build_edge(Tells(topic)).artifacts[0] for topic in ("a", "a", "b"))
    assert one.data == same.data
    assert load(one.data).identity.program == load(same.data).identity.program
    assert load(one.data).identity.program != load(other.data).identity.program


def test_warnings_are_those_of_any_body() -> None:
    class Idle(Module):
        name = "Idle"

        def body(self, g: Graph) -> None:
            x = g.input("x", "F32", ())
            with g.loop(3, after=x) as step:
                g.app_emit("i", step.index)
                g.pass_through(step.index)

    (warning,) = build_edge(Idle()).program.warnings
    assert (warning.code, "PassThrough" in warning.what) == ("unread-result", True)
    assert warning.where.startswith("test_loops.py:")


def test_reports_and_drawings_see_into_bodies() -> None:
    """The loop, what orders it, what its body tells and the end of that count as ops; the body has a box."""
    build = build_edge(Tells("seen"))
    (target,) = describe(build.artifacts[0].program)["partitions"]
    assert (target["ops"], target["ops_by_domain"]) == (4, {"syscall": 4})
    picture = draw(build.artifacts[0].program, ops=True)
    assert ("Tells.loop_1" in picture, picture.count("subgraph cluster_")) == (True, 2)
