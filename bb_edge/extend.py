"""Everything that the author of a component imports: contracts, contexts, types, errors and our components.

docs/how-to/components.md shows how to use it. A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.backend import TFLiteBackend
    from bb_edge.components.array_data_source import ArrayDataSource
    from bb_edge.components.board_conditions import BoardConditions
    from bb_edge.components.combiner import Combiner
    from bb_edge.components.combining import CombiningAggregator
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
    from bb_edge.components.state import StateReader, pack_array, pack_state
    from bb_edge.construction import build
    from bb_edge.ir.address import Address
    from bb_edge.ir.errors import BBError
    from bb_edge.ir.ids import PeerId
    from bb_edge.ir.onnx_pb2 import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto
    from bb_edge.ir.opsets.records import Effect, Opset
    from bb_edge.ir.opsets.records import OpDef as OpRecord
    from bb_edge.ir.opsets.records import Table as OpTable
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.tensors import from_tensor_proto as array_of
    from bb_edge.ir.types import TypeNode, ValueType, register_type
    from bb_edge.ir.types import by_id as find_type
    from bb_edge.ir.values import TRIGGER, Composite, Trigger
    from bb_edge.registry import RegistryError, register
    from bb_edge.roles.adoption import Adoption
    from bb_edge.roles.backend import Backend
    from bb_edge.roles.completion import CompletionHandle, Later
    from bb_edge.roles.component import Component, ComponentEnv
    from bb_edge.roles.context import AddressBookView, Bus, Ctx, PeerView, ProtocolCtx, Scheduler
    from bb_edge.roles.contracts import (
        Aggregator,
        Codec,
        DataSource,
        Dominant,
        GivenUp,
        Index,
        LeftOut,
        Model,
        PeerSelector,
        ProtocolComponent,
        forgets,
    )
    from bb_edge.roles.errors import (
        BackendError,
        BackendRunError,
        CompletionLostError,
        ComponentError,
        ComponentStateError,
        ContractError,
        ContributionRefused,
        KeptValueError,
        MaterializeError,
        OptionalMethodError,
        RequestDeclined,
        UnsupportedOpsError,
    )
    from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions
    from bb_edge.roles.settings import Misfit, Setting
    from bb_edge.wire.codecs import register_codec
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.backends.numpy_backend": "NumPyBackend",
            "bb_edge.backends.tflite.backend": "TFLiteBackend",
            "bb_edge.components.array_data_source": "ArrayDataSource",
            "bb_edge.components.board_conditions": "BoardConditions",
            "bb_edge.components.combiner": "Combiner",
            "bb_edge.components.combining": "CombiningAggregator",
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
            "bb_edge.components.state": "StateReader, pack_array, pack_state",
            "bb_edge.construction": "build",
            "bb_edge.ir.address": "Address",
            "bb_edge.ir.errors": "BBError",
            "bb_edge.ir.ids": "PeerId",
            "bb_edge.ir.onnx_pb2": "AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto",
            "bb_edge.ir.opsets.records": "Effect, Opset, OpDef as OpRecord, Table as OpTable",
            "bb_edge.ir.tensors": "Array, from_tensor_proto as array_of",
            "bb_edge.ir.types": "TypeNode, ValueType, register_type, by_id as find_type",
            "bb_edge.ir.values": "TRIGGER, Composite, Trigger",
            "bb_edge.registry": "RegistryError, register",
            "bb_edge.roles.adoption": "Adoption",
            "bb_edge.roles.backend": "Backend",
            "bb_edge.roles.completion": "CompletionHandle, Later",
            "bb_edge.roles.component": "Component, ComponentEnv",
            "bb_edge.roles.context": "AddressBookView, Bus, Ctx, PeerView, ProtocolCtx, Scheduler",
            "bb_edge.roles.contracts": (
                "Aggregator, Codec, DataSource, Dominant, GivenUp, Index, LeftOut, Model, "
                "PeerSelector, ProtocolComponent, forgets"
            ),
            "bb_edge.roles.errors": (
                "BackendError, BackendRunError, CompletionLostError, ComponentError, "
                "ComponentStateError, ContractError, ContributionRefused, KeptValueError, "
                "MaterializeError, OptionalMethodError, RequestDeclined, UnsupportedOpsError"
            ),
            "bb_edge.roles.programs": "BackendAttrs, BackendProgram, Functions",
            "bb_edge.roles.settings": "Misfit, Setting",
            "bb_edge.wire.codecs": "register_codec",
        },
    )

__all__ = [
    # components
    "Component",
    "ComponentEnv",
    "Setting",
    "Misfit",
    "register",
    "build",
    "forgets",
    # the contracts of the roles
    "Aggregator",
    "Dominant",
    "GivenUp",
    "LeftOut",
    "Codec",
    "DataSource",
    "Index",
    "Model",
    "PeerSelector",
    "ProtocolComponent",
    "Backend",
    "BackendAttrs",
    "BackendProgram",
    "Functions",
    # arguments and results of calls
    "Ctx",
    "ProtocolCtx",
    "PeerView",
    "AddressBookView",
    "Scheduler",
    "Bus",
    "Later",
    "CompletionHandle",
    "TRIGGER",
    "Trigger",
    "Composite",
    "Array",
    "PeerId",
    "Address",
    # own types, and the ops of a protocol
    "TypeNode",
    "ValueType",
    "register_type",
    "find_type",
    "register_codec",
    "OpTable",
    "Opset",
    "OpRecord",
    "Effect",
    # graphs that a backend gets
    "FunctionProto",
    "GraphProto",
    "NodeProto",
    "AttributeProto",
    "TensorProto",
    "array_of",
    # state in snapshots
    "StateReader",
    "Adoption",
    "pack_state",
    "pack_array",
    # errors
    "BBError",
    "BackendError",
    "BackendRunError",
    "CompletionLostError",
    "ComponentError",
    "ComponentStateError",
    "ContractError",
    "ContributionRefused",
    "MaterializeError",
    "OptionalMethodError",
    "RequestDeclined",
    "UnsupportedOpsError",
    "RegistryError",
    # components of the runtime, to derive from
    "ArrayDataSource",
    "BoardConditions",
    "Combiner",
    "CombiningAggregator",
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
    "NumPyBackend",
    "KeptValue",
    "KeptValueError",
    "OncePerRound",
    "PresenceSelector",
    "ScalarQuantizer",
    "TFLiteBackend",
]
