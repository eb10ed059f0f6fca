"""Checks that everything is there that the runtime counts on.

1. Every slot that a partition uses is bound: `UnboundSlot`. A model whose gradient is asked for is run
   forward, and has one: `BackwardWithoutForward`.
2. Every ONNX operator is one that the backend of its slot has, as far as its class says: `BackendLacksOps`
   names all others. Graphs that components bring run on the default backend.
3. Every domain in use is imported, every call has its function.
4. Every inbound entry has its three Rx gates, every peer-routed send its two Tx gates, every send with a
   deadline its DeadlineCheck (`GATE_CONTRACTS`).
5. Every wire op has a wire id and its sites; halves of one wire id agree; answers stand beside their request.
6. What is missing is told all at once: `RuntimeIncomplete`. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import ONNX_OPS_OVER_PEERS, OP_RECV_RESP, OP_RECV_RESP_BATCHED, OP_SEND_REQ
from bb_host.errors import BackendLacksOps, RuntimeIncomplete, UnboundSlot, label, source
from bb_host.ir.program import Function, Op, Program, walk_ops
from bb_host.ir.queries import DRAWS, ONNX_DOMAINS, component_graph, onnx_opset
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.backends import Supports, supports_of
from bb_host.passes.analysis.component_graphs import is_read
from bb_host.passes.analysis.gradients import check_slot
from bb_host.passes.analysis.rx_chain import RX_GATES
from bb_host.passes.analysis.slot_table import TargetSlots, targets_of
from bb_host.passes.analysis.tx_chain import CHECK, TX_GATES, gated_input
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options
from bb_host.passes.verify import calls_problem, values_problem, wire_problem


def run(program: Program, options: Options, stats: Stats) -> Program:
    targets = targets_of(program)
    _slots(targets, program, stats)
    for target in targets:
        _operators(target, program, options)
    missing = list(_missing(program, options))
    stats.count("preflight_errors", len(missing))
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise RuntimeIncomplete(f"{'; '.join(missing[:5])}{more}", program.name, "run all passes")
    return program


def _slots(targets: Sequence[TargetSlots], program: Program, stats: Stats) -> None:
    """Rule 1."""
    stats.count("unbound", 0)
    components = [f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN]
    for target in targets:
        for name, ops in target.ops.items():
            slot = target.main.slots.get(name)
            if slot is None or not slot.is_concrete:
                role = target.role(name)
                raise UnboundSlot(
                    f"nothing is bound to slot {name!r} of {target.main.name}",
                    hint=f"Compiler().bind_{role}({name!r}, …)",
                    op=ops[0],
                )
            if ops[0].domain == keys.ROLE_MODEL_DOMAIN:
                check_slot(name, ops, components, target.main.name)


def _operators(target: TargetSlots, program: Program, options: Options) -> None:
    """Rule 2."""
    backends: dict[str, tuple[str, Supports | None]] = {}
    for name, slot in target.main.slots.items():
        if slot.role == keys.ROLE_BACKEND:
            binding = options.binding(name, target.main.name)
            component = None if binding is None else binding.component
            backends[name] = slot.concrete_type, supports_of(slot.concrete_type, component)
    default = backends.get(keys.ROLE_BACKEND, ("", None))
    brought = [f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN and _brings(target, f)]
    lacking: dict[tuple[str, str], list[Op]] = {}
    for function in (*target.functions, *brought):
        version = onnx_opset(function.opsets)
        if len(backends) < 2:
            there = flow.summary(function.ops)
            if not there.has_subgraphs and not any(
                _denied(*kind, default[1], version) for kind in there.kinds
            ):
                continue
        for op in walk_ops(function.ops):
            type_name, supports = backends.get(op.slot, default)
            if _denied(op.domain, op.op_type, supports, version) and not _over_peers(op, function):
                lacking.setdefault((op.op_type, type_name), []).append(op)
    if lacking:
        first = next(iter(lacking.values()))[0]
        names = [
            f"{type_name} has no {op_type} (opset {version})" + _lines(ops)
            for (op_type, type_name), ops in lacking.items()
        ]
        raise BackendLacksOps(
            f"{target.main.name} cannot run it: {'; '.join(names)}",
            source(first) or f"target {target.main.name}",
            "random numbers of the device are g.rng_u64(trigger), 64 bits, or a component's: ctx.rng"
            if all(op_type in DRAWS for op_type, _ in lacking)
            else "use other operators, or bind a backend that has them: bind_backend('backend', …)",
        )


def _denied(domain: str, op_type: str, supports: Supports | None, version: int) -> bool:
    return domain in ONNX_DOMAINS and supports is not None and not supports(op_type, version)


def _over_peers(op: Op, function: Function) -> bool:
    """Whether the engine runs the op itself, over a list of peers."""
    known = function.types.get(op.inputs[0]) if op.inputs and op.op_type in ONNX_OPS_OVER_PEERS else None
    return known is not None and known.node is types.PEER_ID_VEC


def _brings(target: TargetSlots, function: Function) -> bool:
    """Whether a component graph is one of this target's, and read there."""
    slot, graph, owner = component_graph(function)
    if slot not in target.ops or owner not in ("", target.main.name):
        return False
    declared = target.main.slots.get(slot)
    return declared is None or is_read(declared.concrete_type, graph, {op.op_type for op in target.ops[slot]})


