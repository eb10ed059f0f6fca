"""The tree of modules that a recorded program holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="recording needs the host extra")

from bb_host import ModelSlot, Module, PeerSelectorSlot
from bb_host.ir.module_tree import module_tree


class Leaf(Module):
    name = "Leaf"

    def body(self, g: Any) -> None:
        g.output("y", g.onnx.relu(g.input("x", np.float32, (2,))))


class Branch(Module):
    name = "Branch"
    model = ModelSlot("model")

    def body(self, g: Any) -> None:
        x = g.call(Leaf(), x=g.input("x", np.float32, (2,)))["y"]
        g.output("y", self.model.forward(g, x))


class Root(Module):
    name = "Root"
    peers = PeerSelectorSlot("peers")

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (2,))
        p = g.net_out("there", self.peers.current_view(g, after=x), g.call(Branch(), x=x)["y"])
        g.output("z", g.call(Leaf(), x=p)["y"])


def test_modules_stand_under_who_calls_them():
    tree = module_tree(Root().record())
    assert (tree.name, tree.inputs, tree.ports, tree.slots) == ("Root", ("x",), ("there",), ("peers",))
    branch, leaf = tree.children
    assert branch.name.startswith("Branch") and branch.slots == ("model",)
    (inner,) = branch.children
    assert inner == leaf and leaf.inputs == ("x",) and leaf.children == ()
    assert [line.count("  ") for line in tree.lines()] == [0, 1, 2, 1]
    assert tree.lines()[0].endswith("ports there")


def test_a_module_alone_is_a_tree():
    assert module_tree(Leaf().record()).children == ()
