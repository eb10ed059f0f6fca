"""What quantization changes on the calibration data: per output of the target's tensor work, and per layer.

Errors are float against quantized, both run on the device's NumPy backend. `relative` is the largest error
over the float values' range; `added` of a layer is its RMS error over its range, less the largest of those
of what it reads: where accuracy is lost, not only where it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bb_host.columns import columns
from bb_host.ir.program import Array, Function, Program
from bb_host.ir.queries import reads
from bb_host.passes.device.quantize.calibration import batches, observed_bodies, runs
from bb_host.passes.device.quantize.qdq import Quantized

_WORST = 10
"""Layers in the text; JSON has all."""


@dataclass(slots=True)
class _Sums:
    low: float = float("inf")
    high: float = float("-inf")
    largest: float = 0.0
    squares: float = 0.0
    count: int = 0
    same: int = 0
    rows: int = 0

    def add(self, want: Array, got: Array) -> None:
        if not want.size or want.shape != got.shape:
            return
        error = np.abs(want.astype(np.float64) - got)
        self.low, self.high = min(self.low, float(want.min())), max(self.high, float(want.max()))
        self.largest = max(self.largest, float(error.max()))
        self.squares += float(np.square(error).sum())
        self.count += want.size
        if want.ndim == 2 and want.shape[1] > 1:
            self.same += int((want.argmax(1) == got.argmax(1)).sum())
            self.rows += len(want)

    @property
    def range(self) -> float:
        return max(self.high - self.low, 0.0) if self.count else 0.0

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0

    def over_range(self, error: float) -> float:
        """An error as a part of the range; of a constant value, of its size."""
        scale = self.range or max(abs(self.low), abs(self.high), 1e-30)
        return error / scale if self.count and error else 0.0


@dataclass(frozen=True, slots=True)
class OutputChange:
    """`argmax` is the part of rows whose largest entry stays where it was; None where it is not 2-D."""

    name: str
    max_abs: float
    rms: float
    relative: float
    argmax: float | None


@dataclass(frozen=True, slots=True)
class Layer:
    """`rms` is the error over the range; `why` says why a layer stays in float."""

    name: str
    op_type: str
    function: str
    rms: float
    added: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one target. `layers` are worst first, by what they add."""

    outputs: tuple[OutputChange, ...] = ()
    layers: tuple[Layer, ...] = ()
    quantized: int = 0
    left: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def table(self) -> str:
        """As text: outputs, then the layers that cost most."""
        rows: list[list[str]] = [["output", "max error", "rms", "of range", "argmax"]]
        for o in self.outputs:
            same = "" if o.argmax is None else f"{o.argmax:.1%}"
            rows.append([o.name, f"{o.max_abs:.4g}", f"{o.rms:.4g}", f"{o.relative:.2%}", same])
        layers: list[list[str]] = [["layer", "op", "adds", "error", ""]]
        layers += [[n.name, n.op_type, f"{n.added:.3%}", f"{n.rms:.3%}", n.why] for n in self.layers[:_WORST]]
        head = f"int8: {self.quantized} ops, {len(self.left)} in float"
        return "\n".join([head, columns(rows), "", columns(layers)])


def compare(
    before: Program,
    after: Program,
    main: Function,
    target: str,
    data: Mapping[str, Array],
    done: Mapping[tuple[str, str], Quantized],
) -> Accuracy:
    """Runs both programs on the data."""
    wants, gots = observed_bodies(before), observed_bodies(after)
    sums: dict[tuple[tuple[str, str], str], _Sums] = {}
    for given in batches(data, main, target):
        ran = zip(runs(before, main, given, wants), runs(after, main, given, gots), strict=True)
        for (key, want), (_, got) in ran:
            if key not in done:
                continue
            for name, array in want.items():
                if array.dtype == np.float32 and name in got:
                    sums.setdefault((key, name), _Sums()).add(array, got[name])
    outputs, layers = [], []
    left: dict[str, str] = {}
    for key, quantized in done.items():
        function = before.function(*key)
        assert function is not None
        left.update(quantized.left)
        named = _port_names(main, function)
        for name in function.outputs:
            s = sums.get((key, name))
            if s is not None and s.count:
                same = s.same / s.rows if s.rows else None
                change = OutputChange(named.get(name, name), s.largest, s.rms, s.over_range(s.largest), same)
                outputs.append(change)
        layers.extend(_layers(function, key, sums, quantized))
    layers.sort(key=lambda layer: -layer.added)
    return Accuracy(tuple(outputs), tuple(layers), sum(len(q.layers) for q in done.values()), left)


def _port_names(main: Function, function: Function) -> dict[str, str]:
    call = next(op for op in main.ops if (op.domain, op.op_type) == function.key)
    return dict(zip(function.outputs, call.outputs, strict=True))


def _layers(
    function: Function,
    key: tuple[str, str],
    sums: Mapping[tuple[tuple[str, str], str], _Sums],
    quantized: Quantized,
) -> list[Layer]:
    errors = {name: s.over_range(s.rms) for (owner, name), s in sums.items() if owner == key}
    found = []
    for op in function.ops:
        if op.outputs and op.outputs[0] in errors:
            name = op.outputs[0]
            before = max((errors.get(v, 0.0) for v in reads(op)), default=0.0)
            why = quantized.left.get(name, "")
            found.append(Layer(name, op.op_type, function.name, errors[name], errors[name] - before, why))
    return found
