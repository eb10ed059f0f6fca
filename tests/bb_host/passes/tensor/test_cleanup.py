"""Each clean-up pass: what it removes, what it leaves, and that onnxruntime sees no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bb_edge.ir.types import TENSOR_I64, ValueType
from bb_host.errors import ShapeArgumentError
from bb_host.ir.program import Function
from bb_host.onnx_io.model import infer_types
from bb_host.passes.one_pass import Pass, Stats
from bb_host.passes.tensor import (
    batch_first,
    batch_norm,
    constants,
    dead_code,
    identities,
    picks,
    transposes,
)
from bb_host.passes.tensor.cleaning import TENSOR_PASSES, clean_up
from bb_host.passes.tensor.shapes import fix_shapes, parse_shapes

Make = Callable[..., Function]
Same = Callable[..., None]
F32 = Callable[..., np.ndarray]


def kinds(function: Function) -> Counter[str]:
    return Counter(op.op_type for op in function.ops if op.op_type != "Constant")


PLAIN = "g (float[2, 3] x) => (float[2, 3] y) { a = Relu (x)  y = Add (a, x) }"


@pytest.mark.parametrize("one", TENSOR_PASSES, ids=lambda one: one.name)
def test_nothing_to_do_gives_the_function_itself(one: Pass[Function, None], function: Make) -> None:
    found = function(PLAIN)
    assert one.run(found, None, Stats()) is found
    assert clean_up(found) is found


# --- constants ------------------------------------------------------------------------------------


def test_constants_are_folded(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[2, 3] x) => (float[3, 2] y)
        { two = Constant <value_int = 2> ()  three = Constant <value_ints = [3]> ()
          minus = Neg (two)  axes = Constant <value_ints = [0]> ()  a = Unsqueeze (minus, axes)  b = Abs (a)
          shape = Concat <axis = 0> (three, b)  y = Reshape (x, shape) }"""
    )
    after = clean_up(before)
    assert kinds(after) == {"Reshape": 1}
    same_results(before, after, {"x": f32(2, 3)})


def test_a_known_shape_is_a_constant(function: Make, same_results: Same, f32: F32) -> None:
    text = """g ({} x) => (float y) {{ s = Shape (x)  i = Constant <value_int = 1> ()
        d = Gather (s, i)  y = Cast <to = 1> (d) }}"""
    before = function(text.format("float[2, 3]"))
    after = clean_up(before)
    assert not kinds(after)
    same_results(before, after, {"x": f32(2, 3)})
    open_dims = function(text.format("float[N, 3]"))
    assert kinds(constants.run(open_dims))["Shape"] == 1


def test_a_cast_like_of_a_known_type_is_a_cast(function: Make, same_results: Same, f32: F32) -> None:
    """PyTorch's exporter writes the bounds of a ReLU6 so."""
    before = function(
        """g (float[N, 3] x, int64[N, 3] n) => (float[N, 3] y, float[N, 3] z)
        { low = Constant <value_float = 0.0> ()  six = Constant <value_int = 6> ()
          a = CastLike (low, x)  b = CastLike (six, x)  y = Clip (x, a, b)  z = CastLike (n, x) }"""
    )
    after = clean_up(before)
    assert kinds(after) == {"Clip": 1, "Cast": 1}
    same_results(before, after, {"x": 9 * f32(2, 3), "n": np.arange(6).reshape(2, 3)})
    unknown = replace(before, types={k: v for k, v in before.types.items() if k != "x"})
    assert kinds(constants.run(unknown))["CastLike"] == 3


def test_folding_does_not_blow_the_model_up(function: Make) -> None:
    text = """g (float[1] x) => (float[{n}] y) {{ s = Constant <value_ints = [{n}]> ()
        zeros = ConstantOfShape (s)  y = Add (x, zeros) }}"""
    assert kinds(constants.run(function(text.format(n=1000)))) == {"Add": 1}
    assert kinds(constants.run(function(text.format(n=1_000_000)))) == {"ConstantOfShape": 1, "Add": 1}


