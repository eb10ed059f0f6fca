"""`bb.ScalarQuantizer`: one byte per number, over a codebook fitted to a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bb_edge.components.state import StateReader, pack_state
from bb_edge.roles.adoption import Adoption
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.contracts import Codec
from bb_edge.roles.errors import ComponentError
from bb_edge.roles.settings import Misfit, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.context import Ctx

__all__ = ["ScalarQuantizer"]

_LEVELS = 255
_VERSION = 2


class ScalarQuantizer(Codec):
    """Encodes f32 as u8 over 256 evenly spaced levels between `low` and `high`.

    The error is at most half a level; values outside become the nearest end. Configuration: `low` and `high`
    (-1, 1), which `TrainCodebook` replaces by the range of its sample. Both sides need the same range:
    configure it, or train both on the same tensor.
    """

    TYPE_NAME: ClassVar[str] = "bb.ScalarQuantizer"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"low": Setting.number(-1.0), "high": Setting.number(1.0)}
    STORAGE_TYPES: ClassVar[dict[str, str]] = {"Compress.code": "Tensor<U8>", "Decompress.t": "Tensor<F32>"}

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self._set(low, high)
        self._trained = False

    @classmethod
    def construct(cls, env: ComponentEnv) -> ScalarQuantizer:
        read = env.settings(cls)
        return cls(read["low"], read["high"])

    @classmethod
    def wrong_settings(cls, config: Mapping[str, object], complete: bool) -> Sequence[Misfit]:
        """Returns the key of an empty range."""
        low, high = config["low"], config["high"]
        assert isinstance(low, int | float) and isinstance(high, int | float)
        if low < high:
            return ()
        what = f"low is {low}, high is {high}: the range is empty"
        return (Misfit("high", what, "give a high that is above low"),)

    def _set(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._codebook = np.linspace(low, high, _LEVELS + 1).astype(np.float32)

    @classmethod
    def port_types(cls, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Mapping[str, str]:
        """Returns f32 for the tensors, and the code's type."""
        values, code = "F32", "U8"
        return {
            "Compress.t": values,
            "Compress.code": code,
            "Decompress.code": code,
            "Decompress.t": values,
        }

    def train_codebook(self, ctx: Ctx, training: Array) -> None:
        if training.size == 0 or training.dtype.kind != "f" or not np.isfinite(training).all():
            raise ComponentError("expected a sample of finite floats", self.TYPE_NAME)
        low, high = float(training.min()), float(training.max())
        # All the same: the lowest level is that number, and the others must lie somewhere.
        self._set(low, high if high > low else low + max(abs(low), 1.0) * 1e-3)
        self._trained = True

    def compress(self, ctx: Ctx, t: Array) -> Array:
        if t.dtype != np.float32:
            raise ComponentError(f"expected float32 to compress, got {t.dtype}", self.TYPE_NAME)
        if np.isnan(t).any():
            raise ComponentError("the tensor holds nan, which has no code", self.TYPE_NAME)
        levels = np.multiply(
            np.clip(t, self._low, self._high) - self._low, _LEVELS / (self._high - self._low)
        )
        code: Array = np.rint(levels).astype(np.uint8)
        return code

    def decompress(self, ctx: Ctx, code: Array) -> Array:
        if code.dtype != np.uint8:
            raise ComponentError(f"expected a code of uint8, got {code.dtype}", self.TYPE_NAME)
        values: Array = self._codebook.take(code)
        return values

    def serialize(self) -> bytes:
        fields = {"low": self._low, "high": self._high, "trained": self._trained}
        return pack_state(self, _VERSION, fields)

    def restore(self, state: bytes) -> None:
        read = StateReader(self, _VERSION, state, oldest=1)
        low, high = read.number("low"), read.number("high")
        # Version 1 did not tell: a range that is not the configured one was trained.
        trained = (low, high) != (self._low, self._high) if read.version == 1 else read.integer("trained")
        if not low < high:
            raise read.error("its range is empty")
        self._set(low, high)
        self._trained = bool(trained)

    def adopt(self, state: bytes) -> Adoption:
        """Takes the range if it was trained; one that was configured is this program's."""
        read = StateReader(self, _VERSION, state, oldest=1)
        if read.version > 1 and not read.integer("trained"):
            return Adoption(())
        self.restore(state)
        return Adoption((f"the trained range, {self._low:g} to {self._high:g}",))
