"""A node's state on disk, in files that survive a power cut at any moment, and who writes them when.

Names are imported when they are first used: a node without a folder loads none of what writes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports
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
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.state.record_framing": "Owner",
            "bb_edge.state.store": "Recovered, StateStore",
        },
    )

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
