"""The host side: records programs as ONNX, compiles them and prepares them for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

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
        ValueSlot,
    )
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.ir.missing": "MissingReason",
            "bb_host.compiler.driver": "Compiler",
            "bb_host.dsl": (
                "AggregatorSlot, BackendSlot, CodecSlot, DataSourceSlot, Graph, IndexSlot, "
                "ModelModule, ModelSlot, Module, Output, PeerSelectorSlot, ProtocolSlot, "
                "ValueSlot"
            ),
        },
    )

US = 1_000
"""A microsecond in nanoseconds."""
MS = 1_000_000
"""A millisecond in nanoseconds."""
S = 1_000_000_000
"""A second in nanoseconds."""

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
    "ValueSlot",
]
