"""Runs passes in order; times and checks each, and shows it to an observer."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from bb_host.diagnostics import ProgramWarning
from bb_host.passes.one_pass import O, Observer, Pass, PassReport, Stats, U

Check: TypeAlias = "Callable[[Pass[Any, Any], Any, Any], None]"
"""Raises SeamError, naming the pass, where what it made of a unit (before, after) is malformed."""

_log = logging.getLogger("bb_host.compiler")


def run_passes(
    passes: Sequence[Pass[U, O]], unit: U, options: O, check: Check, observe: Observer | None = None
) -> tuple[U, tuple[PassReport, ...], tuple[ProgramWarning, ...]]:
    """What the passes make of a unit, a report of each, and what they warn about.

    The given unit is not touched; a failing pass raises its typed error. `observe(name, before, after)` is
    called behind each pass, outside the times that are reported.
    """
    reports: list[PassReport] = []
    warnings: list[ProgramWarning] = []
    with collector_paused():
        for one in passes:
            stats = Stats()
            started = time.perf_counter_ns()
            after = one.run(unit, options, stats)
            ran = time.perf_counter_ns()
            check(one, unit, after)
            report = PassReport(one.name, ran - started, time.perf_counter_ns() - ran, stats.counters)
            _log.debug("%s", report)
            reports.append(report)
            warnings += stats.warnings
            if observe is not None:
                observe(one.name, unit, after)
            unit = after
    return unit, tuple(reports), tuple(warnings)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Passes make many records and no cycles: on large programs the collector would walk them in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