def test_draws_and_bodies_stay(function: Make) -> None:
    before = function(
        """g (float[1] x) => (float[1] y) { t = Constant <value_float = 1.0> ()  c = Cast <to = 9> (t)
        a = If (c) <then_branch = h () => (float[1] p) { p = Identity (x) },
                    else_branch = k () => (float[1] q) { q = Neg (x) }>  y = Relu (a) }"""
    )
    assert kinds(constants.run(before)) == {"If": 1, "Relu": 1}


# --- dead code ------------------------------------------------------------------------------------


def test_dead_code_goes_and_captures_count_as_uses(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[2] x, bool c) => (float[2] y)
        { used = Exp (x)  dead = Log (x)  deader = Neg (dead)
          y = If (c) <then_branch = h () => (float[2] p) { p = Identity (used) },
                      else_branch = k () => (float[2] q) { q = Neg (x) }> }"""
    )
    after = dead_code.run(before)
    assert kinds(after) == {"Exp": 1, "If": 1}
    assert "dead" not in after.types
    same_results(before, after, {"x": f32(2), "c": np.array(True)})


# --- identities -----------------------------------------------------------------------------------


def test_ops_that_do_nothing_go(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
        { a = Identity (x)  b = Cast <to = 1> (a)  c = Transpose <perm = [0, 1]> (b)  d = Dropout (c)
          s = Constant <value_ints = [2, 3]> ()  e = Reshape (d, s)  f = Concat <axis = 0> (e)  g0 = Relu (f)
          p = Constant <value_ints = [0, 0, 0, 0]> ()  h = Pad (g0, p)  y = Identity (h)
          st = Constant <value_ints = [0]> ()  en = Constant <value_ints = [9]> ()  z0 = Slice (h, st, en)
          z = Exp (z0) }"""
    )
    after = clean_up(before)
    assert kinds(after) == {"Relu": 1, "Exp": 1}
    assert next(op for op in after.ops if op.op_type == "Relu").outputs == ("y",)
    same_results(before, after, {"x": f32(2, 3)})


@pytest.mark.parametrize("kind", ["Relu", "Abs", "Ceil", "Floor", "Round", "Sign"])
def test_an_op_that_was_done_already_goes(kind: str, function: Make, same_results: Same, f32: F32) -> None:
    text = f"g (float[2, 3] x) => (float[2, 3] y) {{ a = {kind} (x)  b = {kind} (a)  y = Exp (b) }}"
    before = function(text)
    after = clean_up(before)
    assert kinds(after) == {kind: 1, "Exp": 1}
    same_results(before, after, {"x": 3 * f32(2, 3)})
    kept = function("g (float[2] x) => (float[2] y) { a = Neg (x)  y = Neg (a) }")
    assert clean_up(kept) is kept


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity (x)",
        "c = Constant <value_floats = [1.0, 2.0]> ()  a = Identity (c)  y = Add (a, x) z = Identity (y)",
        "a = Relu (x)  y = Identity (a)  z = Identity (a)",
        "a = Relu (x)  z = Identity (a)  y = Exp (z)",
    ],
)
def test_outputs_keep_their_names(body: str, function: Make, same_results: Same, f32: F32) -> None:
    outputs = "float[2] y, float[2] z" if "z =" in body else "float[2] y"
    before = function(f"g (float[2] x) => ({outputs}) {{ {body} }}")
    same_results(before, clean_up(before), {"x": f32(2)})


