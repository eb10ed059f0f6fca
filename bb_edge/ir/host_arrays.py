"""Arrays that a host gives for tensors: taken as they are, or refused with what to give instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bb_edge.ir.errors import BBError

Array = np.ndarray[Any, np.dtype[Any]]


def is_masked(value: object) -> bool:
    """Returns whether a value is a masked array of NumPy.

    `numpy.ma` is loaded by whoever makes one; a look at it by its name would load it, 1.3 MB and 20 ms.
    """
    masks = sys.modules.get("numpy.ma")
    return masks is not None and isinstance(value, masks.MaskedArray)


class ArrayMisfitError(BBError):
    """The value is not an array of the declared dtype and shape."""


def host_array(
    value: object,
    dtype: np.dtype[Any] | None,
    shape: Sequence[object] | None,
    of_lists: np.dtype[Any] | None = None,
) -> Array:
    """Returns the value as an array of that dtype and shape. ArrayMisfitError where it is none.

    None means that any will do; in a shape, so does whatever is not a number. An array is not copied;
    numbers and lists of them become arrays of dtype `of_lists`, or of the one that NumPy chooses.
    """
    if type(value) is not np.ndarray:
        if is_masked(value):
            hint = "give array.filled(value)"
            raise ArrayMisfitError("it is a masked array, whose mask would be lost", hint=hint)
        try:  # also for subclasses of arrays, which may change operators
            value = np.asarray(value, None if isinstance(value, np.ndarray) else of_lists)
        except (TypeError, ValueError) as error:
            hint = "give rows of one length"
            raise ArrayMisfitError(f"it is not an array of numbers: {error}", hint=hint) from error
    if dtype is not None and value.dtype != dtype:
        hint = "give an array of numbers" if value.dtype == object else f"give array.astype('{dtype}')"
        raise ArrayMisfitError(f"expected dtype {dtype}, got {value.dtype}", hint=hint)
    if shape is not None and (
        len(shape) != value.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, value.shape))  # noqa: B905 (just compared)
    ):
        raise ArrayMisfitError(f"expected shape {list(shape)}, got {list(value.shape)}")
    return value
