"""A body as items to lower: each one op, or a pattern that exporters write for one operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bb_edge.ir import keys
from bb_host.ir.program import Op
from bb_host.tflite.facts import Fact
from bb_host.tflite.patterns import Found, Ops, conv_weights, max_pool_gradient, mean_gradient


class Item(NamedTuple):
    """`op` is what is lowered, `members` what it stands for, in order.

    Members may give more than the op does: where the maxima of a pool are, for its gradient alone.
    """

    op: Op
    members: tuple[Op, ...]


def items_of(ops: Sequence[Op], outputs: Sequence[str], facts: Mapping[str, Fact]) -> list[Item]:
    """The items, in the order of their last members."""
    at = Ops(ops, outputs, facts)
    patterns: dict[int, Found] = {}
    taken: set[int] = set()
    without_places: set[int] = set()
    for i, op in enumerate(ops):
        found: Found | None = None
        if op.op_type == "Erf":
            found = _gelu(at, i)
        elif op.op_type == "Conv":
            found = conv_weights(at, i)
        elif op.op_type == "ConvTranspose":
            found = mean_gradient(at, i)
        elif op.op_type == "ScatterElements":
            found = max_pool_gradient(at, i)
            if found is not None:
                without_places.add(at.makers[found[0].inputs[1]])
        if found is not None:
            patterns[max(found[1])] = found
            taken.update(found[1])
    items = []
    for i, op in enumerate(ops):
        if i in patterns:
            whole, members = patterns[i]
            items.append(Item(whole, tuple(ops[m] for m in sorted(members))))
        elif i in without_places:
            items.append(Item(dataclasses.replace(op, outputs=op.outputs[:1]), (op,)))
        elif i not in taken:
            items.append(Item(op, (op,)))
    return items


def _scalar(facts: Mapping[str, Fact], name: str) -> float | None:
    fact = facts.get(name)
    if fact is None or fact.value is None or fact.value.size != 1 or fact.dtype != "float32":
        return None
    return float(fact.value.reshape(()))


def _scaled(op: Op, kinds: Mapping[str, float], facts: Mapping[str, Fact]) -> str | None:
    """What an op of `kinds` multiplies (divides, adds to) by the given number, None where it is another."""
    wanted = kinds.get(op.op_type)
    if wanted is None:
        return None
    for x, other in ((op.inputs[0], op.inputs[1]), (op.inputs[1], op.inputs[0])):
        value = _scalar(facts, other)
        if value is not None and np.isclose(value, wanted, rtol=1e-6):
            return x
        if op.op_type == "Div":
            break
    return None


_HALF = {"Mul": 0.5, "Div": 2.0}


def _gelu(at: Ops, erf: int) -> Found | None:
    """x · (erf(x / √2) + 1) · 0.5, the half at either place."""
    ops = at.ops
    inner = at.maker(ops[erf].inputs[0], "Div", "Mul")
    plus = at.reader(ops[erf].outputs[0], "Add")
    times = None if plus is None else at.reader(ops[plus].outputs[0], "Mul")
    if inner is None or plus is None or times is None:
        return None
    x = _scaled(ops[inner], {"Div": 2**0.5, "Mul": 0.5**0.5}, at.facts)
    if x is None or _scaled(ops[plus], {"Add": 1.0}, at.facts) != ops[erf].outputs[0]:
        return None
    rest = [name for name in ops[times].inputs if name != ops[plus].outputs[0]]
    if len(rest) != 1:
        return None
    if rest == [x]:
        halved, last = ops[times].outputs[0], at.reader(ops[times].outputs[0], *_HALF)
        half = last
    else:
        halved, last = x, times
        half = at.maker(rest[0], *_HALF)
    if half is None or last is None or _scaled(ops[half], _HALF, at.facts) != halved:
        return None
    return Op("Gelu", keys.ONNX_DOMAIN, (x,), ops[last].outputs), (inner, erf, plus, times, half)
