"""Models made from nothing: for examples, tests and first steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bb_edge.ir.opsets import onnx as onnx_opset
from bb_host.author_lines import author_line, short_line
from bb_host.errors import LearnError
from bb_host.whole_numbers import whole


def mlp(sizes: Sequence[int], seed: int = 0) -> onnx.ModelProto:
    """A multi-layer perceptron: `mlp([64, 32, 10])` has one hidden layer of 32, with Relu between layers.

    Input `x` is f32 [N, sizes[0]], N symbolic; output `logits` is f32 [N, sizes[-1]]. The parameters are
    `w1` [in, out], `b1` [out], `w2`, … as initializers: He normal weights (variance 2/in; the last layer's
    1/in), zero biases. Same sizes and seed, same bytes.
    """
    for index, size in enumerate(sizes):
        if whole(size) is None:
            what = f"sizes[{index}] is {size!r}: the width of a layer is a whole number"
            raise LearnError(f"mlp: {what}", short_line(author_line()), "write mlp([64, 32, 10])")
    sizes = [int(size) for size in sizes]
    if len(sizes) < 2 or min(sizes) < 1:
        what = f"mlp: sizes {list(sizes)} make no layers"
        hint = "give at least input and output size: mlp([64, 10])"
        raise LearnError(what, short_line(author_line()), hint)
    rng = np.random.default_rng(seed)
    nodes, initializers = [], []
    value, last = "x", len(sizes) - 1
    for n, (size, width) in enumerate(pairwise(sizes), 1):
        scale = np.sqrt((1.0 if n == last else 2.0) / size)
        weights = (rng.standard_normal((size, width)) * scale).astype(np.float32)
        initializers.append(numpy_helper.from_array(weights, f"w{n}"))
        initializers.append(numpy_helper.from_array(np.zeros(width, np.float32), f"b{n}"))
        # x·W with W as [in, out], and the bias added in place: no copy of W, and no transposed product.
        nodes.append(helper.make_node("MatMul", [value, f"w{n}"], [f"xw{n}"], f"layer{n}"))
        value = "logits" if n == last else f"z{n}"
        nodes.append(helper.make_node("Add", [f"xw{n}", f"b{n}"], [value], f"bias{n}"))
        if n != last:
            nodes.append(helper.make_node("Relu", [value], [f"h{n}"], f"relu{n}"))
            value = f"h{n}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", sizes[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", sizes[-1]])],
        initializers,
    )
    model = helper.make_model(
        graph,
        producer_name="bytesandbrains-edge",
        opset_imports=[helper.make_opsetid("", onnx_opset.VERSION)],
    )
    model.ir_version = 10
    return model
