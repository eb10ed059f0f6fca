"""Which items of a body are lowered together: convex, connected regions, worth their call.

An item's level counts how often the way to it changes between lowered and not, from 0 for what stays and from
1 for what is lowered. Lowered items of one level
that are connected are one region: a way from one to another that leaves the region would end at a higher
level, so regions are convex and the body stays acyclic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bb_host.ir.queries import is_constant, is_onnx, reads
from bb_host.tflite import attention, computed, products, recurrent
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.facts import Fact
from bb_host.tflite.items import Item
from bb_host.tflite.lowering import Region
from bb_host.tflite.table import apply

_CALL_US = 2.0
"""Of one invoke with its copies in and out. It and the rates in `worth` were measured on one x86-64 machine
with one thread, LiteRT against the NumPy kernels, and are rounded; `bb-edge bench --tune` measures anew.
"""


@dataclass(frozen=True, slots=True)
class Trials:
    """Per item, what it reads; for those that stay in plain ops, why (empty: a constant).

    A lowered item may read less than its op names: a Reshape has its shape from the facts.
    """

    reads: list[tuple[str, ...]]
    reasons: dict[int, str]

    def keep(self, items: Sequence[Item], members: Sequence[int], reason: str) -> None:
        """These items stay as well, so they read all that their ops name."""
        for i in members:
            self.reads[i] = _named_reads(items[i])
            self.reasons[i] = reason


@dataclass(frozen=True, slots=True)
class Partition:
    """`level` per item; `regions` as item numbers in order; `alive` are the items that somebody reads."""

    level: list[int]
    regions: list[list[int]]
    alive: list[bool]


def try_items(
    items: Sequence[Item], facts: Mapping[str, Fact], version: int, *, gradient: bool = False
) -> Trials:
    """Each item lowered alone: which have a rule that takes them. `gradient` is that of `Region`."""
    reads: list[tuple[str, ...]] = []
    reasons: dict[int, str] = {}
    for i, item in enumerate(items):
        reads.append(_named_reads(item))
        named = [v for v in item.op.outputs if v]
        if is_constant(item.op) or all(v in facts and facts[v].value is not None for v in named):
            reasons[i] = ""
            continue
        if not is_onnx(item.op):
            reasons[i] = "it is a call"
            continue
        trial = Region(facts, version, gradient=gradient)
        try:
            apply(trial, item.op)
        except NotLowered as error:
            reasons[i] = str(error)
            continue
        reads[i] = tuple(trial.inputs)
    return Trials(reads, reasons)


def _named_reads(item: Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v for m in item.members for v in reads(m) if v))


def partition(items: Sequence[Item], outputs: Sequence[str], trials: Trials) -> Partition:
    """The regions of a body that is in topological order."""
    reads, reasons = trials.reads, trials.reasons
    needed = set(outputs)
    alive = [False] * len(items)
    for i in reversed(range(len(items))):
        if needed.intersection(v for v in items[i].op.outputs if v):
            alive[i] = True
            needed.update(reads[i])
    producers = {v: i for i, item in enumerate(items) for v in item.op.outputs if v}
    level = [0] * len(items)
    root = list(range(len(items)))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for i in range(len(items)):
        before = [producers[v] for v in reads[i] if v in producers]
        # What stays and needs nothing lowered is done first of all, for whatever is lowered behind it.
        least = 0 if i in reasons else 1
        level[i] = max([least, *(level[j] + ((j in reasons) != (i in reasons)) for j in before)])
        for j in before:
            if i not in reasons and j not in reasons and level[i] == level[j]:
                first, second = sorted((find(i), find(j)))
                root[second] = first
    groups: dict[int, list[int]] = {}
    for i in range(len(items)):
        if i not in reasons and alive[i]:
            groups.setdefault(find(i), []).append(i)
    return Partition(level, [groups[r] for r in sorted(groups)], alive)


def out_of_reach(items: Sequence[Item], found: Partition) -> list[int]:
    """Lowered items whose op gives less than their members do, where that is read outside of their region."""
    region = {i: number for number, members in enumerate(found.regions) for i in members}
    hidden = {
        v: i
        for i in region
        for m in items[i].members
        for v in m.outputs
        if v and v not in items[i].op.outputs
    }
    return sorted(
        {
            hidden[v]
            for j, item in enumerate(items)
            for m in item.members
            for v in reads(m)
            if v in hidden and region.get(j) != region[hidden[v]]
        }
    )


def worth(items: Sequence[Item], members: Sequence[int], facts: Mapping[str, Fact]) -> bool:
    """Whether a region is estimated to be quicker as one call than op by op on NumPy, at a batch of one."""
    numpy_us = tflite_us = 0.0
    for i in members:
        op = items[i].op
        size = abs(prod(facts[next(filter(None, op.outputs))].shape))
        macs, operators = 0, 1
        if op.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            weight = facts[op.inputs[1]].shape
            deep = prod(weight[1:]) if op.op_type != "MatMul" else weight[-2]
            if op.op_type == "Gemm" and not op.attrs.get("transB", 0):
                deep = weight[0]
            macs = size * abs(deep)
        elif op.op_type == computed.CONV_WEIGHTS:
            _, _, *few = facts[op.inputs[1]].shape
            macs = size * abs(prod(few))
        elif op.op_type in attention.RULES:
            macs = attention.macs(op, facts)
        elif op.op_type in products.RULES:
            macs = products.macs(op, facts)
        elif op.op_type in recurrent.RULES:
            operators, macs, steps_us = recurrent.cost(op, facts)
            numpy_us += steps_us
        numpy_us += 1.2 * len(items[i].members) + macs / 9000 + size / 2000
        tflite_us += 0.2 * operators + macs / 20000 + size / 6000
    return numpy_us > tflite_us + _CALL_US
