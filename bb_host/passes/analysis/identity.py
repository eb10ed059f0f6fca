"""Computes the two digests that peers compare: of the program, and of what its classes exchange.

`program_digest` is of the recorded program with what is bound to its slots: ops, names, types of inputs and
outputs, slots with their types and configuration. Weights are in it by name, dtype and shape, not by value:
a model that has learned is the same program. Not in it are lines of source, instances of modules, numbers of
slots (`flow.LABELS`) and options of the host.

`contracts` is of what travels: per pair of classes the sites, their types and shapes, and of what both bind
the components that call each other and the layouts of models. Two artifacts whose contracts differ cannot
talk; two of different programs with the same contracts can, where one of them says so (`accepts`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.class_names import SELF_CLASS, class_of_module
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.roles.settings import REQUIRED, settings_of
from bb_edge.wire.programs import MAX_ACCEPTED, pair
from bb_host.diagnostics import ProgramWarning, in_order
from bb_host.errors import ConstructionError, IdentityError
from bb_host.ir.construction import class_of, config_of
from bb_host.ir.facts import ProgramFacts
from bb_host.ir.program import (
    Array,
    AttrValue,
    Function,
    Op,
    Program,
    RawAttribute,
    RawTensor,
    Slot,
    Subgraph,
)
from bb_host.ir.spelling import TRAVELS, written
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.contract_changes import contract_changes
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.options import Options

MOST_NUMBERS = 64
"""Elements of an integer tensor that count by value: axes, shapes and indices are structure, weights are
none."""
MOST_CHANGES = 4
"""Changes of what travels that a refusal tells."""
_TALKING_ROLES = (keys.ROLE_PROTOCOL, keys.ROLE_PEER_SELECTOR)
"""Components of these roles call each other."""


def identified(compiled: Program, recorded: Program, options: Options) -> Program:
    """The compiled program with the digest of the recorded one among its facts."""
    return replace(compiled, facts=compiled.facts | ProgramFacts(program=program_digest(recorded, options)))


def accepting(program: Program, others: Sequence[Program]) -> Program:
    """The compiled program, which takes nodes that run one of the others as peers.

    IdentityError for another that was not compiled or has no digest, and where other things travel between
    two of its classes: such nodes cannot talk, whatever a list says. Warns of codecs with other settings: a
    code of the same type means other numbers to them.
    """
    if not program.facts.program:
        raise IdentityError(
            "it has no peers whose program could be another",
            f"model {program.name}",
            "an ordinary model runs for itself: leave --accepts out",
        )
    listed = dict.fromkeys(program.facts.accepts)
    for other in others:
        where = f"program {other.name}"
        digest = other.facts.program
        if not digest:
            what = "it holds no digest of its program"
            raise IdentityError(
                what, where, "give the artifact that the fleet runs, compiled by this version"
            )
        for talking, contract in other.facts.contracts.items():
            if program.facts.contracts.get(talking) != contract:
                classes = " and ".join(talking.split("."))
                changes = "; ".join(contract_changes(other, program)[:MOST_CHANGES])
                raise IdentityError(
                    f"other things travel between {classes} than in this program{changes and ': ' + changes}",
                    f"{where} ({digest[:12]}…)",
                    "nodes of both cannot talk: keep names, types and order of what is sent, or move the"
                    " whole federation at once",
                )
        if digest != program.facts.program:
            listed[digest] = None
    if len(listed) > MAX_ACCEPTED:
        raise IdentityError(
            f"{len(listed)} other programs, {MAX_ACCEPTED} at most",
            f"program {program.name}",
            "move the oldest devices on first",
        )
    warned = [warning for other in others for warning in _codec_changes(program, other)]
    if warned:
        program = replace(program, warnings=in_order((*program.warnings, *warned)))
    return replace(program, facts=program.facts | ProgramFacts(accepts=tuple(listed))) if listed else program


def _codec_changes(program: Program, other: Program) -> Iterator[ProgramWarning]:
    """Warns where a codec's slot is bound otherwise there: any setting may say what a code means."""
    theirs = _codecs(other)
    for name, (kind, slot) in _codecs(program).items():
        if name not in theirs:
            continue
        old_kind, old = theirs[name]
        changes: list[tuple[str, object, object]] = [("type", old_kind, kind)]
        if old_kind == kind:
            there, here = _settings(kind, old), _settings(kind, slot)
            changes = [(key, there.get(key), here.get(key)) for key in sorted({*there, *here})]
        for key, was, now in changes:
            if was != now:
                yield ProgramWarning(
                    "other-codec-accepted",
                    f"slot {name!r}, key {key!r} is {now!r:.60} here, and {was!r:.60} in the program that is"
                    f" accepted ({other.facts.program[:12]}…): what one of them compresses, the other"
                    " decompresses to other numbers",
                    slot.where,
                    "give both the same, here or on their devices (--set SLOT.KEY=VALUE)",
                )


