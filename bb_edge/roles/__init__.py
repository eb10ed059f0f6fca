"""The Contracts of components: what a backend, a model, an aggregator and so on must offer.

`Component` is the base of every concrete one, `ComponentEnv` what it is built from, `Ctx` what its methods
get, `Later` how they answer later; `TRIGGER` and `Composite` are the values that are neither arrays nor ids.

Modules import downwards only: errors, completion, settings < context, programs, tensor_primitives <
component < contracts, backend < class_check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from bb_edge.roles.backend import Backend
    from bb_edge.roles.completion import CompletionHandle, CompletionSink, Later
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
        method_name,
        offers,
    )
    from bb_edge.roles.errors import (
        AggregateNotFinite,
        BackendError,
        BackendMemoryError,
        BackendRunError,
        BackendWalkError,
        CompletionError,
        CompletionExpiredError,
        CompletionLostError,
        ComponentError,
        ComponentStateError,
        ContractError,
        ContributionRefused,
        MaterializeError,
        OptionalMethodError,
        RequestDeclined,
        RoleError,
        UnsupportedOpsError,
    )
    from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions, Preparer, Tensor
    from bb_edge.roles.settings import Setting
    from bb_edge.roles.tensor_primitives import PRIMITIVE_METHODS, TensorPrimitives
    from bb_edge.roles.values import TRIGGER, Composite, Trigger
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "bb_edge.roles.backend": "Backend",
            "bb_edge.roles.completion": "CompletionHandle, CompletionSink, Later",
            "bb_edge.roles.component": "Component, ComponentEnv",
            "bb_edge.roles.context": "AddressBookView, Bus, Ctx, PeerView, ProtocolCtx, Scheduler",
            "bb_edge.roles.contracts": (
                "Aggregator, Codec, DataSource, Dominant, GivenUp, Index, LeftOut, Model, "
                "PeerSelector, ProtocolComponent, forgets, method_name, offers"
            ),
            "bb_edge.roles.errors": (
                "AggregateNotFinite, BackendError, BackendMemoryError, BackendRunError, "
                "BackendWalkError, CompletionError, CompletionExpiredError, CompletionLostError, "
                "ComponentError, ComponentStateError, ContractError, ContributionRefused, "
                "MaterializeError, OptionalMethodError, RequestDeclined, RoleError, "
                "UnsupportedOpsError"
            ),
            "bb_edge.roles.programs": "BackendAttrs, BackendProgram, Functions, Preparer, Tensor",
            "bb_edge.roles.settings": "Setting",
            "bb_edge.roles.tensor_primitives": "PRIMITIVE_METHODS, TensorPrimitives",
            "bb_edge.roles.values": "TRIGGER, Composite, Trigger",
        },
    )

__all__ = [
    # values
    "TRIGGER",
    "Trigger",
    "Composite",
    # components
    "Component",
    "ComponentEnv",
    "Setting",
    "forgets",
    "method_name",
    "offers",
    # contracts
    "Model",
    "Aggregator",
    "Dominant",
    "GivenUp",
    "LeftOut",
    "Index",
    "Codec",
    "DataSource",
    "PeerSelector",
    "ProtocolComponent",
    "ProtocolCtx",
    "Backend",
    "BackendAttrs",
    "BackendProgram",
    "Functions",
    "Preparer",
    "Tensor",
    "TensorPrimitives",
    "PRIMITIVE_METHODS",
    # what the engine gives
    "Ctx",
    "PeerView",
    "AddressBookView",
    "Scheduler",
    "Bus",
    "CompletionHandle",
    "CompletionSink",
    "Later",
    # errors
    "RoleError",
    "ContractError",
    "ComponentError",
    "ComponentStateError",
    "AggregateNotFinite",
    "ContributionRefused",
    "OptionalMethodError",
    "RequestDeclined",
    "CompletionError",
    "CompletionExpiredError",
    "CompletionLostError",
    "BackendError",
    "BackendMemoryError",
    "BackendRunError",
    "BackendWalkError",
    "MaterializeError",
    "UnsupportedOpsError",
]
