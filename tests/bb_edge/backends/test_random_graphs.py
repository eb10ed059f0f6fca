"""Random graphs: planned, in place, through views, in one arena; as if the kernels ran one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_edge.backends import NumPyBackend
from bb_edge.ir import onnx_pb2
from bb_kernels import TensorSpec, evaluate, prepare

_Node = tuple[str, list[str], str, dict[str, object]]


class _Author:
    """Writes a graph and its values at the same time, so that every node fits."""

    def __init__(self, draw: Callable[..., int], rng: np.random.Generator) -> None:
        self.draw = draw
        self.rng = rng
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.nodes: list[_Node] = []
        for name, shape in (("a", (4, 6)), ("b", (4, 6)), ("c", (6,)), ("d", (6, 4)), ("e", ())):
            self.inputs[name] = self.values[name] = rng.standard_normal(shape).astype(np.float32)

    def number(self, below: int) -> int:
        return self.draw(st.integers(0, below - 1))

    def value(self) -> str:
        names = list(self.values)
        return names[self.number(len(names))]

    def constant(self, array: np.ndarray) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, op_type: str, inputs: Sequence[str], attrs: Mapping[str, object] | None = None) -> None:
        arrays = [self.values[n] if n in self.values else self.constants[n] for n in inputs]
        specs = [TensorSpec(a.dtype, a.shape) for a in arrays]
        known = [self.constants.get(n) for n in inputs]
        with np.errstate(all="ignore"):
            kernel = prepare(op_type, 21, dict(attrs or {}), specs, known)
            (result,) = evaluate(kernel, arrays)
        name = f"v{len(self.nodes)}"
        self.values[name] = result
        self.nodes.append((op_type, list(inputs), name, dict(attrs or {})))

    def step(self) -> None:
        x = self.value()
        shape = self.values[x].shape
        kind = self.number(9)
        if kind <= 2:
            fitting = [n for n, v in self.values.items() if v.shape == shape or v.ndim == 0]
            other = fitting[self.number(len(fitting))]
            self.add(("Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean")[self.number(7)], [x, other])
        elif kind == 3:
            self.add(("Neg", "Tanh", "Relu", "Sigmoid", "Abs", "Identity")[self.number(6)], [x])
        elif kind == 4 and len(shape) == 2:
            self.add("Transpose", [x], {"perm": [1, 0]})
        elif kind == 5 and shape:
            self.add("Reshape", [x, self.constant(np.array([-1], np.int64))])
        elif kind == 6 and shape:
            self.add("Softmax", [x], {"axis": -1})
        elif kind == 7 and shape:
            axes = self.constant(np.array([len(shape) - 1], np.int64))
            self.add("ReduceSum", [x, axes], {"keepdims": self.number(2)})
        elif len(shape) == 2:
            fitting = [n for n, v in self.values.items() if v.ndim == 2 and v.shape[0] == shape[1]]
            if fitting:
                self.add("MatMul", [x, fitting[self.number(len(fitting))]])


@settings(max_examples=150)
@given(data=st.data())
def test_a_plan_computes_what_the_kernels_compute(data: st.DataObject) -> None:
    from_tests = _Author(data.draw, np.random.default_rng(3))
    for _ in range(data.draw(st.integers(1, 14))):
        from_tests.step()
    names = list(from_tests.values)
    outputs = [names[from_tests.number(len(names))] for _ in range(data.draw(st.integers(1, 3)))]
    function = onnx_pb2.FunctionProto(name="f", input=list(from_tests.inputs), output=outputs)
    function.opset_import.add(domain="", version=21)
    for name, array in from_tests.constants.items():
        node = function.node.add(op_type="Constant", output=[name])
        node.attribute.add(name="value", type=onnx_pb2.AttributeProto.TENSOR).t.CopyFrom(
            onnx_pb2.TensorProto(dims=array.shape, data_type=7, raw_data=array.tobytes())
        )
    for op_type, inputs, output, attrs in from_tests.nodes:
        node = function.node.add(op_type=op_type, input=inputs, output=[output])
        for key, value in attrs.items():
            if isinstance(value, list):
                node.attribute.add(name=key, type=onnx_pb2.AttributeProto.INTS, ints=value)
            else:
                node.attribute.add(name=key, type=onnx_pb2.AttributeProto.INT, i=value)
    given_arrays = list(from_tests.inputs.values())
    copies = [array.copy() for array in given_arrays]
    resident = {"c": from_tests.inputs["c"], "d": from_tests.inputs["d"]} if from_tests.number(2) else {}
    program = NumPyBackend().prepare(function, resident=resident)
    passed = [array for name, array in from_tests.inputs.items() if name not in resident]
    for _ in range(2):  # the second run meets the arena as the first left it
        results = program.run(passed)
        for name, result in zip(outputs, results, strict=True):
            np.testing.assert_allclose(result, from_tests.values[name], rtol=1e-4, atol=1e-5)
        for result in results:
            assert not any(np.shares_memory(result, array) for array in given_arrays)
            result.fill(np.nan)
    for array, copy in zip(given_arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_generator_reaches_every_kind_of_step() -> None:
    """Otherwise the property above would test little."""
    rng = np.random.default_rng(0)
    author = _Author(lambda _strategy: 0, rng)
    author.number = lambda below: int(rng.integers(below))  # type: ignore[method-assign]
    for _ in range(300):
        author.step()
        author.values = {n: v for n, v in author.values.items() if v.size < 1000}
    assert {"Add", "Neg", "Transpose", "Reshape", "Softmax", "ReduceSum", "MatMul"} <= {
        n[0] for n in author.nodes
    }


@pytest.mark.parametrize("batch", [1, 7])
def test_a_deep_network_stays_near_the_memory_bound(batch: int) -> None:
    function = onnx_pb2.FunctionProto(name="f", input=["x", "w"], output=["h20"])
    function.opset_import.add(domain="", version=21)
    previous = "x"
    for layer in range(20):
        function.node.add(op_type="MatMul", input=[previous, "w"], output=[f"m{layer}"])
        function.node.add(op_type="Relu", input=[f"m{layer}"], output=[f"h{layer + 1}"])
        previous = f"h{layer + 1}"
    x, w = np.ones((batch, 64), np.float32), np.eye(64, dtype=np.float32)
    program = NumPyBackend().prepare(function, resident={"w": w})
    np.testing.assert_array_equal(program.run((x,))[0], x)
    plan = program.plan_for((x,))  # type: ignore[attr-defined]
    assert plan.live_bytes <= plan.arena_bytes <= 1.05 * plan.live_bytes
    assert plan.live_bytes <= 2 * -(-batch * 256 // 64) * 64