def _lines(ops: Sequence[Op]) -> str:
    lines = list(dict.fromkeys(filter(None, map(source, ops))))
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f" at {', '.join(lines[:3])}{more}" if lines else ""


def _missing(program: Program, options: Options) -> Iterator[str]:
    for function in program.functions:
        if function.domain == keys.COMPONENT_DOMAIN:
            continue
        problem = values_problem(function, options.strict_types)
        if problem:
            yield f"{function.name}: {problem}"
        yield from _imports(function)
        if flow.is_main(function) and flow.has_wire(function):
            yield from _wire(function)
    functions = program.functions
    for problem in (calls_problem(functions, {f.key for f in functions}), wire_problem(functions)):
        if problem:
            yield problem


def _imports(function: Function) -> Iterator[str]:
    """Imports."""
    imported = function.opsets
    there = flow.summary(function.ops)
    for domain in sorted(there.domains):
        if domain not in imported and (domain or keys.ONNX_DOMAIN_ALIAS) not in imported:
            yield f"{function.name} does not import {domain or keys.ONNX_DOMAIN_ALIAS!r}"


def _wire(function: Function) -> Iterator[str]:
    """Rules 4 and 5."""
    wire = flow.wire_ops(function)
    requests = {flow.wire_id(op) for op in wire if op.op_type == OP_SEND_REQ}
    collected = {op.facts.request for op in wire if op.op_type == OP_RECV_RESP_BATCHED}
    gates = {(op.op_type, flow.wire_id(op)) for op in function.ops if op.domain == keys.GATE_DOMAIN}
    checked = {name for op in function.ops if op.op_type == CHECK for name in op.outputs}

    def missing(op: Op) -> Iterator[str]:
        if flow.is_send_flavored(op) and flow.is_recorded_form(op):
            yield "has no receiving half"
            return
        if not op.facts.sites and op.op_type != OP_RECV_RESP_BATCHED:
            yield "has no sites"
        if not op.facts.transport:
            yield "was not analyzed"
        if op.op_type in (OP_RECV_RESP, OP_RECV_RESP_BATCHED) and op.facts.request not in requests:
            yield "stands apart from its request"
        if op.op_type == OP_SEND_REQ and flow.wire_id(op) not in collected:
            yield "has no RecvRespBatched"
        for gate in RX_GATES if flow.is_wire_entry(op) else TX_GATES if gated_input(op) else ():
            if (gate, flow.wire_id(op)) not in gates:
                yield f"has no {gate}"
        if flow.is_send_flavored(op) and op.facts.deadline_ns and op.inputs[0] not in checked:
            yield f"has no {CHECK}"

    for op in wire:
        yield from (f"{function.name}: {label(op)} {what}" for what in missing(op))
