"""Splits the root into one function per class of devices.

1. The ops of the root go to the partition of their class, those of its bootstrap to `<target>__bootstrap`;
   constants that several classes read go to each. Inside a partition the order stays.
2. A partition is named after its class; where the only class is `self`, after the module. A class without ops
   and inputs is none. Home comes first, the others as they appear.
3. A partition has the inputs of its class, the outputs that it yields (each output is of one partition), the
   types of its values, the slots that its ops use, and the declared backends; it says what it is
   (`partition`, `entry`).
4. Values that never meet in one execution are not joined: `CrossExecutionJoin`, `JoinAcrossSends`
   (`bb_host.passes.analysis.joins`). Nor is a gradient taken where no activations are:
   `BackwardWithoutForward`.
5. A request is sent behind the values that its answers will need (`bb_host.passes.analysis.answer_order`).
6. A gate that the host opens by itself works across executions (`bb_host.passes.analysis.host_gates`).
7. Warnings: flows that nothing starts, and deadlines that others cut (`bb_host.passes.analysis.starts`).
8. Other functions stay. A partitioned program is left alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bb_edge.ir import keys
from bb_edge.ir.class_names import SELF_CLASS
from bb_host.errors import InvalidClassName
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Function, Op, Program, Slot
from bb_host.passes.analysis import flow
from bb_host.passes.analysis.answer_order import order_answers
from bb_host.passes.analysis.gradients import check_executions
from bb_host.passes.analysis.host_gates import span_gates
from bb_host.passes.analysis.joins import Joins, check_joins
from bb_host.passes.analysis.starts import warn_of_cut_deadlines, warn_of_dead_flows
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options


def run(program: Program, options: Options, stats: Stats) -> Program:
    if flow.is_partitioned(program):
        stats.count("partition_count", sum(1 for f in program.functions if flow.is_main(f)))
        return program
    root, *others = program.functions
    home = flow.home_class(root)
    bootstrap = others.pop(0) if others and flow.is_bootstrap(others[0]) else None
    parts = _split(root, home)
    starts = {} if bootstrap is None else _split(bootstrap, home)
    order = _order(home, parts, starts)
    library = {f.key: f for f in others}
    functions: list[Function] = []
    mains: list[tuple[Function, Joins | None]] = []
    everything = {**({} if bootstrap is None else bootstrap.slots), **root.slots}
    for where in order:
        name = options.module if order == [SELF_CLASS] else where
        main = span_gates(_main(root, parts.get(where, _NOTHING), where, name, everything))
        joins = check_joins(main)
        if joins is not None:
            check_executions(main, joins)
        warn_of_dead_flows(main, library, stats)
        mains.append((main, joins))
        functions.append(main if joins is None else order_answers(main, joins))
        if bootstrap is not None and where in starts:
            functions.append(_start(bootstrap, starts[where], where, name))
    warn_of_cut_deadlines(mains, stats)
    taken = {f.key for f in others}
    for function in functions:
        if function.key in taken:
            raise InvalidClassName(
                f"{function.name!r} names a class and a module",
                f"function {function.name}",
                "rename one of them",
            )
    stats.count("partition_count", len(order))
    stats.count("wire_ops", sum(len(flow.summary(f.ops).wire) for f in functions))
    return program.with_functions((*functions, *others))


@dataclass(frozen=True, slots=True)
class _Part:
    """What one class has of a function, its values by name; `whole` where that is all of it."""

    ops: tuple[Op, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()
    whole: bool = False


_NOTHING = _Part()


def _split(function: Function, home: str) -> dict[str, _Part]:
    """The ops and inputs of each class. One class, unstamped: all of them, shared."""
    if "classes" not in flow.summary(function.ops).said and not any(
        where != home for where in function.facts.input_classes.values()
    ):
        return {home: _Part(function.ops, function.inputs, function.outputs, whole=True)}
    ops: dict[str, list[Op]] = {}
    inputs: dict[str, list[str]] = {}
    for op in function.ops:
        for where in op.facts.classes or (home,):
            ops.setdefault(where, []).append(op)
    for name in function.inputs:
        where = function.facts.input_classes.get(name) or home
        inputs.setdefault(where, []).append(name)
    classes = dict.fromkeys([*ops, *inputs])
    # A constant may be in several classes; as an output it comes from one, from home if it is there.
    left = dict.fromkeys(function.outputs)
    parts = {}
    for where in sorted(classes, key=lambda c: c != home):
        here, given = flow.chosen(ops.get(where, ()), function.ops), tuple(inputs.get(where, ()))
        values = frozenset(given).union(*[op.outputs for op in here])
        outputs = tuple(n for n in left if n in values)
        for name in outputs:
            del left[name]
        parts[where] = _Part(here, given, outputs, values)
    return {where: parts[where] for where in classes}


def _order(home: str, parts: dict[str, _Part], starts: dict[str, _Part]) -> list[str]:
    classes = dict.fromkeys([*([home] if home in parts or home in starts else []), *parts, *starts])
    return list(classes) or [home]


def _values(function: Function, part: _Part) -> dict[str, object]:
    """Ops, inputs, outputs and types of a part; of a whole function they are shared."""
    if part.whole:
        return {"ops": function.ops, "inputs": function.inputs}
    values = part.values
    return {
        "ops": part.ops,
        "inputs": part.inputs,
        "types": {n: t for n, t in function.types.items() if n in values},
        "outputs": part.outputs,
        "foreign_types": {n: t for n, t in function.foreign_types.items() if n in values},
    }


def _slots(ops: tuple[Op, ...], declared: dict[str, Slot]) -> dict[str, Slot]:
    used = flow.summary(ops).by_slot
    return {n: s for n, s in declared.items() if n in used or s.role in ("", keys.ROLE_BACKEND)}


def _main(root: Function, part: _Part, where: str, name: str, declared: dict[str, Slot]) -> Function:
    said = FunctionFacts(phase=keys.MODULE_PHASE_BODY, partition=where, entry=True)
    return dataclasses.replace(
        root,
        name=name,
        slots=_slots(part.ops, declared),
        facts=root.facts.without("home", "phase", "input_classes") | said,
        opsets=flow.used_opsets(part.ops, root.opsets),
        **_values(root, part),  # type: ignore[arg-type]
    )


def _start(bootstrap: Function, part: _Part, where: str, name: str) -> Function:
    return dataclasses.replace(
        bootstrap,
        name=name + keys.BOOTSTRAP_SUFFIX,
        slots=_slots(part.ops, bootstrap.slots),
        facts=bootstrap.facts.without("home", "input_classes") | FunctionFacts(partition=where),
        opsets=flow.used_opsets(part.ops, bootstrap.opsets),
        **_values(bootstrap, part),  # type: ignore[arg-type]
    )
