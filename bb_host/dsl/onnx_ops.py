"""ONNX operators as calls, checked against ONNX's own schemas: the required subset and all others alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx.defs

from bb_edge.ir import keys, types
from bb_edge.ir.opsets import REQUIRED, Attr, AttrKind
from bb_edge.ir.opsets import onnx as onnx_catalog
from bb_edge.ir.opsets.wire import ONNX_OPS_OVER_PEERS
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.calls import record_call
from bb_host.dsl.kernel_fit import MOST_REMEMBERED, Misfit, fit, question
from bb_host.dsl.literals import as_array, element_of, no_bfloat16, type_hint
from bb_host.dsl.names import snake
from bb_host.dsl.onnx_names import onnx_name, operator_names
from bb_host.dsl.output import Output
from bb_host.dsl.received import Received
from bb_host.dsl.recorder import Recorder
from bb_host.dsl.rows import Attrs, Formal, Given, Row
from bb_host.dsl.shapes import Shape, check_axes, onnx_shape
from bb_host.dsl.tape import UNORDERED, After
from bb_host.errors import ArityError, UnknownOp, ValueTypeError
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.operator_kinds import LISTS
from bb_host.ir.program import Array

_ELEMENTS = {
    "float": "F32",
    "double": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    **{
        f"{sign}int{bits}": f"{letter}{bits}"
        for sign, letter in (("", "I"), ("u", "U"))
        for bits in (8, 16, 32, 64)
    },
    "bool": "BOOL",
}


def schema_type(type_str: str) -> TypeNode | None:
    """The type of `tensor(float)` and its like; None for what programs do not hold."""
    if type_str.startswith("tensor("):
        return types.by_id(f"Tensor<{_ELEMENTS.get(type_str[7:-1], '')}>")
    return None


_FLOATING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"}
)
"""Ops where a bare number beside a tensor of unknown element type is meant to be F32, 32 as well as 32.0."""


CONDITIONAL = frozenset({"Where", "If"})

_REDUCING = {"Max": "reduce_max", "Mean": "reduce_mean", "Min": "reduce_min", "Sum": "reduce_sum"}
"""Operators that combine several values element by element, with those that go over the elements of one."""

_TYPED_BY_ATTRIBUTE = frozenset({"Cast", "RandomNormal", "RandomUniform", "EyeLike", "Multinomial"})


class OnnxRow(Row):
    """What one of ONNX's schemas says, as far as recording asks it."""

    takes_lists = True

    def __init__(self, schema: Any) -> None:
        # A type parameter with one type to choose from is not a parameter.
        only = {
            c.type_param_str: c.allowed_type_strs[0]
            for c in schema.type_constraints
            if len(c.allowed_type_strs) == 1
        }
        attrs = [
            Attr(name, _kind(a), REQUIRED if a.required else None) for name, a in schema.attributes.items()
        ]
        lists = LISTS.get(schema.name, ())
        inputs = [_formal(f, only, i in lists) for i, f in enumerate(schema.inputs)]
        super().__init__(schema.name, keys.ONNX_DOMAIN, inputs, attrs)
        self.outputs = [_formal(f, only) for f in schema.outputs]
        self.hint = snake(schema.name) if schema.name != "Constant" else "const"
        self.fewest = sum(not f.optional and not f.variadic for f in self.outputs)
        self.usual = max(1, sum(not f.optional for f in self.outputs))
        self.typed_by_attribute = schema.name in _TYPED_BY_ATTRIBUTE

    def too_many(self, count: int) -> tuple[str, str]:
        hint = f"its inputs: {', '.join(f.name for f in self.inputs)}; attributes go by name"
        return f"{self.name} takes at most {len(self.inputs)} inputs, not {count}", hint

    def take(self, graph: Recorder, given: Given) -> list[Output | None]:
        elements = self._elements(graph, given)
        found: list[Output | None] = []
        for formal, value in given:
            if isinstance(value, Output):
                if value.graph is not graph:
                    graph.own(value)
                if value.type.node.id not in formal.fits:
                    self._check(graph, formal, value)
                if formal.is_list and value._array is not None and value._array.ndim != 1:
                    value = graph.tensor_constant(self._list(graph, formal, value._array))
                found.append(value)
            else:
                found.append(None if value is None else self._constant(graph, formal, value, elements))
        return found

    def _elements(self, graph: Recorder, given: Given) -> dict[str, TypeNode]:
        """The element type of each type parameter, from the values that have one. ValueTypeError where two
        differ.
        """
        found: dict[str, TypeNode] = {}
        for formal, value in given:
            if not formal.variable:
                continue
            if isinstance(value, Output):
                node = value.type.node
            elif isinstance(value, (np.ndarray, np.generic)):
                node = element_of(graph, value)
            else:
                continue
            if node.elem_type is None:
                continue
            known = found.setdefault(formal.variable, node)
            if known is not node:
                raise graph.error(
                    ValueTypeError,
                    f"{self.name} wants one element type, not {known} and {node}",
                    _cast_hint([v for _, v in given]),
                )
        return found

    def _check(self, graph: Recorder, formal: Formal, value: Output) -> None:
        """ValueTypeError for a value of a type that may not stand at an input."""
        node = value.type.node
        if node is types.PEER_ID_VEC and formal.node is types.TENSOR and self._passes_peers(formal):
            return
        if node is types.TENSOR_BF16:
            raise no_bfloat16(graph, self.name)
        if formal.is_tensor and not types.compatible(node, formal.node):
            raise graph.error(
                ValueTypeError,
                f"{self.name}: input {formal.name} expects a {formal.node}, got {value!r}",
                type_hint(formal.node, node) or "ONNX operators work on tensors",
            )
        formal.fits.add(node.id)

    def _passes_peers(self, formal: Formal) -> bool:
        """Whether a list of peers may stand at this input: a few operators pick and join what they are given,
        whatever it is.
        """
        return self.name in ONNX_OPS_OVER_PEERS and formal is self.inputs[0]

    def _constant(
        self, graph: Recorder, formal: Formal, value: object, elements: Mapping[str, TypeNode]
    ) -> Output:
        fixed = formal.node is not types.TENSOR
        if formal.node is types.TENSOR_BOOL and self.name in CONDITIONAL:
            refuse_constant_condition(graph, self.name, value)
        wanted = formal.node if fixed else elements.get(formal.variable)
        if wanted is None and self.name in _FLOATING:
            wanted = None if np.asarray(value).dtype.kind == "b" else types.TENSOR_F32
        array = as_array(graph, value, wanted)
        return graph.tensor_constant(self._list(graph, formal, array) if formal.is_list else array)

    def _list(self, graph: Recorder, formal: Formal, array: Array) -> Array:
        """A number as a list of one. ValueTypeError for rows, by which NumPy means something else."""
        if array.ndim > 1:
            raise graph.error(
                ValueTypeError,
                f"{self.name}: {formal.name} is a list of numbers, got {array.tolist()}",
                "give all begins, then all ends: [top, left, bottom, right]"
                if formal.name == "pads"
                else "give numbers without rows: [0, 1]",
            )
        return np.atleast_1d(array)

    def results(
        self, graph: Recorder, given: Given, inputs: Sequence[Output | None], attrs: Attrs, count: int | None
    ) -> list[tuple[str, ValueType]]:
        if attrs and types.TENSOR_BF16.elem_type in (attrs.get("to"), attrs.get("dtype")):
            raise no_bfloat16(graph, self.name)
        if count is None:
            count = self.usual if self.name != "Split" else self._parts(graph, inputs, attrs)
        formals = self.outputs
        if count != self.usual:
            self._check_count(graph, count)
        shapes = self._shapes(graph, given, inputs, attrs, count) if inputs or attrs else ()
        found = []
        for i in range(count):
            formal = formals[min(i, len(formals) - 1)]
            node = self._node(formal, given, inputs, attrs)
            shape = shapes[i] if i < len(shapes) and (node.elem_type or _is_tensor(node)) else None
            name = self.hint
            if count > 1:
                name += f"_{i}" if formal.variadic else f"_{formal.name}"
            found.append((name, ValueType(node, shape)))
        return found

    def _check_count(self, graph: Recorder, count: int) -> None:
        """ArityError for more outputs than there are, or fewer than there must be."""
        formals = self.outputs
        named = f"its outputs: {', '.join(f.name for f in formals)}"
        if count < 1 or (count > len(formals) and not formals[-1].variadic):
            raise graph.error(
                ArityError, f"{self.name} has at most {len(formals)} outputs, not {count}", named
            )
        if count < self.fewest:
            raise graph.error(
                ArityError,
                f"{self.name} has at least {self.fewest} outputs, not {count}",
                f"{named}; take one of the tuple",
            )

    def _parts(self, graph: Recorder, inputs: Sequence[Output | None], attrs: Attrs) -> int:
        """How many parts a Split has, by constant sizes or by number."""
        split = inputs[1] if len(inputs) > 1 else None
        number = attrs.get("num_outputs")
        if split is not None:
            number = None if split._array is None else split._array.size
        if not isinstance(number, int):
            raise graph.error(
                ArityError,
                "Split wants num_outputs= or constant sizes",
                "or say how many parts with outputs=",
            )
        return number

    def _node(self, formal: Formal, given: Given, inputs: Sequence[Output | None], attrs: Attrs) -> TypeNode:
        """The type of an output, without its shape."""
        if formal.node is not types.TENSOR:
            return formal.node
        if attrs:
            elem = attrs.get("to", attrs.get("dtype"))
            if self.typed_by_attribute and isinstance(elem, int):
                return types.tensor_of_elem(elem) or types.TENSOR
            array = attrs.get("value")
            if isinstance(array, np.ndarray):
                return types.tensor_type(array.dtype)
        if not formal.variable or not formal.is_tensor:
            return types.ANY
        for (other, _), value in zip(given, inputs, strict=True):
            if value is not None and other.variable == formal.variable:
                node = value.type.node
                is_known = node.elem_type or node is types.PEER_ID_VEC or _is_tensor(node)
                return node if is_known else types.TENSOR
        return types.TENSOR

    def _shapes(
        self, graph: Recorder, given: Given, inputs: Sequence[Output | None], attrs: Attrs, count: int
    ) -> Sequence[Shape]:
        """The shapes of the results, as far as they are known. ValueTypeError where sizes do not fit."""
        value = attrs.get("value")
        if self.name == "Constant":
            return [tuple(value.shape) if isinstance(value, np.ndarray) else None]
        if not inputs:
            return ()
        kinds = [None if v is None else v.type for v in inputs]
        known = [None if v is None else v._array for v in inputs]
        asked: tuple[object, ...] | None
        if attrs or [array for array in known if array is not None]:
            asked = question(self.name, attrs, kinds, known, count)
        else:
            asked = (self.name, count, *[t and (t.node.elem_type, t.shape) for t in kinds])
        again = None if asked is None else graph.session.shapes.get(asked)
        if again is not None:
            return again
        shapes = [None if t is None else t.shape for t in kinds]
        try:
            check_axes(self.name, shapes, attrs, known)
            first = onnx_shape(self.name, shapes, attrs, known)
            fitted = fit(self.name, onnx_catalog.VERSION, attrs, kinds, known, count)
        except ValueError as error:
            if isinstance(error, Misfit) and not error.universal:
                return ()  # another backend may take it: the compiler knows which one is bound
            sizes = [f"{f.name} {v.type}" for (f, _), v in zip(given, inputs, strict=True) if v is not None]
            hint = f"the shapes are {', '.join(sizes)}"
            if any(isinstance(v, Received) for v in inputs):
                hint += "; each answer comes by itself, and r.responses stacks all of them"
            raise graph.error(ValueTypeError, f"{self.name}: {error}", hint) from error
        found = (first,) if fitted is None else tuple(t.shape for t in fitted)
        if asked is not None and len(graph.session.shapes) < MOST_REMEMBERED:
            graph.session.shapes[asked] = found
        return found


