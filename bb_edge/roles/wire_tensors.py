"""The default way in which a tensor from the wire gets into a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.ir.tensors import TensorError, decode_tensor
from bb_edge.ir.types import by_wire_hash, dtype_of_elem
from bb_edge.roles.errors import MaterializeError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["tensor_from_wire"]


def tensor_from_wire(type_hash: int, payload: bytes | memoryview) -> Array:
    """Returns a read-only array over `payload`, without a copy where it is aligned.

    Raises MaterializeError where the bytes are not a TensorProto, or one of another dtype than `type_hash`
    names.
    """
    try:
        array = decode_tensor(payload)
    except TensorError as error:
        raise MaterializeError(f"the payload is not a tensor: {error}") from error
    if type_hash:
        node = by_wire_hash(type_hash)
        if node is None or node.elem_type is None:
            raise MaterializeError(f"no tensor type has the wire hash {type_hash:#x}")
        if dtype_of_elem(node.elem_type) != array.dtype:  # bfloat16 is held as uint16
            raise MaterializeError(f"the payload holds {array.dtype}, the site takes a {node.id}")
    return array
