"""The step: backend functions of a target, their regions replaced by `Model` nodes that hold flatbuffers.

1. Functions whose backend is the NumPy backend are looked at; where one gets a `Model`, its slot is bound to
   the TFLite backend.
2. `auto` lowers what is estimated to gain, and keeps a function in plain ops beside each `Model` for devices
   without an interpreter; `tflite` lowers all that it can and keeps none; `numpy` changes nothing.
3. What stays is left as it is, and the report says why.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from bb_edge.backends import NumPyBackend
from bb_edge.backends.tflite.flatbuffer import FlatbufferError
from bb_edge.backends.tflite.verify import verify
from bb_edge.ir import keys
from bb_edge.ir.opsets import onnx as onnx_opset
from bb_edge.ir.types import ValueType, tensor_type
from bb_host.ir.facts import FunctionFacts, ProgramFacts
from bb_host.ir.hashing import content_digest
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import is_constant, live, reads
from bb_host.tflite.errors import NotLowered, fault
from bb_host.tflite.facts import Fact, facts_of
from bb_host.tflite.fits import fit_slot, lowered_fit, rows_of
from bb_host.tflite.forwards import is_run
from bb_host.tflite.fusion import casts_first, fuse, take_transposes, without_unused
from bb_host.tflite.graph import TfliteGraph
from bb_host.tflite.half import halve_weights, has_half_weights
from bb_host.tflite.integers import to_integers
from bb_host.tflite.items import Item, items_of
from bb_host.tflite.lowered import Chunk, Kept, Lowered, Lowering
from bb_host.tflite.lowering import Region
from bb_host.tflite.memory import activation_bytes, has_open_batch, repeated_bytes, written_bytes
from bb_host.tflite.regions import Partition, Trials, out_of_reach, partition, try_items, worth
from bb_host.tflite.reshapes import separate, shorten
from bb_host.tflite.table import apply
from bb_host.tflite.turned import pack_less, turn_rows
from bb_host.tflite.writer import write

BackendChoice = Literal["auto", "numpy", "tflite"]
MODEL = "Model"
_OPEN = {"Reshape": -1, "Expand": 1}
"""What stands for the open batch in a shape that is written down."""
NUMPY_BACKEND = NumPyBackend.TYPE_NAME
TFLITE_BACKEND = "bb.TFLiteBackend"


def lower_program(program: Program, target: str, choice: BackendChoice = "numpy") -> tuple[Program, Lowering]:
    """The target's program with its regions lowered, and what was done. Equal programs, equal bytes."""
    if choice == "numpy":
        return program, Lowering()
    types = _passed_types(program)
    functions: list[Function] = []
    extra: dict[str, Function] = {}
    models: list[Lowered] = []
    kept: list[Kept] = []
    chunks: list[Chunk] = []
    slots: set[str] = set()
    for function in program.functions:
        slot = function.facts.backend_slot or keys.ROLE_BACKEND
        runs = function.domain == keys.BACKEND_DOMAIN or is_run(program, function, target)
        if runs and _bound(program, target, slot) == NUMPY_BACKEND:
            work = _Work(function, types.get(function.name, {}), program.opsets, choice, extra)
            changed = work.run()
            models += work.models
            kept += work.kept
            if changed is not function:
                slots.add(slot)
            function = changed
        elif (slot := fit_slot(function, target)) and _bound(
            program, target, keys.ROLE_BACKEND
        ) == NUMPY_BACKEND:
            rows = rows_of(program, slot)
            fit = lowered_fit(function, rows, partial(_fit, program.opsets, choice, extra))
            models += fit.lowering.models
            kept += fit.lowering.kept
            chunks += fit.lowering.chunks
            if fit.function is not function:
                slots.add(keys.ROLE_BACKEND)
            function = fit.function
        functions.append(function)
    if not slots:
        return program, Lowering((), tuple(kept))
    bindings = dict(program.facts.bindings)
    for slot in sorted(slots):
        if (bound := program.facts.bound(target, slot)) is not None:
            bindings[target, slot] = bound._replace(type_name=TFLITE_BACKEND)
    facts = program.facts | ProgramFacts(bindings=bindings)
    opsets = dict(sorted({**program.opsets, keys.TFLITE_DOMAIN: 1}.items()))
    known = {f.name for f in functions}
    functions += [f for name, f in extra.items() if name not in known]
    result = dataclasses.replace(program, functions=tuple(functions), facts=facts, opsets=opsets)
    return result, Lowering(tuple(models), tuple(kept), tuple(chunks))


def _bound(program: Program, target: str, slot: str) -> str:
    bound = program.facts.bound(target, slot)
    return NUMPY_BACKEND if bound is None else bound.type_name


def _passed_types(program: Program) -> dict[str, dict[str, ValueType]]:
    """By backend function: what its callers pass, where its own inputs have no types."""
    found: dict[str, dict[str, ValueType]] = {}
    table = {f.name: f for f in program.functions if f.domain == keys.BACKEND_DOMAIN}
    for caller in program.functions:
        for op in caller.ops:
            callee = table.get(op.op_type) if op.domain == keys.BACKEND_DOMAIN else None
            if callee is not None:
                own = found.setdefault(callee.name, {})
                for name, value in zip(callee.inputs, op.inputs, strict=False):
                    if value in caller.types:
                        own.setdefault(name, caller.types[value])
    return found


