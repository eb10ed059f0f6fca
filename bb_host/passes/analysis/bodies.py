"""Makes functions of the program of `If` and `Loop` bodies that hold more than tensor work.

A body of tensor ops alone stays as it is recorded: a backend runs it whole. Any other one is run by the
engine, op by op, and is a function from here on, so that every later pass sees into it as into any function:

1. `If` and `Loop` become ops of the syscall domain that name their bodies (`bb_edge.ir.bodies`). What a body
   reads of the values around it is handed in, behind the values that the author named; small constants are
   copied. Both branches of an `If` take the same values.
2. Calls in a body are replaced by what they call: a body calls nothing, so that all of its ops have run when
   its last one has.
3. The last op is `BodyEnd`. It waits for what the body yields and for every op that no other op waits for;
   ops without effect whose results nobody reads are dropped.
4. Wire ops and entries in a body are refused: `WireInSubgraph`, `OpInSubgraph`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.bodies import BODY_ATTRS, BODY_END, FIXED_INPUTS, body_keys
from bb_edge.ir.opsets import OpKind
from bb_edge.ir.types import ValueType
from bb_host.errors import OpInSubgraph, WireInSubgraph
from bb_host.ir.facts import NO_FACTS, FunctionFacts
from bb_host.ir.program import AttrValue, Function, Op, Subgraph, are_same, walk_ops
from bb_host.ir.queries import (
    ONNX_DOMAINS,
    captured,
    fires_on_one,
    has_subgraph,
    is_constant,
    is_onnx,
    unfit_for_body,
)
from bb_host.ir.rename import fresh_name
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.inlining import Inliner

_COPIED = 1024
"""Bytes of a constant up to which a body has its own copy."""


def outline(functions: Sequence[Function]) -> tuple[Function, ...]:
    """The functions with their bodies as functions behind them; the same ones where there are none."""
    if not any(not f.is_tensor_work and flow.summary(f.ops).has_subgraphs for f in functions):
        return tuple(functions)
    outliner = _Outliner({f.key: f for f in functions})
    found = [f if f.is_tensor_work else outliner.of(f) for f in functions]
    return (*found, *outliner.bodies)


class _Outliner:
    def __init__(self, keyed: Mapping[tuple[str, str], Function]) -> None:
        self._keyed = keyed
        self._counts: dict[str, int] = {}
        self.bodies: list[Function] = []

    def of(self, function: Function) -> Function:
        """The function with its bodies outlined, to any depth."""
        there = flow.summary(function.ops)
        if not there.has_subgraphs:
            return function
        ops = tuple([self._op(op, function) if has_subgraph(op) else op for op in function.ops])
        if are_same(ops, function.ops):
            return function
        opsets_ = {**function.opsets, **flow.used_opsets(ops, function.opsets)}
        return dataclasses.replace(function, ops=ops, opsets=opsets_)

    def _op(self, op: Op, function: Function) -> Op:
        if not self._is_engines(op):
            return op
        if op.op_type not in BODY_ATTRS:
            inner = next(o for o in _inner(op) if self._engine_op(o))
            raise OpInSubgraph(
                f"it stands in the body of {op.op_type}, which a backend runs whole",
                hint="the engine runs bodies of Loop and If alone",
                op=inner,
            )
        yielder = {name: o for o in function.ops for name in o.outputs if name}
        read = captured(op)
        copied = [yielder[name] for name in read if name in yielder and _is_small(yielder[name])]
        own = {name for o in copied for name in o.outputs}
        around = tuple(name for name in read if name not in own)
        graphs = {name: graph for name, graph in op.subgraphs()}
        attrs: dict[str, AttrValue] = {k: v for k, v in op.attrs.items() if k not in graphs}
        data, controls = flow.data_inputs(op), op.inputs[len(flow.data_inputs(op)) :]
        fixed = FIXED_INPUTS[op.op_type]
        data = (*data, *("",) * (fixed - len(data)))
        outputs = op.outputs
        if op.domain in ONNX_DOMAINS:
            outputs = ("", *outputs)
            if op.op_type == "Loop":
                attrs.update(carried=len(data) - fixed, condition=1)
        given = op.inputs[0] if op.op_type == "If" else ""
        for name in BODY_ATTRS[op.op_type]:
            kind = {"body": "loop", "then_branch": "then", "else_branch": "else"}[name]
            body = self._body(graphs[name], kind, function, around, copied, given, op)
            attrs[name] = body.name.encode()
        return Op(
            op.op_type,
            keys.SYSCALL_DOMAIN,
            (*data, *around, *controls),
            outputs,
            attrs,
            op.facts,
            op.name,
            op.extra,
        )

    def _is_engines(self, op: Op) -> bool:
        """Whether the engine has to run what an op's bodies hold."""
        return op.domain == keys.SYSCALL_DOMAIN or any(map(self._engine_op, _inner(op)))

    def _engine_op(self, op: Op) -> bool:
        """Whether an op is more than tensor work; a call where something is that it leads to."""
        if op.domain in ONNX_DOMAINS:
            return bool(op.facts.slot)
        callee = self._callee(op)
        return callee is None or any(map(self._engine_op, walk_ops(callee.ops)))

    def _callee(self, op: Op) -> Function | None:
        return None if op.domain in flow.LEAF_DOMAINS else self._keyed.get((op.domain, op.op_type))

    def _body(
        self,
        graph: Subgraph,
        kind: str,
        function: Function,
        around: Sequence[str],
        copied: Sequence[Op],
        condition: str,
        op: Op,
    ) -> Function:
        number = self._counts[function.name] = self._counts.get(function.name, 0) + 1
        taken = {*graph.inputs, *around, *(name for o in (*copied, *graph.ops) for name in o.outputs)}
        formals = (fresh_name("condition", taken),) if op.op_type == "If" else graph.inputs
        seen = {name: t for name, t in function.types.items() if name in taken}
        if condition:
            seen[formals[0]] = function.types.get(condition, ValueType(types.TENSOR_BOOL))
        held = [
            Op("Constant", keys.ONNX_DOMAIN, (), (n,), {"value": v}) for n, v in graph.initializers.items()
        ]
        body = Function(
            f"{function.name}.{kind}_{number}",
            keys.MODULE_DOMAIN,
            (*formals, *around),
            graph.outputs,
            (*copied, *held, *graph.ops),
            {**seen, **graph.types},
            function.slots,
            FunctionFacts(phase=keys.MODULE_PHASE_BODY),
            function.opsets,
        )
        inliner = Inliner(body)
        inliner.run(self._callee)
        body = inliner.result()
        for inner in walk_ops(body.ops):
            _refuse(inner)
        body = self.of(_ended(body))
        used = {o.slot for o in body.ops if o.slot}
        for key in (key for o in body.ops for key in body_keys(o.domain, o.op_type, o.attrs)):
            used.update(next(f for f in self.bodies if f.key == key).slots)
        slots = {name: slot for name, slot in body.slots.items() if name in used}
        body = dataclasses.replace(body, slots=slots, opsets=flow.used_opsets(body.ops, body.opsets))
        self.bodies.append(body)
        return body


