"""The passes that make a recorded program a compiled one, in order, with what each needs and gives.

Pre-passes, then the canonical passes (docs/spec-coverage.md, "Passes"), then the stamp. The passes that make
a target's bytes of the result are listed in `bb_host/passes/device/pipeline.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line
from bb_host.diagnostics import ProgramWarning, in_order
from bb_host.errors import StageError
from bb_host.ir.facts import ProgramFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.passes import verify
from bb_host.passes.analysis import rx_chain, tx_chain
from bb_host.passes.one_pass import Observer, Pass, PassReport, Stats
from bb_host.passes.one_pass import Promise as P
from bb_host.passes.options import Options
from bb_host.passes.program import (
    analyze_wire_edges,
    derive_wire_deadlines,
    expand_ops,
    gates,
    infer_peer_classes,
    inline_for_partition,
    insert_async_deadlines,
    partition_by_wire_ops,
    refine_polymorphic_value_info,
    resolve_slots,
    stamp_compilation_metadata,
    synthesize_wire_recvs,
    type_solver,
    validate,
    validate_bootstrap_composition,
    validate_runtime_complete,
)
from bb_host.passes.runner import collector_paused, run_passes

ProgramPass: TypeAlias = "Pass[Program, Options]"


PRE_PASSES: tuple[ProgramPass, ...] = (
    Pass("refine_polymorphic_value_info", refine_polymorphic_value_info.run),
    Pass("validate_bootstrap_composition", validate_bootstrap_composition.run),
)
"""They need the bindings, and the whole table of functions."""

CANONICAL_PASSES: tuple[ProgramPass, ...] = (
    Pass("inline_for_partition", inline_for_partition.run, gives=(P.INLINED,)),
    Pass("derive_wire_deadlines", derive_wire_deadlines.run),
    Pass("validate", validate.run, gives=(P.WELL_FORMED,)),
    Pass("expand_ops", expand_ops.run, gives=(P.EXPANDED,)),
    Pass("type_solver", type_solver.run, needs=(P.WELL_FORMED,), gives=(P.TYPED,)),
    Pass("infer_peer_classes", infer_peer_classes.run, needs=(P.TYPED,), gives=(P.PLACED,)),
    Pass(
        "synthesize_wire_recvs",
        synthesize_wire_recvs.run,
        needs=(P.PLACED,),
        gives=(P.PAIRED,),
    ),
    Pass(
        "partition_by_wire_ops",
        partition_by_wire_ops.run,
        needs=(P.PLACED, P.PAIRED),
        gives=(P.PARTITIONED,),
    ),
    Pass("resolve_slots", resolve_slots.run, needs=(P.PARTITIONED,), gives=(P.RESOLVED,)),
    Pass("analyze_wire_edges", analyze_wire_edges.run, needs=(P.PARTITIONED, P.TYPED)),
    Pass("insert_dedup_gate_rx", gates.behind_entries(rx_chain.DEDUP), needs=(P.PARTITIONED,)),
    Pass("insert_peer_health_gate_rx", gates.behind_entries(rx_chain.PEER_HEALTH), needs=(P.PARTITIONED,)),
    Pass("insert_backoff_gate_rx", gates.behind_entries(rx_chain.BACKOFF), needs=(P.PARTITIONED,)),
    Pass("insert_peer_health_gate_tx", gates.before_sends(tx_chain.PEER_HEALTH), needs=(P.PARTITIONED,)),
    Pass(
        "insert_backoff_gate_tx",
        gates.before_sends(tx_chain.BACKOFF),
        needs=(P.PARTITIONED,),
        gives=(P.GATED,),
    ),
    Pass("insert_async_deadlines", insert_async_deadlines.run, needs=(P.PARTITIONED,)),
    Pass(
        "validate_runtime_complete",
        validate_runtime_complete.run,
        needs=(P.RESOLVED, P.GATED),
    ),
)

STAMP: ProgramPass = Pass(
    "stamp_compilation_metadata",
    stamp_compilation_metadata.run,
    needs=(P.PARTITIONED, P.RESOLVED),
    gives=(P.COMPILED,),
)
"""Runs last and always."""

CANONICAL_PASS_NAMES = tuple(one.name for one in CANONICAL_PASSES)
LEAVABLE_PASS_NAMES = tuple(one.name for one in (*PRE_PASSES, *CANONICAL_PASSES))
"""Those that a compiler may leave out."""


class Stage(Protocol):
    """A pass of the author's own: anything with a name and a pure `run`."""

    @property
    def NAME(self) -> str: ...

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        """The rewritten program; the same object where nothing changes."""
        ...


