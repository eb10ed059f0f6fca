"""What a target takes of a device's RAM and flash, row by row, and the refusal where it is too much.

RAM is what a process cannot give back to the system: private memory. Code and libraries are pages of files,
which the system may drop and read again; they are part of the predicted RSS and not of the budget. Queues
count with their ceilings in `NodeConfig.edge()`, though they are empty most of the time: what fits, fits when
they are full. Rows that the machine at hand decides are measured constants and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bb_edge.engine.config import NodeConfig
from bb_edge.engine.program.program import GraphSlot
from bb_edge.engine.program.program import Program as LoadedProgram
from bb_edge.ir import keys
from bb_edge.ir.bodies import body_keys
from bb_edge.ir.opsets.wire import RECV_FLAVORED, SEND_FLAVORED
from bb_host.columns import columns
from bb_host.errors import BudgetError
from bb_host.ir.program import Function, Program, RawTensor, walk_ops
from bb_host.ir.proto import array_of
from bb_host.passes.device.component_memory import component_memory, tensor_bytes
from bb_host.passes.device.memory_plan import PlannedGraph
from bb_host.tflite.lowered import Lowered

KIB, MIB = 1024, 1024 * 1024

INTERPRETER = 23 * MIB
"""Private memory of a Python with NumPy, the engine and the NumPy backend before any program: CPython 3.11,
x86-64, one BLAS thread. `--interpreter` says what it is on the device.
"""

TFLITE_INTERPRETER = 1 * MIB
"""Private memory of an interpreter that has run a small model, and `TFLITE_PAGES` of its library: LiteRT
2.3 on x86-64.
"""

TFLITE_PAGES = 12 * MIB

MQTT_CLIENT = 3 * MIB
"""Private memory of the transport on top of it, idle."""

FILE_PAGES = 18 * MIB
"""Pages of executables and libraries that are resident beside it; part of the RSS."""

_FRAME, _EXECUTION, _ENTRY = 320, 1384, 8
"""Bytes of a frame and an execution without their entries, and of an entry; CPython's records."""

_ARENA = "arena, shared: the largest of"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device has; None: no limit. `interpreter` replaces the estimate for Python and the runtime."""

    ram: int | None = None
    flash: int | None = None
    interpreter: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A row. `ceiling`: a bound that is reached only under load; `counted`: part of the sum."""

    what: str
    nbytes: int
    ceiling: bool = False
    counted: bool = True


class Unknown(NamedTuple):
    """A graph, or a slot, whose memory cannot be told: why, and what to do."""

    name: str
    reason: str
    remedy: str


_NOT_SAID = ("nothing tells the shape of what it keeps", "give read(g, first) a value of a known shape")


