"""Tensor work:

BackendSubgraph calls, and bare ONNX operators as subgraphs of one (docs/design/artifact.md).
"""

from __future__ import annotations

from typing import Any

from bb_edge.engine.binding import BindEnv, Run
from bb_edge.engine.executions import BoundOp, Lane
from bb_edge.engine.parking import OpError
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.roles.backend import Backend, Functions
from bb_edge.syscalls import peer_lists


def _run_of(op: BoundOp, backend: Backend, function: FunctionProto, functions: Functions) -> Run:
    program = backend.prepare(function, functions)
    run_program = program.run
    if len(op.outs) == 1 and program.call is not None:
        return program.call
    if len(op.outs) == 1:
        return lambda ctx, *inputs: run_program(inputs)[0]
    return lambda ctx, *inputs: run_program(inputs)


def bind_call(op: BoundOp, env: BindEnv) -> Run:
    """A call of a function of the backend domain."""
    function = env.functions.get((op.spec.domain, op.spec.op_type))
    if function is None:
        raise OpError(f"the artifact has no function {op.spec.op_type!r}", where=op.spec.name)
    slot = next((p.value for p in function.metadata_props if p.key == keys.BACKEND_SLOT_KEY), "")
    op.is_plain_call = True
    return _run_of(op, _backend(env, slot), function, env.functions)


def bind_onnx(op: BoundOp, env: BindEnv) -> Run:
    """One ONNX operator, wrapped into a function of its own."""
    node = op.spec.proto
    assert node is not None
    function = FunctionProto(name=f"{op.spec.name}", domain=keys.BACKEND_DOMAIN)
    inner = function.node.add()
    inner.CopyFrom(node)
    controls = len(op.spec.controls)
    names = list(node.input)[: len(node.input) - controls if controls else None]
    del inner.input[:]
    inner.input.extend(names)
    sites = env.graph.slot.sites
    # What subgraphs capture comes behind the node's own inputs, in op.inputs as here.
    captured = [sites[s] for s in op.spec.inputs[len(names) :]]
    # An absent optional input stays an empty name, which is no input of the function.
    function.input.extend(dict.fromkeys([*(n for n in names if n), *captured]))
    function.output.extend(n for n in node.output if n)
    for domain, version in env.opsets.items():
        function.opset_import.add(domain=domain, version=version)
    program = _backend(env, node_slot(op)).prepare(function, env.functions)
    run_program = program.run
    position = [i for i, name in enumerate([*names, *captured]) if name]
    first = {name: i for i, name in reversed(list(enumerate([*names, *captured]))) if name}
    order = [first[name] for name in function.input]
    plain = order == list(range(len(op.spec.inputs))) and len(position) == len(op.spec.inputs)
    outs = [i for i, name in enumerate(node.output) if name]
    single = len(op.outs) == 1
    over_peers = peer_lists.OVER_PEERS.get(node.op_type) if single else None
    if over_peers is not None:
        return _of_either(over_peers, run_program, order)
    op.is_plain_call = True
    if single and plain and program.call is not None:
        op.lane = _lane(op, env, program.call)
        return program.call

    def run(ctx: Any, *inputs: Any) -> object:
        results = run_program(inputs if plain else tuple(inputs[i] for i in order))
        if single:
            return results[0]
        if len(outs) == len(op.outs):
            return results
        spread: list[object] = [None] * len(op.outs)
        for i, value in zip(outs, results):  # noqa: B905 (same length)
            spread[i] = value
        return tuple(spread)

    return run


def _lane(op: BoundOp, env: BindEnv, call: Run) -> Lane | None:
    """The short way through the engine's loop. It tells nothing: there is none while tracing is on."""
    sites = op.spec.inputs
    if env.engine.config.trace or op.out < 0 or not 1 <= len(sites) <= 2 or min(sites) < 0:
        return None
    return call, sites[0], sites[1] if len(sites) == 2 else -1, op.out


def _of_either(over_peers: peer_lists.Pick, run_program: Any, order: list[int]) -> Run:
    """An operator that tensors and lists of peers pass through; what comes decides."""

    def run(ctx: Any, *inputs: Any) -> object:
        if type(inputs[0]) is tuple:
            return over_peers(inputs)
        return run_program(tuple(inputs[i] for i in order))[0]

    return run


def node_slot(op: BoundOp) -> str:
    """The backend slot that an op names, "" for the target's default."""
    return op.spec.meta.get(keys.SLOT_KEY, "")


def _backend(env: BindEnv, slot: str) -> Backend:
    backend = env.backends.get(slot) or env.backends.get(keys.ROLE_BACKEND)
    if backend is None:
        raise OpError(
            "the target has no backend", where=env.graph.target, hint="bind one to the slot 'backend'"
        )
    return backend
