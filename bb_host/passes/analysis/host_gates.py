"""Which gates the host opens by itself: those work across executions (attribute `across`).

A `Gate` passes its value behind its trigger. Where both stem from the same input or entry, they are in one
execution, and the gate merely orders. Where the trigger stems from inputs that the value does not stem
from, the host may give it in an `invoke` of its own, before or after the value; then the two can only meet
in the op. Answers of requests stay in their child executions: nothing opens a gate over them from outside.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP
from bb_host.ir.program import Function
from bb_host.ir.queries import is_entry, reads
from bb_host.passes.analysis import flow

ACROSS = "across"

_GATE = (keys.SYSCALL_DOMAIN, "Gate")
_ANSWERS = "#answers"
_NOWHERE: frozenset[str] = frozenset()

Origins = frozenset[str]
"""Inputs of the partition by name, and entries by `#` and their number."""


def span_gates(main: Function) -> Function:
    """A partition's main with `across=1` at the gates that need it; gates of modules are inlined by now."""
    if _GATE not in flow.summary(main.ops).kinds:
        return main
    origins: dict[str, Origins] = {name: frozenset((name,)) for name in main.inputs}
    wanted = set()
    for index, op in enumerate(main.ops):
        inputs = [origins.get(name, _NOWHERE) for name in reads(op)]
        found = _NOWHERE.union(*inputs)
        if (op.domain, op.op_type) == _GATE and len(inputs) > 1 and _opened_by_host(inputs[0], inputs[1]):
            wanted.add(index)
        elif is_entry(op):
            found = frozenset((_ANSWERS if op.op_type == OP_RECV_RESP else f"#{index}",))
        origins.update((name, found) for name in op.outputs if name)
    across = {
        index: (dataclasses.replace(op, attrs={**op.attrs, ACROSS: 1}),)
        for index, op in enumerate(main.ops)
        if index in wanted
    }
    return main.with_ops(flow.spliced(main.ops, across))


def _opened_by_host(value: Origins, trigger: Origins) -> bool:
    from_host = bool(trigger) and not any(name.startswith("#") for name in trigger)
    return from_host and bool(value) and value.isdisjoint(trigger) and _ANSWERS not in value
