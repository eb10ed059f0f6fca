"""Stamps on which class of devices each op runs, and of which class each list of peers is (`placement`).

1. Every op of the root and its bootstrap gets the class of devices that it runs on (`home_class`); an op over
   constants only gets all classes that read it, comma-joined.
2. Ops that yield lists of peers say which class these are of (`peer_class`: `<output>=<class>`); selectors in
   bodies of loops and branches do so, too.
3. Every input gets its class (`input_class.<input>`).
4. In a program that speaks of home alone nothing is stamped: all of it runs there.
5. Codecs of two classes on the way of one code are refused: `BindingError` (`other_codec`).
6. Where a slot is bound per class, types are narrowed to what is bound on the class of each op, and what
   contradicts that is refused: `TypeConstraintFailed` (`solver`).
7. Needs types, and wire ops as they were recorded. `CrossClassDataflow`, `AmbiguousPlacement` where the rules
   contradict each other or say nothing. A scope that places no op is warned about. A partitioned program is
   left alone.

Rules P7 to P14 of the specification.
"""

from __future__ import annotations

from operator import is_not

from bb_edge.ir import keys
from bb_edge.ir.class_names import SELF_CLASS
from bb_host.ir.facts import FunctionFacts, OpFacts
from bb_host.ir.program import Function, Op, Program, Slot, stamping
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.bodies import slots_of
from bb_host.passes.analysis.other_codec import check_codecs
from bb_host.passes.analysis.placement import is_single_class, place
from bb_host.passes.analysis.remarks import warn_of_scopes
from bb_host.passes.analysis.solver import solved_by_class
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    stats.count("peer_classes_stamped", 0)
    if flow.is_partitioned(program):
        return program
    root = program.functions[0]
    home = flow.home_class(root)
    slots: dict[str, Slot] = {}
    heads = [root]
    if len(program.functions) > 1 and flow.is_bootstrap(program.functions[1]):
        heads.append(program.functions[1])
    for head in heads:
        slots.update(head.slots)
    keyed = {f.key: f for f in program.functions}
    coded = any(keys.ROLE_COMPRESSOR_DOMAIN in flow.summary(f.ops).domains for f in program.functions)
    alone = options.module if home == SELF_CLASS else home
    if all(is_single_class(head, slots, home) for head in heads):
        for head in heads if coded else ():
            check_codecs(head, keyed, slots, options, alone)
        return solved_by_class(program, options, alone)
    placed = tuple(_stamp(head, slots, home, keyed, stats) for head in heads)
    for head in placed if coded else ():
        check_codecs(head, keyed, slots, options, alone)
    others = tuple(_selecting(f, slots, home) for f in program.functions[len(heads) :])
    functions = (*placed, *others)
    return solved_by_class(program.with_functions(functions), options, alone)


def _selecting(body: Function, slots: dict[str, Slot], home: str) -> Function:
    """Rule 2, of the selectors in a body, which runs where its loop or branch does."""
    if keys.ROLE_PEER_SELECTOR_DOMAIN not in flow.summary(body.ops).domains:
        return body
    changed: dict[int, Op] = {}
    for index, op in enumerate(body.ops):
        slot = slots.get(op.slot)
        if op.domain == keys.ROLE_PEER_SELECTOR_DOMAIN and slot is not None:
            where = slot.peer_class or home
            saying = op.saying(OpFacts(leads={name: where for name in op.outputs if name}))
            if saying is not op:
                changed[index] = saying
    return flow.restamped(body, changed)


def _stamp(
    function: Function,
    slots: dict[str, Slot],
    home: str,
    keyed: dict[tuple[str, str], Function],
    stats: Stats,
) -> Function:
    placement = place(function, slots, home, lambda op: slots_of(op, keyed))
    warn_of_scopes(function, placement.ops, stats)
    leads = placement.peers
    stamps = {classes: stamping(OpFacts(classes=classes)) for classes in set(placement.ops)}
    ops = [stamps[classes](op) for op, classes in zip(function.ops, placement.ops, strict=True)]
    for index in placement.leading:
        op = ops[index]
        ops[index] = op.saying(OpFacts(leads={n: leads[n] for n in op.outputs if n in leads}))
    stamped = sum(map(is_not, ops, function.ops))
    stats.count("peer_classes_stamped", stamped)
    inputs = {**function.facts.input_classes, **placement.inputs}
    if not stamped and inputs == function.facts.input_classes:
        return function
    stamped_ops = flow.stamped(ops, function.ops, ("classes", "leads") if leads else ("classes",))
    return function.with_ops(stamped_ops, facts=function.facts | FunctionFacts(input_classes=inputs))
