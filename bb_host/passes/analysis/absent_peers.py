"""Refuses requests and sends that do not wait, to peers that a selector has in view though they are away.

A request asks those that are up, and what is sent without `durable` reaches nobody who is away.
"""

from __future__ import annotations

from collections.abc import Sequence

from bb_edge.components import PresenceSelector
from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import OP_SEND_REQ
from bb_host.errors import AbsentPeers
from bb_host.ir.construction import config_of
from bb_host.ir.program import Function, Op, Slot
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.slot_table import TargetSlots


def check_absent_peers(target: TargetSlots, slots: dict[str, Slot]) -> None:
    """AbsentPeers where peers that are away would be asked, or sent what does not wait for them."""
    absent = {name for name, slot in slots.items() if _sees_absent(slot)}
    if not absent:
        return
    for function in target.functions:
        for op, slot in _sends(function, absent):
            if op.op_type == OP_SEND_REQ:
                raise AbsentPeers(
                    f"the peers of {slot!r} may be away, and a request asks those that are up",
                    hint=f"ask peers of a slot without known=True, or send to them: g.net_out({_port(op)}, "
                    "…, durable=True)",
                    op=op,
                )
            if not op.facts.durable:
                raise AbsentPeers(
                    f"the peers of {slot!r} may be away, and this send does not wait for them",
                    hint=f"write g.net_out({_port(op)}, …, durable=True), or choose peers of a slot without "
                    "known=True",
                    op=op,
                )


def _sees_absent(slot: Slot) -> bool:
    if slot.concrete_type != PresenceSelector.TYPE_NAME or slot.state is None:
        return False
    return config_of(slot.state).get("known") is True


def _port(op: Op) -> str:
    return repr(op.facts.port or "…")


def _sends(function: Function, absent: set[str]) -> Sequence[tuple[Op, str]]:
    """The sends and requests of a function whose peers come from one of these slots, with its name."""
    chosen: dict[str, str] = {}  # a list of peers -> the slot that it comes from
    found = []
    for op in function.ops:
        if op.domain == keys.ROLE_PEER_SELECTOR_DOMAIN:
            if (slot := op.slot) in absent:
                chosen.update(dict.fromkeys(op.outputs, slot))
        elif op.domain == keys.WIRE_DOMAIN:
            if flow.is_send_flavored(op) and (slot := chosen.get(flow.peers_input(op), "")):
                found.append((op, slot))
        elif slot := next((chosen[name] for name in op.inputs if name in chosen), ""):
            lists = (n for n in op.outputs if n in function.types)
            chosen.update((n, slot) for n in lists if function.types[n].node is types.PEER_ID_VEC)
    return found
