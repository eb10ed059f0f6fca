"""Functions to run, written as one line per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.ir import onnx_pb2
from bb_edge.roles.backend_walk import make_attribute

Node = tuple[str, str, str] | tuple[str, str, str, Mapping[str, object]]


def build(
    inputs: str, outputs: str, nodes: Sequence[Node], opset: int = 21, domain: str = ""
) -> onnx_pb2.FunctionProto:
    """`nodes` are (op type, "inputs", "outputs", attributes); "_" is an omitted value, "d::Op" a call."""
    function = onnx_pb2.FunctionProto(name="f", domain=domain, input=inputs.split(), output=outputs.split())
    function.opset_import.add(domain="", version=opset)
    for op_type, given, made, *attributes in nodes:
        node = function.node.add(
            op_type=op_type.split("::")[-1],
            domain=op_type.split("::")[0] if "::" in op_type else "",
            input=["" if name == "_" else name for name in given.split()],
            output=["" if name == "_" else name for name in made.split()],
        )
        for key, value in (attributes[0] if attributes else {}).items():
            if isinstance(value, onnx_pb2.GraphProto):
                attribute = node.attribute.add(name=key, type=onnx_pb2.AttributeProto.GRAPH)
                attribute.g.CopyFrom(value)
            else:
                node.attribute.append(make_attribute(key, value))
    return function


def build_graph(inputs: str, outputs: str, nodes: Sequence[Node]) -> onnx_pb2.GraphProto:
    """The same as a GraphProto: the body of an If or Loop."""
    function = build(inputs, outputs, nodes)
    graph = onnx_pb2.GraphProto(name="g", node=function.node)
    for name in function.input:
        graph.input.add(name=name)
    for name in function.output:
        graph.output.add(name=name)
    return graph


@pytest.fixture
def make() -> Callable[..., onnx_pb2.FunctionProto]:
    return build


@pytest.fixture
def make_graph() -> Callable[..., onnx_pb2.GraphProto]:
    return build_graph


@pytest.fixture
def backend() -> NumPyBackend:
    return NumPyBackend()


@pytest.fixture
def f32() -> Callable[..., np.ndarray]:
    """f32(2, 3): seeded normal numbers of that shape."""
    rng = np.random.default_rng(7)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)
