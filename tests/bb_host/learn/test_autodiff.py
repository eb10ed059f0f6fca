"""The shape of gradient graphs: what they keep, what they leave out, what they refuse."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bb_host.errors import LearnError, NotDifferentiableError
from bb_host.ir.program import Op, Program
from bb_host.ir.proto import to_bytes
from bb_host.learn import differentiate

MLP = """function f(x: F32[n,4], w: F32[4,3], b: F32[3]) -> (y)
  a = MatMul(x, w)
  z = Add(a, b)
  y = Relu(z)
  unread = Exp(a)
"""


def op_types(function) -> list[str]:
    return [op.op_type for op in function.ops]


def test_the_forward_graph_hands_out_what_the_gradient_reads(read):
    found = differentiate(read(MLP.replace("y = Relu(z)", "h = Relu(z)\n  y = Mul(h, h)")), ["w", "b"])
    assert found.forward.outputs == ("y", "h")
    assert found.activations == ("h",)
    assert found.backward.inputs == ("x", "w", "b", "h", "d_y")
    assert found.backward.outputs == ("d_w", "d_b")


def test_an_output_that_the_gradient_reads_is_handed_out_as_a_copy(read):
    found = differentiate(read(MLP), ["w"])
    assert found.forward.outputs == ("y", "y_kept")
    assert found.forward.ops[-1].op_type == "Identity"
    assert "y_kept" in found.backward.inputs


def test_dead_ops_are_dropped(read):
    found = differentiate(read(MLP), ["b"])
    assert "Exp" not in op_types(found.forward)
    assert "MatMul" not in op_types(found.backward)


def test_no_gradient_is_computed_for_inputs_that_nobody_asked_for(read):
    only_w = differentiate(read(MLP), ["w"]).backward
    assert op_types(only_w).count("MatMul") == 1
    assert op_types(differentiate(read(MLP), ["x", "w"]).backward).count("MatMul") == 2


def test_what_only_moves_data_is_done_again_rather_than_kept(read):
    text = """function f(x: F32[n,4], w: F32[3,4]) -> (y)
  t = Transpose<perm=[1, 0]>(w)
  y = MatMul(x, t)
"""
    found = differentiate(read(text), ["x", "w"])
    assert found.activations == ()
    assert op_types(found.backward).count("Transpose") >= 2


def test_a_shape_is_kept_rather_than_the_value_that_has_it(read):
    text = """function f(x: F32[n,m], w: F32[1,1]) -> (y)
  a = Exp(x)
  s = NonZero(a)
  c = Cast<to=1>(s)
  p = Mul(c, w)
  q = Add(p, w)
  y = ReduceSum<keepdims=0>(q)
"""
    found = differentiate(read(text), ["w"])
    assert found.activations == ("s", "q_shape")  # and c is cast again


def test_a_gradient_is_expanded_only_where_no_product_does_it(read):
    text = """function f(x: F32[n,4], w: F32[4]) -> (y)
  p = Mul(x, w)
  y = ReduceSum<keepdims=0>(p)
