"""A node's state on disk, in files that survive a power cut at any moment, and who writes them when."""

from __future__ import annotations

from bb_edge.state.errors import (
    StateDamagedError,
    StateError,
    StateForeignError,
    StateFullError,
    StateReadError,
    StateVersionError,
    StateWriteError,
)
from bb_edge.state.record_framing import Owner
from bb_edge.state.store import Recovered, StateStore, StoreLimits

__all__ = [
    "Owner",
    "Recovered",
    "StateDamagedError",
    "StateError",
    "StateForeignError",
    "StateFullError",
    "StateReadError",
    "StateStore",
    "StateVersionError",
    "StateWriteError",
    "StoreLimits",
]
