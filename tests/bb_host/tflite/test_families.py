"""Random nets of the families that people deploy: widths, depths, odd sizes, strides; as onnxruntime."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest

from benchmarks import models
from benchmarks.models import Net

SEEDS = range(6)


def _seeded(net: Net, seed: int) -> np.random.Generator:
    net.rng = np.random.default_rng([seed, 1])
    return np.random.default_rng(seed)


def _int(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _pair(rng: np.random.Generator, low: int, high: int) -> tuple[int, int]:
    return _int(rng, low, high), _int(rng, low, high)


def _head(net: Net, y: str, channels: int, rng: np.random.Generator) -> onnx.ModelProto:
    classes = _int(rng, 2, 12)
    flat = net.op("Flatten", net.op("GlobalAveragePool", y))
    return net.model(net.op("Softmax", net.dense(flat, channels, classes), axis=-1))


def autoencoder(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    widths = [_int(rng, 3, 70) for _ in range(_int(rng, 3, 6))]
    net = Net("autoencoder", (_int(rng, 1, 3), widths[0]))
    _seeded(net, seed)
    y = "x"
    for before, after in pairwise(widths):
        y = net.op("Relu", net.norm(net.dense(y, before, after), after))
    return net.model(net.dense(y, widths[-1], widths[0]))


def ds_cnn(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    net = Net("ds_cnn", (_int(rng, 1, 2), 1, _int(rng, 17, 49), _int(rng, 9, 15)))
    _seeded(net, seed)
    channels = _int(rng, 5, 24)
    y = net.conv("x", 1, channels, _pair(rng, 2, 5), _pair(rng, 1, 2))
    for _ in range(_int(rng, 1, 3)):
        y = net.conv(y, channels, channels, _pair(rng, 1, 3), _pair(rng, 1, 2), group=channels)
        y = net.conv(y, channels, channels, (1, 1))
    return _head(net, y, channels, rng)


def resnet(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    net = Net("resnet", (_int(rng, 1, 2), 3, _int(rng, 13, 33), _int(rng, 13, 33)))
    _seeded(net, seed)
    before = _int(rng, 3, 9)
    y = net.conv("x", 3, before)
    for _ in range(_int(rng, 1, 3)):
        channels, stride = _int(rng, 4, 17), _int(rng, 1, 3)
        z = net.conv(net.conv(y, before, channels, stride=(stride, stride)), channels, channels, act=False)
        # Without SAME, which pads by less than nothing where a stride passes its window, in onnxruntime 1.18.
        w = net.normal(channels, before, 1, 1, scale=(2 / before) ** 0.5)
        y = net.norm(net.op("Conv", y, w, strides=[stride] * 2, kernel_shape=[1, 1]), channels)
        y, before = net.op("Relu", net.op("Add", y, z)), channels
    return _head(net, y, before, rng)


def mobilenet(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    net = Net("mobilenet", (1, 3, _int(rng, 17, 40), _int(rng, 17, 40)))
    _seeded(net, seed)
    before = _int(rng, 4, 9)
    y = net.conv("x", 3, before, stride=(2, 2))
    for _ in range(_int(rng, 1, 4)):
        channels, stride = _int(rng, 4, 20), _int(rng, 1, 2)
        y = net.op("Clip", net.conv(y, before, before, stride=(stride, stride), group=before, act=False),
                   net.weight(np.float32(0)), net.weight(np.float32(6)))  # fmt: skip
        y, before = net.conv(y, before, channels, (1, 1)), channels
    return _head(net, y, before, rng)


def transformer(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    heads, length = _int(rng, 1, 4), _int(rng, 5, 19)
    each = _int(rng, 3, 9)
    width = heads * each
    net = Net("transformer", (_int(rng, 1, 2), length, width))
    _seeded(net, seed)

    def linear(x: str, n: int, m: int) -> str:
        return net.op("Add", net.op("MatMul", x, net.normal(n, m, scale=n**-0.5)), net.normal(m, scale=0.1))

    normed = net.op("LayerNormalization", "x", net.normal(width), net.normal(width), axis=-1)
    parts = net.op("Split", linear(normed, width, 3 * width), outputs=3, axis=-1)
    q, k, v = (net.op("Transpose", net.op("Reshape", p, net.ints(0, 0, heads, each)), perm=[0, 2, 1, 3])
               for p in parts)  # fmt: skip
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.op("Mul", scores, net.weight(np.float32(each**-0.5)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, width))
    y = net.op("Add", "x", linear(joined, width, width))
    h = linear(y, width, 2 * width)
    bent = net.op("Erf", net.op("Mul", h, net.weight(np.float32(0.5**0.5))))
    bent = net.op("Mul", net.op("Mul", h, net.weight(np.float32(0.5))),
                  net.op("Add", bent, net.weight(np.float32(1))))  # fmt: skip
    y = net.op("Add", y, linear(bent, 2 * width, width))
    return net.model(net.op("ReduceMean", y, axes=[1], keepdims=0))


def u_net(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    net = Net("u_net", (1, 3, 2 * _int(rng, 7, 15), 2 * _int(rng, 7, 15)))
    _seeded(net, seed)
    low, high = _int(rng, 3, 9), _int(rng, 3, 9)
    one = net.conv("x", 3, low)
    down = net.conv(net.op("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), low, high)
    if seed % 3 == 0:
        up = net.op("ConvTranspose", down, net.normal(high, low, 2, 2), strides=[2, 2], kernel_shape=[2, 2])
        wide = 2 * low
    else:
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        scales = net.weight(np.array([1, 1, 2, 2], np.float32))
        up = net.op("Resize", down, "", scales, **(mode if seed % 3 == 1 else {"mode": "linear"}))
        wide = low + high
    y = net.conv(net.op("Concat", up, one, axis=1), wide, low)
    return net.model(net.op("Sigmoid", net.op("Conv", y, net.normal(1, low, 1, 1), kernel_shape=[1, 1])))


def series(seed: int) -> onnx.ModelProto:
    """Steps of a sensor, [batch, length, channels], as PyTorch's Conv1d takes them."""
    rng = np.random.default_rng(seed)
    channels, length, wide = _int(rng, 1, 5), _int(rng, 29, 61), _int(rng, 3, 13)
    net = Net("series", (_int(rng, 1, 2), length, channels))
    _seeded(net, seed)

    def conv(x: str, before: int, after: int, kernel: int, **attributes: object) -> str:
        fan = before // attributes.get("group", 1)
        w = net.normal(after, fan, kernel, scale=(2 / fan / kernel) ** 0.5)
        return net.norm(net.op("Conv", x, w, net.normal(after, scale=0.1), **attributes), after)

    y = net.op("Transpose", "x", perm=[0, 2, 1])
    y = net.op("Relu", conv(y, channels, wide, _int(rng, 2, 5), strides=[_int(rng, 1, 2)]))
    z = net.op("Relu", conv(y, wide, wide, 3, group=wide, pads=[2, 2], dilations=[2]))
    y = net.op("Relu", net.op("Add", y, conv(z, wide, wide, 1)))
    y = net.op("MaxPool", y, kernel_shape=[3], strides=[2], pads=[1, 1])
    y = net.op("Concat", y, conv(y, wide, 4, 3, pads=[1, 1]), axis=1)
    if seed % 2:
        y = net.op("Relu", conv(y, wide + 4, 6, 1))
        return net.model(net.op("ReduceMean", y, axes=[2], keepdims=0))
    flat = net.op("Flatten", net.op("GlobalAveragePool", y))
    return net.model(net.dense(flat, wide + 4, _int(rng, 2, 9)))


