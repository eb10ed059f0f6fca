"""The concrete components that ship with the runtime; each is imported when it is first named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

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
    from bb_edge.components.kept_value import KeptValue
    from bb_edge.components.once_per_round import OncePerRound
    from bb_edge.components.presence_selector import PresenceSelector
    from bb_edge.components.scalar_quantizer import ScalarQuantizer
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.components.array_data_source": "ArrayDataSource",
            "bb_edge.components.board_conditions": "BoardConditions",
            "bb_edge.components.constant_view": "ConstantView",
            "bb_edge.components.csv_data_source": "CsvDataSource",
            "bb_edge.components.csv_stream_data_source": "CsvStreamDataSource",
            "bb_edge.components.cyclon": "Cyclon",
            "bb_edge.components.fed_avg": "FedAvg",
            "bb_edge.components.flat_index": "FlatIndex",
            "bb_edge.components.float16_codec": "Float16Codec",
            "bb_edge.components.global_registry": "GlobalRegistryClient, GlobalRegistryServer",
            "bb_edge.components.graph_model": "GraphModel",
            "bb_edge.components.image_folder_data_source": "ImageFolderDataSource",
            "bb_edge.components.kept_value": "KeptValue",
            "bb_edge.components.once_per_round": "OncePerRound",
            "bb_edge.components.presence_selector": "PresenceSelector",
            "bb_edge.components.scalar_quantizer": "ScalarQuantizer",
        },
    )

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
    "KeptValue",
    "OncePerRound",
    "PresenceSelector",
    "ScalarQuantizer",
]
