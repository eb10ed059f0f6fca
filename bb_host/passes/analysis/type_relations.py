"""Type constraints between an op's inputs and outputs: one function per relation of the catalog.

| relation | says |
|---|---|
| SameElementType | the named inputs and outputs have one element type; solved in both directions |
| Elementwise | SameElementType, and the output has the first input's shape |
| BroadcastShape | SameElementType, and shapes go together as NumPy's do |
| Compare, Where, Cast, Reduce, Matmul, … | SameElementType over a part of the ports, and a shape rule |
| SameType | ports of one type variable have one type (`solve_ports`) |
| AsTensor, AsScalar | a number that is not a tensor has the element type of its tensor, and back |
| Send, Recv, SameEach, Bundle, Unbundle, Subgraph, Constant, Linked | what their ops say (below) |
| Loop, If, When | what their bodies yield, one condition (`bb_host.passes.analysis.body_relations`) |

A relation gets the op and the terms, and puts what it knows. It never guesses: an element type that nothing
says stays `Tensor`, a size that nothing says stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.opsets.wire import ONNX_OPS_OVER_PEERS
from bb_edge.ir.types import TypeNode, ValueType
from bb_host.dsl.kernel_fit import Misfit, fit
from bb_host.dsl.shapes import check_axes, onnx_shape
from bb_host.errors import MalformedOp
from bb_host.ir.program import Op, RawTensor, Subgraph
from bb_host.passes.analysis.body_relations import branch, carry, choose, loop, when
from bb_host.passes.analysis.port_relations import check_ports, fixed_ports, solve_ports
from bb_host.passes.analysis.slices import check_slice
from bb_host.passes.analysis.type_terms import ANY, TENSOR, Shape, Terms, conflict, described
from bb_host.passes.analysis.wire_relations import bundle, recv, same_each, send, unbundle

Relation: TypeAlias = "Callable[[Op, OpDef, Terms], None]"

_PEERS = types.PEER_ID_VEC

# --- element types ----------------------------------------------------------------------------------------

_FIRST = (0,)
_ELEMENT_INPUTS: dict[str, tuple[int, ...]] = {
    "matmul": (0, 1),
    "gemm": (0, 1, 2),
    "compare": (0, 1),
    "where": (1, 2),
}
"""Inputs of one element type by relation; others have the first one, or all (`broadcast`, `concat`)."""
_ELEMENT_INPUTS_OF_OP: dict[str, tuple[int, ...]] = {
    "Pow": (0,),
    "Conv": (0, 1, 2),
    "Scatter": (0, 2),
    "LayerNormalization": (0, 1, 2),
}
_ALL_INPUTS = frozenset({"broadcast", "concat"})
_ALL_OUTPUTS = frozenset({"split"})


def _element(op: Op, names: Sequence[str], terms: Terms) -> TypeNode | None:
    """The one element type of these values, None where nothing says it; narrows those that are open."""
    found: TypeNode | None = None
    open_names = []
    for name in names:
        known = terms.types.get(name)
        node = None if known is None else known.node
        if node is None or node.abstract:
            if node is not None and node is not TENSOR and node is not ANY:
                raise conflict(op, f"{name!r} is {node}, and a tensor is needed")
            open_names.append(name)
        elif found is None:
            found = node
        elif found is not node:
            raise conflict(op, f"its operands differ: {described(terms, op.inputs)}", "cast one of them")
    if found is None:
        for name in open_names:
            terms.element(name, TENSOR, op)
        return None
    if (
        found.elem_type is None
        and op.op_type != "Identity"
        and not (found is _PEERS and op.op_type in ONNX_OPS_OVER_PEERS)
    ):
        raise conflict(op, f"it works on tensors: {described(terms, op.inputs)}")
    for name in open_names:
        terms.element(name, found, op)
    return found


def _same_element(op: Op, row: OpDef, terms: Terms) -> None:
    relation = row.relation
    inputs = op.inputs
    if relation in _ALL_INPUTS and op.op_type != "Pow":
        grouped: Sequence[str] = [n for n in inputs if n]
    else:
        picks = _ELEMENT_INPUTS_OF_OP.get(op.op_type) or _ELEMENT_INPUTS.get(relation, _FIRST)
        grouped = [inputs[i] for i in picks if i < len(inputs) and inputs[i]]
    if relation != "compare":
        outputs = op.outputs if relation in _ALL_OUTPUTS else op.outputs[:1]
        grouped = [*grouped, *outputs]
    _element(op, grouped, terms)
    check_ports(op, row, terms, skip=set(grouped))
    _shape(op, terms)


def _shape(op: Op, terms: Terms) -> None:
    """The first output's shape, as far as the rules for shapes know it."""
    shapes = [_shape_of(terms, name) for name in op.inputs]
    if not shapes:
        return
    known = [terms.constants.get(name) for name in op.inputs]
    try:
        shape = onnx_shape(op.op_type, shapes, op.attrs, known)
    except ValueError as error:
        text = f"{error}: {described(terms, op.inputs)}"
        raise conflict(op, text, "give it values whose sizes go together") from error
    except (TypeError, IndexError, ZeroDivisionError) as error:
        raise conflict(op, f"its attributes do not fit its inputs: {described(terms, op.inputs)}") from error
    if shape is not None and op.outputs:
        known_type = terms.types.get(op.outputs[0])
        node = TENSOR if known_type is None else known_type.node
        if types.is_subtype(node, TENSOR):
            terms.put(op.outputs[0], ValueType(node, shape), op)
    if op.op_type == "Slice":
        check_slice(op, terms)


