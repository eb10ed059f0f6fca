"""The tensor work of a program is cleaned: it computes the same, and calls wait for what they waited for."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bb_edge.ir import keys
from bb_host import Module
from bb_host.build import build_edge
from bb_host.ir.facts import ProgramFacts
from bb_host.ir.proto import to_bytes
from bb_host.passes.one_pass import PassReport
from bb_host.passes.tensor.clean_work import clean_work
from bb_host.passes.tensor.collapse import Collapsed, collapse


def text(inputs: str, outputs: str, *lines: str) -> str:
    return f"function program.Main({inputs}) -> ({outputs})\n" + "".join(f"  {line}\n" for line in lines)


BODIES = {
    "work that does nothing": (
        text(
            "x: F32[2,3]", "y",
            "a = Transpose<perm=[1,0]>(x)", "b = Transpose<perm=[1,0]>(a)", "c = Identity(b)", "y = Neg(c)",
        ),
        [["Neg"]],
    ),
    "what is known": (
        text("x: F32[2,3]", "y", "a = Constant<value=F32[]{2.0}>()", "b = Add(a, a)", "y = Mul(b, x)"),
        [["Constant", "Mul"]],
    ),
    "nothing is left but a value": (
        text("x: F32[2,3]", "y, z", "a = Constant<value=F32[]{2.0}>()", "y = Add(a, a)", "z = Neg(x)"),
        [["Constant"], ["Neg"]],
    ),
    "what comes in goes out": (
        text("x: F32[2,3]", "y", "a = Identity(x)", "y = Identity(a)"),
        [["Identity"]],
    ),
    "two that are one then": (
        text("x: F32[2,3], z: F32[2,3]", "y, w", "a = Identity(x)", "y = Neg(a)", "w = Neg(z)"),
        [["Neg"]],
    ),
    "an op of the DSL stays": (
        text(
            "x: F32[2,3]", "y",
            "a = Identity(x)", "b = syscall.PassThrough(a)", "c = Identity(b)", "y = Neg(c)",
        ),
        [["Identity"], ["Neg"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_what_is_left_computes_the_same(name, compiled, run_main):
    source, expected = BODIES[name]
    before = collapse(compiled(source))
    after = clean_work(before)
    main, *bodies = after.program.functions
    assert [[op.op_type for op in body.ops] for body in bodies] == expected
    signatures = [
        [(op.inputs, op.outputs) for op in p.functions[0].ops] for p in (before.program, after.program)
    ]
    assert signatures[0] == signatures[1]
    inputs = {name: np.arange(6, dtype=np.float32).reshape(2, 3) + 1 for name in main.inputs}
    results = [run_main(to_bytes(p), inputs) for p in (before.program, after.program)]
    assert results[0].keys() == results[1].keys() == set(main.outputs)
    for output in main.outputs:
        np.testing.assert_array_equal(results[0][output], results[1][output])
    assert clean_work(after).program is after.program


def test_shapes_of_inputs_are_not_relied_on(compiled):
    """A peer may send an empty vector for any array: what a program asks of a shape is asked of what came."""
    lines = (
        "y = Shape(x)",
        "a = Identity(x)",
        "b = Size(a)",
        "c = Constant<value=I64[1]{4}>()",
        "z = Reshape(a, c)",
    )
    program = clean_work(collapse(compiled(text("x: F32[4]", "y, b, z", *lines)))).program
    bodies = [[op.op_type for op in body.ops] for body in program.functions[1:]]
    assert sorted(map(sorted, bodies)) == [["Constant", "Reshape", "Size"], ["Shape"]]


def test_what_is_clean_is_left_as_it_was(compiled):
    collapsed = collapse(compiled(text("x: F32[4]", "y", "a = Exp(x)", "y = Neg(a)")))
    assert clean_work(collapsed) is collapsed
    spelt = text("x: F32[4]", "y", "a = Constant<value_ints=[0]>()", "y = Squeeze(x, a)")
    collapsed = collapse(compiled(spelt))
    assert clean_work(collapsed) is collapsed


def test_graphs_of_components_keep_their_names(compiled):
    graph = "function component.m.forward(x: F32[4]) -> (y)\n  a = Identity(x)\n  y = Neg(a)\n"
    program = compiled(text("x: F32[4]", "y", "y = Neg(x)"), graph)
    after = clean_work(collapse(program)).program.functions[1]
    assert (after.name, after.inputs, after.outputs) == ("m.forward", ("x",), ("y",))
    assert [op.op_type for op in after.ops] == ["Neg"]


def test_an_artifact_is_left_alone(compiled):
    program = compiled(text("x: F32[4]", "y", "a = Identity(x)", "y = Neg(a)"))
    program = dataclasses.replace(program, facts=program.facts | ProgramFacts(stripped=True))
    collapsed = collapse(program)
    assert clean_work(Collapsed(collapsed.program, collapsed.origins)).program is collapsed.program


def test_every_pass_is_shown_and_reported(compiled):
    seen: list[str] = []
    reports: list[PassReport] = []
    program = compiled(text("x: F32[4]", "y", "a = Identity(x)", "y = Neg(a)"))
    clean_work(collapse(program), lambda name, before, after: seen.append(name), reports)
    assert seen == [report.name for report in reports]
    assert seen.count("identities") == 2


class Twice(Module):
    """A transpose that goes, and an Add that fails where the shapes do not broadcast."""

    home = "Server"

    def body(self, g):
        a, b = g.input("a", "F32"), g.input("b", "F32")
        there = g.onnx.transpose(g.onnx.transpose(a, perm=[1, 0]), perm=[1, 0])
        g.output("y", g.onnx.softmax(there + b, axis=1))


def test_the_source_map_names_what_is_left_and_what_is_gone():
    (artifact,) = build_edge(Twice()).artifacts
    (body,) = (f for f in artifact.program.functions if f.domain == keys.BACKEND_DOMAIN)
    (entries,) = json.loads(artifact.source_map)["functions"]["Server"]["ops"].values()
    assert [entry["op"] for entry in entries] == ["Transpose", "Transpose", "Add", "Softmax"]
    assert [entry.get("value") for entry in entries] == [None, None, *(op.outputs[0] for op in body.ops)]
