"""Ops of the catalog's own domains as calls: arity, attributes and types checked against their row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets import OpDef, Port, Ready
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.errors import ArityError, AttributeValueError, UnknownOpError, ValueTypeError
from bb_host.dsl.literals import as_attribute, check_names, lift
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import After, Draft
from bb_host.dsl.shapes import CATALOG_SHAPES
from bb_host.program import AttrValue

if TYPE_CHECKING:
    from bb_host.dsl.recorder import Recorder

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|\.")
_SINGLE_PORTS = frozenset({"DeadlineMatch"})
"""Ops whose any-ready ports take one value each."""

Result = "Output | tuple[Output, ...] | None"


def snake(op_type: str) -> str:
    """``Limit.Acquire`` → ``limit_acquire``."""
    return _HUMP.sub("_", op_type).lower()


def find_op(graph: Recorder, domain: str, name: str) -> OpDef:
    """The row of an op, by its name or its spelling as a call. UnknownOpError where there is none."""
    table = opsets.opset(domain)
    wanted = name.replace("_", "").replace(".", "").lower()
    for op_name, op in {} if table is None else table.ops.items():
        if op_name.replace(".", "").lower() == wanted:
            return op
    short = domain[len(keys.PREFIX) + 1 :] if domain.startswith(keys.PREFIX) else domain
    hint = suggestion(name, map(snake, () if table is None else table.ops), "it has ") or "it has none"
    raise graph.error(UnknownOpError, f"{short} has no op {name!r}", hint)


def call_op(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    after: After = None,
    meta: Mapping[str, str] | None = None,
    hint: str = "",
) -> tuple[Output, ...]:
    """Records an op of the catalog; its outputs as a tuple.

    `args` are inputs in order (None leaves an optional one out); `kwargs` are attributes, or inputs by name.
    Raises ArityError, AttributeValueError, ValueTypeError at the author's line.
    """
    variables: dict[str, ValueType] = {}
    inputs = _bind_inputs(graph, op, args, kwargs, variables)
    attrs = _bind_attrs(graph, op, kwargs)
    outputs = _outputs(graph, op, inputs, attrs, variables, hint)
    draft = Draft(op.name, op.domain, inputs, outputs, dict(attrs), dict(meta or {}))
    gates = graph.order(draft, graph.after_values(after))
    assert not gates
    while draft.inputs and draft.inputs[-1] is None:
        draft.inputs.pop()
    graph.add(draft)
    return tuple(outputs)


def _bind_inputs(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    variables: dict[str, ValueType],
) -> list[Output | None]:
    ports = op.inputs
    attr_names = [a.name for a in op.attrs]
    check_names(graph, op.name, kwargs, [*attr_names, *(p.name for p in ports if p.name not in attr_names)])
    variadic = next((p for p in ports if p.variadic), None)
    if op.name in _SINGLE_PORTS:
        variadic = None
    if variadic is None and len(args) > len(ports):
        raise graph.error(ArityError, f"{op.name} takes {_count(len(ports), 'input')}, not {len(args)}")
    found: list[Output | None] = []
    for i, port in enumerate(ports):
        if port is variadic:
            rest = args[i:]
            if not rest and port.name in kwargs:
                given = kwargs[port.name]
                rest = given if isinstance(given, (list, tuple)) else (given,)
            if not rest and port.ready is not Ready.OPTIONAL:
                raise graph.error(ArityError, f"{op.name} wants at least one value for {port.name}")
            found += [_bind(graph, op, port, value, variables) for value in rest]
            break
        value = args[i] if i < len(args) else kwargs.get(port.name) if port.name not in attr_names else None
        if i < len(args) and port.name in kwargs and port.name not in attr_names:
            raise graph.error(ArityError, f"{op.name}: input {port.name} is given twice")
        if value is None:
            if port.ready is not Ready.OPTIONAL:
                raise graph.error(ArityError, f"{op.name} wants an input {port.name}: {port.type}")
            found.append(None)
        else:
            found.append(_bind(graph, op, port, value, variables))
    return found


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _bind(graph: Recorder, op: OpDef, port: Port, value: object, variables: dict[str, ValueType]) -> Output:
    """One input: a value of a type that may go there, or a number where a tensor goes."""
    node = types.ANY if port.is_variable else _node(port.type)
    if not isinstance(value, Output):
        if not (port.is_variable or types.compatible(node, types.TENSOR)):
            raise graph.error(
                ValueTypeError,
                f"{op.name}: input {port.name} expects a {node}, got {value!r}",
                _type_hint(node),
            )
        number = lift(graph, value, node if node.elem_type is not None else None)
        value = number
    value = graph.own(value)
    if not types.compatible(value.node, node):
        raise graph.error(
            ValueTypeError, f"{op.name}: input {port.name} expects a {node}, got {value!r}", _type_hint(node)
        )
    if port.is_variable:
        known = variables.get(port.type)
        variables[port.type] = value.type if known is None else _join(known, value.type)
    return value


def _type_hint(node: TypeNode) -> str:
    if node is types.PEER_ID_VEC:
        return "peers come from a PeerSelectorSlot, an input, or a .sender"
    if node.elem_type is not None:
        return "cast it with g.onnx.cast(x, to=…)"
    if node is types.TRIGGER:
        return "a trigger comes from g.pulse, g.on_trigger(value), r.closed or an input"
    if node is types.TENSOR:
        return "a tensor comes from an input, g.constant, g.onnx or a component"
    return f"a {node} comes from an input or from an op that yields one (docs/ops.md)"


def _join(a: ValueType, b: ValueType) -> ValueType:
    return a if a == b else ValueType(types.join(a.node, b.node))


def _node(type_id: str) -> TypeNode:
    node = types.by_id(type_id)
    assert node is not None, type_id
    return node


def _bind_attrs(graph: Recorder, op: OpDef, kwargs: Mapping[str, object]) -> dict[str, AttrValue]:
    found: dict[str, AttrValue] = {}
    for attr in op.attrs:
        value = kwargs.get(attr.name)
        if value is None:
            if attr.required:
                raise graph.error(AttributeValueError, f"{op.name} wants an attribute {attr.name}")
            continue
        converted = as_attribute(graph, op.name, attr.name, attr.kind, value)
        if not isinstance(attr.default, str) or converted != attr.default.encode():
            found[attr.name] = converted
    return found


def _outputs(
    graph: Recorder,
    op: OpDef,
    inputs: Sequence[Output | None],
    attrs: Mapping[str, AttrValue],
    variables: Mapping[str, ValueType],
    hint: str,
) -> list[Output]:
    found: list[Output] = []
    hint = hint or snake(op.name)
    for port in op.outputs:
        count = 1
        if port.variadic:
            fanout = attrs.get("fanout", 1)
            count = fanout if isinstance(fanout, int) else 1
            if count < 1:
                raise graph.error(AttributeValueError, f"{op.name}: fanout must be at least 1, not {count}")
        for i in range(count):
            if op.relation == "constant":
                value_type = _constant_type(graph, attrs["value"])
            elif op.relation == "same_each":
                continue
            elif port.is_variable:
                value_type = variables.get(port.type, ValueType(types.ANY))
            else:
                value_type = ValueType(_node(port.type), CATALOG_SHAPES.get((op.name, port.name)))
            name = hint if len(op.outputs) == 1 or hint.endswith(port.name) else f"{hint}_{port.name}"
            found.append(graph.fresh(name if count == 1 else f"{name}_{i}", value_type))
    if op.relation == "same_each":
        found = [graph.fresh(value.hint, value.type) for value in inputs if value is not None]
    return found


def _constant_type(graph: Recorder, value: AttrValue) -> ValueType:
    if isinstance(value, bytes):
        return ValueType(types.BYTES)
    array = as_attribute(graph, "Constant", "value", opsets.AttrKind.TENSOR, value)
    return ValueType(types.tensor_type(getattr(array, "dtype", None)), tuple(getattr(array, "shape", ())))


class Namespace:
    """The ops of one domain as methods: `g.syscall.after(trigger, delay_ns=10 * MS)`.

    Inputs come first, in order, attributes by name; `after=` orders. An op with one output returns it, one
    with several a tuple, one with none None.
    """

    def __init__(self, graph: Recorder, domain: str) -> None:
        self._graph = graph
        self._domain = domain

    def __getattr__(self, name: str) -> _OpCall:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OpCall(self._graph, find_op(self._graph, self._domain, name))

    def __dir__(self) -> list[str]:
        table = opsets.opset(self._domain)
        return [] if table is None else sorted(map(snake, table.ops))


class _OpCall:
    def __init__(self, graph: Recorder, op: OpDef) -> None:
        self._graph = graph
        self._op = op
        self.__doc__ = op.doc

    def __call__(
        self, *args: object, after: After = None, **kwargs: object
    ) -> Output | tuple[Output, ...] | None:
        found = call_op(self._graph, self._op, args, kwargs, after=after)
        return found[0] if len(found) == 1 else (found or None)
