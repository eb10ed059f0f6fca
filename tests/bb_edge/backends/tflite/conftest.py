"""Small flatbuffers, and functions with `Model` nodes around them. Nothing here needs the onnx package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.ir import keys, onnx_pb2
from bb_host.tflite.graph import DYNAMIC, TfliteGraph
from bb_host.tflite.writer import write


def relu(rows: int = DYNAMIC, columns: int = 4) -> bytes:
    """max(x, 0) of rows of floats."""
    graph = TfliteGraph()
    x = graph.input("x", (rows, columns))
    graph.outputs.append(graph.op("RELU", [x], (rows, columns)))
    return write(graph)


def add() -> bytes:
    """x + y, both (open, 4)."""
    graph = TfliteGraph()
    x, y = graph.input("x", (DYNAMIC, 4)), graph.input("y", (DYNAMIC, 4))
    graph.outputs.append(graph.op("ADD", [x, y], (DYNAMIC, 4), options={"act": 0}))
    return write(graph)


def model_node(
    function: Any,
    given: str,
    made: str,
    model: bytes | None = None,
    fallback: str = "",
    digest: bytes | None = None,
) -> None:
    """Appends a `Model` node; names are separated by spaces."""
    model = relu() if model is None else model
    node = function.node.add(domain=keys.TFLITE_DOMAIN, op_type="Model", input=given.split(),
                             output=made.split())  # fmt: skip
    texts = {"model": model, "sha256": digest or hashlib.sha256(model).hexdigest().encode()}
    if fallback:
        texts["fallback"] = fallback.encode()
    for name, value in texts.items():
        node.attribute.add(name=name, type=onnx_pb2.AttributeProto.STRING, s=value)


def new_function(inputs: str, outputs: str, name: str = "f") -> onnx_pb2.FunctionProto:
    function = onnx_pb2.FunctionProto(
        name=name, domain=keys.BACKEND_DOMAIN, input=inputs.split(), output=outputs.split()
    )
    function.opset_import.add(domain="", version=21)
    return function


class Makers:
    relu = staticmethod(relu)
    add = staticmethod(add)
    model_node = staticmethod(model_node)
    function = staticmethod(new_function)

    @staticmethod
    def functions(*several: onnx_pb2.FunctionProto) -> dict[tuple[str, str], onnx_pb2.FunctionProto]:
        return {(f.domain, f.name): f for f in several}

    @staticmethod
    def call(function: Any, name: str, given: str, made: str) -> None:
        function.node.add(domain=keys.BACKEND_DOMAIN, op_type=name, input=given.split(), output=made.split())

    @staticmethod
    def op(function: Any, op_type: str, given: str, made: str) -> Any:
        return function.node.add(op_type=op_type, input=given.split(), output=made.split())


@pytest.fixture
def make() -> type[Makers]:
    return Makers


@pytest.fixture
def function_of() -> Callable[..., onnx_pb2.FunctionProto]:
    """One Model from x to y; `mixed`: Neg before it and Add behind it."""

    def found(model: bytes | None = None, mixed: bool = False, **kwargs: Any) -> onnx_pb2.FunctionProto:
        function = new_function("x", "y")
        if mixed:
            Makers.op(function, "Neg", "x", "a")
            model_node(function, "a", "b", model, **kwargs)
            Makers.op(function, "Add", "b x", "y")
        else:
            model_node(function, "x", "y", model, **kwargs)
        return function

    return found