def test_ops_that_do_something_stay(function: Make) -> None:
    before = function(
        """g (float[2, 3] x, bool t) => (float[2, 3] y, bool[2, 3] mask)
        { a = Cast <to = 11> (x)  b = Cast <to = 1> (a)  c = Transpose (b)  d = Transpose <perm = [0, 1]> (c)
          r = Constant <value_float = 0.5> ()  e, mask = Dropout (b, r, t)
          st = Constant <value_ints = [-1]> ()  en = Constant <value_ints = [-9]> ()
          ax = Constant <value_ints = [0]> ()  f = Slice (e, st, en, ax, st)
          dt = Transpose (d)  y = Add (f, dt) }"""
    )
    after = identities.run(before)
    assert kinds(after) == {"Cast": 2, "Transpose": 2, "Dropout": 1, "Slice": 1, "Add": 1}


def test_a_slice_stays_whatever_is_declared_of_its_bounds(
    function: Make, same_results: Same, f32: F32
) -> None:
    """A gradient's constants have types without shapes; ONNX takes that for a Slice of the whole."""
    text = "g (float[3, 4] x) => (float[a, b] y) { z = Slice (x, first, last, axes)  y = Exp (z) }"
    bounds = {"first": [0], "last": [3], "axes": [1]}
    read = function(text, **{name: np.array(at, np.int64) for name, at in bounds.items()})
    bare = {"x": read.types["x"], **{name: ValueType(TENSOR_I64) for name in bounds}}
    before = infer_types(replace(read, types=bare))
    assert before.types["z"].shape == (3, 3)
    after = clean_up(before)
    assert kinds(after) == {"Slice": 1, "Exp": 1}
    same_results(before, after, {"x": f32(3, 4)})


def test_a_value_that_a_body_captures_is_renamed_there(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[2] x, bool c) => (float[2] y)
        { a = Exp (x)  b = Identity (a)
          y = If (c) <then_branch = h () => (float[2] p) { p = Neg (b) },
                      else_branch = k () => (float[2] q) { q = Abs (b) }> }"""
    )
    after = clean_up(before)
    assert kinds(after) == {"Exp": 1, "If": 1}
    same_results(before, after, {"x": f32(2), "c": np.array(True)})


# --- transposes -----------------------------------------------------------------------------------


def test_an_island_of_another_layout_loses_its_transposes(
    function: Make, same_results: Same, f32: F32
) -> None:
    """What converters from NHWC leave between two convolutions."""
    before = function(
        """g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
        { a = Conv <pads = [1, 1, 1, 1]> (x, w1)  b = Transpose <perm = [0, 2, 3, 1]> (a)  c = Add (b, bias)
          d = Relu (c)  e = Mul (d, d)
          lo = Constant <value_float = 0.0> ()  hi = Constant <value_float = 6.0> ()  f = Clip (e, lo, hi)
          h = Transpose <perm = [0, 3, 1, 2]> (f)  y = Conv <pads = [1, 1, 1, 1]> (h, w2) }""",
        w1=f32(4, 3, 3, 3),
        w2=f32(4, 4, 3, 3),
        bias=f32(4),
    )
    after = clean_up(before)
    assert "Transpose" not in kinds(after)
    same_results(before, after, {"x": f32(1, 3, 8, 8)})


def test_a_thresholded_relu_lets_transposes_pass(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y)
        { a = Transpose <perm = [0, 2, 3, 1]> (x)  b = ThresholdedRelu <alpha = 0.25> (a)
          y = Transpose <perm = [0, 3, 1, 2]> (b) }"""
    )
    after = clean_up(before)
    assert kinds(after) == {"ThresholdedRelu": 1}
    same_results(before, after, {"x": f32(1, 3, 4, 5)})


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_takes_the_transpose_in(
    opset: int, keepdims: int, function: Make, same_results: Same, f32: F32
) -> None:
    shape = "float[1, 1, 1, 4]" if keepdims else "float[1, 4]"
    mean = f"y = ReduceMean <axes = [1, -2], keepdims = {keepdims}> (t)"
    if opset >= 18:
        mean = f"axes = Constant <value_ints = [1, -2]> ()  y = ReduceMean <keepdims = {keepdims}> (t, axes)"
    before = function(
        f"g (float[1, 4, 6, 5] x) => ({shape} y) {{ t = Transpose <perm = [0, 2, 3, 1]> (x)  {mean} }}", opset
    )
    after = clean_up(before)
    assert kinds(after)["Transpose"] == keepdims
    same_results(before, after, {"x": f32(1, 4, 6, 5)})


