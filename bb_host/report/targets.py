"""What compiling for the edge did: a row per target, as data and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir import keys
from bb_host.columns import columns
from bb_host.ir.program import Function, Program, Subgraph, walk_ops
from bb_host.ir.proto import array_of, function_to_proto
from bb_host.ir.queries import is_constant
from bb_host.passes.device.strip import functions_of
from bb_host.passes.one_pass import PassReport

if TYPE_CHECKING:
    from bb_host.passes.device.budget import Budget
    from bb_host.passes.device.memory_plan import PlannedGraph
    from bb_host.tflite.lowered import Lowering


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target. Ops are those that the engine runs in main and bootstrap, Constants not counted.

    `bytes_before` are those of the target's functions in the portable model, `bytes_after` the artifact's;
    `calls` are calls of the `subgraphs` that were made; `parameters` are entries of tensors. `planned` of
    `graphs` have a memory plan; `arena_bytes` is the largest of these, `live_bytes` its lower bound,
    `plan_ratio` the worst ratio of the two. `rss_bytes` is the peak predicted with empty queues,
    `ram_bytes` and `flash_bytes` are what the budget counts, `memory` its rows and the plans. `tflite_models`
    hold `tflite_bytes` and stand for `tflite_ops`; `onnx_ops` of the same functions stayed, reasons counted.
    """

    target: str
    peer_class: str
    file: str
    ops_before: int
    ops_after: int
    subgraphs: int
    calls: int
    bytes_before: int
    bytes_after: int
    parameters: int
    graphs: int = 0
    planned: int = 0
    arena_bytes: int = 0
    live_bytes: int = 0
    plan_ratio: float = 1.0
    rss_bytes: int = 0
    ram_bytes: int = 0
    flash_bytes: int = 0
    memory: Mapping[str, Any] = field(default_factory=dict)
    tflite_models: int = 0
    tflite_bytes: int = 0
    tflite_ops: int = 0
    onnx_ops: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def describe_target(
    portable: Program,
    stripped: Program,
    target: str,
    artifact: bytes,
    file: str,
    planned: Sequence[PlannedGraph],
    budget: Budget,
    lowering: Lowering | None = None,
) -> TargetReport:
    """`portable` is the compiled program, `stripped` the target's, `artifact` its bytes."""
    models = lowering.models if lowering is not None else ()
    kept = lowering.kept if lowering is not None else ()
    known = [graph for graph in planned if not graph.reason]
    largest = max(known, key=lambda graph: graph.arena, default=None)
    before, after = functions_of(portable, target), stripped.functions
    bodies = [f for f in after if f.domain == keys.BACKEND_DOMAIN]
    main = next(f for f in before if f.name == target)
    return TargetReport(
        target,
        main.facts.partition,
        file,
        _engine_ops(before),
        _engine_ops(after),
        len(bodies),
        sum(op.domain == keys.BACKEND_DOMAIN for f in after for op in f.ops),
        sum(function_to_proto(f).ByteSize() for f in before),
        len(artifact),
        sum(
            _entries(slot.state)
            for f in after
            for slot in f.slots.values()
            if isinstance(slot.state, Subgraph)
        ),
        len(planned),
        len(known),
        largest.arena if largest else 0,
        largest.live if largest else 0,
        round(max((graph.ratio for graph in known), default=1.0), 4),
        budget.rss_bytes,
        budget.ram_bytes,
        budget.flash_bytes,
        {**budget.to_dict(), "plans": [graph.to_dict() for graph in planned]},
        len(models),
        sum(model.size for model in models),
        sum(n for model in models for n in model.ops.values()),
        dict(sorted(Counter(f"{op.op_type}: {op.reason}" for op in kept).items())),
    )


def _engine_ops(functions: Sequence[Function]) -> int:
    return sum(not is_constant(op) for f in functions if not f.is_tensor_work for op in walk_ops(f.ops))


def _entries(state: Subgraph) -> int:
    return sum(int(np.prod(array_of(tensor).shape)) for tensor in state.initializers.values())


_HEADS = ("target", "class", "ops", "subgraphs", "bytes", "parameters", "arena", "plan", "RSS", "file")


def table(rows: Sequence[TargetReport]) -> str:
    """The rows for people: ops and bytes as before → after; the plan as a multiple of its lower bound."""
    cells: list[Sequence[str]] = [_HEADS]
    for row in rows:
        cells.append(
            (
                row.target,
                row.peer_class,
                f"{row.ops_before:,} → {row.ops_after:,}",
                f"{row.subgraphs}, called {row.calls}×" if row.subgraphs else "–",
                f"{row.bytes_before:,} → {row.bytes_after:,}",
                f"{row.parameters:,}",
                _arena(row),
                f"{row.plan_ratio:.2f}×" if row.planned else "–",
                f"{'≥ ' if row.planned < row.graphs else ''}{row.rss_bytes / 2**20:.1f} MiB",
                row.file,
            )
        )
    return columns(cells)


def _arena(row: TargetReport) -> str:
    if not row.graphs:
        return "–"
    open_graphs = f"{row.graphs - row.planned} on the device" if row.planned < row.graphs else ""
    if not row.planned:
        return open_graphs
    return ", ".join(filter(None, (f"{row.arena_bytes:,}", open_graphs)))


def timings(passes: Sequence[PassReport]) -> str:
    """Milliseconds per pass, and of the check behind it."""
    cells: list[Sequence[str]] = [("stage", "ms", "seam ms", "counters")]
    for p in passes:
        counted = ", ".join(f"{key}: {n}" for key, n in p.counters.items())
        cells.append((p.name, f"{p.duration_ns / 1e6:.2f}", f"{p.seam_ns / 1e6:.2f}", counted))
    return columns(cells)
