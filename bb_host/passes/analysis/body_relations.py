"""Type relations of loops and branches: they yield the types of their bodies, which are solved before."""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.ir import keys, types
from bb_edge.ir.bodies import BODY_ATTRS, FIXED_INPUTS
from bb_edge.ir.opsets import OpDef
from bb_edge.ir.types import ValueType
from bb_host.dsl.shapes import ONE_CONDITION, Shape, has_several
from bb_host.ir.program import Function, Op
from bb_host.passes.analysis.type_terms import Terms, conflict


def _body(op: Op, attr: str, terms: Terms) -> Function:
    name = op.attrs.get(attr)
    body = terms.functions.get((keys.MODULE_DOMAIN, name.decode())) if isinstance(name, bytes) else None
    if body is None or not body.ops:
        raise conflict(op, f"{attr} {name!r} is not a function of the program", "name one")
    return body


def _needed(op: Op, attr: str, terms: Terms) -> None:
    """What a body computes with is of the type that it needs, also where nothing said it before."""
    fixed = FIXED_INPUTS[op.op_type]
    body = _body(op, attr, terms)
    for formal, actual in zip(body.inputs[fixed:], op.inputs[fixed:], strict=False):
        wanted = body.types.get(formal)
        if actual and wanted is not None and wanted.node.elem_type is not None:
            terms.element(actual, wanted.node, op)


def _yielded(op: Op, attr: str, terms: Terms) -> list[tuple[ValueType | None, str]]:
    """What a body yields: types, and names in the body."""
    body = _body(op, attr, terms)
    end = body.ops[-1]
    count = end.attrs.get("yields", 0)
    names = end.inputs[:count] if isinstance(count, int) else ()
    return [(body.types.get(each), each) for each in names]


def loop(op: Op, row: OpDef, terms: Terms) -> None:
    """A carried value keeps its type, and its shape where the body keeps that; rows are stacked."""
    for name, node in zip(op.inputs, (types.TENSOR_I64, types.TENSOR_BOOL), strict=False):
        if name:
            terms.element(name, node, op)
    _needed(op, "body", terms)
    yielded = _yielded(op, "body", terms)
    if op.attrs.get("condition"):
        found, inner = yielded.pop(0)
        one_condition(_decides(_body(op, "body", terms), inner) or op, found)
    carried = op.attrs.get("carried", 0)
    _trigger(op, terms)
    for place, ((found, inner), name) in enumerate(zip(yielded, op.outputs[1:], strict=True)):
        if isinstance(carried, int) and place < carried:
            begins = op.inputs[FIXED_INPUTS["Loop"] + place]
            first = terms.get(begins)
            carry(op, place, begins, found, inner, terms)
            if found is None or first is None:
                continue
            node = found.node if first.node.abstract else first.node
            _put(name, ValueType(node, first.shape if first.shape == found.shape else None), op, terms)
        elif found is not None:
            _put(
                name, ValueType(found.node, None if found.shape is None else (None, *found.shape)), op, terms
            )


def carry(op: Op, place: int, begins: str, found: ValueType | None, inner: str, terms: Terms) -> None:
    """Holds what a carried value is in the body, under the name `inner`, against what it begins as: it has
    one element type.
    """
    first = terms.get(begins) if begins else None
    if found is None or first is None:
        return
    if not types.compatible(first.node, found.node):
        raise conflict(
            op,
            f"carried value {place} begins as {first.node}, and its next one, {inner!r}, is {found.node}",
            "carry one type: cast in the body, or begin with that type",
        )
    if first.node.abstract and found.node.elem_type is not None:
        terms.element(begins, found.node, op)


def branch(op: Op, row: OpDef, terms: Terms) -> None:
    """What both branches yield, as far as they agree on its shape."""
    terms.element(op.inputs[0], types.TENSOR_BOOL, op)
    one_condition(op, terms.get(op.inputs[0]))
    _trigger(op, terms)
    for attr in BODY_ATTRS["If"]:
        _needed(op, attr, terms)
    pairs = zip(_yielded(op, "then_branch", terms), _yielded(op, "else_branch", terms), strict=True)
    for ((a, _), (b, _)), name in zip(pairs, op.outputs[1:], strict=True):
        choose(op, name, (a, b), terms)


def one_condition(op: Op, known: ValueType | None) -> None:
    """TypeConstraintFailed, at `op`, where what decides has several elements."""
    if known is not None and has_several(known.shape):
        raise conflict(op, f"a condition is one number, not {known}", ONE_CONDITION)


def when(op: Op, row: OpDef, terms: Terms) -> None:
    """What waits for a condition, or ends the rounds by one."""
    terms.element(op.inputs[0], types.TENSOR_BOOL, op)
    one_condition(op, terms.get(op.inputs[0]))
    _trigger(op, terms)


def _decides(body: Function, name: str) -> Op | None:
    """The op that gives a loop's condition: behind the Not and Or that `step.stop` records."""
    yielder = {value: op for op in body.ops for value in op.outputs if value}
    op = yielder.get(name)
    while op is not None and op.op_type in ("Not", "Or"):
        several = (v for v in op.inputs if v in yielder and has_several(_shape(body.types.get(v))))
        before = next(several, None)
        if before is None:
            break
        op = yielder[before]
    return op


def _shape(known: ValueType | None) -> Shape:
    return None if known is None else known.shape


def choose(op: Op, name: str, kinds: Sequence[ValueType | None], terms: Terms) -> None:
    """The type of a result that one of several bodies yields: they yield one type."""
    found = [k for k in kinds if k is not None and k.node is not types.ANY]
    if not name or not found:
        return
    first = found[0]
    for other in found[1:]:
        if not types.compatible(first.node, other.node):
            tensors = first.node.elem_type is not None and other.node.elem_type is not None
            cast = ": cast in one of them, g.onnx.cast(x, to=…)" if tensors else " from both"
            text = f"its branches yield {first} and {other} for {name!r}"
            raise conflict(op, text, f"yield one type{cast}")
        if first.node.abstract:
            first = ValueType(other.node, first.shape)
    shape = first.shape if all(k.shape == first.shape for k in found) else None
    terms.put(name, ValueType(first.node, shape), op)


def _trigger(op: Op, terms: Terms) -> None:
    if op.outputs and op.outputs[0]:
        terms.put(op.outputs[0], ValueType(types.TRIGGER), op)


def _put(name: str, found: ValueType, op: Op, terms: Terms) -> None:
    if name and found.node is not types.ANY:
        terms.put(name, found, op)