def axes_of(op: Op, terms: Terms) -> None:
    """Refuses an axis outside of a known rank, which the fast ways of the relations do not look at."""
    if op.attrs or len(op.inputs) > 1:
        try:
            check_axes(
                op.op_type,
                [_shape_of(terms, name) for name in op.inputs],
                op.attrs,
                [terms.constants.get(name) for name in op.inputs],
            )
        except ValueError as error:
            raise conflict(op, f"{error}: {described(terms, op.inputs)}", "count axes from 0") from error


def fit_op(op: Op, terms: Terms, version: int, kernels: bool) -> None:
    """What the device's kernel says of an op: the types of its results, or that it never runs.

    `kernels` says that the op runs on those kernels, so that what they alone refuse is refused here too.
    """
    given = [terms.types.get(name) if name else None for name in op.inputs]
    if None in given and any(name and known is None for name, known in zip(op.inputs, given, strict=True)):
        return
    constants = list(map(terms.constants.get, op.inputs))
    try:
        found = fit(op.op_type, version, op.attrs, given, constants, len(op.outputs))
    except Misfit as error:
        if not error.universal and not kernels:
            return
        text = f"{error}: {described(terms, op.inputs)}" if op.inputs else str(error)
        if error.attribute:
            raise MalformedOp(text, hint="see its attributes at onnx.ai/onnx/operators", op=op) from error
        raise conflict(op, text, "cast or reshape its inputs") from error
    for name, value in zip(op.outputs, found or (), strict=False):
        terms.put(name, value, op)


def _shape_of(terms: Terms, name: str) -> Shape:
    known = terms.types.get(name)
    return None if known is None else known.shape


def pointwise(op: Op, row: OpDef, terms: Terms) -> None:
    """Unary and first-operand ops, and arithmetic on two operands; the fast way is one type for all."""
    seen = terms.types
    first = seen.get(op.inputs[0])
    alike = len(op.inputs) == 1 or (len(op.inputs) == 2 and row.relation == "broadcast")
    if alike and len(op.outputs) == 1 and first is not None and first.node.elem_type is not None:
        result = seen.get(op.outputs[0])
        if all(seen.get(name) == first for name in op.inputs[1:]) and result in (None, first):
            terms.put(op.outputs[0], first, op)
            return
    _same_element(op, row, terms)


def cast(op: Op, row: OpDef, terms: Terms) -> None:
    """The output has the element type that attribute `to` names, and the input's shape."""
    to = op.attrs.get("to")
    node = types.tensor_of_elem(to) if isinstance(to, int) else None
    source = terms.get(op.inputs[0])
    if source is not None and not types.is_subtype(source.node, TENSOR) and source.node is not ANY:
        raise conflict(op, f"it works on tensors: {described(terms, op.inputs)}")
    if node is not None:
        terms.put(op.outputs[0], ValueType(node, None if source is None else source.shape), op)
    else:
        terms.element(op.outputs[0], TENSOR, op)


def as_tensor(op: Op, row: OpDef, terms: Terms) -> None:
    """The tensor of the number's own element type, 0-D; `to` says which, and the input must agree."""
    solve_ports(op, row, terms)
    to = op.attrs.get("to")
    node = types.tensor_of_elem(to) if isinstance(to, int) else None
    source = terms.get(op.inputs[0])
    if source is not None and not source.node.abstract:
        wanted = types.NUMBERS.get(source.node)
        if wanted is None or wanted is not node:
            raise conflict(
                op,
                f"{op.inputs[0]!r} is {source.node}, and attribute to says {node or repr(to)}",
                f"to={wanted.elem_type}"
                if wanted is not None
                else "it takes scalars, timestamps, event kinds",
            )
    terms.put(op.outputs[0], ValueType(node or TENSOR, ()), op)


_SCALARS = {tensor: scalar for scalar, tensor in types.NUMBERS.items() if scalar.parent is types.SCALAR}


