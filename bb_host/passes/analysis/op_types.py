"""How the types of one op are solved: by its relation, by ONNX's inference, by the function it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from bb_edge.ir import keys, opsets, types
from bb_edge.ir.opsets import OpDef, Opset, Ready
from bb_edge.ir.types import ValueType
from bb_host.errors import MalformedOp
from bb_host.ir.construction import class_of
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import has_subgraph
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.alike_types import alike
from bb_host.passes.analysis.backends import runs_on_kernels
from bb_host.passes.analysis.bound_types import Promises, like_output, note_forward, ports_of, promises, unify
from bb_host.passes.analysis.onnx_inference import infer
from bb_host.passes.analysis.type_relations import RELATIONS, Relation, axes_of, fit_op, relation_of
from bb_host.passes.analysis.type_terms import Terms, conflict
from bb_host.passes.options import Options

_NO_LIMIT = 1 << 30

_MOST_REMEMBERED = 4096
"""Combinations of types per kind of op."""

_Found: TypeAlias = "tuple[tuple[tuple[int, ValueType], ...], bool, object]"
"""By the place of a value of an op what it is narrowed to; whether an input is; what the key is about."""
_NOTHING_MORE: _Found = ((), False, None)

Solve = Callable[[Op, Terms], None]
"""Puts what the types of an op say of each other. TypeConstraintFailed where they contradict."""
Key = tuple[str, str]


class OpRules:
    """How each kind of op of one program is solved."""

    def __init__(self, program: Program, options: Options) -> None:
        self._own: dict[str, Opset] = {}
        self._kernels = runs_on_kernels(program, options)
        self.promised = promises(program, options)
        slots = [slot for function in program.functions for slot in function.slots.values()]
        declared = {slot.concrete_type for slot in slots if slot.role == keys.ROLE_PROTOCOL}
        bound = [binding.component for binding in options.bindings]
        for component in (*map(class_of, sorted(filter(None, declared))), *bound):
            declare = getattr(component, "atomic_opset", None)
            if callable(declare):
                table = declare()
                self._own[table.domain] = table

    def plan(self, op: Op, version: int, functions: Mapping[Key, Function]) -> Solve:
        """How ops of this kind are solved; `version` is ONNX's, `functions` are those that may be called."""
        return self.plan_of(op, version, functions, self.promised)

    def plan_of(
        self, op: Op, version: int, functions: Mapping[Key, Function], promised: Mapping[str, Promises]
    ) -> Solve:
        """`plan`, where the slots promise this."""
        domain = opsets.normalize_domain(op.domain)
        row = opsets.lookup(domain, op.op_type)
        if row is None and domain in self._own:
            row = self._own[domain].ops.get(op.op_type)
        if row is not None:
            promised = promised if domain in ROLE_DOMAINS else {}
            solve = _by_row(row, relation_of(row), version, self._kernels, promised)
            pair = _PAIR.get(row.name) if promised and domain == keys.ROLE_MODEL_DOMAIN else None
            if _takes_what_others_are_like(domain, promised):
                solve = _in_pairs(solve, alike(promised))
            return solve if pair is None else _in_pairs(solve, pair)
        if domain == keys.ONNX_DOMAIN:
            return _inferring(version, self._kernels)
        if op.domain not in flow.LEAF_DOMAINS and (op.domain, op.op_type) in functions:
            return _call
        return _nothing


_PURE = frozenset(
    name for name in RELATIONS if name not in {"constant", "subgraph", "send", "recv", "loop", "if"}
)
"""Relations that only their op's types, attributes and constants decide."""


ROLE_DOMAINS = frozenset(keys.ROLE_DOMAINS)


_PAIR = {
    **dict.fromkeys(("Forward", "ForwardKeyed"), note_forward),
    **dict.fromkeys(("Backward", "BackwardKeyed", "BackwardInput"), like_output),
}
"""What a backward pass takes is what a forward pass of the same model yields."""


def _takes_what_others_are_like(domain: str, promised: Mapping[str, Promises]) -> bool:
    """Whether an op of the domain takes what the outputs of a slot have the shape of."""
    takers = {promise.like.partition(".")[0] for own in promised.values() for promise in own.values()} - {""}
    return any(opsets.lookup(domain, taker) is not None for taker in takers)


def _in_pairs(solve: Solve, pair: Solve) -> Solve:
    def solve_pair(op: Op, terms: Terms) -> None:
        solve(op, terms)
        pair(op, terms)

    return solve_pair


def _inferring(version: int, kernels: bool) -> Solve:
    def solve(op: Op, terms: Terms) -> None:
        infer(op, terms, version)
        fit_op(op, terms, version, kernels)

    remembered = _remembering(solve, by_slot=False)

    def solve_any(op: Op, terms: Terms) -> None:
        if op.attrs and has_subgraph(op):  # which reads more than its inputs
            solve(op, terms)
        else:
            remembered(op, terms)

    return solve_any


