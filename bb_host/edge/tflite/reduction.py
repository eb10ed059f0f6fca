"""ReduceMean and its kin, ArgMax."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bb_host.edge.tflite.errors import NotLowered
from bb_host.edge.tflite.lowering import NHWC, PLAIN, Region, dynamic
from bb_host.edge.tflite.schema import DTYPES
from bb_host.edge.tflite.windows import ints_of
from bb_host.program import Op

__all__ = ["RULES"]

_PLACE = {0: 0, 1: 3, 2: 1, 3: 2}


def _reduce(kind: str) -> Any:
    def rule(region: Region, op: Op) -> None:
        name = op.inputs[0]
        shape = region.fact(name).shape
        rank = len(shape)
        given = region.constant(op, 1) if len(op.inputs) > 1 else None
        axes = given.tolist() if given is not None else ints_of(op, "axes", ())
        if not axes and op.attrs.get("noop_with_empty_axes", 0):
            raise NotLowered("it reduces nothing")
        axes = sorted({a % rank for a in axes}) or list(range(rank))
        if 0 in axes and dynamic(shape):
            raise NotLowered("it reduces an open batch")
        keep = bool(op.attrs.get("keepdims", 1))
        last = region.layout([name]) == NHWC and (keep or axes == [2, 3])
        layout = NHWC if last else PLAIN
        places = [_PLACE[a] for a in axes] if last else axes
        result = region.result(op, NHWC if last and keep else PLAIN)
        y = region.op(kind, [region.read(name, layout), region.ints(places)], result, keep_dims=keep)
        region.give(op.outputs[0], y, NHWC if last and keep else PLAIN)

    return rule


def _arg_max(region: Region, op: Op) -> None:
    shape = region.fact(op.inputs[0]).shape
    axis = int(cast("int", op.attrs.get("axis", 0))) % len(shape)
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


RULES: dict[str, Any] = {
    "ArgMax": _arg_max,
    "ReduceMax": _reduce("REDUCE_MAX"),
    "ReduceMean": _reduce("MEAN"),
    "ReduceMin": _reduce("REDUCE_MIN"),
    "ReduceSum": _reduce("SUM"),
}
