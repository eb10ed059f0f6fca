"""The passes that make bytes of a compiled program, in order, with what each needs and gives.

What makes the compiled program is listed in `bb_host/passes/pipeline.py` for recorded programs, and in
`bb_host/passes/tensor` for ordinary ONNX models. `PORTABLE_PASSES` write the file of the whole program;
`SHARED_PASSES` run once for all targets, `TARGET_PASSES` once for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import onnx.checker

from bb_edge.engine.program.program import Program as LoadedProgram
from bb_edge.ir import keys
from bb_edge.ir.seals import seal
from bb_edge.loading import load
from bb_host.errors import EdgeError, NothingToQuantizeError
from bb_host.ir.facts import ProgramFacts
from bb_host.ir.program import Program
from bb_host.ir.proto import to_bytes
from bb_host.passes.analysis.component_graphs import without_unread_graphs
from bb_host.passes.device.memory_plan import PlannedGraph, plan_program
from bb_host.passes.device.quantize import Accuracy, Quantization
from bb_host.passes.device.quantize.step import quantize_program
from bb_host.passes.device.strip import Stripped, strip
from bb_host.passes.one_pass import Pass, Stats
from bb_host.passes.one_pass import Promise as P
from bb_host.passes.tensor.collapse import Origins, collapse
from bb_host.passes.verify import check_functions
from bb_host.tflite.lower import BackendChoice, lower_program
from bb_host.tflite.lowered import Lowering


@dataclass(frozen=True, slots=True, eq=False)
class DeviceOptions:
    """What is asked for: who runs tensor work, int8 or float16, the largest batch to plan memory for."""

    backend: BackendChoice = "numpy"
    quantization: Quantization | None = None
    max_batch: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TargetProgram:
    """A program on its way to bytes, and what the passes found out about it.

    `target` is empty where it is that of all targets. `unstripped` is what `stripped` was made from,
    `not_quantized` says why nothing was; `data` are the bytes, `loaded` is what a device makes of them.
    """

    program: Program
    target: str = ""
    origins: Origins = field(default_factory=dict)
    accuracy: Accuracy | None = None
    not_quantized: NothingToQuantizeError | None = None
    unstripped: Program | None = None
    stripped: Stripped | None = None
    lowering: Lowering = field(default_factory=Lowering)
    planned: tuple[PlannedGraph, ...] = ()
    data: bytes = b""
    loaded: LoadedProgram | None = None

    @property
    def where(self) -> str:
        """What errors call it."""
        if self.target:
            return f"target {self.target}"
        return f"module {self.program.facts.module or self.program.name}"


def _collapse(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    found = collapse(unit.program)
    return replace(unit, program=found.program, origins=found.origins)


def _quantize(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    if options.quantization is None:
        return unit
    try:
        program, accuracy = quantize_program(unit.program, unit.target, options.quantization)
    except NothingToQuantizeError as error:  # another target of the program may have weights
        return replace(unit, not_quantized=error)
    return replace(unit, program=program, accuracy=accuracy)


def _graphs(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    return replace(unit, program=without_unread_graphs(unit.program, unit.target))


def _strip(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    found = strip(unit.program, unit.target)
    return replace(unit, program=found.program, unstripped=unit.program, stripped=found)


def _lower(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    program, lowering = lower_program(unit.program, unit.target, options.backend)
    return replace(unit, program=program, lowering=lowering)


def _plan(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    program, planned = plan_program(unit.program, unit.target, options.max_batch)
    return replace(unit, program=program, planned=planned)


def _seal(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    program = replace(unit.program, facts=unit.program.facts | ProgramFacts(compiled=keys.SEALED_VERSION))
    return replace(unit, program=program, data=seal(to_bytes(program)))


def _write(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    return replace(unit, data=to_bytes(unit.program))


def _load(unit: TargetProgram, options: DeviceOptions, stats: Stats) -> TargetProgram:
    """EdgeError where ONNX's checker refuses the bytes, a LoadError where a device would."""
    try:
        onnx.checker.check_model(unit.data)
    except (onnx.checker.ValidationError, ValueError) as error:  # it leaks UnicodeDecodeError and others
        hint = "this is a fault of the compiler and not of what was compiled: report it, with the model"
        raise EdgeError(f"ONNX's checker refuses it: {error}", unit.where, hint) from error
    return replace(unit, loaded=load(unit.data))


_CHECK = Pass("check", _load, needs=(P.WRITTEN,))

PORTABLE_PASSES = (Pass("to_proto", _write, needs=(P.COMPILED,), gives=(P.WRITTEN,)), _CHECK)
SHARED_PASSES = (Pass("collapse", _collapse, needs=(P.COMPILED,), gives=(P.COLLAPSED,)),)
TARGET_PASSES = (
    Pass("quantize", _quantize, needs=(P.COLLAPSED,)),
    Pass("graphs", _graphs, needs=(P.COMPILED,)),
    Pass("strip", _strip, needs=(P.COMPILED,), gives=(P.STRIPPED,)),
    Pass("lower", _lower, needs=(P.COLLAPSED, P.STRIPPED)),
    Pass("plan", _plan, needs=(P.STRIPPED,), gives=(P.PLANNED,)),
    Pass("seal", _seal, needs=(P.STRIPPED, P.PLANNED), gives=(P.WRITTEN,)),
    _CHECK,
)
DEVICE_PASSES = (*SHARED_PASSES, *TARGET_PASSES)


def check(one: Pass[Any, Any], before: TargetProgram, after: TargetProgram) -> None:
    """The check behind each of them: values and calls of the functions that it made."""
    if after.program is not before.program:
        check_functions(one.name, after.where, before.program.functions, after.program.functions)
