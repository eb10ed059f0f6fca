"""Where every value of tensor work lies on the device, worked out at compile time and stored in the artifact.

For each backend function (BackendSubgraph) and component graph whose inputs have known shapes, the device's
own planner fits the kernels, follows the lifetimes and lays everything out in one arena; it is given more
time here. Open batch dims take `max_batch` where one is stated. What has no plan says why, and the device
plans it when it sees its shapes.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bb_edge.backends import NumPyBackend
from bb_edge.backends.arena import Arena
from bb_edge.backends.fitting import fit
from bb_edge.backends.plan import Placing, PlanLimits, StaticPlan
from bb_edge.backends.plan_memory import THOROUGH, live_bytes, plan_memory
from bb_edge.backends.program import NumPyProgram
from bb_edge.backends.stored_plan import StoredEntry, StoredPlan, encode
from bb_edge.ir import keys
from bb_edge.ir.types import ValueType, dtype_of_elem
from bb_edge.roles.errors import BackendError, UnsupportedOpsError
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Function, FunctionKey, Op, Program, walk_ops
from bb_host.ir.proto import function_to_proto
from bb_host.ir.queries import ONNX_DOMAINS, is_constant
from bb_host.tflite.lower import TFLITE_BACKEND
from bb_kernels import TensorSpec

_BACKEND = NumPyBackend()


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """What was planned for one function. Sizes are bytes, the largest over its entries.

    `arena` against `live`: the plan against the largest sum of simultaneously live bytes. `prepared` is what
    the kernels keep beside the artifact: weights as arrays or packed, views, steps. `kept` are results that a
    component keeps (activations). `reason` says why there is no plan, and `remedy` what tells its sizes, or
    what to do without; `assumed` which shapes were assumed to get at least its size. `batched` tells that a
    stated largest batch went into it. `bounded`: there is no plan, and yet the sizes are told: those of the
    plain ops that its TFLite models stand for.
    """

    function: str
    domain: str
    entries: tuple[StoredEntry, ...] = ()
    arena: int = 0
    live: int = 0
    inputs: int = 0
    results: int = 0
    kept: int = 0
    prepared: int = 0
    reason: str = ""
    assumed: str = ""
    batched: bool = False
    bounded: bool = False
    remedy: str = ""

    @property
    def ratio(self) -> float:
        """Plan against lower bound; 1 where nothing needs memory."""
        return self.arena / self.live if self.live else 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found: dict[str, Any] = {"function": self.function}
        if self.reason:
            return {**found, "reason": self.reason}
        found.update(
            arena_bytes=self.arena,
            live_bytes=self.live,
            ratio=round(self.ratio, 4),
            buffers=max((len(e.lives) for e in self.entries), default=0),
            shapes=[[f"{s.dtype.name}{list(s.shape)}" for s in e.inputs] for e in self.entries],
        )
        if self.assumed:
            found["assumed"] = self.assumed
        return found


FIX_SHAPES = "fix shapes with --shape, or state the largest batch with --max-batch"
ON_THE_DEVICE = "leave --ram out: on the device, limits.tensor_bytes bounds what depends on data"
PLAIN_OPS = "compile with --backend auto, which writes plain ops beside each model, or numpy"
OWN_BACKEND = "leave --ram out: a backend of your own has to say on the device what it takes"


class _OpenShape(Exception):
    """An input, or a result, without a shape that can be planned for; `remedy` says what gives it one."""

    def __init__(self, why: str, remedy: str = FIX_SHAPES) -> None:
        super().__init__(why)
        self.remedy = remedy


def plan_program(
    program: Program, target: str, max_batch: int | None = None
) -> tuple[Program, tuple[PlannedGraph, ...]]:
    """The target's program with a plan in the metadata of each function that could be planned.

    `max_batch` is what open first dims of inputs take. Equal programs get equal plans. UnsupportedOpsError
    where the device's backend would refuse an operator.
    """
    table = {f.key: f for f in program.functions}
    protos = {f.key: function_to_proto(f) for f in program.functions if f.is_tensor_work}
    found: list[PlannedGraph] = []
    functions: list[Function] = []
    stand_ins: dict[str, set[str]] = {}  # by function: what is called in place of its models
    for function in program.functions:
        if function.key not in protos:
            functions.append(function)
            bare = sorted(
                {op.op_type for op in function.ops if op.domain in ONNX_DOMAINS and not is_constant(op)}
            )
            if bare:
                why = f"{', '.join(bare)} runs outside of subgraphs, planned when it runs"
                found.append(PlannedGraph(function.name, function.domain, reason=why, remedy=ON_THE_DEVICE))
            continue
        known = _known_inputs(program, function)
        other = _other_backend(program, target, function)
        plain = function
        if any(op.domain == keys.TFLITE_DOMAIN for op in function.ops):
            other, plain = TFLITE_BACKEND, _in_plain_ops(function)
        elif other == TFLITE_BACKEND:
            other = ""  # it runs what is plain ONNX as the NumPy backend does
        planned = PlannedGraph(
            function.name,
            function.domain,
            reason=f"{other} plans its memory itself",
            remedy=OWN_BACKEND
            if other != TFLITE_BACKEND
            else FIX_SHAPES  # what models take is told, once their batch is known
            if _is_models_alone(function)
            else PLAIN_OPS,
        )
        if not other or plain is not function:
            planner = _Planner(plain, {**protos, plain.key: function_to_proto(plain)}, *known, max_batch)
            whole = dataclasses.replace(planner.plan(_uses(function, table)), batched=planner.batched)
            planned = _bounded(planned, whole) if other else whole
            stand_ins[function.name] = {op.op_type for op in plain.ops if op.domain == keys.BACKEND_DOMAIN}
        found.append(planned)
        if planned.entries and not planned.assumed:
            text = encode(StoredPlan(planned.entries))
            function = dataclasses.replace(function, facts=function.facts | FunctionFacts(memory_plan=text))
        functions.append(function)
    told = (_without_models(graph, found, stand_ins.get(graph.function, set())) for graph in found)
    return program.with_functions(functions), tuple(told)


def _in_plain_ops(function: Function) -> Function:
    """The function with calls of what its models stand for, their fallbacks; itself where one has none, or
    where there are models alone: what they take is told of each.
    """
    ops: list[Op] = []
    for op in function.ops:
        if op.domain == keys.TFLITE_DOMAIN:
            name = op.attrs.get("fallback", b"")
            if not isinstance(name, bytes) or not name:
                return function
            op = Op(name.decode(), keys.BACKEND_DOMAIN, op.inputs, op.outputs, name=op.name)
        ops.append(op)
    return function if _is_models_alone(function) else function.with_ops(ops)


def _is_models_alone(function: Function) -> bool:
    return all(op.domain == keys.TFLITE_DOMAIN for op in function.ops)


def _bounded(planned: PlannedGraph, whole: PlannedGraph) -> PlannedGraph:
    """What is told of a function of models and plain ops, by the plan of the whole in plain ops.

    The device runs the ops between the models by plans of its own, which are parts of it.
    """
    if whole.reason:
        return dataclasses.replace(planned, reason=whole.reason, remedy=whole.remedy, batched=whole.batched)
    return dataclasses.replace(whole, entries=(), reason=planned.reason, remedy=planned.remedy, bounded=True)


def _without_models(graph: PlannedGraph, found: Sequence[PlannedGraph], models: set[str]) -> PlannedGraph:
    """A bounded graph, of whose kernels those of its models' fallbacks are left out: theirs are told, too."""
    theirs = sum(each.prepared for each in found if each.function in models)
    return dataclasses.replace(graph, prepared=max(0, graph.prepared - theirs)) if graph.bounded else graph


