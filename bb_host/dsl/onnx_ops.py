"""ONNX operators as calls, checked against ONNX's own schemas: the required subset and all others alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bb_edge.ir import keys, types
from bb_edge.ir.opsets import onnx as onnx_catalog
from bb_edge.ir.opsets.wire import ONNX_OPS_OVER_PEERS
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.author_lines import author_line
from bb_host.dsl.drafts import Draft, SubgraphDraft
from bb_host.dsl.kernel_fit import MOST_REMEMBERED, Misfit, fit, question
from bb_host.dsl.literals import (
    as_array,
    as_attribute,
    check_names,
    element_of,
    no_bfloat16,
    type_hint,
)
from bb_host.dsl.names import snake
from bb_host.dsl.onnx_schemas import Formal, Schema, onnx_name, operator_names, schema_of
from bb_host.dsl.output import Output
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.shapes import Shape, check_axes, onnx_shape
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ArityError, AttributeValueError, UnknownOp, ValueTypeError
from bb_host.program import AttrValue

_OTHER_SPELLINGS = ("dot", "if_", "matmul", "ones", "op", "scatter", "zeros")
"""Methods of `g.onnx` that are spelled unlike the operators that they record."""


def unknown_operator(graph: Recorder, name: str) -> UnknownOp:
    """The error for a name that is no operator of the recorded opset."""
    near = suggestion(name, [*_OTHER_SPELLINGS, *map(snake, operator_names().values())], "")
    hint = near if near.startswith("did") else "see onnx.ai/onnx/operators"
    return graph.error(UnknownOp, f"ONNX {onnx_catalog.VERSION} has no operator {name!r}", hint)


def call_onnx(
    graph: Recorder,
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    outputs: int | None = None,
    after: After = UNORDERED,
    meta: Mapping[str, str] | None = None,
) -> Output | tuple[Output, ...]:
    """Records one ONNX operator of the recorded opset.

    A keyword is an attribute or an input by name. Numbers, lists and arrays become constants: I64 where the
    operator wants that, else of the element type of the inputs that must agree with it. `outputs` asks for
    more than the operator's required ones.
    """
    op_type = onnx_name(name)
    schema = None if op_type is None else schema_of(op_type)
    if schema is None:
        raise unknown_operator(graph, name)
    if kwargs:
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        inputs_alone = [f.name for f in schema.inputs if f.name not in schema.attrs]
        check_names(graph, schema.name, kwargs, [*schema.attrs, *inputs_alone])
    bound = _bind(graph, schema, args, kwargs)
    attrs = _attrs(graph, schema, kwargs) if kwargs or schema.required else {}
    if attrs and types.TENSOR_BF16.elem_type in (attrs.get("to"), attrs.get("dtype")):
        raise no_bfloat16(graph, schema.name)
    results = _results(graph, schema, bound, attrs, outputs)
    inputs = [value for _, value in bound]
    while inputs and inputs[-1] is None:
        inputs.pop()
    draft = Draft(schema.name, keys.ONNX_DOMAIN, inputs, list(results), attrs, dict(meta or {}))
    gates = [] if after is UNORDERED else graph.order(draft, graph.after_values(after))
    graph.add(draft)
    if gates:
        results = [graph.gated(value, gates) for value in results]
    return results[0] if len(results) == 1 else tuple(results)


def record_one(graph: Recorder, name: str, args: Sequence[object], **attrs: object) -> Output:
    """Records an operator with one output."""
    found = call_onnx(graph, name, args, attrs)
    assert isinstance(found, Output)
    return found


def _bind(
    graph: Recorder, schema: Schema, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[Formal, Output | None]]:
    given: list[tuple[Formal, object]] = []
    formals = schema.inputs
    if len(args) > len(formals) and not (formals and formals[-1].variadic):
        raise graph.error(
            ArityError,
            f"{schema.name} takes at most {len(formals)} inputs, not {len(args)}",
            f"its inputs: {', '.join(f.name for f in formals)}; attributes go by name",
        )
    for i, formal in enumerate(formals):
        named = kwargs.get(formal.name) if formal.name not in schema.attrs else None
        if formal.variadic:
            rest = args[i:] or (
                named if isinstance(named, (list, tuple)) else () if named is None else (named,)
            )
            if len(rest) == 1 and isinstance(rest[0], (list, tuple)):
                rest = rest[0]
            if not rest and formal.least:
                raise graph.error(
                    ArityError,
                    f"{schema.name} wants at least one value for {formal.name}",
                    "pass them one by one, or as a list",
                )
            given += [(formal, value) for value in rest]
            break
        if i < len(args) and named is not None:
            raise graph.error(
                ArityError,
                f"{schema.name}: input {formal.name} is given twice",
                "pass it in order or by name",
            )
        value = args[i] if i < len(args) else named
        if value is None and not formal.optional:
            raise graph.error(
                ArityError, f"{schema.name} wants an input {formal.name}", "pass it in order or by name"
            )
        given.append((formal, value))
    elements = _elements(graph, schema, given)
    return [(f, None if v is None else _input(graph, schema, f, v, elements)) for f, v in given]


def _elements(graph: Recorder, schema: Schema, given: Sequence[tuple[Formal, object]]) -> dict[str, TypeNode]:
    """The element type of each type parameter, from the values that have one. ValueTypeError where two
    differ.
    """
    found: dict[str, TypeNode] = {}
    for formal, value in given:
        if not isinstance(value, (Output, np.ndarray, np.generic)) or not formal.homogeneous:
            continue
        node = value.node if isinstance(value, Output) else element_of(graph, value)
        if node.elem_type is None or formal.node is not None:
            continue
        known = found.setdefault(formal.type_str, node)
        if known is not node:
            raise graph.error(
                ValueTypeError,
                f"{schema.name} wants one element type, not {known} and {node}",
                _cast_hint([v for _, v in given]),
            )
    return found


def _cast_hint(given: Sequence[object]) -> str:
    """What to do where element types differ: NumPy's values are converted before they are recorded."""
    arrays = [v for v in given if isinstance(v, (np.ndarray, np.generic))]
    if not arrays:
        return "cast one side with g.onnx.cast(x, to=…)"
    if arrays[0].ndim:
        return "convert the array: a.astype(np.float32), or another element type of the value"
    return "a plain number takes the value's element type: float(number), int(number)"


