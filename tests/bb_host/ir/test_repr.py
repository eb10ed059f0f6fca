"""What `print` shows of a program: one line per record, whatever it holds."""

from __future__ import annotations

import numpy as np

from bb_host import AggregatorSlot, Compiler, Graph, Module
from bb_host.ir.program import RawAttribute, RawTensor, Slot, walk_ops


class Big(Module):
    sums = AggregatorSlot("sums", "bb.FedAvg", {}, at="self")

    def body(self, g: Graph) -> None:
        print(g)
        x = g.input("x", "F32", (4,))
        for _ in range(100):
            x = x @ np.ones((4, 4), np.float32)
        y = g.onnx.if_(g.input("up", "BOOL", ()), lambda h: x + 1, lambda h: -x)
        self.sums.contribute(g, y)
        g.output("mean", self.sums.aggregate(g, after=y)[0])
        g.output("y", y)


def test_each_record_is_printed_as_one_line(capsys) -> None:
    program = Big().record()
    (function,) = program.functions
    assert repr(Big()) == "<module Big>"
    assert capsys.readouterr().out == "<graph of Big: 0 ops recorded>\n"
    assert repr(program) == f"<Program Big: 1 function, {len(function.ops)} ops>"
    assert repr(function) == f"<Function Big(x, up) → mean, y: {len(function.ops)} ops>"
    assert repr(function.slots["sums"]) == "<Slot aggregator, bb.FedAvg, at self>"
    assert repr(Slot("")) == "<Slot attribute>"
    shown = [repr(op) for op in walk_ops(function.ops)]
    assert "<Op MatMul(x, const_1) → mat_mul_1>" in shown
    assert not any("\n" in text or len(text) > 120 for text in shown)
    compiled = Compiler().compile_program(Big())
    assert not any("\n" in repr(f) or len(repr(f)) > 120 for f in compiled.functions)


def test_long_signatures_and_raw_values_are_cut() -> None:
    program = Module.record(type("Many", (Module,), {"body": _many})())
    assert repr(program.functions[0]).startswith("<Function Many(i0, i1, i2, i3, …) → o0, o1, o2, o3, …: ")
    assert repr(RawTensor(16, (2, 3), bytes(12))) == "<RawTensor of element type 16, [2, 3], 12 bytes>"
    assert repr(RawAttribute(11, bytes(9))) == "<RawAttribute of kind 11, 9 bytes>"


def _many(self: Module, g: Graph) -> None:
    for i in range(9):
        g.output(f"o{i}", g.input(f"i{i}", "F32"))
