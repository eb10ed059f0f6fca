"""Construction state: what a component is built from on the device, as it stands in `attribute_proto`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import cbor2
import numpy as np

from bb_edge.ir.errors import BBError
from bb_edge.ir.types import ValueType
from bb_edge.registry import BUILT_IN, RegistryError, UnregisteredConcreteError, default_registry
from bb_edge.roles import Component, ContractError
from bb_edge.roles.class_check import check_class
from bb_edge.roles.settings import misfit
from bb_host.diagnostics import ProgramWarning
from bb_host.errors import ConstructionError
from bb_host.ir.program import AttrValue, Function, Subgraph
from bb_host.whole_numbers import plain


class ConstructionLike(Protocol):
    """What `construct` returns: the state of the slot, and the functions that it brings."""

    @property
    def attribute(self) -> AttrValue: ...
    @property
    def functions(self) -> tuple[Function, ...]: ...


@runtime_checkable
class Constructs(Protocol):
    """A config that makes its own state, such as a trainable model."""

    def construct(self, slot: str) -> ConstructionLike: ...

    # It may have `warnings() -> Iterable[ProgramWarning]` as well: `construction_warnings` asks. And
    # `graphs(slot, op_types) -> Sequence[Function]`, where the graphs hang on the ops that run on the slot.


_MODEL_FILES = "bb_host.learn.model_file"
"""The module that reads model files, by its name: who reads models knows who binds them, not the reverse."""


def is_model_file(component: object) -> bool:
    """Whether what a model slot is to be bound to is an ONNX file, and no component."""
    return isinstance(component, Path) or (isinstance(component, str) and component.endswith(".onnx"))


def of_model_file(path: str | Path, config: object) -> Constructs:
    """The config of a `bb.GraphModel` that an ONNX file makes; `config` are further keys of it.

    ConstructionError for a file that is not a model, or none that a slot can be bound to.
    """
    if config is not None and not isinstance(config, Mapping):
        what = f"beside the file {path} a config is a mapping, not a {type(config).__name__}"
        raise ConstructionError(what, hint="bind GraphModel with what trainable(file) gives")
    try:
        made: Constructs = importlib.import_module(_MODEL_FILES).open_model_file(path, config)
    except ConstructionError:
        raise
    except BBError as error:
        raise ConstructionError(f"{error.where}: {error.what}", hint=error.hint) from error
    return made


def construction_state(slot: str, config: object) -> tuple[AttrValue, tuple[Function, ...]]:
    """The state of a concrete or bound slot: canonical CBOR of a mapping, a tensor (`tensors["value"]` on the
    device), a type (`config["type"]`), or what `construct` gives.

    Raises ConstructionError for a config that is none of these, or holds what CBOR has no spelling for.
    """
    if config is None:
        return cbor2.dumps({}, canonical=True), ()
    if isinstance(config, Constructs):
        found = config.construct(slot)
        return found.attribute, tuple(found.functions)
    if isinstance(config, np.ndarray | ValueType):
        return config, ()
    if not isinstance(config, Mapping):
        raise ConstructionError(
            f"a config is a mapping, an array, a type, or has construct(slot), not a {type(config).__name__}",
            f"slot {slot!r}",
            "make a model one that can be bound: bb_host.learn.trainable(model)"
            if hasattr(config, "graph")
            else "write it as {'key': value}",
        )
    for key in config:
        if not isinstance(key, str):
            raise ConstructionError(f"key {key!r} is not text", f"slot {slot!r}", f"write it as '{key}'")
    try:
        return cbor2.dumps(plain(config), canonical=True), ()
    except (cbor2.CBOREncodeError, TypeError, ValueError, RecursionError) as error:
        raise ConstructionError(
            f"config has no CBOR form: {error}",
            f"slot {slot!r}",
            "give numbers, texts, bytes, lists and tables of those",
        ) from error


def construction_warnings(
    slot: str, config: object, kind: type[Component] | None, state: AttrValue | None
) -> tuple[ProgramWarning, ...]:
    """What the configuration of a slot or binding warns about, and its keys that do nothing or harm.

    A config that constructs itself warns by its method `warnings()`, where it has one. A warning without a
    place gets the author's line of the slot or binding. Raises ConstructionError for anything but
    ProgramWarnings.
    """
    found = list(_own_warnings(slot, config))
    if kind is not None and state is not None:
        settings = config_of(state)
        found += (
            ProgramWarning(
                "setting-without-effect",
                f"slot {slot!r}, key {key!r} has no effect: {why}",
                hint="leave it out, or set the other key as well",
            )
            for key, why in kind.unread_settings(settings).items()
        )
        found += (
            ProgramWarning(
                "doubtful-setting",
                f"slot {slot!r}, key {key!r}: {what}",
                hint="set it to what you mean; -W ignore=doubtful-setting says that it is meant",
            )
            for key, what in kind.doubtful_settings(settings).items()
        )
    return tuple(found)


def _own_warnings(slot: str, config: object) -> tuple[ProgramWarning, ...]:
    method = getattr(config, "warnings", None)
    if method is None or not isinstance(config, Constructs):
        return ()
    found = tuple(method())
    for item in found:
        if not isinstance(item, ProgramWarning):
            raise ConstructionError(
                f"warnings() of {type(config).__name__} gives {item!r}",
                f"slot {slot!r}",
                "give ProgramWarning(code, what, where, hint) of bb_host.diagnostics",
            )
    return found


def graphs_for(slot: str, config: object, op_types: frozenset[str]) -> tuple[Function, ...] | None:
    """The graphs that a slot needs on which ops of these types run; None where they are always the same.

    Raises what the config's `graphs` raises, where it has not what one of the ops needs.
    """
    method = getattr(config, "graphs", None)
    found = None if method is None or not isinstance(config, Constructs) else method(slot, op_types)
    return None if found is None else tuple(found)


def class_of(component: object) -> type[Component] | None:
    """The class of a component, given as such or by its TYPE_NAME; None for a name unknown to this host.

    Raises ConstructionError for what is not a component class, or one that lacks what its Contract asks for.
    """
    if isinstance(component, str):
        try:
            return default_registry().lookup(component)
        except UnregisteredConcreteError:
            return None
        except (RegistryError, ImportError, AttributeError) as error:
            raise ConstructionError(
                f"{component} cannot be loaded: {error}", hint="mend its package"
            ) from error
    if not isinstance(component, type):
        hint = f"give the class: {type(component).__name__}" if isinstance(component, Component) else ""
        raise ConstructionError(
            f"{component!r:.60} is not a component class",
            hint=hint or "give a component class or its TYPE_NAME",
        )
    if not issubclass(component, Component):
        raise ConstructionError(
            f"{component.__name__} is not a component class",
            hint="derive it from a Contract: Aggregator, Codec, …",
        )
    if component.TYPE_NAME not in BUILT_IN:
        try:
            check_class(component)
        except ContractError as error:
            raise ConstructionError(f"{component.__name__}: {error.what}", hint=error.hint) from error
    return component


def check_state(kind: type[Component], slot: str, state: AttrValue, functions: Iterable[Function]) -> None:
    """Whether a class takes a construction state, as far as the host can know: keys, values, graphs.

    What is missing may come from the device's own settings, except graphs. Raises ConstructionError.
    """
    try:
        wrong = misfit(kind, config_of(state), complete=False)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConstructionError(
            f"{kind.TYPE_NAME}.wrong_settings raises {type(error).__name__}: {error}",
            hint="return a list of Misfit(key, what, hint); a key without a default may be missing",
        ) from error
    if wrong is not None:
        where = f"{kind.TYPE_NAME}, key {wrong.key!r}" if wrong.key else kind.TYPE_NAME
        raise ConstructionError(f"{where}: {wrong.what}", hint=wrong.hint)
    names = {function.name.partition("#")[0] for function in functions}
    missing = [need for need in kind.NEEDS if f"{slot}.{need}" not in names]
    if missing:
        raise ConstructionError(
            f"{kind.TYPE_NAME} gets no graph {missing[0]!r}: there is no model in its configuration",
            hint="give a trainable model: bb_host.learn.trainable(…) or mlp(…)",
        )


def config_of(state: AttrValue) -> Mapping[str, object]:
    """The configuration that a construction state holds, as the device reads it."""
    if isinstance(state, bytes):
        found: dict[str, object] = cbor2.loads(state) if state else {}
        return found
    if isinstance(state, Subgraph):
        return {key: json.loads(value) for key, value in state.config.items()}
    return {"type": state} if isinstance(state, ValueType) else {}
