"""What several ops of a gradient are together: patterns that `items` finds, each lowered as one.

`bb_host.learn` writes gradients in ordinary ops. The gradient by a convolution's weights is a convolution of
images and gradients, batch and channels exchanged in both; that of a maximum over windows scatters into where
the maxima were, that of a mean is a transposed convolution by ones. They have rules of their own
(`computed.py`, `pool_gradient.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys
from bb_host.ir.program import AttrValue, Op
from bb_host.tflite.computed import CONV_WEIGHTS
from bb_host.tflite.facts import Fact
from bb_host.tflite.pool_gradient import MAX_POOL_GRADIENT, MEAN_GRADIENT

Found = tuple[Op, tuple[int, ...]]
"""What stands for a pattern, and the places of the ops that it stands for."""

_WINDOW = ("strides", "dilations", "pads")


class Ops:
    """The ops of a body, and who makes and reads what."""

    def __init__(self, ops: Sequence[Op], outputs: Sequence[str], facts: Mapping[str, Fact]) -> None:
        self.ops = ops
        self.facts = facts
        self.makers = {v: i for i, op in enumerate(ops) for v in op.outputs if v}
        self.readers: dict[str, list[int]] = {}
        for i, op in enumerate(ops):
            for name in op.inputs:
                self.readers.setdefault(name, []).append(i)
        for name in outputs:
            self.readers.setdefault(name, []).append(-1)

    def maker(self, value: str, *kinds: str) -> int | None:
        """The op that makes a value for one reader alone, where it is of such a kind."""
        i = self.makers.get(value)
        if i is None or self.ops[i].op_type not in kinds or len(self.readers.get(value, ())) != 1:
            return None
        return i

    def reader(self, value: str, *kinds: str) -> int | None:
        """The only op that reads a value, where it is of such a kind."""
        found = self.readers.get(value, ())
        if len(found) != 1 or found[0] < 0 or self.ops[found[0]].op_type not in kinds:
            return None
        return found[0]

    def shape(self, value: str) -> tuple[int, ...]:
        """A value's shape; empty where it is not known."""
        fact = self.facts.get(value)
        return () if fact is None else fact.shape

    def swapped(self, value: str) -> tuple[str, list[int]] | None:
        """What a value is with its first two axes exchanged, and the op that exchanges them."""
        i = self.maker(value, "Transpose")
        if i is None or not _is_swap(self.ops[i]):
            return None
        return self.ops[i].inputs[0], [i]


def _is_swap(op: Op) -> bool:
    perm = op.integers("perm")
    return list(perm) == [1, 0, *range(2, len(perm))] and len(perm) in (3, 4)


def conv_weights(at: Ops, i: int) -> Found | None:
    """The Conv at a place, where it is a gradient by weights."""
    op = at.ops[i]
    group = op.integer("group", 1)
    if len(op.inputs) != 2 or op.attrs.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    images = at.swapped(op.inputs[0]) if group == 1 else _split(at, op.inputs[0], group)
    gradients = at.swapped(op.inputs[1])
    if images is None or gradients is None:
        return None
    members = [i, *images[1], *gradients[1]]
    after, cut = op.outputs[0], at.reader(op.outputs[0], "Slice")
    if cut is not None:
        members.append(cut)
        after = at.ops[cut].outputs[0]
    turn = at.reader(after, "Transpose")
    if turn is None or not _is_swap(at.ops[turn]):
        return None
    members.append(turn)
    (result,) = at.ops[turn].outputs
    x, dy, w = at.shape(images[0]), at.shape(gradients[0]), at.shape(result)
    if not (len(x) == len(dy) == len(w)) or (w[0], w[1] * group) != (dy[1], x[1]) or x[0] != dy[0]:
        return None
    window = {"strides": "dilations", "dilations": "strides", "pads": "pads", "group": "group"}
    attrs = {name: op.attrs[theirs] for name, theirs in window.items() if theirs in op.attrs}
    found = Op(CONV_WEIGHTS, keys.ONNX_DOMAIN, (images[0], gradients[0]), (result,), attrs)
    return found, tuple(members)


