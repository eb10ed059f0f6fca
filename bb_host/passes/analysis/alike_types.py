"""Ports whose values have the shape of what another op of their slot is given, as an aggregate has.

A component class says so in `port_types`: `{"Aggregate.result": "F32[Contribute.contribution]"}`. Both ops
stand in one function, or nothing is known; nor is it where what several ops are given differs. An empty
vector may come in the place of such a value, as in that of any array that a peer sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bb_edge.ir import opsets, types
from bb_edge.ir.types import ValueType
from bb_host.ir.program import Op
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bound_types import Promises, ports_of
from bb_host.passes.analysis.type_terms import Shape, Terms

_CONTRIBUTION = "Contribute.contribution"
"""It has the shape of `Contribute.sent`, where that is given: one of another shape is refused."""


def alike(promised: Mapping[str, Promises]) -> Callable[[Op, Terms], None]:
    """Narrows what the ops of a slot yield to what they are given, from whichever of them it is asked.

    TypeConstraintFailed where a value cannot have that shape.
    """
    sources = {slot: {p.like for p in own.values() if p.like} for slot, own in promised.items()}

    def narrow(op: Op, terms: Terms) -> None:
        for source in sources.get(op.slot, ()):
            ops = [one for one in terms.function.ops if one.domain == op.domain and one.slot == op.slot]
            shape = _given(ops, source, terms)
            if shape is None:
                continue
            for taker in ops:
                for port in ports_of(taker, promised[op.slot]):
                    if port.promise.like == source and not port.is_input and port.index < len(taker.outputs):
                        terms.put(taker.outputs[port.index], ValueType(port.promise.type.node, shape), taker)

    return narrow


def _given(ops: Sequence[Op], source: str, terms: Terms) -> Shape:
    """The shape of what a slot's ops are given at a port; None where it differs from op to op, or is open."""
    shapes = {shape for op in ops for shape in _shapes(op, source, terms)}
    if len(shapes) != 1 or _is_given_elsewhere(ops[0], source, terms):
        return None
    (shape,) = shapes
    return None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)


def _is_given_elsewhere(like: Op, source: str, terms: Terms) -> bool:
    """Whether an op of the slot is given something in another function, such as the body of a loop."""
    kinds = (source.partition(".")[0], "Aggregate")
    return any(
        op.op_type in kinds and op.domain == like.domain and op.slot == like.slot
        for function in terms.functions.values()
        if function.key != terms.function.key and like.domain in flow.summary(function.ops).domains
        for op in function.ops
    )


def _shapes(op: Op, source: str, terms: Terms) -> Iterator[Shape]:
    """The shape of what an op is given at the port, None where nobody knows it; nothing from other ops."""
    op_type, _, port = source.partition(".")
    if op.op_type == op_type:
        own = _shape(op, port, terms)
        sent = _shape(op, "sent", terms) if source == _CONTRIBUTION else None
        if sent is None or not _is_whole(sent) or own == sent:
            yield own
        else:  # of two that differ nothing is said: whoever looks at sums names the op that is given both
            yield None if _is_whole(own) else sent
    elif op.op_type == "Aggregate" and (stack := _named(op, "stack")):  # its rows count like contributions
        known = terms.get(stack)
        if known is None or known.node is types.ANY or types.is_subtype(known.node, types.TENSOR):
            yield known.shape[1:] if known is not None and known.shape else None


def _is_whole(shape: Shape) -> bool:
    return shape is not None and all(isinstance(size, int) for size in shape)


def _shape(op: Op, port: str, terms: Terms) -> Shape:
    known = terms.get(_named(op, port))
    return None if known is None else known.shape


def _named(op: Op, port: str) -> str:
    """The value that an op reads at a port; "" where it reads none there."""
    row = opsets.lookup(op.domain, op.op_type)
    names = flow.data_inputs(op)
    index = next((i for i, one in enumerate(row.inputs if row else ()) if one.name == port), len(names))
    return names[index] if index < len(names) else ""
