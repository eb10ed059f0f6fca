"""Construction state: what a component is built from on the device, as it stands in `attribute_proto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import cbor2
import numpy as np

from bb_edge.ir.errors import BBError
from bb_edge.ir.types import ValueType
from bb_host.diagnostics import ProgramWarning
from bb_host.program import AttrValue, Function


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

    # It may have `warnings() -> Iterable[ProgramWarning]` as well: `construction_warnings` asks.


class ConstructionError(BBError):
    """A config that cannot be written."""


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
            f"a config is a mapping, an array, a type, or has construct(slot), not {config!r}",
            f"slot {slot!r}",
        )
    for key in config:
        if not isinstance(key, str):
            raise ConstructionError(f"key {key!r} is no text", f"slot {slot!r}")
    try:
        return cbor2.dumps(dict(config), canonical=True), ()
    except (cbor2.CBOREncodeError, TypeError, ValueError) as error:
        raise ConstructionError(f"config has no CBOR form: {error}", f"slot {slot!r}") from error


def construction_warnings(slot: str, config: object) -> tuple[ProgramWarning, ...]:
    """What a config that constructs itself warns about: its method `warnings()`, where it has one.

    A warning without a place gets the author's line of the slot or binding. Raises ConstructionError for
    anything but ProgramWarnings.
    """
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


__all__ = [
    "ConstructionError",
    "ConstructionLike",
    "Constructs",
    "construction_state",
    "construction_warnings",
]
