"""ReduceMean and its kin, ArgMax."""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_host.ir.program import Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowering import PLAIN, Region, Rule, dynamic, placed
from bb_host.tflite.schema import DTYPES


def _reduce(kind: str, *, squared: bool = False, root: bool = False) -> Any:
    """`squared`: of the squares; `root`: the root of it all."""

    def rule(region: Region, op: Op) -> None:
        name = op.inputs[0]
        shape = region.fact(name).shape
        rank = len(shape)
        given = region.constant(op, 1) if len(op.inputs) > 1 else None
        axes = given.tolist() if given is not None else op.integers("axes")
        if not axes and op.attrs.get("noop_with_empty_axes", 0):
            raise NotLowered("it reduces nothing")
        axes = sorted({a % rank for a in axes}) or list(range(rank))
        if 0 in axes and dynamic(shape):
            raise NotLowered("it reduces an open batch")
        keep = bool(op.attrs.get("keepdims", 1))
        layout = region.layout([name])
        if layout == PLAIN or not (keep or set(range(2, rank)) <= set(axes)):
            layout, places = PLAIN, axes
        else:
            # Without what it reduces nothing of height and width is left, nor of a series' height.
            places = [placed(a, layout) for a in axes] if keep else [a for a in axes if a < 1] + [1, 2]
            if not keep and 1 in axes:
                places.append(3)
        given_in = layout if keep else PLAIN
        x, result = region.read(name, layout), region.result(op, given_in)
        if squared:
            x = region.op("MUL", [x, x], region.graph.shape(x))
        if kind == "SUM" and 0 in places and len(places) > 1:
            # Over each image, then over images: one long sum in float loses two digits.
            few = tuple(1 if i in places and i else n for i, n in enumerate(region.graph.shape(x)))
            x = region.op(kind, [x, region.ints([p for p in places if p])], few, keep_dims=True)
        y = region.op(kind, [x, region.ints(places)], result, keep_dims=keep)
        if root:
            y = region.op("SQRT", [y], result)
        region.give(op.outputs[0], y, given_in)

    return rule


def _arg_max(region: Region, op: Op) -> None:
    shape = region.fact(op.inputs[0]).shape
    axis = op.integer("axis", 0) % len(shape)
    if op.attrs.get("select_last_index", 0):
        raise NotLowered("it selects the last of equals")
    if axis == 0 and dynamic(shape):
        raise NotLowered("it reduces an open batch")
    few = (*shape[:axis], *shape[axis + 1 :])
    y = region.op(
        "ARG_MAX",
        [region.read(op.inputs[0]), region.graph.constant(np.asarray(axis, np.int32))],
        few,
        dtype="int64",
        output_type=DTYPES["int64"],
    )
    if op.attrs.get("keepdims", 1):
        y = region.reshaped(y, region.result(op))
    region.give(op.outputs[0], y)


RULES: dict[str, Rule] = {
    "ArgMax": _arg_max,
    "ReduceL2": _reduce("SUM", squared=True, root=True),
    "ReduceMax": _reduce("REDUCE_MAX"),
    "ReduceMean": _reduce("MEAN"),
    "ReduceMin": _reduce("REDUCE_MIN"),
    "ReduceSum": _reduce("SUM"),
    "ReduceSumSquare": _reduce("SUM", squared=True),
}