"""
    assert "Expand" not in op_types(differentiate(read(text), ["w"]).backward)  # dy * x has the shape of p
    assert "Expand" in op_types(differentiate(read(text), ["x"]).backward)  # dy * w has that of w


def test_equal_ops_are_written_once(read):
    text = "function f(x: F32[3], y: F32[3]) -> (z)\n  a = Mul(x, y)\n  b = Mul(x, y)\n  z = Add(a, b)\n"
    found = differentiate(read(text), ["x"]).backward
    assert op_types(found) == ["Mul", "Add"]


def test_one_gradient_for_two_inputs_is_copied(read, reference):
    text = "function f(a: F32[3], b: F32[3]) -> (z)\n  z = Add(a, b)\n"
    found = differentiate(read(text), ["a", "b"]).backward
    ones = np.ones(3, np.float32)
    results = reference(found, {"a": ones, "b": ones, "d_z": ones * 4})
    assert [results[name].tolist() for name in ("d_a", "d_b")] == [[4, 4, 4], [4, 4, 4]]


def test_names_that_are_taken_are_avoided(read):
    text = "function f(d_z: F32[3], g_mul: F32[3]) -> (z)\n  z = Mul(d_z, g_mul)\n"
    found = differentiate(read(text), ["d_z", "g_mul"]).backward
    names = [*found.inputs, *(v for op in found.ops for v in op.outputs)]
    assert len(names) == len(set(names))


def test_the_input_is_left_as_it_was_and_the_result_repeats(read):
    function = read(MLP)
    before = to_bytes(Program("p", (function,)))
    first, second = differentiate(function, ["w", "b"]), differentiate(function, ["w", "b"])
    assert to_bytes(Program("p", (function,))) == before
    for a, b in ((first.forward, second.forward), (first.backward, second.backward)):
        assert to_bytes(Program("p", (a,))) == to_bytes(Program("p", (b,)))


def test_values_of_both_graphs_are_typed(read, f32):
    found = differentiate(read(MLP), ["w", "b"])
    assert found.backward.types["d_w"] == f32(4, 3)
    assert found.backward.types["d_y"] == f32("n", 3)
    assert found.forward.types["y"] == f32("n", 3)


# --- refusals -------------------------------------------------------------------------------------

REFUSED = [
    ("y = Round(x)\n  z = CenterCropPad(x, i)", "CenterCropPad", "no gradient rule"),
    ('s = ScatterElements<reduction="mul">(x, i, i)\n  z = Exp(s)', "ScatterElements", "reduction is mul"),
    (
        "c = Cast<to=7>(x)\n  d = Reshape(x, c)\n  z = Unsqueeze(d, i)\n  q = Slice(z, c, c)",
        "Slice",
        "computed",
    ),
]


@pytest.mark.parametrize(("lines", "op", "what"), REFUSED)
def test_an_op_without_gradient_is_named(lines, op, what, read):
    last = lines.split("\n")[-1].split("=")[0].strip()
    text = (
        f"function f(x: F32[4]) -> ({last})\n  i = Constant<value=I64[1]{{0}}>()\n"
        f"  i2 = Constant<value=I64[1]{{2}}>()\n  {lines}\n"
    )
    with pytest.raises(NotDifferentiableError, match=what) as caught:
        differentiate(read(text), ["x"])
    assert caught.value.op_type == op
    assert op in str(caught.value)
    assert caught.value.node


def test_the_refusal_names_the_authors_line(read):
    text = """function f(x: F32[4]) -> (z)
  i = Constant<value=I64[1]{4}>()
  z = CenterCropPad(x, i) {source="net.py:12"}
"""
    with pytest.raises(NotDifferentiableError, match=r"net\.py:12"):
        differentiate(read(text), ["x"])


@pytest.mark.parametrize("constant", ["value=I64[1]{1}", "value_ints=[1]"])
def test_every_spelling_of_a_constant_is_read(constant, read):
    text = f"""function f(x: F32[4,3]) -> (y)
  a = Constant<{constant}>()
  y = ReduceSum<keepdims=0>(x, a)
"""
    assert differentiate(read(text), ["x"]).activations == ()


def test_an_op_off_the_way_is_not_asked(read):
    text = """function f(x: F32[4], w: F32[4]) -> (z)
  i = Constant<value=I64[1]{4}>()
  c = CenterCropPad(x, i)
  z = Mul(c, w)
"""
    assert differentiate(read(text), ["w"]).activations == ("c",)


def test_a_subgraph_that_reads_what_is_trained_is_refused(read):
    text = """function f(x: F32[4], c: BOOL[]) -> (z)
  z = If<then_branch=graph t() -> (a) { a = Exp(x) }, else_branch=graph e() -> (b) { b = Neg(x) }>(c)
"""
    with pytest.raises(NotDifferentiableError, match="subgraph"):
        differentiate(read(text), ["x"])


def test_refused_before_anything_is_differentiated(read):
    function = read(MLP)
    with pytest.raises(LearnError, match="'q' is not an input"):
        differentiate(function, ["q"])
    with pytest.raises(LearnError, match="'q' is not an output"):
        differentiate(function, ["w"], output="q")
    with pytest.raises(LearnError, match="opset is 13"):
        differentiate(dataclasses.replace(function, opsets={"": 13}), ["w"])
    clash = dataclasses.replace(function, ops=(Op("MatMul", "", ("x", "b"), ("y",)),), outputs=("y",))
    with pytest.raises(LearnError, match="do not fit"):
        differentiate(clash, ["b"])


def test_dropping_at_random_is_refused(read):
    text = """function f(x: F32[4]) -> (z)
  r = Constant<value=F32[]{0.5}>()
  t = Constant<value=BOOL[]{1}>()
  z = Dropout(x, r, t)
"""
    with pytest.raises(NotDifferentiableError, match="training mode"):
        differentiate(read(text), ["x"])
