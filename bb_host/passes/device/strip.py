"""One artifact per target: only what that device needs, in as few bytes as the format allows.

1. Kept are the target's main, its bootstrap, what they call, the component graphs of its slots (the variant
   `<slot>.<suffix>#<target>` where there is one), its bindings, the passport, and the opsets that are used.
2. Gone are telemetry, doc strings, source lines, names of nodes, what only passes read of a node's metadata,
   the roles and types of slots (the bindings say them), and value types of all but functions' inputs and
   outputs, and of what is stacked: the batches that answers make, the rows of loops (without one they have
   their types all the same).
3. Values get short names, function by function. Ports keep theirs: inputs and outputs of the main and the
   bootstrap are what a host delivers to and what events are named after.
4. `STRIPPED_KEY` is set. Same program, same bytes.

What a device reports is named after the short names; `source_map.py` leads back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bb_edge.ir import keys
from bb_edge.ir.bodies import body_keys
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED
from bb_host.errors import StripError
from bb_host.ir.facts import FunctionFacts, ProgramFacts
from bb_host.ir.program import Function, FunctionKey, Op, Program, Slot, walk_ops
from bb_host.ir.rename import short_names, shortened_op
from bb_host.passes.analysis.identity import class_of_target

_HOST_ONLY = (
    *("source", "scope", "trait", "slot_id", "classes", "at", "leads", "chain_depth", "made_from"),
    *("arrives_as", "foreign"),
)
"""Facts of ops that only authors and passes read."""

_FUNCTION_FACTS = ("entry", "partition", "backend_slot", "arity", "chunk", "class_count")
"""What a device reads of a function's facts, beside the peer classes of its selectors."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """`names`: per function the short name of each value, by its old one."""

    program: Program
    target: str
    names: dict[FunctionKey, dict[str, str]] = field(default_factory=dict)


def targets_of(program: Program) -> tuple[str, ...]:
    """The targets of a compiled program, in its order. StripError without a passport."""
    if not program.facts.compiled:
        raise StripError("it is not compiled", f"program {program.name}", "compile it first")
    return program.facts.targets


def strip(program: Program, target: str) -> Stripped:
    """The artifact of one target. StripError where the program has no such target."""
    if target not in targets_of(program):
        known = ", ".join(targets_of(program))
        raise StripError(f"no target {target!r}", f"program {program.name}", f"targets: {known}")
    kept = functions_of(program, target)
    main = next(f for f in kept if f.name == target and f.facts.entry)
    own_class, said = class_of_target(main), program.facts
    own = ProgramFacts(
        heard={name: heard for name, heard in said.heard.items() if name == target},
        contracts={pair: what for pair, what in said.contracts.items() if own_class in pair.split(".")},
        bindings={place: bound for place, bound in said.bindings.items() if place[0] == target},
    )
    # A device constructs components from its main function's states: a second copy is a model's size.
    states = {name for name, slot in main.slots.items() if slot.state is not None}
    stripped = [_function(f, () if f is main else states) for f in kept]
    functions = tuple(f for f, _ in stripped)
    facts = ProgramFacts(
        compiled=said.compiled, module=said.module or program.name, targets=(target,), stripped=True
    )
    facts |= said.only("heard", "contracts", "bindings", "program", "accepts") | own
    opsets = _opsets(functions, program.opsets)
    functions = tuple(dataclasses.replace(f, opsets=_used(f, f.opsets, opsets)) for f in functions)
    result = Program(program.name, functions, facts, opsets)
    return Stripped(result, target, {f.key: names for f, (_, names) in zip(kept, stripped, strict=True)})


# --- what is kept ---------------------------------------------------------------------------------


def functions_of(program: Program, target: str) -> list[Function]:
    """The functions that a target needs, in the order of the program."""
    slots = [slot for name, slot in program.facts.bindings if name == target]
    by_key = {f.key: f for f in program.functions}
    mains = [f for f in program.functions if f.name == target and f.facts.entry]
    if len(mains) != 1:
        raise StripError(f"{len(mains)} entry functions are called {target!r}", f"program {program.name}")
    main = mains[0]
    pending = [main.key, (main.domain, target + keys.BOOTSTRAP_SUFFIX)]
    for slot in slots:
        pending.extend(_component_graphs(by_key, slot, target))
    needed: set[FunctionKey] = set()
    while pending:
        key = pending.pop()
        if key in needed or key not in by_key:
            continue
        needed.add(key)
        for op in walk_ops(by_key[key].ops):
            pending.extend(body_keys(op.domain, op.op_type, op.attrs) or ((op.domain, op.op_type),))
    return [f for f in program.functions if f.key in needed]


