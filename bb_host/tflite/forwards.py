"""Which graphs `forward` of models are worth what a plain model is: lowered, with parameters as inputs."""

from __future__ import annotations

from bb_edge.ir import keys
from bb_host.ir.program import Function, Program, walk_ops
from bb_host.ir.queries import component_graph

_READERS = ("Forward", "Evaluate")


def is_run(program: Program, function: Function, target: str) -> bool:
    """Whether a function is the `forward` of a slot whose output, and nothing else of it, an op asks for.

    One that hands out activations is followed by a gradient in plain operators. One that nothing reads is in
    the artifact because a model needs it to be constructed; it would only take memory there.
    """
    if function.domain != keys.COMPONENT_DOMAIN or len(function.outputs) != 1:
        return False
    slot, graph, owner = component_graph(function)
    if graph != "forward" or owner not in ("", target):
        return False
    return any(
        op.slot == slot and op.domain == keys.ROLE_MODEL_DOMAIN and op.op_type in _READERS
        for body in program.functions
        for op in walk_ops(body.ops)
    )