def _by_row(
    row: OpDef, relation: Relation, version: int, kernels: bool, promised: Mapping[str, Promises]
) -> Solve:
    if row.domain == keys.WIRE_DOMAIN:  # their forms before and after `synthesize_wire_recvs` differ

        def solve_wire(op: Op, terms: Terms) -> None:
            relation(op, row, terms)

        return solve_wire
    fewest = row.min_inputs
    most = _NO_LIMIT if row.max_inputs is None else row.max_inputs
    needed = bool(row.relation and row.outputs) and row.outputs[0].ready is not Ready.OPTIONAL
    yields = int(needed)
    is_onnx = row.domain == keys.ONNX_DOMAIN

    def solve(op: Op, terms: Terms) -> None:
        count = len(op.inputs)
        if count < fewest or (count > most and len(flow.data_inputs(op)) > most) or len(op.outputs) < yields:
            raise _misfit(op, row)
        if is_onnx:
            axes_of(op, terms)
            relation(op, row, terms)
            fit_op(op, terms, version, kernels)
            return
        relation(op, row, terms)
        if promised:
            slot = op.slot
            if slot in promised:
                unify(op, ports_of(op, promised[slot]), terms)

    return _remembering(solve, bool(promised)) if row.relation in _PURE else solve


def _remembering(solve: Solve, by_slot: bool) -> Solve:
    """`solve`, asked once for all ops of one kind whose types, constants, attributes (and slot) are the same.

    Types are told apart by identity, which is sound while they are kept; those of the keys are. Most values
    of a type share one record of it; what was found for that one serves those with others too. A constant's
    type has a record of its own (`Terms.hold`), and so tells the constant as well.
    An op that reads one value twice, and whose inputs are narrowed, is asked every time: what narrows one of
    them narrows the other.
    """
    seen: dict[tuple[object, ...], _Found] = {}

    def remembered(op: Op, terms: Terms) -> None:
        inputs, outputs, facts = op.inputs, op.outputs, op.facts
        known = terms.types
        asked: list[object] = [len(inputs)]
        for name in inputs:
            asked.append(id(known.get(name)) if name else "")
        for name in outputs:
            asked.append(id(known.get(name)) if name else "")
        if by_slot:
            asked.append(facts.slot)
        if facts.control:
            asked.append(("control", facts.control))
        if op.attrs:
            for name, value in op.attrs.items():
                if isinstance(value, list):  # of whole numbers or of fractions, which may be equal
                    asked += (name, *map(type, value), tuple(value))
                else:
                    asked += (name, type(value), value)
        key = tuple(asked)
        try:
            found = seen.get(key)
        except TypeError:  # an attribute that is not a plain value
            solve(op, terms)
            return
        if found is None:
            found = asked_by_type(op, terms, key)
        narrowings, by_inputs, _ = found
        if not narrowings:
            return
        names = inputs + outputs
        if by_inputs and len(set(names)) != len(names):
            solve(op, terms)
            return
        for index, new in narrowings:
            known[names[index]] = new
            terms.touched.append(names[index])

    def asked_by_type(op: Op, terms: Terms, key: tuple[object, ...]) -> _Found:
        """What is to be put still: what was found for equal types in other records, nothing once solved."""
        known, names = terms.types, op.inputs + op.outputs
        kept = [*map(known.get, names), *map(terms.constants.get, op.inputs)]
        of_types = (key[0], *map(terms.told_apart, names), *key[1 + len(names) :])
        found = seen.get(of_types)
        if found is not None:
            narrowings, by_inputs, others = found
        else:
            solve(op, terms)
            if len(set(names)) != len(names):
                return _NOTHING_MORE
            after = enumerate(map(known.get, names))
            narrowings = tuple((i, new) for i, new in after if new is not None and new is not kept[i])
            by_inputs, others = any(i < len(op.inputs) for i, _ in narrowings), None
        if len(seen) < _MOST_REMEMBERED:
            seen[key] = seen[of_types] = narrowings, by_inputs, (kept, others)
        return _NOTHING_MORE if found is None else found

    return remembered


def _misfit(op: Op, row: OpDef) -> MalformedOp:
    takes = f"{row.min_inputs}" + (" or more" if row.max_inputs is None else f" to {row.max_inputs}")
    return MalformedOp(
        f"it has {len(flow.data_inputs(op))} inputs and {len(op.outputs)} outputs",
        hint=f"it takes {takes} inputs and yields {len(row.outputs)} outputs",
        op=op,
    )


def _nothing(op: Op, terms: Terms) -> None:
    """An op of an opset that this host does not have: its author declared the types, or nothing does."""


def _call(op: Op, terms: Terms) -> None:
    callee = terms.functions[op.domain, op.op_type]
    if len(op.inputs) > len(callee.inputs) or len(op.outputs) > len(callee.outputs):
        raise conflict(
            op,
            f"{callee.name} has {len(callee.inputs)} inputs and {len(callee.outputs)} outputs",
            "call it so",
        )
    for formal, actual in zip(callee.inputs, op.inputs, strict=False):
        wanted = callee.types.get(formal)
        if actual and wanted is not None:
            terms.element(actual, wanted.node, op)
    for formal, actual in zip(callee.outputs, op.outputs, strict=False):
        yielded = callee.types.get(formal)
        if actual and yielded is not None and yielded.node is not types.ANY:
            shape = yielded.shape
            if shape is not None and any(isinstance(d, str) for d in shape):
                shape = tuple(d if isinstance(d, int) else None for d in shape)
            terms.put(actual, ValueType(yielded.node, shape), op)
