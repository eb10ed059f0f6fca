"""Turns NumPy's floating point warnings off around a run: ONNX computes inf and nan without warnings.

`np.errstate` costs as much as three small ufunc calls. What it sets is one context variable (NumPy 2) or one
list (NumPy 1), which this module sets directly; if neither is found, it uses `np.errstate`.

The same setting holds the size of the buffers of ufuncs with mixed dtypes or broadcast operands. NumPy's
default is 8,192 elements, 32 KiB per operand and call, and is not faster for the arrays of models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

__all__ = ["BUFFER", "hush", "unhush"]

BUFFER = 256
"""Elements of a ufunc's buffer."""


def _numpy2() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    from numpy._core import _ufunc_config, umath

    variable: Any = _ufunc_config._extobj_contextvar  # type: ignore[attr-defined]
    make: Any = getattr(umath, "_make_extobj")  # noqa: B009
    quiet: Any = make(all="ignore", bufsize=BUFFER)
    enter = variable.set
    return partial(enter, quiet), variable.reset


def _numpy1() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    read: Any = np.geterrobj  # type: ignore[attr-defined]
    write: Any = np.seterrobj  # type: ignore[attr-defined]

    def enter() -> Any:
        before = read()
        write([BUFFER, 0, before[2]])
        return before

    return enter, write


def _errstate() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def enter() -> Any:
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    return enter, lambda state: state.__exit__(None, None, None)


def _works(pair: tuple[Callable[[], Any], Callable[[Any], None]]) -> bool:
    """Whether warnings are off inside, and as before outside."""
    zero = np.zeros(1, np.float32)
    with np.errstate(all="raise"):
        before = np.geterr()
        token = pair[0]()
        try:
            np.divide(zero, zero)
        except FloatingPointError:
            return False
        finally:
            pair[1](token)
        return np.geterr() == before


def _choose() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    for build in (_numpy2, _numpy1):
        try:
            pair = build()
            if _works(pair):
                return pair
        except (ImportError, AttributeError, TypeError):
            continue
    return _errstate()


hush, unhush = _choose()
"""Call `token = hush()` before a run and `unhush(token)` after it, in the same thread."""
