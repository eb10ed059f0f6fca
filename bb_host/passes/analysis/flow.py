"""Queries of a function that passes share: what an op reads, who reads a value, where a wire op has what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from bb_edge.ir import keys, opsets
from bb_edge.ir.bodies import BODY_ATTRS, body_keys
from bb_edge.ir.opsets.wire import (
    OP_RECV_RESP_BATCHED,
    OP_SEND,
    OP_SEND_REQ,
    OP_SEND_RESP,
    RECV_FLAVORED,
    SEND_FLAVORED,
)
from bb_host.ir.program import Function, Op, OpList, Program, walk_ops
from bb_host.ir.queries import has_subgraph, reads
from bb_host.ir.text.names import opsets_of_kinds

WIRE_ENTRIES = RECV_FLAVORED - {OP_RECV_RESP_BATCHED}
"""Recv-flavored ops that start an execution."""

LABELS = ("source", "scope", "slot_id")
"""Facts of ops that say nothing about what they do: no digest is over it."""

_TAIL_INPUTS = {OP_SEND: 1, OP_SEND_REQ: 2, OP_SEND_RESP: 2}


def readers(
    ops: tuple[Op, ...], of: Iterable[str] | None = None, through: Container[str] = ()
) -> dict[str, list[int]]:
    """Per value the indices of the ops that read it; of these values alone where `of` names them, and of
    what ops of the domains in `through` make of them.
    """
    found: defaultdict[str, list[int]] = defaultdict(list)
    all_read = map(reads, ops) if summary(ops).has_subgraphs else [op.inputs for op in ops]
    if of is None:
        for index, names in enumerate(all_read):
            for name in names:
                found[name].append(index)
        found.pop("", None)
        return dict(found)
    of = {*of} - {""}
    for index, names in enumerate(all_read):
        if not of.isdisjoint(names):
            for name in names:
                if name in of:
                    found[name].append(index)
            if ops[index].domain in through:
                of.update(filter(None, ops[index].outputs))
    return dict(found)


def read_of(function: Function, names: Iterable[str]) -> set[str]:
    """Those of the names that ops of the function read, those of subgraphs too, or that are its outputs."""
    branches = summary(function.ops).has_subgraphs
    read = [reads(op) if branches else op.inputs for op in function.ops]
    return set(names).intersection(chain(function.outputs, *read))


def data_inputs(op: Op) -> tuple[str, ...]:
    """The inputs that carry data."""
    count = op.facts.control
    return op.inputs[: len(op.inputs) - count] if count else op.inputs


def is_wire(op: Op) -> bool:
    return op.domain == keys.WIRE_DOMAIN


def is_send_flavored(op: Op) -> bool:
    return op.domain == keys.WIRE_DOMAIN and op.op_type in SEND_FLAVORED


def is_wire_entry(op: Op) -> bool:
    return op.domain == keys.WIRE_DOMAIN and op.op_type in WIRE_ENTRIES


def summary(ops: tuple[Op, ...]) -> OpList:
    """What a list of ops holds. A function's keeps what it was asked, any other is walked each time."""
    return ops if isinstance(ops, OpList) else OpList(ops)


def spliced(old: tuple[Op, ...], pieces: Mapping[int, Sequence[Op]]) -> OpList:
    """The ops of `old`, others in the place of those at these indices.

    What `old` knows of its ops is known of the new list too, without a walk over those that stay.
    """
    before = summary(old)
    there = vars(before)
    done: list[Op] = []
    came: list[Op] = []
    wire: list[int] = []
    at = 0
    for index in sorted({*pieces, *before.wire}):
        done += old[at:index]
        at = index + 1
        piece = pieces.get(index)
        if piece is None:
            wire.append(len(done))
            done.append(old[index])
        else:
            wire += [place for place, op in enumerate(piece, len(done)) if op.domain == keys.WIRE_DOMAIN]
            done += piece
            came += piece
    done += old[at:]
    new = OpList(done)
    answers = vars(new)
    answers["wire"] = tuple(wire)
    if before.has_subgraphs or any(op.attrs and has_subgraph(op) for op in came):
        return new
    answers["has_subgraphs"] = False
    gone = [old[index] for index in pieces]
    for names, of in _SETS:
        added = of(came)
        if of(gone) <= added:  # what only ops had that are gone is known by a walk alone
            answers.update((name, there[name] | added) for name in names if name in there)
    return new


def _kinds(ops: Iterable[Op]) -> set[str | tuple[str, str]]:
    return {(op.domain, op.op_type) for op in ops}


def _said(ops: Iterable[Op]) -> set[str | tuple[str, str]]:
    return set().union(*[vars(op.facts) for op in ops])


_SETS = ((("kinds", "all_kinds"), _kinds), (("said",), _said))
"""Answers of a list without subgraphs that are those of its parts together, and how they are found."""


def chosen(ops: Iterable[Op], old: tuple[Op, ...]) -> OpList:
    """A list of some of the ops of `old`: where that has no subgraphs it has none."""
    new = OpList(ops)
    if not summary(old).has_subgraphs:
        vars(new)["has_subgraphs"] = False
    return new


