"""`ctx.count`: counters of a component's own, under the names that the node leaves free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32
from kinds_of_steps import of
from peers import A

from bb_edge.components import FedAvg
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles.errors import ComponentError

PROGRAM = """program Demo {module=Demo, targets="Server", binding.Server.agg="aggregator|test.Counting|1"}
function program.Server(x: F32[?], w: F32[], p: PeerIdVec) -> () {entry=1, partition=Server}
  c: CommandId = role.aggregator.Contribute(x, w, p) {slot=agg}
"""


class Counting(FedAvg):
    """Counts what it is told to."""

    TYPE_NAME = "test.Counting"
    counts: tuple[Any, ...] = ("acme.cut",)

    def contribute(self, ctx: Any, *more: Any) -> None:
        ctx.count(*self.counts)


@pytest.fixture
def node(compile_text) -> Node:
    registry = Registry()
    registry.register(Counting)
    config = NodeConfig.edge()
    own = PeerId.from_name("server")
    return install(own, (), compile_text(PROGRAM), ["Server"], config, registry=registry, seed=1)


def counted(node: Node, *counts: Any) -> list[steps.OpFailed]:
    component = node.component("agg")
    component.counts = counts or component.counts
    node.invoke("Server", {"x": f32(1), "w": np.float32(1), "p": (A,)})
    return of(steps.OpFailed, node.poll(1))


def test_a_component_counts_under_a_name_of_its_own(node):
    assert not counted(node)
    assert not counted(node, "acme.cut", np.int64(4))
    assert not counted(node, "acme.cut", 0)
    assert node.counters["acme.cut"] == 5


@pytest.mark.parametrize("counts", [("acme.cut", -1), ("acme.cut", 0.5), ("acme.cut", True), ("",), (7,)])
def test_what_no_counter_counts(node, counts):
    (failed,) = counted(node, *counts)
    assert isinstance(failed.error, ComponentError) and "ctx.count(" in failed.text


@pytest.mark.parametrize("name", ["ops.failed", "rounds_ended", "mqtt.x"])
def test_the_nodes_own_counters_are_its_own(node, name):
    (failed,) = counted(node, name)
    assert "begins as the node's own counters do" in failed.text and f"'acme.{name}'" in failed.text


def test_names_without_end_are_refused_a_place(node):
    for number in range(node.config.metric_names):
        counted(node, f"acme.{number}")
    own = [name for name in node.counters if name.startswith("acme.")]
    assert 0 < len(own) < node.config.metric_names
    assert node.counters["counters.refused"] > 0
