"""Queries about a node's components."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir import keys
from bb_edge.roles.component import Component
from bb_edge.roles.contracts import method_name


def observers(components: Sequence[Component]) -> tuple[tuple[Component, Callable[[int], None]], ...]:
    """Those that want to hear of executions' ends, and where."""
    return tuple(
        (c, c.execution_ended) for c in components if type(c).execution_ended is not Component.execution_ended
    )


def origin_of(op: BoundOp, components: Sequence[Component]) -> str:
    """The component behind an op: `slot 'cam' (acme.Camera.next_batch)`; empty where none is."""
    if op.component < 0:
        return ""
    if components[op.component].ROLE == keys.ROLE_BACKEND:
        return f"backend {components[op.component].TYPE_NAME}"
    component, slot = components[op.component], op.spec.meta.get(keys.SLOT_KEY, "")
    return f"slot {slot!r} ({component.TYPE_NAME}.{method_name(op.spec.op_type)})"
