"""Replaces calls of functions by their bodies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Slot
from bb_host.ir.rename import fresh_name, rename_op
from bb_host.passes.analysis import flow


class Inliner:
    """Inlines into one function; `run` once, then `result`."""

    def __init__(self, head: Function) -> None:
        self._head = head
        self._ops: list[Op] = []
        self._types: dict[str, ValueType] = dict(head.types)
        self._slots: dict[str, Slot] = dict(head.slots)
        self._opsets = dict(head.opsets)
        self._taken = {*head.inputs, *(n for op in head.ops for n in op.outputs)}
        self._wire_ids: set[str] = set()
        self._ports: set[str] = set()
        self._counts: dict[str, int] = {}
        for op in head.ops:
            if flow.is_wire(op):
                self._wire_ids.add(flow.wire_id(op))
                self._ports.add(op.facts.port)

    def run(self, callee_of: Callable[[Op], Function | None]) -> int:
        """Inlines every call for which `callee_of` gives a function; returns how many wire ops surfaced."""
        surfaced = 0
        stack = [iter(self._head.ops)]
        while stack:
            op = next(stack[-1], None)
            if op is None:
                stack.pop()
                continue
            callee = callee_of(op)
            if callee is None:
                self._ops.append(op)
                continue
            body = self._body(op, callee)
            surfaced += sum(1 for inner in body if flow.is_wire(inner))
            stack.append(iter(body))
        return surfaced

    def result(self) -> Function:
        """The function after `run`."""
        return dataclasses.replace(
            self._head, ops=tuple(self._ops), types=self._types, slots=self._slots, opsets=self._opsets
        )

    def _body(self, call: Op, callee: Function) -> list[Op]:
        scope = call.facts.scope
        number = self._counts[callee.name] = self._counts.get(callee.name, 0) + 1
        prefix = callee.name if number == 1 else f"{callee.name}{number}"
        names: dict[str, str] = {}
        for formal, actual in zip(callee.inputs, call.inputs, strict=False):
            names[formal] = actual
        for formal in callee.inputs[len(call.inputs) :]:
            names[formal] = ""
        copies: list[tuple[str, str]] = []
        for formal, actual in zip(callee.outputs, call.outputs, strict=False):
            if not actual:
                continue
            if formal in names:  # an input handed through, or one value under two names
                copies.append((formal, actual))
            else:
                names[formal] = actual
        for op in callee.ops:
            for name in op.outputs:
                if name and name not in names:
                    names[name] = fresh_name(f"{prefix}/{name}", self._taken)
        for name, type_ in callee.types.items():
            if names.get(name) and names[name] not in self._types:
                self._types[names[name]] = type_
        for name, slot in callee.slots.items():
            self._slots.setdefault(name, slot)
        for domain, version in callee.opsets.items():
            self._opsets.setdefault(domain, version)
        stamps = _Stamps(self._wire_ids, self._ports, prefix)
        body = []
        for op in callee.ops:
            facts = self._facts(op, call, scope, stamps)
            body.append(rename_op(_own_group(op, prefix), names, facts))
        for formal, actual in copies:
            body.append(self._copy(names[formal], actual, call))
        return body

    def _facts(self, op: Op, call: Op, scope: str, stamps: _Stamps) -> OpFacts:
        """What an op of the body says where it is called: of the call what it does not say itself."""
        facts = op.facts
        if scope or facts.scope:
            facts |= OpFacts(scope="_".join(filter(None, (scope, facts.scope))))
        facts |= call.facts.only("at", "on_invoke", "source").without(*vars(facts))
        return stamps.renewed(facts) if flow.is_wire(op) else facts

    def _copy(self, source: str, target: str, call: Op) -> Op:
        known = self._types.get(source)
        if known is not None:
            self._types.setdefault(target, known)
        if known is not None and types.is_subtype(known.node, types.TENSOR):
            self._opsets.setdefault(keys.ONNX_DOMAIN, 21)
            return Op("Identity", keys.ONNX_DOMAIN, (source,), (target,), {}, call.beside())
        self._opsets.setdefault(keys.SYSCALL_DOMAIN, 1)
        return Op("PassThrough", keys.SYSCALL_DOMAIN, (source,), (target,), {}, call.beside())


def _own_group(op: Op, prefix: str) -> Op:
    """A first-arrival group belongs to the call: it is the same group inlined and as a function."""
    group = op.attrs.get("group")
    if not isinstance(group, bytes) or op.op_type != "Any" or op.domain != keys.SYSCALL_DOMAIN:
        return op
    return dataclasses.replace(op, attrs={**op.attrs, "group": prefix.encode() + b"/" + group})


class _Stamps:
    """Wire ids and ports of one inlined body: kept while they are free, else minted anew."""

    def __init__(self, wire_ids: set[str], ports: set[str], prefix: str) -> None:
        self._wire_ids = wire_ids
        self._ports = ports
        self._prefix = prefix
        self._new_ids: dict[str, str] = {}
        self._new_ports: dict[str, str] = {}

    def renewed(self, facts: OpFacts) -> OpFacts:
        if facts.wire_id:
            facts |= OpFacts(wire_id=self._id(facts.wire_id))
        if facts.request:
            facts |= OpFacts(request=self._id(facts.request))
        return facts | OpFacts(port=self._port(facts.port)) if facts.port else facts

    def _id(self, old: str) -> str:
        if old not in self._new_ids:
            new = old
            if new in self._wire_ids:
                new = str(1 + max(int(i) for i in self._wire_ids if i.isdigit()))
            self._wire_ids.add(new)
            self._new_ids[old] = new
        return self._new_ids[old]

    def _port(self, old: str) -> str:
        if old not in self._new_ports:
            new = old if old not in self._ports else f"{self._prefix}.{old}"
            self._ports.add(new)
            self._new_ports[old] = new
        return self._new_ports[old]