def _codecs(program: Program) -> dict[str, tuple[str, Slot]]:
    """By slot the TYPE_NAME and the record of a codec; an artifact says its role and type in its bindings."""
    mains = {function.name: function for function in program.functions if flow.is_main(function)}
    return {
        name: (found.type_name, mains[target].slots[name])
        for (target, name), found in program.facts.bindings.items()
        if found.role == keys.ROLE_CODEC and target in mains and name in mains[target].slots
    }


def _settings(type_name: str, slot: Slot) -> dict[str, object]:
    """The configuration of a codec, with the defaults of its class where this host has it."""
    try:
        known = class_of(type_name)
    except ConstructionError:
        known = None
    declared = {} if known is None else settings_of(known) or {}
    defaults = {key: one.default for key, one in declared.items() if one.default is not REQUIRED}
    return {**defaults, **({} if slot.state is None else config_of(slot.state))}


def program_digest(program: Program, options: Options) -> str:
    """SHA-256 of a recorded program and the bindings that `options` give it, 64 hex digits."""
    digest = hashlib.sha256()
    for function in program.functions:
        digest.update(_line(_function(function)))
    for binding in sorted(options.bindings, key=lambda b: (b.slot, b.target or "")):
        bound = (binding.slot, binding.target or "", binding.role, binding.type_name)
        digest.update(_line((*bound, *_value(binding.state))))
        for function in binding.functions:
            digest.update(_line(_function(function)))
    return digest.hexdigest()


def contracts(targets: Sequence[TargetSlots]) -> dict[str, str]:
    """Per pair of classes that talk (`programs.pair`), a digest of what travels between them, 32 hex digits.

    The targets are those of a program whose wire ops have all their stamps.
    """
    mains = {target.main.name: target.main for target in targets}
    ends: dict[str, list[tuple[str, Op]]] = {}
    for name, main in mains.items():
        for op in flow.wire_ops(main):
            ends.setdefault(flow.wire_id(op), []).append((name, op))
    rows: dict[tuple[str, str], list[str]] = {}
    for both in ends.values():
        senders = [(name, op) for name, op in both if op.op_type not in RECV_FLAVORED]
        receivers = [(name, op) for name, op in both if op.op_type in RECV_FLAVORED]
        for sender, op in senders:
            for receiver, taken in receivers:
                said = written(op.facts)
                row = [sender, receiver, *(said.get(key, "") for key in TRAVELS), taken.facts.shapes]
                if taken.facts.parts:  # where no bundle travels, contracts are those of older hosts
                    row.append(taken.facts.parts)
                both_names = (sender, receiver) if sender <= receiver else (receiver, sender)
                rows.setdefault(both_names, []).append("\0".join(row))
    found = {}
    for names, texts in rows.items():
        one, other = (mains[name] for name in names)
        texts += _remote(one, other)
        digest = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:32]
        found[pair(class_of_target(one), class_of_target(other))] = digest
    return found


