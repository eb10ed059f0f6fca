"""Every gradient rule against central differences in float64, through ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host.learn import differentiate

POSITIVE = np.random.default_rng(3).uniform(0.5, 2.0, (3, 4))
APART = np.arange(12, dtype=np.float64).reshape(3, 4) / 3 - 1.7  # no ties, no zeros
X34 = "x: F64[3,4]"

UNARY = [
    *("Neg", "Exp", "Sigmoid", "Tanh", "Softplus", "Identity", "Sin", "Cos", "Erf", "Dropout"),
    *("Relu", "LeakyRelu", "LeakyRelu<alpha=-0.5>", "LeakyRelu<alpha=0.0>", "Elu<alpha=0.7>", "Abs"),
    *("Selu", "Selu<alpha=1.5, gamma=0.9>", "Celu", "Celu<alpha=0.6>", "Softsign", "Mish"),
    *("Shrink<lambd=0.6>", "Tan", "Sinh", "Cosh", "Asinh", "Atan"),
    *("ThresholdedRelu", "ThresholdedRelu<alpha=-0.5>"),
    *("Gelu", 'Gelu<approximate="tanh">', "HardSigmoid<alpha=0.3, beta=0.4>", "HardSwish"),
    *("Softmax<axis=1>", "Softmax<axis=0>", "Softmax", "LogSoftmax<axis=-1>", "LogSoftmax<axis=0>"),
    *("Flatten<axis=1>", "Flatten<axis=0>", "Transpose", "Transpose<perm=[1, 0]>"),
    *(
        "ReduceSum",
        "ReduceSum<keepdims=0>",
        "ReduceMean",
        "ReduceMean<keepdims=0>",
        "ReduceMax",
        "ReduceL1<keepdims=0>",
        "ReduceSumSquare",
        "ReduceMin<keepdims=0>",
    ),
    "ReduceSum<noop_with_empty_axes=1>",
]


@pytest.mark.parametrize("op", UNARY)
def test_one_operand(op, check_gradient, reference, runtime, fn):
    exact = runtime if op in ("Erf", "Gelu") else reference  # the reference computes erf in float32
    check_gradient(fn(X34, f"y = {op}(x)"), run=exact, x=APART)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_one_positive_operand(op, check_gradient, fn):
    check_gradient(fn(X34, f"y = {op}(x)"), x=POSITIVE)


@pytest.mark.parametrize("op", ["Asin", "Acos", "Atanh", "Acosh"])
def test_inverses_with_a_bounded_domain(op, check_gradient, fn):
    check_gradient(fn(X34, f"y = {op}(x)"), x=POSITIVE + 1 if op == "Acosh" else POSITIVE - 1.2)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("3,4", "3,4"),
        ("3,4", "4"),
        ("4", "3,4"),
        ("3,1", "1,4"),
        ("3,4", ""),
        ("2,3,1", "3,4"),
        ("n,4", "4"),
        ("n,4", "n,1"),
        ("n,4", "m,4"),
        ("n,4", "1,4"),
        ("1,4", "n,1"),
    ],
)
def test_broadcast_operands(op, a, b, check_gradient, reference, runtime, fn):
    run = runtime if op == "Mean" else reference  # the reference's Mean does not broadcast its first operand
    rng = np.random.default_rng(5)
    shapes = [[3 if d in ("n", "m") else int(d) for d in s.split(",") if d] for s in (a, b)]
    arrays = [
        np.asarray(rng.permutation(np.linspace(0.5, 2.0, int(np.prod(s)))).reshape(s) + k / 9)
        for k, s in enumerate(shapes)
    ]
    check_gradient(fn(f"a: F64[{a}], b: F64[{b}]", f"y = {op}(a, b)"), run=run, a=arrays[0], b=arrays[1])


def test_a_symbol_that_turns_out_to_be_one_is_summed_over(check_gradient, fn):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((1, 4))
    check_gradient(fn("a: F64[n,4], b: F64[m,4]", "y = Mul(a, b)"), a=a, b=b)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("of", ["3,4", "4"])
def test_the_rest_of_a_division(of, sign, check_gradient, fn):
    a = sign * np.linspace(2.2, 9.3, 12).reshape(3, 4)
    b = np.array([0.7, 1.3, -1.9, 4.4]) if of == "4" else np.full((3, 4), 0.83)
    check_gradient(fn(f"a: F64[3,4], b: F64[{of}]", "y = Mod<fmod=1>(a, b)"), a=a, b=b)


@pytest.mark.parametrize("exponent", ["2", "3", "0.5", "-1"])
def test_powers_by_a_constant(exponent, check_gradient, fn):
    value = f"Constant<value=F64[]{{{float(exponent)}}}>()"
    check_gradient(fn(X34, f"e = {value}", "y = Pow(x, e)"), x=POSITIVE)


def test_a_square_has_a_gradient_at_negative_bases(check_gradient, fn):
    check_gradient(fn(X34, "e = Constant<value=F64[]{2.0}>()", "y = Pow(x, e)"), x=APART)


@pytest.mark.parametrize(("low", "high"), [("low", "high"), ("low", '""'), ('""', "high")])
def test_clip_passes_within_its_bounds(low, high, check_gradient, fn):
    lines = [
        "low = Constant<value=F64[]{-0.8}>()",
        "high = Constant<value=F64[]{0.9}>()",
        f"y = Clip(x, {low}, {high})",
    ]
    check_gradient(fn(X34, *lines), x=APART)


def test_prelu_and_where(check_gradient, fn):
    check_gradient(fn("x: F64[3,4], s: F64[4]", "y = PRelu(x, s)"), x=APART)
    check_gradient(fn("x: F64[3,4], b: F64[4]", "c = Greater(x, b)", "y = Where(c, x, b)"), ["x", "b"])


def test_hard_swish_beyond_its_bends(check_gradient, fn):
    check_gradient(fn(X34, "y = HardSwish(x)"), x=APART * 3)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("3,4", "4,2"),
        ("n,4", "4,2"),
        ("2,3,4", "4,2"),
        ("n,3,4", "4,2"),
        ("2,3,4", "2,4,2"),
        ("3,4", "2,4,2"),
        ("2,1,3,4", "5,4,2"),
        ("n,3,4", "n,4,2"),
        ("4", "4"),
        ("4", "4,2"),
        ("3,4", "4"),
    ],
)
def test_matmul(a, b, check_gradient, fn):
    check_gradient(fn(f"a: F64[{a}], b: F64[{b}]", "y = MatMul(a, b)"))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, "2", "3,2", "3,1", ""])
def test_gemm(trans_a, trans_b, c, check_gradient, fn):
    a, b = ("4,3" if trans_a else "3,4"), ("2,4" if trans_b else "4,2")
    third = "" if c is None else f", c: F64[{c}]"
    attrs = f"alpha=0.5, beta=1.5, transA={trans_a}, transB={trans_b}"
    check_gradient(
        fn(f"a: F64[{a}], b: F64[{b}]{third}", f"y = Gemm<{attrs}>(a, b{', c' if c is not None else ''})")
    )


REDUCTIONS = [
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceProd"),
]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", ["0", "-1", "0, 2"])
@pytest.mark.parametrize("shape", ["2,3,4", "n,3,m"])
def test_reductions_along_axes(op, keepdims, axes, shape, check_gradient, fn):
    count = axes.count(",") + 1
    lines = [f"a = Constant<value=I64[{count}]{{{axes}}}>()", f"y = {op}<keepdims={keepdims}>(x, a)"]
    given = {}
    if op == "ReduceLogSum":
        given["x"] = np.random.default_rng(6).uniform(0.5, 2, (2, 3, 4) if shape == "2,3,4" else (3, 3, 3))
    check_gradient(fn(f"x: F64[{shape}]", *lines), **given)


def test_products_and_lengths_with_zeros(check_gradient, fn, runtime):
    x = np.array([[0.0, 2, 3, 4], [0, 5, 0, 6], [1, 2, 3, 4]])
    a = "a = Constant<value=I64[1]{1}>()"
    check_gradient(fn(X34, a, "y = ReduceProd(x, a)"), x=x)
    check_gradient(fn(X34, "y = ReduceProd(x)"), x=x[2:] * np.ones((3, 1)))


@pytest.mark.parametrize("shape", ["3,4", "n,4", "n,m"])
@pytest.mark.parametrize(
    "lines",
    [
        ("s = Constant<value=I64[2]{-1, 2}>()", "y = Reshape(x, s)"),
        ("a = Constant<value=I64[2]{0, 2}>()", "y = Unsqueeze(x, a)"),
        ("a = Constant<value=I64[1]{1}>()", "z = Unsqueeze(x, a)", "w = Exp(z)", "y = Squeeze(w, a)"),
        ("s = Constant<value=I64[3]{2, 1, 1}>()", "y = Expand(x, s)"),
    ],
)
def test_other_shapes(shape, lines, check_gradient, fn):
    given = {"x": np.random.default_rng(1).standard_normal((3, 4))}
    check_gradient(fn(f"x: F64[{shape}]", *lines), **given)


def test_casts_give_gradients_back_in_the_type_of_what_they_cast(check_gradient, fn):
    check_gradient(fn(X34, "z = Cast<to=11>(x)", "y = Exp(z)"))
    check_gradient(fn("x: F64[3,4], b: F64[2]", "z = CastLike(x, b)", "y = Exp(z)"), ["x"])


def test_concat_and_split(check_gradient, fn):
    check_gradient(fn("a: F64[3,2], b: F64[3,4]", "z = Concat<axis=1>(a, b)", "y = Exp(z)"))
    check_gradient(fn("a: F64[n,2], b: F64[m,2]", "z = Concat<axis=-2>(a, b)", "y = Exp(z)"))
    lines = ["s = Constant<value=I64[2]{1, 3}>()", "p, q = Split<axis=1>(x, s)", "y = Exp(q)"]
    check_gradient(fn(X34, *lines))
    check_gradient(fn(X34, "p, q = Split<axis=1, num_outputs=2>(x)", "y = Mul(p, q)"))


def test_concat_with_a_constant_gives_it_no_gradient(check_gradient, fn):
    check_gradient(
        fn(
            "a: F64[1,2]",
            "c = Constant<value=F64[1,2]{1.0, 2.0}>()",
            "z = Concat<axis=1>(a, c)",
            "y = Exp(z)",
        )
    )


@pytest.mark.parametrize("bounds", [("1", "3", "1"), ("-3", "-1", "-1"), ("0", "100", "0"), ("2", "1", "1")])
def test_slices(bounds, check_gradient, fn):
    lines = [f"{n} = Constant<value=I64[1]{{{v}}}>()" for n, v in zip("sea", bounds, strict=True)]
    check_gradient(fn(X34, *lines, "z = Slice(x, s, e, a)", "y = Exp(z)"))


@pytest.mark.parametrize(("start", "end"), [("1", "-1"), ("0", "-2"), ("0", "9223372036854775807")])
def test_slices_of_an_axis_of_open_length(start, end, check_gradient, fn):
    lines = [f"{n} = Constant<value=I64[1]{{{v}}}>()" for n, v in zip("sea", (start, end, "1"), strict=True)]
    x = np.random.default_rng(1).standard_normal((2, 5))
    check_gradient(fn("x: F64[n,m]", *lines, "z = Slice(x, s, e, a)", "y = Exp(z)"), x=x)


STEPS = [("0", "100", "2"), ("3", "-100", "-1"), ("3", "0", "-2"), ("1", "2", "3"), ("1", "1", "2")]


@pytest.mark.parametrize("bounds", STEPS)
def test_slices_with_a_step(bounds, check_gradient, fn):
    lines = [f"{n} = Constant<value=I64[1]{{{v}}}>()" for n, v in zip("set", bounds, strict=True)]
    lines.append("a = Constant<value=I64[1]{1}>()")
    check_gradient(fn("x: F64[n,5]", *lines, "z = Slice(x, s, e, a, t)", "y = Exp(z)"))


PADS = ["1, 0, 0, 2", "0, 2, 2, 1", "0, -1, 0, 2", "-1, 1, 0, -1"]


@pytest.mark.parametrize(
    ("mode", "pads"),
    [*((mode, pads) for mode in ("constant", "reflect", "edge") for pads in PADS), ("wrap", PADS[1])],
)
def test_padding(mode, pads, check_gradient, fn, runtime):
    lines = [f"p = Constant<value=I64[4]{{{pads}}}>()", f'z = Pad<mode="{mode}">(x, p)', "y = Exp(z)"]
    check_gradient(fn(X34, *lines), run=runtime)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_of_named_axes(mode, check_gradient, fn, runtime):
    lines = [
        "p = Constant<value=I64[2]{1, 2}>()",
        "a = Constant<value=I64[1]{-1}>()",
        "v = Constant<value=F64[]{0.5}>()",
        f'z = Pad<mode="{mode}">(x, p, v, a)',
    ]
    check_gradient(fn("x: F64[n,4]", *lines, "y = Exp(z)"), run=runtime)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", ["I64[3]{2, 0, 2}", "I64[2,2]{0, -1, 1, 1}", "I64[]{1}"])
def test_gather_adds_what_is_read_twice(axis, indices, check_gradient, fn):
    open_lines = [f"i = Constant<value={indices}>()", f"z = Gather<axis={axis}>(x, i)", "y = Exp(z)"]
    check_gradient(fn("x: F64[n,m,k]", *open_lines))
    lines = [f"i = Constant<value={indices}>()", f"z = Gather<axis={axis}>(x, i)", "y = Exp(z)"]
    check_gradient(fn("x: F64[3,4,3]", *lines))


def test_normalisations(check_gradient, fn):
    rng = np.random.default_rng(2)
    text = fn(
        "x: F64[2,3,2,2], s: F64[3], b: F64[3], m: F64[3], v: F64[3]",
        "y = BatchNormalization<epsilon=0.001>(x, s, b, m, v)",
    )
    check_gradient(text, ["x", "s", "b"], v=rng.uniform(0.5, 2, 3))
    text = fn(
        "x: F64[2,3], s: F64[3], b: F64[3], m: F64[3], v: F64[3]", "y = BatchNormalization(x, s, b, m, v)"
    )
    check_gradient(text, ["x", "s", "b"], v=rng.uniform(0.5, 2, 3))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_normalization(axis, with_bias, check_gradient, fn):
    shape = "3,4" if axis == 1 else "4"
    bias, b = (f", b: F64[{shape}]", ", b") if with_bias else ("", "")
    check_gradient(
        fn(f"x: F64[n,3,4], s: F64[{shape}]{bias}", f"y = LayerNormalization<axis={axis}>(x, s{b})")
    )


CONVOLUTIONS = [
    ("2,3,5,6", "4,3,3,2", ""),
    ("n,3,5,6", "4,3,3,2", "pads=[1, 0, 2, 1]"),
    ("1,2,7,6", "3,2,3,3", "strides=[2, 2]"),
    ("1,2,8,7", "3,2,3,2", "strides=[3, 2], pads=[1, 1, 0, 0]"),
    ("1,2,7,8", "2,2,2,2", "dilations=[2, 3]"),
    ("1,2,9,9", "2,2,2,3", "dilations=[2, 1], strides=[2, 3], pads=[1, 1, 1, 1]"),
    ("2,4,5,5", "6,2,3,3", "group=2, pads=[1, 1, 1, 1]"),
    ("n,4,5,5", "4,1,3,3", "group=4, strides=[2, 2], pads=[1, 1, 1, 1]"),
    ("1,2,7,6", "3,2,3,3", 'auto_pad="SAME_UPPER", strides=[2, 2]'),
    ("1,2,7,6", "3,2,4,3", 'auto_pad="SAME_LOWER"'),
    ("1,2,7,6", "3,2,3,3", 'auto_pad="VALID"'),
    ("1,2,9", "3,2,3", "strides=[2]"),
    ("1,1,4,4,4", "2,1,2,2,2", ""),
    ("1,2,9,4", "3,2,1,1", "strides=[4, 3]"),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolutions(x, w, attrs, check_gradient, runtime, fn):
    """In the runtime: the reference evaluator has no grouped transposed convolution."""
    call = f"y = Conv<{attrs}>(x, w, b)" if attrs else "y = Conv(x, w, b)"
    check_gradient(fn(f"x: F64[{x}], w: F64[{w}], b: F64[{w.split(',')[0]}]", call), run=runtime)


TRANSPOSED = [
    ("2,3,4,3", "3,2,3,2", ""),
    ("n,3,4,3", "3,2,3,2", "strides=[2, 3], pads=[1, 0, 1, 1]"),
    ("1,2,3,4", "2,2,3,3", "strides=[3, 2], output_padding=[2, 1]"),
    ("1,2,3,4", "2,2,2,3", "strides=[2, 2], output_padding=[1, 1], pads=[0, 1, 1, 1]"),
    ("1,2,4,4", "2,3,2,2", "dilations=[2, 3], strides=[2, 1]"),
    ("2,4,3,3", "4,3,2,2", "group=2, strides=[2, 2]"),
    ("1,2,3,3", "2,2,3,3", "strides=[2, 2], output_shape=[6, 7]"),
    ("1,2,3,3", "2,2,3,3", 'strides=[2, 2], auto_pad="SAME_UPPER"'),
    ("1,2,3,3", "2,2,3,3", 'strides=[2, 2], auto_pad="SAME_LOWER"'),
    ("1,2,3,3", "2,2,3,3", 'strides=[2, 2], auto_pad="VALID", output_padding=[1, 0]'),
    ("1,2,5", "2,2,3", "strides=[2]"),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_transposed_convolutions(x, w, attrs, check_gradient, runtime, fn):
    group = 2 if "group" in attrs else 1
    call = f"y = ConvTranspose<{attrs}>(x, w, b)" if attrs else "y = ConvTranspose(x, w, b)"
    bias = int(w.split(",")[1]) * group
    check_gradient(fn(f"x: F64[{x}], w: F64[{w}], b: F64[{bias}]", call), run=runtime)


POOLS = [
    ("1,2,4,6", "kernel_shape=[2, 2], strides=[2, 2]"),
    ("n,2,5,5", "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]"),
    ("1,2,5,6", "kernel_shape=[2, 3]"),
    ("1,1,6,6", "kernel_shape=[2, 2], strides=[3, 3]"),
    ("1,2,5,6", 'kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"'),
    ("1,1,6,7", "kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1"),
    ("1,2,7", "kernel_shape=[3], strides=[2]"),
]


@pytest.mark.parametrize(("x", "attrs"), POOLS)
def test_max_pools(x, attrs, check_gradient, runtime, fn):
    """In the runtime: the reference evaluator's indices are wrong where windows overlap."""
    shape = [2 if d == "n" else int(d) for d in x.split(",")]
    values = np.random.default_rng(4).permutation(int(np.prod(shape))).reshape(shape) / 10.0
    check_gradient(fn(f"x: F64[{x}]", f"y = MaxPool<{attrs}>(x)"), run=runtime, x=values)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("x", "attrs"), POOLS)
