"""Ops of the catalog's own domains as calls: arity, attributes and types checked against their row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets import OpDef, Port, Ready
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.author_lines import author_line
from bb_host.dsl.drafts import Draft
from bb_host.dsl.literals import KINDS, as_attribute, check_names, lift, type_hint
from bb_host.dsl.names import snake
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.remarks import on_call
from bb_host.dsl.shapes import CATALOG_SHAPES
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ArityError, AttributeValueError, UnknownOp, ValueTypeError
from bb_host.program import AttrValue

_SINGLE_PORTS = frozenset({"DeadlineMatch"})
"""Ops whose any-ready ports take one value each."""

Result = "Output | tuple[Output, ...] | None"


def find_op(graph: Recorder, domain: str, name: str) -> OpDef:
    """The row of an op, by its name or its spelling as a call. UnknownOp where there is none."""
    exact = opsets.lookup(domain, name)
    if exact is not None:
        return exact
    table = opsets.opset(domain)
    wanted = name.replace("_", "").replace(".", "").lower()
    for op_name, op in {} if table is None else table.ops.items():
        if op_name.replace(".", "").lower() == wanted:
            return op
    short = domain[len(keys.PREFIX) + 1 :] if domain.startswith(keys.PREFIX) else domain
    hint = suggestion(name, map(snake, () if table is None else table.ops), "it has ") or "it has none"
    raise graph.error(UnknownOp, f"{short} has no op {name!r}", hint)


def call_op(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    after: After = UNORDERED,
    meta: Mapping[str, str] | None = None,
    hint: str = "",
) -> tuple[Output, ...]:
    """Records an op of the catalog; its outputs as a tuple.

    `args` are inputs in order (None leaves an optional one out); `kwargs` are attributes, or inputs by name.
    An op that yields nothing but that it has run has no outputs here (`call_done`).
    Raises ArityError, AttributeValueError, ValueTypeError at the author's line.
    """
    return tuple(_record(graph, op, args, kwargs, after, meta, hint).outputs)


def call_done(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    after: After = UNORDERED,
) -> Done:
    """The same for an op that yields no value: what it returns goes into `after=` of another op."""
    return Done(graph, _record(graph, op, args, kwargs, after, None, ""))


class Done:
    """That an op without a value has run: `stashed = g.hold_stash(…)`, then `after=stashed`."""

    def __init__(self, graph: Recorder, draft: Draft) -> None:
        self._graph = graph
        self._draft = draft

    def __repr__(self) -> str:
        return f"<{snake(self._draft.op_type)}: done>"

    def after_values(self) -> tuple[Output, ...]:
        """The op's trigger, recorded when it is first asked for."""
        if not self._draft.outputs:
            hint = f"{snake(self._draft.op_type)}_done"
            self._draft.outputs.append(self._graph.fresh(hint, ValueType(types.TRIGGER)))
        return tuple(self._draft.outputs)


def _record(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    after: After,
    meta: Mapping[str, str] | None,
    hint: str,
) -> Draft:
    variables: dict[str, ValueType] = {}
    inputs = _bind_inputs(graph, op, args, kwargs, variables)
    attrs = _bind_attrs(graph, op, kwargs) if op.attrs else {}
    outputs = _outputs(graph, op, inputs, attrs, variables, hint)
    draft = Draft(op.name, op.domain, inputs, outputs, dict(attrs), dict(meta or {}))
    if after is not UNORDERED:
        gates = graph.order(draft, graph.after_values(after))
        assert not gates
    while draft.inputs and draft.inputs[-1] is None:
        draft.inputs.pop()
    graph.add(draft)
    on_call(graph, draft)
    return draft


def yields_nothing(op: OpDef) -> bool:
    """Whether the op's only output says that it has run."""
    for port in op.outputs:
        if port.ready is not Ready.OPTIONAL or port.type != types.TRIGGER.id:
            return False
    return bool(op.outputs)