def lower_gradient(function: Function, opsets: Mapping[str, int] | None = None) -> tuple[Function, Lowering]:
    """A gradient, or a function that computes one, lowered as far as it can be, without fallbacks.

    Conditions become numbers (`masks.py`). `opsets` are those of the program, beside the function's own.
    """
    work = _Work(function, {}, opsets or {}, "tflite", {}, gradient=True)
    changed = work.run()
    return changed, Lowering(tuple(work.models), tuple(work.kept))


def _fit(
    opsets: Mapping[str, int],
    choice: BackendChoice,
    extra: dict[str, Function],
    function: Function,
    for_good: bool,
) -> tuple[Function, Lowering]:
    """A graph `fit` for some rows; what it falls back to is kept where it is for good."""
    if not for_good:
        return lower_gradient(function, opsets)
    work = _Work(function, {}, opsets, choice, extra, gradient=True)
    changed = work.run()
    return changed, Lowering(tuple(work.models), tuple(work.kept))


class _Work:
    """One function."""

    def __init__(
        self,
        function: Function,
        passed: Mapping[str, ValueType],
        opsets: Mapping[str, int],
        choice: BackendChoice,
        extra: dict[str, Function],
        *,
        gradient: bool = False,
    ) -> None:
        self.function = function
        self.choice = choice
        self.extra = extra
        self.gradient = gradient
        self.models: list[Lowered] = []
        self.kept: list[Kept] = []
        versions = {**opsets, **function.opsets}
        self.version = versions.get(keys.ONNX_DOMAIN, onnx_opset.VERSION)
        self.facts: dict[str, Fact] = facts_of(function, {**passed, **function.types}, self.version)

    def run(self) -> Function:
        function = self.function
        items = items_of(function.ops, function.outputs, self.facts)
        trials = try_items(items, self.facts, self.version, gradient=self.gradient)
        found = partition(items, function.outputs, trials)
        placed = self._placed(items, trials, found)
        while placed is None:  # what stays reads more, so that regions are found anew
            found = partition(items, function.outputs, trials)
            placed = self._placed(items, trials, found)
        for i, reason in trials.reasons.items():
            if reason and found.alive[i]:
                self.kept.append(Kept(function.name, items[i].op.op_type, reason))
        if not placed:
            return function
        chosen = {i for members in found.regions for i in members}
        placed += [((found.level[i], i), it.members) for i, it in enumerate(items) if i not in chosen]
        ops = live([op for _, some in sorted(placed, key=lambda p: p[0]) for op in some], function.outputs)
        opsets = {**function.opsets, keys.TFLITE_DOMAIN: 1}
        return dataclasses.replace(function, ops=ops, opsets=dict(sorted(opsets.items())))

    def _placed(
        self, items: Sequence[Item], trials: Trials, found: Partition
    ) -> list[tuple[tuple[int, int], tuple[Op, ...]]] | None:
        """A `Model` per region and where it goes; None where a region has to stay, as `trials` then say."""
        lost = out_of_reach(items, found)
        if lost:
            trials.keep(items, lost, "more than its result is read outside of its region")
            return None
        refused = [
            members
            for members in found.regions
            if self.choice == "auto" and not worth(items, members, self.facts)
        ]
        for members in refused:
            trials.keep(items, members, "too small a region")
        if refused:
            return None
        self.models.clear()
        placed: list[tuple[tuple[int, int], tuple[Op, ...]]] = []
        for members in found.regions:
            try:
                node = self._model(items, members, found.alive)
            except FlatbufferError as error:
                trials.keep(items, members, f"the device would refuse what it becomes: {error}")
                return None
            except NotLowered as error:
                trials.keep(items, members, str(error))
                return None
            except Exception as error:  # noqa: BLE001 (a fault costs speed, never the compilation)
                kinds = ", ".join(dict.fromkeys(items[i].op.op_type for i in members))
                trials.keep(items, members, str(fault(kinds, error)))
                return None
            placed.append(((found.level[members[0]], members[0]), (node,)))
        return placed

    def _model(self, items: Sequence[Item], members: Sequence[int], alive: Sequence[bool]) -> Op:
        inside = set(members)
        outside = {v for i, item in enumerate(items) if alive[i] and i not in inside for m in item.members
                   for v in reads(m)} | set(self.function.outputs)  # fmt: skip
        outputs = [v for i in members for v in items[i].op.outputs if v and v in outside]
        region = Region(self.facts, self.version, gradient=self.gradient)
        for i in members:
            apply(region, items[i].op)
        graph, in_float = _finished(region, outputs)
        repeated = repeated_bytes(graph)
        if has_half_weights(self.function):
            halve_weights(graph)
            graph = without_unused(graph)
        names = [graph.tensors[i].name for i in graph.inputs]
        data = write(graph)
        verify(data)
        digest = hashlib.sha256(data).hexdigest()
        stands_for = [m for i in members for m in items[i].members]
        counts = dict(sorted(Counter(op.op_type for op in stands_for).items()))
        attrs: dict[str, bytes] = {
            "model": data,
            "sha256": digest.encode(),
            "ops": ",".join(f"{kind}:{n}" for kind, n in counts.items()).encode(),
        }
        if self.choice == "auto":
            attrs["fallback"] = self._fallback(stands_for, names, outputs).encode()
        live = (activation_bytes(graph, 1), activation_bytes(graph, 2))
        name, is_open = self.function.name, has_open_batch(graph)
        self.models.append(
            Lowered(
                name,
                len(data),
                digest,
                counts,
                live,
                is_open,
                repeated,
                tuple(in_float),
                written_bytes(graph),
            )
        )
        return Op(MODEL, keys.TFLITE_DOMAIN, tuple(names), tuple(outputs), dict(attrs))

    def _fallback(self, ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str]) -> str:
        """The region as a function in plain ops; named by its content."""
        constants, inside = self._constants(ops, inputs)
        types = {v: self._type(v) for v in (*inputs, *outputs)}
        slot = self.function.facts.backend_slot
        body = Function(
            "",
            keys.BACKEND_DOMAIN,
            tuple(inputs),
            tuple(outputs),
            (*constants, *inside),
            types,
            facts=FunctionFacts(backend_slot=slot) if slot else FunctionFacts(),
            opsets={keys.ONNX_DOMAIN: self.version},
        )
        name = f"fallback_{content_digest(body)}"
        self.extra.setdefault(name, dataclasses.replace(body, name=name))
        return name

    def _constants(self, ops: Sequence[Op], inputs: Sequence[str]) -> tuple[list[Op], list[Op]]:
        """What a region's ops read beside its inputs and each other's results, as constants; and the ops.

        A shape that is computed from others is written down, the open batch as what ONNX infers. NotLowered
        where something else is computed outside of the region and no input of it.
        """
        known = {*inputs, *(v for op in ops for v in op.outputs)}
        fixed = {v: op for op in self.function.ops if is_constant(op) for v in op.outputs}
        for op in self.function.ops:  # weights that are stored as float16 stay so
            if op.inputs and all(v in fixed for v in reads(op) if v):
                values = [v for v in op.outputs if v in self.facts and self.facts[v].value is not None]
                fixed.update(dict.fromkeys(values, op))
        constants: dict[int, Op] = {}

        def add(name: str) -> None:
            op = fixed[name]
            if id(op) not in constants:
                for v in reads(op):
                    if v:
                        add(v)
                constants[id(op)] = op

        inside = []
        for op in ops:
            for position, name in enumerate(reads(op)):
                if not name or name in known:
                    continue
                value = self.facts[name].value if name in self.facts else None
                if name not in fixed:
                    made = name
                    if op.op_type in _OPEN and position == 1 and value is None:
                        shape = [_OPEN[op.op_type] if d < 0 else d for d in self.facts[op.outputs[0]].shape]
                        made, value = f"{op.outputs[0]}.shape", np.array(shape, np.int64)
                        op = dataclasses.replace(op, inputs=(op.inputs[0], made))
                    if value is None:
                        raise NotLowered(f"it reads {name!r}, which is computed outside of its region")
                    fixed.update(_written(made, value))
                    name = made
                add(name)
            inside.append(op)
        return list(constants.values()), inside

    def _type(self, name: str) -> ValueType:
        fact = self.facts[name]
        return ValueType(tensor_type(fact.dtype), tuple("N" if d < 0 else d for d in fact.shape))


