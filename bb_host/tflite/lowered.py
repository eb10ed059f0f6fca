"""What the lowering did: the flatbuffers that it made, and what stays with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lowered:
    """One `Model`: bytes of its flatbuffer, and the ONNX ops it stands for.

    `live` are the bytes of activations at once for batches of one and two, `open_batch` says that the device
    decides how large they are. `repeated` are the bytes of weights that an interpreter holds more than once,
    beyond the first time. `in_float` are operators of the flatbuffer that compute in float among
    integers, and why.
    """

    function: str
    size: int
    sha256: str
    ops: Mapping[str, int]
    live: tuple[int, int] = (0, 0)
    open_batch: bool = False
    repeated: int = 0
    in_float: tuple[tuple[str, str], ...] = ()
    written: int = 0

    def activations(self, batch: int) -> int:
        """Bytes of activations at once for batches of that size."""
        one, two = self.live
        return one + (two - one) * (batch - 1)


@dataclass(frozen=True, slots=True)
class Kept:
    """An op that stays, and why."""

    function: str
    op_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """How many rows of a batch a graph `fit` takes at a time, and the rows of the batch as far as known."""

    function: str
    rows: int
    batch: int | None


@dataclass(frozen=True, slots=True)
class Lowering:
    """What the step did."""

    models: tuple[Lowered, ...] = ()
    kept: tuple[Kept, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    def explain(self) -> str:
        """Line by line: every model, and every op that stays with its reason."""
        lines = [
            f"{m.function}: {', '.join(f'{k} {n}' for k, n in m.ops.items())} as {m.size} bytes of TFLite"
            for m in self.models
        ]
        for chunk in self.chunks:
            of = "batches that nobody knows" if chunk.batch is None else f"batches of {chunk.batch}"
            lines.append(f"{chunk.function}: {chunk.rows} rows at a time, of {of}")
        for (function, kind, reason), n in Counter(
            (m.function, kind, reason) for m in self.models for kind, reason in m.in_float
        ).items():
            lines.append(
                f"{function}: {kind}{f' ({n} times)' if n > 1 else ''} of TFLite is in float: {reason}"
            )
        for (function, op_type, reason), n in Counter(
            (k.function, k.op_type, k.reason) for k in self.kept
        ).items():
            lines.append(f"{function}: {op_type}{f' ({n} times)' if n > 1 else ''} stays: {reason}")
        return "\n".join(lines)
