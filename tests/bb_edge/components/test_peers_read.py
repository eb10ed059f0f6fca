"""What a component may read of peers: the classes that its node hears, and no others without a word."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Opset, Table
from bb_edge.registry import Registry
from bb_edge.roles import ProtocolComponent

A = PeerId.from_name("a")
PROGRAM = """
program Demo {module=Demo, HEARS targets=Main, binding.Main.r="protocol|test.Reader|1"}
function program.Main(x: F32[1]) -> () {entry=1, partition=Main}
  slot r: protocol
  n: Tensor = "test.reader"::READ(x) {slot=r}
  syscall.AppEmit<name="n">(n)
"""


class Reader(ProtocolComponent):
    """Counts the clients."""

    TYPE_NAME: ClassVar[str] = "test.Reader"

    @classmethod
    def construct(cls, env: Any) -> Reader:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.reader")
        table.op("Up", "x:Tensor", "n:Tensor")
        table.op("Known", "x:Tensor", "n:Tensor")
        return table.opset()

    def up(self, ctx: Any, x: Any) -> Any:
        return np.asarray(len(ctx.peers.up_peers("Client")))

    def known(self, ctx: Any, x: Any) -> Any:
        return np.asarray(len(ctx.peers.known_peers("Client")))


@pytest.fixture
def read(bench):
    """`read(op, hears)`: what a component sees of the clients, or the op's failure."""

    def make(op, hears):
        registry = Registry()
        registry.register(Reader)
        text = PROGRAM.replace("READ", op).replace("HEARS", hears)
        b = bench(text, registry=registry)
        b.node.peer_presence(A, True, epoch=1, classes=("Client",), session=1)
        b.node.invoke("Main", {"x": np.ones(1, np.float32)})
        b.settle()
        failed = b.of(steps.OpFailed)
        return str(failed[0].error) if failed else int(b.events("n")[0])

    return make


@pytest.mark.parametrize("op", ["Up", "Known"])
def test_a_class_that_the_node_hears_nothing_of_is_refused(read, op):
    said = read(op, 'hears.Main="Server",')
    assert "hears nothing of class Client, but of Server" in said
    assert 'peer_class="Client"' in said
    assert "but of no class" in read(op, 'hears.Main="",')


@pytest.mark.parametrize("op", ["Up", "Known"])
@pytest.mark.parametrize("hears", ["", 'hears.Main="Client,Server", asks.Main="Server",'])
def test_a_class_that_is_heard_is_read(read, op, hears):
    """An artifact that does not say what it hears, hears every class."""
    assert read(op, hears) == 1
