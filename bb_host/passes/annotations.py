"""Opt-in stages that say more about a program than we use ourselves, in ONNX's own fields.

    hints = DeviceHints("two", ("gpu:0", "gpu:1"), {"tail": 0, "head": 1})
    notes = QuantizationNotes("codec", {"codes": {"SCALE_TENSOR": "scale"}})
    Compiler().with_stage(hints, after="resolve_slots").with_stage(notes, after="resolve_slots")

Portable models keep them; artifacts for one device are stripped of hints for several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from bb_edge.ir.onnx_pb2 import GraphProto, ModelProto, NodeProto
from bb_host.errors import BindingError
from bb_host.ir.program import Function, Op, Program, Slot, Subgraph, are_same
from bb_host.ir.proto import rest_of
from bb_host.ir.queries import is_onnx
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


@dataclass(frozen=True, slots=True)
class DeviceHints:
    """Multi-device hints: `ModelProto.configuration`, and `NodeProto.device_configurations` on ONNX ops.

    `stages` gives the ops of a module scope (a part of `module_instance`, as `g.with_module` writes it) their
    pipeline stage. BindingError where a scope holds no ONNX op.
    """

    configuration: str
    devices: tuple[str, ...]
    stages: Mapping[str, int]
    NAME: str = "device_hints"

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        stats.count("device_hints", 0)
        met: set[str] = set()
        functions = tuple(f.with_ops(self._op(op, stats, met) for op in f.ops) for f in program.functions)
        missing = [scope for scope in self.stages if scope not in met]
        if missing:
            raise BindingError(f"no ONNX op stands in scope {missing[0]!r}", self.NAME, "see g.with_module")
        model = ModelProto.FromString(rest_of(program))
        if all(known.name != self.configuration for known in model.configuration):
            model.configuration.add(
                name=self.configuration, num_devices=len(self.devices), device=self.devices
            )
        extra = model.SerializeToString(deterministic=True)
        if extra == program.extra and are_same(functions, program.functions):
            return program
        return dataclasses.replace(program, functions=functions, extra=extra)

    def _op(self, op: Op, stats: Stats, met: set[str]) -> Op:
        if not is_onnx(op):
            return op
        chain = op.facts.scope
        scope = next((s for s in self.stages if s == chain or chain.endswith(f"_{s}")), None)
        if scope is None:
            return op
        met.add(scope)
        rest = NodeProto.FromString(op.extra)
        if any(known.configuration_id == self.configuration for known in rest.device_configurations):
            return op
        rest.device_configurations.add(configuration_id=self.configuration, pipeline_stage=self.stages[scope])
        stats.count("device_hints")
        return dataclasses.replace(op, extra=rest.SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True)
class QuantizationNotes:
    """`GraphProto.quantization_annotation` on a slot's construction state (a graph with tensors).

    `tensors` says per tensor which others hold its parameters, by ONNX's names (`SCALE_TENSOR`,
    `ZERO_POINT_TENSOR`, …). BindingError where the slot has no such state, or the state no such tensor.
    """

    slot: str
    tensors: Mapping[str, Mapping[str, str]]
    NAME: str = "quantization_notes"

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        stats.count("quantization_notes", 0)
        functions = []
        found = False
        for function in program.functions:
            slot = function.slots.get(self.slot)
            if slot is not None and isinstance(slot.state, Subgraph):
                found = True
                function = self._noted(function, slot, slot.state, stats)
            functions.append(function)
        if not found:
            raise BindingError(
                f"slot {self.slot!r} has no construction state with tensors",
                self.NAME,
                "bind it with tensors",
            )
        return program.with_functions(functions)

    def _noted(self, function: Function, slot: Slot, state: Subgraph, stats: Stats) -> Function:
        rest = GraphProto.FromString(state.extra)
        before = len(rest.quantization_annotation)
        known = {note.tensor_name for note in rest.quantization_annotation}
        for tensor, parameters in self.tensors.items():
            for name in (tensor, *parameters.values()):
                if name not in state.initializers:
                    raise BindingError(
                        f"slot {self.slot!r} has no tensor {name!r}",
                        self.NAME,
                        f"it has {', '.join(state.initializers) or 'none'}",
                    )
            if tensor not in known:
                note = rest.quantization_annotation.add(tensor_name=tensor)
                for key, name in parameters.items():
                    note.quant_parameter_tensor_names.add(key=key, value=name)
                stats.count("quantization_notes")
        if len(rest.quantization_annotation) == before:
            return function
        new = dataclasses.replace(state, extra=rest.SerializeToString(deterministic=True))
        slots = {**function.slots, self.slot: dataclasses.replace(slot, state=new)}
        return dataclasses.replace(function, slots=slots)
