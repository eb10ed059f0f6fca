"""One region in the making: ONNX values as TFLite tensors, in ONNX's layout or channels last.

A value of three or four dimensions may be there in either layout. A rule asks for the one that it computes in
and gives its result in the one that it has; a TRANSPOSE appears only where nobody has the layout that is
asked for, once per value. So layouts cancel as they go, and what reaches the border is in ONNX's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from bb_host.ir.operator_kinds import LISTS
from bb_host.ir.program import Array, Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.facts import Fact
from bb_host.tflite.graph import DYNAMIC, Operator, Option, Quantization, TfliteGraph

Layout = str
Made = TypeVar("Made")

PLAIN, NHWC, NLC, LC = "plain", "nhwc", "nlc", "lc"
"""ONNX's own; images channels last; series (three dimensions) as images of height one, channels last; and the
same series without that height, which nothing computes in.
"""

LAST: Mapping[int, Layout] = {3: NLC, 4: NHWC}
"""The layout with channels last, by rank; a tensor in it has batch, height, width and channels."""

_ORDER = {NHWC: (0, 2, 3, 1), NLC: (0, None, 2, 1), LC: (0, 2, 1)}
"""Which of ONNX's axes stands where; None is a height that ONNX does not have."""

_TO_NCHW, _SWAPPED = (0, 3, 1, 2), (0, 2, 1)
_WHOLE = {NHWC: _TO_NCHW, NLC: _SWAPPED, LC: _SWAPPED}
"""By layout, as many entries as a value has dimensions."""
_ALL = slice(None)


def arranged(values: Sequence[Any], layout: Layout, height: Any = 1) -> tuple[Any, ...]:
    """What stands per axis of ONNX's (a shape, pads, …), in a layout; `height` is that of a series."""
    if layout == PLAIN:
        return tuple(values)
    return tuple(height if axis is None else values[axis] for axis in _ORDER[layout])


def placed(axis: int, layout: Layout) -> int:
    """Where an axis of ONNX's is in a layout."""
    return axis if layout == PLAIN else _ORDER[layout].index(axis)


