"""Warns where `bb.OncePerRound` goes by a round's number, and not by that of its attempt.

A round that reached nobody is repeated with its number, and a server that begins anew counts from 1: whoever
has answered that number last declines it then, and the round is without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bb_edge.ir import keys
from bb_host.errors import label, source
from bb_host.ir.program import Op
from bb_host.ir.queries import is_gate, is_onnx
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.slot_table import TargetSlots
from bb_host.passes.one_pass import Stats

ONCE_PER_ROUND = "bb.OncePerRound"
_SAME_NUMBER = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose result is the number that their first input is."""


def warn_of_round_numbers(targets: Sequence[TargetSlots], stats: Stats) -> None:
    """Warns of each op of `bb.OncePerRound` that is given what `start.round` is, from whichever sender."""
    mains = [target.main for target in targets]
    using = [main.ops for main in mains if ONCE_PER_ROUND in flow.summary(main.ops).domains]
    used = [(ops, op) for ops in using for op in ops if op.domain == ONCE_PER_ROUND]
    if not used:
        return
    makers = {id(main.ops): {name: op for op in main.ops for name in op.outputs if name} for main in mains}
    sends = {
        flow.wire_id(op): (op, makers[id(main.ops)])
        for main in mains
        for op in flow.wire_ops(main)
        if flow.is_send_flavored(op)
    }
    for ops, op in used:
        rounds = _rounds(op.inputs[0], makers[id(ops)], sends)
        if rounds is not None:
            where = f" of the rounds at {source(rounds)}" if source(rounds) else ""
            stats.warn(
                "round-not-attempt",
                f"{label(op)}: it is given start.round{where}: a repeated round, or one of a server that"
                " begins anew, has a number that was let through before, and is declined",
                source(op),
                "send start.attempt as well, and give it that",
            )


def _rounds(
    name: str, makers: Mapping[str, Op], sends: Mapping[str, tuple[Op, Mapping[str, Op]]]
) -> Op | None:
    """The entry of the rounds whose number a value is, followed over the wire; None for any other value."""
    seen: set[int] = set()
    while (op := makers.get(name)) is not None and id(op) not in seen:
        seen.add(id(op))
        if op.domain == keys.SYSCALL_DOMAIN and op.op_type == "Repeat":
            return op
        if flow.is_wire_entry(op):
            sent, makers = sends.get(flow.wire_id(op), (op, {}))
            index, payloads = op.outputs.index(name), flow.payload_inputs(sent) if sent is not op else ()
            if index >= len(payloads):
                return None
            name = payloads[index]
        elif is_gate(op) or is_onnx(op, *_SAME_NUMBER):
            name = op.inputs[0]
        else:
            return None
    return None
