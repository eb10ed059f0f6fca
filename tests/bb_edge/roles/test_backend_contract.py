"""The Backend Contract: either side built from the other, and no way to call in circles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.ir import onnx_pb2
from bb_edge.ir.opsets.onnx import PRIMITIVES
from bb_edge.ir.tensors import from_tensor_proto, to_tensor_proto
from bb_edge.roles import PRIMITIVE_METHODS, Backend, BackendAttrs
from bb_edge.roles.errors import BackendError, BackendWalkError, ContractError, UnsupportedOpsError
from tests.aids.arrays import named_tensor

A = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], np.float32)
B = np.array([[2.0, 2.0, 2.0], [0.5, 1.0, 2.0]], np.float32)
P = np.abs(A)

CASES: dict[str, tuple[Callable[[Any], Any], object]] = {
    "Add": (lambda b: b.add(A, B), A + B),
    "Sub": (lambda b: b.sub(A, B), A - B),
    "Mul": (lambda b: b.mul(A, B), A * B),
    "Div": (lambda b: b.div(A, B), A / B),
    "Neg": (lambda b: b.neg(A), -A),
    "Abs": (lambda b: b.abs(A), P),
    "Sqrt": (lambda b: b.sqrt(P), np.sqrt(P)),
    "Pow": (lambda b: b.pow(P, B), P**B),
    "Exp": (lambda b: b.exp(A), np.exp(A)),
    "Log": (lambda b: b.log(P), np.log(P)),
    "MatMul": (lambda b: b.matmul(A, B.T.copy()), A @ B.T),
    "ReduceSum": (lambda b: b.reduce_sum(A, [1], False), A.sum(1)),
    "ReduceMean": (lambda b: b.reduce_mean(A), A.mean(keepdims=True)),
    "ReduceMax": (lambda b: b.reduce_max(A, [0], True), A.max(0, keepdims=True)),
    "ReduceMin": (lambda b: b.reduce_min(A, [0, 1], False), A.min()),
    "Reshape": (lambda b: b.reshape(A, [3, -1]), A.reshape(3, 2)),
    "Transpose": (lambda b: b.transpose(A), A.T),
    "Concat": (lambda b: b.concat([A, B, A], 1), np.concatenate([A, B, A], 1)),
    "Slice": (lambda b: b.slice(A, [2], [-4], [1], [-1]), A[:, ::-1]),
    "Split": (lambda b: b.split(A, 1, [1, 2]), (A[:, :1], A[:, 1:])),
    "Squeeze": (lambda b: b.squeeze(A[:, None], [1]), A),
    "Unsqueeze": (lambda b: b.unsqueeze(A, [0, 3]), A[None, ..., None]),
    "Identity": (lambda b: b.identity(A), A),
    "Cast": (lambda b: b.cast(A, 7), A.astype(np.int64)),
    "Equal": (lambda b: b.equal(A, P), A == P),
    "Greater": (lambda b: b.greater(A, B), A > B),
    "Less": (lambda b: b.less(A, B), A < B),
    "Where": (lambda b: b.where(A > 0, A, B), np.where(A > 0, A, B)),
    "Constant": (lambda b: b.constant(to_tensor_proto(A)), A),
    "Gather": (lambda b: b.gather(A, np.array([1, 1, 0]), 0), A[[1, 1, 0]]),
}


def axis_tuple(axes: Any) -> tuple[int, ...] | None:
    return tuple(axes) or None


class ByPrimitives(Backend):
    """All thirty, in NumPy; a whole graph is walked."""

    TYPE_NAME = "test.ByPrimitives"
    add, sub, mul, div = (staticmethod(f) for f in (np.add, np.subtract, np.multiply, np.divide))  # type: ignore[assignment]
    neg, abs, sqrt, pow = (staticmethod(f) for f in (np.negative, np.abs, np.sqrt, np.power))  # type: ignore[assignment]
    exp, log, matmul = (staticmethod(f) for f in (np.exp, np.log, np.matmul))  # type: ignore[assignment]
    equal, greater, less, where = (staticmethod(f) for f in (np.equal, np.greater, np.less, np.where))  # type: ignore[assignment]

    def reduce_sum(self, a: Any, axes: Any = (), keepdims: bool = True) -> Any:
        return np.sum(a, axis_tuple(axes), keepdims=keepdims)

    def reduce_mean(self, a: Any, axes: Any = (), keepdims: bool = True) -> Any:
        return np.mean(a, axis_tuple(axes), keepdims=keepdims)

    def reduce_max(self, a: Any, axes: Any = (), keepdims: bool = True) -> Any:
        return np.max(a, axis_tuple(axes), keepdims=keepdims)

    def reduce_min(self, a: Any, axes: Any = (), keepdims: bool = True) -> Any:
        return np.min(a, axis_tuple(axes), keepdims=keepdims)

    def reshape(self, a: Any, shape: Any) -> Any:
        return np.reshape(a, shape)

    def transpose(self, a: Any, perm: Any = ()) -> Any:
        return np.transpose(a, perm or None)

    def concat(self, inputs: Any, axis: int) -> Any:
        return np.concatenate(inputs, axis)

    def slice(self, a: Any, starts: Any, ends: Any, axes: Any = (), steps: Any = ()) -> Any:
        index: list[Any] = [slice(None)] * a.ndim
        for i, axis in enumerate(axes or range(len(starts))):
            step = steps[i] if steps else 1
            end = ends[i] if not (step < 0 and ends[i] < -a.shape[axis]) else None
            index[axis] = slice(starts[i], end, step)
        return a[tuple(index)]

    def split(self, a: Any, axis: int, sizes: Any) -> Any:
        return tuple(np.split(a, np.cumsum(sizes)[:-1], axis))

    def squeeze(self, a: Any, axes: Any = ()) -> Any:
        return np.squeeze(a, axis_tuple(axes))

    def unsqueeze(self, a: Any, axes: Any) -> Any:
        return np.expand_dims(a, tuple(axes))

    def identity(self, a: Any) -> Any:
        return a

    def cast(self, a: Any, dtype: int) -> Any:
        return a.astype({7: np.int64, 1: np.float32}[dtype])

    def constant(self, value: Any) -> Any:
        return from_tensor_proto(value)

    def gather(self, data: Any, indices: Any, axis: int = 0) -> Any:
        return np.take(data, indices, axis)


class ByExecute(Backend):
    """Whole graphs only; a primitive becomes a graph of one node."""

    TYPE_NAME = "test.ByExecute"

    def __init__(self) -> None:
        self.inner = NumPyBackend()

    def execute(
        self, graph: Any, inputs: Mapping[str, Any], attrs: BackendAttrs | None = None
    ) -> dict[str, Any]:
        return self.inner.execute(graph, inputs, attrs)


def test_the_cases_are_all_thirty() -> None:
    assert set(CASES) == set(PRIMITIVES) == set(PRIMITIVE_METHODS)
    assert len(CASES) == 30


@pytest.mark.parametrize("make", [ByPrimitives, ByExecute, NumPyBackend])
@pytest.mark.parametrize("op", CASES)
def test_every_primitive(op: str, make: type[Backend]) -> None:
    call, expected = CASES[op]
    found = call(make())
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
        assert one.shape == np.shape(other)


@pytest.mark.parametrize("op", CASES)
def test_the_walk_reads_what_the_wrapping_writes(op: str) -> None:
    """Each primitive as a graph of one node, and that graph by the primitive: once around both defaults."""
    walker = ByPrimitives()

    class Wraps(Backend):
        TYPE_NAME = "test.Wraps"

        def execute(
            self, graph: Any, inputs: Mapping[str, Any], attrs: BackendAttrs | None = None
        ) -> dict[str, Any]:
            return walker.execute(graph, inputs, attrs)

    call, expected = CASES[op]
    found = call(Wraps())
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_class_with_neither_side_is_refused_when_it_is_made() -> None:
    with pytest.raises(ContractError, match="neither execute nor a primitive"):
        type("Nothing", (Backend,), {"TYPE_NAME": "test.Nothing"})


def test_a_small_backend_refuses_what_it_has_not() -> None:
    """By a typed error that names it, wherever the call came from; not by the end of Python's stack."""

    class OnlyAdd(Backend):
        TYPE_NAME = "test.OnlyAdd"

        def add(self, a: Any, b: Any) -> Any:
            return a + b

    backend = OnlyAdd()
    assert backend.supported_ops() == {"Add"}
    assert backend.supports("Add", 21) and not backend.supports("Mul", 21)
    np.testing.assert_array_equal(backend.add(A, B), A + B)
    with pytest.raises(UnsupportedOpsError) as caught:
        backend.mul(A, B)
    assert caught.value.ops == ("Mul",)
    graph = onnx_pb2.FunctionProto(name="f", input=["a"], output=["y"])
    graph.node.add(op_type="Mul", input=["a", "a"], output=["t"])
    graph.node.add(op_type="Relu", input=["t"], output=["y"])
    with pytest.raises(UnsupportedOpsError) as caught:
        backend.execute(graph, {"a": A})
    assert caught.value.ops == ("Mul", "Relu")


