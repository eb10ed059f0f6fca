"""The one recorder of calls: what an author passes is bound to the row of its op, checked, and a draft.

Rows of the catalog are here, those of ONNX in `onnx_ops`; `record_call` is the same for both, and for methods
that are made of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bb_edge.ir import types
from bb_edge.ir.opsets import AttrKind, OpDef, OpKind, Port, Ready
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.author_lines import author_line, authoring_error
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.literals import KINDS, SAYS_WHEN, as_attribute, check_names, lift, type_hint
from bb_host.dsl.misuse import misused
from bb_host.dsl.names import snake
from bb_host.dsl.one_element import refuse_several
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.relations import TYPED_BY_NUMBERS
from bb_host.dsl.remarks import on_call
from bb_host.dsl.rows import Attrs, Formal, Given, Row
from bb_host.dsl.shapes import CATALOG_SHAPES, ONE_CONDITION
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ArityError, AttributeValueError, ValueTypeError
from bb_host.ir.facts import NO_FACTS, OpFacts

_CONDITIONAL = frozenset({"When", "StopRounds"})
"""Ops of one input, which is one BOOL."""

_SINGLE_PORTS = frozenset({"DeadlineMatch"})
"""Ops whose any-ready ports take one value each."""


class CatalogRow(Row):
    """A row of the catalog, or of the opset that a component declares."""

    def __init__(self, op: OpDef) -> None:
        super().__init__(op.name, op.domain, [_formal(op, port) for port in op.inputs], op.attrs)
        self.op = op
        self.yields_nothing = bool(op.outputs) and all(
            port.ready is Ready.OPTIONAL and port.type == types.TRIGGER.id for port in op.outputs
        )
        self.outputs = [
            (
                port,
                None
                if port.is_variable
                else ValueType(node_of(port), CATALOG_SHAPES.get((op.name, port.name))),
            )
            for port in op.outputs
        ]
        only = self.outputs[0] if len(self.outputs) == 1 and not op.relation else None
        self.only = None if only is None or only[0].variadic else only[1]
        """The type of the one output, where nothing else says it."""

    def take(self, graph: Recorder, given: Given) -> list[Output | None]:
        found: list[Output | None] = []
        for formal, value in given:
            if value is None and not formal.variadic:
                found.append(None)
                continue
            node = formal.node
            if not isinstance(value, Output):
                if not formal.is_tensor:
                    self._refuse(graph, formal, value, None)
                value = lift(graph, value, node if node.elem_type is not None else None)
            elif value.graph is not graph:
                graph.own(value)
            own = value.type.node
            if own is not node and own.id not in formal.fits:
                if not types.compatible(own, node):
                    self._refuse(graph, formal, value, own)
                formal.fits.add(own.id)
            found.append(value)
        if self.name in _CONDITIONAL and (condition := found[0]) is not None:
            what, known = f"{self.name}: the condition", condition.shape
            refuse_several(graph, what, known, repr(condition), ONE_CONDITION)
        return found

    def _refuse(self, graph: Recorder, formal: Formal, value: object, own: TypeNode | None) -> None:
        raise graph.error(
            ValueTypeError,
            f"{self.name}: input {formal.name} expects a {formal.node}, got {value!r}",
            SAYS_WHEN if own is None and hasattr(value, "after_values") else type_hint(formal.node, own),
        )

    def results(
        self, graph: Recorder, given: Given, inputs: Sequence[Output | None], attrs: Attrs, count: int | None
    ) -> list[tuple[str, ValueType]]:
        if self.yields_nothing:
            return []
        if self.only is not None:
            return [(self.hint, self.only)]
        relation = self.op.relation
        if relation == "same_each":
            return [(value.hint, value.type) for value in inputs if value is not None]
        variables = self._variables(given, inputs)
        found: list[tuple[str, ValueType]] = []
        for port, known in self.outputs:
            times = self._fanout(graph, attrs) if port.variadic else 1
            if relation in TYPED_BY_NUMBERS:
                type_ = TYPED_BY_NUMBERS[relation](graph, self.name, inputs, attrs)
            else:
                type_ = variables.get(port.type, ValueType(types.ANY)) if known is None else known
            plain = len(self.outputs) == 1 or self.hint.endswith(port.name)
            name = self.hint if plain else f"{self.hint}_{port.name}"
            found += [(name if times == 1 else f"{name}_{i}", type_) for i in range(times)]
        return found

    def _variables(self, given: Given, inputs: Sequence[Output | None]) -> dict[str, ValueType]:
        """The type that each type variable stands for."""
        found: dict[str, ValueType] = {}
        for (formal, _), value in zip(given, inputs, strict=True):
            if formal.variable and value is not None:
                known = found.setdefault(formal.variable, value.type)
                if known != value.type:
                    found[formal.variable] = ValueType(types.join(known.node, value.type.node))
        return found

    def _fanout(self, graph: Recorder, attrs: Attrs) -> int:
        count = attrs.get("fanout", 1)
        if isinstance(count, int) and count < 1:
            raise graph.error(
                AttributeValueError,
                f"{self.name}: fanout must be at least 1, not {count}",
                "say how many copies are read",
            )
        return count if isinstance(count, int) else 1


def node_of(port: Port) -> TypeNode:
    """The type of a port; anything for a type variable."""
    node = types.ANY if port.is_variable else types.by_id(port.type)
    assert node is not None, port.type
    return node


def _formal(op: OpDef, port: Port) -> Formal:
    node = node_of(port)
    optional = port.ready is Ready.OPTIONAL
    return Formal(
        port.name,
        f"{port.name}: {port.type}",
        node,
        port.type if port.is_variable else "",
        optional,
        port.variadic and op.name not in _SINGLE_PORTS,
        not optional,
        port.is_variable or types.compatible(node, types.TENSOR),
    )


def record_call(
    graph: Recorder,
    row: Row,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    after: After = UNORDERED,
    facts: OpFacts = NO_FACTS,
    count: int | None = None,
) -> list[Output]:
    """Records an op; its outputs. One that yields nothing but that it has run has none.

    `args` are inputs in order (None leaves an optional one out); `kwargs` are attributes, or inputs by name.
    Raises ArityError, AttributeValueError, ValueTypeError at the author's line.
    """
    if kwargs:
        if not kwargs.keys() <= row.known:
            check_names(graph, row.name, kwargs, row.names)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
    given = _given(graph, row, args, kwargs)
    inputs = row.take(graph, given)
    attrs = _attrs(graph, row, kwargs) if row.attrs else {}
    results = row.results(graph, given, inputs, attrs, count)
    line = author_line() if results else ("", 0)
    outputs = [Output(graph, type_, hint, line) for hint, type_ in results]
    draft = Draft(row.name, row.domain, inputs, outputs, attrs, facts)
    found = graph.put(draft, after)
    if row.remarked:
        on_call(graph, draft)
    return found


def _given(graph: Recorder, row: Row, args: Sequence[object], kwargs: Mapping[str, object]) -> Given:
    """What was passed, input by input. ArityError for too much or too little of it."""
    count = len(args)
    if count > len(row.inputs) and not row.variadic:
        raise graph.error(ArityError, *row.too_many(count))
    found: Given = []
    for i, formal in enumerate(row.inputs):
        named = kwargs.get(formal.name) if kwargs and formal.name not in row.attr_names else None
        if formal.variadic:
            rest = args[i:]
            if not rest and named is not None:
                rest = named if isinstance(named, (list, tuple)) else (named,)
            if row.takes_lists and len(rest) == 1 and isinstance(rest[0], (list, tuple)):
                rest = rest[0]
            if not rest and formal.least:
                raise graph.error(
                    ArityError,
                    f"{row.name} wants at least one value for {formal.name}",
                    "pass them one by one" + (", or as a list" if row.takes_lists else ""),
                )
            found += [(formal, value) for value in rest]
            break
        value = args[i] if i < count else named
        if named is not None and i < count:
            raise graph.error(
                ArityError, f"{row.name}: input {formal.name} is given twice", "pass it in order or by name"
            )
        if value is None and not formal.optional:
            raise graph.error(
                ArityError, f"{row.name} wants an input {formal.spoken}", "pass it in order or by name"
            )
        found.append((formal, value))
    return found


def _attrs(graph: Recorder, row: Row, kwargs: Mapping[str, object]) -> Attrs:
    found: Attrs = {}
    for attr in row.attrs:
        value: Any = kwargs.get(attr.name)
        if value is None:
            if attr.required:
                raise graph.error(
                    AttributeValueError,
                    f"{row.name} wants an attribute {attr.name}",
                    f"say {attr.name}=…, {KINDS.get(attr.kind, 'a value')}",
                )
            continue
        if isinstance(value, SubgraphDraft):
            found[attr.name] = value
            continue
        plain = attr.kind is AttrKind.STRING and type(value) is str and "<" not in value
        converted = value.encode() if plain else as_attribute(graph, row.name, attr.name, attr.kind, value)
        if not isinstance(attr.default, str) or converted != attr.default.encode():
            found[attr.name] = converted
    return found


@functools.lru_cache(maxsize=4096)  # the rows of the catalog, and those of components
def row_of(op: OpDef) -> CatalogRow:
    """The row of an op for recording."""
    return CatalogRow(op)


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


def returned(graph: Recorder, row: Row, found: list[Output]) -> Output | tuple[Output, ...] | Done | None:
    """What a call gives its author: the output, a tuple of several, or for none what `after=` takes."""
    if len(found) == 1:
        return found[0]
    if isinstance(row, CatalogRow) and row.yields_nothing:
        return Done(graph, graph.drafts[-1])
    return tuple(found) or None


# --- methods that are made of rows


Check = Callable[[Recorder, Row, "dict[str, object]"], None]
"""What is asked of the attributes before the op is recorded; it may replace them."""


Choice = Callable[[Recorder, "tuple[Any, ...]", "dict[str, object]"], "tuple[Row, tuple[Any, ...]]"]
"""Of the inputs and attributes that a call was given: which op it records, and the inputs of that."""


def slot_method(
    spoken: str, row: Row, signature: str | None = None, choose: Choice | None = None
) -> Callable[..., Any]:
    """The method of a slot that records an op of its role: `slot.forward(g, input, after=…)`.

    `signature` is that of the row unless it is given.
    """
    bind = binder(signature_of(row) if signature is None else signature, row, ("self", "g"))

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            slot, graph, inputs, attrs, after = bind(*args, **kwargs)
        except TypeError as error:
            raise misused(bind, spoken, kwargs, error) from None
        if not isinstance(graph, Recorder):
            raise no_graph(slot.name, graph)
        facts = graph.slot_facts.get(slot)
        if facts is None:
            facts = slot.use_in(graph)
        chosen, inputs = (row, inputs) if choose is None else choose(graph, inputs, attrs)
        found = record_call(graph, chosen, inputs, attrs, after=after, facts=facts)
        return found[0] if len(found) == 1 else returned(graph, row, found)

    return _named(method, bind, spoken, row)


def no_graph(slot: str, given: object) -> ValueTypeError:
    """The error for a call of a slot whose first argument is not a graph."""
    return authoring_error(
        ValueTypeError,
        f"slot {slot!r}: the first argument is the graph, not {given!r}",
        f"write self.{slot}.…(g, …)",
    )


def graph_method(spoken: str, row: Row, signature: str, check: Check | None = None) -> Callable[..., Any]:
    """The method of a namespace, which has `_graph` and `_facts`: `g.onnx.softmax(x, axis=1)`."""
    bind = binder(signature, row, ("self",))

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            space, inputs, attrs, after = bind(*args, **kwargs)
        except TypeError as error:
            raise misused(bind, spoken, kwargs, error) from None
        graph = space._graph
        if check is not None:
            check(graph, row, attrs)
        found = record_call(graph, row, inputs, attrs, after=after, facts=space._facts)
        return found[0] if len(found) == 1 else returned(graph, row, found)

    return _named(method, bind, spoken, row)


def _named(method: Callable[..., Any], bind: Callable[..., Any], spoken: str, row: Row) -> Callable[..., Any]:
    method.__qualname__, method.__name__ = spoken, spoken.rpartition(".")[2]
    method.__doc__ = row.op.doc if isinstance(row, CatalogRow) else None
    method.__dict__.update(__wrapped__=bind, row=row)  # the signature is that of `bind`
    return method


_SHORTENED = {"noop": "noop_with_empty_axes"}
"""Parameters that are called otherwise than their attribute."""


def signature_of(row: Row) -> str:
    """The inputs of a row, then its attributes: `query, k`."""
    given = [f"{f.name}=None" if f.optional else f"*{f.name}" if f.variadic else f.name for f in row.inputs]
    given += [a.name if a.required else f"{a.name}={a.default!r}" for a in row.attrs]
    return ", ".join(given)


def binder(signature: str, row: Row, owners: Sequence[str]) -> Callable[..., Any]:
    """A function of `owners`, the parameters of a signature and `after=`, which gives the owners, the inputs
    in order, the attributes by name, and `after`. Python itself says what a call of it lacks.

    Parameters are called as the row's attributes, apart from case and underscores, or are inputs. Ops that
    start executions take no `after=`.
    """
    params = [param.strip() for param in signature.split(",") if param.strip()]
    attrs = {attr.replace("_", "").lower(): attr for attr in row.attr_names}
    inputs, named, rest = [], [], ""
    for param in params:
        name = param.partition("=")[0]
        plain = _SHORTENED.get(name, name).replace("_", "").lower()
        if name == "*":
            continue
        if name.startswith("**"):
            rest = name
        elif plain in attrs:
            named.append(f"{attrs[plain]!r}: {name}")
        else:
            inputs.append(name)
    params = [param for param in params if param != rest]
    if not (isinstance(row, CatalogRow) and row.op.kind is OpKind.ENTRY):
        starred = any(param.startswith("*") for param in params)
        params += [*([] if starred else ["*"]), "after=UNORDERED"]
        after = "after"
    else:
        after = "UNORDERED"
    taken = ", ".join([*owners, *params, *([rest] if rest else [])])
    values = (
        f"({''.join(f'{name}, ' for name in inputs)}), {{{', '.join([*named, rest] if rest else named)}}}"
    )
    text = f"lambda {taken}: ({', '.join(owners)}, {values}, {after})"
    found: Callable[..., Any] = eval(compile(text, __file__, "eval"), {"UNORDERED": UNORDERED})
    return found
