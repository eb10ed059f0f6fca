"""Stamps the passport, the bindings, and which slot an inbound payload feeds. Runs last, and always.

1. The model says that it is compiled (`compiled = v1`), what its module and its targets are.
2. `binding.<target>.<slot> = <role>|<TYPE_NAME>|<slot id>` for every bound slot of every target.
3. An inbound op whose payload flows into an op on a slot, through gates or straight, says that slot's id
   (`recv_site_to_slot_id`); one that flows into ONNX operators, the backend's.
4. Ops of aggregators say which sum they are about, and which shape they are given
   (bb_host/passes/analysis/sums.py); ops that give batches, what the program takes
   for one (bb_host/passes/analysis/batches.py).
5. `hears.<target>` = the classes of peers whose presence the target needs, comma-joined;
   `contract.<class>.<class>` = the digest of what travels between the two
   (bb_host/passes/analysis/identity.py).
6. The model imports all opsets that its functions do, and those of the functions' own domains.
"""

from __future__ import annotations

import dataclasses

from bb_edge.ir import keys, opsets
from bb_edge.ir.opsets.wire import OP_RECV_REQ, RECV_FLAVORED
from bb_host.ir.facts import Bound, OpFacts, ProgramFacts
from bb_host.ir.program import Function, Op, Program, are_same
from bb_host.ir.queries import is_onnx
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.batches import with_batches, with_fewest_rows, with_label_classes
from bb_host.passes.analysis.heard_classes import heard_classes
from bb_host.passes.analysis.identity import contracts
from bb_host.passes.analysis.rx_chain import is_rx_gate
from bb_host.passes.analysis.slot_table import numbering, targets_of
from bb_host.passes.analysis.sums import with_sums
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

_HANDS_ON = frozenset({"GateDispatch", "GateManyDispatch", "DeadlineCheck", "PassThrough"})


def run(program: Program, options: Options, stats: Stats) -> Program:
    targets = targets_of(program)
    numbers = numbering(targets, [target.main.slots for target in targets])
    bindings = {
        (target.main.name, name): Bound(slot.role, slot.concrete_type, numbers[name])
        for target in targets
        for name, slot in target.main.slots.items()
        if slot.role and slot.is_concrete
    }
    stats.count("bindings", len(bindings))
    facts = program.facts.without("heard", "contracts", "bindings") | ProgramFacts(
        heard=heard_classes(targets),
        contracts=contracts(targets),
        module=options.module,
        compiled=keys.COMPILED_VERSION,
        targets=tuple(t.main.name for t in targets),
        bindings=bindings,
    )
    functions = tuple(_recv_slots(f, numbers) if flow.is_main(f) else f for f in program.functions)
    functions = with_fewest_rows(with_batches(with_sums(functions, stats)), stats)
    functions = with_label_classes(functions)
    imports = _imports(functions, program)
    if facts == program.facts and imports == program.opsets and are_same(functions, program.functions):
        return program
    return dataclasses.replace(program, functions=functions, facts=facts, opsets=imports)


def _imports(functions: tuple[Function, ...], program: Program) -> dict[str, int]:
    table = opsets.opset(keys.ONNX_DOMAIN)
    found = {
        keys.ONNX_DOMAIN: program.opsets.get(keys.ONNX_DOMAIN) or (21 if table is None else table.version)
    }
    for function in functions:
        for domain, version in function.opsets.items():
            found[domain] = (
                max(version, found.get(domain, 0)) if domain != keys.ONNX_DOMAIN else found[domain]
            )
        found.setdefault(function.domain, 1)
    return dict(sorted(found.items()))


def _recv_slots(function: Function, numbers: dict[str, int]) -> Function:
    """Rule 3."""
    if not flow.has_wire(function):
        return function
    # A payload arrives at a wire op, and passes gates and syscalls.
    passing = (keys.GATE_DOMAIN, keys.SYSCALL_DOMAIN)
    arriving = {name for op in flow.wire_ops(function) for name in op.outputs}
    readers = flow.readers(function.ops, arriving, passing)
    changed: dict[int, Op] = {}
    for index in flow.summary(function.ops).wire:
        op = function.ops[index]
        if op.op_type not in RECV_FLAVORED:
            continue
        slot = _slot_of(op, function, readers, numbers)
        if slot is not None and op.facts.feeds != slot:
            changed[index] = op.saying(OpFacts(feeds=slot))
    return flow.restamped(function, changed)


def _slot_of(
    op: Op, function: Function, readers: dict[str, list[int]], numbers: dict[str, int]
) -> int | None:
    tail = 2 if op.op_type == OP_RECV_REQ else 1
    names = list(op.outputs[2:] if op.inputs else op.outputs[: len(op.outputs) - tail])
    backend: int | None = None
    seen: set[str] = set()
    while names:
        name = names.pop(0)
        if not name or name in seen:
            continue
        seen.add(name)
        for reader in readers.get(name, ()):
            at = function.ops[reader]
            if at.slot and name in flow.data_inputs(at):
                return numbers.get(at.slot)
            if is_onnx(at):
                backend = numbers.get(keys.ROLE_BACKEND)
            elif is_rx_gate(at):
                names.append(at.outputs[at.inputs.index(name)])
            elif at.op_type in _HANDS_ON and at.domain == keys.SYSCALL_DOMAIN and at.inputs[0] == name:
                names.append(at.outputs[0])
    return backend
