"""How many rows of a batch a model's graph `fit` takes at a time, and the graph for as many.

A device cuts batches into chunks where the graph says so (docs/design/artifact.md, "Component graphs"). What
a chunk computes should stay in the cache; each chunk reads all parameters and writes all gradients anew,
which are added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.ir.construction import config_of
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Function, Op, Program, Slot, walk_ops
from bb_host.ir.queries import component_graph, same_values
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.lowered import Chunk, Kept, Lowering

CACHE = 1 << 20
"""Bytes of activations that a chunk may have at a time: those of a second-level cache, or half of one."""

FEWEST = 4
"""Rows of a chunk at least, where the batch has them: products of fewer rows are slow."""

UNKNOWN = 8
"""Rows of a chunk at most where nobody knows the batch: a chunk that is not full is computed whole."""

_TRAFFIC = 4
"""How often a chunk moves the bytes of the parameters: in, gradients out, and both sides of their sum."""


class Fit(NamedTuple):
    """A graph `fit`, lowered or as it was, and what was done."""

    function: Function
    lowering: Lowering


class Cost(NamedTuple):
    """Of a graph for some rows: bytes of activations at one time, and of all that its operators write."""

    live: int
    written: int


def fit_slot(function: Function, target: str) -> str:
    """The slot whose graph `fit` a function is, for a target; empty for any other function."""
    if function.domain != keys.COMPONENT_DOMAIN:
        return ""
    slot, graph, owner = component_graph(function)
    return slot if graph == "fit" and owner in ("", target) else ""


def rows_of(program: Program, slot: str) -> int | None:
    """Rows of the largest batch that a slot trains on; None where they are not known.

    They are those of the batch's type, or what the configuration of the data source says that gives it.
    """
    found: list[int | None] = []
    sources: dict[str, list[int | None]] = {}  # bodies of loops have no slots: those of the partitions
    for function in program.functions:
        for name, known_slot in function.slots.items():
            sources.setdefault(name, []).append(_batch_size(known_slot))
    for function in program.functions:
        makers = {v: op for op in function.ops for v in op.outputs if v}
        trains = (op for op in walk_ops(function.ops) if _trains(op, slot))
        found += [rows for op in trains for rows in _rows(function, makers, sources, op)]
    known = [n for n in found if n is not None]
    return max(known) if known and len(known) == len(found) else None


def _trains(op: Op, slot: str) -> bool:
    return op.op_type == "Train" and op.domain == keys.ROLE_MODEL_DOMAIN and op.slot == slot


def _rows(
    function: Function, makers: dict[str, Op], sources: Mapping[str, Sequence[int | None]], op: Op
) -> Sequence[int | None]:
    for name in same_values(op.inputs[0], makers):
        known = function.types.get(name)
        if known is not None and known.shape and isinstance(known.shape[0], int):
            return [known.shape[0]]
    maker = makers.get(name)
    if maker is None:
        return [None]
    own = function.slots.get(maker.slot)
    return sources.get(maker.slot, [None]) if own is None else [_batch_size(own)]


def _batch_size(source: Slot) -> int | None:
    """Of the data source that a slot is bound to; None where it says none, or all that there is."""
    size = None if source.state is None else config_of(source.state).get("batch_size")
    return size if isinstance(size, int) and size > 0 else None


def lowered_fit(
    function: Function, rows: int | None, lower: Callable[[Function, bool], tuple[Function, Lowering]]
) -> Fit:
    """A graph `fit` for the chunk that is best for batches of `rows`, lowered; as it was where it stays.

    `lower(function, for_good)` lowers a graph; not for good, it is asked what that would cost. One that takes
    statistics of a whole batch has as many rows as the largest batch.
    """
    whole = function.facts.chunk == 0
    if whole and rows is not None and rows < (function.facts.fewest_rows or 1):
        rows = None  # no node starts with such batches: one that does has others, and nobody knows them
    if whole and rows is None and own_rows(function) is None:
        why = "it takes statistics of a whole batch, and nobody says of how many rows"
        return Fit(function, Lowering((), (Kept(function.name, "its batch", why),)))
    parameters = sum(_bytes(function.types.get(name)) for name in function.inputs[3:])

    def cost(chunk: int) -> Cost:
        _, found = lower(for_rows(function, chunk), False)
        live = sum(model.activations(1) for model in found.models)
        # Parameters and gradients are inputs and results: a chunk has them whatever its size.
        return Cost(max(0, live - 2 * parameters), sum(model.written for model in found.models))

    try:
        chunk = own_rows(function) or (rows if whole else None) or best_chunk(rows, parameters, cost)
        changed, lowering = lower(for_rows(function, chunk), True)
    except NotLowered as error:
        return Fit(function, Lowering((), (Kept(function.name, "its batch", str(error)),)))
    if not lowering.models:
        return Fit(function, lowering)
    return Fit(changed, dataclasses.replace(lowering, chunks=(Chunk(function.name, chunk, rows),)))


def _bytes(known: ValueType | None) -> int:
    dims = () if known is None or known.shape is None else known.shape
    return 4 * prod(dim for dim in dims if isinstance(dim, int))


def for_rows(function: Function, rows: int) -> Function:
    """A graph `fit` for so many rows. NotLowered where its batch is neither open nor of so many."""
    known = function.types.get(function.inputs[0])
    batch = known.shape[0] if known is not None and known.shape else None
    facts = function.facts | FunctionFacts(chunk=rows)
    if isinstance(batch, int):
        if batch != rows:
            raise NotLowered(f"its model takes batches of {batch} rows alone")
        return dataclasses.replace(function, facts=facts)
    if not isinstance(batch, str):
        raise NotLowered("the type of its input is not known")

    def fixed(value: ValueType) -> ValueType:
        if value.shape is None:
            return value
        return ValueType(value.node, tuple(rows if dim == batch else dim for dim in value.shape))

    types = {name: fixed(value) for name, value in function.types.items()}
    return dataclasses.replace(function, types=types, facts=facts)


def own_rows(function: Function) -> int | None:
    """The rows that a graph `fit` is fixed to; None where its batch is open."""
    known = function.types.get(function.inputs[0])
    batch = known.shape[0] if known is not None and known.shape else None
    return batch if isinstance(batch, int) else None


def best_chunk(rows: int | None, parameters: int, cost: Callable[[int], Cost]) -> int:
    """Rows of a chunk: those that move the fewest bytes beyond the cache for a batch of `rows`.

    `parameters` are their bytes; `cost` says what a graph for some rows needs, and is asked twice: both
    of its figures grow by as much with each row.
    """
    most = UNKNOWN if rows is None else rows
    if most <= FEWEST:
        return most
    few, more = cost(FEWEST // 2), cost(FEWEST)
    steps = FEWEST - FEWEST // 2
    per_row = Cost((more.live - few.live) // steps, (more.written - few.written) // steps)
    return min(_candidates(most), key=lambda chunk: _moved(most, chunk, parameters, more, per_row))


def _candidates(rows: int) -> Iterator[int]:
    """Chunks that cut a batch into 1, 2, … parts as even as can be; larger ones first."""
    seen = 0
    for parts in range(1, rows + 1):
        chunk = ceil(rows / parts)
        if chunk < FEWEST:
            return
        if chunk != seen:
            yield chunk
        seen = chunk


def _moved(rows: int, chunk: int, parameters: int, at: Cost, per_row: Cost) -> float:
    parts = ceil(rows / chunk)
    live = at.live + (chunk - FEWEST) * per_row.live
    written = at.written + (chunk - FEWEST) * per_row.written
    beyond = max(0.0, 1 - CACHE / live) if live else 0.0
    return parts * (_TRAFFIC * parameters + written * beyond)
