"""Gradient rules of recurrent layers, normalisations, resizing and places against central differences, on the
device's own kernels in float64; and that every rule there is is tested so."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from bb_host.errors import NotDifferentiableError
from bb_host.learn import differentiable_ops, differentiate

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, INPUTS, HIDDEN = 3, 2, 2, 2


# --- recurrent layers -----------------------------------------------------------------------------


def recurrent(fn, op, attrs, read, *, directions=1, bias=True, start=False, lengths="", batch_first=False,
              peepholes=False):  # fmt: skip
    """A function of one layer; `read` says what of its outputs is the result."""
    d, g = directions, GATES[op] * HIDDEN
    x = f"n,{STEPS},{INPUTS}" if batch_first else f"{STEPS},n,{INPUTS}"
    state = f"n,{d},{HIDDEN}" if batch_first else f"{d},n,{HIDDEN}"
    inputs = [f"x: F64[{x}]", f"w: F64[{d},{g},{INPUTS}]", f"r: F64[{d},{g},{HIDDEN}]"]
    names = ["x", "w", "r", '""', '""']
    if bias:
        inputs.append(f"b: F64[{d},{2 * g}]")
        names[3] = "b"
    lines = []
    if lengths:
        lines.append(f"l = Constant<value=I32[2]{{{lengths}}}>()")
        names[4] = "l"
    if start:
        inputs.append(f"h: F64[{state}]")
        names.append("h")
        if op == "LSTM":
            inputs.append(f"c: F64[{state}]")
            names.append("c")
    if peepholes:
        inputs.append(f"eyes: F64[{d},{3 * HIDDEN}]")
        names += [*['""'] * (7 - len(names)), "eyes"]
    outputs = {"all": ("o",), "last": ('""', "p"), "both": ("o", "p"), "cell": ('""', '""', "q")}
    outputs["three"] = ("o", "p", "q")
    kept = outputs[read]
    lines.append(f"{', '.join(kept)} = {op}<{attrs}>({', '.join(names)})")
    values = [v for v in kept if v != '""']
    sums = [f"s{v} = ReduceLogSumExp<keepdims=0>({v})" for v in values]
    total = {1: "y = Exp({0})", 2: "y = Mul({0}, {1})", 3: "y = Sum({0}, {1}, {2})"}[len(values)]
    lines += [*sums, total.format(*(f"s{v}" for v in values))]
    return fn(", ".join(inputs), *lines)


def arrays_of(op, directions, batch_first=False):
    rng = np.random.default_rng(11)
    d, g = directions, GATES[op] * HIDDEN
    x = (BATCH, STEPS, INPUTS) if batch_first else (STEPS, BATCH, INPUTS)
    state = (BATCH, d, HIDDEN) if batch_first else (d, BATCH, HIDDEN)
    shapes = {"x": x, "w": (d, g, INPUTS), "r": (d, g, HIDDEN), "b": (d, 2 * g), "h": state, "c": state}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


OPS = [("RNN", ""), ("GRU", ", linear_before_reset=1"), ("GRU", ", linear_before_reset=0"), ("LSTM", "")]


@pytest.mark.parametrize(("op", "form"), OPS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("form2", ["plain", "whole", "lengths"])
def test_recurrent_layers(op, form, direction, form2, fn, check_gradient, runtime):
    d = 2 if direction == "bidirectional" else 1
    attrs = f'hidden_size={HIDDEN}, direction="{direction}"{form}'
    settings = {
        "plain": {"read": "all", "bias": False},
        "whole": {"read": "three" if op == "LSTM" else "both", "start": True},
        "lengths": {"read": "three" if op == "LSTM" else "both", "start": True, "lengths": "2, 3"},
    }[form2]
    text = recurrent(fn, op, attrs, directions=d, **settings)
    check_gradient(text, run=runtime, **arrays_of(op, d))


@pytest.mark.parametrize(("op", "form"), OPS)
def test_recurrent_layers_whose_last_state_alone_is_read(op, form, fn, check_gradient, runtime):
    text = recurrent(fn, op, f"hidden_size={HIDDEN}{form}", "last")
    check_gradient(text, run=runtime, **arrays_of(op, 1))


def test_an_lstm_whose_last_cell_alone_is_read(fn, check_gradient, runtime):
    text = recurrent(fn, "LSTM", f"hidden_size={HIDDEN}", "cell", start=True)
    check_gradient(text, run=runtime, **arrays_of("LSTM", 1))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", ["", "2, 3"])
@pytest.mark.parametrize("what", ["three", "all", "cell"])
def test_an_lstm_with_peepholes(direction, lengths, what, fn, check_gradient, runtime):
    d = 2 if direction == "bidirectional" else 1
    attrs = f'hidden_size={HIDDEN}, direction="{direction}"'
    form = {"directions": d, "start": what != "all", "lengths": lengths, "peepholes": True}
    peepholes = np.random.default_rng(5).standard_normal((d, 3 * HIDDEN))
    text = recurrent(fn, "LSTM", attrs, what, **form)
    gradient = check_gradient(text, run=runtime, eyes=peepholes, **arrays_of("LSTM", d))
    assert "eyes" in gradient.wrt


@pytest.mark.parametrize(("op", "form"), OPS)
def test_recurrent_layers_with_the_batch_first(op, form, fn, check_gradient, runtime):
    attrs = f'hidden_size={HIDDEN}, layout=1, direction="bidirectional"{form}'
    text = recurrent(fn, op, attrs, "both", directions=2, start=True, batch_first=True)
    check_gradient(text, run=runtime, **arrays_of(op, 2, batch_first=True))


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("RNN", '"Relu"'),
        ("RNN", '"Affine"'),
        ("RNN", '"ScaledTanh"'),
        ("GRU", '"HardSigmoid", "Tanh"'),
        ("GRU", '"Softsign", "Elu"'),
        ("LSTM", '"HardSigmoid", "Relu", "Tanh"'),
        ("LSTM", '"Sigmoid", "LeakyRelu", "Softplus"'),
        ("LSTM", '"Softplus", "Affine", "Elu"'),
        ("LSTM", '"Sigmoid", "ThresholdedRelu", "Softsign"'),
    ],
)
def test_recurrent_layers_with_other_activations(op, names, fn, check_gradient, runtime):
    text = recurrent(fn, op, f"hidden_size={HIDDEN}, activations=[{names}]", "all")
    check_gradient(text, run=runtime, **arrays_of(op, 1))


@pytest.mark.parametrize(
    ("op", "names", "more"),
    [
        ("RNN", '"ScaledTanh"', "activation_alpha=[1.7], activation_beta=[0.6]"),
        ("RNN", '"ThresholdedRelu"', "activation_alpha=[-0.2]"),
        ("GRU", '"HardSigmoid", "LeakyRelu"', "activation_alpha=[0.3, 0.1], activation_beta=[0.4]"),
        ("GRU", '"Sigmoid", "Affine"', "activation_alpha=[0.5], activation_beta=[0.2], clip=0.7"),
        ("LSTM", '"HardSigmoid", "Tanh", "Elu"', "activation_alpha=[0.15, 0.8], activation_beta=[0.45]"),
    ],
)
def test_recurrent_layers_whose_activations_have_numbers_of_their_own(
    op, names, more, fn, check_gradient, runtime
):
    text = recurrent(fn, op, f"hidden_size={HIDDEN}, activations=[{names}], {more}", "all")
    check_gradient(text, run=runtime, **arrays_of(op, 1))


@pytest.mark.parametrize("lengths", ["", "2, 3"])
def test_an_lstm_with_peepholes_that_clips_its_gates(lengths, fn, check_gradient, runtime):
    attrs = f'hidden_size={HIDDEN}, direction="bidirectional", clip=0.5'
    form = {"directions": 2, "start": True, "lengths": lengths, "peepholes": True}
    peepholes = np.random.default_rng(5).standard_normal((2, 3 * HIDDEN))
    text = recurrent(fn, "LSTM", attrs, "three", **form)
    check_gradient(text, run=runtime, eyes=peepholes, **arrays_of("LSTM", 2))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_single_step(op, fn, check_gradient, runtime):
    text = recurrent(fn, op, f"hidden_size={HIDDEN}", "all").replace(f"x: F64[{STEPS},n", "x: F64[1,n")
    arrays = arrays_of(op, 1)
    check_gradient(text, run=runtime, **{**arrays, "x": arrays["x"][:1]})


@pytest.mark.parametrize(
    ("attrs", "what"),
    [
        ('activations=["Tanh", "Softmax"]', "known are Affine, Elu"),
        ('activations=["Tanh", "ScaledTanh"], activation_alpha=[0.0]', "alpha of 0"),
        ("", "'x' is not known"),
    ],
)
def test_recurrent_layers_that_are_refused(attrs, what, fn, read):
    text = recurrent(fn, "GRU", f"hidden_size={HIDDEN}, {attrs}".rstrip(", "), "all")
    if not attrs:
        text = text.replace(f"x: F64[{STEPS},n", "x: F64[s,n")
    with pytest.raises(NotDifferentiableError, match=what):
        differentiate(read(text), ["w"])


@pytest.mark.parametrize(("op", "form"), OPS)
@pytest.mark.parametrize("lengths", ["", "2, 3"])
def test_recurrent_layers_that_clip_their_gates(op, form, lengths, fn, check_gradient, runtime):
    attrs = f'hidden_size={HIDDEN}, clip=0.4, direction="bidirectional"{form}'
    whole = "three" if op == "LSTM" else "both"
    text = recurrent(fn, op, attrs, whole, directions=2, start=True, lengths=lengths)
    check_gradient(text, run=runtime, **arrays_of(op, 2))


@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("lengths", ["", "2, 3"])
@pytest.mark.parametrize("more", ["", ", clip=0.4"])
def test_an_lstm_whose_gates_are_coupled(peepholes, lengths, more, fn, check_gradient, runtime):
    attrs = f'hidden_size={HIDDEN}, input_forget=1, direction="bidirectional"{more}'
    form = {"directions": 2, "start": True, "lengths": lengths, "peepholes": peepholes}
    eyes = {"eyes": np.random.default_rng(5).standard_normal((2, 3 * HIDDEN))} if peepholes else {}
    text = recurrent(fn, "LSTM", attrs, "three", **form)
    check_gradient(text, run=runtime, **eyes, **arrays_of("LSTM", 2))


# --- normalisations -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["n,4,5", "2,4,2,3", "1,4,2,1,2"])
def test_instance_and_group_normalization(shape, fn, check_gradient, runtime):
    inputs = f"x: F64[{shape}], s: F64[4], b: F64[4]"
    check_gradient(fn(inputs, "y = InstanceNormalization<epsilon=0.01>(x, s, b)"), run=runtime)
    for groups in (1, 2, 4):
        check_gradient(fn(inputs, f"y = GroupNormalization<num_groups={groups}>(x, s, b)"), run=runtime)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis, fn, check_gradient, runtime):
    shape = "3,4" if axis == 1 else "4"
    text = fn(f"x: F64[n,3,4], s: F64[{shape}]", f"y = RMSNormalization<axis={axis}>(x, s)")
    check_gradient(text, run=runtime, opset=23)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p, axis, fn, check_gradient, runtime):
    check_gradient(fn("x: F64[3,4]", f"y = LpNormalization<p={p}, axis={axis}>(x)"), run=runtime)


def test_the_gradient_of_a_zero_vector_is_finite(fn, read, runtime):
    found = differentiate(read(fn("x: F64[2,3]", "y = LpNormalization(x)")), ["x"])
    arrays = {"x": np.zeros((2, 3))}
    arrays.update(runtime(found.forward, arrays))
    arrays[found.backward.inputs[-1]] = np.ones((2, 3))
    assert np.isfinite(runtime(found.backward, arrays)["d_x"]).all()


@pytest.mark.parametrize("op", ["MeanVarianceNormalization", "MeanVarianceNormalization<axes=[1]>"])
def test_mean_variance_normalization(op, fn, check_gradient, runtime):
    check_gradient(fn("x: F64[n,2,3,2]", f"y = {op}(x)"), run=runtime)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_local_response_normalization(size, fn, check_gradient, runtime):
    attrs = f"size={size}, alpha=0.5, beta=0.6, bias=0.9"
    check_gradient(fn("x: F64[n,4,2,2]", f"y = LRN<{attrs}>(x)"), run=runtime)


def test_swish(fn, check_gradient, runtime):
    for op in ("Swish", "Swish<alpha=1.5>"):
        check_gradient(fn("x: F64[3,4]", f"y = {op}(x)"), run=runtime, opset=24)


# --- resizing -------------------------------------------------------------------------------------

MODES = [
    'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"',
    'mode="nearest"',
    'mode="nearest", coordinate_transformation_mode="align_corners", nearest_mode="ceil"',
    'mode="linear"',
    'mode="linear", coordinate_transformation_mode="pytorch_half_pixel"',
    'mode="linear", coordinate_transformation_mode="align_corners"',
    'mode="linear", antialias=1',
    'mode="cubic"',
    'mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5',
]


@pytest.mark.parametrize("attrs", MODES)
@pytest.mark.parametrize("target", ["scales=2, 2", "scales=1.5, 0.6", "sizes=5, 7", "sizes=3, 8"])
def test_resize(attrs, target, fn, check_gradient, runtime):
    kind, numbers = target.split("=")
    if kind == "scales":
        lines = [f"s = Constant<value=F32[4]{{1.0, 1.0, {numbers}}}>()", f'z = Resize<{attrs}>(x, "", s)']
    else:
        lines = [
            f"s = Constant<value=I64[2]{{{numbers}}}>()",
            f'z = Resize<{attrs}, axes=[2, 3]>(x, "", "", s)',
        ]
    check_gradient(fn("x: F64[n,2,3,4]", *lines, "y = Exp(z)"), run=runtime)


def test_resize_of_other_ranks_and_axes(fn, check_gradient, runtime):
    lines = ["s = Constant<value=F32[3]{1.0, 2.0, 1.0}>()", 'y = Resize<mode="linear">(x, "", s)']
    check_gradient(fn("x: F64[n,3,2]", *lines), run=runtime)  # channels last
    lines = ["s = Constant<value=F32[5]{1, 1, 2, 1.5, 1}>()", 'y = Resize<mode="linear">(x, "", s)']
    check_gradient(fn("x: F64[1,1,2,3,2]", *lines), run=runtime)


def test_resize_of_a_part(fn, check_gradient, runtime):
    attrs = 'mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.0'
    lines = [
        "r = Constant<value=F32[8]{0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2}>()",
        "s = Constant<value=I64[4]{1, 1, 4, 5}>()",
        f'y = Resize<{attrs}>(x, r, "", s)',
    ]
    check_gradient(fn("x: F64[1,1,4,4]", *lines), run=runtime)


def test_nearest_by_a_whole_factor_is_one_sum(fn, read):
    lines = ["s = Constant<value=F32[4]{1, 1, 2, 2}>()", f'y = Resize<{MODES[0]}>(x, "", s)']
    found = differentiate(read(fn("x: F32[n,2,3,4]", *lines)), ["x"]).backward
    assert [op.op_type for op in found.ops if op.op_type != "Constant"] == ["Reshape", "ReduceSum"]


def test_a_resize_to_unknown_sizes_is_refused(fn, read):
    lines = ["s = Constant<value=F32[4]{1, 1, 2, 2}>()", f'y = Resize<{MODES[0]}>(x, "", s)']
    with pytest.raises(NotDifferentiableError, match="not known in numbers"):
        differentiate(read(fn("x: F32[n,2,h,w]", *lines)), ["x"])


@pytest.mark.parametrize("op", ["DepthToSpace<blocksize=2>", 'DepthToSpace<blocksize=2, mode="CRD">'])
def test_depth_and_space(op, fn, check_gradient):
    check_gradient(fn("x: F64[n,8,2,3]", f"z = {op}(x)", "y = Exp(z)"))
    check_gradient(fn("x: F64[n,2,4,6]", "z = SpaceToDepth<blocksize=2>(x)", "y = Exp(z)"))


@pytest.mark.parametrize("repeats", ["2, 3", "1, 2", "1, 1"])
@pytest.mark.parametrize("shape", ["3,4", "n,4"])
def test_tiles(repeats, shape, fn, check_gradient):
    lines = [f"r = Constant<value=I64[2]{{{repeats}}}>()", "z = Tile(x, r)", "y = Exp(z)"]
    check_gradient(fn(f"x: F64[{shape}]", *lines))


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_that_are_gathered_twice_add_up(axis, fn, check_gradient, runtime):
    lines = [
        "i = Constant<value=I64[2,2]{0, 1, 0, -1}>()",
        f"z = GatherElements<axis={axis}>(x, i)",
        "y = Exp(z)",
    ]
    check_gradient(fn("x: F64[3,4]", *lines), run=runtime)


@pytest.mark.parametrize(
    ("indices", "batch"),
    [("I64[3,1]{0, 1, 0}", 0), ("I64[2,2]{0, 1, 2, -1}", 0), ("I64[3,2,1]{0, 1, 2, 2, 1, 1}", 1)],
)
def test_slices_that_are_gathered_by_place(indices, batch, fn, check_gradient, runtime):
    lines = [f"i = Constant<value={indices}>()", f"z = GatherND<batch_dims={batch}>(x, i)", "y = Exp(z)"]
    check_gradient(fn("x: F64[3,4,2]", *lines), run=runtime)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scattered_updates(reduction, fn, check_gradient, runtime):
    attrs = f'axis=1, reduction="{reduction}"'
    lines = [
        "i = Constant<value=I64[2,2]{0, 1, 3, -2}>()",
        f"z = ScatterElements<{attrs}>(x, i, u)",
        "y = Exp(z)",
    ]
    check_gradient(fn("x: F64[3,4], u: F64[2,2]", *lines), run=runtime)
    lines = [
        "i = Constant<value=I64[2,1]{2, 0}>()",
        f'z = ScatterND<reduction="{reduction}">(x, i, u)',
        "y = Exp(z)",
    ]
    check_gradient(fn("x: F64[3,4], u: F64[2,4]", *lines), run=runtime)


def test_the_largest_entries(fn, check_gradient, runtime):
    lines = ["k = Constant<value=I64[1]{2}>()", "v, i = TopK<axis=1>(x, k)", "y = Exp(v)"]
    check_gradient(fn("x: F64[n,4]", *lines), run=runtime)


@pytest.mark.parametrize("attrs", ["", "<reverse=1>", "<exclusive=1>", "<exclusive=1, reverse=1>"])
def test_running_sums(attrs, fn, check_gradient, runtime):
    lines = ["a = Constant<value=I64[]{1}>()", f"z = CumSum{attrs}(x, a)", "y = Exp(z)"]
    check_gradient(fn("x: F64[3,4]", *lines), run=runtime)


def test_triangles_and_reversed_sequences(fn, check_gradient, runtime):
    check_gradient(fn("x: F64[3,4]", "y = Trilu<upper=0>(x)"), run=runtime)
    lines = ["k = Constant<value=I64[]{1}>()", "z = Trilu(x, k)", "y = Exp(z)"]
    check_gradient(fn("x: F64[3,4]", *lines), run=runtime)
    lines = [
        "l = Constant<value=I64[3]{1, 4, 2}>()",
        "z = ReverseSequence<batch_axis=0, time_axis=1>(x, l)",
        "y = Exp(z)",
    ]
    check_gradient(fn("x: F64[3,4]", *lines), run=runtime)


# --- all of them ----------------------------------------------------------------------------------

OTHERS = ("gradients", "gradients_between_pixels")
STRAIGHT_THROUGH = {"QuantizeLinear", "DequantizeLinear"}
"""They have no slope to compare with; test_fake_quantization.py says what they pass on."""


def words_of(path: Path) -> set[str]:
    """The words in the texts of a test module, its docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    texts = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
    ]
    return {word for text in texts for word in "".join(c if c.isalnum() else " " for c in text).split()}


def test_every_rule_is_tested():
    """Each operator is named, as a whole word, in a case of these files."""
    here = Path(__file__)
    words = words_of(here).union(*(words_of(here.with_name(f"test_{name}.py")) for name in OTHERS))
    assert sorted(differentiable_ops() - words - STRAIGHT_THROUGH) == []
    assert differentiable_ops() >= STRAIGHT_THROUGH