def test_average_pools(x, attrs, include, check_gradient, runtime, fn):
    check_gradient(
        fn(f"x: F64[{x}]", f"y = AveragePool<{attrs}, count_include_pad={include}>(x)"), run=runtime
    )


@pytest.mark.parametrize(
    ("x", "image", "block", "attrs"),
    [
        ("n,8,6", "3, 4", "2, 2", ""),
        ("2,6,9", "4, 5", "3, 2", "pads=[1, 0, 0, 1], strides=[1, 2]"),
        ("1,4,4", "4, 4", "2, 2", "dilations=[2, 2]"),
        ("n,6,4", "6", "3", "pads=[1, 2], strides=[2]"),
    ],
)
def test_columns_that_are_added_to_images(x, image, block, attrs, check_gradient, runtime, fn):
    rank = len(block.split(","))
    lines = [
        f"i = Constant<value=I64[{rank}]{{{image}}}>()",
        f"b = Constant<value=I64[{rank}]{{{block}}}>()",
        f"z = Col2Im<{attrs}>(x, i, b)".replace("<>", ""),
        "y = Tanh(z)",
    ]
    check_gradient(fn(f"x: F64[{x}]", *lines), run=runtime)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    ("x", "attrs"),
    [
        ("n,2,5,4", "kernel_shape=[2, 3]"),
        ("1,2,5,5", "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]"),
        ("n,1,7", 'kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"'),
        ("1,1,7,5", "kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1, dilations=[2, 1]"),
    ],
)
def test_norms_of_windows(x, attrs, p, check_gradient, runtime, fn):
    check_gradient(fn(f"x: F64[{x}]", f"y = LpPool<{attrs}, p={p}>(x)"), run=runtime)
    check_gradient(fn(f"x: F64[{x}]", f"y = GlobalLpPool<p={p}>(x)"), run=runtime)


