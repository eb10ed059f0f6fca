"""The pipeline: two pre-passes, seventeen canonical passes, checks at the seams, and a span per pass."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line
from bb_host.compiler import verify
from bb_host.compiler.options import Options, Stats
from bb_host.diagnostics import ProgramWarning, in_order
from bb_host.errors import StageError, UnknownStage
from bb_host.program import Function, Op, Program

PRE_PASS_NAMES = ("refine_polymorphic_value_info", "validate_bootstrap_composition")
"""Run before the canonical passes: they need the bindings, and the whole table of functions."""

CANONICAL_PASS_NAMES = (
    "inline_for_partition",
    "derive_wire_deadlines",
    "validate",
    "expand_ops",
    "type_solver",
    "infer_peer_classes",
    "synthesize_wire_recvs",
    "partition_by_wire_ops",
    "resolve_slots",
    "analyze_wire_edges",
    "insert_dedup_gate_rx",
    "insert_peer_health_gate_rx",
    "insert_backoff_gate_rx",
    "insert_peer_health_gate_tx",
    "insert_backoff_gate_tx",
    "insert_async_deadlines",
    "validate_runtime_complete",
)
"""The seventeen passes, in order (compiler.txt part 3)."""

STAMP_NAME = "stamp_compilation_metadata"
"""Runs last and always."""

_log = logging.getLogger("bb_host.compiler")


class Stage(Protocol):
    """A pass: a module, or anything else with a name and a pure `run`."""

    @property
    def NAME(self) -> str: ...

    def run(self, program: Program, options: Options, stats: Stats) -> Program:
        """The rewritten program; the same object where nothing changes."""
        ...


Observer: TypeAlias = "Callable[[str, Program, Program], None]"
"""Gets a stage's name, and the program before and after it."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did: nanoseconds of it and of the seam check behind it, and its counters."""

    name: str
    duration_ns: int
    seam_ns: int
    counters: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counted = ", ".join(f"{k}: {v}" for k, v in self.counters.items())
        took = (self.duration_ns + self.seam_ns) / 1e6
        return f"compiler.{self.name} {{ {counted} }} took {took:.2f} ms"


_loaded: dict[str, Stage] = {}


def stage(name: str) -> Stage:
    """The pass of that name. UnknownStage where there is none."""
    found = _loaded.get(name)
    if found is None:
        if name not in (*PRE_PASS_NAMES, *CANONICAL_PASS_NAMES, STAMP_NAME):
            raise UnknownStage(f"no stage {name!r}", "pipeline", f"stages: {', '.join(CANONICAL_PASS_NAMES)}")
        module: Any = importlib.import_module(f"bb_host.compiler.passes.{name}")
        found = _loaded[name] = cast(Stage, module)
    return found


def stages(disabled: frozenset[str], extra: Sequence[tuple[str, Stage]]) -> tuple[Stage, ...]:
    """All stages in order: `disabled` ones left out, each extra one behind the stage that it names."""
    names = [n for n in (*PRE_PASS_NAMES, *CANONICAL_PASS_NAMES) if n not in disabled]
    found: list[Stage] = []
    behind: dict[str, list[Stage]] = {}
    for after, added in extra:
        behind.setdefault(after, []).append(added)
    for name in (*PRE_PASS_NAMES, *CANONICAL_PASS_NAMES):
        todo = [stage(name)] if name in names else []
        todo += behind.get(name, [])
        while todo:
            one = todo.pop(0)
            found.append(one)
            if name != one.NAME:
                todo = behind.get(one.NAME, []) + todo
    found.append(stage(STAMP_NAME))
    return tuple(found)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Passes make many records and no cycles: on large programs the collector would walk them in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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


def run_pipeline(
    program: Program,
    options: Options,
    disabled: frozenset[str] = frozenset(),
    extra: Sequence[tuple[str, Stage]] = (),
    observe: Observer | None = None,
) -> tuple[Program, tuple[PassReport, ...]]:
    """Runs all stages. The given program is not touched; a failing stage raises its typed error.
    The compiled program holds the warnings of recording, of the bindings and of all stages.

    `observe(name, before, after)` is called behind each stage, outside the times that are reported.
    """
    reports = []
    found: list[ProgramWarning] = [*program.warnings, *(w for b in options.bindings for w in b.warnings)]
    seam = verify.Seam(options, disabled)
    added = [one for _, one in extra]
    with _collector_paused():
        for one in stages(disabled, extra):
            stats = Stats()
            started = time.perf_counter_ns()
            after = (
                _foreign(one, program, options, stats) if one in added else one.run(program, options, stats)
            )
            ran = time.perf_counter_ns()
            seam.check(one.NAME, program, after)
            report = PassReport(one.NAME, ran - started, time.perf_counter_ns() - ran, stats.counters)
            _log.debug("%s", report)
            reports.append(report)
            found += stats.warnings
            if observe is not None:
                observe(one.NAME, program, after)
            program = after
    program = dataclasses.replace(_with_figures(program, reports), warnings=in_order(found))
    return program, tuple(reports)


def _with_figures(program: Program, reports: Sequence[PassReport]) -> Program:
    """The counters in the model's metadata, those of several passes summed; times are no part of a model."""
    figures: dict[str, int] = {}
    for report in reports:
        for name, value in report.counters.items():
            figures[name] = figures.get(name, 0) + value
    meta = {k: v for k, v in program.meta.items() if not k.startswith(keys.TELEMETRY_PREFIX)}
    meta.update((keys.TELEMETRY_PREFIX + name, str(value)) for name, value in figures.items() if value)
    return dataclasses.replace(program, meta=meta)