_UNSTAMPED = ("kinds", "all_kinds", "domains", "has_subgraphs", "wire")
"""Answers in which facts play no part."""


def stamped(ops: Iterable[Op], old: tuple[Op, ...], added: Iterable[str]) -> OpList:
    """A list of the ops of `old`, one by one, some of which say these facts too."""
    new, there = OpList(ops), vars(summary(old))
    answers = vars(new)
    answers.update((name, there[name]) for name in _UNSTAMPED if name in there)
    if "said" in there:
        answers["said"] = there["said"].union(added)
    return new


def restamped(function: Function, changed: Mapping[int, Op]) -> Function:
    """The function with these ops, by index, which say more than theirs did."""
    if not changed:
        return function
    ops = list(function.ops)
    for index, op in changed.items():
        ops[index] = op
    added = set[str]().union(*[vars(op.facts) for op in changed.values()])
    return function.with_ops(stamped(ops, function.ops, added))


def peer_classes(ops: tuple[Op, ...]) -> dict[str, str]:
    """The classes that lists of peers lead to, as placement said of the ops that yield them."""
    found: dict[str, str] = {}
    for facts in summary(ops).records:
        found.update(facts.leads)
    return found


def wire_ops(function: Function) -> list[Op]:
    """The wire ops of a function, in order; those of branches there are none."""
    ops = function.ops
    return [ops[index] for index in summary(ops).wire]


def has_wire(function: Function) -> bool:
    """Whether a wire op stands in the function."""
    return keys.WIRE_DOMAIN in summary(function.ops).domains


def payload_inputs(op: Op) -> tuple[str, ...]:
    """The payloads of a Send-flavored op."""
    return op.inputs[: -_TAIL_INPUTS[op.op_type]]


def peers_input(op: Op) -> str:
    """The value that says where a Send-flavored op sends to: peers, or a reply's sender."""
    return op.inputs[-1] if op.op_type == OP_SEND else op.inputs[-2]


def is_recorded_form(op: Op) -> bool:
    """Whether a Send-flavored op still has its receiver's values as outputs (docs/design/artifact.md)."""
    return len(op.outputs) > 1


def received_outputs(op: Op) -> tuple[str, ...]:
    """Recorded form: the payloads as the receiver sees them, and the sender last."""
    return op.outputs[1:] if op.op_type == OP_SEND_REQ else op.outputs


def wire_id(op: Op) -> str:
    """The pairing token; empty where there is none."""
    return op.facts.wire_id


def is_bootstrap(function: Function) -> bool:
    return function.facts.phase == keys.MODULE_PHASE_BOOTSTRAP


def is_main(function: Function) -> bool:
    """Whether a function is a partition's main."""
    return function.facts.entry


def is_partitioned(program: Program) -> bool:
    return bool(program.functions) and is_main(program.functions[0])


NO_HOME = "self"
"""The class of a module that names no home."""


def home_class(function: Function) -> str:
    return function.facts.home or NO_HOME


LEAF_DOMAINS = frozenset({keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS, *opsets.FRAMEWORK_DOMAINS})
"""Domains whose ops are never calls of the program's functions."""


_BODY_KINDS = frozenset((keys.SYSCALL_DOMAIN, name) for name in BODY_ATTRS)


def may_call(ops: OpList) -> bool:
    """Whether one of the ops may call a function of the program, or run one as a body."""
    return not (ops.domains <= LEAF_DOMAINS and _BODY_KINDS.isdisjoint(ops.all_kinds))


def calls(function: Function, keyed: Mapping[tuple[str, str], Function]) -> Iterator[tuple[Op, Function]]:
    """The ops of a function (subgraphs included) that call functions of the program, or run them as bodies.

    The inputs of either are those of the function, in order.
    """
    found = summary(function.ops)
    if not may_call(found):
        return
    for op in walk_ops(function.ops) if found.has_subgraphs else function.ops:
        for key in callees(op):
            if key in keyed:
                yield op, keyed[key]


def reached(
    heads: Iterable[Function], keyed: Mapping[tuple[str, str], Function]
) -> dict[tuple[str, str], Function]:
    """These functions and all that they call, to any depth, by key; callees after callers."""
    found = {head.key: head for head in heads}
    todo = list(found.values())
    while todo:
        for _, callee in calls(todo.pop(0), keyed):
            if callee.key not in found:
                found[callee.key] = callee
                todo.append(callee)
    return found


def callees(op: Op) -> tuple[tuple[str, str], ...]:
    """The keys of the functions of the program that an op calls, if they are there, or runs as bodies."""
    if op.domain not in LEAF_DOMAINS:
        return ((op.domain, op.op_type),)
    return body_keys(op.domain, op.op_type, op.attrs)


def used_opsets(ops: tuple[Op, ...], declared: Mapping[str, int]) -> dict[str, int]:
    """The opset imports that ops need, at the versions declared for them at least; sorted by domain."""
    there = summary(ops)
    return {
        domain: declared.get(domain) or version
        if domain == keys.ONNX_DOMAIN
        else max(declared.get(domain, 0), version)
        for domain, version in opsets_of_kinds(there.all_kinds).items()
        if domain in there.domains
    }