def as_scalar(op: Op, row: OpDef, terms: Terms) -> None:
    """The scalar of the tensor's element type."""
    solve_ports(op, row, terms)
    source = terms.get(op.inputs[0])
    if source is None or source.node.elem_type is None:
        return
    node = _SCALARS.get(source.node)
    if node is None:
        raise conflict(
            op, f"there is no scalar of {source.node}", "cast it to F32, F64, F16, U8 or I32 first"
        )
    shape = source.shape
    if shape is not None and any(isinstance(d, int) and d != 1 for d in shape):
        raise conflict(op, f"{op.inputs[0]!r} is {source}, and a scalar is one element", "reduce it first")
    terms.put(op.outputs[0], ValueType(node), op)


def constant(op: Op, row: OpDef, terms: Terms) -> None:
    """The type of the value that the op carries."""
    for name, value in op.attrs.items():
        found = _type_of_constant(name, value)
        if found is not None:
            terms.put(op.outputs[0], found, op)
            held = np.asarray(value, np.int64) if name == "value_ints" else value
            if isinstance(held, np.ndarray) and op.outputs[0]:
                terms.hold(op.outputs[0], held)
            return


def _type_of_constant(name: str, value: object) -> ValueType | None:
    if isinstance(value, np.ndarray):
        return ValueType(types.tensor_type(value.dtype), tuple(int(d) for d in value.shape))
    if isinstance(value, RawTensor):
        node = types.tensor_of_elem(value.elem_type)
        return None if node is None else ValueType(node, value.shape)
    if not name.startswith("value"):
        return None
    if isinstance(value, (bool, int)):
        return ValueType(types.TENSOR_I64, ())
    if isinstance(value, float):
        return ValueType(types.TENSOR_F32, ())
    if isinstance(value, list) and name in ("value_ints", "value_floats"):
        node = types.TENSOR_I64 if name == "value_ints" else types.TENSOR_F32
        return ValueType(node, (len(value),))
    return ValueType(types.BYTES) if isinstance(value, bytes) and name == "value" else None


# --- branches ---------------------------------------------------------------------------------------------


def subgraph(op: Op, row: OpDef, terms: Terms) -> None:
    """If and Loop: what their branches yield, where the branches say it."""
    check_ports(op, row, terms, skip=set(op.outputs))
    if op.op_type == "If":
        branches = [g for _, g in op.subgraphs()]
        for index, name in enumerate(op.outputs):
            kinds = [_inner_type(g, g.outputs[index], terms) for g in branches if index < len(g.outputs)]
            choose(op, name, kinds, terms)
        return
    for _, body in op.subgraphs():
        carried = len(body.inputs) - 2
        _carried_alike(op, body, terms)
        for index, name in enumerate(op.outputs):
            if index + 1 >= len(body.outputs):
                continue
            inner = _inner_type(body, body.outputs[index + 1], terms)
            if inner is not None and index >= carried:  # a scan output gains an axis
                inner = ValueType(inner.node, None if inner.shape is None else (None, *inner.shape))
            elif inner is not None:
                inner = ValueType(inner.node)
            choose(op, name, [inner], terms)


def _carried_alike(op: Op, body: Subgraph, terms: Terms) -> None:
    """A carried value has one element type: where it begins, in the body, and where the body yields it."""
    for place, (first, formal, last) in enumerate(
        zip(op.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False)
    ):
        for later in (body.types.get(formal), _inner_type(body, last, terms)):
            carry(op, place, first, later, last, terms)


def _inner_type(graph: Subgraph, name: str, terms: Terms) -> ValueType | None:
    known = graph.types.get(name)
    if known is not None and not known.node.abstract:
        return known
    copied = next((o.inputs[0] for o in graph.ops if o.op_type == "Identity" and name in o.outputs), name)
    if copied != name and (found := _inner_type(graph, copied, terms)) is not None:
        return found  # what a branch hands on as it stands
    if known is not None:
        return known
    tensor = graph.initializers.get(name)
    if tensor is not None:
        return _type_of_constant("value", tensor)
    return terms.get(name)


# --- the table --------------------------------------------------------------------------------------------

RELATIONS: Mapping[str, Relation] = {
    "elementwise": pointwise,
    "broadcast": pointwise,
    **dict.fromkeys(
        (
            *("matmul", "gemm", "reshape", "transpose", "concat", "split", "same_element", "squeeze"),
            *("unsqueeze", "reduce", "compare", "where", "gather"),
        ),
        _same_element,
    ),
    "cast": cast,
    "as_tensor": as_tensor,
    "as_scalar": as_scalar,
    "constant": constant,
    "subgraph": subgraph,
    "send": send,
    "recv": recv,
    "same_each": same_each,
    "bundle": bundle,
    "unbundle": unbundle,
    "loop": loop,
    "if": branch,
    "when": when,
    "": solve_ports,
}
"""By the name that the catalog uses."""


def relation_of(row: OpDef) -> Relation:
    """The relation of a catalog row; ports alone where its name is unknown."""
    found = RELATIONS.get(row.relation, solve_ports)
    if found is solve_ports and not [p for p in row.inputs + row.outputs if p.variadic or p.is_variable]:
        return fixed_ports(row)
    return found