def _split(at: Ops, value: str, group: int) -> tuple[str, list[int]] | None:
    """Images of whose groups each is a batch: [n, g * c, …] as [c, g * n, …]."""
    last = at.maker(value, "Reshape")
    turn = None if last is None else at.maker(at.ops[last].inputs[0], "Transpose")
    first = None if turn is None else at.maker(at.ops[turn].inputs[0], "Reshape")
    if last is None or turn is None or first is None:
        return None
    images = at.swapped(at.ops[first].inputs[0])
    if images is None:
        return None
    n, channels, *rest = at.shape(images[0]) or (0, 0)
    split = (group, channels // group, n, *rest)
    perm = at.ops[turn].integers("perm")
    if (
        at.shape(at.ops[first].outputs[0]) != split
        or perm != [1, 0, *range(2, len(split))]
        or at.shape(value) != (channels // group, group * n, *rest)
    ):
        return None
    return images[0], [last, turn, first, *images[1]]


def mean_gradient(at: Ops, i: int) -> Found | None:
    """The ConvTranspose at a place, where it spreads what each mean over a window is to blame for.

    `bb_host.learn` writes it by ones, one channel at a time, channels in the batch.
    """
    op = at.ops[i]
    ones = at.facts.get(op.inputs[1]) if len(op.inputs) == 2 else None
    if ones is None or ones.value is None or ones.shape[:2] != (1, 1) or not (ones.value == 1).all():
        return None
    flat = at.maker(op.inputs[0], "Reshape")
    members, after = [i], op.outputs[0]
    pad = at.reader(after, "Pad")
    if pad is not None:
        members.append(pad)
        after = at.ops[pad].outputs[0]
    back = at.reader(after, "Reshape")
    if flat is None or back is None or op.attrs.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    share, result = at.ops[flat].inputs[0], at.ops[back].outputs[0]
    small, large = at.shape(share), at.shape(result)
    if small[:2] != large[:2] or len(small) not in (3, 4) or len(small) != len(large):
        return None
    if (small[0] * small[1], 1, *small[2:]) != at.shape(op.inputs[0]):
        return None
    if (small[0] * small[1], 1, *large[2:]) != at.shape(after):
        return None
    attrs: dict[str, AttrValue] = {"kernel_shape": list(ones.shape[2:])}
    attrs.update((name, value) for name, value in op.attrs.items() if name in _WINDOW)
    return Op(MEAN_GRADIENT, keys.ONNX_DOMAIN, (share,), (result,), attrs), (flat, *members, back)


def max_pool_gradient(at: Ops, i: int) -> Found | None:
    """The ScatterElements at a place, where it is the gradient of a MaxPool with indices."""
    op = at.ops[i]
    zeros = at.facts.get(op.inputs[0])
    if zeros is None or zeros.value is None or zeros.value.any() or len(zeros.shape) != 1:
        return None
    if op.attrs.get("reduction") not in (b"add", "add") or op.attrs.get("axis", 0) not in (0, -1):
        return None
    places, values = at.maker(op.inputs[1], "Reshape"), at.maker(op.inputs[2], "Reshape")
    after = at.reader(op.outputs[0], "Reshape")
    if places is None or values is None or after is None:
        return None
    pool = at.maker(at.ops[places].inputs[0], "MaxPool")
    if pool is None or at.ops[pool].outputs[1:2] != (at.ops[places].inputs[0],):
        return None
    made = at.ops[pool]
    inputs = (made.inputs[0], made.outputs[0], at.ops[values].inputs[0])
    found = Op(MAX_POOL_GRADIENT, keys.ONNX_DOMAIN, inputs, at.ops[after].outputs, dict(made.attrs))
    return found, (places, values, i, after)