def _other_backend(program: Program, target: str, function: Function) -> str:
    """The type of the backend that runs a function, where it is not the NumPy backend."""
    slot = function.facts.backend_slot or keys.ROLE_BACKEND
    bound = program.facts.bound(target, slot)
    kind = NumPyBackend.TYPE_NAME if bound is None else bound.type_name
    return "" if kind == NumPyBackend.TYPE_NAME else kind


def _known_inputs(program: Program, function: Function) -> tuple[dict[str, ValueType], dict[str, str]]:
    """Types of its inputs: its own, else those of the values that its callers pass. And what the author
    calls them: the ports that are passed.
    """
    types = {name: function.types[name] for name in function.inputs if name in function.types}
    ports: dict[str, str] = {}
    for caller in program.functions:
        for op in walk_ops(caller.ops):
            if (op.domain, op.op_type) == function.key:
                for name, value in zip(function.inputs, op.inputs, strict=False):
                    if name not in types and value in caller.types:
                        types[name] = caller.types[value]
                    if caller.facts.entry and value in caller.inputs:
                        ports.setdefault(name, value)
    return types, ports


@dataclass(frozen=True, slots=True)
class _Use:
    """How a component prepares its graph: how many results, and which inputs are resident."""

    results: int
    resident: frozenset[str] = frozenset()