def _is_tensor(node: TypeNode) -> bool:
    return types.is_subtype(node, types.TENSOR)


def _formal(formal: Any, only: Mapping[str, str], is_list: bool = False) -> Formal:
    option = onnx.defs.OpSchema.FormalParameterOption
    fixed = schema_type(only.get(formal.type_str, formal.type_str))
    variadic = formal.option == option.Variadic
    return Formal(
        formal.name,
        formal.name,
        fixed or types.TENSOR,
        formal.type_str if fixed is None and formal.is_homogeneous else "",
        formal.option == option.Optional,
        variadic,
        bool(formal.min_arity),
        not formal.type_str.startswith(("seq", "optional", "map")),
        is_list,
    )


def _kind(attribute: Any) -> AttrKind:
    number = int(attribute.type.value if hasattr(attribute.type, "value") else attribute.type)
    return AttrKind(number) if number in AttrKind._value2member_map_ else AttrKind.ANY


@lru_cache(maxsize=512)
def onnx_row(spelling: str) -> OnnxRow | None:
    """The row of an operator of the recorded opset, however it is spelt; None where there is none."""
    op_type = onnx_name(spelling)
    if op_type is None:
        return None
    try:
        return OnnxRow(onnx.defs.get_schema(op_type, onnx_catalog.VERSION, keys.ONNX_DOMAIN))
    except onnx.defs.SchemaError:
        return None


