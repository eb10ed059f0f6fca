"""Models to measure with: the four of MLPerf Tiny from their public description, and four beyond convolution.

All are ordinary ONNX models, opset 17, float32, weights seeded and of a size that keeps activations near one,
batch normalisation where the architectures have it. What they compute is meaningless; what it costs is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17
SEED = 20240607


class Net:
    """A graph in the making: each method adds one operator and gives the name of its result."""

    def __init__(self, name: str, x: Sequence[int]) -> None:
        self.name = name
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(x))

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        n = len(self.nodes)
        names = [f"v{n}"] if outputs == 1 else [f"v{n}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{n}", **attributes))
        return names[0] if outputs == 1 else names

    def norm(self, x: str, channels: int) -> str:
        positive = np.abs(self.rng.standard_normal(channels)).astype(np.float32) + 0.5
        return str(
            self.op(
                "BatchNormalization", x,
                self.weight(positive), self.normal(channels, scale=0.1), self.normal(channels, scale=0.1),
                self.weight(positive),
            )
        )  # fmt: skip

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        group: int = 1,
        act: bool = True,
    ) -> str:
        """Convolution (SAME), batch normalisation, and ReLU where asked."""
        fan = inputs // group * kernel[0] * kernel[1]
        w = self.normal(outputs, inputs // group, *kernel, scale=(2 / fan) ** 0.5)
        y = self.op(
            "Conv", x, w, auto_pad="SAME_UPPER", strides=list(stride), group=group, kernel_shape=list(kernel)
        )
        y = self.norm(y, outputs)
        return str(self.op("Relu", y)) if act else y

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        w = self.normal(inputs, outputs, scale=(2 / inputs) ** 0.5)
        return str(self.op("Gemm", x, w, self.normal(outputs, scale=0.1)))

    def model(self, y: str) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, self.name, [self.x], [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        return model


def autoencoder() -> onnx.ModelProto:
    """Anomaly detection: 640, four times 128, 8, four times 128, 640."""
    net = Net("autoencoder", (1, 640))
    y, before = "x", 640
    for width in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        y = net.op("Relu", net.norm(net.dense(y, before, width), width))
        before = width
    return net.model(net.dense(y, before, 640))


def resnet8() -> onnx.ModelProto:
    """Image classification: 32x32x3, three residual stacks of 16, 32 and 64 channels."""
    net = Net("resnet8", (1, 3, 32, 32))
    y, before = net.conv("x", 3, 16), 16
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        z = net.conv(y, before, channels, stride=(stride, stride))
        z = net.conv(z, channels, channels, act=False)
        if stride != 1:
            w = net.normal(channels, before, 1, 1, scale=(1 / before) ** 0.5)
            y = net.op("Conv", y, w, net.normal(channels, scale=0.1), strides=[2, 2], kernel_shape=[1, 1])
        y, before = net.op("Relu", net.op("Add", y, z)), channels
    y = net.op("AveragePool", y, kernel_shape=[8, 8], strides=[8, 8])
    return net.model(net.op("Softmax", net.dense(net.op("Flatten", y), 64, 10), axis=-1))


def ds_cnn() -> onnx.ModelProto:
    """Keyword spotting: 49 frames of 10 coefficients, four depthwise separable blocks of 64 channels."""
    net = Net("ds_cnn", (1, 1, 49, 10))
    y = net.conv("x", 1, 64, (10, 4), (2, 2))
    for _ in range(4):
        y = net.conv(y, 64, 64, group=64)
        y = net.conv(y, 64, 64, (1, 1))
    y = net.op("AveragePool", y, kernel_shape=[24, 5], strides=[24, 5])
    return net.model(net.op("Softmax", net.dense(net.op("Flatten", y), 64, 12), axis=-1))


def mobilenet() -> onnx.ModelProto:
    """Visual wake words: MobileNetV1, a quarter of its width, 96x96x3."""
    net = Net("mobilenet", (1, 3, 96, 96))
    y, before = net.conv("x", 3, 8, stride=(2, 2)), 8
    blocks = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    for channels, stride in blocks:
        y = net.conv(y, before, before, stride=(stride, stride), group=before)
        y, before = net.conv(y, before, channels, (1, 1)), channels
    y = net.op("AveragePool", y, kernel_shape=[3, 3], strides=[3, 3])
    return net.model(net.op("Softmax", net.dense(net.op("Flatten", y), 256, 2), axis=-1))


def transformer() -> onnx.ModelProto:
    """One block: 32 positions of 64, four heads, a feed-forward layer of 128, pre-normalised."""
    length, width, heads, inner = 32, 64, 4, 128
    net = Net("transformer", (1, length, width))

    def layer_norm(x: str) -> str:
        scale = net.weight(np.ones(width, np.float32))
        return str(net.op("LayerNormalization", x, scale, net.normal(width, scale=0.1), axis=-1))

    def linear(x: str, inputs: int, outputs: int) -> str:
        product = net.op("MatMul", x, net.normal(inputs, outputs, scale=inputs**-0.5))
        return str(net.op("Add", product, net.normal(outputs, scale=0.1)))

    def split_heads(x: str, perm: list[int]) -> str:
        parts = net.op("Reshape", x, net.ints(0, 0, heads, width // heads))
        return str(net.op("Transpose", parts, perm=perm))

    normed = layer_norm("x")
    q = split_heads(linear(normed, width, width), [0, 2, 1, 3])
    k = split_heads(linear(normed, width, width), [0, 2, 3, 1])
    v = split_heads(linear(normed, width, width), [0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", q, k), net.weight(np.float32((width // heads) ** 0.5)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, width))
    y = net.op("Add", "x", linear(joined, width, width))
    hidden = linear(layer_norm(y), width, inner)
    # Gelu as exporters write it before opset 20.
    bent = net.op("Erf", net.op("Div", hidden, net.weight(np.float32(2**0.5))))
    bent = net.op("Mul", hidden, net.op("Add", bent, net.weight(np.float32(1))))
    bent = net.op("Mul", bent, net.weight(np.float32(0.5)))
    return net.model(net.op("Add", y, linear(bent, inner, width)))


def _recurrent(kind: str, gates: int) -> onnx.ModelProto:
    steps, inputs, hidden = 49, 10, 64
    net = Net(kind.lower(), (1, steps, inputs))
    x = net.op("Transpose", "x", perm=[1, 0, 2])
    w = net.normal(1, gates * hidden, inputs, scale=inputs**-0.5)
    r = net.normal(1, gates * hidden, hidden, scale=hidden**-0.5)
    b = net.normal(1, 2 * gates * hidden, scale=0.1)
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    _, last, *_ = net.op(
        kind, x, w, r, b, outputs=gates - 1 if gates == 4 else 2, hidden_size=hidden, **extra
    )
    y = net.dense(net.op("Squeeze", last, net.ints(0)), hidden, 12)
    return net.model(net.op("Softmax", y, axis=-1))


def gru() -> onnx.ModelProto:
    """Keyword spotting over 49 frames of 10 coefficients: GRU of 64 units (PyTorch's kind), a dense layer."""
    return _recurrent("GRU", 3)


def lstm() -> onnx.ModelProto:
    """The same with an LSTM."""
    return _recurrent("LSTM", 4)


def u_net() -> onnx.ModelProto:
    """Segmentation, 64x64x3: two levels down, two up by transposed convolution, each joined with its twin."""
    net = Net("u_net", (1, 3, 64, 64))
    one = net.conv(net.conv("x", 3, 8), 8, 8)
    two = net.conv(net.op("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), 8, 16)
    three = net.conv(net.op("MaxPool", two, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)

    def up(x: str, inputs: int, outputs: int, beside: str) -> str:
        w = net.normal(inputs, outputs, 2, 2, scale=inputs**-0.5)
        y = net.op("ConvTranspose", x, w, strides=[2, 2], kernel_shape=[2, 2])
        return net.conv(net.op("Concat", y, beside, axis=1), 2 * outputs, outputs)

    y = up(up(three, 32, 16, two), 16, 8, one)
    return net.model(
        net.op("Sigmoid", net.op("Conv", y, net.normal(1, 8, 1, 1, scale=0.3), kernel_shape=[1, 1]))
    )


MLPERF_TINY: dict[str, Callable[[], onnx.ModelProto]] = {
    "autoencoder": autoencoder,
    "resnet8": resnet8,
    "ds_cnn": ds_cnn,
    "mobilenet": mobilenet,
}
MORE: dict[str, Callable[[], onnx.ModelProto]] = {
    "transformer": transformer,
    "gru": gru,
    "lstm": lstm,
    "u_net": u_net,
}
ALL = {**MLPERF_TINY, **MORE}


def example(model: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Normal numbers for a model's input."""
    rng = np.random.default_rng(seed)
    return {
        info.name: rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for info in model.graph.input
    }