def _uses(function: Function, table: Mapping[FunctionKey, Function]) -> tuple[_Use, ...]:
    """A backend function: as it is. A component's `forward` also for its first result alone."""
    everything = len(function.outputs)
    if function.domain != keys.COMPONENT_DOMAIN:
        return (_Use(everything),)
    slot, _, rest = function.name.partition(".")
    suffix, _, variant = rest.partition("#")
    n_parameters = 0
    for name in (f"{slot}.forward#{variant}", f"{slot}.forward"):
        forward = table.get((keys.COMPONENT_DOMAIN, name))
        if forward is not None:
            n_parameters = forward.facts.arity[1] if len(forward.facts.arity) == 3 else 0
            break
    first = {"forward": 1, "train": 1, "fit": 3}.get(suffix)  # where the parameters begin
    resident = frozenset(() if first is None else function.inputs[first : first + n_parameters])
    counts = {1, everything} if suffix == "forward" else {everything}
    return tuple(_Use(count, resident) for count in sorted(counts))


class _Planner:
    """One function, for all of its uses."""

    def __init__(
        self,
        function: Function,
        protos: Mapping[FunctionKey, Any],
        types: Mapping[str, ValueType],
        ports: Mapping[str, str],
        max_batch: int | None,
    ) -> None:
        self.function = function
        self.protos = protos
        self.types = types
        self.ports = ports
        self.max_batch = max_batch
        self.batched = False  # whether `max_batch` stood for anything

    def plan(self, uses: Sequence[_Use]) -> PlannedGraph:
        name, domain = self.function.name, self.function.domain
        try:
            specs, assumed = self._specs()
            entries, prepared, results = [], 0, 0
            for use in uses:
                entry, size, results = self._entry(use, specs)
                entries.append(entry)
                prepared += size
        except _OpenShape as error:
            return PlannedGraph(name, domain, reason=str(error), remedy=error.remedy)
        except UnsupportedOpsError:
            raise  # no shape will help, and the device would refuse it at install
        except (BackendError, MemoryError, ValueError) as error:
            return PlannedGraph(name, domain, reason=str(error), remedy=FIX_SHAPES)
        own = [specs[n].nbytes for n in self.function.inputs if n not in uses[-1].resident]
        kept = results if len(uses) > 1 else 0
        arena, live = (max(getattr(e, field) for e in entries) for field in ("arena", "live"))
        return PlannedGraph(
            name, domain, tuple(entries), arena, live, sum(own), results, kept, prepared, "", assumed
        )

    # --- shapes ---------------------------------------------------------------------------------------

    def _specs(self) -> tuple[dict[str, TensorSpec], str]:
        """The spec of every input, and which were assumed: with a stated batch, an input of unknown shape
        counts as the largest known one beside it.
        """
        specs: dict[str, TensorSpec] = {}
        open_inputs: dict[str, str] = {}
        for name in self.function.inputs:
            try:
                specs[name] = self._spec(name)
            except _OpenShape as error:
                open_inputs[name] = str(error)
        if not open_inputs:
            return specs, ""
        if self.max_batch is None or not specs:
            raise _OpenShape(next(iter(open_inputs.values())))
        self.batched = True
        largest = max(specs.values(), key=lambda spec: spec.nbytes)
        for name in open_inputs:
            known = self.types.get(name)
            dtype = dtype_of_elem(known.node.elem_type or 0) if known is not None else None
            specs[name] = TensorSpec(dtype or largest.dtype, largest.shape)
        return specs, ", ".join(
            f"{self.ports.get(name, name)} as {list(largest.shape)}" for name in open_inputs
        )

    def _spec(self, name: str) -> TensorSpec:
        known = self.types.get(name)
        port = self.ports.get(name, name)
        if known is None or known.shape is None:
            raise _OpenShape(f"nothing is known of the shape of input {port!r}")
        dtype = dtype_of_elem(known.node.elem_type or 0)
        if dtype is None:
            raise _OpenShape(f"nothing is known of the element type of input {port!r}")
        batch = known.shape[0] if known.shape else None
        dims = []
        for axis, dim in enumerate(known.shape):
            if isinstance(dim, int):
                dims.append(dim)
            elif self.max_batch is not None and (axis == 0 or (dim is not None and dim == batch)):
                self.batched = True
                dims.append(self.max_batch)
            else:
                raise _OpenShape(f"dim {axis} of input {port!r} is open ({known})")
        return TensorSpec(np.dtype(dtype), tuple(dims))

    # --- plans ----------------------------------------------------------------------------------------

    def _entry(self, use: _Use, specs: Mapping[str, TensorSpec]) -> tuple[StoredEntry, int, int]:
        """The plan for one use, and bytes: of what the kernels keep, and of the results after the first."""
        proto = type(self.protos[self.function.key])()
        proto.CopyFrom(self.protos[self.function.key])
        del proto.output[use.results :]
        resident = {name: np.zeros(specs[name].shape, specs[name].dtype) for name in use.resident}
        passed = [specs[name] for name in self.function.inputs if name not in use.resident]
        program = self._program(proto, resident)
        fitted = fit(program.graph, passed, program.resident)
        if fitted.stop < len(program.graph.nodes):
            node = program.graph.nodes[fitted.stop]
            raise _OpenShape(f"{node.where}: the shape of its result depends on data", ON_THE_DEVICE)
        placing = Placing(fitted, program.graph.outputs)
        layout = plan_memory(placing.lives, THOROUGH)
        with _traced() as grown:  # once more, as the device does it
            program = self._program(proto, resident)
            again = fit(program.graph, passed, program.resident)
            arena = Arena()
            placed = Placing(again, program.graph.outputs).placed(layout)
            plan = StaticPlan(again, program.graph.outputs, PlanLimits(), arena, placed)
            del again, placed
        prepared = -(-max(0, grown() - arena.nbytes) // 1024) * 1024
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in plan.output_specs]
        entry = StoredEntry(
            tuple(passed),
            use.results,
            len(fitted.steps),
            layout.total,
            live_bytes(placing.lives),
            tuple(placing.lives),
            layout.offsets,
        )
        return entry, prepared, sum(sizes)

    def _program(self, proto: Any, resident: Mapping[str, np.ndarray[Any, Any]]) -> NumPyProgram:
        program = _BACKEND.prepare(proto, self.protos, resident)
        assert isinstance(program, NumPyProgram)
        return program


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Bytes that the block allocated and did not free; 0 where somebody else is tracing."""
    if tracemalloc.is_tracing():
        yield lambda: 0
        return
    grown = 0
    tracemalloc.start()
    try:
        yield lambda: grown
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
