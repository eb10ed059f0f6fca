"""Einsum, where its equation is one batched matrix product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.facts import Fact
from bb_host.tflite.graph import DYNAMIC
from bb_host.tflite.linear import dense
from bb_host.tflite.lowering import Region, Rule, dynamic

Labels = list[str]
Operand = tuple[str, Labels]
Sizes = Mapping[str, int]

_HIDDEN = "0123456789"
"""Labels of what an ellipsis stands for, counted from its end; equations have letters."""

_OUTER = 2
"""Dimensions before its matrices that BATCH_MATMUL is given at most: kernels differ beyond rank four."""


class _Groups(NamedTuple):
    """Labels by where they stand, each group in the order of the result: `ahead` is the open batch where one
    operand alone has it and others are in both, which BATCH_MATMUL broadcasts the other operand along.
    """

    ahead: Labels
    both: Labels
    left: Labels
    right: Labels
    summed: Labels

    @property
    def result(self) -> Labels:
        return self.ahead + self.both + self.left + self.right


def _labels(op: Op, facts: Mapping[str, Fact]) -> tuple[list[Labels], Labels]:
    """Of each operand's axes, and of the result's."""
    equation = op.text("equation").replace(" ", "")
    given, arrow, result = equation.partition("->")
    letters = given.replace("...", "").replace(",", "")
    if not arrow:
        result = "..." * ("..." in given) + "".join(sorted(c for c in letters if letters.count(c) == 1))
    terms: list[Labels] = []
    most = 0
    for term, name in zip(given.split(","), op.inputs, strict=True):
        n = len(facts[name].shape) - len(term.replace("...", ""))
        most = max(most, n)
        terms.append(list(term.replace("...", _HIDDEN[len(_HIDDEN) - n :])))
    return terms, list(result.replace("...", _HIDDEN[len(_HIDDEN) - most :]))


def _groups(a: Labels, b: Labels, result: Labels, sizes: Sizes) -> _Groups:
    if len(set(a)) < len(a) or len(set(b)) < len(b):
        raise NotLowered("a label occurs twice in one operand")
    if not result or (set(a) ^ set(b)) - set(result):
        raise NotLowered("it sums over what one operand alone has, or over all")
    both = [label for label in result if label in a and label in b]
    left = [label for label in result if label not in b]
    right = [label for label in result if label not in a]
    summed = [label for label in a if label in b and label not in result]
    if not summed:
        raise NotLowered("it sums over nothing")
    if any(sizes[label] == DYNAMIC for label in summed):
        raise NotLowered("it sums over an open batch")
    n = 1 if both and left and sizes[left[0]] == DYNAMIC else 0
    return _Groups(left[:n], both, left[n:], right, summed)


def _einsum(region: Region, op: Op) -> None:
    if len(op.inputs) != 2:
        raise NotLowered(f"it has {len(op.inputs)} operands")
    x, y = op.inputs
    (a, b), result = _labels(op, region.facts)
    first, second = region.fact(x), region.fact(y)
    # What is constant comes second, as weights do; what alone has the open batch comes first.
    if second.value is None and (first.value is not None or dynamic(second.shape) > dynamic(first.shape)):
        x, y, a, b, first, second = y, x, b, a, second, first
    sizes = {**dict(zip(a, first.shape, strict=True)), **dict(zip(b, second.shape, strict=True))}
    if [sizes[label] for label in a] != list(first.shape):
        raise NotLowered("a label has two sizes")
    groups = _groups(a, b, result, sizes)
    form = _batched if groups.both or second.value is None else _with_weight
    made = groups.result
    product = form(region, (x, a), (y, b), groups, sizes)
    product = _moved(
        region, product, range(len(region.graph.shape(product))), [sizes[label] for label in made]
    )
    order = [made.index(label) for label in result]
    region.give(op.outputs[0], _moved(region, product, order, region.result(op)))


def _with_weight(region: Region, x: Operand, y: Operand, groups: _Groups, sizes: Sizes) -> int:
    (name, a), (weight, b) = x, y
    _, _, left, right, summed = groups
    wide, depth = _size(right, sizes), _size(summed, sizes)
    value = region.fact(weight).value
    assert value is not None
    turned = value.transpose([b.index(label) for label in right + summed]).reshape(wide, depth)
    w = region.weight(turned, weight, b.index(right[0]) if len(right) == 1 else -1, 0)
    rows = [sizes[label] for label in left] if len(left) in (1, 2, 3) else [_size(left, sizes)]
    data = _arranged(region, name, a, left + summed, (*rows, depth))
    return dense(region, data, w, (*rows, wide))


def _batched(region: Region, x: Operand, y: Operand, groups: _Groups, sizes: Sizes) -> int:
    (name, a), (other, b) = x, y
    ahead, both, left, right, summed = groups
    rows, wide, depth = _size(left, sizes), _size(right, sizes), _size(summed, sizes)
    few = len(ahead + both) <= _OUTER
    outer = [sizes[label] for label in both] if few else [_size(both, sizes)]
    front = [*(sizes[label] for label in ahead), *outer]
    data = _arranged(region, name, a, ahead + both + left + summed, (*front, rows, depth))
    turned = b[-1] in summed
    if turned:
        w = _arranged(region, other, b, both + right + summed, (*outer, wide, depth))
    else:
        w = _arranged(region, other, b, both + summed + right, (*outer, depth, wide))
    return region.op("BATCH_MATMUL", [data, w], (*front, rows, wide), adj_x=False, adj_y=turned)


def _size(labels: Labels, sizes: Sizes) -> int:
    some = [sizes[label] for label in labels]
    return DYNAMIC if DYNAMIC in some else prod(some)


def _arranged(region: Region, name: str, labels: Labels, order: Labels, shape: Sequence[int]) -> int:
    return _moved(region, region.read(name), [labels.index(label) for label in order], shape)


def _moved(region: Region, x: int, perm: Sequence[int], shape: Sequence[int]) -> int:
    """A tensor with its axes in another order, and then in a shape."""
    held = region.graph.tensors[x]
    if held.data is not None:
        return region.graph.constant(held.data.transpose(perm).reshape(shape), "", held.quantization)
    if [*perm] != sorted(perm):
        x = region.transposed(x, perm)
    return x if region.graph.shape(x) == tuple(shape) else region.reshaped(x, shape)


def macs(op: Op, facts: Mapping[str, Fact]) -> int:
    """Multiplications of an Einsum at a batch of one."""
    terms, _ = _labels(op, facts)
    sizes: dict[str, int] = {}
    for term, name in zip(terms, op.inputs, strict=True):
        sizes.update(zip(term, facts[name].shape, strict=True))
    return abs(prod(sizes.values()))


RULES: dict[str, Rule] = {"Einsum": _einsum}
