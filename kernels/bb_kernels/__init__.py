"""Tensor kernels in NumPy: ONNX operators in two phases, ``prepare`` (checks, shapes, scratch) and ``run``.

>>> import numpy as np
>>> spec = TensorSpec(np.dtype(np.float32), (2,))
>>> prepared = prepare("Add", 17, {}, [spec, spec])
>>> out = np.empty(prepared.outputs[0].shape, prepared.outputs[0].dtype)
>>> _ = prepared.run(np.float32([1, 2]), np.float32([3, 4]), out)
>>> out.tolist()
[4.0, 6.0]
"""

from __future__ import annotations

from .errors import (
    KernelAttributeError,
    KernelError,
    KernelMemoryError,
    KernelShapeError,
    UnsupportedDtypeError,
    UnsupportedOpError,
)
from .registry import NEWEST_OPSET, OLDEST_OPSET, evaluate, prepare, supported, supported_ops
from .spec import Prepared, TensorSpec

__all__ = [
    "NEWEST_OPSET",
    "OLDEST_OPSET",
    "KernelAttributeError",
    "KernelError",
    "KernelMemoryError",
    "KernelShapeError",
    "Prepared",
    "TensorSpec",
    "UnsupportedDtypeError",
    "UnsupportedOpError",
    "evaluate",
    "prepare",
    "supported",
    "supported_ops",
]
