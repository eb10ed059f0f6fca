"""The form in which components write their state into snapshots.

It is a CBOR map with the component's type and a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir.plain_values import from_cbor
from bb_edge.ir.suggestions import suggestion
from bb_edge.ir.tensors import TensorError, decode_tensor, encode_tensor
from bb_edge.roles.component import Component
from bb_edge.roles.errors import ComponentStateError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["StateReader", "pack_array", "pack_state"]


def pack_array(array: Array | None) -> bytes | None:
    """Returns an array in the form that a state holds; None stays None."""
    return None if array is None else encode_tensor(array)


def pack_state(component: Component, version: int, fields: Mapping[str, object]) -> bytes:
    """Returns the bytes that `serialize` gives; `StateReader` reads them.

    `fields` are plain values: None, true and false, integers, floats, texts, bytes, and lists and mappings of
    them. A NumPy number (`np.int64(3)`) counts as the Python number, an array goes through `pack_array`.
    Raises ComponentStateError that names the field with another value.
    """
    import cbor2

    where = f"state of {component.TYPE_NAME}"
    taken = sorted({"type", "version"} & set(fields))
    if taken:
        raise ComponentStateError(
            f"pack_state: the field {taken[0]!r} is its own", where, "give the field another name"
        )

    def other(encoder: Any, value: object) -> None:
        if not isinstance(value, np.generic) or isinstance(value, np.void):
            raise TypeError(type(value).__name__)
        encoder.encode(value.item())

    def packed(plain: Mapping[str, object]) -> bytes:
        data: bytes = cbor2.dumps(plain, canonical=True, default=other)
        return data

    misfits = (TypeError, ValueError, OverflowError, RecursionError, cbor2.CBOREncodeError)
    try:
        return packed({"type": component.TYPE_NAME, "version": version, **fields})
    except misfits as error:
        for name, value in fields.items():
            try:
                packed({name: value})
            except misfits as inner:
                raise ComponentStateError(
                    f"pack_state: the field {name!r}, a {type(value).__name__}, "
                    f"has no written form ({inner})",
                    where,
                    "give arrays as pack_array(array), else numbers, texts, bytes, lists and mappings",
                ) from error
        raise ComponentStateError(f"pack_state: {error}", where, "name the fields with texts") from error


class StateReader:
    """Reads a state field by field; ComponentStateError where anything is not as it was written."""

    def __init__(self, component: Component, version: int, state: bytes, oldest: int = 0) -> None:
        """A state of `version`, or of one from `oldest` on, if that is given: `version` tells which."""
        self._where = f"state of {component.TYPE_NAME}"
        try:
            loaded = from_cbor(state)
        except ValueError as error:
            raise ComponentStateError(f"it is damaged: {error}", self._where) from error
        if not isinstance(loaded, dict) or loaded.get("type") != component.TYPE_NAME:
            raise ComponentStateError("another component wrote it", self._where)
        found = loaded.get("version")
        if not isinstance(found, int) or not (oldest or version) <= found <= version:
            reads = f"{oldest} to {version}" if oldest else str(version)
            remedy = "run the component that wrote it, or one that reads it"
            if isinstance(found, int) and 0 < found < version:
                remedy = f"StateReader(…, oldest={found}) reads it; its .version tells which it is"
            raise ComponentStateError(
                f"it has version {found}, this component reads {reads}", self._where, remedy
            )
        self.version: int = found
        self._fields = loaded

    def error(self, what: str) -> ComponentStateError:
        """Returns an error that names the component."""
        return ComponentStateError(what, self._where)

    def _get(self, name: str, kind: type) -> object:
        if name not in self._fields:
            near = suggestion(
                name, [str(field) for field in self._fields if field not in ("type", "version")]
            )
            raise ComponentStateError(
                f"field {name!r} is missing", self._where, near or "pack_state writes what restore reads"
            )
        value = self._fields[name]
        if not isinstance(value, kind):
            raise self.error(f"field {name!r} is {type(value).__name__}, {kind.__name__} is expected")
        return value

    def has(self, name: str) -> bool:
        """Whether a field is there, and is not None."""
        return self._fields.get(name) is not None

    def integer(self, name: str) -> int:
        """Returns an integer field."""
        value = self._get(name, int)
        assert isinstance(value, int)
        return value

    def optional_integer(self, name: str) -> int | None:
        """Returns an integer field that may be None."""
        return self.integer(name) if self.has(name) else None

    def number(self, name: str) -> float:
        """Returns a float field."""
        value = self._get(name, float)
        assert isinstance(value, float)
        return value

    def flag(self, name: str) -> bool:
        """Returns a field that is True or False."""
        value = self._get(name, bool)
        assert isinstance(value, bool)
        return value

    def text(self, name: str) -> str:
        """Returns a text field."""
        value = self._get(name, str)
        assert isinstance(value, str)
        return value

    def data(self, name: str) -> bytes:
        """Returns a field of bytes."""
        value = self._get(name, bytes)
        assert isinstance(value, bytes)
        return value

    def mapping(self, name: str) -> dict[object, object]:
        """Returns a field that is a mapping."""
        value = self._get(name, dict)
        assert isinstance(value, dict)
        return value

    def items(self, name: str) -> list[object]:
        """Returns a list field."""
        value = self._get(name, list)
        assert isinstance(value, list)
        return value

    def optional_items(self, name: str) -> list[object]:
        """Returns a list field; an empty list where none was written."""
        return [] if self._fields.get(name) is None else self.items(name)

    def integers(self, name: str, count: int) -> list[int]:
        """Returns a list field of `count` integers; an empty list where none was written."""
        values = self.optional_items(name)
        found = [value for value in values if isinstance(value, int)]
        if len(found) != len(values) or len(found) not in (0, count):
            raise self.error(f"field {name!r} is not a list of {count} integers")
        return found

    def optional_array(self, name: str) -> Array | None:
        """Returns a writable copy of an array field; None where none was written."""
        return None if self._fields.get(name) is None else self.array(name)

    def array(self, name: str) -> Array:
        """Returns a writable copy of an array field."""
        value = self._get(name, bytes)
        assert isinstance(value, bytes)
        return self.decode(value)

    def decode(self, packed: object) -> Array:
        """Returns a writable copy of an array that is an entry of a list field."""
        if not isinstance(packed, bytes):
            raise self.error("a tensor is missing")
        try:
            array: Array = decode_tensor(packed).copy()
        except TensorError as error:
            raise self.error(f"a tensor is damaged: {error}") from error
        return array