def class_of_target(main: Function) -> str:
    """The class of a partition as it stands on the wire."""
    name = main.facts.partition or SELF_CLASS
    return class_of_module(main.name) if name == SELF_CLASS else name


def _remote(one: Function, other: Function) -> Iterator[str]:
    """What both bind and agree on: components that call each other, whose slot is the address of the call,
    and the layouts of models, whose parameters travel as bare vectors.
    """
    for name, slot in one.slots.items():
        there = other.slots.get(name)
        if there is None:
            continue
        if slot.role in _TALKING_ROLES and there.concrete_type == slot.concrete_type:
            yield f"slot\0{name}\0{slot.concrete_type}"
        if slot.role == keys.ROLE_MODEL and isinstance(slot.state, Subgraph):
            yield "\0".join(("model", name, *_layout(slot.state)))


# --- the canonical form --------------------------------------------------------------------------------


_NEXT = "\1"
"""Between the names of one op."""


def _line(parts: Iterable[str]) -> bytes:
    """No part holds a NUL or a line break of its own: names are checked, other texts come as `repr`."""
    return ("\0".join(parts) + "\n").encode()


def _function(function: Function) -> list[str]:
    parts = [function.domain, function.name, *function.inputs, "->", *function.outputs]
    for name in (*function.inputs, *function.outputs):
        parts.append(str(function.types.get(name)))
    for key, text in sorted(written(function.facts).items()):
        parts += key, text
    for name, slot in function.slots.items():
        parts += name, slot.role, slot.concrete_type, slot.at, slot.peer_class
        if slot.state is not None:
            parts += _value(slot.state)
    _ops(function.ops, parts)
    return parts


def _ops(ops: Sequence[Op], parts: list[str]) -> None:
    """Column by column: all op types, then all domains, and so on, which is faster than op by op."""
    parts.append(str(len(ops)))
    parts += [op.op_type for op in ops]
    parts += [op.domain for op in ops]
    parts += [_NEXT.join(op.inputs) for op in ops]
    parts += [_NEXT.join(op.outputs) for op in ops]
    metas = [written(op.facts.without(*flow.LABELS)) for op in ops]
    for key in sorted(frozenset[str]().union(*metas)):
        parts.append(key)
        parts += [meta.get(key, "") for meta in metas]
    for index, op in enumerate(ops):
        if op.attrs:
            parts.append(str(index))
            for key in sorted(op.attrs):
                parts.append(key)
                parts += _value(op.attrs[key])


def _layout(graph: Subgraph) -> Iterator[str]:
    """Names, dtypes and shapes of the initializers, in order."""
    for name, tensor in graph.initializers.items():
        yield from (name, *_head(tensor))


def _head(tensor: Array | RawTensor) -> tuple[str, str]:
    """Dtype and shape; of an array's dtype what needs no look-up of names: `f4`."""
    if isinstance(tensor, RawTensor):
        return str(tensor.elem_type), str(tensor.shape)
    return f"{tensor.dtype.kind}{tensor.dtype.itemsize}", str(tensor.shape)


def _value(value: AttrValue) -> list[str]:
    """An attribute or a construction state as texts; tensors by value where they are structure."""
    if isinstance(value, np.ndarray):
        structure = not value.ndim or (value.dtype.kind in "iub" and value.size <= MOST_NUMBERS)
        return [*_head(value), repr(value.tolist())] if structure else [*_head(value)]
    if isinstance(value, Subgraph):
        parts = [value.name, *value.inputs, "->", *value.outputs, *_layout(value)]
        for key, text in sorted(value.config.items()):
            parts += key, text
        _ops(value.ops, parts)
        return parts
    if isinstance(value, RawTensor):
        return [*_head(value)]
    if isinstance(value, RawAttribute):
        return [str(value.kind), value.data.hex()]
    return [repr(value)]
