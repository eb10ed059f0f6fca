"""`bind_<role>`: what a declaration becomes, and whether it fits the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bb_edge.components import GraphModel
from bb_edge.ir import keys
from bb_edge.ir.suggestions import suggestion
from bb_host.author_lines import author_line, short_line
from bb_host.dsl.names import PORT_NAME
from bb_host.errors import BindingError, ConstructionError
from bb_host.ir.construction import (
    check_state,
    class_of,
    construction_state,
    construction_warnings,
    is_model_file,
    of_model_file,
)
from bb_host.ir.program import Program
from bb_host.passes.analysis.bound_types import declared_types, storage_types
from bb_host.passes.analysis.slot_table import role_of
from bb_host.passes.options import Binding, Options


def make_binding(
    role: str, slot: str, component: type | str | Path, config: Any, target: str | None
) -> Binding:
    """The binding of a declaration, its construction state made.

    Raises BindingError, at the author's line, where the component has no name, is not whole or has another
    role, and where its config cannot be written or is not one of that class.
    """
    line = short_line(author_line())
    where = f"{line}, bind_{role}({slot!r})"
    _check_names(role, slot, target, line)
    if role not in keys.ROLES:
        raise BindingError(f"no role {role!r}", where, f"roles: {', '.join(keys.ROLES)}")
    if role == keys.ROLE_MODEL and is_model_file(component):
        assert isinstance(component, str | Path)
        try:
            component, config = GraphModel.TYPE_NAME, of_model_file(component, config)
        except ConstructionError as error:
            raise BindingError(error.what, where, error.hint) from error
    type_name = component if isinstance(component, str) else getattr(component, "TYPE_NAME", None)
    if not isinstance(type_name, str) or not type_name or "|" in type_name:
        raise BindingError(
            f"{component!r} has no TYPE_NAME that can be written", where, "give a component class or its name"
        )
    try:
        known = class_of(component)
        if known is not None and role != known.ROLE:
            raise BindingError(
                f"{type_name} is a component of role {known.ROLE}", where, f"use bind_{known.ROLE}"
            )
        state, functions = construction_state(slot, config)
        if known is not None:
            check_state(known, slot, state, functions)
        warned = construction_warnings(slot, config, known, state)
    except ConstructionError as error:
        raise BindingError(error.what, where, error.hint) from error
    return Binding(
        role,
        slot,
        type_name,
        target,
        state,
        functions,
        known,
        storage_types(known, where),
        line,
        tuple(w.at(line) for w in warned),
        declared_types(known, state, where),
        config,
    )


def check_single(bindings: Sequence[Binding], new: Binding) -> None:
    """BindingError, at the author's line, where a slot gets a second binding for one target, or for all."""
    for old in bindings:
        if (old.slot, old.target) == (new.slot, new.target):
            on = "" if new.target is None else f" on {new.target}"
            first = f"{old.type_name} ({old.where}, bind_{old.role})"
            raise BindingError(
                f"slot {new.slot!r} is bound twice{on}: to {first}, and here to {new.type_name}",
                f"{new.where}, bind_{new.role}({new.slot!r})",
                "keep one of them; target='CLASS' binds it for one class, and without_binding takes one back",
            )


def _check_names(role: str, slot: object, target: object, line: str) -> None:
    """BindingError where slot or target is not a name that a program could have."""
    where = f"{line}, bind_{role}"
    if not isinstance(slot, str) or not PORT_NAME.fullmatch(slot):
        name = getattr(slot, "name", "slot")
        raise BindingError(
            f"{slot!r} is not a valid name for a slot", where, f"name it: bind_{role}({str(name)!r}, …)"
        )
    if target is not None and (not isinstance(target, str) or not PORT_NAME.fullmatch(target)):
        raise BindingError(
            f"{target!r} is not a valid name for a class", where, "name one of the program's: target='Server'"
        )


def check_against(program: Program, options: Options) -> None:
    """Refuses bindings of slots that the program does not have, and of the wrong role."""
    if not options.bindings:
        return
    declared = {name: slot.role for f in program.functions for name, slot in f.slots.items() if slot.role}
    for function in program.functions:
        for op in function.ops:
            name = op.facts.slot
            if name and name not in declared:
                declared[name] = role_of(op.domain, op.facts.trait)
    for binding in options.bindings:
        where = f"bind_{binding.role}({binding.slot!r})"
        if binding.where:
            where = f"{binding.where}, {where}"
        role = declared.get(binding.slot)
        if role is None and binding.slot == keys.ROLE_BACKEND:
            role = keys.ROLE_BACKEND
        if role is None:
            hint = suggestion(binding.slot, declared, "its slots: ") or "it has no slots at all"
            raise BindingError(f"{program.name} has no slot {binding.slot!r}", where, hint)
        if role and role != binding.role:
            raise BindingError(f"slot {binding.slot!r} is one of role {role}", where, f"use bind_{role}")