def _input(
    graph: Recorder, schema: Schema, formal: Formal, value: object, elements: Mapping[str, TypeNode]
) -> Output:
    if not isinstance(value, Output):
        if formal.node is types.TENSOR_BOOL and schema.name in CONDITIONAL:
            refuse_constant_condition(graph, schema.name, value)
        wanted = formal.node or elements.get(formal.type_str)
        if wanted is None and schema.name in _FLOATING and formal.homogeneous:
            wanted = None if np.asarray(value).dtype.kind == "b" else types.TENSOR_F32
        return graph.tensor_constant(as_array(graph, value, wanted))
    value = graph.own(value)
    if value.node is types.PEER_ID_VEC and formal.node is None and _passes_peers(schema, formal):
        return value
    if value.node is types.TENSOR_BF16:
        raise no_bfloat16(graph, schema.name)
    node = types.TENSOR if formal.node is None else formal.node
    if not types.compatible(value.node, node) and not formal.type_str.startswith(("seq", "optional")):
        raise graph.error(
            ValueTypeError,
            f"{schema.name}: input {formal.name} expects a {node}, got {value!r}",
            type_hint(node, value.node) or "ONNX operators work on tensors",
        )
    return value


CONDITIONAL = frozenset({"Where", "If"})


def refuse_constant_condition(graph: Recorder, op: str, value: object) -> None:
    """ValueTypeError for one of Python's bools as a condition: it would choose once, at recording."""
    if isinstance(value, (bool, np.bool_)):
        raise graph.error(
            ValueTypeError,
            f"{op}: the condition is Python's {bool(value)}, not a recorded value",
            "compare values (x > 0, x == y), or choose with Python's own `if`; g.constant(True) insists",
        )


def _passes_peers(schema: Schema, formal: Formal) -> bool:
    """Whether a list of peers may stand at this input."""
    return schema.name in ONNX_OPS_OVER_PEERS and formal is schema.inputs[0]


_FLOATING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"}
)
"""Ops where a bare number beside a tensor of unknown element type is meant to be F32, 32 as well as 32.0."""


def _attrs(
    graph: Recorder, schema: Schema, kwargs: Mapping[str, object]
) -> dict[str, AttrValue | SubgraphDraft]:
    found: dict[str, AttrValue | SubgraphDraft] = {}
    for name, kind in schema.attrs.items():
        if name not in kwargs:
            if name in schema.required:
                raise graph.error(
                    AttributeValueError, f"{schema.name} wants an attribute {name}", f"say {name}=…"
                )
            continue
        value = kwargs[name]
        found[name] = (
            value if isinstance(value, SubgraphDraft) else as_attribute(graph, schema.name, name, kind, value)
        )
    return found


