"""Warnings about slots, bindings and scopes: what an author wrote and the compiled program does not use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import cbor2

from bb_edge.ir import keys
from bb_edge.ir.suggestions import suggestion
from bb_edge.registry import RegistryError, default_registry, forgotten_register
from bb_edge.roles.contracts import loses
from bb_host.errors import StateNotSaved, label, source
from bb_host.ir.construction import config_of
from bb_host.ir.program import AttrValue, Function, Op, Slot
from bb_host.ir.queries import is_constant
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Binding, Options

# --- slots ------------------------------------------------------------------------------------------------


def warn_of_slots(
    targets: Sequence[TargetSlots],
    resolved: Mapping[tuple[str, str], Mapping[str, Slot]],
    options: Options,
    stats: Stats,
) -> None:
    """Warns about types that this host does not know, state that a restart loses, and unused bindings.

    Misspelt classes of selectors, too. `resolved` are the slots of each partition main, by its key.
    Raises StateNotSaved where a restart would lose state of a durable partition.
    """
    used: set[int] = set()
    classes = dict.fromkeys((t.main.facts.partition or t.main.name) for t in targets)
    for target in targets:
        durable = any(op.facts.durable for op in flow.wire_ops(target.main))
        for name, slot in resolved[target.main.key].items():
            ops = target.ops.get(name, ())
            binding = options.binding(name, target.main.name)
            component, where = None, slot.where or (source(ops[0]) if ops else "")
            chooses = slot.role == keys.ROLE_PEER_SELECTOR or slot.peer_class
            if chooses and slot.peer_class not in classes:
                _check_class(name, slot, classes, where, stats)
            if binding is not None:
                used.add(id(binding))
                _check_replaced(name, target.declared.get(name), binding, stats)
                component, where = binding.component, binding.where
            if slot.role and slot.is_concrete:
                _check_type(name, slot, component, ops, where, stats, durable)
    for binding in options.bindings:
        if id(binding) not in used:
            there = f" in partition {binding.target!r}" if binding.target else ""
            stats.warn(
                "unused-binding",
                f"bind_{binding.role}({binding.slot!r}): no op{there} uses the slot",
                binding.where,
                "remove the binding, or call one of the slot's ops in the body",
            )


def _check_replaced(name: str, declared: Slot | None, binding: Binding, stats: Stats) -> None:
    """A binding takes the place of a declaration as a whole: keys of the declaration count no more."""
    if declared is None or declared.state is None:
        return
    dropped = sorted(_keys(declared.state) - _keys(binding.state))
    if dropped:
        stats.warn(
            "binding-replaces",
            f"slot {name!r} has a configuration at {declared.where}, and this binding replaces it: it drops"
            f" {', '.join(dropped)} of {declared.concrete_type}",
            binding.where,
            "give these keys in the binding as well; or declare the slot by its name alone, and bind it",
        )


def _keys(state: AttrValue) -> set[str]:
    """The keys of a configuration; none of bytes that are not one."""
    try:
        return {str(key) for key in config_of(state)}
    except (cbor2.CBORDecodeError, TypeError):
        return set()


def _check_class(name: str, slot: Slot, classes: Iterable[str], where: str, stats: Stats) -> None:
    """A class that no partition has may be another program's: one of a like name is what was meant."""
    near = suggestion(slot.peer_class, classes)
    if near.startswith("did you mean"):
        stats.warn(
            "unknown-class",
            f"slot {name!r}: no partition of this program is of class {slot.peer_class!r}: nobody is chosen",
            where,
            f"{near} A class of another program needs nothing more",
        )


def _check_type(
    name: str,
    slot: Slot,
    component: type | None,
    ops: Sequence[Op],
    where: str,
    stats: Stats,
    durable: bool,
) -> None:
    registry = default_registry()
    if component is None:
        # A known name whose package does not import here is checked on the device.
        with contextlib.suppress(RegistryError, ImportError, AttributeError):
            component = registry.lookup(slot.concrete_type)
    if component is None:
        known = registry.type_names()
        if slot.concrete_type not in known:
            near = suggestion(slot.concrete_type, known)
            hint = (f"{near} Else " if near.startswith("did you mean") else "") + (
                "give its file: bb-host compile --load FILE.py"
            )
            stats.warn(
                "unknown-component",
                f"slot {name!r}: this host knows no component type {slot.concrete_type!r}",
                where,
                forgotten_register(slot.concrete_type) or hint,
            )
    elif loses(component, ((op.domain, op.op_type) for op in ops)):
        what = (
            f"slot {name!r}: {component.__name__} keeps state and does not override serialize: a restart"
            " loses it"
        )
        hint = "override serialize and restore, or set stateless = True in the class"
        if durable:
            raise StateNotSaved(f"{what}, and the partition is durable", where=where, hint=hint)
        stats.warn("state-not-saved", what, where, hint)


# --- scopes -----------------------------------------------------------------------------------------------


def warn_of_scopes(function: Function, placed: Sequence[tuple[str, ...]], stats: Stats) -> None:
    """Warns about scopes `with g.at(…)` none of whose ops runs on their class.

    An op says of which class the scope around it was, not where it began: neighbours of one class count
    as one scope.
    """
    if "at" not in flow.summary(function.ops).said:
        return
    scope = ""
    inside: list[tuple[Op, tuple[str, ...]]] = []
    for op, classes in zip(function.ops, placed, strict=True):
        if is_constant(op):
            continue  # never stamped
        at = op.facts.at
        if at != scope:
            _check_scope(scope, inside, placed, stats)
            scope, inside = at, []
        if at:
            inside.append((op, classes))
    _check_scope(scope, inside, placed, stats)


def _check_scope(
    scope: str,
    inside: Sequence[tuple[Op, tuple[str, ...]]],
    placed: Sequence[tuple[str, ...]],
    stats: Stats,
) -> None:
    if not scope or any(scope in classes for _, classes in inside):
        return
    op, classes = inside[0]
    known = {name for names in placed for name in names}
    stats.warn(
        "scope-places-nothing",
        f"no op in the scope of {scope!r} runs there: {label(op)} runs on {', '.join(classes)}, as its slot"
        " or its inputs do",
        source(op),
        "send the value to that class first, or remove the scope"
        if scope in known
        else suggestion(scope, known, "classes: "),
    )
