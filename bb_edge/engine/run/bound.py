"""Bound ops: a program's graphs as one node runs them, each op with what `bind` made of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bb_edge.engine.program.program import GraphSlot, OpSpec, Region


class OutputMode(enum.IntEnum):
    """What happens to an op's result."""

    NONE = 0  # nothing
    ONE = 1  # it is written to the only output
    SPREAD = 2  # its items are written to the outputs


PlainCall = tuple[Callable[..., Any], int, int]
"""(run, first input site, second one or -1) of an op that computes one value from one or two."""


def _unbound(*_: object) -> object:
    raise AssertionError("an op was run before it was bound")


def _no_inputs(_: list[Any]) -> Sequence[Any]:
    return ()


@dataclass(slots=True, eq=False)
class BoundOp:
    """An op of one node: its spec, and what `bind` made of it.

    `gather(values)` gives the values at the sites `inputs`; `run(ctx, *inputs)` does the work.
    `component` is the one that the op calls (-1: none), a backend included; `touches` is the one that a
    bootstrap may lock and an execution may have to claim, never a backend; `busy_key` the one that takes
    one op at a time. `takes_first` says that a tuple that comes later has the op's several outputs, of
    which the node names the first. `later_ns` is the deadline of a `Later` (0: the node's default).
    `cohort` tells of an aggregator's op how many executions up the one is whose sum it is about; -1: its
    round tells, None: there is one sum.
    `forward` tells of a call of a function which sites of the caller each of its outputs goes to.
    `is_plain_call` says of a backend call that `run(None, …)` needs no context and always gives its
    values at once, `plain` how it is called where it computes one value from one or two; `emits` is the
    topic of an op that does nothing but emit an app event. `check` holds a component's result against
    what the op declares, where there is something to hold. `frees` are sites that nobody but this op
    reads: their values go as soon as it has run. `ended(frame, values)` of an op with bodies is called by
    the last op of a body that it runs. `then` is the op that `thens_of` finds behind it. `alone` is what runs
    instead of `run` where every op is observed: an op's own part, where `run` does that of its readers, too.
    """

    spec: OpSpec
    target: str
    graph_index: int
    index: int = field(init=False)
    inputs: tuple[int, ...] = field(init=False)
    outs: tuple[int, ...] = field(init=False)
    out: int = field(init=False)
    mode: OutputMode = OutputMode.NONE
    run: Callable[..., Any] = _unbound
    gather: Callable[[list[Any]], Sequence[Any]] = _no_inputs
    component: int = -1
    touches: int = -1
    busy_key: int = -1
    writes: bool = False
    yields_command: bool = False
    takes_first: bool = False
    later_ns: int = 0
    cohort: int | None = None
    forward: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    is_plain_call: bool = False
    plain: PlainCall | None = None
    check: Callable[[object], Any] | None = None
    emits: str | None = None
    frees: tuple[int, ...] = ()
    ended: Callable[[Any, Any], None] | None = None
    alone: Callable[..., Any] | None = None
    then: BoundOp | None = None

    def __post_init__(self) -> None:
        self.index, self.inputs, self.outs = self.spec.index, self.spec.inputs, self.spec.outputs
        self.out = self.outs[0] if self.outs else -1
        if any(s >= 0 for s in self.outs):
            self.mode = OutputMode.ONE if len(self.outs) == 1 else OutputMode.SPREAD


@dataclass(slots=True, eq=False)
class BoundRegion:
    """A region of one node: consumers resolved to bound ops."""

    graph: BoundGraph
    region: Region
    consumers: tuple[tuple[tuple[BoundOp, int], ...], ...] = field(init=False)
    imports: tuple[int, ...] = field(init=False)
    joins: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        ops, region = self.graph.ops, self.region
        self.consumers = tuple(tuple((ops[i], weight) for i, weight in entry) for entry in region.consumers)
        self.imports, self.joins = region.imports, region.joins


class OfData(NamedTuple):
    """A value that follows from the batches of data sources: its shape, its dtype, and their slots."""

    shape: tuple[int, ...]
    dtype: Any
    slots: tuple[str, ...]


@dataclass(slots=True, eq=False)
class BoundGraph:
    """A graph of one node.

    `claims` tells for an entry op (by index, INVOKE for an invoke without inputs) which components an
    execution that starts there must claim: the unshared ones that its flow writes. `input_claims` tells the
    same for a value at a function input, by site. `starts` are the outputs that are constants, or computed
    from constants alone, and the syscalls that read nothing else: they come with each invoke and, where it is
    the only way in, each firing of the only entry (by index); what `g.on_invoke()` holds, with invokes alone.
    `trains` are the entry ops whose flow trains a model.
    `declared` are the types that the artifact declares for values, by name, once an op has asked for them.
    `of_data` are values whose shape the node's own data decide, by site.
    """

    slot: GraphSlot
    index: int
    target: str
    ops: tuple[BoundOp, ...] = field(init=False)
    regions: tuple[BoundRegion, ...] = field(init=False)
    claims: dict[int, tuple[int, ...]] = field(default_factory=dict)
    input_claims: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trains: frozenset[int] = frozenset()
    starts: dict[int, tuple[BoundOp, ...]] = field(init=False)
    declared: Mapping[str, Any] | None = None
    of_data: dict[int, OfData] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops = tuple(BoundOp(spec, self.target, self.index) for spec in self.slot.ops)
        self.regions = tuple(BoundRegion(self, region) for region in self.slot.regions)
        ops = self.ops
        self.starts = {entry: tuple(ops[i] for i in found) for entry, found in self.slot.starts.items()}
        for index, sites in self.slot.frees.items():
            ops[index].frees = sites
        for index, behind in self.slot.thens.items():
            ops[index].then = ops[behind]


Wrap = Callable[[BoundOp], Callable[..., Any]]
"""Gives what runs instead of an op's `run`."""


@dataclass(slots=True)
class OpObserver:
    """Whoever observes the ops of a node; nobody, until `observe` is called."""

    _wrap: Wrap | None = None

    def observe(self, wrap: Wrap, graphs: Sequence[BoundGraph]) -> None:
        """Has every op of these graphs run through `wrap(op)`, for good."""
        self._wrap = wrap
        for graph in graphs:
            for op in graph.ops:
                self.rebind(op, op.alone or op.run)

    def rebind(self, op: BoundOp, run: Callable[..., Any]) -> None:
        """Gives an op this implementation, seen by whoever observes ops."""
        op.run = run
        if self._wrap is not None:
            op.run = self._wrap(op)
            op.plain = None
