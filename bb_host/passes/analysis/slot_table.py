"""The slots that a target uses, over all functions that it reaches, and their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from bb_edge.ir import keys
from bb_host.ir.program import Function, Op, Program, Slot
from bb_host.passes.analysis import flow


@dataclasses.dataclass(slots=True)
class TargetSlots:
    """One partition: its main, the functions that run in it, and the ops that run on each slot."""

    main: Function
    functions: tuple[Function, ...]
    ops: dict[str, list[Op]]
    declared: dict[str, Slot]

    def role(self, name: str) -> str:
        """The slot's role: as declared, else as its ops ask."""
        slot = self.declared.get(name)
        if slot is not None and slot.role:
            return slot.role
        op = self.ops[name][0]
        return role_of(op.domain, op.facts.trait)


def targets_of(program: Program) -> tuple[TargetSlots, ...]:
    """All partitions of a program with the slots that they use, bootstraps and called functions included."""
    keyed = {f.key: f for f in program.functions}
    found = []
    for main in program.functions:
        if not flow.is_main(main):
            continue
        start = keyed.get((main.domain, main.name + keys.BOOTSTRAP_SUFFIX))
        reached = flow.reached([main] if start is None else [main, start], keyed)
        ops: dict[str, list[Op]] = {}
        declared: dict[str, Slot] = {}
        for function in reached.values():
            for name, there in flow.summary(function.ops).by_slot.items():
                ops[name] = [*ops.get(name, ()), *there]
            for name, slot in function.slots.items():
                if slot.role or name in ops:
                    declared.setdefault(name, slot)
        found.append(TargetSlots(main, tuple(reached.values()), ops, declared))
    return tuple(found)


def numbering(targets: Sequence[TargetSlots], slots: Sequence[Iterable[str]]) -> dict[str, int]:
    """One number per slot name throughout the program; `slots` are the names of each target's slots.

    Numbers that ops carry are kept, the first claim to one wins; the others follow, backends that no op names
    at the end. 0 is the engine's.
    """
    found: dict[str, int] = {}
    taken: set[int] = {0}
    waiting: dict[str, None] = {}
    for target in targets:
        for name, ops in target.ops.items():
            if name in found:
                continue
            number = next((n for op in ops if (n := op.facts.slot_id) is not None), 0)
            if number in taken:
                waiting[name] = None
            else:
                found[name] = number
                taken.add(number)
    for names in slots:
        backends = [n for n in names if n not in found and n not in waiting]
        waiting.update(dict.fromkeys(n for n in backends if n != keys.ROLE_BACKEND))
    if keys.ROLE_BACKEND not in found:
        waiting[keys.ROLE_BACKEND] = None
    for name in waiting:
        if name not in found:
            found[name] = max(taken) + 1
            taken.add(found[name])
    return found


def role_of(domain: str, trait: str = "") -> str:
    """The role that an op of a domain asks for."""
    return keys.ROLE_OF_DOMAIN.get(domain) or trait
