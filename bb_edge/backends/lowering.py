"""Lowers a function or graph to a flat graph of operators over numbered values.

1. Value names become numbers, dense per graph; -1 is an omitted input or output.
2. Calls of functions are replaced by their bodies; references to attributes get the values of the call.
3. `Constant` nodes and initializers become arrays. Other nodes over constants stay; the plan computes them.
4. Bodies of `If` and `Loop` become graphs of their own; what they capture is appended to their inputs.
5. Nodes that no output needs are dropped.

Shapes are not looked at. Graphs arrive over networks, so everything is checked, and BackendWalkError is
raised for what is not sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from bb_edge.backends.flat_graph import OMITTED, Body, FlatGraph, FlatNode
from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.primitives import ONNX_VERSION
from bb_edge.ir.tensors import TensorError, from_tensor_proto
from bb_edge.roles.errors import BackendWalkError
from bb_edge.roles.programs import Functions

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = [
    "MAX_CALL_DEPTH",
    "MAX_NODES",
    "lower",
    "plain_attribute",
]

MAX_NODES = 100_000
"""Nodes after inlining, which can make a graph exponentially larger; large vision models have 5,000."""

MAX_CALL_DEPTH = 64
"""How deep calls and bodies may nest; it also bounds the depth of Python's stack."""

# AttributeProto.AttributeType as numbers, so that the message classes need not be imported.
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = range(1, 9)
_ONNX = (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS)


def plain_attribute(attribute: onnx_pb2.AttributeProto, where: str) -> object:
    """The value of an attribute as an int, float, bytes, list or array.

    Raises BackendWalkError for graphs, types and other kinds.
    """
    kind = attribute.type
    if kind == _INT:
        return attribute.i
    if kind == _FLOAT:
        return attribute.f
    if kind == _STRING:
        return attribute.s
    if kind == _TENSOR:
        return _array(attribute.t, where)
    if kind == _INTS:
        return list(attribute.ints)
    if kind == _FLOATS:
        return list(attribute.floats)
    if kind == _STRINGS:
        return list(attribute.strings)
    raise BackendWalkError(
        f"attribute {attribute.name!r} is of kind {kind}, which no operator here takes", where
    )


def _array(tensor: onnx_pb2.TensorProto, where: str) -> Array:
    try:
        return from_tensor_proto(tensor)
    except TensorError as error:
        raise BackendWalkError(f"a constant is damaged: {error}", where) from error


def lower(
    graph: onnx_pb2.FunctionProto | onnx_pb2.GraphProto,
    functions: Functions | None = None,
) -> FlatGraph:
    """Lowers a function, or a graph of the opset that the catalog has; a function names its own version.

    `functions` are those that may be called, by (domain, name). Raises BackendWalkError.
    """
    function = _as_function(graph)
    lowering = _Lowering(dict(functions or {}))
    scope = _Scope(lowering, None, f"graph {graph.name!r}" if graph.name else "graph")
    if function is not None:
        names, wanted = list(function.input), list(function.output)
        inputs = scope.declare_inputs(names)
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        scope.take_nodes(function.node, _version_of(function, ONNX_VERSION), defaults, 0)
        return scope.finish(graph.name, inputs, names, wanted)
    body = cast("onnx_pb2.GraphProto", graph)
    initialized = {tensor.name for tensor in body.initializer}
    names = [info.name for info in body.input if info.name not in initialized]
    inputs = scope.declare_inputs(names)
    scope.take_initializers(body)
    scope.take_nodes(body.node, ONNX_VERSION, {}, 0)
    return scope.finish(graph.name, inputs, names, [info.name for info in body.output])


def _as_function(graph: onnx_pb2.FunctionProto | onnx_pb2.GraphProto) -> onnx_pb2.FunctionProto | None:
    """The message if it is a function, by its fields: messages of `bb_edge.ir.onnx_reader` count too."""
    return cast("onnx_pb2.FunctionProto", graph) if hasattr(graph, "opset_import") else None


