"""Conversions between numbers that are not tensors and tensors of one element."""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_edge.engine.binding import Bind, BindEnv, OpContext, Run
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir import types


def _as_tensor(op: BoundOp, env: BindEnv) -> Run:
    elem = op.spec.attrs.get("to")
    dtype = types.dtype_of_elem(elem) if isinstance(elem, int) else None
    if dtype is None:
        raise OpError(f"attribute to must be an element type, not {elem!r}", where=op.spec.name)

    def run(ctx: OpContext, value: Any) -> object:
        try:
            return np.asarray(value, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise OpError(f"{value!r} is not a number of type {dtype}", where=ctx.op.spec.name) from error

    return run


def _as_scalar(op: BoundOp, env: BindEnv) -> Run:
    def run(ctx: OpContext, value: Any) -> object:
        array = np.asarray(value)
        if array.size != 1:
            raise OpError(
                f"expected one element, got {array.size} (shape {list(array.shape)})",
                where=ctx.op.spec.name,
                hint="pick one first: g.onnx.reduce_mean(x, keepdims=0), x[0]",
            )
        return array.item()

    return run


BINDERS: dict[str, Bind] = {"AsTensor": _as_tensor, "AsScalar": _as_scalar}