def test_a_concatenation_takes_transposes_in(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[1, 2, 4, 4] x, float[1, 3, 4, 4] z) => (float[1, 6, 4, 4] y)
        { a = Transpose <perm = [0, 2, 3, 1]> (x)  b = Transpose <perm = [0, 2, 3, 1]> (z)
          c = Concat <axis = -1> (a, b, k)  y = Transpose <perm = [0, 3, 1, 2]> (c) }""",
        k=f32(1, 4, 4, 1),
    )
    after = clean_up(before)
    assert kinds(after) == {"Concat": 1}
    same_results(before, after, {"x": f32(1, 2, 4, 4), "z": f32(1, 3, 4, 4)})


def test_transposes_that_others_read_stay(function: Make) -> None:
    before = function(
        """g (float[2, 3] x) => (float[3, 2] y, float[3, 2] t)
        { t = Transpose (x)  y = Relu (t) }"""
    )
    assert transposes.run(before) is before
    differing = function(
        """g (float[2, 2, 2] x) => (float[2, 2, 2] y)
        { a = Transpose <perm = [0, 2, 1]> (x)  b = Transpose <perm = [2, 1, 0]> (x)  y = Add (a, b) }"""
    )
    assert transposes.run(differing) is differing


# --- picks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "shape"),
    [
        ("q = Gather <axis = 0> (t, one)  k = Gather <axis = -5> (t, none)  y = Add (q, k)", "2, 3, 5, 4"),
        (
            "a, b, c = Split (t, parts)  q = Squeeze (a, axes)  k = Squeeze (c, axes)  y = Add (q, k)",
            "2, 3, 5, 4",
        ),
        ("q, k = Split <axis = -2> (t, halves)  y = Concat <axis = 3> (k, q)", "3, 2, 3, 5, 4"),
    ],
    ids=["gather", "unbind", "split"],
)
def test_heads_are_cut_before_they_are_transposed(
    reads: str, shape: str, function: Make, same_results: Same, f32: F32
) -> None:
    before = function(
        f"""g (float[2, 5, 3, 3, 4] x) => (float[{shape}] y)
        {{ t = Transpose <perm = [2, 0, 3, 1, 4]> (x)  {reads} }}""",
        one=np.array(1),
        none=np.array(0),
        axes=np.array([0]),
        parts=np.array([1, 1, 1]),
        halves=np.array([2, 3]),
    )
    after = clean_up(before)
    assert after.ops[0].op_type != "Transpose"
    transposed = [op for op in after.ops if op.op_type == "Transpose"]
    assert len(transposed) == 1, "elementwise ops and Concat have taken the others in"
    same_results(before, after, {"x": f32(2, 5, 3, 3, 4)})


@pytest.mark.parametrize(
    "reads",
    [
        "a = Gather <axis = 0> (t, one)  b = Relu (t)  c = Gather <axis = 0> (b, one)  y = Add (a, c)",
        "y = Gather <axis = 0> (t, several)",
        "y = Gather <axis = 0> (t, index)",
    ],
)
def test_what_is_read_otherwise_is_transposed_once(reads: str, function: Make) -> None:
    shape = "2, 4, 5" if "several" in reads else "4, 5"
    before = function(
        f"""g (float[4, 5, 3] x, int64 index) => (float[{shape}] y)
        {{ t = Transpose <perm = [2, 0, 1]> (x)  {reads} }}""",
        one=np.array(1),
        several=np.array([0, 2]),
    )
    assert picks.run(before) is before


# --- batch normalisation --------------------------------------------------------------------------


def _norm(f32: F32, channels: int) -> dict[str, np.ndarray]:
    return {"s": f32(channels), "b": f32(channels), "m": f32(channels), "v": np.abs(f32(channels)) + 0.1}


@pytest.mark.parametrize("bias", ["", ", cb"])
@pytest.mark.parametrize(
    ("kind", "weights", "shape"),
    [
        ("Conv", (4, 3, 3, 3), "1, 3, 8, 8"),
        ("Conv <group = 4>", (4, 1, 3, 3), "1, 4, 8, 8"),
        ("Conv", (4, 3, 3), "1, 3, 8"),
        ("ConvTranspose", (3, 4, 2, 2), "1, 3, 8, 8"),
    ],
)
def test_into_a_convolution(
    kind: str, weights: tuple[int, ...], shape: str, bias: str, function: Make, same_results: Same, f32: F32
) -> None:
    rank = len(weights)
    out = ", ".join("NMHW"[:rank])
    before = function(
        f"g (float[{shape}] x) => (float[{out}] y) {{ a = {kind} (x, w{bias})"
        "  y = BatchNormalization <epsilon = 0.01> (a, s, b, m, v) }",
        w=f32(*weights),
        cb=f32(4),
        **_norm(f32, 4),
    )
    after = clean_up(before)
    assert kinds(after) == {kind.split(maxsplit=1)[0]: 1}
    same_results(before, after, {"x": f32(*map(int, shape.split(",")))}, rtol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        "a = Gemm (x, w, c)",
        "a = Gemm (x, w)",
        "a = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (x, wt, c)",
        "a = MatMul (x, w)",
        "p = MatMul (x, w)  a = Add (p, c)",
        "p = MatMul (x, w)  a = Add (c, p)",
    ],
)
def test_into_a_product(body: str, function: Make, same_results: Same, f32: F32) -> None:
    w = f32(5, 4)
    before = function(
        f"g (float[N, 5] x) => (float[N, 4] y) {{ {body}  y = BatchNormalization (a, s, b, m, v) }}",
        w=w,
        wt=np.ascontiguousarray(w.T),
        c=f32(4),
        **_norm(f32, 4),
    )
    after = clean_up(before)
    assert kinds(after)["BatchNormalization"] == 0
    assert sum(kinds(after).values()) == (1 if "Gemm" in body else 2)
    same_results(before, after, {"x": f32(3, 5)}, rtol=1e-4)


def test_two_normalisations_in_a_row_both_go(function: Make, same_results: Same, f32: F32) -> None:
    before = function(
        """g (float[1, 3, 5, 5] x) => (float[1, 4, 3, 3] y) { a = Conv (x, w)
        c = BatchNormalization (a, s, b, m, v)  y = BatchNormalization (c, s, b, m, v) }""",
        w=f32(4, 3, 3, 3),
        **_norm(f32, 4),
    )
    after = clean_up(before)
    assert kinds(after) == {"Conv": 1}
    same_results(before, after, {"x": f32(1, 3, 5, 5)}, rtol=1e-4)


def test_a_convolution_that_others_read_keeps_its_weights(function: Make, f32: F32) -> None:
    before = function(
        """g (float[1, 3, 5, 5] x) => (float[1, 4, 3, 3] y, float[1, 4, 3, 3] a) { a = Conv (x, w)
        y = BatchNormalization (a, s, b, m, v) }""",
        w=f32(4, 3, 3, 3),
        **_norm(f32, 4),
    )
    assert batch_norm.run(before) is before


def test_products_of_higher_rank_stay(function: Make, f32: F32) -> None:
    """There the channels are axis 1, not the last."""
    before = function(
        """g (float[2, 4, 5] x) => (float[2, 4, 4] y) { a = MatMul (x, w)
        y = BatchNormalization (a, s, b, m, v) }""",
        w=f32(5, 4),
        **_norm(f32, 4),
    )
    assert batch_norm.run(before) is before


# --- shapes ---------------------------------------------------------------------------------------


def test_a_symbol_that_one_input_fixes_is_fixed_everywhere(function: Make) -> None:
    before = function(
        "g (float[N, 3] x, float[N] w) => (float[M, K] y) { t = Transpose (x)  y = Mul (t, w) }"
    )
    after = fix_shapes(before, {"x": (4, 3)})
    assert after.types["w"].shape == (4,)
    assert after.types["t"].shape == (3, 4)
    assert clean_up(after) is after


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z": (1,)}, "inputs: x, w"),
        ({"x": (4,)}, "rank 2"),
        ({"x": (4, 5)}, r"\['N', 3\]"),
        ({"x": (4, 3), "w": (5,)}, "'N'"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], says: str, function: Make) -> None:
    found = function("g (float[N, 3] x, float[N] w) => (float[3, N] y) { t = Transpose (x)  y = Mul (t, w) }")
    with pytest.raises(ShapeArgumentError, match=says):
        fix_shapes(found, shapes)


def test_shapes_as_the_command_line_gives_them() -> None:
    assert parse_shapes(["x=1,3,224,224", "s="]) == {"x": (1, 3, 224, 224), "s": ()}
    for text in ("x", "=1", "x=a", "x=-1", "x=1,,2"):
        with pytest.raises(ShapeArgumentError):
            parse_shapes([text])


# --- batch first ----------------------------------------------------------------------------------


LAYER = """g (float[N, 4, 3] x, float[1, N, 2] h) => (float[%s] y)
    { t = Transpose <perm = [1, 0, 2]> (x)  %s }"""


@pytest.mark.parametrize(
    ("body", "shape", "left"),
    [
        (
            "a = GRU <hidden_size = 2> (t, w, r)  b = Squeeze (a, one)  y = Transpose <perm = [1, 0, 2]> (b)",
            "N, 4, 2",
            {"GRU": 1, "Squeeze": 1},
        ),
        (
            '"", a = GRU <hidden_size = 2> (t, w, r, "", "", h)  y = Gather <axis = 0> (a, zero)',
            "N, 2",
            {"GRU": 1, "Transpose": 1, "Gather": 1},
        ),
        (
            """s = Shape (x)  n = Gather <axis = 0> (s, zeros)  to = Concat <axis = 0> (one, n, two)
            z = Expand (none, to)  a = GRU <hidden_size = 2> (t, w, r, "", "", z)  b = Squeeze (a, one)
            c = GRU <hidden_size = 2> (b, v, r)
            d = Squeeze (c, one)  y = Transpose <perm = [1, 0, 2]> (d)""",
            "N, 4, 2",
            {"GRU": 2, "Squeeze": 2},
        ),
    ],
    ids=["all", "last", "two"],
)
def test_a_recurrent_layer_takes_the_batch_first(
    body: str, shape: str, left: dict[str, int], function: Make, f32: F32
) -> None:
    known = {
        "w": f32(1, 6, 3),
        "v": f32(1, 6, 2),
        "r": f32(1, 6, 2),
        "one": np.array([1]),
        "two": np.array([2]),
        "zeros": np.array([0]),
        "zero": np.array(0),
        "none": np.zeros((1, 1, 2), np.float32),
    }
    found = function(LAYER % (shape, body), **known)
    after = clean_up(found)
    assert kinds(after) == left
    assert all(op.attrs["layout"] == 1 for op in after.ops if op.op_type == "GRU")


@pytest.mark.parametrize("perm", ["1, 2, 0", "0, 1, 2"])
def test_a_layer_of_another_transpose_stays(perm: str, function: Make, f32: F32) -> None:
    found = function(
        f"""g (float[4, 4, 4] x) => (float[4, 1, 4, 2] y)
        {{ t = Transpose <perm = [{perm}]> (x)  y = GRU <hidden_size = 2> (t, w, r) }}""",
        w=f32(1, 6, 4),
        r=f32(1, 6, 2),
    )
    assert batch_first.run(found) is found
