"""Describes in words how what two classes exchange differs between two versions of a program.

Contracts are digests (`identity.contracts`), which say that something differs and not what. Both programs are
there where one is compiled to accept the other, so that ports can be compared one by one; of an artifact that
was stripped for one class its own side is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from bb_edge.ir import types
from bb_edge.ir.opsets.wire import (
    OP_RECV,
    OP_RECV_REQ,
    OP_RECV_RESP,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
)
from bb_host.ir.program import Function, Op, Program, Subgraph
from bb_host.passes.analysis import flow

_SAYS = {
    OP_SEND: "the message at",
    OP_RECV: "the message at",
    OP_SEND_REQ: "the question",
    OP_RECV_REQ: "the question",
    OP_SEND_RESP: "the answer to",
    OP_RECV_RESP: "the answer to",
}


def contract_changes(old: Program, new: Program) -> tuple[str, ...]:
    """Returns what differs, a short text each; empty where no port or model tells."""
    known = {function.name: function for function in new.functions}
    found: dict[str, None] = {}
    for before in old.functions:
        after = known.get(before.name)
        if after is not None:
            found.update(dict.fromkeys((*_ports(before, after), *_models(before, after))))
    return tuple(found)


def _ports(old: Function, new: Function) -> Iterator[str]:
    before, after = _travels(old), _travels(new)
    for name in (*before, *(each for each in after if each not in before)):
        there, here = before.get(name), after.get(name)
        if there is None or here is None:
            yield f"{name} is {'new' if there is None else 'gone'}"
        elif there != here:
            yield f"{name} was {there}, and is {here}"


def _travels(function: Function) -> dict[str, str]:
    """By port and direction what an envelope carries there."""
    return {
        f"{_SAYS[op.op_type]} {op.facts.port!r}": _carried(op)
        for op in flow.wire_ops(function)
        if op.op_type in _SAYS
    }


def _carried(op: Op) -> str:
    facts = op.facts
    found = ", ".join(map(_type, facts.type_hashes)) or "nothing"
    shapes = f" of shapes {facts.shapes}" if facts.shapes else ""
    return f"{'durable ' if facts.durable else ''}{found}{shapes}"


def _type(wire_hash: int) -> str:
    node = types.by_wire_hash(wire_hash)
    return f"{wire_hash:x}" if node is None else node.id


def _models(old: Function, new: Function) -> Iterator[str]:
    """Layouts, whose parameters travel as bare vectors."""
    for name, slot in old.slots.items():
        there = new.slots.get(name)
        if there is None or not isinstance(slot.state, Subgraph) or not isinstance(there.state, Subgraph):
            continue
        before, after = _tensors(slot.state), _tensors(there.state)
        changed = [
            f"{each} was {before.get(each, 'not there')}, and is {after.get(each, 'gone')}"
            for each in dict.fromkeys((*before, *after))
            if before.get(each) != after.get(each)
        ]
        if changed:
            more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
            yield f"of model {name!r}, {changed[0]}{more}"


def _tensors(graph: Subgraph) -> dict[str, str]:
    return {name: str(list(tensor.shape)) for name, tensor in graph.initializers.items()}