def _bind_inputs(
    graph: Recorder,
    op: OpDef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    variables: dict[str, ValueType],
) -> list[Output | None]:
    ports = op.inputs
    attr_names = [a.name for a in op.attrs]
    if kwargs:
        named = [*attr_names, *(p.name for p in ports if p.name not in attr_names)]
        check_names(graph, op.name, kwargs, named)
    variadic = None
    for port in ports:
        if port.variadic and op.name not in _SINGLE_PORTS:
            variadic = port
            break
    if variadic is None and len(args) > len(ports):
        hint = f"its inputs: {', '.join(p.name for p in ports) or 'none'}; attributes go by name"
        raise graph.error(ArityError, f"{op.name} takes {_count(len(ports), 'input')}, not {len(args)}", hint)
    found: list[Output | None] = []
    for i, port in enumerate(ports):
        if port is variadic:
            rest = args[i:]
            if not rest and port.name in kwargs:
                given = kwargs[port.name]
                rest = given if isinstance(given, (list, tuple)) else (given,)
            if not rest and port.ready is not Ready.OPTIONAL:
                raise graph.error(
                    ArityError,
                    f"{op.name} wants at least one value for {port.name}",
                    "pass them one by one",
                )
            found += [_bind(graph, op, port, value, variables) for value in rest]
            break
        value = args[i] if i < len(args) else kwargs.get(port.name) if port.name not in attr_names else None
        if i < len(args) and port.name in kwargs and port.name not in attr_names:
            raise graph.error(
                ArityError, f"{op.name}: input {port.name} is given twice", "pass it in order or by name"
            )
        if value is None:
            if port.ready is not Ready.OPTIONAL:
                raise graph.error(
                    ArityError,
                    f"{op.name} wants an input {port.name}: {port.type}",
                    "pass it in order or by name",
                )
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
                type_hint(node),
            )
        number = lift(graph, value, node if node.elem_type is not None else None)
        value = number
    value = graph.own(value)
    if not types.compatible(value.node, node):
        raise graph.error(
            ValueTypeError,
            f"{op.name}: input {port.name} expects a {node}, got {value!r}",
            type_hint(node, value.node),
        )
    if port.is_variable:
        known = variables.get(port.type)
        variables[port.type] = value.type if known is None else _join(known, value.type)
    return value


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
                raise graph.error(
                    AttributeValueError,
                    f"{op.name} wants an attribute {attr.name}",
                    f"say {attr.name}=…, {KINDS.get(attr.kind, 'a value')}",
                )
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
    if yields_nothing(op):
        return []
    line = author_line()
    if op.relation == "same_each":
        return [graph.fresh(value.hint, value.type, line=line) for value in inputs if value is not None]
    found: list[Output] = []
    hint = hint or snake(op.name)
    for port in op.outputs:
        count = 1
        if port.variadic:
            fanout = attrs.get("fanout", 1)
            count = fanout if isinstance(fanout, int) else 1
            if count < 1:
                raise graph.error(
                    AttributeValueError,
                    f"{op.name}: fanout must be at least 1, not {count}",
                    "say how many copies are read",
                )
        for i in range(count):
            if op.relation == "constant":
                value_type = _constant_type(graph, attrs["value"])
            elif op.relation in _NUMBER_TYPES:
                value_type = _NUMBER_TYPES[op.relation](graph, op, inputs, attrs)
            elif port.is_variable:
                value_type = variables.get(port.type, ValueType(types.ANY))
            else:
                value_type = ValueType(_node(port.type), CATALOG_SHAPES.get((op.name, port.name)))
            name = hint if len(op.outputs) == 1 or hint.endswith(port.name) else f"{hint}_{port.name}"
            found.append(graph.fresh(name if count == 1 else f"{name}_{i}", value_type, line=line))
    return found


def number_type(graph: Recorder, source: Output) -> TypeNode:
    """The tensor that holds the number of a scalar, timestamp, …; ValueTypeError where it is no number."""
    found = types.NUMBERS.get(source.node)
    if found is None:
        hint = f"it takes: {', '.join(node.id for node in types.NUMBERS)}"
        if source.node is types.SCALAR:
            hint = "its element type is not known here: g.as_scalar(g.onnx.cast(x, to='F32'))"
        elif types.is_subtype(source.node, types.TENSOR):
            hint = "a tensor is a number already"
        raise graph.error(
            ValueTypeError, f"AsTensor: value expects a number that is no tensor, got {source!r}", hint
        )
    return found


def _tensor_of_number(
    graph: Recorder, op: OpDef, inputs: Sequence[Output | None], attrs: Mapping[str, AttrValue]
) -> ValueType:
    source = inputs[0]
    assert source is not None
    wanted = number_type(graph, source)
    if attrs.get("to") != wanted.elem_type:
        raise graph.error(
            AttributeValueError,
            f"{op.name}: a {source.node} is a {wanted}, not to={attrs.get('to')!r}",
            "leave it to g.as_tensor(…)",
        )
    return ValueType(wanted, ())


def _scalar_of_tensor(
    graph: Recorder, op: OpDef, inputs: Sequence[Output | None], attrs: Mapping[str, AttrValue]
) -> ValueType:
    source = inputs[0]
    assert source is not None
    if source.shape is not None and any(isinstance(d, int) and d != 1 for d in source.shape):
        raise graph.error(
            ValueTypeError,
            f"{op.name}: value expects one element, got {source!r}",
            "pick or reduce first: x[0], g.onnx.reduce_mean(x, keepdims=0)",
        )
    if source.node.elem_type is None:
        return ValueType(types.SCALAR)
    scalar = next(
        (s for s, t in types.NUMBERS.items() if t is source.node and s.parent is types.SCALAR), None
    )
    if scalar is None:
        raise graph.error(
            ValueTypeError,
            f"{op.name}: there is no scalar of {source.node}",
            "cast it first: g.onnx.cast(x, to='F64'); scalars are F32, F64, F16, U8, I32",
        )
    return ValueType(scalar)


_NUMBER_TYPES = {"as_tensor": _tensor_of_number, "as_scalar": _scalar_of_tensor}


def _constant_type(graph: Recorder, value: AttrValue) -> ValueType:
    if isinstance(value, bytes):
        return ValueType(types.BYTES)
    array = as_attribute(graph, "Constant", "value", opsets.AttrKind.TENSOR, value)
    return ValueType(types.tensor_type(getattr(array, "dtype", None)), tuple(getattr(array, "shape", ())))


class Namespace:
    """The ops of one domain as methods: `g.syscall.after(trigger, delay_ns=10 * MS)`.

    Inputs come first, in order, attributes by name; `after=` orders. An op with one output returns it, one
    with several a tuple, one with none what `after=` takes.
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
        self, *args: object, after: After = UNORDERED, **kwargs: object
    ) -> Output | tuple[Output, ...] | Done | None:
        if yields_nothing(self._op):
            return call_done(self._graph, self._op, args, kwargs, after=after)
        found = call_op(self._graph, self._op, args, kwargs, after=after)
        return found[0] if len(found) == 1 else (found or None)
