"""What a host gives for tensors: arrays are taken as they are, numbers converted; or what to give instead."""

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


def host_array(value: object, dtype: np.dtype[Any] | None, shape: Sequence[object] | None) -> Array:
    """Returns the value as an array of that dtype and shape. ArrayMisfitError where it is none.

    None means that any will do; in a shape, so does whatever is not a number. An array is not copied;
    numbers and lists become arrays as `numbers_as` says.
    """
    if type(value) is not np.ndarray:
        if is_masked(value):
            hint = "give array.filled(value)"
            raise ArrayMisfitError("it is a masked array, whose mask would be lost", hint=hint)
        # Subclasses of arrays may change operators.
        value = np.asarray(value) if isinstance(value, np.ndarray) else numbers_as(value, dtype)
    if dtype is not None and value.dtype != dtype:
        hint = "give an array of numbers" if value.dtype == object else f"give array.astype('{dtype}')"
        raise ArrayMisfitError(f"expected dtype {dtype}, got {value.dtype}", hint=hint)
    if shape is not None and (
        len(shape) != value.ndim or any(isinstance(d, int) and d != n for d, n in zip(shape, value.shape))  # noqa: B905 (just compared)
    ):
        raise ArrayMisfitError(f"expected shape {list(shape)}, got {list(value.shape)}")
    return value


def numbers_as(value: object, dtype: np.dtype[Any] | None) -> Array:
    """Returns a number, or lists of numbers, as an array of a dtype: the one rule for what hosts write.

    None is the dtype that NumPy chooses. A float type rounds to the nearest number that it has; every other
    type holds a number exactly, BOOL 0 and 1. ArrayMisfitError for what does not fit: 3.5 in I64, 300 in
    U8, 1e300 in F32, a text, None.
    """
    try:
        array = np.asarray(value)
        if array.dtype == object and dtype is not None and dtype.kind == "f" and _whole_numbers(array):
            array = np.asarray(value, np.float64)  # whole numbers beyond 64 bits
    except OverflowError:
        raise ArrayMisfitError(f"{_brief(value)} does not fit {dtype}", hint="give smaller numbers") from None
    except TypeError as error:
        raise ArrayMisfitError(f"it is not an array of numbers: {error}", hint="give an array") from error
    except ValueError as error:
        fault = f"{_brief(value)} has rows of different lengths"
        raise ArrayMisfitError(fault, hint="give rows of one length") from error
    if array.dtype == object and _whole_numbers(array):
        fault = f"{_brief(value)} does not fit {dtype or 'int64'}"
        raise ArrayMisfitError(fault, hint="give smaller numbers")
    if array.dtype.kind not in "biuf":
        if not array.size and dtype is not None:
            return array.astype(dtype)
        fault = f"{_brief(value)} is not a number or a list of numbers"
        raise ArrayMisfitError(fault, hint="give numbers" if dtype is None else f"give numbers of {dtype}")
    if dtype is None or array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        wrong = ~_fitting(array, cast)
    if wrong.any():
        fault = f"{array[wrong].flat[0].item()!r} does not fit {dtype}"
        kind = {"b": "True and False, or 1 and 0", "f": "smaller numbers, or infinity"}.get(dtype.kind)
        raise ArrayMisfitError(fault, hint=f"give {kind or f'whole numbers of {dtype}'}")
    return cast


def _fitting(array: Array, cast: Array) -> Array:
    """Which numbers are still what they were, rounded where the other type is one of floats."""
    fits: Array = np.ones(array.shape, bool)
    if cast.dtype.kind == "f":
        fits = np.isfinite(array) == np.isfinite(cast)
    elif cast.dtype.kind == "b":
        fits = (array == 0) | (array == 1)
    elif array.dtype.kind != "b":
        least, most = (int(bound) for bound in (np.iinfo(cast.dtype).min, np.iinfo(cast.dtype).max))
        if array.dtype.kind == "f":  # floats hold powers of two, and not all numbers that are one less
            fits = (array >= float(least)) & (array < float(most + 1)) & (array == np.floor(array))
        else:
            own, scalar = np.iinfo(array.dtype), array.dtype.type
            if own.min < least:
                fits = fits & (array >= scalar(least))
            if own.max > most:
                fits = fits & (array <= scalar(most))
    return fits


def _whole_numbers(array: Array) -> bool:
    return bool(array.size) and all(isinstance(number, int) for number in array.flat)


def _brief(value: object) -> str:
    return f"{value!r:.60}"
