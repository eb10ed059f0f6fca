"""Whether random numbers were drawn on this machine while a program was recorded: they are its constants."""

from __future__ import annotations

import random
import sys
from typing import Any, TypeAlias

State: TypeAlias = "tuple[object, tuple[object, ...] | None]"

_UNTOUCHED = (623, 624)
"""Where NumPy's generator stands before its first number: as loaded, and as seeded by a number."""


def generators() -> State:
    """The state of Python's generator, and of NumPy's where it is loaded: that import takes long."""
    return random.getstate(), _numpy_state()


def drawn_since(before: State) -> str:
    """The generator that numbers were drawn from since then, or that was seeded; empty for neither.

    Those of `np.random.default_rng(seed)` have states of their own, and are not seen.
    """
    python, numpy = before
    now = _numpy_state()
    if now is not None and (now[1] not in _UNTOUCHED if numpy is None else now != numpy):
        return "numpy.random"
    return "random" if random.getstate() != python else ""


def _numpy_state() -> tuple[object, ...] | None:
    module: Any = sys.modules.get("numpy.random")
    if module is None:
        return None
    _, words, *rest = module.get_state()
    return words.tobytes(), *rest