def _inner(op: Op) -> Iterable[Op]:
    return walk_ops(tuple(o for _, graph in op.subgraphs() for o in graph.ops))


def _is_small(op: Op) -> bool:
    value = op.attrs.get("value")
    return is_constant(op) and not (isinstance(value, np.ndarray) and value.nbytes > _COPIED)


def _refuse(op: Op) -> None:
    """Rule 4; recording says it at the author's line, but not of programs from elsewhere."""
    if op.domain == keys.WIRE_DOMAIN:
        raise WireInSubgraph(
            "it stands in a branch or loop body", hint="send before or behind the If or Loop", op=op
        )
    why = unfit_for_body(op.domain, op.op_type)
    if why:
        raise OpInSubgraph(f"it {why}, and stands in a branch or loop body", hint="record it outside", op=op)


def _ended(body: Function) -> Function:
    """Rule 3. The body's outputs become inputs of its last op: it has none."""
    needed = set(body.outputs)
    kept: list[Op] = []
    for op in reversed(body.ops):
        if _computes(op) and needed.isdisjoint(filter(None, op.outputs)):
            continue
        needed.update(op.inputs)
        needed.update(captured(op))
        kept.append(op)
    ops = kept[::-1]
    waited = set(body.outputs)
    for op in ops:
        if not fires_on_one(opsets.lookup(op.domain, op.op_type)):
            waited.update((*op.inputs, *captured(op)))
    taken = {*body.inputs, *(name for op in ops for name in op.outputs)}
    kinds = dict(body.types)
    last: list[str] = []
    for index, op in enumerate(ops):
        if not waited.isdisjoint(filter(None, op.outputs)) or _computes(op):
            continue
        name = next(filter(None, op.outputs), "")
        if not name:
            name = fresh_name(f"{op.op_type.lower()}_done", taken)
            ops[index] = dataclasses.replace(op, outputs=(name,))
            row = opsets.lookup(op.domain, op.op_type)
            if row is not None and row.outputs and row.outputs[0].type == types.TRIGGER.id:
                kinds[name] = ValueType(types.TRIGGER)
        last.append(name)
    values = (*body.outputs, *last) or body.inputs[:1]
    attrs: dict[str, AttrValue] = {"yields": len(body.outputs)}
    end = Op(BODY_END, keys.SYSCALL_DOMAIN, values, (), attrs, ops[-1].beside() if ops else NO_FACTS)
    kinds = {name: known for name, known in kinds.items() if name in taken}
    return dataclasses.replace(body, outputs=(), ops=(*ops, end), types=kinds)


def _computes(op: Op) -> bool:
    """Whether an op does nothing but compute, or is there from the start."""
    if is_onnx(op):
        return not has_subgraph(op) or all(map(_computes, _inner(op)))
    row = opsets.lookup(op.domain, op.op_type)
    return row is not None and row.kind is OpKind.SOURCE


def slots_of(op: Op, keyed: Mapping[tuple[str, str], Function]) -> frozenset[str]:
    """The slots that an op's bodies use, at any depth."""
    return frozenset(
        name
        for key in body_keys(op.domain, op.op_type, op.attrs)
        if (body := keyed.get(key)) is not None
        for name in body.slots
    )