def test_the_walk_runs_a_graph_with_initializers_and_older_operators() -> None:
    graph = onnx_pb2.GraphProto(name="g")
    graph.initializer.append(named_tensor("b", B))
    graph.node.add(op_type="Add", input=["a", "b"], output=["s"])
    squeeze = graph.node.add(op_type="ReduceSum", input=["s"], output=["y"])
    squeeze.attribute.add(name="axes", type=onnx_pb2.AttributeProto.INTS, ints=[1])
    squeeze.attribute.add(name="keepdims", type=onnx_pb2.AttributeProto.INT, i=0)
    graph.output.add(name="y")
    found = ByPrimitives().execute(graph, {"a": A})
    np.testing.assert_allclose(found["y"], (A + B).sum(1))


@pytest.mark.parametrize(
    ("inputs", "output", "message"), [(["a", "missing"], "y", "'missing'"), (["a", "a"], "z", "output 'y'")]
)
def test_the_walk_refuses_malformed_graphs(inputs: list[str], output: str, message: str) -> None:
    graph = onnx_pb2.FunctionProto(name="f", input=["a"], output=["y"])
    graph.node.add(op_type="Add", input=inputs, output=[output])
    with pytest.raises(BackendWalkError, match=message):
        ByPrimitives().execute(graph, {"a": A})


def test_the_default_program_and_dispatch_go_through_execute() -> None:
    function = onnx_pb2.FunctionProto(name="f", input=["a", "b"], output=["y"])
    function.opset_import.add(domain="", version=21)
    function.node.add(op_type="Add", input=["a", "b"], output=["y"])
    backend = ByPrimitives()
    resident = B.copy()
    program = backend.prepare(function, resident={"b": resident})
    np.testing.assert_array_equal(program.run((A,))[0], A + B)
    resident += 1
    out = np.empty_like(A)
    program.run_into((A,), [out])
    np.testing.assert_array_equal(out, A + B + 1)
    out[...] = 0
    assert program.run_lending((A,), [out], range(1)) == {}  # no program has to lend
    np.testing.assert_array_equal(out, A + B + 1)
    with pytest.raises(BackendError, match="expected 1"):
        program.run((A, A))
    with pytest.raises(BackendError, match="float64"):
        program.run_into((A,), [np.empty(A.shape)])
    found = backend.dispatch(function, {"a": A, "b": B})
    np.testing.assert_array_equal(found["y"], A + B)  # type: ignore[index]
