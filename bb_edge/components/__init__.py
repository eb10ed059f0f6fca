"""The concrete components that ship with the runtime; each is imported when it is first named."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bb_edge.components.array_data_source import ArrayDataSource
    from bb_edge.components.board_conditions import BoardConditions
    from bb_edge.components.constant_view import ConstantView
    from bb_edge.components.csv_data_source import CsvDataSource
    from bb_edge.components.csv_stream_data_source import CsvStreamDataSource
    from bb_edge.components.cyclon import Cyclon
    from bb_edge.components.fed_avg import FedAvg
    from bb_edge.components.flat_index import FlatIndex
    from bb_edge.components.float16_codec import Float16Codec
    from bb_edge.components.global_registry import GlobalRegistryClient, GlobalRegistryServer
    from bb_edge.components.graph_model import GraphModel
    from bb_edge.components.image_folder_data_source import ImageFolderDataSource
    from bb_edge.components.once_per_round import OncePerRound
    from bb_edge.components.presence_selector import PresenceSelector
    from bb_edge.components.scalar_quantizer import ScalarQuantizer

__all__ = [
    "ArrayDataSource",
    "BoardConditions",
    "ConstantView",
    "CsvDataSource",
    "CsvStreamDataSource",
    "Cyclon",
    "FedAvg",
    "FlatIndex",
    "Float16Codec",
    "GlobalRegistryClient",
    "GlobalRegistryServer",
    "GraphModel",
    "ImageFolderDataSource",
    "OncePerRound",
    "PresenceSelector",
    "ScalarQuantizer",
]

_MODULES = {
    "ArrayDataSource": "array_data_source",
    "BoardConditions": "board_conditions",
    "ConstantView": "constant_view",
    "CsvDataSource": "csv_data_source",
    "CsvStreamDataSource": "csv_stream_data_source",
    "Cyclon": "cyclon",
    "FedAvg": "fed_avg",
    "FlatIndex": "flat_index",
    "Float16Codec": "float16_codec",
    "GlobalRegistryClient": "global_registry",
    "GlobalRegistryServer": "global_registry",
    "GraphModel": "graph_model",
    "ImageFolderDataSource": "image_folder_data_source",
    "OncePerRound": "once_per_round",
    "PresenceSelector": "presence_selector",
    "ScalarQuantizer": "scalar_quantizer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
