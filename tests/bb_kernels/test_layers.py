"""Normalisation, recurrence, quantised arithmetic and resizing against their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bb_kernels import KernelAttributeError, KernelShapeError, TensorSpec, UnsupportedDtypeError, prepare

Compute = Callable[..., list[Any]]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (1, 3, 4, 5)])
def test_batch_norm(known: bool, shape: Any, compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    scale, bias, mean = (rng.standard_normal(3).astype(np.float32) for _ in range(3))
    var = rng.random(3).astype(np.float32)
    (got,) = compute("BatchNormalization", [x, scale, bias, mean, var], known=known, epsilon=1e-3)
    column = (3, *(1,) * (len(shape) - 2))
    s, b, m, v = (p.reshape(column) for p in (scale, bias, mean, var))
    np.testing.assert_allclose(got, (x - m) / np.sqrt(v + 1e-3) * s + b, rtol=1e-4, atol=1e-5)


def test_batch_norm_training_moves_the_statistics(compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 2, 5)).astype(np.float32)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    y, mean, var = compute(
        "BatchNormalization", [x, one, zero, zero, one], n_outputs=3, training_mode=1, momentum=0.75
    )
    np.testing.assert_allclose(y.mean((0, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(y.var((0, 2)), 1, atol=1e-4)
    np.testing.assert_allclose(mean, 0.25 * x.mean((0, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var, 0.75 + 0.25 * x.var((0, 2)), rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_layer_norm(axis: int, compute: Compute, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((2, 3, 4)) + 100).astype(np.float32)
    scale, bias = (rng.standard_normal(x.shape[axis:]).astype(np.float32) for _ in range(2))
    y, mean, inverse = compute("LayerNormalization", [x, scale, bias], n_outputs=3, axis=axis)
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    m, v = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    np.testing.assert_allclose(y, (wide - m) / np.sqrt(v + 1e-5) * scale + bias, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(mean, m, rtol=1e-5)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(v + 1e-5), rtol=1e-3)


def test_group_norm_of_one_group_per_channel_is_instance_norm(
    compute: Compute, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 4, 3, 3)).astype(np.float32)
    scale, bias = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
    (instance,) = compute("InstanceNormalization", [x, scale, bias])
    (groups,) = compute("GroupNormalization", [x, scale, bias], num_groups=4)
    np.testing.assert_allclose(groups, instance, rtol=1e-5, atol=1e-6)
    with pytest.raises(KernelShapeError, match="3 groups"):
        compute("GroupNormalization", [x, scale, bias], num_groups=3)


@pytest.mark.parametrize("version", [12, 13])
def test_softmax_flattens_before_opset_13(version: int, compute: Compute, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((2, 3, 4)) * 50).astype(np.float32)
    for op in ("Softmax", "LogSoftmax"):
        (got,) = compute(op, [x], version=version, axis=1)
        shares = np.exp(got) if op == "LogSoftmax" else got
        np.testing.assert_allclose(shares.sum((1, 2) if version < 13 else 1), 1, rtol=1e-5)


@pytest.mark.parametrize("shape", [(16, 2), (40, 10), (33, 32), (8, 10), (40, 33), (40, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_many_short_rows_have_the_log_softmax_of_each_row(
    shape: tuple[int, int], turned: bool, compute: Compute, rng: np.random.Generator
) -> None:
    x = (rng.standard_normal(shape) * 30).astype(np.float32)
    x[3], x[4, 0], x[5, -1], x[6] = -np.inf, np.inf, np.nan, 0.0
    given = np.asfortranarray(x) if turned else x
    (got,) = compute("LogSoftmax", [given], axis=1)
    with np.errstate(all="ignore"):
        shifted = x - x.max(1, keepdims=True)
        wanted = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(got[np.isfinite(x).all(1)]).all()
    specs = [TensorSpec(x.dtype, shape)]
    prepared = prepare("LogSoftmax", 13, {"axis": 1}, specs, [None])
    step = prepared.bind(x, x, *(np.empty(s.shape, s.dtype) for s in prepared.scratch))
    with np.errstate(all="ignore"):
        step()  # in place, as a plan may have it
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("axes", [(0,), (1,)])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_a_bound_sum_is_that_of_what_is_there_when_it_runs(
    axes: tuple[int, ...], keepdims: int, turned: bool, rng: np.random.Generator
) -> None:
    x = np.asarray(rng.standard_normal((32, 10)).astype(np.float32), order="F" if turned else "C")
    known = np.array(axes, np.int64)
    specs = [TensorSpec(a.dtype, a.shape) for a in (x, known)]
    prepared = prepare("ReduceSum", 13, {"keepdims": keepdims}, specs, [None, known])
    (spec,) = prepared.outputs
    bound, out = np.empty(spec.shape, spec.dtype), np.empty(spec.shape, spec.dtype)
    step = prepared.bind(x, known, bound)
    for _ in range(2):
        step()
        prepared.run(x, known, out)
        np.testing.assert_array_equal(bound, out)
        np.testing.assert_allclose(bound, x.sum(axes, keepdims=bool(keepdims)), rtol=1e-4, atol=1e-5)
        x += 1


def _cell_inputs(op: str, rng: np.random.Generator, directions: int = 1) -> list[Any]:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    x = rng.standard_normal((5, 3, 2))
    w = rng.standard_normal((directions, gates * 4, 2))
    r = rng.standard_normal((directions, gates * 4, 4)) * 0.3
    b = rng.standard_normal((directions, 2 * gates * 4))
    return [x, w, r, b]


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_reverse_is_forward_on_turned_input(op: str, compute: Compute, rng: np.random.Generator) -> None:
    x, w, r, b = _cell_inputs(op, rng)
    n = 3 if op == "LSTM" else 2
    forward = compute(op, [x[::-1], w, r, b], hidden_size=4, n_outputs=n)
    backward = compute(op, [x, w, r, b], hidden_size=4, n_outputs=n, direction="reverse")
    np.testing.assert_allclose(backward[0], forward[0][::-1])
    for a, c in zip(backward[1:], forward[1:], strict=True):
        np.testing.assert_allclose(a, c)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_both_directions_are_the_two_side_by_side(
    op: str, compute: Compute, rng: np.random.Generator
) -> None:
    x, w, r, b = _cell_inputs(op, rng, 2)
    (both,) = compute(op, [x, w, r, b], hidden_size=4, direction="bidirectional")
    (one,) = compute(op, [x, w[:1], r[:1], b[:1]], hidden_size=4)
    (other,) = compute(op, [x, w[1:], r[1:], b[1:]], hidden_size=4, direction="reverse")
    np.testing.assert_allclose(both, np.concatenate([one, other], 1))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_short_sequences_stop_early(
    op: str, direction: str, compute: Compute, rng: np.random.Generator
) -> None:
    x, w, r, b = _cell_inputs(op, rng)
    lens = np.array([5, 2, 0], np.int32)
    y, last = compute(
        op, [x, w, r, b, lens], hidden_size=4, direction=direction, n_outputs=3 if op == "LSTM" else 2
    )[:2]
    for i, length in enumerate(lens):
        assert not y[length:, 0, i].any()
        if length:
            alone = compute(
                op, [x[:length, i : i + 1], w, r, b], hidden_size=4, direction=direction, n_outputs=2
            )
            np.testing.assert_allclose(y[:length, 0, i], alone[0][:, 0, 0])
            np.testing.assert_allclose(last[0, i], alone[1][0, 0])
    assert not last[0, 2].any()


def test_coupled_gates_of_an_lstm_are_those_of_one_that_forgets_what_it_takes_in(
    compute: Compute, rng: np.random.Generator
) -> None:
    """1 − sigmoid(v) is sigmoid(−v): an LSTM whose forget gate has the input gate's weights, turned round."""
    x, w, r, b = _cell_inputs("LSTM", rng)
    p, start, cell = (rng.standard_normal(shape) for shape in ((1, 12), (1, 3, 4), (1, 3, 4)))
    lens = np.array([5, 2, 3], np.int32)
    turned = []
    for weights, gates in ((w, 4), (r, 4), (b, 8), (p, 3)):
        parts = list(np.split(weights, gates, axis=1))
        for of_input, of_forget in ((0, 2), (4, 6)) if gates == 8 else ((0, 2),):
            parts[of_forget] = -parts[of_input]
        turned.append(np.concatenate(parts, axis=1))
    for clip in (0.0, 0.3):
        form: dict[str, Any] = {"hidden_size": 4, "n_outputs": 3, "clip": clip}
        coupled = compute("LSTM", [x, w, r, b, lens, start, cell, p], input_forget=1, **form)
        plain = compute("LSTM", [x, *turned[:3], lens, start, cell, turned[3]], **form)
        for got, expected in zip(coupled, plain, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_coupled_gates_are_onnxruntimes(
    direction: str, clip: float, compute: Compute, rng: np.random.Generator
) -> None:
    onnx = pytest.importorskip("onnx", reason="the other runtime takes a model")
    runtime = pytest.importorskip("onnxruntime", reason="the other runtime")
    d = 2 if direction == "bidirectional" else 1
    shapes = {"x": (5, 3, 2), "w": (d, 16, 2), "r": (d, 16, 4), "b": (d, 32), "h": (d, 3, 4), "c": (d, 3, 4)}
    given: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    names = ["x", "w", "r", "b", "", "h", "c", "p"]
    given["p"] = rng.standard_normal((d, 12)).astype(np.float32)
    attrs: dict[str, Any] = {"hidden_size": 4, "input_forget": 1, "direction": direction}
    if clip:
        attrs["clip"] = clip
    node = onnx.helper.make_node("LSTM", names, ["y", "last", "cell"], **attrs)
    make, f32 = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "lstm",
        [make(name, f32, array.shape) for name, array in given.items()],
        [make(name, f32, None) for name in node.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = compute("LSTM", [given.get(name) for name in names], n_outputs=3, **attrs)
    for ours, theirs in zip(got, session.run(None, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_gates_of_an_lstm_are_clipped_once_behind_their_peepholes(
    compute: Compute, rng: np.random.Generator
) -> None:
    x, w, r = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 3), (1, 8, 3), (1, 8, 2)))
    p, clip = rng.standard_normal((1, 6)).astype(np.float32), 0.3
    y, last, cell = compute(
        "LSTM", [x, w, r, None, None, None, None, p], hidden_size=2, clip=clip, n_outputs=3
    )

    def sigmoid(value: Any) -> Any:
        return 1 / (1 + np.exp(-np.clip(value, -clip, clip)))

    h, c, states = np.zeros((2, 2)), np.zeros((2, 2)), []
    for step in x:
        i, o, f, new = np.split(step @ w[0].T + h @ r[0].T, 4, axis=1)
        of_i, of_o, of_f = np.split(p[0], 3)
        c, before = sigmoid(f + of_f * c) * c, c
        c = c + sigmoid(i + of_i * before) * np.tanh(np.clip(new, -clip, clip))
        h = sigmoid(o + of_o * c) * np.tanh(c)
        states.append(h)
    np.testing.assert_allclose(y[:, 0], states, rtol=1e-5)
    np.testing.assert_allclose(last[0], h, rtol=1e-5)
    np.testing.assert_allclose(cell[0], c, rtol=1e-5)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_batch_first_is_a_transposition(op: str, compute: Compute, rng: np.random.Generator) -> None:
    x, w, r, b = _cell_inputs(op, rng)
    y, last = compute(op, [x, w, r, b], hidden_size=4, n_outputs=2)
    y2, last2 = compute(op, [x.swapaxes(0, 1), w, r, b], hidden_size=4, layout=1, n_outputs=2)
    np.testing.assert_allclose(y2, y.transpose(2, 0, 1, 3))
    np.testing.assert_allclose(last2, last.swapaxes(0, 1))


def test_named_activations_and_their_parameters(compute: Compute, rng: np.random.Generator) -> None:
    x, w, r, b = _cell_inputs("RNN", rng)
    (got,) = compute(
        "RNN", [x[:1], w, r, b], activations=["Affine"], activation_alpha=[2.0], activation_beta=[1.0]
    )
    want = 2.0 * (x[0] @ w[0].T + b[0, :4] + b[0, 4:]) + 1.0
    np.testing.assert_allclose(got[0, 0], want)
    with pytest.raises(KernelAttributeError, match="Nonsense"):
        compute("RNN", [x, w, r, b], activations=["Nonsense"])


@pytest.mark.parametrize("signed", [np.int8, np.uint8])
@pytest.mark.parametrize("groups", [1, 4])
def test_qlinear_conv_is_exact_integer_arithmetic(
    signed: Any, groups: int, compute: Compute, rng: np.random.Generator
) -> None:
    info = np.iinfo(signed)
    x = rng.integers(info.min, info.max, (1, 64, 6, 6), signed, endpoint=True)
    w = rng.integers(-128, 127, (4, 64 // groups, 3, 3), np.int8, endpoint=True)
    x_zero, w_zero = signed(3), rng.integers(-5, 5, 4).astype(np.int8)
    (got,) = compute("ConvInteger", [x, w, x_zero, w_zero], group=groups, pads=[1, 1, 1, 1])
    centred = np.pad(x.astype(np.int64) - int(x_zero), [(0, 0), (0, 0), (1, 1), (1, 1)])
    kernel = w.astype(np.int64) - w_zero.astype(np.int64).reshape(-1, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), (2, 3))
    per = 64 // groups
    for m in range(4):
        first = m * groups // 4 * per
        want = np.einsum("chwij,cij->hw", windows[0, first : first + per], kernel[m])
        np.testing.assert_array_equal(got[0, m], want)


def test_matmul_integer_is_exact_beyond_float32(compute: Compute) -> None:
    a = np.full((1, 1001), 255, np.uint8)
    b = np.full((1001, 1), 255, np.uint8)
    b[0] = 254
    assert compute("MatMulInteger", [a, b], known=False)[0].tolist() == [[1000 * 255 * 255 + 255 * 254]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantize_saturates_and_rounds_to_even(dtype: Any, compute: Compute) -> None:
    info = np.iinfo(dtype)
    x = np.array([-1e9, -0.5, 0.5, 1.5, 2.5, 1e9], np.float32)
    (q,) = compute("QuantizeLinear", [x, np.float32(1), dtype(0)])
    assert q.tolist() == [info.min, 0, 0, 2, 2, info.max]


def test_quantize_there_and_back(compute: Compute, rng: np.random.Generator) -> None:
    x = rng.uniform(-3, 3, (4, 6)).astype(np.float32)
    scale, zero = rng.uniform(0.03, 0.05, 6).astype(np.float32), rng.integers(-9, 9, 6).astype(np.int8)
    (q,) = compute("QuantizeLinear", [x, scale, zero], axis=1)
    (back,) = compute("DequantizeLinear", [q, scale, zero], axis=1)
    assert (np.abs(back - x) <= scale / 2 + 1e-6).all()
    with pytest.raises(KernelShapeError, match="scale has shape"):
        compute("QuantizeLinear", [x, scale, zero], axis=0)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_by_one_changes_nothing(mode: str, compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 5, 4)).astype(np.float32)
    (same,) = compute("Resize", [x, None, None, np.array(x.shape)], mode=mode)
    np.testing.assert_allclose(same, x, rtol=1e-6)


def test_resize_of_integers(compute: Compute) -> None:
    x = np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2)
    sizes = np.array([1, 1, 4, 4])
    (got,) = compute("Resize", [x, None, None, sizes])
    assert got[0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    with pytest.raises(UnsupportedDtypeError, match="linear"):
        compute("Resize", [x, None, None, sizes], mode="linear")


def test_resize_needs_scales_or_sizes(compute: Compute) -> None:
    with pytest.raises(KernelShapeError, match="either"):
        compute("Resize", [np.ones((1, 1, 2, 2), np.float32)])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_is_likelihood_of_log_softmax(
    reduction: str, compute: Compute, rng: np.random.Generator
) -> None:
    scores = (rng.standard_normal((5, 3, 2)) * 100).astype(np.float32)
    labels = rng.integers(0, 3, (5, 2))
    labels[0, 0] = -7
    weights = rng.random(3).astype(np.float32)
    attrs = {"reduction": reduction, "ignore_index": -7}
    loss, log_prob = compute("SoftmaxCrossEntropyLoss", [scores, labels, weights], n_outputs=2, **attrs)
    np.testing.assert_allclose(log_prob, compute("LogSoftmax", [scores], axis=1)[0], rtol=1e-5, atol=1e-5)
    (same,) = compute("NegativeLogLikelihoodLoss", [log_prob, labels, weights], **attrs)
    np.testing.assert_allclose(loss, same, rtol=1e-5)
    with pytest.raises(KernelShapeError, match="3 classes"):
        compute("SoftmaxCrossEntropyLoss", [scores, labels, weights], reduction=reduction)


def test_attention_in_two_steps_with_a_cache_is_attention_at_once(
    compute: Compute, rng: np.random.Generator
) -> None:
    q, k, v = (rng.standard_normal((2, 4, 6, 8)).astype(np.float32) for _ in range(3))
    (whole,) = compute("Attention", [q, k, v], version=24, is_causal=1)
    head, tail = slice(0, 4), slice(4, 6)
    first = compute("Attention", [q[:, :, head], k[:, :, head], v[:, :, head]], version=24, is_causal=1)[0]
    step = compute(
        "Attention", [q[:, :, tail], k[:, :, tail], v[:, :, tail], None, k[:, :, head], v[:, :, head]],
        version=24, is_causal=1, n_outputs=3,
    )  # fmt: skip
    np.testing.assert_allclose(np.concatenate([first, step[0]], 2), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(step[1], k)
    np.testing.assert_array_equal(step[2], v)


def test_attention_that_sees_nothing_is_zero(compute: Compute, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 1, 2, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[True, True], [False, False]])
    (y,) = compute("Attention", [q, k, v, mask], version=24)
    assert y[0, 0, 0].any()
    assert not y[0, 0, 1].any()


def test_rotary_positions_are_checked(compute: Compute, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 1, 2, 4)).astype(np.float32)
    cache = np.ones((3, 2), np.float32)
    with pytest.raises(KernelShapeError, match="3 in the caches"):
        compute("RotaryEmbedding", [x, cache, cache, np.array([[0, 3]])], version=23)


def test_tensor_scatter_stays_in_the_cache(compute: Compute) -> None:
    cache, update = np.zeros((1, 3, 1), np.float32), np.ones((1, 2, 1), np.float32)
    assert compute("TensorScatter", [cache, update, [2]], version=24, mode="circular")[
        0
    ].ravel().tolist() == [1, 0, 1]
    with pytest.raises(KernelShapeError, match="does not fit"):
        compute("TensorScatter", [cache, update, [2]], version=24)