_LARGE = 64
"""Entries from which on a constant that repeats one number is written as that number and a shape."""


def _written(name: str, value: np.ndarray[Any, np.dtype[Any]]) -> dict[str, Op]:
    """The ops that give a constant, by what they give; zeros that a gradient begins with can be many."""
    if value.size < _LARGE or (value != value.flat[0]).any():
        return {name: Op("Constant", keys.ONNX_DOMAIN, (), (name,), {"value": value})}
    shape, attrs = f"{name}.shape", {"value": value.reshape(-1)[:1].copy()}
    dims = Op("Constant", keys.ONNX_DOMAIN, (), (shape,), {"value": np.array(value.shape, np.int64)})
    return {shape: dims, name: Op("ConstantOfShape", keys.ONNX_DOMAIN, (shape,), (name,), {**attrs})}


def _finished(region: Region, outputs: Sequence[str]) -> tuple[TfliteGraph, list[tuple[str, str]]]:
    graph = region.finish(outputs)
    take_transposes(graph)
    graph = without_unused(graph)
    fuse(graph)
    in_float = to_integers(graph)
    shorten(graph)
    if region.gradient:
        turn_rows(graph)
        pack_less(graph)
    graph = without_unused(graph)
    separate(graph)
    casts_first(graph)
    return graph, in_float
