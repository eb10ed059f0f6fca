"""Weights as float16: half the artifact, computed in float32 as before.

1. Each float32 constant of a backend function with at least `SMALLEST` entries becomes a float16 constant
and a `Cast`, which a backend folds when it prepares the function. 2. A constant with an entry that float16
cannot hold (beyond 65504, not finite) stays. 3. Constants inside of branches and loops stay.
"""

from __future__ import annotations

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.values import Values, constant, constant_array

SMALLEST = 64
"""Entries from which on a constant is stored as float16: below, the Cast costs more than it saves."""


def halve(program: Program) -> Program:
    """Every backend function of a program; the program itself where none has such a constant."""
    return program.with_functions(
        halve_function(f) if f.domain == keys.BACKEND_DOMAIN else f for f in program.functions
    )


def halve_function(function: Function) -> Function:
    """One function."""
    values = Values(function)
    ops: list[Op] = []
    for op in function.ops:
        array = constant_array(op)
        if array is None or array.dtype != np.float32 or array.size < SMALLEST:
            ops.append(op)
            continue
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            ops.append(op)
            continue
        stored = values.fresh(f"{op.outputs[0]}_f16")
        ops.append(constant(stored, half))
        ops.append(Op("Cast", "", (stored,), op.outputs, {"to": TensorProto.FLOAT}))
    return function.with_ops(ops)
