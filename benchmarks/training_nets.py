"""Nets to train: small ones as boards train them, in ONNX as an exporter writes them, with an open batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx

from benchmarks.models import Net

__all__ = [
    "CLASSES",
    "NETS",
    "digits_cnn",
    "digits_cnn_bn",
    "large_mlp",
    "mobile_block",
    "small_mlp",
    "transformer",
]

CLASSES = 10


class _Trained(Net):
    """Layers with weights as PyTorch has them: rows of outputs, a bias each."""

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        w = self.normal(outputs, inputs, scale=(2 / inputs) ** 0.5)
        return str(self.op("Gemm", x, w, self.normal(outputs, scale=0.1), transB=1))

    def convolution(self, x: str, inputs: int, outputs: int, kernel: int, group: int = 1) -> str:
        fan = inputs // group * kernel**2
        w = self.normal(outputs, inputs // group, kernel, kernel, scale=(2 / fan) ** 0.5)
        return str(
            self.op("Conv", x, w, self.normal(outputs, scale=0.1), pads=[kernel // 2] * 4, group=group,
                    kernel_shape=[kernel, kernel])
        )  # fmt: skip

    def open(self, y: str) -> onnx.ModelProto:
        """The model, its batch open."""
        model = self.model(y)
        del model.graph.value_info[:]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "N"
        return model


def _mlp(*sizes: int) -> onnx.ModelProto:
    net = _Trained("mlp", (1, sizes[0]))
    y = "x"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        y = net.linear(str(net.op("Relu", y)) if i else y, inputs, outputs)
    return net.open(y)


def small_mlp() -> onnx.ModelProto:
    """64-32-10."""
    return _mlp(64, 32, CLASSES)


def large_mlp() -> onnx.ModelProto:
    """784-256-128-10."""
    return _mlp(784, 256, 128, CLASSES)


def digits_cnn() -> onnx.ModelProto:
    """8x8 images of one channel: two convolutions of 16 and 32 channels, a maximum, two dense layers."""
    net = _Trained("digits_cnn", (1, 1, 8, 8))
    y = net.op("Relu", net.convolution("x", 1, 16, 3))
    y = net.op("Relu", net.convolution(y, 16, 32, 3))
    y = net.op("Flatten", net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    y = net.op("Relu", net.linear(y, 512, 64))
    return net.open(net.linear(y, 64, CLASSES))


def digits_cnn_bn() -> onnx.ModelProto:
    """The same with normalized convolutions, whose statistics are those of a fresh model."""
    net = _Trained("digits_cnn_bn", (1, 1, 8, 8))

    def normalized(x: str, channels: int) -> str:
        fresh = (np.ones, np.zeros, np.zeros, np.ones)  # scale, bias, mean, variance
        return str(net.op("BatchNormalization", x, *(net.weight(f(channels, np.float32)) for f in fresh)))

    y = net.op("Relu", normalized(net.convolution("x", 1, 16, 3), 16))
    y = net.op("Relu", normalized(net.convolution(y, 16, 32, 3), 32))
    y = net.op("Flatten", net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    y = net.op("Relu", net.linear(y, 512, 64))
    return net.open(net.linear(y, 64, CLASSES))


def mobile_block() -> onnx.ModelProto:
    """16x16 images of three channels: a convolution, an inverted residual (16-48-16 channels), an average."""
    net = _Trained("mobile_block", (1, 3, 16, 16))
    low, high = net.weight(np.float32(0)), net.weight(np.float32(6))

    def six(x: str) -> str:
        return str(net.op("Clip", x, low, high))

    x = six(net.convolution("x", 3, 16, 3))
    y = six(net.convolution(x, 16, 48, 1))
    y = six(net.convolution(y, 48, 48, 3, group=48))
    y = net.op("Add", x, net.convolution(y, 48, 16, 1))
    y = net.op("Flatten", net.op("GlobalAveragePool", y))
    return net.open(net.linear(y, 16, CLASSES))


def transformer() -> onnx.ModelProto:
    """One block, pre-normalised: 16 positions of 32, four heads, a feed-forward layer of 64, an average."""
    length, width, heads, inner = 16, 32, 4, 64
    net = _Trained("transformer", (1, length, width))

    def norm(x: str) -> str:
        scale = net.weight(np.ones(width, np.float32))
        return str(net.op("LayerNormalization", x, scale, net.normal(width, scale=0.1), axis=-1))

    def dense(x: str, inputs: int, outputs: int) -> str:
        product = net.op("MatMul", x, net.normal(inputs, outputs, scale=inputs**-0.5))
        return str(net.op("Add", product, net.normal(outputs, scale=0.1)))

    def by_head(x: str, perm: list[int]) -> str:
        parts = net.op("Reshape", x, net.ints(0, length, heads, width // heads))
        return str(net.op("Transpose", parts, perm=perm))

    normed = norm("x")
    q = by_head(dense(normed, width, width), [0, 2, 1, 3])
    k = by_head(dense(normed, width, width), [0, 2, 3, 1])
    v = by_head(dense(normed, width, width), [0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", q, k), net.weight(np.float32((width // heads) ** 0.5)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    together = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, length, width))
    y = net.op("Add", "x", dense(together, width, width))
    y = net.op("Add", y, dense(net.op("Relu", dense(norm(y), width, inner)), inner, width))
    y = net.op("ReduceMean", y, axes=[1], keepdims=0)
    return net.open(net.linear(y, width, CLASSES))


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "MLP 64-32-10": small_mlp,
    "MLP 784-256-128-10": large_mlp,
    "digits CNN": digits_cnn,
    "MobileNet block": mobile_block,
    "transformer block": transformer,
}
