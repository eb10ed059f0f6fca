"""Why types contradict: one codec compressed what another decompresses, or what nothing decompresses."""

from __future__ import annotations

from bb_edge.ir import keys, types
from bb_host.errors import TypeConstraintFailed, label, named
from bb_host.ir.program import Function, Op
from bb_host.ir.queries import is_gate
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bound_types import Promises
from bb_host.passes.analysis.type_terms import conflict
from bb_host.passes.options import Options, PortPromise

_COMPRESS, _DECOMPRESS = "Compress", "Decompress"


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
    made: dict[str, Op] = {}
    for op in function.ops:
        if op.domain == keys.ROLE_COMPRESSOR_DOMAIN and op.op_type == _COMPRESS:
            made[op.outputs[0]] = op
        elif op.domain == keys.ROLE_COMPRESSOR_DOMAIN and op.op_type == _DECOMPRESS:
            maker = made.get(op.inputs[0])
            found = None if maker is None else _refusal(function, maker, op, promised, options)
            if found is not None:
                return found
        elif is_gate(op) or (flow.is_send_flavored(op) and flow.is_recorded_form(op)):
            into, out = (
                (op.inputs, op.outputs)
                if is_gate(op)
                else (flow.payload_inputs(op), flow.received_outputs(op))
            )
            made.update((y, made[x]) for x, y in zip(into, out, strict=False) if x in made)
        elif op.domain in keys.ROLE_DOMAINS and label(op) == error.op:
            maker = next((made[name] for name in op.inputs if name in made), None)
            if maker is not None:
                slot = maker.slot
                return conflict(
                    op,
                    f"{error.what.removeprefix(f'{error.op}: ')}: it is the code of {named(maker)}",
                    f"decompress it first, by the slot {slot!r}: decompress(g, …)",
                )
    return None


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