class Region:
    """The state of lowering one region; `facts` are those of the whole body.

    `gradient` says that it is part of a gradient, where conditions become numbers (`masks.py`).
    """

    def __init__(self, facts: Mapping[str, Fact], version: int, *, gradient: bool = False) -> None:
        self.facts = facts
        self.version = version
        self.gradient = gradient
        self.graph = TfliteGraph()
        self.inputs: list[str] = []
        self._tensors: dict[tuple[str, Layout], int] = {}
        self._own: dict[str, Fact] = {}
        self._once: dict[object, Any] = {}

    # --- what is known

    def fact(self, name: str) -> Fact:
        known = self._own.get(name) or self.facts.get(name)
        if known is None:
            raise NotLowered("its shapes are not known")
        return known

    def constant(self, op: Op, position: int) -> Array | None:
        """An input's contents; None where it is left out. NotLowered where they are not known.

        What ONNX wants with one dimension has one, also where a file has a number there.
        """
        if position >= len(op.inputs) or not op.inputs[position]:
            return None
        value = self.fact(op.inputs[position]).value
        if value is None:
            raise NotLowered(f"its input {position} is not a constant")
        return value.reshape(-1) if position in LISTS.get(op.op_type, ()) else value

    def image(self, op: Op) -> tuple[Layout, tuple[int, ...]]:
        """Channels last for an op's first input, and its shape so: batch, height, width, channels.

        NotLowered for what is neither an image nor a series.
        """
        shape = self.fact(op.inputs[0]).shape
        if len(shape) not in LAST:
            raise NotLowered(f"{len(shape)} dimensions; images have four, series three")
        layout = LAST[len(shape)]
        return layout, arranged(shape, layout)

    # --- values

    def has(self, name: str, layout: Layout) -> bool:
        return (name, layout) in self._tensors or (_number(name), layout) in self._tensors

    def layout(self, names: Sequence[str]) -> Layout:
        """Channels last where an input is there that way only: all others can follow, broadcast or not."""
        facts = [self.fact(name) for name in names]
        rank = max(len(f.shape) for f in facts)
        last = LAST.get(rank, PLAIN)
        if not any(self.has(n, last) and not self.has(n, PLAIN) for n in names):
            return PLAIN
        return last if all(self._follows(f, rank) for f in facts) else PLAIN

    @staticmethod
    def _follows(fact: Fact, rank: int) -> bool:
        return len(fact.shape) == rank or fact.value is not None or not dynamic(fact.shape)

    def read(self, name: str, layout: Layout = PLAIN) -> int:
        """The tensor that holds a value in a layout."""
        found = self._tensors.get((name, layout))
        if found is not None:
            return found
        fact = self.fact(name)
        if fact.value is not None:
            value = fact.value
            if layout != PLAIN:
                value = _constant(value, layout)
            grid = fact.grid if fact.grid is not None and fact.grid.scale.size == 1 else None
            index = self.graph.constant(value, "", grid)
        elif layout == PLAIN:
            index = self._plain(name)
        elif len(fact.shape) < len(_WHOLE[layout]):
            index = self._broadcast(name, layout)
        elif layout == NHWC:
            index = self._permuted(self.read(name), _ORDER[NHWC])
        elif layout == NLC:
            index = self.reshaped(self.read(name, LC), arranged(fact.shape, NLC))
        elif (name, NLC) in self._tensors:
            index = self.reshaped(self._tensors[name, NLC], arranged(fact.shape, LC))
        else:
            index = self._permuted(self.read(name), _SWAPPED)
        self._tensors[name, layout] = index
        return index

    def _broadcast(self, name: str, layout: Layout) -> int:
        """A value of fewer dimensions than those that it is broadcast against."""
        shape = self.fact(name).shape
        if dynamic(shape):
            raise NotLowered("an open dimension that is not the batch")
        rank = len(_WHOLE[layout])
        whole = self.reshaped(self.read(name), (1,) * (rank - len(shape)) + shape)
        if layout == NHWC:
            return self._permuted(whole, _ORDER[NHWC])
        turned = self._permuted(whole, _SWAPPED)
        return turned if layout == LC else self.reshaped(turned, arranged(self.graph.shape(whole), NLC))

    def _plain(self, name: str) -> int:
        if (name, NHWC) in self._tensors:
            return self._permuted(self._tensors[name, NHWC], _TO_NCHW)
        if (name, LC) in self._tensors or (name, NLC) in self._tensors:
            return self._permuted(self.read(name, LC), _SWAPPED)
        number = self.read_number(name, PLAIN)
        if number is not None:
            return self.op("GREATER", [number, self.floats(0.5)], self.graph.shape(number), dtype="bool")
        fact = self.fact(name)
        self.inputs.append(name)
        return self.graph.input(name, fact.shape, fact.dtype)

    def give(self, name: str, index: int, layout: Layout = PLAIN) -> None:
        """Says where an op's result lies."""
        self._tensors[name, layout] = index

    def give_number(self, name: str, index: int, layout: Layout) -> None:
        """Says where a condition lies as numbers, 0 and 1; whoever asks for it as bool gets them compared."""
        self._own[_number(name)] = self.fact(name)._replace(dtype="float32")
        self.give(_number(name), index, layout)

    def read_number(self, name: str, layout: Layout) -> int | None:
        """A condition as numbers; None where it is not there so."""
        return self.read(_number(name), layout) if _number(name) in self._own else None

    def maker(self, index: int) -> Operator | None:
        """The operator that makes a tensor."""
        return next((op for op in reversed(self.graph.operators) if op.outputs[0] == index), None)

    def result_of(self, kinds: Sequence[str], index: int) -> int:
        """What an operator of some kind makes of a tensor; the tensor where there is none yet."""
        found = (op for op in self.graph.operators if op.kind in kinds and op.inputs[0] == index)
        return next((op.outputs[0] for op in found), index)

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """What was made under a key before, else what `make` makes: tensors that several rules share."""
        if key not in self._once:
            self._once[key] = make()
        found: Made = self._once[key]
        return found

    def transposed(self, index: int, perm: Sequence[int]) -> int:
        return self._permuted(index, tuple(perm))

    def _permuted(self, index: int, perm: Sequence[Any]) -> int:
        tensor = self.graph.tensors[index]
        shape = tuple(tensor.shape[p] for p in perm)
        # What keeps the order of all dims but those of size one is not a transposition, but another shape.
        if [p for p in perm if tensor.shape[p] != 1] == [p for p in range(len(perm)) if tensor.shape[p] != 1]:
            return self.reshaped(index, shape)
        known = tensor.quantization
        if tensor.data is not None and known is None:
            return self.graph.constant(np.ascontiguousarray(tensor.data.transpose(perm)))
        return self.graph.op("TRANSPOSE", [index, self.ints(perm)], shape, tensor.dtype, {}, known)

    def reshaped(self, index: int, shape: Sequence[int]) -> int:
        tensor = self.graph.tensors[index]
        known = tensor.quantization
        if tensor.data is not None and known is None:
            return self.graph.constant(tensor.data.reshape(shape))
        return self.graph.op("RESHAPE", [index, self.ints(shape)], shape, tensor.dtype, {}, known)

    def _copied(self, index: int, shape: Sequence[int]) -> int:
        tensor = self.graph.tensors[index]
        inputs = [index, self.ints(shape)]
        return self.graph.op("RESHAPE", inputs, shape, tensor.dtype, {}, tensor.quantization)

    # --- operators

    def weight(
        self, data: Array, name: str, channels: int, axis: int, *, repeat: int = 1, part: slice = _ALL
    ) -> int:
        """A filter made of the constant `name`, with the grid that int8 forms need where it is on one.

        `channels` is the axis of the constant that counts output channels, `axis` that of the filter, where
        they stand `repeat` times; `part` are the channels that are taken. What an int8 form cannot take (a
        zero point, another axis) has no grid.
        """
        known, n = self.fact(name).grid, data.shape[axis]
        grid = None
        if known is not None and not known.zero_point.any():
            if known.scale.size == 1:
                grid = Quantization(np.full(n, known.scale[0]), np.zeros(n, np.int64), axis)
            elif known.axis == channels and known.scale[part].size * repeat == n:
                grid = Quantization(np.tile(known.scale[part], repeat), np.zeros(n, np.int64), axis)
        return self.graph.constant(np.ascontiguousarray(data), "", grid)

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        *,
        dtype: str = "float32",
        **options: Option,
    ) -> int:
        return self.graph.op(kind, inputs, shape, dtype, options)

    def ints(self, values: Sequence[Any]) -> int:
        return self.graph.constant(np.array(values, np.int32))

    def floats(self, value: Any) -> int:
        return self.graph.constant(np.asarray(value, np.float32))

    def result(self, op: Op, layout: Layout = PLAIN, position: int = 0) -> tuple[int, ...]:
        """The shape of an op's result in a layout."""
        return arranged(self.fact(op.outputs[position]).shape, layout)

    def finish(self, outputs: Sequence[str]) -> TfliteGraph:
        """Declares the results; each is a tensor of its own, in ONNX's layout, named as the value."""
        taken = set(self.graph.inputs)
        for name in outputs:
            index = self.read(name)
            if index in taken or self.graph.tensors[index].data is not None:
                index = self._copied(index, self.fact(name).shape)
            taken.add(index)
            self.graph.tensors[index].name = name
            self.graph.outputs.append(index)
        return self.graph


def _number(name: str) -> str:
    """What a condition is called where it is numbers; no value of ONNX is called so."""
    return f"\0{name}"


def _constant(value: Array, layout: Layout) -> Array:
    """A constant that is broadcast against values in a layout."""
    rank = len(_TO_NCHW) if layout == NHWC else len(_SWAPPED)
    whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
    turned: Array = whole.transpose([axis for axis in _ORDER[layout] if axis is not None])
    return turned[:, None] if layout == NLC else turned


def dynamic(shape: Sequence[int]) -> bool:
    """Whether the first dimension is open."""
    return DYNAMIC in shape


Rule = Callable[[Region, Op], None]
"""Lowers one op into a region. NotLowered says why it has to stay."""

Shape = tuple[int, ...]
Compute = Callable[[Region, Op, int, Shape], int]
"""(region, op, first input, shape of the result) → result, both in one layout."""


def elementwise(compute: Compute) -> Rule:
    """The rule for a result that is computed from the first input, in whichever layout that is."""

    def rule(region: Region, op: Op) -> None:
        layout = region.layout(op.inputs[:1])
        x = region.read(op.inputs[0], layout)
        region.give(op.outputs[0], compute(region, op, x, region.result(op, layout)), layout)

    return rule
