"""Checks the bootstraps of a program and how they call each other (a pre-pass).

1. A call of `<name>__bootstrap` names a function that the program has, in its bootstrap phase:
   `BootstrapCompositionGap` otherwise.
2. Bootstraps do not call each other in a circle: `BootstrapCompositionCycle`.
3. No wire op stands in a bootstrap or in anything that it calls: `WireInBootstrap`.
4. No entry (`Pulse`, `Repeat`, `Interval`, …) stands there: `EntryInBootstrap`. A bootstrap is one execution.
5. Changes nothing.
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets import OpKind, lookup
from bb_host.errors import (
    BootstrapCompositionCycle,
    BootstrapCompositionGap,
    EntryInBootstrap,
    WireInBootstrap,
)
from bb_host.ir.program import Function, Program, walk_ops
from bb_host.passes.analysis import flow
from bb_host.passes.one_pass import Stats
from bb_host.passes.options import Options

Key = tuple[str, str]


def run(program: Program, options: Options, stats: Stats) -> Program:
    bootstraps = [f for f in program.functions if flow.is_bootstrap(f)]
    stats.count("bootstraps", len(bootstraps))
    if not bootstraps:
        return program
    keyed = {f.key: f for f in program.functions}
    done: set[Key] = set()
    for function in bootstraps:
        _walk(function, keyed, [], done)
    return program


def _walk(function: Function, keyed: dict[Key, Function], path: list[Key], done: set[Key]) -> None:
    """Depth first over calls; `path` holds the callers."""
    if function.key in path:
        circle = " → ".join([*(name for _, name in path[path.index(function.key) :]), function.name])
        raise BootstrapCompositionCycle(
            f"bootstraps call each other in a circle: {circle}", function.name, "let one of them go"
        )
    if function.key in done:
        return
    path.append(function.key)
    for op in walk_ops(function.ops):
        if flow.is_wire(op):
            raise WireInBootstrap(
                f"no wire op may run in a bootstrap ({function.name})",
                hint="send it in body, when the program runs",
                op=op,
            )
        row = lookup(op.domain, op.op_type)
        if row is not None and row.kind is OpKind.ENTRY:
            raise EntryInBootstrap(
                f"{op.op_type} never fires in a bootstrap ({function.name}), which is one execution",
                hint="leave after= out: ops over inputs and constants of a bootstrap run by themselves; "
                "what goes on for longer belongs into body",
                op=op,
            )
        if op.domain in flow.LEAF_DOMAINS:
            continue
        callee = keyed.get((op.domain, op.op_type))
        if op.op_type.endswith(keys.BOOTSTRAP_SUFFIX) and (callee is None or not flow.is_bootstrap(callee)):
            raise BootstrapCompositionGap(
                f"{function.name} calls {op.op_type!r}, which the program does not have",
                hint="record the module that it belongs to",
                op=op,
            )
        if callee is not None:
            _walk(callee, keyed, path, done)
    path.pop()
    done.add(function.key)
