"""What compiling for the edge did: a row per target, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bb_edge.ir import keys
from bb_host.edge.arrivals import is_constant
from bb_host.edge.strip import functions_of
from bb_host.program import Function, Program, Subgraph, walk_ops
from bb_host.program_proto import array_of, function_to_proto

__all__ = ["TargetReport", "describe_target", "table"]


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target. Ops are those that the engine runs in main and bootstrap, Constants not counted.

    `bytes_before` are those of the target's functions in the portable model, `bytes_after` the artifact's;
    `calls` are calls of the `subgraphs` that were made; `parameters` are entries of tensors.
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def describe_target(
    portable: Program, stripped: Program, target: str, artifact: bytes, file: str = ""
) -> TargetReport:
    """`portable` is the compiled program, `stripped` the target's, `artifact` its bytes."""
    before, after = functions_of(portable, target), stripped.functions
    bodies = [f for f in after if f.domain == keys.BACKEND_DOMAIN]
    main = next(f for f in before if f.name == target)
    return TargetReport(
        target,
        main.meta.get(keys.PARTITION_KEY, ""),
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
    )


def _engine_ops(functions: Sequence[Function]) -> int:
    outside = (keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN)
    own = [f for f in functions if f.domain not in outside]
    return sum(not is_constant(op) for f in own for op in walk_ops(f.ops))


def _entries(state: Subgraph) -> int:
    return sum(int(np.prod(array_of(tensor).shape)) for tensor in state.initializers.values())


_HEADS = ("target", "class", "ops", "subgraphs", "bytes", "parameters", "file")


def table(rows: Sequence[TargetReport]) -> str:
    """The rows for people: ops and bytes as before → after."""
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
                row.file,
            )
        )
    return columns(cells)


def columns(cells: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def timings(passes: Sequence[Any], further: Mapping[str, int]) -> str:
    """Milliseconds per pass (`PassReport`s) and per step of the back half (nanoseconds by name)."""
    cells: list[Sequence[str]] = [("stage", "ms", "seam ms", "counters")]
    for p in passes:
        counted = ", ".join(f"{key}: {n}" for key, n in p.counters.items())
        cells.append((p.name, f"{p.duration_ns / 1e6:.2f}", f"{p.seam_ns / 1e6:.2f}", counted))
    for name, duration_ns in further.items():
        cells.append((name, f"{duration_ns / 1e6:.2f}", "", ""))
    return columns(cells)
