"""Gradients of what reads from, and writes to, places that are given as indices; and of what runs along an
axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, first_alone, one, rule

Wants = Sequence[bool]


@rule("GatherElements")
def _gather_elements(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Entries that were read several times get the sum."""
    x, indices = op.inputs
    dx = g.op(
        "ScatterElements", g.zeros_like(x), indices, one(dys), axis=op.integer("axis", 0), reduction=b"add"
    )
    return (dx, None)


@rule("GatherND")
def _gather_nd(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Slices that were read several times get the sum; places in a batch are written out in full."""
    x, indices = op.inputs
    batch = op.integer("batch_dims", 0)
    if batch:
        indices = _with_batch(g, op, indices, batch)
    return (g.op("ScatterND", g.zeros_like(x), indices, one(dys), reduction=b"add"), None)


def _with_batch(g: GradientBuilder, op: Op, indices: str, batch: int) -> str:
    """The indices with the place in the batch before each."""
    lead = g.static_dims(op, indices, range(g.rank(op, indices) - 1))
    places = np.indices(lead)[:batch]
    return g.op("Concat", g.const(np.moveaxis(places, 0, -1).astype(np.int64)), indices, axis=-1)


@rule("ScatterElements", "ScatterND")
def _scatter(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Updates get the gradient of their places, as does what they were added to, not what they replaced."""
    _, indices, updates = op.inputs
    reduction = op.text("reduction", "none")
    if reduction not in ("none", "add"):
        hint = "write it with reduction add or none"
        raise NotDifferentiableError(op, f"its reduction is {reduction}", hint)
    dy = one(dys)
    attrs = {"axis": op.integer("axis", 0)} if op.op_type == "ScatterElements" else {}
    dx = dy
    if wants[0] and reduction == "none":
        dx = g.op(op.op_type, dy, indices, g.zeros_like(updates), **attrs)
    read = "GatherElements" if op.op_type == "ScatterElements" else "GatherND"
    return (dx, None, g.op(read, dy, indices, **attrs) if wants[2] else None)


@rule("TopK")
def _top_k(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """To the entries that were chosen."""
    x = op.inputs[0]
    indices = g.extra_output(op, 1, f"{op.outputs[0]}_indices")
    dx = g.op("ScatterElements", g.zeros_like(x), indices, one(dys), axis=op.integer("axis", -1))
    return (dx, None)


@rule("CumSum")
def _cum_sum(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """The sum from the other end."""
    reverse = 1 - op.integer("reverse", 0)
    exclusive = op.integer("exclusive", 0)
    return (g.op("CumSum", one(dys), op.inputs[1], exclusive=exclusive, reverse=reverse), None)


@rule("Trilu")
def _trilu(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    return first_alone(op, g.op("Trilu", one(dys), *op.inputs[1:], upper=op.integer("upper", 1)))


@rule("ReverseSequence")
def _reverse_sequence(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    return (g.op("ReverseSequence", one(dys), op.inputs[1], **op.attrs), None)
