"""A node's state on disk, in files that survive a power cut at any moment, and who writes them when.

Names are imported when they are first used: a node without a folder loads none of what writes one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bb_edge.state.errors import (
    StateDamagedError,
    StateDeniedError,
    StateError,
    StateForeignError,
    StateFullError,
    StateReadError,
    StateVersionError,
    StateWriteError,
)
from bb_edge.state.limits import StoreLimits

if TYPE_CHECKING:
    from bb_edge.state.record_framing import Owner
    from bb_edge.state.store import Recovered, StateStore

__all__ = [
    "Owner",
    "Recovered",
    "StateDamagedError",
    "StateDeniedError",
    "StateError",
    "StateForeignError",
    "StateFullError",
    "StateReadError",
    "StateStore",
    "StateVersionError",
    "StateWriteError",
    "StoreLimits",
]

_HOMES = {
    "Owner": "bb_edge.state.record_framing",
    "Recovered": "bb_edge.state.store",
    "StateStore": "bb_edge.state.store",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    # so that this runs once per name
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
