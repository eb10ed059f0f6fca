"""Tensors from attributes alone."""

from __future__ import annotations

import numpy as np

from .errors import KernelAttributeError
from .registry import Call, kernel
from .shape import known
from .spec import F32, I64, Prepared


@kernel("Constant", "", attrs="value value_float value_floats value_int value_ints")
def _constant(call: Call) -> Prepared:
    """sparse_value and strings are refused by name."""
    if len(call.attrs) != 1:
        raise KernelAttributeError(
            f"Constant: exactly one value attribute is needed, got {sorted(call.attrs)}"
        )
    ((name, value),) = call.attrs.items()
    if name == "value":
        if not isinstance(value, np.ndarray):
            raise KernelAttributeError(f"Constant: value must be a tensor, got {type(value).__name__}")
        return known(call, value.copy())
    return known(call, np.array(value, F32 if name.startswith("value_float") else I64))
