"""Gradients of what reads from, and writes to, places that are given as indices; and of what runs along an
axis."""

from __future__ import annotations

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, one, rule, slopes, unary


@unary("GatherElements")
def _gather_elements(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Entries that were read several times get the sum."""
    axis = op.integer("axis", 0)
    return g.op("ScatterElements", g.zeros_like(x), op.inputs[1], dy, axis=axis, reduction=b"add")


@unary("GatherND")
def _gather_nd(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """Slices that were read several times get the sum; places in a batch are written out in full."""
    indices, batch = op.inputs[1], op.integer("batch_dims", 0)
    if batch:
        indices = _with_batch(g, op, indices, batch)
    return g.op("ScatterND", g.zeros_like(x), indices, dy, reduction=b"add")


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


@unary("TopK")
def _top_k(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """To the entries that were chosen."""
    indices = g.extra_output(op, 1, f"{y}_indices")
    return g.op("ScatterElements", g.zeros_like(x), indices, dy, axis=op.integer("axis", -1))


@unary("CumSum")
def _cum_sum(g: GradientBuilder, op: Op, x: str, y: str, dy: str) -> str:
    """The sum from the other end."""
    reverse = 1 - op.integer("reverse", 0)
    return g.op("CumSum", dy, op.inputs[1], exclusive=op.integer("exclusive", 0), reverse=reverse)


slopes(
    ReverseSequence=lambda g, op, x, y, dy: g.op("ReverseSequence", dy, op.inputs[1], **op.attrs),
    Trilu=lambda g, op, x, y, dy: g.op("Trilu", dy, *op.inputs[1:], upper=op.integer("upper", 1)),
)