def test_the_norm_of_nothing_has_a_gradient_of_zeros(read, runtime, fn):
    for op in ("GlobalLpPool", "LpPool<kernel_shape=[2]>"):
        found = differentiate(read(fn("x: F64[1,1,4]", f"y = {op}(x)")), ["x"])
        arrays = {"x": np.zeros((1, 1, 4))}
        arrays.update(runtime(found.forward, arrays))
        arrays[found.backward.inputs[-1]] = np.ones_like(arrays[found.forward.outputs[0]])
        np.testing.assert_array_equal(runtime(found.backward, arrays)["d_x"], np.zeros((1, 1, 4)))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(op, check_gradient, fn):
    check_gradient(fn("x: F64[n,3,2,4]", f"y = {op}(x)"))


def test_a_value_read_twice_gets_the_sum(check_gradient, fn):
    check_gradient(fn(X34, "a = Exp(x)", "b = Mul(a, x)", "y = Add(b, a)"))


def test_no_gradient_flows_through_comparisons_and_roundings(check_gradient, fn):
    check_gradient(fn(X34, "f = Floor(x)", "y = Mul(f, x)"), x=APART)


def test_an_input_that_the_output_does_not_read_gets_zeros(check_gradient, fn):
    check_gradient(fn("x: F64[3,4], w: F64[2,5]", "y = Exp(x)"), ["x", "w"])


EINSUMS = [
    ("ij,jk->ik", "3,4", "4,2"),
    ("bij,bjk->bik", "n,3,4", "n,4,2"),
    ("bhqd,bhkd->bhqk", "2,2,3,4", "2,2,5,4"),
    ("i,j", "3", "4"),
    ("ij,ij->", "3,4", "3,4"),
    ("ijk,k->ji", "2,3,4", "4"),
    ("...ij,...jk->...ik", "2,2,3,4", "2,2,4,3"),
    ("ij,k->k", "3,4", "2"),
]


@pytest.mark.parametrize(("equation", "a", "b"), EINSUMS)
def test_einsum(equation, a, b, check_gradient, fn):
    check_gradient(fn(f"a: F64[{a}], b: F64[{b}]", f'y = Einsum<equation="{equation}">(a, b)'))


def test_einsum_of_one_and_of_three(check_gradient, fn):
    check_gradient(fn("a: F64[2,3,4]", 'y = Einsum<equation="ijk->ki">(a)'))
    check_gradient(fn("a: F64[2,3], b: F64[3,4], c: F64[4]", 'y = Einsum<equation="ij,jk,k->i">(a, b, c)'))
