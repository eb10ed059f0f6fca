"""The bytes that components are snapshotted into: a CBOR map with the component's type and a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bb_edge.ir.tensors import TensorError, decode_tensor, encode_tensor
from bb_edge.roles.component import Component
from bb_edge.roles.errors import ComponentStateError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["StateReader", "pack_array", "pack_state"]


def pack_array(array: Array | None) -> bytes | None:
    """An array as it stands in a state; None stays None."""
    return None if array is None else encode_tensor(array)


def pack_state(component: Component, version: int, fields: Mapping[str, object]) -> bytes:
    """`fields` are plain CBOR values; arrays go through `pack_array`."""
    import cbor2

    packed: bytes = cbor2.dumps({"type": component.TYPE_NAME, "version": version, **fields}, canonical=True)
    return packed


class StateReader:
    """Reads a state back, field by field; ComponentStateError on anything that is not as it was written."""

    def __init__(self, component: Component, version: int, state: bytes) -> None:
        import cbor2

        self._where = f"state of {component.TYPE_NAME}"
        try:
            loaded = cbor2.loads(state)
        except (cbor2.CBORError, ValueError, EOFError, RecursionError) as error:
            raise ComponentStateError(f"it is damaged: {error}", self._where) from error
        if not isinstance(loaded, dict) or loaded.get("type") != component.TYPE_NAME:
            raise ComponentStateError("another component wrote it", self._where)
        if loaded.get("version") != version:
            raise ComponentStateError(
                f"it has version {loaded.get('version')}, this component reads {version}", self._where
            )
        self._fields = loaded

    def error(self, what: str) -> ComponentStateError:
        """An error that names the component."""
        return ComponentStateError(what, self._where)

    def _get(self, name: str, kind: type) -> object:
        value = self._fields.get(name)
        if not isinstance(value, kind):
            raise self.error(f"field {name!r} is no {kind.__name__}")
        return value

    def integer(self, name: str) -> int:
        value = self._get(name, int)
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self._get(name, float)
        assert isinstance(value, float)
        return value

    def items(self, name: str) -> list[object]:
        value = self._get(name, list)
        assert isinstance(value, list)
        return value

    def optional_array(self, name: str) -> Array | None:
        """A writable copy; None where none was written."""
        return None if self._fields.get(name) is None else self.array(name)

    def array(self, name: str) -> Array:
        """A writable copy."""
        value = self._get(name, bytes)
        assert isinstance(value, bytes)
        return self.decode(value)

    def decode(self, packed: object) -> Array:
        """An array out of a list field."""
        if not isinstance(packed, bytes):
            raise self.error("a tensor is missing")
        try:
            found: Array = decode_tensor(packed).copy()
        except TensorError as error:
            raise self.error(f"a tensor is damaged: {error}") from error
        return found
