"""Checks that each backward pass has a forward pass: in its own execution, or under the same key.

That is where activations are kept. What cannot work is refused here, where the author's line is known; a
device would fail at the op, each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bb_edge.ir import keys
from bb_host.errors import BackwardWithoutForward, named
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import component_graph, reads
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.joins import Joins, entry_of

_BACKWARD = frozenset((keys.ROLE_MODEL_DOMAIN, name) for name in ("Backward", "BackwardInput"))
_FORWARD = (keys.ROLE_MODEL_DOMAIN, "Forward")


def _is_keyed(op: Op) -> bool:
    """Whether a forward or backward pass keeps or reads its activations under a key."""
    return op.op_type in ("ForwardKeyed", "BackwardKeyed") or (
        op.op_type == "BackwardInput" and len(op.inputs) > 1 and bool(op.inputs[1])
    )


def check_executions(main: Function, joins: Joins) -> None:
    """Raises BackwardWithoutForward where no Forward of the slot is in an execution of the Backward."""
    if _BACKWARD.isdisjoint(flow.summary(main.ops).kinds):
        return
    forwards: dict[str, list[Op]] = {}
    seen: dict[str, list[set[int] | None]] = {}
    for op in main.ops:
        if (op.domain, op.op_type) == _FORWARD:
            slot = op.slot
            forwards.setdefault(slot, []).append(op)
            seen.setdefault(slot, []).append(_executions(op, joins))
    for op in main.ops:
        slot = op.slot
        if (op.domain, op.op_type) not in _BACKWARD or _is_keyed(op) or slot not in forwards:
            continue  # no Forward in this function: `check_slot` looks at the others too
        where = _executions(op, joins)
        if where is None:
            continue
        if not any(found is None or not where.isdisjoint(found) for found in seen[slot]):
            raise BackwardWithoutForward(
                f"it runs in an execution that stems from {entry_of(min(where), joins)}, and each Forward of "
                f"{slot!r} in another one: {named(forwards[slot][0])}",
                hint="activations are kept for one execution: record forward and backward in the same one, or"
                " give both a key: forward(g, x, key=k), backward(g, dz, key=k)",
                op=op,
            )


def _executions(op: Op, joins: Joins) -> set[int] | None:
    """The entries of the executions that an op runs in; None where it runs wherever it is read."""
    for name in (*op.outputs, *reads(op)):
        found = joins.values.get(name)
        if found is not None:
            return set(found)
    return None


def check_slot(slot: str, ops: Sequence[Op], components: Iterable[Function], target: str) -> None:
    """Raises BackwardWithoutForward for a model that is never run forward, or was built without gradient."""
    graphs = _graphs(slot, components, target)
    train = next((op for op in ops if (op.domain, op.op_type) == (keys.ROLE_MODEL_DOMAIN, "Train")), None)
    if train is not None and "forward" in graphs and "fit" not in graphs:
        raise BackwardWithoutForward(
            f"the model in {slot!r} cannot be trained on batches: it has no gradient, or its output no rows",
            hint="make it with trainable(…, learning=True), with the batch as first axis of its output",
            op=train,
        )
    backward = [op for op in ops if op.op_type in ("Backward", "BackwardKeyed", "BackwardInput")]
    there = {op.op_type for op in ops}
    for op in backward:
        keyed = _is_keyed(op)
        if ("ForwardKeyed" if keyed else "Forward") not in there:
            with_key = " with a key" if keyed else ""
            call = f"{slot}.forward(g, x, key=…)" if keyed else f"{slot}.forward(g, x)"
            raise BackwardWithoutForward(
                f"no op of {target} runs {slot!r} forward{with_key}",
                hint=f"record {call} before it, "
                + ("with the same key" if keyed else "in the same execution"),
                op=op,
            )
    if not backward:
        return
    if "forward" in graphs and "train" not in graphs:
        raise BackwardWithoutForward(
            f"the model in {slot!r} has no gradient",
            hint="make it with trainable(…, learning=True)",
            op=backward[0],
        )


def _graphs(slot: str, components: Iterable[Function], target: str) -> set[str]:
    """The graphs that the slot's construction brought, by their last name (`model.train#Client`)."""
    found = set()
    for function in components:
        owner, graph, whose = component_graph(function)
        if owner == slot and whose in ("", target):
            found.add(graph)
    return found
