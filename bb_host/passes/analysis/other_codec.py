"""Finds values that one codec compressed and another one, or none, decompresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import TypeAlias

from bb_edge.ir import keys, types
from bb_host.errors import BindingError, ConstructionError, TypeConstraintFailed, label, named
from bb_host.ir.construction import class_of
from bb_host.ir.program import Function, Op, Slot
from bb_host.ir.queries import is_gate
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bound_types import Promises
from bb_host.passes.analysis.type_terms import conflict
from bb_host.passes.options import Options, PortPromise

_COMPRESS, _DECOMPRESS = "Compress", "Decompress"

Key = tuple[str, str]
Takes: TypeAlias = "tuple[Op, Op, tuple[str, ...]]"
"""An op that compressed, one that takes its code, and the classes that the latter runs on."""


def other_codec(
    error: TypeConstraintFailed, function: Function, promised: dict[str, Promises], options: Options
) -> TypeConstraintFailed | None:
    """The refusal of the first `decompress` whose code another slot's `compress` yields in another type.

    Where there is none, the refusal of an op of a role that takes a code as it is, with the remedy; `error`
    is what was found. Codes are followed over the wire and through gates, within one function. None where
    what contradicts is something else.
    """
    if keys.ROLE_COMPRESSOR_DOMAIN not in flow.summary(function.ops).domains:
        return None
    for maker, op, _ in _takes_of(function, {}):
        if _is_codecs(op, _DECOMPRESS):
            found = _refusal(function, maker, op, promised, options)
            if found is not None:
                return found
        elif op.domain in keys.ROLE_DOMAINS and label(op) == error.op:
            slot = maker.slot
            return conflict(
                op,
                f"{error.what.removeprefix(f'{error.op}: ')}: it is the code of {named(maker)}",
                f"decompress it first, by the slot {slot!r}: decompress(g, …)",
            )
    return None


def check_codecs(
    function: Function,
    keyed: Mapping[Key, Function],
    slots: Mapping[str, Slot],
    options: Options,
    alone: str,
) -> None:
    """BindingError where a codec decompresses what one of another class compressed, types that fit or not.

    Bytes of one type mean what their class says. A class that derives from the other is taken at its word.
    Needs placed ops, and wire ops as they were recorded; `alone` is the class of ops that none is written on.
    """
    for maker, op, classes in _takes_of(function, keyed):
        if not _is_codecs(op, _DECOMPRESS):
            continue
        for at, there in product(maker.facts.classes or (alone,), classes or (alone,)):
            made, made_by = _class_at(maker.slot, at, slots, options)
            read, read_by = _class_at(op.slot, there, slots, options)
            if not made or not read or made == read or _derive(made_by, read_by):
                continue
            one, other = f"{made} in slot {maker.slot!r}", f"{read} in slot {op.slot!r}"
            if at != there:
                one, other = f"{one} on {at}", f"{other} on {there}"
            raise BindingError(
                f"{other} decompresses what {one} compressed at {named(maker)}; each class reads a code of"
                " this type in its own way",
                hint=f"bind one class to slot {op.slot!r}, whatever the target"
                if op.slot == maker.slot
                else f"decompress by the slot that compressed, {maker.slot!r}, or bind one class to both"
                " slots; a class that reads another's codes derives from it",
                op=op,
            )


def _takes_of(
    function: Function,
    keyed: Mapping[Key, Function],
    came: Mapping[str, Op] = MappingProxyType({}),
    around: tuple[str, ...] = (),
) -> Iterator[Takes]:
    """Each op that takes a code, as the wire and gates hand it on, into bodies among `keyed` too.

    Of a body `came` are the ops that made those of its inputs that are codes, `around` the classes that it
    runs on.
    """
    made = dict(came)
    for op in function.ops:
        classes = op.facts.classes or around
        if _is_codecs(op, _COMPRESS):
            made[op.outputs[0]] = op
        elif is_gate(op) or (flow.is_send_flavored(op) and flow.is_recorded_form(op)):
            into, out = (
                (op.inputs, op.outputs)
                if is_gate(op)
                else (flow.payload_inputs(op), flow.received_outputs(op))
            )
            made.update((y, made[x]) for x, y in zip(into, out, strict=False) if x in made)
        elif maker := next((made[name] for name in op.inputs if name in made), None):
            yield maker, op, classes
        for key in flow.callees(op) if keyed else ():
            if (body := keyed.get(key)) is not None:
                inner = {y: made[x] for x, y in zip(op.inputs, body.inputs, strict=False) if x in made}
                yield from _takes_of(body, keyed, inner, classes)


def _is_codecs(op: Op, op_type: str) -> bool:
    return op.domain == keys.ROLE_COMPRESSOR_DOMAIN and op.op_type == op_type


def _class_at(slot: str, target: str, slots: Mapping[str, Slot], options: Options) -> tuple[str, type | None]:
    """TYPE_NAME and class of what serves a slot in a partition, as far as this host has them."""
    binding = options.binding(slot, target)
    name = binding.type_name if binding else slots[slot].concrete_type if slot in slots else ""
    if binding and binding.component:
        return name, binding.component
    try:
        return name, class_of(name) if name else None
    except ConstructionError:
        return name, None  # a package that does not import is refused where it is bound


def _derive(one: type | None, other: type | None) -> bool:
    return bool(one and other and (issubclass(one, other) or issubclass(other, one)))


def _refusal(
    function: Function, maker: Op, op: Op, promised: dict[str, Promises], options: Options
) -> TypeConstraintFailed | None:
    gives = _promise(promised, maker.slot, f"{_COMPRESS}.code")
    takes = _promise(promised, op.slot, f"{_DECOMPRESS}.code")
    if gives is None or takes is None or types.compatible(gives.type.node, takes.type.node):
        return None
    made, read = (_called(function, slot, options) for slot in (maker.slot, op.slot))
    return conflict(
        op,
        f"{read} takes {takes} as code, got {gives} from {made} at {named(maker)}",
        f"decompress by the slot that compressed, {maker.slot!r}; or bind one codec to both slots",
    )


def _promise(promised: dict[str, Promises], slot: str, port: str) -> PortPromise | None:
    return promised.get(slot, {}).get(port)


def _called(function: Function, slot: str, options: Options) -> str:
    """`codec 'slot' (bb.Float16Codec)`; the slot alone where targets have different bindings."""
    binding = options.sole_binding(slot)
    declared = function.slots.get(slot)
    kind = binding.type_name if binding else declared.concrete_type if declared else ""
    return f"codec {slot!r} ({kind})" if kind else f"codec {slot!r}"
