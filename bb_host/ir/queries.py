"""What an op reads, what it is, and which ops are needed.

The bodies of `If` and `Loop` read values of the function around them without naming them as inputs: such
*captured* values count as read by the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets import OpDef, OpKind, Ready
from bb_host.ir.program import Function, Op, Subgraph

ONNX_DOMAINS = (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS)
"""ONNX's own domain, as it is written on disk and as people write it."""

DRAWS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""ONNX operators that give something else each time. `Dropout` does in training mode alone."""

AFTER = frozenset({"GateDispatch", "GateManyDispatch"})
"""Syscalls that stand for `after=`: they pass their first input, and wait for the others."""

HANDED_ON = frozenset({"DeadlineCheck", "Gate", "GateDispatch", "GateManyDispatch", "PassThrough", "Tee"})
"""Syscalls whose results are their first input. Operators of ONNX, `If` and `Loop` too, take no bundle."""


def is_onnx(op: Op, *op_types: str) -> bool:
    """Whether an op is one of ONNX's own operators, of these types where any are named."""
    return op.domain in ONNX_DOMAINS and (not op_types or op.op_type in op_types)


def onnx_opset(imports: Mapping[str, int]) -> int:
    """The version at which ONNX's own domain is imported; 0 where it is not."""
    return imports.get(keys.ONNX_DOMAIN) or imports.get(keys.ONNX_DOMAIN_ALIAS) or 0


def is_constant(op: Op) -> bool:
    """Whether an op is ONNX's `Constant`."""
    return op.op_type == "Constant" and op.domain in ONNX_DOMAINS


def unfit_for_body(domain: str, op_type: str) -> str:
    """Why an op cannot stand in a body, as "starts executions"; empty where it can."""
    row = opsets.lookup(domain, op_type)
    if row is not None and row.kind is OpKind.ENTRY:
        return "starts executions"
    if op_type == "When" and domain == keys.SYSCALL_DOMAIN:
        return "may not fire, and its body would not end"
    return ""


def is_gate(op: Op) -> bool:
    """Whether the result of an op is its first input."""
    return op.op_type in HANDED_ON and op.domain == keys.SYSCALL_DOMAIN


def is_after(op: Op) -> bool:
    """Whether an op stands for an `after=`."""
    return op.op_type in AFTER and op.domain == keys.SYSCALL_DOMAIN


def same_values(name: str, makers: Mapping[str, Op]) -> Iterator[str]:
    """A value, and what it is the same as: back through gates, such as those that `after=` records."""
    yield name
    while (maker := makers.get(name)) is not None and is_gate(maker):
        name = maker.inputs[0]
        yield name


def is_entry(op: Op) -> bool:
    """Whether an op starts executions."""
    if op.inputs or op.domain not in (keys.SYSCALL_DOMAIN, keys.WIRE_DOMAIN):
        return False
    row = opsets.lookup(op.domain, op.op_type)
    return row is not None and row.kind is OpKind.ENTRY


def fires_on_one(row: OpDef | None) -> bool:
    """Whether ops of a catalog row run as soon as one of their inputs is there."""
    return row is not None and any(port.ready is Ready.ANY for port in row.inputs)


def has_subgraph(op: Op) -> bool:
    """Whether a branch or loop body hangs on the op."""
    return Subgraph in map(type, op.attrs.values())


def uses(op: Op) -> Iterator[str]:
    """Every value that an op reads, once per use; captured ones behind its inputs."""
    for name in op.inputs:
        if name:
            yield name
    for _, graph in op.subgraphs():
        yield from _free(graph)


def _free(graph: Subgraph) -> Iterator[str]:
    known = {*graph.inputs, *graph.initializers}
    for op in graph.ops:
        for name in uses(op):
            if name not in known:
                yield name
        known.update(op.outputs)
    for name in graph.outputs:
        if name not in known:
            yield name


def captured(op: Op) -> tuple[str, ...]:
    """Names that an op's subgraphs read from the scope around them, in order of first use."""
    return tuple(dict.fromkeys(name for _, graph in op.subgraphs() for name in _free(graph)))


def reads(op: Op) -> tuple[str, ...]:
    """All names that an op needs: its inputs (absent ones are empty) and what its subgraphs capture."""
    if op.attrs and has_subgraph(op):
        return (*op.inputs, *captured(op))
    return op.inputs


def live(ops: Sequence[Op], outputs: Iterable[str]) -> tuple[Op, ...]:
    """The ops that the outputs need, of ops in topological order."""
    needed = set(outputs)
    kept = []
    for op in reversed(ops):
        if not needed.isdisjoint(filter(None, op.outputs)):
            needed.update(reads(op))
            kept.append(op)
    return tuple(reversed(kept))


def without_dead_constants(ops: Sequence[Op], outputs: Iterable[str]) -> tuple[Op, ...]:
    """All ops but the constants that nobody reads."""
    read = {*outputs, *(name for op in ops for name in reads(op))}
    return tuple(op for op in ops if not is_constant(op) or op.outputs[0] in read)


def component_graph(function: Function) -> tuple[str, str, str]:
    """Slot, graph and target of a component's function: `model.train#Client`; no target for a common one."""
    name, _, target = function.name.partition("#")
    slot, _, graph = name.rpartition(".")
    return slot, graph, target
