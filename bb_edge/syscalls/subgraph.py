"""Tensor work: BackendSubgraph calls, and bare ONNX operators as subgraphs of one operator.

docs/design/artifact.md says how the compiler cuts subgraphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bb_edge.engine.binding import BindEnv, OpContext, Run, make_gather
from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp, PlainCall
from bb_edge.ir import keys
from bb_edge.ir.onnx_pb2 import FunctionProto, StringStringEntryProto
from bb_edge.roles.backend import Backend
from bb_edge.roles.completion import CompletionHandle, Later
from bb_edge.roles.executed import ExecutedProgram
from bb_edge.roles.programs import BackendAttrs
from bb_edge.syscalls import data_shapes, peer_lists
from bb_edge.syscalls.role_ops import calls_of

if TYPE_CHECKING:
    from bb_edge.roles.completion import CompletionSink


class _Results(CompletionHandle):
    """Finishes a subgraph that its backend answers later: takes handles by name, gives what the op writes.

    The conversion runs on the completing thread; where it fails, the op does.
    """

    __slots__ = ("give",)
    give: Callable[[object], object]

    def complete(self, result: object = None) -> bool:
        try:
            value = self.give(result)
        # Users' backends may raise anything, on any thread: the op fails, and nothing else.
        except Exception as error:  # noqa: BLE001
            return self.fail(error)
        return super().complete(value)


def _executed(
    op: BoundOp,
    env: BindEnv,
    program: ExecutedProgram,
    backend: Backend,
    take: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    give: Callable[[tuple[Any, ...]], object],
) -> Run:
    """Runs a subgraph through the backend's `dispatch`, which may answer later.

    `take` puts the op's inputs into the graph's order, `give` the results into the op's.
    """
    proto = op.spec.proto
    metadata = [StringStringEntryProto(key=key, value=value) for key, value in op.spec.meta.items()]
    attrs = BackendAttrs(() if proto is None else tuple(proto.attribute), tuple(metadata))
    if not backend.own_dispatch:
        op.is_plain_call = True

        def run(ctx: OpContext, *inputs: Any) -> object:
            results = program.dispatch(take(inputs), attrs, None)
            assert not isinstance(results, Later), "Backend.dispatch answers at once"
            return give(results)

        return run
    waiting = env.scheduler.waiting
    op.component = next(i for i, component in enumerate(env.scheduler.components) if component is backend)

    def make(sink: CompletionSink, token: int) -> CompletionHandle:
        handle = _Results(sink, token)
        handle.give = lambda results: give(program.arrays(results))
        return handle

    def dispatch(ctx: OpContext, *inputs: Any) -> object:
        completion = waiting.later(ctx, None, make).handle
        results = program.dispatch(take(inputs), attrs, completion)
        return results if isinstance(results, Later) else give(results)

    return calls_of(waiting, backend, dispatch, {})


def _all(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def _only(values: tuple[Any, ...]) -> object:
    return values[0]


def bind_call(op: BoundOp, env: BindEnv) -> Run:
    """Binds a call of a function of the backend domain."""
    function = env.program.functions.get((op.spec.domain, op.spec.op_type))
    if function is None:
        raise OpError(f"the artifact has no function {op.spec.op_type!r}", where=op.spec.name)
    slot = next((p.value for p in function.metadata_props if p.key == keys.BACKEND_SLOT_KEY), "")
    backend = _backend(env, slot)
    program = backend.prepare(function, env.program.functions)
    data_shapes.follow(op, env, program, op.inputs, op.outs)
    single = len(op.outs) == 1
    if isinstance(program, ExecutedProgram):
        return _executed(op, env, program, backend, _all, _only if single else _all)
    op.is_plain_call = True
    if single and program.call is not None:
        return program.call
    run_program = program.run
    if single:
        return lambda ctx, *inputs: run_program(inputs)[0]
    return lambda ctx, *inputs: run_program(inputs)


def bind_onnx(op: BoundOp, env: BindEnv) -> Run:
    """Binds a bare ONNX operator, wrapped into a function of its own."""
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
    # Values that subgraphs capture come after the node's own inputs, in op.inputs as here.
    captured = [sites[s] for s in op.spec.inputs[len(names) :]]
    # An absent optional input stays an empty name, which is not an input of the function.
    function.input.extend(dict.fromkeys([*(n for n in names if n), *captured]))
    function.output.extend(n for n in node.output if n)
    declared = _declared(env)
    function.value_info.extend(declared[name] for name in function.input if name in declared)
    for domain, version in env.program.opsets.items():
        function.opset_import.add(domain=domain, version=version)
    backend = _backend(env, node_slot(op))
    program = backend.prepare(function, env.program.functions)
    position = [i for i, name in enumerate([*names, *captured]) if name]
    first = {name: i for i, name in reversed(list(enumerate([*names, *captured]))) if name}
    order = [first[name] for name in function.input]
    plain = order == list(range(len(op.spec.inputs))) and len(position) == len(op.spec.inputs)
    outs = [i for i, name in enumerate(node.output) if name]
    single = len(op.outs) == 1
    read = [op.spec.inputs[i] for i in order]
    data_shapes.follow(op, env, program, read, op.outs if len(outs) == len(op.outs) else ())

    def take(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs if plain else tuple(inputs[i] for i in order)

    def give(results: tuple[Any, ...]) -> object:
        if single:
            return results[0]
        if len(outs) == len(op.outs):
            return results
        spread: list[object] = [None] * len(op.outs)
        for i, value in zip(outs, results):  # noqa: B905 (same length)
            spread[i] = value
        return tuple(spread)

    over_peers = peer_lists.OVER_PEERS.get(node.op_type) if single else None
    run: Run
    if isinstance(program, ExecutedProgram):
        caller = env.program.functions.get((env.graph.slot.domain, env.graph.slot.name))
        if caller is not None:
            program.declare(caller)
        run = _executed(op, env, program, backend, take, give)
    else:
        run_program = program.run
        op.is_plain_call = over_peers is None
        if single and program.call is not None and over_peers is None:
            op.inputs = tuple(op.spec.inputs[i] for i in order)
            op.gather = make_gather(op.inputs, env.graph.slot.absent)
            op.plain = _plain_call(op, program.call)
            return program.call

        if single and plain:
            run = lambda ctx, *inputs: run_program(inputs)[0]  # noqa: E731
        else:
            run = lambda ctx, *inputs: give(run_program(take(inputs)))  # noqa: E731

    return run if over_peers is None else _of_either(over_peers, run)


def _declared(env: BindEnv) -> Mapping[str, Any]:
    """The declared types of a graph's values by name; stripped artifacts have those of its ports alone."""
    graph = env.graph
    if graph.declared is None:
        function = env.program.functions.get((graph.slot.domain, graph.slot.name))
        graph.declared = {} if function is None else {info.name: info for info in function.value_info}
    return graph.declared


def _plain_call(op: BoundOp, call: Run) -> PlainCall | None:
    sites = op.inputs
    if op.out < 0 or not 1 <= len(sites) <= 2 or min(sites) < 0:
        return None
    return call, sites[0], sites[1] if len(sites) == 2 else -1


def _of_either(over_peers: peer_lists.Pick, run_tensors: Run) -> Run:
    """Returns the call of an operator that takes tensors or lists of peers; the value decides which."""

    def run(ctx: OpContext, *inputs: Any) -> object:
        return over_peers(inputs) if type(inputs[0]) is tuple else run_tensors(ctx, *inputs)

    return run


def node_slot(op: BoundOp) -> str:
    """Returns the backend slot that an op names, "" for the target's default."""
    return op.spec.meta.get(keys.SLOT_KEY, "")


def _backend(env: BindEnv, slot: str) -> Backend:
    backend = env.backends.get(slot) or env.backends.get(keys.ROLE_BACKEND)
    if backend is None:
        raise OpError(
            "the target has no backend", where=env.graph.target, hint="bind one to the slot 'backend'"
        )
    return backend
