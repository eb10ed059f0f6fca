"""Everything that the author of a component imports: contracts, contexts, types, errors and our components.

docs/how-to/components.md shows how to use it. A name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
        MaterializeError,
        OptionalMethodError,
        RequestDeclined,
        UnsupportedOpsError,
    )
    from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions
    from bb_edge.roles.settings import Misfit, Setting
    from bb_edge.wire.codecs import register_codec

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
    "OncePerRound",
    "PresenceSelector",
    "ScalarQuantizer",
    "TFLiteBackend",
]

_HOMES = {
    "Component": "bb_edge.roles.component",
    "ComponentEnv": "bb_edge.roles.component",
    "Setting": "bb_edge.roles.settings",
    "Misfit": "bb_edge.roles.settings",
    "register": "bb_edge.registry",
    "build": "bb_edge.construction",
    "forgets": "bb_edge.roles.contracts",
    "Aggregator": "bb_edge.roles.contracts",
    "Dominant": "bb_edge.roles.contracts",
    "GivenUp": "bb_edge.roles.contracts",
    "LeftOut": "bb_edge.roles.contracts",
    "Codec": "bb_edge.roles.contracts",
    "DataSource": "bb_edge.roles.contracts",
    "Index": "bb_edge.roles.contracts",
    "Model": "bb_edge.roles.contracts",
    "PeerSelector": "bb_edge.roles.contracts",
    "ProtocolComponent": "bb_edge.roles.contracts",
    "Backend": "bb_edge.roles.backend",
    "BackendAttrs": "bb_edge.roles.programs",
    "BackendProgram": "bb_edge.roles.programs",
    "Functions": "bb_edge.roles.programs",
    "Ctx": "bb_edge.roles.context",
    "ProtocolCtx": "bb_edge.roles.context",
    "PeerView": "bb_edge.roles.context",
    "AddressBookView": "bb_edge.roles.context",
    "Scheduler": "bb_edge.roles.context",
    "Bus": "bb_edge.roles.context",
    "Later": "bb_edge.roles.completion",
    "CompletionHandle": "bb_edge.roles.completion",
    "TRIGGER": "bb_edge.ir.values",
    "Trigger": "bb_edge.ir.values",
    "Composite": "bb_edge.ir.values",
    "Array": "bb_edge.ir.tensors",
    "PeerId": "bb_edge.ir.ids",
    "Address": "bb_edge.ir.address",
    "TypeNode": "bb_edge.ir.types",
    "ValueType": "bb_edge.ir.types",
    "register_type": "bb_edge.ir.types",
    "find_type": "bb_edge.ir.types:by_id",
    "register_codec": "bb_edge.wire.codecs",
    "OpTable": "bb_edge.ir.opsets.records:Table",
    "Opset": "bb_edge.ir.opsets.records",
    "OpRecord": "bb_edge.ir.opsets.records:OpDef",
    "Effect": "bb_edge.ir.opsets.records",
    "FunctionProto": "bb_edge.ir.onnx_pb2",
    "GraphProto": "bb_edge.ir.onnx_pb2",
    "NodeProto": "bb_edge.ir.onnx_pb2",
    "AttributeProto": "bb_edge.ir.onnx_pb2",
    "TensorProto": "bb_edge.ir.onnx_pb2",
    "array_of": "bb_edge.ir.tensors:from_tensor_proto",
    "StateReader": "bb_edge.components.state",
    "Adoption": "bb_edge.roles.adoption",
    "pack_state": "bb_edge.components.state",
    "pack_array": "bb_edge.components.state",
    "BBError": "bb_edge.ir.errors",
    "BackendError": "bb_edge.roles.errors",
    "BackendRunError": "bb_edge.roles.errors",
    "CompletionLostError": "bb_edge.roles.errors",
    "ComponentError": "bb_edge.roles.errors",
    "ComponentStateError": "bb_edge.roles.errors",
    "ContractError": "bb_edge.roles.errors",
    "ContributionRefused": "bb_edge.roles.errors",
    "MaterializeError": "bb_edge.roles.errors",
    "OptionalMethodError": "bb_edge.roles.errors",
    "RequestDeclined": "bb_edge.roles.errors",
    "UnsupportedOpsError": "bb_edge.roles.errors",
    "RegistryError": "bb_edge.registry",
    "ArrayDataSource": "bb_edge.components.array_data_source",
    "BoardConditions": "bb_edge.components.board_conditions",
    "Combiner": "bb_edge.components.combiner",
    "CombiningAggregator": "bb_edge.components.combining",
    "ConstantView": "bb_edge.components.constant_view",
    "CsvDataSource": "bb_edge.components.csv_data_source",
    "CsvStreamDataSource": "bb_edge.components.csv_stream_data_source",
    "Cyclon": "bb_edge.components.cyclon",
    "FedAvg": "bb_edge.components.fed_avg",
    "FlatIndex": "bb_edge.components.flat_index",
    "Float16Codec": "bb_edge.components.float16_codec",
    "GlobalRegistryClient": "bb_edge.components.global_registry",
    "GlobalRegistryServer": "bb_edge.components.global_registry",
    "GraphModel": "bb_edge.components.graph_model",
    "ImageFolderDataSource": "bb_edge.components.image_folder_data_source",
    "NumPyBackend": "bb_edge.backends.numpy_backend",
    "OncePerRound": "bb_edge.components.once_per_round",
    "PresenceSelector": "bb_edge.components.presence_selector",
    "ScalarQuantizer": "bb_edge.components.scalar_quantizer",
    "TFLiteBackend": "bb_edge.backends.tflite.backend",
}
"""Name → module, or module:name if it has another name there."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        from bb_edge.ir.suggestions import suggestion

        hint = suggestion(name, _HOMES, "it has ")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}")
    module, _, own = home.partition(":")
    value: object = getattr(importlib.import_module(module), own or name)
    if isinstance(value, type) and getattr(value, "__module__", "") is None:
        value.__module__ = module  # protobuf does not set it, and help() needs it
    globals()[name] = value  # so that this runs once per name
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