def passes_with(disabled: frozenset[str], extra: Sequence[tuple[str, Stage]]) -> tuple[ProgramPass, ...]:
    """All passes in order: `disabled` ones left out, each extra stage behind the one that it names."""
    behind: dict[str, list[ProgramPass]] = {}
    for after, added in extra:
        own: ProgramPass = Pass(added.NAME, functools.partial(_foreign, added))
        behind.setdefault(after, []).append(own)

    def followed(name: str) -> Iterable[ProgramPass]:
        for own in behind.get(name, ()):
            yield own
            yield from followed(own.name)

    found: list[ProgramPass] = []
    for one in (*PRE_PASSES, *CANONICAL_PASSES):
        if one.name not in disabled:
            found.append(one)
        found += followed(one.name)
    return (*found, STAMP)


def _foreign(one: Stage, program: Program, options: Options, stats: Stats) -> Program:
    """Runs a stage from outside. StageError, naming it and its line, for whatever it does wrong."""
    try:
        found: object = one.run(program, options, stats)
    except BBError:
        raise
    except Exception as error:
        raise StageError(
            f"stage {one.NAME!r} raises {type(error).__name__}: {error}",
            os.path.basename(fault_line(error)) or _place(one),
            "mend it, or refuse a program with an error of bb_host.errors",
        ) from error
    if not isinstance(found, Program):
        raise StageError(
            f"stage {one.NAME!r} returns {'nothing' if found is None else repr(found)}",
            _place(one),
            "return the program, the same object where nothing changes",
        )
    wrong = _malformed(found, stats)
    if wrong:
        raise StageError(
            f"stage {one.NAME!r} {wrong}",
            _place(one),
            "change a program with dataclasses.replace, and keep the kinds of its fields",
        )
    return found


def _place(one: Stage) -> str:
    """`file.py:12` of a stage's `run`, and its name."""
    code = getattr(getattr(one.run, "__func__", one.run), "__code__", None)
    line = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}, " if code is not None else ""
    return f"{line}with_stage({one.NAME!r})"


def _malformed(program: Program, stats: Stats) -> str:
    """What a stage from outside gives that is of no program; "" where all is well."""
    functions: object = program.functions
    if not isinstance(functions, tuple | list) or not functions:
        return f"returns a program whose functions are {functions!r:.60}"
    for function in functions:
        if not isinstance(function, Function):
            return f"returns a program with {function!r:.60} among its functions"
        ops: object = function.ops
        if not isinstance(ops, tuple | list):
            return f"returns function {function.name!r} whose ops are {ops!r:.60}"
        for op in ops:
            if not isinstance(op, Op):
                return f"returns function {function.name!r} with {op!r:.60} among its ops"
    for warning in stats.warnings:
        place: object = warning.where
        if not isinstance(place, str):
            return f"warns at {place!r:.60}: where is a text (errors.source(op) gives it)"
    return ""


@collector_paused()
def run_pipeline(
    program: Program,
    options: Options,
    disabled: frozenset[str] = frozenset(),
    extra: Sequence[tuple[str, Stage]] = (),
    observe: Observer | None = None,
) -> tuple[Program, tuple[PassReport, ...]]:
    """Runs all passes. The given program is not touched; a failing pass raises its typed error.
    The compiled program holds the warnings of recording, of the bindings and of all passes.

    `observe(name, before, after)` is called behind each pass, outside the times that are reported.
    """
    seam = verify.Seam(options.strict_types, unchecked="validate" not in disabled)
    compiled, reports, found = run_passes(passes_with(disabled, extra), program, options, seam.check, observe)
    warnings: list[ProgramWarning] = [*program.warnings, *(w for b in options.bindings for w in b.warnings)]
    warnings += found
    facts = compiled.facts.without("telemetry") | ProgramFacts(telemetry=_figures(reports))
    return dataclasses.replace(compiled, facts=facts, warnings=in_order(warnings)), reports


def _figures(reports: Sequence[PassReport]) -> dict[str, int]:
    """The counters that a model's metadata has, those of several passes summed; times are not part of it."""
    figures: dict[str, int] = {}
    for report in reports:
        for name, value in report.counters.items():
            figures[name] = figures.get(name, 0) + value
    return {name: value for name, value in figures.items() if value}