@dataclass(frozen=True, slots=True)
class Budget:
    """One target. `unknown` are the graphs whose memory cannot be told at compile time."""

    target: str
    ram: tuple[Share, ...]
    flash: tuple[Share, ...]
    unknown: tuple[Unknown, ...] = ()
    files: int = FILE_PAGES

    @property
    def ram_bytes(self) -> int:
        return sum(share.nbytes for share in self.ram if share.counted)

    @property
    def flash_bytes(self) -> int:
        return sum(share.nbytes for share in self.flash if share.counted)

    @property
    def rss_bytes(self) -> int:
        """Predicted peak RSS with empty queues: all rows but ceilings, and the pages of files."""
        return self.files + sum(s.nbytes for s in self.ram if s.counted and not s.ceiling)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; sizes in bytes."""

        def rows(shares: Sequence[Share]) -> list[dict[str, Any]]:
            return [
                {"what": s.what, "bytes": s.nbytes, "ceiling": s.ceiling, "counted": s.counted}
                for s in shares
            ]

        return {
            "target": self.target,
            "ram_bytes": self.ram_bytes,
            "flash_bytes": self.flash_bytes,
            "rss_bytes": self.rss_bytes,
            "ram": rows(self.ram),
            "flash": rows(self.flash),
            "unknown": [{"function": name, "reason": why} for name, why, _ in self.unknown],
        }

    def table(self) -> str:
        """For people: the rows of both, largest first."""
        cells: list[Sequence[str]] = []
        for name, shares, total in (
            ("RAM", self.ram, self.ram_bytes),
            ("flash", self.flash, self.flash_bytes),
        ):
            cells.append((f"{self.target}: {name}", f"{total:,}", "bytes"))
            for share in _in_order(shares):
                note = "at most" if share.ceiling else "" if share.counted else "within the arena"
                cells.append((f"  {share.what}", f"{share.nbytes:,}", note))
        width = max(len(row[1]) for row in cells)
        text = columns([(row[0], row[1].rjust(width), row[2]) for row in cells])
        return "\n".join([text, *(f"  not known: {name}: {why}" for name, why, _ in self.unknown)])


def refuse(budgets: Sequence[Budget], limits: Limits) -> None:
    """BudgetError where a target is over a limit, or its RAM cannot be told though it is limited."""
    for budget in budgets:
        where = f"target {budget.target}"
        if limits.ram is not None and budget.unknown:
            name, why, remedy = budget.unknown[0]
            raise BudgetError(f"its RAM cannot be told: {name}: {why}", where, remedy, budget.table())
        for kind, needed, limit in (
            ("RAM", budget.ram_bytes, limits.ram),
            ("flash", budget.flash_bytes, limits.flash),
        ):
            if limit is not None and needed > limit:
                raise BudgetError(
                    f"it takes {needed:,} bytes of {kind}, {limit:,} are there: {needed - limit:,} too many",
                    where,
                    "the table says what takes how much",
                    budget.table(),
                )


def _in_order(shares: Sequence[Share]) -> list[Share]:
    """Largest first; what lies within another row stays behind it."""
    within = [s for s in shares if not s.counted]
    ordered: list[Share] = []
    for share in sorted((s for s in shares if s.counted), key=lambda s: -s.nbytes):
        ordered.append(share)
        if share.what == _ARENA:
            ordered += sorted(within, key=lambda s: -s.nbytes)
    return ordered


# --- what takes how much --------------------------------------------------------------------------


def budget_of(
    program: Program,
    target: str,
    artifact: bytes,
    loaded: LoadedProgram,
    planned: Sequence[PlannedGraph],
    interpreter: int | None,
    models: Sequence[Lowered],
    max_batch: int | None,
    kept: Sequence[tuple[str, int | None]] = (),
) -> Budget:
    """The budget of one stripped target, and of its artifact in bytes and as a device loads it.

    `interpreter` is what Python and the runtime take, instead of the estimate; `models` are its flatbuffers,
    `max_batch` the largest batch of those whose batch is open, `kept` the slots that keep a value.
    """
    config = NodeConfig.edge()
    ram = [
        Share(
            "Python, NumPy and the runtime (estimate)", INTERPRETER if interpreter is None else interpreter
        ),
        Share("the artifact while it is read", len(artifact)),
        Share("the program as it was read", len(artifact)),
        *(Share(what, nbytes) for what, nbytes in component_memory(program)),
        *(Share(f"what {slot} keeps, and the next while it is written", 2 * (n or 0)) for slot, n in kept),
        *_tensor_work(planned),
        *_models(models, max_batch or 1),
        Share("slot tables", _slot_tables(loaded, config)),
        Share("executions (max_executions)", _executions(loaded, config), ceiling=True),
        *_queues(program, config),
    ]
    told = _told(program, models, max_batch)
    open_ones = (g for g in planned if g.reason and not g.bounded and g.function not in told)
    unknown = tuple(Unknown(g.function, g.reason, g.remedy) for g in open_ones)
    unknown += tuple(Unknown(f"slot {slot}", *_NOT_SAID) for slot, n in kept if n is None)
    files = (FILE_PAGES if interpreter is None else 0) + (TFLITE_PAGES if models else 0)
    return Budget(target, tuple(s for s in ram if s.nbytes), tuple(_flash(program, artifact)), unknown, files)


def _tensor_work(planned: Sequence[PlannedGraph]) -> Iterator[Share]:
    for graph in planned:
        yield Share(f"weights and steps of {graph.function}", graph.prepared)
        yield Share(f"activations that {graph.function} leaves for its gradient", graph.kept)
    yield Share(_ARENA, max((graph.arena for graph in planned), default=0))
    for graph in planned:
        note = f", {graph.assumed}" if graph.assumed else ""
        yield Share(f"  {graph.function}{note}", graph.arena, counted=False)
    yield Share("inputs and results of one execution", sum(g.inputs + g.results for g in planned))


def _models(models: Sequence[Lowered], batch: int) -> Iterator[Share]:
    """Each model has an interpreter of its own, which packs the weights anew."""
    if models:
        yield Share("TFLite interpreter (estimate)", TFLITE_INTERPRETER)
    packed = sum(model.size + model.repeated for model in models)
    yield Share("weights as TFLite packs them (estimate)", packed)
    yield Share("activations of TFLite models", sum(model.activations(batch) for model in models))


def _told(program: Program, models: Sequence[Lowered], max_batch: int | None) -> set[str]:
    """Functions that are models alone, with a batch that is known: their memory is told above."""
    open_ones = {m.function for m in models if m.open_batch} if max_batch is None else set()
    return {
        function.name
        for function in program.functions
        if function.name not in open_ones
        and function.ops
        and all(op.domain == keys.TFLITE_DOMAIN for op in function.ops)
    }


def _slot_tables(loaded: LoadedProgram, config: NodeConfig) -> int:
    """Frames are made at install: per region of mains and bootstraps one for each execution or child, and
    one beside each for every body that it may run.
    """
    children = config.max_executions * config.max_children
    total = 0
    for target in loaded.targets.values():
        for key in (target.main, target.bootstrap):
            if key is None:
                continue
            graph = loaded.graphs[key]
            for region in graph.regions:
                frames = children if region.index else config.max_executions
                total += frames * _frame(loaded, graph, region.index)
    return total


def _executions(loaded: LoadedProgram, config: NodeConfig) -> int:
    """Their records are made where one runs beside the others; answers to requests run in children."""
    entered = [key for target in loaded.targets.values() for key in (target.main, target.bootstrap) if key]
    asks = any(len(loaded.graphs[key].regions) > 1 for key in entered)
    return config.max_executions * (1 + config.max_children * asks) * _EXECUTION


def _frame(loaded: LoadedProgram, graph: GraphSlot, region: int) -> int:
    """Bytes of a frame of that region, with those of the bodies that its ops run."""
    bodies = (
        loaded.graphs[key]
        for op in graph.ops
        if op.region == region
        for key in body_keys(op.domain, op.op_type, op.attrs)
    )
    inner = sum(_frame(loaded, body, 0) for body in bodies)
    return _FRAME + _ENTRY * (len(graph.values) + len(graph.waiting)) + inner


def _queues(program: Program, config: NodeConfig) -> Iterator[Share]:
    ops = [op.op_type for f in program.functions for op in walk_ops(f.ops) if op.domain == keys.WIRE_DOMAIN]
    if ops:
        yield Share("MQTT client (estimate)", MQTT_CLIENT)
    if any(op in RECV_FLAVORED for op in ops):
        yield Share("inbound envelopes (ingress_bytes)", config.ingress_bytes, ceiling=True)
    if any(op in SEND_FLAVORED for op in ops):
        yield Share("outbound envelopes (ingress_bytes)", config.ingress_bytes, ceiling=True)
    yield Share("one invoke (invoke_bytes)", config.invoke_bytes, ceiling=True)
    yield Share("one app event (app_event_bytes)", config.app_event_bytes, ceiling=True)


def _flash(program: Program, artifact: bytes) -> Iterator[Share]:
    state = sum(tensor_bytes(slot) for f in program.functions for slot in f.slots.values())
    constants = sum(_constant_bytes(f) for f in program.functions)
    plans = sum(len(f.facts.memory_plan) for f in program.functions)
    for what, size in (
        ("parameters", state),
        ("weights and constants of graphs", constants),
        ("memory plans", plans),
        ("ops, names and metadata", max(0, len(artifact) - state - constants - plans)),
    ):
        if size:
            yield Share(what, size)


def _constant_bytes(function: Function) -> int:
    found = 0
    for op in walk_ops(function.ops):
        for value in op.attrs.values():
            if isinstance(value, np.ndarray):
                found += value.nbytes
            elif isinstance(value, RawTensor):
                found += len(value.data)
            elif isinstance(value, bytes) and op.domain == keys.TFLITE_DOMAIN:
                found += len(value)
        for _, graph in op.subgraphs():
            found += sum(array_of(tensor).nbytes for tensor in graph.initializers.values())
    return found
