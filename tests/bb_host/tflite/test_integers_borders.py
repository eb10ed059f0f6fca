"""Where integers end: what stays in float and why, grids that differ, integers as inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
STEP = np.float32(0.02)


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any],
    x: Any = (2, 3, 6, 6),
    outputs: Sequence[str] = ("y",),
    kind: int = TensorProto.FLOAT,
    result: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """`s`, `z` and `u` are a scale, a zero point of int8 and one of uint8."""
    common = {"s": STEP, "z": np.int8(3), "u": np.uint8(131), "s2": np.float32(0.013), "z2": np.int8(-7)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info(y, result, ["a", "b", "c", "d"][: len(x)]) for y in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in {**common, **constants}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pair(x: str, y: str, s: str = "s", z: str = "z") -> list[onnx.NodeProto]:
    return [node("QuantizeLinear", [x, s, z], [f"{x}_q"]), node("DequantizeLinear", [f"{x}_q", s, z], [y])]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(-127, 128, shape).astype(np.int8)


CONV = {"w": stored(4, 3, 3, 3), "ws": np.full(4, 0.003, np.float32), "wz": np.zeros(4, np.int8)}
WEIGHT = node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0)


def conv(*after: onnx.NodeProto, weight: onnx.NodeProto = WEIGHT) -> list[onnx.NodeProto]:
    return [*pair("x", "xd"), weight, node("Conv", ["xd", "wd"], ["c"]), *after]


def _check(made, compiled, run_lowered, plain_reference, reasons, steps=1.01, feeds=None):
    found = compiled(made)
    feeds = feeds or {"x": numbers(*(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim))}
    (lowered,) = found.lowering.models
    assert dict(lowered.in_float) == reasons
    told = found.lowering.explain()
    assert all(f"{kind} of TFLite is in float: {why}" in told for kind, why in reasons.items())
    for got, want in zip(run_lowered(found, feeds), plain_reference(made, feeds), strict=True):
        assert got.dtype == want.dtype
        away = np.abs(got.astype(np.float64) - want.astype(np.float64))
        unit = 1 if got.dtype.kind in "iu" else STEP
        assert away.max() / unit <= steps
    return found


AROUND_ZERO = "its weights are not int8 around zero with a scale per output channel"
REFUSED = {
    "weights with a zero point": (
        conv(*pair("c", "y"), weight=node("DequantizeLinear", ["w", "s", "z"], ["wd"])),
        CONV, {"CONV_2D": AROUND_ZERO},
    ),
    "weights with a scale per input channel": (
        conv(*pair("c", "y"), weight=node("DequantizeLinear", ["w", "ws3", "wz3"], ["wd"], axis=1)),
        {"w": CONV["w"], "ws3": np.full(3, 0.003, np.float32), "wz3": np.zeros(3, np.int8)},
        {"CONV_2D": AROUND_ZERO},
    ),
    "weights in float": (
        [*pair("x", "xd"), node("Conv", ["xd", "f"], ["c"]), *pair("c", "y")],
        {"f": numbers(4, 3, 3, 3)}, {"CONV_2D": AROUND_ZERO},
    ),
    "a result in float": (conv(node("Neg", ["c"], ["y"])), CONV,
                          {"CONV_2D": "its result is read in float"}),
    "a bias beyond 32 bits": (
        [*pair("x", "xd"), WEIGHT, node("Conv", ["xd", "wd", "b"], ["c"]), *pair("c", "y")],
        {**CONV, "b": np.full(4, 2e6, np.float32)}, {"CONV_2D": "its bias does not fit into 32 bits"},
    ),
    "an average on another grid": (
        [*pair("x", "xd"), node("AveragePool", ["xd"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
         *pair("c", "y", "s2", "z2")],
        {}, {"AVERAGE_POOL_2D": "its result has another grid than what it reads"},
    ),
    "a fixed grid that is too coarse": (
        [*pair("x", "xd"), node("Sigmoid", ["xd"], ["c"]), *pair("c", "y", "fine", "z")],
        {"fine": np.float32(0.001)}, {"LOGISTIC": "its result has a finer grid than its int8 form gives"},
    ),
    "no int8 form": (
        [*pair("x", "xd"), node("Exp", ["xd"], ["c"]), *pair("c", "y")], {},
        {"EXP": "there is no int8 form of it"},
    ),
    "an operand in float": (
        [*pair("x", "xd"), node("Add", ["xd", "x"], ["c"]), *pair("c", "y")], {},
        {"ADD": "not all it reads is quantized"},
    ),
    "a constant in float": (
        [*pair("x", "xd"), node("Add", ["xd", "k"], ["c"]), *pair("c", "y")], {"k": numbers(3, 1, 1)},
        {"ADD": "a constant is not quantized, or per channel"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_stays_in_float_and_is_told(name, compiled, run_lowered, plain_reference):
    nodes, constants, reasons = REFUSED[name]
    _check(model(nodes, constants), compiled, run_lowered, plain_reference, reasons)


def test_pairs_that_tflite_lacks_stay_on_numpy(compiled, run_lowered, plain_reference):
    per_channel = [
        node("QuantizeLinear", ["x", "ws", "wz"], ["q"], axis=1),
        node("DequantizeLinear", ["q", "ws", "wz"], ["y"], axis=1),
    ]
    made = model(per_channel, {"ws": np.full(3, 0.02, np.float32), "wz": np.zeros(3, np.int8)})
    found = compiled(made)
    assert not found.models
    assert {kept.op_type for kept in found.lowering.kept} == {"QuantizeLinear", "DequantizeLinear"}
    assert "it has a scale per channel" in found.lowering.explain()


def test_numbers_may_be_read_on_another_grid(compiled, run_lowered, plain_reference):
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s2", "z2"], ["y"]),
    ]
    _check(model(nodes, {}), compiled, run_lowered, plain_reference, {"MUL": "its result is read in float"})


def test_a_pair_on_another_grid_is_one_quantize(compiled, run_lowered, plain_reference):
    nodes = [*pair("x", "xd"), *pair("xd", "y", "s2", "z2")]
    found = _check(model(nodes, {}), compiled, run_lowered, plain_reference, {})
    assert found.lowering.models[0].ops == {"DequantizeLinear": 2, "QuantizeLinear": 2}


@pytest.mark.parametrize("point", ["z", "u"])
def test_integers_as_input(point, compiled, run_lowered, plain_reference):
    kind, dtype = (TensorProto.INT8, np.int8) if point == "z" else (TensorProto.UINT8, np.uint8)
    nodes = [node("DequantizeLinear", ["x", "s", point], ["xd"]), WEIGHT, node("Conv", ["xd", "wd"], ["c"]),
             *pair("c", "y", "s", point)]  # fmt: skip
    x = np.random.default_rng(2).integers(0, 256, (2, 3, 6, 6)).astype(np.uint8).view(dtype)
    _check(model(nodes, CONV, kind=kind), compiled, run_lowered, plain_reference, {}, feeds={"x": x})


@pytest.mark.parametrize("point", ["z", "u"])
def test_integers_as_output(point, compiled, run_lowered, plain_reference):
    kind = TensorProto.INT8 if point == "z" else TensorProto.UINT8
    nodes = [*pair("x", "xd", "s", point), WEIGHT, node("Conv", ["xd", "wd"], ["c"]),
             node("QuantizeLinear", ["c", "s", point], ["y"])]  # fmt: skip
    _check(model(nodes, CONV, result=kind), compiled, run_lowered, plain_reference, {})


def test_a_value_that_is_quantized_twice_alike_is_quantized_once(compiled, run_lowered, plain_reference):
    both = [
        node("QuantizeLinear", ["c", "s", "z"], ["q1"]),
        node("QuantizeLinear", ["c", "s", "z"], ["q2"]),
        node("DequantizeLinear", ["q1", "s", "z"], ["y"]),
        node("DequantizeLinear", ["q2", "s", "z"], ["d2"]),
        node("MaxPool", ["d2"], ["y2"], kernel_shape=[2, 2]),
    ]
    _check(model(conv(*both), CONV, outputs=("y", "y2")), compiled, run_lowered, plain_reference, {})


def test_numbers_that_go_two_ways_and_come_together(compiled, run_lowered, plain_reference):
    """A residual block: what is quantized once is read three times, in both layouts."""
    nodes = [
        *conv(*pair("c", "cd")),
        node("Relu", ["cd"], ["r"]), *pair("r", "rd", "s2", "z2"),
        node("Add", ["cd", "rd"], ["a"]), *pair("a", "ad"),
        node("Reshape", ["ad", "flat"], ["f"]), *pair("f", "fd"),
        node("Reshape", ["fd", "image"], ["i"]), *pair("i", "id"),
        node("Concat", ["id", "rd"], ["k"], axis=1), *pair("k", "y"),
    ]  # fmt: skip
    constants = {**CONV, "flat": np.array([0, -1]), "image": np.array([0, 4, 4, 4])}
    _check(model(nodes, constants), compiled, run_lowered, plain_reference, {}, 2.01)


def test_a_value_that_is_joined_with_itself(compiled, run_lowered, plain_reference):
    nodes = conv(node("Concat", ["c", "c"], ["k"], axis=1), node("Relu", ["k"], ["r"]), *pair("r", "y"))
    _check(model(nodes, CONV), compiled, run_lowered, plain_reference, {})


def test_equal_models_have_equal_bytes(compiled):
    made = model(conv(*pair("c", "y")), CONV)
    first, second = (compiled(made).models[0].attrs["sha256"] for _ in range(2))
    assert first == second
