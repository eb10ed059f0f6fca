"""Runs ONNX's control flow, `If` and `Loop`, on the programs of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.backends.flat_graph import Body, FlatNode
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.errors import BackendRunError, BackendWalkError, TensorBytesError, UnsupportedOpsError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["CONTROL_OPS", "MAX_ITERATIONS", "run_control"]

CONTROL_OPS = frozenset({"If", "Loop"})

MAX_ITERATIONS = 1_000_000
"""Iterations after which a loop is stopped, so that a graph from the network cannot hang the node."""

RunBody = Callable[[Body, Sequence["Array"], int], Sequence["Array"]]
"""Runs a body on its inputs, after so many bytes that were allocated before it in the same run."""


def run_control(
    node: FlatNode, inputs: Sequence[Array | None], run_body: RunBody, most: int = 0, taken: int = 0
) -> Sequence[Array]:
    """Runs an `If` or `Loop` on its inputs, which include its captures; returns fresh arrays.

    `most` bounds what the run allocates, `taken` bytes before it included; 0 does not. Raises
    UnsupportedOpsError for another operator, BackendWalkError for a body that does not fit, BackendRunError
    for values that do not fit, and TensorBytesError beyond `most`.
    """
    if node.op_type == "If":
        return _run_if(node, inputs, run_body, taken)
    if node.op_type == "Loop":
        return _run_loop(node, inputs, run_body, most, taken)
    raise UnsupportedOpsError((node.op_type,), node.where)


_LIST_BYTES = 120
"""Bytes of an array object, without its contents."""


def _body(node: FlatNode, name: str) -> Body:
    if name not in node.bodies:
        raise BackendWalkError(f"its attribute {name!r}, a graph, is missing", node.where)
    return node.bodies[name]


def _captured(node: FlatNode, body: Body, inputs: Sequence[Array | None]) -> list[Array]:
    by_value = dict(zip(node.inputs, inputs, strict=True))
    arrays = []
    for value in body.captures:
        array = by_value[value]
        assert array is not None
        arrays.append(array)
    return arrays


def _truth(node: FlatNode, array: Array | None) -> bool:
    if array is None or array.size != 1:
        raise BackendRunError("the condition must be one boolean", node.where)
    return bool(array.reshape(-1)[0])


def _run_if(node: FlatNode, inputs: Sequence[Array | None], run_body: RunBody, taken: int) -> Sequence[Array]:
    body = _body(node, "then_branch" if _truth(node, inputs[0]) else "else_branch")
    return run_body(body, _captured(node, body, inputs), taken)


def _run_loop(
    node: FlatNode, inputs: Sequence[Array | None], run_body: RunBody, most: int, taken: int
) -> Sequence[Array]:
    """Iterates at most M times (no M: without bound) while the condition holds (no condition: true)."""
    body = _body(node, "body")
    captured = _captured(node, body, inputs)
    formal = list(inputs[: node.n_formal])
    bound = formal[0] if formal else None
    condition = formal[1] if len(formal) > 1 else None
    trips = None if bound is None else int(bound.reshape(-1)[0])
    going = True if condition is None else _truth(node, condition)
    carried: list[Array] = []
    for array in formal[2:]:
        if array is None:
            raise BackendRunError("a loop-carried value is missing", node.where)
        carried.append(array)
    n_scans = len(body.graph.outputs) - 1 - len(carried)
    if n_scans < 0 or len(body.graph.inputs) != 2 + len(carried) + len(captured):
        raise BackendWalkError("the body's inputs or outputs do not fit the loop", node.where)
    scans: list[list[Array]] = [[] for _ in range(n_scans)]
    iteration = 0
    scanned = 0
    flag = np.array(going)
    while going and (trips is None or iteration < trips):
        if iteration >= MAX_ITERATIONS:
            raise BackendRunError(f"the loop has not ended after {MAX_ITERATIONS} iterations", node.where)
        held = taken + scanned + (sum(array.nbytes for array in carried) if iteration else 0)
        results = run_body(body, (np.array(iteration, np.int64), flag, *carried, *captured), held)
        going = _truth(node, results[0])
        flag = np.array(going)
        carried = list(results[1 : 1 + len(carried)])
        for scan, array in zip(scans, results[1 + len(carried) :], strict=True):
            scan.append(array)
            scanned += array.nbytes + _LIST_BYTES
        iteration += 1
        # Stacking the rows of a scan output makes a copy of them.
        if most and taken + 2 * scanned > most:
            raise TensorBytesError(taken + 2 * scanned, most, node.where)
    try:
        stacked = [
            np.stack(scan) if scan else _no_rows(body, 1 + len(carried) + i) for i, scan in enumerate(scans)
        ]
    except ValueError as error:
        raise BackendRunError(f"a scan output changes its shape: {error}", node.where) from error
    # A loop without iterations returns its arguments, as copies: results belong to the caller.
    return [*(carried if iteration else [a.copy() for a in carried]), *stacked]


def _no_rows(body: Body, output: int) -> Array:
    """The scan output of a loop without iterations: no rows, of the body's declared type and rank."""
    elem_type, rank = body.output_types[output]
    return np.empty((0,) * (1 + max(rank, 0)), dtype_of_elem(elem_type) or np.dtype(np.float32))
