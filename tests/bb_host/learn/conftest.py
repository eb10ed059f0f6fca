from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx.reference import ReferenceEvaluator
from program_text import parse_function

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.ir.types import ValueType, tensor_type
from bb_host.ir.program import Function, Program, Subgraph
from bb_host.ir.proto import function_to_proto, to_proto, write_attribute
from bb_host.learn import Gradient, differentiate
from bb_host.learn.shapes import with_types

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Function, Arrays], dict[str, np.ndarray]]
STEP = 1e-6


def as_model(function: Function) -> onnx.ModelProto:
    """The function as a checked model of its own."""
    function = with_types(function)
    graph = Subgraph("g", function.inputs, function.outputs, function.ops, function.types)
    model = onnx.ModelProto(ir_version=10)
    model.graph.ParseFromString(write_attribute("g", graph).g.SerializeToString())
    for domain, version in function.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    onnx.checker.check_model(model)
    return model


def by_reference(function: Function, arrays: Arrays) -> dict[str, np.ndarray]:
    evaluator = ReferenceEvaluator(as_model(function))
    results = evaluator.run(None, {name: arrays[name] for name in function.inputs})
    return dict(zip(function.outputs, results, strict=True))


def by_numpy_backend(function: Function, arrays: Arrays) -> dict[str, np.ndarray]:
    program = NumPyBackend().prepare(function_to_proto(function))
    results = program.run([arrays[name] for name in function.inputs])
    return dict(zip(function.outputs, results, strict=True))


@pytest.fixture(name="as_model")
def checked_model() -> Callable[[Function], onnx.ModelProto]:
    """A function as a model that ONNX's checker has passed."""
    return as_model


@pytest.fixture
def reference() -> Run:
    """Runs a function in ONNX's reference evaluator."""
    return by_reference


@pytest.fixture
def runtime() -> Run:
    """Runs a function in the runtime's NumPy backend."""
    return by_numpy_backend


def numeric_gradient(
    function: Function, arrays: Arrays, value: str, seed: np.ndarray, run: Run
) -> np.ndarray:
    """Central differences of Σ output·seed."""
    inputs = dict(arrays)
    gradient = np.zeros_like(arrays[value])
    for index in np.ndindex(gradient.shape):
        ends = []
        for sign in (1, -1):
            moved = arrays[value].copy()
            moved[index] += sign * STEP
            inputs[value] = moved
            ends.append(float((run(function, inputs)[function.outputs[0]] * seed).sum()))
        gradient[index] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient


@pytest.fixture
def read() -> Callable[[str], Function]:
    """A function from the text notation, at opset 21."""

    def parse(text: str) -> Function:
        function = parse_function(text)
        return dataclasses.replace(function, opsets={"": 21})

    return parse


@pytest.fixture
def check_gradient(read: Callable[[str], Function]) -> Callable[..., Gradient]:
    """Differentiates `text` (all its types F64) and holds the result against central differences.

    Arrays not given are drawn from a seeded normal distribution in the shapes that the text declares (a
    symbol is 3); `wrt` defaults to all inputs. `run` is another way of running graphs, for operators that the
    reference evaluator computes in float32 or not at all.
    """

    def check(
        text: str, wrt: Sequence[str] = (), run: Run = by_reference, opset: int = 21, **given: np.ndarray
    ) -> Gradient:
        function = dataclasses.replace(read(text), opsets={"": opset})
        rng = np.random.default_rng(7)
        arrays = {}
        for name in function.inputs:
            shape = [d if isinstance(d, int) else 3 for d in function.types[name].shape or ()]
            arrays[name] = given[name] if name in given else rng.standard_normal(shape)
        wrt = tuple(wrt) or function.inputs
        gradient = differentiate(function, wrt)
        for part in (gradient.forward, gradient.backward):
            onnx.checker.check_model(to_proto(Program("p", (part,), opsets=dict(part.opsets))))
        results = run(gradient.forward, arrays)
        plain = run(function, arrays)[function.outputs[0]]
        np.testing.assert_array_equal(results[function.outputs[0]], plain)
        seed = rng.standard_normal(plain.shape)
        inputs = {**arrays, **results, gradient.backward.inputs[-1]: seed}
        found = run(gradient.backward, inputs)
        assert len(gradient.backward.outputs) == len(wrt)
        for value, name in zip(wrt, gradient.backward.outputs, strict=True):
            expected = numeric_gradient(function, arrays, value, seed, run)
            assert found[name].dtype == arrays[value].dtype
            np.testing.assert_allclose(found[name], expected, rtol=2e-6, atol=2e-7, err_msg=f"d_{value}")
            declared = gradient.backward.types.get(name)
            assert declared is None or declared.node == tensor_type(arrays[value].dtype)
        return gradient

    return check


@pytest.fixture(scope="session")
def fn() -> Callable[..., str]:
    """A function in the text notation from its inputs and its lines; its last value is `y`."""

    def text(inputs: str, *lines: str) -> str:
        body = "\n".join(f"  {line}" for line in lines)
        return f"function f({inputs}) -> (y)\n{body}\n"

    return text


@pytest.fixture
def f32() -> Callable[..., ValueType]:
    return lambda *shape: ValueType(tensor_type(np.float32), shape)