def _component_graphs(
    by_key: Mapping[FunctionKey, Function], slot: str, target: str
) -> Iterable[FunctionKey]:
    """A slot's graphs, this target's variant before the common one."""
    for domain, name in by_key:
        if domain != keys.COMPONENT_DOMAIN or not name.startswith(f"{slot}."):
            continue
        common, _, variant = name.partition("#")
        if variant == target or (not variant and (domain, f"{common}#{target}") not in by_key):
            yield domain, name


def _opsets(functions: Iterable[Function], known: Mapping[str, int]) -> dict[str, int]:
    """Of the domains of ops and functions; ours without a version are version 1."""
    domains: dict[str, int] = {}
    for function in functions:
        for domain in (function.domain, *(op.domain for op in walk_ops(function.ops))):
            version = max(known.get(domain, 1), function.opsets.get(domain, 1), domains.get(domain, 1))
            domains[domain] = version
    return dict(sorted(domains.items()))


def _used(function: Function, own: Mapping[str, int], opsets: Mapping[str, int]) -> dict[str, int]:
    used = {op.domain for op in walk_ops(function.ops)}
    return {domain: own.get(domain, opsets[domain]) for domain in opsets if domain in used}


# --- one function ---------------------------------------------------------------------------------


def _function(function: Function, elsewhere: Collection[str]) -> tuple[Function, dict[str, str]]:
    """The function, and its values' short names; slots whose states are `elsewhere` go."""
    ports = function.domain not in (keys.BACKEND_DOMAIN, keys.COMPONENT_DOMAIN, keys.MODULE_DOMAIN)
    fixed = dict.fromkeys((*function.inputs, *function.outputs)) if ports else {}
    values = [*function.inputs, *(v for op in function.ops for v in op.outputs if v)]
    names = short_names(fixed)
    rename = {v: v if v in fixed else next(names) for v in dict.fromkeys(values)}
    batches = (v for op in function.ops if op.op_type == OP_RECV_RESP_BATCHED for v in op.outputs[2:])
    typed = dict.fromkeys((*function.inputs, *function.outputs, *batches, *_rows(function)))
    ops = tuple(_op(op, rename) for op in function.ops)
    slots = {
        name: Slot("", "", "", slot.peer_class, slot.state)
        for name, slot in function.slots.items()
        if slot.state is not None and name not in elsewhere
    }
    facts = function.facts.only(*_FUNCTION_FACTS)
    peer_classes = {
        name: slot.peer_class
        for name, slot in function.slots.items()
        if slot.state is None and slot.peer_class
    }
    if peer_classes:
        facts |= FunctionFacts(peer_classes=peer_classes)
    stripped = dataclasses.replace(
        function,
        inputs=tuple(rename[v] for v in function.inputs),
        outputs=tuple(rename.get(v, v) for v in function.outputs),
        ops=ops,
        types={rename[v]: function.types[v] for v in typed if v in function.types and v in rename},
        slots=slots,
        facts=facts,
        extra=b"",
        foreign_types={},
    )
    return stripped, {old: new for old, new in rename.items() if old != new}


def _rows(function: Function) -> Iterator[str]:
    """What loops stack: one that does not go round has none, of the same type."""
    for op in function.ops:
        if op.domain == keys.SYSCALL_DOMAIN and op.op_type == "Loop":
            carried = op.attrs.get("carried", 0)
            yield from op.outputs[1 + carried :] if isinstance(carried, int) else ()


def _op(op: Op, rename: Mapping[str, str]) -> Op:
    facts = op.facts.without(*_HOST_ONLY)
    return shortened_op(dataclasses.replace(op, facts=facts, name="", extra=b""), rename)
