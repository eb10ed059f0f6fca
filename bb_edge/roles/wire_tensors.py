"""The default way of a tensor from its wire form into a backend (semantics §1, "On the wire")."""

from __future__ import annotations

import numpy as np

from bb_edge.ir.tensors import TensorError, decode_tensor
from bb_edge.ir.types import DEFAULT_TYPES, tensor_type
from bb_edge.roles.errors import MaterializeError

__all__ = ["tensor_from_wire"]


def tensor_from_wire(type_hash: int, payload: bytes | memoryview) -> np.ndarray:
    """A read-only array over `payload`, zero-copy where it is aligned.

    MaterializeError where the bytes are no TensorProto, or one of another dtype than `type_hash` says.
    """
    try:
        array = decode_tensor(payload)
    except TensorError as error:
        raise MaterializeError(f"the payload is no tensor: {error}") from error
    if type_hash:
        expected = DEFAULT_TYPES.by_wire_hash(type_hash)
        found = tensor_type(array.dtype)
        if expected is not found:
            name = expected.id if expected is not None else f"unknown type {type_hash:#x}"
            raise MaterializeError(f"the payload is a {found.id}, the site takes a {name}")
    return array
