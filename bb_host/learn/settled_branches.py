"""Branches whose condition is known before the model runs: the ops of the branch that is taken.

PyTorch's older exporter writes `squeeze` of an axis as an `If` that asks whether it is of length 1; the newer
one asks so of the bags of an `EmbeddingBag`. The shape of the model's input answers it, as a rule.
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_host.ir.program import Function, Op, RawTensor, Subgraph
from bb_host.ir.queries import is_onnx
from bb_host.ir.rename import fresh_name, rename_op
from bb_host.ir.values import constant, constant_array


def with_settled_branches(function: Function) -> Function:
    """The function with each `If` of a constant condition replaced by that branch; the same one without."""
    if not any(is_onnx(op, "If") for op in function.ops):
        return function
    names = {*function.inputs, *(v for op in function.ops for v in op.outputs)}
    known = {op.outputs[0]: array for op in function.ops if (array := constant_array(op)) is not None}
    ops: list[Op] = []
    settled = False
    for op in function.ops:
        condition = known.get(op.inputs[0]) if is_onnx(op, "If") else None
        branch = _branch(op, bool(condition.all())) if condition is not None else None
        if branch is None:
            ops.append(op)
        else:
            ops += _inlined(op, branch, names)
            settled = True
    return function.with_ops(ops) if settled else function


def _branch(op: Op, taken: bool) -> Subgraph | None:
    """The branch that is taken; None for one with tensors that are not arrays."""
    branch = op.attrs["then_branch" if taken else "else_branch"]
    assert isinstance(branch, Subgraph)
    return None if any(isinstance(t, RawTensor) for t in branch.initializers.values()) else branch


def _inlined(op: Op, branch: Subgraph, names: set[str]) -> list[Op]:
    """The branch's ops, which write the outputs of the `If`."""
    own: dict[str, str] = {}
    ops: list[Op] = []
    for name, tensor in branch.initializers.items():
        assert not isinstance(tensor, RawTensor)
        own[name] = fresh_name(name, names)
        ops.append(constant(own[name], tensor))
    for inner in branch.ops:
        own.update((v, fresh_name(v, names)) for v in inner.outputs if v)
        ops.append(rename_op(inner, own))
    for result, output in zip(branch.outputs, op.outputs, strict=True):
        if output:
            ops.append(Op("Identity", keys.ONNX_DOMAIN, (own.get(result, result),), (output,)))
    return ops