_OTHER_SPELLINGS = ("dot", "if_", "matmul", "ones", "op", "scatter", "zeros")
"""Methods of `g.onnx` that are spelled unlike the operators that they record."""


_INSTEAD = {
    "RMSNormalization": "write x / g.onnx.sqrt(g.onnx.reduce_mean(x * x, [-1]) + 1e-5) * scale",
    "Swish": "write x * g.onnx.sigmoid(x)",
}
"""What to write for operators of later opsets."""


def unknown_operator(graph: Recorder, name: str) -> UnknownOp:
    """The error for a name that is not an operator of the recorded opset."""
    what = f"ONNX {onnx_catalog.VERSION} has no operator {name!r}"
    known = onnx_name(name)
    if known is not None:
        since = min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == known)
        instead = _INSTEAD.get(known, "write it with the operators that there are")
        return graph.error(UnknownOp, what, f"it came with ONNX {since}; {instead}")
    near = suggestion(name, [*_OTHER_SPELLINGS, *map(snake, operator_names().values())], "")
    hint = near if near.startswith("did") else "see onnx.ai/onnx/operators"
    return graph.error(UnknownOp, what, hint)


def call_onnx(
    graph: Recorder,
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    outputs: int | None = None,
    after: After = UNORDERED,
    facts: OpFacts = NO_FACTS,
) -> Output | tuple[Output, ...]:
    """Records one ONNX operator of the recorded opset.

    A keyword is an attribute or an input by name. Numbers, lists and arrays become constants: I64 where the
    operator wants that, else of the element type of the inputs that must agree with it. `outputs` asks for
    more than the operator's required ones.
    """
    row = onnx_row(name)
    if row is None:
        raise unknown_operator(graph, name)
    if row.name in _REDUCING and len(args) == 1 and not kwargs:
        _warn_of_one_operand(graph, row.name, args[0])
    found = record_call(graph, row, args, kwargs, after=after, facts=facts, count=outputs)
    return found[0] if len(found) == 1 else tuple(found)