def _results(
    graph: Recorder,
    schema: Schema,
    bound: Sequence[tuple[Formal, Output | None]],
    attrs: Mapping[str, object],
    outputs: int | None,
) -> list[Output]:
    formals = schema.outputs
    count = _output_count(graph, schema, bound, attrs) if outputs is None else outputs
    if count < 1 or (count > len(formals) and not formals[-1].variadic):
        raise graph.error(
            ArityError,
            f"{schema.name} has at most {len(formals)} outputs, not {count}",
            f"its outputs: {', '.join(f.name for f in formals)}",
        )
    if count < schema.fewest:
        raise graph.error(
            ArityError,
            f"{schema.name} has at least {schema.fewest} outputs, not {count}",
            f"its outputs: {', '.join(f.name for f in formals)}; take one of the tuple",
        )
    shapes = _shapes(graph, schema, bound, attrs, count)
    hint, line = schema.hint, author_line()
    found = []
    for i in range(count):
        formal = formals[min(i, len(formals) - 1)]
        node = _result_node(schema, formal, bound, attrs)
        name = hint if count == 1 else f"{hint}_{formal.name}" if not formal.variadic else f"{hint}_{i}"
        shape = shapes[i] if i < len(shapes) and types.is_subtype(node, types.TENSOR) else None
        found.append(graph.fresh(name, ValueType(node, shape), line=line))
    return found


def _output_count(
    graph: Recorder,
    schema: Schema,
    bound: Sequence[tuple[Formal, Output | None]],
    attrs: Mapping[str, object],
) -> int:
    if schema.name == "Split":
        split = _constants(graph, bound)[1] if len(bound) > 1 and bound[1][1] is not None else None
        number = attrs.get("num_outputs") if split is None else split.size
        if not isinstance(number, int):
            raise graph.error(
                ArityError,
                "Split wants num_outputs= or constant sizes",
                "or say how many parts with outputs=",
            )
        return number
    return schema.usual


def _result_node(
    schema: Schema,
    formal: Formal,
    bound: Sequence[tuple[Formal, Output | None]],
    attrs: Mapping[str, object],
) -> TypeNode:
    if formal.node is not None:
        return formal.node
    if schema.name in ("Cast", "RandomNormal", "RandomUniform", "EyeLike", "Multinomial"):
        elem = attrs.get("to", attrs.get("dtype"))
        if isinstance(elem, int):
            return types.tensor_of_elem(elem) or types.TENSOR
    value = attrs.get("value")
    if isinstance(value, np.ndarray):
        return types.tensor_type(value.dtype)
    if formal.homogeneous and formal.is_tensor:
        for other, given in bound:
            if given is not None and other.type_str == formal.type_str and other.homogeneous:
                if types.is_subtype(given.node, types.TENSOR) or given.node is types.PEER_ID_VEC:
                    return given.node
                return types.TENSOR
        return types.TENSOR
    return types.ANY


def _constants(graph: Recorder, bound: Sequence[tuple[Formal, Output | None]]) -> list[Any]:
    """The arrays of inputs that are constants, None for the others."""
    return [None if value is None else graph.constant_value(value) for _, value in bound]


_shapes_found: dict[tuple[object, ...], tuple[Shape, ...]] = {}


def _shapes(
    graph: Recorder,
    schema: Schema,
    bound: Sequence[tuple[Formal, Output | None]],
    attrs: Mapping[str, object],
    count: int,
) -> Sequence[Shape]:
    """The shapes of the results, as far as they are known. ValueTypeError where sizes do not fit."""
    value = attrs.get("value")
    if schema.name == "Constant":
        return [tuple(value.shape) if isinstance(value, np.ndarray) else None]
    if not bound:
        return ()
    given = [None if v is None else v.type for _, v in bound]
    known = _constants(graph, bound)
    asked = question(schema.name, attrs, given, known, count)
    again = None if asked is None else _shapes_found.get(asked)
    if again is not None:
        return again
    shapes = [None if t is None else t.shape for t in given]
    try:
        check_axes(schema.name, shapes, attrs, known)
        first = onnx_shape(schema.name, shapes, attrs, known)
        fitted = fit(schema.name, onnx_catalog.VERSION, attrs, given, known, count)
    except ValueError as error:
        if isinstance(error, Misfit) and not error.universal:
            return ()  # another backend may take it: the compiler knows which one is bound
        raise graph.error(
            ValueTypeError, f"{schema.name}: {error}", "the shapes are " + _described(bound)
        ) from error
    found = (first,) if fitted is None else tuple(t.shape for t in fitted)
    if asked is not None and len(_shapes_found) < MOST_REMEMBERED:
        _shapes_found[asked] = found
    return found


def _described(bound: Sequence[tuple[Formal, Output | None]]) -> str:
    return ", ".join(f"{f.name} {v.type}" for f, v in bound if v is not None)
