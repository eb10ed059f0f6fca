"""The host side: records programs as ONNX, compiles them and prepares them for a device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.ir.missing import MissingReason
    from bb_host.compiler.driver import Compiler
    from bb_host.dsl import (
        AggregatorSlot,
        BackendSlot,
        CodecSlot,
        DataSourceSlot,
        Graph,
        IndexSlot,
        ModelModule,
        ModelSlot,
        Module,
        Output,
        PeerSelectorSlot,
        ProtocolSlot,
    )

US = 1_000
"""A microsecond in nanoseconds."""
MS = 1_000_000
"""A millisecond in nanoseconds."""
S = 1_000_000_000
"""A second in nanoseconds."""

_ELSEWHERE = {"Compiler": "bb_host.compiler.driver", "MissingReason": "bb_edge.ir.missing"}
"""What is not in `bb_host.dsl`."""

__all__ = [
    "MS",
    "S",
    "US",
    "Compiler",
    "AggregatorSlot",
    "BackendSlot",
    "CodecSlot",
    "DataSourceSlot",
    "Graph",
    "IndexSlot",
    "MissingReason",
    "ModelModule",
    "ModelSlot",
    "Module",
    "Output",
    "PeerSelectorSlot",
    "ProtocolSlot",
]


def __getattr__(name: str) -> object:
    """Exports on demand, so that one command does not pay for another's imports."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "bb_host.dsl")), name)
