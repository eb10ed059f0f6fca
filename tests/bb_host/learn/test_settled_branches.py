"""Branches of a model: those that its shapes decide are trained, others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from bb_host.errors import NotDifferentiableError
from bb_host.learn import trainable

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,{size},3] x) => (float[N,2] y) {{
    sizes = Shape(x)  at = Constant<value_int = 1>()  size = Gather<axis = 0>(sizes, at)
    asked = {asked}
    h = If(asked) <
        then_branch = t () => (float[N,3] a) {{ a = ReduceMax<axes = [1], keepdims = 0>(x) }},
        else_branch = e () => (float[N,3] b) {{ b = ReduceSum<keepdims = 0>(x, at1) }}
    >
    y = MatMul(h, w)
}}"""


def net(size, asked="Equal(size, at)"):
    model = onnx.parser.parse_model(NET.format(size=size, asked=asked))
    rng = np.random.default_rng(0)
    for name, array in {"w": rng.normal(size=(3, 2)).astype(np.float32), "at1": np.array([1])}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("size", [1, 4])
def test_a_branch_that_a_shape_decides_is_trained_as_its_ops(size, runtime) -> None:
    model = trainable(net(size), "mse")
    function = model.model.function
    assert "If" not in {op.op_type for op in function.ops}
    x = np.random.default_rng(1).normal(size=(2, size, 3)).astype(np.float32)
    gradient = model.gradient
    assert gradient is not None
    inputs = {"x": x, **model.model.parameters}
    results = runtime(gradient.forward, inputs)
    np.testing.assert_allclose(
        results[gradient.forward.outputs[0]], x.sum(axis=1) @ model.model.parameters["w"], rtol=1e-5
    )
    seed = np.ones((2, 2), np.float32)
    found = runtime(gradient.backward, {**inputs, **results, gradient.backward.inputs[-1]: seed})
    np.testing.assert_allclose(found[gradient.backward.outputs[0]], x.sum(axis=1).T @ seed, rtol=1e-5)


def test_a_branch_that_the_data_decide_stays_and_is_refused_where_it_reads_what_is_trained() -> None:
    model = net(4, asked="Equal(size, at)")
    text = NET.format(size=4, asked="Equal(size, at)")
    open_net = onnx.parser.parse_model(
        text.replace(
            "sizes = Shape(x)", "v = MatMul(x, w2)  total = ReduceSum<keepdims = 0>(v)  sizes = Shape(x)"
        )
        .replace(
            "asked = Equal(size, at)", "zero = Constant<value_float = 0.0>()  asked = Greater(total, zero)"
        )
        .replace("b = ReduceSum<keepdims = 0>(x, at1)", "b = ReduceSum<keepdims = 0>(v, at1)")
    )
    open_net.graph.initializer.extend(model.graph.initializer)
    open_net.graph.initializer.append(numpy_helper.from_array(np.eye(3, dtype=np.float32), "w2"))
    with pytest.raises(NotDifferentiableError, match="its subgraph reads what is to be trained"):
        trainable(open_net, "mse")
