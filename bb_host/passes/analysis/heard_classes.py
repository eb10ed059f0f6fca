"""Finds whose presence each target needs: the classes that it sends to, receives from or selects.

1. Both sides of a wire edge hear each other. A slot that names a class of peers, as selectors do, hears that
   class. A component that can call its like on other nodes may call every class of the program: a slot of its
   name has remote ops on some target. One with ordinary ops alone has nobody to call.
   What the wires and selectors of the target name is asked for; what a component may call is merely heard.
2. An open port leads to another program: where the class of its peers is none that this program names, the
   target hears every class there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bb_edge.ir import keys
from bb_edge.ir.class_names import CLASS_NAME_RULE, EVERY_CLASS, SELF_CLASS, is_class_name
from bb_edge.ir.opsets.wire import OP_RECV_RESP_BATCHED, OP_SEND_RESP
from bb_edge.roles import ProtocolComponent
from bb_host.errors import ConstructionError, InvalidClassName
from bb_host.ir.construction import class_of
from bb_host.ir.facts import Heard
from bb_host.ir.program import Op, Slot
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.slot_table import TargetSlots


def heard_classes(targets: Sequence[TargetSlots]) -> dict[str, Heard]:
    """By target: the classes that it deals with.

    Raises InvalidClassName for a selector's class that cannot be part of a topic.
    """
    classes = {t.main.name: (t.main.facts.partition or SELF_CLASS) for t in targets}
    found: dict[str, set[str]] = {t.main.name: set() for t in targets}
    for target in targets:
        found[target.main.name] |= _selected(target)
    named = {*classes.values()}.union(*found.values())
    all_of_them = set(classes.values())
    called = {name for target in targets for name, slot in target.main.slots.items() if _has_remote_ops(slot)}
    senders, receivers = _halves(targets)
    for wire_id in senders.keys() & receivers.keys():
        for sender in senders[wire_id]:
            for receiver in receivers[wire_id]:
                found[sender].add(classes[receiver])
                found[receiver].add(classes[sender])
    for target in targets:
        name = target.main.name
        for op in _open_ports(target, senders, receivers):
            where = _leads_to(target, op)
            found[name].add(where if where in named else EVERY_CLASS)
    heard = {}
    for target in targets:
        asks = found[target.main.name]
        hears = asks if called.isdisjoint(target.main.slots) else asks | all_of_them
        heard[target.main.name] = Heard(_sorted(hears), _sorted(asks))
    return heard


def _sorted(classes: Collection[str]) -> tuple[str, ...]:
    return (EVERY_CLASS,) if EVERY_CLASS in classes else tuple(sorted(classes))


def _selected(target: TargetSlots) -> set[str]:
    """The classes that the target's selectors choose from, and whose peers its other components read."""
    found = set()
    for name, slot in target.main.slots.items():
        if slot.peer_class:
            if not is_class_name(slot.peer_class):
                raise InvalidClassName(
                    f"{slot.peer_class!r} is not a valid name for a class",
                    f"{target.main.name}, slot {name!r}",
                    CLASS_NAME_RULE,
                )
            found.add(slot.peer_class)
    return found


Halves = Mapping[str, Mapping[str, Op]]
"""By wire id and target, an op of that half."""


def _halves(targets: Sequence[TargetSlots]) -> tuple[Halves, Halves]:
    """Who sends and who receives under each wire id."""
    senders: dict[str, dict[str, Op]] = {}
    receivers: dict[str, dict[str, Op]] = {}
    for target in targets:
        for function in target.functions:
            for op in flow.wire_ops(function):
                side = senders if flow.is_send_flavored(op) else receivers
                side.setdefault(flow.wire_id(op), {})[target.main.name] = op
    return senders, receivers


def _open_ports(target: TargetSlots, senders: Halves, receivers: Halves) -> list[Op]:
    """The target's halves of wires whose other half is not part of the program."""
    name = target.main.name
    alone = [sides[name] for wire_id, sides in senders.items() if name in sides and wire_id not in receivers]
    alone += [sides[name] for wire_id, sides in receivers.items() if name in sides and wire_id not in senders]
    # The batch of a request's answers stands beside the request, which says where it leads.
    return [op for op in alone if op.op_type != OP_RECV_RESP_BATCHED]


def _leads_to(target: TargetSlots, op: Op) -> str:
    """The class of the peers that an open port sends to; empty where nothing says it."""
    if not flow.is_send_flavored(op) or op.op_type == OP_SEND_RESP:
        return ""
    function = next(f for f in target.functions if any(o is op for o in f.ops))
    known, gates = flow.peer_classes(function.ops), {}
    for other in function.ops:
        if other.domain == keys.GATE_DOMAIN:
            gates[other.outputs[0]] = other.inputs[0]
    peers = flow.peers_input(op)
    while peers in gates:
        peers = gates[peers]
    return known.get(peers, peers if peers in function.inputs else "")


def _has_remote_ops(slot: Slot) -> bool:
    """Whether its like on other nodes can call the slot's component.

    One that the host does not know counts by its role.
    """
    try:
        kind = class_of(slot.concrete_type) if slot.concrete_type else None
    except ConstructionError:
        kind = None
    if kind is None:
        return slot.role in (keys.ROLE_PROTOCOL, keys.ROLE_PEER_SELECTOR)
    if not issubclass(kind, ProtocolComponent):
        return False
    return any(op.remote for op in kind.atomic_opset().ops.values())
