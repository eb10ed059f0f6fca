"""`bb.Float16Codec`: half the bytes, three decimal digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import Codec
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx

__all__ = ["Float16Codec"]

_LARGEST = np.float32(65504.0)


class Float16Codec(Codec):
    """Encodes f32 as f16, which takes half the bytes and keeps three decimal digits.

    Values beyond ±65504, the largest f16, become ±65504 and not infinity. Nothing is trained or configured.
    """

    TYPE_NAME: ClassVar[str] = "bb.Float16Codec"
    CONFIG: ClassVar[Mapping[str, Setting]] = {}
    stateless: ClassVar[bool | None] = True
    STORAGE_TYPES: ClassVar[dict[str, str]] = {"Compress.code": "Tensor<F16>", "Decompress.t": "Tensor<F32>"}
    shared: ClassVar[bool] = True

    @classmethod
    def construct(cls, env: ComponentEnv) -> Float16Codec:
        env.check(cls)
        return cls()

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns f32 for the tensors, and the code's type."""
        values, code = "F32", "F16"
        return {
            "Compress.t": values,
            "Compress.code": code,
            "Decompress.code": code,
            "Decompress.t": values,
        }

    def train_codebook(self, ctx: Ctx, training: Array) -> None:
        """Does nothing: the code is fixed."""

    def compress(self, ctx: Ctx, t: Array) -> Array:
        if t.dtype != np.float32:
            raise ComponentError(f"expected float32 to compress, got {t.dtype}", self.TYPE_NAME)
        code: Array = np.clip(t, -_LARGEST, _LARGEST).astype(np.float16)
        return code

    def decompress(self, ctx: Ctx, code: Array) -> Array:
        if code.dtype != np.float16:
            raise ComponentError(f"expected a code of float16, got {code.dtype}", self.TYPE_NAME)
        values: Array = code.astype(np.float32)
        return values
