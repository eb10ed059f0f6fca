"""Resolves each slot of each partition to the component that is bound to it (docs/design/artifact.md).

1. In one partition a role is served by concrete slots or by generic ones: `AmbiguousRole`.
2. A bound slot of a partition gets type and construction state of its binding, the target's own first; a
   concrete slot keeps what its author gave it, unless it is bound. An unbound one is counted, and refused by
   `validate_runtime_complete`.
3. A slot `backend` always exists; unless it is bound it is `bb.NumPyBackend`. Other backends are there where
   they are bound, concrete, or named by an op.
4. A selector of peers without a peer class has home.
5. Graphs that a construction state brings become functions `<slot>.<graph>` of the component domain, with
   `#<target>` behind where targets have different bindings. A configuration that has `graphs` is asked for
   those that the ops of the slot need.
6. A slot name has one number throughout the program, and every op that runs on it carries it.
7. Warnings: types that this host does not know, components whose state a restart loses, unused bindings,
   calls of a model whose order nothing says.
8. A binding for a partition that the program does not have is refused: `BindingError`. So is one to a class
   that leaves out an optional op of its role that the program uses.
9. Peers that a selector has in view though they are away are for durable sends alone: `AbsentPeers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from bb_edge.backends import NumPyBackend
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.suggestions import suggestion
from bb_edge.roles.contracts import method_name, offers
from bb_host.errors import AmbiguousRole, BindingError, ConstructionError, source
from bb_host.ir.construction import class_of, graphs_for
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program, Slot, stamping
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.absent_peers import check_absent_peers
from bb_host.passes.analysis.kept_values import check_kept
from bb_host.passes.analysis.late_samples import warn_of_late_samples
from bb_host.passes.analysis.model_order import warn_of_order
from bb_host.passes.analysis.pairs import check_pairs
from bb_host.passes.analysis.personal import warn_of_personal
from bb_host.passes.analysis.remarks import warn_of_slots
from bb_host.passes.analysis.round_numbers import warn_of_round_numbers
from bb_host.passes.analysis.slot_table import TargetSlots, numbering, targets_of
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Binding, Options

DEFAULT_BACKEND = NumPyBackend.TYPE_NAME
EMPTY_STATE = b"\xa0"
"""An empty CBOR map."""


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("slots_resolved", 0)
    stats.count("slots_unbound", 0)
    targets = targets_of(program)
    _known_targets(targets, options)
    for target in targets:
        _one_kind_per_role(target)
    slots = {t.main.key: _slots(t, options, stats) for t in targets}
    warn_of_slots(targets, slots, options, stats)
    warn_of_personal(targets, slots, stats)
    check_pairs(targets, stats)
    check_kept(targets, stats)
    warn_of_order(targets, stats)
    warn_of_late_samples(targets, stats)
    warn_of_round_numbers(targets, stats)
    for target in targets:
        check_absent_peers(target, slots[target.main.key])
    numbers = numbering(targets, [slots[t.main.key] for t in targets])
    functions = []
    for function in program.functions:
        new = _numbered(function, numbers)
        if new.key in slots:
            ordered = dict(sorted(slots[new.key].items(), key=lambda item: numbers.get(item[0], 1 << 62)))
            if not _same_slots(ordered, function.slots):
                new = dataclasses.replace(new, slots=ordered)
        functions.append(new)
    brought = _brought(program, targets, options)
    known = {f.key for f in functions}
    functions += [f for f in brought if f.key not in known]
    return program.with_functions(functions)


def _known_targets(targets: Sequence[TargetSlots], options: Options) -> None:
    """Rule 8."""
    names = [t.main.name for t in targets]
    for binding in options.bindings:
        if binding.target is not None and binding.target not in names:
            raise BindingError(
                f"the program has no partition {binding.target!r}",
                f"{binding.where + ', ' if binding.where else ''}bind_{binding.role}({binding.slot!r})",
                suggestion(binding.target, names, "its partitions: "),
            )


def _one_kind_per_role(target: TargetSlots) -> None:
    """Rule 1."""
    seen: dict[str, tuple[str, bool, Op]] = {}
    for name, ops in target.ops.items():
        role = target.role(name)
        concrete = bool(ops[0].facts.concrete_type)
        before = seen.setdefault(role, (name, concrete, ops[0]))
        if before[1] is not concrete:
            sides = {concrete: name, before[1]: before[0]}
            kind = ops[0].facts.concrete_type or before[2].facts.concrete_type
            raise AmbiguousRole(
                f"{target.main.name} has role {role} both concrete ({sides[True]!r}, {kind}) and generic "
                f"({sides[False]!r})",
                hint="give all slots of the role a type, or none",
                op=ops[0],
            )


def _slots(target: TargetSlots, options: Options, stats: Stats) -> dict[str, Slot]:
    """Rules 2 to 4."""
    main = target.main
    found: dict[str, Slot] = {n: s for n, s in main.slots.items() if not s.role}
    names = dict.fromkeys([*target.ops, *(n for n, s in main.slots.items() if s.role == keys.ROLE_BACKEND)])
    for name in names:
        declared = target.declared.get(name) or Slot(target.role(name))
        binding = options.binding(name, main.name)
        if binding is None and not declared.is_concrete:
            if name in target.ops:
                stats.count("slots_unbound")
                found[name] = _with_home(name, declared, target)
            continue
        stats.count("slots_resolved")
        found[name] = _with_home(name, _bound(declared, binding), target)
        _offered(found[name].concrete_type, target.ops.get(name, ()))
    if keys.ROLE_BACKEND not in found or not found[keys.ROLE_BACKEND].is_concrete:
        binding = options.binding(keys.ROLE_BACKEND, main.name)
        default = Slot(keys.ROLE_BACKEND, DEFAULT_BACKEND, state=EMPTY_STATE)
        if keys.ROLE_BACKEND in found:
            stats.count("slots_unbound", -1)
        stats.count("slots_resolved")
        found[keys.ROLE_BACKEND] = _bound(default, binding)
    return found


def _offered(type_name: str, ops: Sequence[Op]) -> None:
    """BindingError, at the op, where the class of a slot leaves an op of its role out that is optional."""
    try:
        kind = class_of(type_name) if type_name else None
    except ConstructionError:
        return  # where it is bound, or on the device, that is said
    if kind is None:
        return
    for domain, op_type in dict.fromkeys([(op.domain, op.op_type) for op in ops]):
        if domain in keys.ROLE_DOMAINS and not offers(kind, op_type):
            raise BindingError(
                f"{type_name} does not offer {op_type}",
                hint=f"define {method_name(op_type)} in its class, bind another one, or leave the op out",
                op=next(op for op in ops if op.op_type == op_type and op.domain == domain),
            )


def _bound(declared: Slot, binding: Binding | None) -> Slot:
    if binding is None:
        return declared
    role = declared.role or binding.role
    return Slot(role, binding.type_name, declared.at, declared.peer_class, binding.state, declared.where)


def _with_home(name: str, slot: Slot, target: TargetSlots) -> Slot:
    """A selector that names no class of peers has home, which placement wrote on its ops; else its own."""
    if slot.role != keys.ROLE_PEER_SELECTOR or slot.peer_class:
        return slot
    leads = (where for op in target.ops.get(name, ()) for where in reversed([*op.facts.leads.values()]))
    own = target.main.facts.partition or "self"
    found = next(leads, own)
    return dataclasses.replace(slot, peer_class=found)


def _same_slots(a: Mapping[str, Slot], b: Mapping[str, Slot]) -> bool:
    return list(a) == list(b) and all(
        (x.role, x.concrete_type, x.at, x.peer_class) == (y.role, y.concrete_type, y.at, y.peer_class)
        and (x.state is y.state or (isinstance(x.state, bytes) and x.state == y.state))
        for x, y in ((a[n], b[n]) for n in a)
    )


def _numbered(function: Function, numbers: Mapping[str, int]) -> Function:
    """Rule 6."""
    if function.domain == keys.COMPONENT_DOMAIN or not flow.summary(function.ops).by_slot:
        return function
    stamps = {name: stamping(OpFacts(slot_id=given)) for name, given in numbers.items()}
    stamp_of = stamps.get
    ops = [op if (stamp := stamp_of(op.facts.slot)) is None else stamp(op) for op in function.ops]
    return function.with_ops(flow.stamped(ops, function.ops, ("slot_id",)))


def _brought(program: Program, targets: Sequence[TargetSlots], options: Options) -> list[Function]:
    """Rule 5: the graphs of all bindings that some target uses."""
    there = {f.name for f in program.functions if f.domain == keys.COMPONENT_DOMAIN}
    users: dict[str, list[tuple[str, Binding | None]]] = {}
    for target in targets:
        for name in dict.fromkeys([*target.ops, keys.ROLE_BACKEND]):
            users.setdefault(name, []).append((target.main.name, options.binding(name, target.main.name)))
    found = []
    for slot, uses in users.items():
        differ = len({id(binding) for _, binding in uses}) > 1
        done: set[int] = set()
        for target_name, binding in uses:
            if binding is None or (id(binding) in done and not differ):
                continue
            done.add(id(binding))
            suffix = f"#{target_name}" if differ else ""
            if all(f"{function.name}{suffix}" in there for function in binding.functions):
                continue
            ops = [op for t in targets if suffix in ("", f"#{t.main.name}") for op in t.ops.get(slot, ())]
            for function in _graphs(binding, ops):
                name = f"{function.name}{suffix}"
                opsets = flow.used_opsets(function.ops, function.opsets)
                opsets = {**opsets, **function.opsets}
                if (
                    name != function.name
                    or function.domain != keys.COMPONENT_DOMAIN
                    or opsets != function.opsets
                ):
                    function = dataclasses.replace(
                        function, name=name, domain=keys.COMPONENT_DOMAIN, opsets=opsets
                    )
                found.append(function)
    return found


def _graphs(binding: Binding, ops: Sequence[Op]) -> Sequence[Function]:
    """The graphs that a binding brings for these ops; what refuses one of them names its line."""
    try:
        found = graphs_for(binding.slot, binding.config, frozenset(op.op_type for op in ops))
    except BBError as error:
        if ops and not error.where.startswith(line := source(ops[-1])):
            error.where = ", ".join(filter(None, (line, error.where)))
        raise
    return binding.functions if found is None else found
