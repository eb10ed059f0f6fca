"""`bind_<role>`: what a declaration becomes, and whether it fits the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bb_edge.ir import keys, types
from bb_edge.ir.types import TypeNode
from bb_edge.registry import RegistryError, default_registry
from bb_host.compiler.errors import BindingError
from bb_host.compiler.options import Binding, Options
from bb_host.construction import ConstructionError, construction_state, construction_warnings
from bb_host.dsl.errors import author_line, short_line
from bb_host.program import Program


def make_binding(role: str, slot: str, component: type | str, config: Any, target: str | None) -> Binding:
    """The binding of a declaration, its construction state made.

    Raises BindingError where the component has no name or another role, or its config cannot be written.
    """
    where = f"bind_{role}({slot!r})"
    if role not in keys.ROLES:
        raise BindingError(f"no role {role!r}", where, f"roles: {', '.join(keys.ROLES)}")
    type_name = component if isinstance(component, str) else getattr(component, "TYPE_NAME", "")
    if not type_name or "|" in type_name:
        raise BindingError(
            f"{component!r} has no TYPE_NAME that can be written", where, "give a component class or its name"
        )
    known = _class_of(component)
    if known is not None:
        actual = getattr(known, "ROLE", role)
        if actual != role:
            raise BindingError(f"{type_name} is a component of role {actual}", where, f"use bind_{actual}")
    try:
        state, functions = construction_state(slot, config)
        warned = construction_warnings(slot, config)
    except ConstructionError as error:
        raise BindingError(error.what, where, error.hint) from error
    line = short_line(author_line())
    return Binding(
        role,
        slot,
        type_name,
        target,
        state,
        functions,
        known,
        _storage_types(known, where),
        line,
        tuple(w.at(line) for w in warned),
    )


def _class_of(component: type | str) -> type | None:
    """The class of a component; a name that this host has no class for is taken as it is."""
    if not isinstance(component, str):
        return component
    try:
        return default_registry().lookup(component)
    except (RegistryError, ImportError, AttributeError):
        return None


def storage_types_of(type_name: str, slot: str) -> dict[str, TypeNode]:
    """What the class of a concrete slot says its outputs are; nothing where this host has no such class."""
    return _storage_types(_class_of(type_name), f"slot {slot!r}")


def _storage_types(component: type | None, where: str) -> dict[str, TypeNode]:
    """A component class may say what its outputs are: `STORAGE_TYPES = {"Compress.code": "Tensor<U8>"}`."""
    declared = getattr(component, "STORAGE_TYPES", None)
    if not isinstance(declared, Mapping):
        return {}
    found = {}
    for port, name in declared.items():
        node = types.by_id(str(name))
        if node is None:
            raise BindingError(f"STORAGE_TYPES: no type {name!r}", where)
        found[str(port)] = node
    return found


def check_against(program: Program, options: Options) -> None:
    """Refuses bindings of slots that the program does not have, and of the wrong role."""
    declared = {name: slot.role for f in program.functions for name, slot in f.slots.items() if slot.role}
    for function in program.functions:
        for op in function.ops:
            name = op.meta.get(keys.SLOT_KEY)
            if name is not None and name not in declared:
                declared[name] = role_of(op.domain, op.meta.get(keys.REQUIRED_TRAIT_KEY, ""))
    for binding in options.bindings:
        where = f"bind_{binding.role}({binding.slot!r})"
        role = declared.get(binding.slot)
        if role is None and binding.slot == keys.ROLE_BACKEND:
            role = keys.ROLE_BACKEND
        if role is None:
            known = ", ".join(sorted(declared)) or "none"
            raise BindingError(f"{program.name} has no slot {binding.slot!r}", where, f"its slots: {known}")
        if role and role != binding.role:
            raise BindingError(f"slot {binding.slot!r} is one of role {role}", where, f"use bind_{role}")


def role_of(domain: str, trait: str = "") -> str:
    """The role that an op of a domain asks for."""
    return keys.ROLE_OF_DOMAIN.get(domain) or trait