def vision_transformer(seed: int) -> onnx.ModelProto:
    """Patches, and queries, keys and values cut from one tensor of five dimensions."""
    rng = np.random.default_rng(seed)
    heads, each, patch, side = _int(rng, 1, 3), _int(rng, 3, 7), _int(rng, 3, 5), _int(rng, 2, 4)
    width, length = heads * each, side * side
    net = Net("vision_transformer", (1, 3, patch * side, patch * side))
    _seeded(net, seed)
    y = net.op("Conv", "x", net.normal(width, 3, patch, patch, scale=0.1), strides=[patch, patch])
    y = net.op("Transpose", net.op("Reshape", y, net.ints(0, 0, -1)), perm=[0, 2, 1])
    y = net.op("Add", y, net.normal(1, length, width, scale=0.2))
    normed = net.op("LayerNormalization", y, net.normal(width), net.normal(width), axis=-1)
    qkv = net.op("Add", net.op("MatMul", normed, net.normal(width, 3 * width, scale=width**-0.5)),
                 net.normal(3 * width, scale=0.1))  # fmt: skip
    qkv = net.op("Reshape", qkv, net.ints(0, length, 3, heads, each))
    qkv = net.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", qkv, net.weight(np.array(i, np.int64)), axis=0) for i in range(3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, width))
    y = net.op("Add", y, net.op("MatMul", joined, net.normal(width, width, scale=width**-0.5)))
    return net.model(net.dense(net.op("ReduceMean", y, axes=[1], keepdims=0), width, 5))


