"""Network ports of modules, read where they are not recorded: by callers, and by siblings of the module.

A port's value is inside the function that sends. Where another function reads it, it becomes an output of
that function and of those between, and an input of the reader. Both come on demand: a program in which
nobody reads another module's port is recorded without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bb_edge.ir import keys, types
from bb_edge.ir.opsets.wire import OP_SEND, OP_SEND_REQ
from bb_edge.ir.types import ValueType
from bb_host.dsl.session import ModuleRecord, Session
from bb_host.ir.program import Function, Op


def port_names(session: Session, function: Function) -> Iterator[str]:
    """The network ports of a function and of those that it calls."""
    for op in function.ops:
        if op.domain == keys.WIRE_DOMAIN and op.op_type in (OP_SEND, OP_SEND_REQ):
            yield op.facts.port
        else:
            callee = _callee(session, op)
            if callee is not None:
                yield from port_names(session, callee.function)


def expose(session: Session, record: ModuleRecord, port: str) -> tuple[str, ...] | None:
    """Makes a network port outputs of a recorded module: the values as received, and their sender last.

    Gives the names of these outputs; None where neither the module nor one that it calls has the port.
    """
    names = _received(record.function, port)
    if names is None:
        for index, op in enumerate(record.function.ops):
            callee = _callee(session, op)
            inner = None if callee is None else expose(session, callee, port)
            if callee is not None and inner is not None:
                names = _handed_on(record, index, callee.function, inner)
                break
    if names is not None:
        function = record.function
        more = tuple(name for name in names if name not in function.outputs)
        if more:
            record.function = dataclasses.replace(function, outputs=(*function.outputs, *more))
    return names


def _callee(session: Session, op: Op) -> ModuleRecord | None:
    key = (op.domain, op.op_type)
    return next((r for r in session.records if r.function.key == key), None)


def _received(function: Function, port: str) -> tuple[str, ...] | None:
    """The values of a send of this function, as its receiver sees them."""
    for op in function.ops:
        if op.domain == keys.WIRE_DOMAIN and op.facts.port == port:
            if op.op_type == OP_SEND:
                return op.outputs
            if op.op_type == OP_SEND_REQ:
                return op.outputs[1:]
    return None


def _handed_on(record: ModuleRecord, index: int, callee: Function, inner: tuple[str, ...]) -> tuple[str, ...]:
    """Names what a call yields at new outputs of its callee, in the caller that is recorded already."""
    function = record.function
    call = function.ops[index]
    taken = {*function.inputs, *(name for op in function.ops for name in op.outputs)}
    outputs = [*call.outputs, *[""] * (len(callee.outputs) - len(call.outputs))]
    known = dict(function.types)
    for name in inner:
        at = callee.outputs.index(name)
        if not outputs[at]:
            outputs[at] = _free(f"{callee.name.lower()}_{name}", taken)
            known[outputs[at]] = callee.types.get(name, ValueType(types.ANY))
    ops = list(function.ops)
    ops[index] = dataclasses.replace(call, outputs=tuple(outputs))
    record.function = dataclasses.replace(function, ops=tuple(ops), types=known)
    return tuple(outputs[callee.outputs.index(name)] for name in inner)


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name