def _warn_of_one_operand(graph: Recorder, name: str, given: object) -> None:
    """Warns of one value where several are combined. One of a list may be what the list happens to hold."""
    if isinstance(given, Output) and given.shape != ():
        call = snake(name)
        graph.warn(
            "one-operand",
            f"g.onnx.{call} of one value is that value: it combines several of them, element by element",
            f"over the elements of one: g.onnx.{_REDUCING[name]}(x), with axes as in"
            f" g.onnx.{_REDUCING[name]}(x, [0])",
        )


def record_one(graph: Recorder, op_type: str, args: Sequence[object], **attrs: object) -> Output:
    """Records an operator with one output."""
    row = onnx_row(op_type)
    assert row is not None, op_type
    return record_call(graph, row, args, attrs)[0]


def _cast_hint(given: Sequence[object]) -> str:
    """What to do where element types differ: NumPy's values are converted before they are recorded."""
    arrays = [v for v in given if isinstance(v, (np.ndarray, np.generic))]
    if not arrays:
        return "cast one side with g.onnx.cast(x, to=…)"
    if arrays[0].ndim:
        return "convert the array: a.astype(np.float32), or another element type of the value"
    return "a plain number takes the value's element type: float(number), int(number)"


def refuse_constant_condition(graph: Recorder, op: str, value: object) -> None:
    """ValueTypeError for one of Python's bools as a condition: it would choose once, at recording."""
    if isinstance(value, (bool, np.bool_)):
        raise graph.error(
            ValueTypeError,
            f"{op}: the condition is Python's {bool(value)}, not a recorded value",
            "compare values (x > 0, x == y), or choose with Python's own `if`; g.constant(True) insists",
        )
