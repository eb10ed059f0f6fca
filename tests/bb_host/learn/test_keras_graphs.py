"""Graphs in the shapes that tf2onnx gives Keras models: channels last around convolutions that are channels
first, padding for "same", dense layers over sequences, states made of zeros in the size of the batch.

Built by hand after its patterns; whole graphs against central differences on the device's kernels in float64.
"""

from __future__ import annotations

import numpy as np
import pytest

FLOOR = 'coordinate_transformation_mode="asymmetric", nearest_mode="floor"'


@pytest.fixture
def holds(fn, check_gradient, runtime):
    """Checks the gradient of a graph with respect to all that is named."""

    def check(inputs, *lines, wrt=(), **given):
        return check_gradient(fn(inputs, *lines), wrt, run=runtime, **given)

    return check


def test_a_convolutional_net_with_channels_last(holds):
    lines = [
        "xt = Transpose<perm=[0, 3, 1, 2]>(x)",
        'c1 = Conv<auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3]>(xt, w1, b1)',
        "r1 = Softplus(c1)",
        "d1 = Conv<group=3, pads=[1, 1, 1, 1], kernel_shape=[3, 3]>(r1, dw)",
        "p1 = Conv<kernel_shape=[1, 1]>(d1, pw, b2)",
        "m1 = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(p1)",
        "back = Transpose<perm=[0, 2, 3, 1]>(m1)",
        "flat_to = Constant<value=I64[2]{-1, 4}>()",
        "flat = Reshape(back, flat_to)",
        "mm = MatMul(flat, fc)",
        "z = Add(mm, fb)",
        "y = Softmax<axis=-1>(z)",
    ]
    inputs = (
        "x: F64[n,6,6,2], w1: F64[3,2,3,3], b1: F64[3], dw: F64[3,1,3,3], pw: F64[4,3,1,1], b2: F64[4],"
        " fc: F64[4,3], fb: F64[3]"
    )
    holds(inputs, *lines)


def test_upsampling_and_skips_with_channels_last(holds):
    """UpSampling2D nearest and bilinear, Concatenate on channels, ReLU6 as Relu and Min, global pooling."""
    lines = [
        "xt = Transpose<perm=[0, 3, 1, 2]>(x)",
        "c1 = Conv<pads=[1, 1, 1, 1], kernel_shape=[3, 3]>(xt, w1)",
        "six = Constant<value=F64[]{6.0}>()",
        "r = Relu(c1)",
        "r6 = Min(r, six)",
        "half = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(r6)",
        "s = Constant<value=F32[4]{1, 1, 2, 2}>()",
        f'u1 = Resize<mode="nearest", {FLOOR}>(half, "", s)',
        'u2 = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(half, "", s)',
        'u3 = Resize<mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn">(half, "", s)',
        "all = Concat<axis=1>(r6, u1, u2, u3)",
        "last = Transpose<perm=[0, 2, 3, 1]>(all)",
        "scaled = Mul(last, gain)",
        "a = Constant<value=I64[2]{1, 2}>()",
        "mean = ReduceMean<keepdims=0>(scaled, a)",
        "y = MatMul(mean, fc)",
    ]
    holds("x: F64[n,4,4,1], w1: F64[2,1,3,3], gain: F64[8], fc: F64[8,2]", *lines)


def test_batch_normalization_beside_an_explicit_pad(holds):
    """ZeroPadding2D is a Pad of its own; channels-last statistics are per channel behind the Transpose."""
    lines = [
        "p = Constant<value=I64[8]{0, 1, 1, 0, 0, 0, 0, 0}>()",
        "xp = Pad(x, p)",
        "xt = Transpose<perm=[0, 3, 1, 2]>(xp)",
        "c = Conv<strides=[2, 2], kernel_shape=[3, 3]>(xt, w)",
        "m = Constant<value=F64[2]{0.1, -0.2}>()",
        "v = Constant<value=F64[2]{0.9, 1.4}>()",
        "n = BatchNormalization<epsilon=0.001>(c, g, b, m, v)",
        "y = HardSwish(n)",
    ]
    holds("x: F64[n,4,4,2], w: F64[2,2,3,3], g: F64[2], b: F64[2]", *lines)


