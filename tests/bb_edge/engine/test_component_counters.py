"""`ctx.count`: counters of a component's own, under the names that the node leaves free."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
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
from bb_edge.ir.counters import is_own
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


ROOT = Path(__file__).parents[3]
SHIPPED = ("bb_edge", "bb_host", "firmware_shims", "examples")


def counted_by_rule(tree: ast.AST) -> Iterator[tuple[int, str | None]]:
    """Line and name of each counter that the rule for authors holds for; None where the name is computed."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=whose), attr="count")) if "ctx" in whose:
                names = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            case ast.Call(func=ast.Attribute(attr="incr_metric")):
                names = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            case _:
                continue
        for name in names:
            text = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
            yield node.lineno, text


def test_nothing_shipped_counts_a_name_that_authors_are_refused() -> None:
    refused = []
    for path in sorted(file for room in SHIPPED for file in (ROOT / room).rglob("*.py")):
        for line, name in counted_by_rule(ast.parse(path.read_text("utf-8"))):
            if name is None or is_own(name):
                refused.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not refused, "a node's own counters are counted by the runtime, behind the call of the component"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('ctx.count("components.kept_anew")', ["components.kept_anew"]),
        ("names.count(name); ctx.runtime.count('ops.failed')", []),
        ("ctx.count(f'{x}.y', 2); g.incr_metric(name='a.b', trigger=t)", [None, "a.b"]),
    ],
)
def test_counts_are_found(text: str, names: list[str | None]) -> None:
    assert [name for _, name in counted_by_rule(ast.parse(text))] == names
