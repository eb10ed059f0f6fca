"""Arrays that tests give to programs and expect from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.tensors import tensor_pieces, to_tensor_proto


def f32(*values: float) -> np.ndarray[Any, Any]:
    """The values as a vector of float32."""
    return np.array(values, np.float32)


def named_tensor(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """An initializer."""
    proto = to_tensor_proto(array)
    proto.name = name
    return proto


def tensor_bytes(
    array: np.ndarray[Any, Any], metadata: dict[str, str] | None = None, elem_type: int | None = None
) -> bytes:
    """The pieces that `tensor_pieces` gives, as one."""
    return b"".join(tensor_pieces(array, metadata, elem_type)[1])