def test_a_dense_layer_over_a_sequence(holds):
    """Keras' Tensordot: the sequence is flattened to rows, by a shape that is computed from the batch's."""
    lines = [
        "sh = Shape(x)",
        "i = Constant<value=I64[2]{0, 1}>()",
        "lead = Gather<axis=0>(sh, i)",
        "rows_to = Constant<value=I64[2]{-1, 3}>()",
        "rows = Reshape(x, rows_to)",
        "mm = MatMul(rows, w)",
        "width = Constant<value=I64[1]{2}>()",
        "to = Concat<axis=0>(lead, width)",
        "back = Reshape(mm, to)",
        "z = Add(back, b)",
        "y = Gelu(z)",
    ]
    holds("x: F64[n,4,3], w: F64[3,2], b: F64[2]", *lines)


def test_layer_normalization_in_its_parts(holds):
    lines = [
        "a = Constant<value=I64[1]{-1}>()",
        "m = ReduceMean(x, a)",
        "c = Sub(x, m)",
        "q = Mul(c, c)",
        "v = ReduceMean(q, a)",
        "e = Constant<value=F64[]{0.001}>()",
        "ve = Add(v, e)",
        "s = Sqrt(ve)",
        "i = Reciprocal(s)",
        "ig = Mul(i, gamma)",
        "xn = Mul(x, ig)",
        "mn = Mul(m, ig)",
        "off = Sub(beta, mn)",
        "y = Add(xn, off)",
    ]
    holds("x: F64[n,3,4], gamma: F64[4], beta: F64[4]", *lines)


@pytest.mark.parametrize(("op", "gates", "attrs"), [("LSTM", 4, ""), ("GRU", 3, ", linear_before_reset=1")])
def test_recurrent_layers_whose_first_state_is_zeros_in_the_size_of_the_batch(op, gates, attrs, holds):
    state = "init" if op == "GRU" else "init, init"
    lines = [
        "xt = Transpose<perm=[1, 0, 2]>(x)",
        "sh = Shape(x)",
        "zero = Constant<value=I64[1]{0}>()",
        "one = Constant<value=I64[1]{1}>()",
        "n = Slice(sh, zero, one)",
        "h = Constant<value=I64[1]{2}>()",
        "size = Concat<axis=0>(one, n, h)",
        "init = ConstantOfShape<value=F64[1]{0.0}>(size)",
        f'seq, last = {op}<hidden_size=2{attrs}>(xt, w, r, b, "", {state})',
        "a = Constant<value=I64[1]{1}>()",
        "sq = Squeeze(seq, a)",
        "st = Transpose<perm=[1, 0, 2]>(sq)",
        "f = Squeeze(last, zero)",
        "mean = ReduceMean<keepdims=0>(st, a)",
        "both = Concat<axis=-1>(mean, f)",
        "y = MatMul(both, fc)",
    ]
    width = gates * 2
    inputs = f"x: F64[n,3,2], w: F64[1,{width},2], r: F64[1,{width},2], b: F64[1,{2 * width}], fc: F64[4,2]"
    holds(inputs, *lines)


def test_multi_head_attention_by_einsum(holds):
    lines = [
        'q = Einsum<equation="abc,cde->abde">(x, wq)',
        'k = Einsum<equation="abc,cde->abde">(x, wk)',
        'v = Einsum<equation="abc,cde->abde">(x, wv)',
        'scores = Einsum<equation="aecd,abcd->acbe">(k, q)',
        "p = Softmax<axis=-1>(scores)",
        'mixed = Einsum<equation="acbe,aecd->abcd">(p, v)',
        'y = Einsum<equation="abcd,cde->abe">(mixed, wo)',
    ]
    inputs = "x: F64[n,3,4], wq: F64[4,2,2], wk: F64[4,2,2], wv: F64[4,2,2], wo: F64[2,2,4]"
    given = {"x": np.random.default_rng(3).standard_normal((2, 3, 4))}
    holds(inputs, *lines, **given)
