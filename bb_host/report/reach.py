"""How far each backend takes an ordinary ONNX model: what it runs, and what it leaves to another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import onnx

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_host.ir.queries import is_constant
from bb_host.passes.device.strip import strip, targets_of
from bb_host.plain import compile_plain
from bb_host.tflite.lower import lower_program


@dataclass(frozen=True, slots=True)
class Reach:
    """`ops` are left by clean-up, `numpy` runs them all or `refused` says why not.

    `tflite` are those of them that flatbuffers stand for, `models` the number of these; `stays` says of each
    other operator why it is left to NumPy, with how often.
    """

    ops: int = 0
    refused: str = ""
    tflite: int = 0
    models: int = 0
    stays: tuple[tuple[str, str, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        stays = [{"op": op, "reason": reason, "times": times} for op, reason, times in self.stays]
        return {**asdict(self), "stays": stays}

    def lines(self) -> list[str]:
        """For people."""
        if self.refused:
            return [f"  no backend runs it: {self.refused}"]
        of_models = f" in {self.models} model{'s' if self.models > 1 else ''}" if self.models else ""
        found = [
            f"  backend numpy: {self.ops} of {self.ops} ops, after clean-up",
            f"  backend tflite: {self.tflite} of {self.ops} ops{of_models}",
        ]
        for op, reason, times in self.stays:
            found.append(f"    {op}{f' ({times} times)' if times > 1 else ''} stays: {reason}")
        return found


def reach_of(model: onnx.ModelProto) -> Reach:
    """Compiles a model for every backend, writing nothing. Whatever is wrong with it is its `refused`."""
    try:
        program = compile_plain(model)
        (target,) = targets_of(program)
        _, lowering = lower_program(strip(program, target).program, target, "tflite")
    except BBError as error:
        return Reach(refused=error.what)
    bodies = [f for f in program.functions if f.domain == keys.BACKEND_DOMAIN]
    ops = sum(not is_constant(op) for body in bodies for op in body.ops)
    times: dict[tuple[str, str], int] = {}
    for kept in lowering.kept:
        times[kept.op_type, kept.reason] = times.get((kept.op_type, kept.reason), 0) + 1
    return Reach(
        ops,
        tflite=sum(n for lowered in lowering.models for n in lowered.ops.values()),
        models=len(lowering.models),
        stays=tuple((op, reason, n) for (op, reason), n in times.items()),
    )
