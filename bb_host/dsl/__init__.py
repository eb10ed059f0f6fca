"""The recorder: what a Module's body calls becomes the ops of a function, with the author's lines."""

from __future__ import annotations

from bb_host.dsl.embedded import ModelModule
from bb_host.dsl.graph import Graph
from bb_host.dsl.module import Module
from bb_host.dsl.output import Output
from bb_host.dsl.slots import (
    AggregatorSlot,
    BackendSlot,
    CodecSlot,
    ComponentSlot,
    DataSourceSlot,
    IndexSlot,
    ModelSlot,
    PeerSelectorSlot,
    ProtocolSlot,
    ValueSlot,
)

__all__ = [
    "AggregatorSlot",
    "BackendSlot",
    "CodecSlot",
    "ComponentSlot",
    "DataSourceSlot",
    "Graph",
    "IndexSlot",
    "ModelModule",
    "ModelSlot",
    "Module",
    "Output",
    "PeerSelectorSlot",
    "ProtocolSlot",
    "ValueSlot",
]