def shuffle_net(seed: int) -> onnx.ModelProto:
    """Grouped convolutions, channels shuffled between them, and shortcuts added by Sum."""
    rng = np.random.default_rng(seed)
    groups, each = _int(rng, 2, 3), _int(rng, 2, 5)
    channels, (height, width) = groups * each, _pair(rng, 9, 15)
    net = Net("shuffle_net", (1, 3, height, width))
    _seeded(net, seed)
    y = net.conv("x", 3, channels)
    for _ in range(_int(rng, 1, 2)):
        z = net.conv(y, channels, channels, (1, 1), group=groups)
        z = net.op("Reshape", z, net.ints(0, groups, each, height, width))
        z = net.op("Transpose", z, perm=[0, 2, 1, 3, 4])
        z = net.op("Reshape", z, net.ints(0, channels, height, width))
        z = net.conv(net.conv(z, channels, channels, group=channels, act=False), channels, channels, (1, 1))
        y = net.op("Relu", net.op("Sum", y, z))
    return _head(net, y, channels, rng)


def enlarger(seed: int) -> onnx.ModelProto:
    """What PyTorch enlarges images with: PixelShuffle, transposed convolutions, half-pixel interpolation."""
    rng = np.random.default_rng(seed)
    net = Net("enlarger", (1, 3, *_pair(rng, 5, 11)))
    _seeded(net, seed)
    low = _int(rng, 2, 7)
    y = net.conv("x", 3, low)
    if seed % 3 == 0:
        y = net.op("DepthToSpace", net.conv(y, low, 4 * low, act=False), blocksize=2, mode="CRD")
    elif seed % 3 == 1:
        w = net.normal(low, low, 3, 3, scale=0.3)
        y = net.op("ConvTranspose", y, w, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    else:
        scales = net.weight(np.array([1, 1, 2, 2], np.float32))
        place = "pytorch_half_pixel"
        y = net.op("Resize", y, "", scales, mode="linear", coordinate_transformation_mode=place)
    return net.model(net.op("Relu", net.conv(y, low, 3, act=False)))


FAMILIES = (autoencoder, ds_cnn, resnet, mobilenet, transformer, u_net, series, vision_transformer,
            shuffle_net, enlarger)  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_a_net_of_the_family_agrees(family, seed, compiled, run_lowered, reference):
    model = family(seed)
    found = compiled(model)
    assert len(found.models) == len(found.body.ops) == 1, found.lowering.explain()
    feeds = models.example(model, seed)
    (want,), (got,) = reference(model, feeds), run_lowered(found, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [series, vision_transformer, shuffle_net], ids=lambda f: f.__name__)
def test_a_net_of_the_family_with_an_open_batch(family, seed, compiled, run_lowered, reference):
    model = family(seed)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    found = compiled(model)
    assert len(found.models) == len(found.body.ops) == 1, found.lowering.explain()
    shape = [d.dim_value or 3 for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    (want,), (got,) = reference(model, feeds), run_lowered(found, feeds)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_series_is_never_transposed(seed, compiled, schema):
    """Its own Transpose is what channels last is."""
    (model,) = compiled(series(seed)).models
    codes = schema.ModelT.InitFromPackedBuf(model.attrs["model"], 0).operatorCodes
    assert schema.BuiltinOperator.TRANSPOSE not in {code.builtinCode for code in codes}


IN_FLOAT = {"transformer": {"MEAN", "SUB"}, "vision_transformer": {"MEAN", "SUB"}}
"""Of LayerNormalization, which has no int8 form: what reads integers and goes on in float."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_a_net_of_the_family_in_int8(family, seed, compiled, interpret, reference):
    """On what it was calibrated with: as float within 2 % of the outputs' range, on average."""
    _check_int8(family(seed), IN_FLOAT.get(family.__name__, set()), compiled, interpret, reference, seed)


INT8_NETS = {**models.MLPERF_TINY, "transformer": models.transformer, "u_net": models.u_net}


@pytest.mark.parametrize("name", INT8_NETS)
def test_a_whole_net_in_int8(name, compiled, interpret, reference):
    _check_int8(INT8_NETS[name](), IN_FLOAT.get(name, set()), compiled, interpret, reference)


def _check_int8(model, in_float, compiled, interpret, reference, seed=0):
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(seed).standard_normal((8 * dims[0], *dims[1:])).astype(np.float32)
    found = compiled(model, "auto", {"x": samples})
    assert len(found.models) == len(found.body.ops) == 1, found.lowering.explain()
    (lowered,) = found.lowering.models
    assert {kind for kind, _ in lowered.in_float} <= in_float, found.lowering.explain()
    want, got = [], []
    for begin in range(0, 4 * dims[0], dims[0]):
        x = samples[begin : begin + dims[0]]
        want += reference(model, {"x": x})
        got += interpret(found.models[0].attrs["model"], [x])
    away = np.abs(np.stack(got) - np.stack(want))
    assert away.mean() < 0.02 * np.ptp(want)
