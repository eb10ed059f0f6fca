"""NumPy's reductions and clip under plain names.

The names are typed loosely on purpose: NumPy's stubs give every ufunc a type of its own, and they differ
between NumPy versions. All reductions are called positionally, ``f(x, axes, dtype, out, keepdims)``.
"""

from __future__ import annotations

import numpy as np

from .spec import Array, Dtype, Ufunc


def _find() -> Ufunc:
    """Return NumPy's clip as the ufunc that it is, wherever this version keeps it."""
    # np.clip is a Python wrapper around this ufunc and costs more than the work on small tensors. NumPy 2
    # renamed the module that holds it.
    for module in ("_core", "core"):
        umath = getattr(getattr(np, module, None), "umath", None)
        if umath is not None and hasattr(umath, "clip"):
            return umath.clip
    return np.clip


#: clip(x, low, high, out): low and high are 0-d arrays of x's dtype; NaN stays NaN.
clip: Ufunc = _find()

add_reduce: Ufunc = np.add.reduce
mul_reduce: Ufunc = np.multiply.reduce
max_reduce: Ufunc = np.maximum.reduce
min_reduce: Ufunc = np.minimum.reduce


def scalar(value: float, dtype: Dtype) -> Array:
    """Return a number as a 0-d array, so that it does not decide the type of a result."""
    return np.array(value, dtype)


def lowest(dtype: Dtype) -> Array:
    """Return the smallest value of a type as a 0-d array (-inf for floats)."""
    return np.array(-np.inf if dtype.kind == "f" else np.iinfo(dtype).min, dtype)


def highest(dtype: Dtype) -> Array:
    """Return the largest value of a type as a 0-d array (inf for floats)."""
    return np.array(np.inf if dtype.kind == "f" else np.iinfo(dtype).max, dtype)
