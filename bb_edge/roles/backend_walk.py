"""How each side of a backend's Contract is built from the other.

`execute_single` wraps one operator into a function for `execute`; `execute_by_primitives` calls one typed
primitive per node of a graph. A backend that has neither for an op is refused, so the two never call each
other in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.primitives import ONNX_VERSION
from bb_edge.ir.tensors import from_tensor_proto, to_tensor_proto
from bb_edge.roles.errors import BackendWalkError, UnsupportedOpsError
from bb_edge.roles.programs import Tensor
from bb_edge.roles.tensor_primitives import TensorPrimitives

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["check_supported", "execute_by_primitives", "execute_single", "make_attribute"]

_Attribute = onnx_pb2.AttributeProto


def make_attribute(name: str, value: object) -> onnx_pb2.AttributeProto:
    """Returns the AttributeProto of a plain value.

    That is an int, float, str, bytes, array, TensorProto, or a list of ints or of floats. Raises
    BackendWalkError for anything else.
    """
    attribute = _Attribute(name=name)
    if isinstance(value, (bool, int, np.integer)):
        attribute.type, attribute.i = _Attribute.INT, int(value)
    elif isinstance(value, (float, np.floating)):
        attribute.type, attribute.f = _Attribute.FLOAT, float(value)
    elif isinstance(value, str):
        attribute.type, attribute.s = _Attribute.STRING, value.encode()
    elif isinstance(value, bytes):
        attribute.type, attribute.s = _Attribute.STRING, value
    elif isinstance(value, onnx_pb2.TensorProto):
        attribute.type = _Attribute.TENSOR
        attribute.t.CopyFrom(value)
    elif isinstance(value, np.ndarray):
        attribute.type = _Attribute.TENSOR
        attribute.t.CopyFrom(to_tensor_proto(value))
    elif isinstance(value, (list, tuple)) and all(isinstance(v, (int, np.integer)) for v in value):
        attribute.type = _Attribute.INTS
        attribute.ints.extend(int(v) for v in value)
    elif isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, np.floating)) for v in value):
        attribute.type = _Attribute.FLOATS
        attribute.floats.extend(float(v) for v in value)
    else:
        raise BackendWalkError(
            f"an attribute cannot hold a {type(value).__name__}",
            f"attribute {name!r}",
            "give an int, float, str, bytes, array, TensorProto, or a list of numbers",
        )
    return attribute


def check_supported(
    function: onnx_pb2.FunctionProto, supports: Callable[[str, int, str], bool], backend: str
) -> None:
    """Raises UnsupportedOpsError with the names of all operators that a function uses and a backend lacks.

    `supports(op, version, domain)` says which it has. Operators in subgraphs count as well. `backend` is the
    TYPE_NAME that the error names.
    """
    versions = {imported.domain: imported.version for imported in function.opset_import}
    version = versions.get(keys.ONNX_DOMAIN, versions.get(keys.ONNX_DOMAIN_ALIAS, ONNX_VERSION))
    foreign: set[str] = set()
    pending = [function.node]
    while pending:
        for node in pending.pop():
            pending.extend(a.g.node for a in node.attribute if a.HasField("g"))
            own = node.domain in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS)
            if not supports(node.op_type, version if own else versions.get(node.domain, 1), node.domain):
                foreign.add(node.op_type if own else f"{node.domain}.{node.op_type}")
    if foreign:
        raise UnsupportedOpsError(
            foreign,
            f"graph {function.name!r}",
            "bind a backend that has them, or add them to its supported_ops()",
            backend,
        )


def execute_single(
    execute: Callable[[onnx_pb2.FunctionProto, Mapping[str, Tensor]], Mapping[str, Tensor]],
    op_type: str,
    inputs: Sequence[Tensor],
    attributes: Mapping[str, object],
    parameters: Mapping[int, Array],
    n_outputs: int,
) -> tuple[Tensor, ...]:
    """Runs one operator through a backend's `execute`, as a function of one node.

    `inputs` are handles; `parameters` are arrays by their position among the operator's inputs, and become
    constants of the function. Returns the handles of `n_outputs` outputs.
    """
    function = onnx_pb2.FunctionProto(name=op_type, domain=keys.BACKEND_DOMAIN)
    function.opset_import.add(domain=keys.ONNX_DOMAIN, version=ONNX_VERSION)
    names: list[str] = []
    values: dict[str, Tensor] = {}
    handles = iter(inputs)
    for position in range(len(inputs) + len(parameters)):
        name = f"in_{position}"
        names.append(name)
        if position in parameters:
            constant = function.node.add(op_type="Constant", output=[name])
            constant.attribute.append(make_attribute("value", to_tensor_proto(parameters[position])))
        else:
            function.input.append(name)
            values[name] = next(handles)
    outputs = [f"out_{position}" for position in range(n_outputs)]
    function.output.extend(outputs)
    node = function.node.add(op_type=op_type, input=names, output=outputs)
    node.attribute.extend(make_attribute(name, value) for name, value in attributes.items())
    results = execute(function, values)
    return tuple(results[name] for name in outputs)


class _Node:
    """One node of a walk, with its handles, its plain attributes, and its parameters as integers."""

    def __init__(
        self,
        primitives: TensorPrimitives,
        proto: onnx_pb2.NodeProto,
        values: Mapping[str, Tensor],
        known: Mapping[str, Array],
    ) -> None:
        self.proto = proto
        self._primitives = primitives
        self._values = values
        self._known = known
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def handles(self) -> list[Tensor]:
        return [self._value(name) for name in self.proto.input if name]

    def handle(self, position: int) -> Tensor:
        """Returns the handle of the input at a position."""
        return self._value(self.proto.input[position])

    def _value(self, name: str) -> Tensor:
        if name not in self._values:
            raise BackendWalkError(
                f"nothing produces the value {name!r}", _where(self.proto), "sort the nodes topologically"
            )
        return self._values[name]

    def integer(self, name: str, default: int) -> int:
        """Returns an integer attribute, or its default."""
        attribute = self._attributes.get(name)
        return default if attribute is None else attribute.i

    def ints(self, name: str, position: int | None = None) -> list[int]:
        """Returns integers of the attribute `name` (older opsets) or of the input `position` (newer ones)."""
        if name in self._attributes:
            return list(self._attributes[name].ints)
        if position is None or position >= len(self.proto.input) or not self.proto.input[position]:
            return []
        source = self.proto.input[position]
        array = (
            self._known[source] if source in self._known else self._primitives.to_array(self._value(source))
        )
        return [int(v) for v in array.reshape(-1)]

    def tensor(self, name: str) -> onnx_pb2.TensorProto:
        """Returns a tensor attribute. BackendWalkError where it is absent."""
        attribute = self._attributes.get(name)
        if attribute is None or attribute.type != _Attribute.TENSOR:
            raise BackendWalkError(f"has no tensor attribute {name!r}", _where(self.proto))
        return attribute.t


def _where(node: onnx_pb2.NodeProto) -> str:
    return (
        f"node {node.name!r} ({node.op_type})" if node.name else f"{node.op_type} → {', '.join(node.output)}"
    )


_Call = Callable[[TensorPrimitives, _Node], Any]
"""Runs a node; gives the handle of its one output, or a tuple of handles."""


def _unary(method: str) -> _Call:
    return lambda primitives, node: getattr(primitives, method)(node.handle(0))


def _binary(method: str) -> _Call:
    return lambda primitives, node: getattr(primitives, method)(node.handle(0), node.handle(1))


def _reduce(method: str) -> _Call:
    def call(primitives: TensorPrimitives, node: _Node) -> Tensor:
        axes = node.ints("axes", 1)
        if not axes and node.integer("noop_with_empty_axes", 0):
            return primitives.identity(node.handle(0))
        return getattr(primitives, method)(node.handle(0), axes, bool(node.integer("keepdims", 1)))

    return call


def _split(primitives: TensorPrimitives, node: _Node) -> tuple[Tensor, ...]:
    data, axis, count = node.handle(0), node.integer("axis", 0), len(node.proto.output)
    sizes = node.ints("split", 1)
    if not sizes:
        length = primitives.to_array(data).shape[axis]
        chunk = -(-length // count)
        sizes = [min(chunk, length - i * chunk) for i in range(count)]
    return tuple(primitives.split(data, axis, sizes))


_CALLS: Mapping[str, _Call] = {
    **{
        op: _binary(op.lower())
        for op in ("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Equal", "Greater", "Less")
    },
    **{op: _unary(op.lower()) for op in ("Neg", "Abs", "Sqrt", "Exp", "Log", "Identity")},
    "ReduceSum": _reduce("reduce_sum"),
    "ReduceMean": _reduce("reduce_mean"),
    "ReduceMax": _reduce("reduce_max"),
    "ReduceMin": _reduce("reduce_min"),
    "Reshape": lambda b, n: b.reshape(n.handle(0), n.ints("shape", 1)),
    "Transpose": lambda b, n: b.transpose(n.handle(0), n.ints("perm")),
    "Concat": lambda b, n: b.concat(n.handles, n.integer("axis", 0)),
    "Slice": lambda b, n: b.slice(
        n.handle(0), n.ints("starts", 1), n.ints("ends", 2), n.ints("axes", 3), n.ints("steps", 4)
    ),
    "Split": _split,
    "Squeeze": lambda b, n: b.squeeze(n.handle(0), n.ints("axes", 1)),
    "Unsqueeze": lambda b, n: b.unsqueeze(n.handle(0), n.ints("axes", 1)),
    "Cast": lambda b, n: b.cast(n.handle(0), n.integer("to", 1)),
    "Where": lambda b, n: b.where(n.handle(0), n.handle(1), n.handle(2)),
    "Constant": lambda b, n: b.constant(n.tensor("value")),
    "Gather": lambda b, n: b.gather(n.handle(0), n.handle(1), n.integer("axis", 0)),
}


def execute_by_primitives(
    primitives: TensorPrimitives,
    own: Collection[str],
    graph: onnx_pb2.FunctionProto | onnx_pb2.GraphProto,
    inputs: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Runs a graph of topologically sorted nodes, each by the typed primitive of its operator.

    `own` are the operators whose primitives do not lead back to `execute`. Returns the handles of the graph's
    outputs by name. Raises UnsupportedOpsError for other operators before anything runs, and BackendWalkError
    where nothing produces a value that a node or an output needs.
    """
    foreign = {
        node.op_type if node.domain in ("", keys.ONNX_DOMAIN_ALIAS) else f"{node.domain}.{node.op_type}"
        for node in graph.node
        if node.op_type not in own or node.domain not in ("", keys.ONNX_DOMAIN_ALIAS)
    }
    if foreign:
        raise UnsupportedOpsError(foreign, f"graph {graph.name!r}")
    values: dict[str, Tensor] = dict(inputs)
    known: dict[str, Array] = {}
    if isinstance(graph, onnx_pb2.GraphProto):
        wanted = [info.name for info in graph.output]
        for initializer in graph.initializer:
            values.setdefault(initializer.name, primitives.constant(initializer))
    else:
        wanted = list(graph.output)
    for proto in graph.node:
        node = _Node(primitives, proto, values, known)
        result = _CALLS[proto.op_type](primitives, node)
        if proto.op_type == "Constant":
            known[proto.output[0]] = from_tensor_proto(node.tensor("value"))
        if len(proto.output) == 1:
            values[proto.output[0]] = result[0] if isinstance(result, tuple) else result
        else:
            values.update(zip(proto.output, result, strict=True))
    missing = [name for name in wanted if name not in values]
    if missing:
        raise BackendWalkError(f"nothing produces the output {missing[0]!r}", f"graph {graph.name!r}")
    return {name: values[name] for name in wanted}
