"""Bound ops: a program's graphs as one node runs them, each op with what `bind` made of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bb_edge.engine.program.records import OUTPUT_OP, GraphSlot, OpSpec, Region
from bb_edge.ir import keys
from bb_edge.ir.opsets import OpKind

INVOKE = -1
"""Key of `BoundGraph.claims` for executions that start without any value."""


class OutputMode(enum.IntEnum):
    """What happens to an op's result."""

    NONE = 0  # nothing
    ONE = 1  # it is written to the only output
    SPREAD = 2  # its items are written to the outputs


PlainCall = tuple[Callable[..., Any], int, int]
"""(run, first input site, second one or -1) of an op that computes one value from one or two."""


class BoundOp:
    """An op of one node: its spec, and what `bind` made of it.

    `gather(values)` gives the values at the sites `inputs`; `run(ctx, *inputs)` does the work.
    `component` is the one that the op calls (-1: none), a backend included; `touches` is the one that a
    bootstrap may lock and an execution may have to claim, never a backend; `busy_key` the one that takes
    one op at a time. `takes_first` says that a tuple that comes later has the op's several outputs, of
    which the node names the first. `later_ns` is the deadline of a `Later` (0: the node's default).
    `forward` tells of a call of a function which sites of the caller each of its outputs goes to.
    `is_plain_call` says of a backend call that `run(None, …)` needs no context and always gives its
    values at once, `plain` how it is called where it computes one value from one or two; `emits` is the
    topic of an op that does nothing but emit an app event. `check` holds a component's result against
    what the op declares, where there is something to hold. `frees` are sites that nobody but this op
    reads: their values go as soon as it has run.
    """

    __slots__ = (
        "busy_key",
        "check",
        "component",
        "emits",
        "forward",
        "frees",
        "gather",
        "graph_index",
        "index",
        "inputs",
        "is_plain_call",
        "later_ns",
        "mode",
        "out",
        "outs",
        "plain",
        "run",
        "spec",
        "takes_first",
        "target",
        "touches",
        "writes",
        "yields_command",
    )

    def __init__(self, spec: OpSpec, target: str, graph_index: int) -> None:
        self.spec = spec
        self.index = spec.index
        self.target = target
        self.graph_index = graph_index
        outs = spec.outputs
        self.outs = outs
        self.out = outs[0] if outs else -1
        self.mode = OutputMode.NONE
        if any(s >= 0 for s in outs):
            self.mode = OutputMode.ONE if len(outs) == 1 else OutputMode.SPREAD
        self.inputs: tuple[int, ...] = spec.inputs
        self.run: Callable[..., Any] = _unbound
        self.gather: Callable[[list[Any]], Sequence[Any]] = _no_inputs
        self.component = -1
        self.touches = -1
        self.busy_key = -1
        self.writes = False
        self.yields_command = False
        self.takes_first = False
        self.later_ns = 0
        self.forward: Mapping[int, tuple[int, ...]] = {}
        self.is_plain_call = False
        self.plain: PlainCall | None = None
        self.check: Callable[[object], Any] | None = None
        self.emits: str | None = None
        self.frees: tuple[int, ...] = ()


def _unbound(*_: object) -> object:
    raise AssertionError("an op was run before it was bound")


def _no_inputs(_: list[Any]) -> Sequence[Any]:
    return ()


class BoundRegion:
    """A region of one node: consumers resolved to bound ops."""

    __slots__ = ("consumers", "graph", "imports", "joins", "region")

    def __init__(self, graph: BoundGraph, region: Region) -> None:
        self.graph = graph
        self.region = region
        ops = graph.ops
        self.consumers = tuple(tuple((ops[i], weight) for i, weight in entry) for entry in region.consumers)
        self.imports = region.imports
        self.joins = region.joins


class BoundGraph:
    """A graph of one node.

    `claims` tells for an entry op (by index, INVOKE for an invoke without inputs) which components an
    execution that starts there must claim: the unshared ones that its flow writes. `input_claims` tells the
    same for a value at a function input, by site. `starts` are the outputs that are constants, or computed
    from constants alone, and the syscalls that read nothing else: they come with each invoke and, where it is
    the only way in, each firing of the only entry (by index); what `g.on_invoke()` holds, with invokes alone.
    """

    __slots__ = ("claims", "index", "input_claims", "ops", "regions", "slot", "starts", "target")

    def __init__(self, slot: GraphSlot, index: int, target: str) -> None:
        self.slot = slot
        self.index = index
        self.target = target
        self.ops = tuple(BoundOp(spec, target, index) for spec in slot.ops)
        self.regions = tuple(BoundRegion(self, region) for region in slot.regions)
        self.claims: dict[int, tuple[int, ...]] = {}
        self.input_claims: dict[int, tuple[int, ...]] = {}
        self.starts = self._find_starts()
        self._find_last_readers()

    def _find_starts(self) -> dict[int, tuple[BoundOp, ...]]:
        slot = self.slot
        found = tuple(op for op in self.ops if op.spec.region == 0 and self._starts_by_itself(op))
        if not found:
            return {}
        entries = [op.index for op in self.ops if op.spec.kind is OpKind.ENTRY and op.spec.region == 0]
        only = entries if len(entries) == 1 and not slot.inputs else []
        with_entry = tuple(op for op in found if keys.ON_INVOKE_KEY not in op.spec.meta)
        return {INVOKE: found, **dict.fromkeys(only, with_entry)}

    def _starts_by_itself(self, op: BoundOp) -> bool:
        """Whether an op is an output or a syscall that nobody reads, and constants are all that it needs."""
        if op.spec.domain != keys.SYSCALL_DOMAIN:
            return False
        if op.spec.op_type == OUTPUT_OP and self.slot.values[op.spec.inputs[0]] is not None:
            return True
        return bool(op.spec.pulls) and all(self._is_constant(self.ops[n].spec) for n in op.spec.pulls)

    def _is_constant(self, spec: OpSpec) -> bool:
        """Whether an op that waits for nothing computes on constants, or is a syscall over constants."""
        if spec.domain == keys.SYSCALL_DOMAIN:
            return bool(spec.inputs or spec.controls)
        return spec.proto is not None or spec.domain == keys.BACKEND_DOMAIN

    def _find_last_readers(self) -> None:
        """Fills `frees`: memory comes back with the only reader, not with the execution's end.

        Left alone are constants, what children may read later, and what first-arrival ops look at.
        """
        slot = self.slot
        kept = set(slot.forwarded)
        kept.update(s for op in slot.ops if op.port >= 0 for s in op.outputs)
        readers: dict[int, list[int]] = {}
        for region in slot.regions:
            for site, entry in enumerate(region.consumers):
                readers.setdefault(site, []).extend(index for index, _ in entry)
        freed: dict[int, list[int]] = {}
        for site, found in readers.items():
            if len(found) == 1 and site not in kept and slot.values[site] is None:
                freed.setdefault(found[0], []).append(site)
        for index, sites in freed.items():
            self.ops[index].frees = tuple(sites)