def _version_of(function: onnx_pb2.FunctionProto, otherwise: int) -> int:
    for opset in function.opset_import:
        if opset.domain in _ONNX:
            return int(opset.version)
    return otherwise


class _Lowering:
    """What all scopes of one lowering share: the functions and the number of nodes."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.n_nodes = 0

    def count(self, where: str) -> None:
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise BackendWalkError(f"more than {MAX_NODES} nodes after inlining", where)


class _Scope:
    """Builds one FlatGraph; `outer` is the scope around it if it is a body."""

    def __init__(self, lowering: _Lowering, outer: _Scope | None, where: str) -> None:
        self.lowering = lowering
        self.outer = outer
        self.where = where
        self.names: dict[str, int] = {}
        self.n_values = 0
        self.constants: dict[int, Array] = {}
        self.nodes: list[FlatNode] = []
        self.captures: dict[int, int] = {}  # outer value → own value

    # values

    def new_value(self) -> int:
        self.n_values += 1
        return self.n_values - 1

    def declare(self, name: str) -> int:
        if not name:
            return OMITTED
        if name in self.names:
            raise BackendWalkError(f"the value {name!r} is produced twice", self.where)
        value = self.names[name] = self.new_value()
        return value

    def declare_inputs(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.declare(name) for name in names)

    def resolve(self, name: str, where: str) -> int:
        if not name:
            return OMITTED
        value = self.find(name)
        if value is None:
            raise BackendWalkError(f"nothing produces the value {name!r}", where)
        return value

    def find(self, name: str) -> int | None:
        if name in self.names:
            return self.names[name]
        if self.outer is None:
            return None
        outer = self.outer.find(name)
        if outer is None or outer == OMITTED:
            return outer
        if outer not in self.captures:
            self.captures[outer] = self.new_value()
        return self.captures[outer]

    # contents

    def take_initializers(self, graph: onnx_pb2.GraphProto) -> None:
        if graph.sparse_initializer:
            raise BackendWalkError("sparse initializers are not supported", self.where, "store them densely")
        for tensor in graph.initializer:
            self.constants[self.declare(tensor.name)] = _array(tensor, f"initializer {tensor.name!r}")

    def take_nodes(
        self,
        protos: Sequence[onnx_pb2.NodeProto],
        version: int,
        actuals: Mapping[str, onnx_pb2.AttributeProto],
        depth: int,
    ) -> None:
        if depth > MAX_CALL_DEPTH:
            raise BackendWalkError(
                f"calls and bodies nest deeper than {MAX_CALL_DEPTH}, or a function calls itself",
                self.where,
            )
        for proto in protos:
            where = _where(proto)
            self.lowering.count(where)
            if proto.domain in _ONNX:
                self._take_operator(proto, version, actuals, depth, where)
            else:
                self._take_call(proto, version, actuals, depth, where)

    def _attributes(
        self, proto: onnx_pb2.NodeProto, actuals: Mapping[str, onnx_pb2.AttributeProto]
    ) -> list[tuple[str, onnx_pb2.AttributeProto]]:
        attributes = []
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in actuals:
                    attributes.append((attribute.name, actuals[attribute.ref_attr_name]))
            else:
                attributes.append((attribute.name, attribute))
        return attributes

    def _take_operator(
        self,
        proto: onnx_pb2.NodeProto,
        version: int,
        actuals: Mapping[str, onnx_pb2.AttributeProto],
        depth: int,
        where: str,
    ) -> None:
        inputs = tuple(self.resolve(name, where) for name in proto.input)
        attrs: dict[str, object] = {}
        bodies: dict[str, Body] = {}
        for name, attribute in self._attributes(proto, actuals):
            if attribute.type == _GRAPH:
                bodies[name] = self._take_body(attribute.g, version, actuals, depth + 1, where)
            else:
                attrs[name] = plain_attribute(attribute, where)
        if (
            proto.op_type == "Constant"
            and isinstance(attrs.get("value"), np.ndarray)
            and len(proto.output) == 1
        ):
            value = attrs["value"]
            assert isinstance(value, np.ndarray)
            self.constants[self.declare(proto.output[0])] = value
            return
        while inputs and inputs[-1] == OMITTED:
            inputs = inputs[:-1]
        outputs = tuple(self.declare(name) for name in proto.output)
        while outputs and outputs[-1] == OMITTED:
            outputs = outputs[:-1]
        captured = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captures))
        node = FlatNode(proto.op_type, version, attrs, inputs + captured, outputs, where, bodies, len(inputs))
        self.nodes.append(node)

    def _take_body(
        self,
        graph: onnx_pb2.GraphProto,
        version: int,
        actuals: Mapping[str, onnx_pb2.AttributeProto],
        depth: int,
        where: str,
    ) -> Body:
        scope = _Scope(self.lowering, self, where)
        initialized = {tensor.name for tensor in graph.initializer}
        names = [info.name for info in graph.input if info.name not in initialized]
        inputs = scope.declare_inputs(names)
        scope.take_initializers(graph)
        scope.take_nodes(graph.node, version, actuals, depth)
        wanted = [info.name for info in graph.output]
        types = tuple(
            (
                info.type.tensor_type.elem_type,
                len(info.type.tensor_type.shape.dim) if info.type.tensor_type.HasField("shape") else -1,
            )
            for info in graph.output
        )
        for name in wanted:
            scope.resolve(
                name, where
            )  # an output may be an outer value, which must be captured before `finish`
        captured = tuple(scope.captures)
        flat = scope.finish(
            graph.name,
            inputs + tuple(scope.captures.values()),
            [*names, *(f"capture {i}" for i in range(len(captured)))],
            wanted,
        )
        return Body(flat, captured, types)

    def _take_call(
        self,
        proto: onnx_pb2.NodeProto,
        version: int,
        actuals: Mapping[str, onnx_pb2.AttributeProto],
        depth: int,
        where: str,
    ) -> None:
        function = self.lowering.functions.get((proto.domain, proto.op_type))
        if function is None:
            raise BackendWalkError(
                f"there is no function {proto.domain}.{proto.op_type}",
                where,
                "only ONNX operators and calls run here",
            )
        if len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
            raise BackendWalkError(
                f"the call has more inputs or outputs than {proto.op_type} declares", where
            )
        arguments = dict(self._attributes(proto, actuals))
        for default in function.attribute_proto:
            arguments.setdefault(default.name, default)
        # The names of the callee get a table of their own, over the same values and nodes.
        caller_names, caller_outer = self.names, self.outer
        inner: dict[str, int] = {}
        for position, name in enumerate(function.input):
            if position < len(proto.input):
                inner[name] = self.resolve(proto.input[position], where)
            else:
                inner[name] = OMITTED
        self.names, self.outer = inner, None
        try:
            self.take_nodes(function.node, _version_of(function, version), arguments, depth + 1)
            results = [self.resolve(name, where) for name in function.output[: len(proto.output)]]
        finally:
            self.names, self.outer = caller_names, caller_outer
        for name, value in zip(proto.output, results, strict=True):
            if name:
                if name in self.names:
                    raise BackendWalkError(f"the value {name!r} is produced twice", where)
                self.names[name] = value

    def finish(
        self, name: str, inputs: tuple[int, ...], input_names: Sequence[str], wanted: Sequence[str]
    ) -> FlatGraph:
        outputs = tuple(self.resolve(output, self.where) for output in wanted)
        if OMITTED in outputs:
            raise BackendWalkError("an output has no name", self.where)
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if any(value in needed for value in node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        return FlatGraph(
            name,
            inputs,
            outputs,
            tuple(reversed(kept)),
            {value: array for value, array in self.constants.items() if value in needed},
            tuple(input_names),
            tuple(wanted),
            self.n_values,
        )


def _where(proto: onnx_pb2.NodeProto) -> str:
    if proto.name:
        return f"node {proto.name!r} ({proto.op_type})"
    return f"{proto.op_type} → {', '.join(proto.output)}"
