"""A pass: a named, pure function from a unit to a unit of the same kind; what it needs, and what it gives.

A unit is a `Program`, a `Function` of ONNX ops, or a `TargetProgram` on its way to bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from bb_host.diagnostics import ProgramWarning

U = TypeVar("U")
O = TypeVar("O")  # noqa: E741 (what a list's passes get as options)


class Promise(enum.Enum):
    """What holds of a unit from the pass on that gives it."""

    INLINED = "modules that send stand in the root"
    WELL_FORMED = "every value is yielded once, before it is read, and every call has its function"
    EXPANDED = "every op is one that a device has"
    TYPED = "every value has a type"
    PLACED = "every op says on which class of devices it runs"
    PAIRED = "the halves of every wire id fit each other"
    PARTITIONED = "there is a function per class of devices"
    RESOLVED = "every slot is a component with its state"
    GATED = "gates stand around every wire op"
    COMPILED = "the passport is written: module, targets, bindings"
    COLLAPSED = "runs of ONNX ops are calls of backend functions"
    STRIPPED = "one target alone, under short names"
    PLANNED = "memory is planned"
    WRITTEN = "it has its bytes"


class Stats:
    """Counters of one pass, and what it warns about."""

    __slots__ = ("counters", "warnings")

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.warnings: list[ProgramWarning] = []

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a counter; `by` may be 0, so that it is reported."""
        self.counters[name] = self.counters.get(name, 0) + by

    def warn(self, code: str, what: str, where: str = "", hint: str = "") -> None:
        """Hands in a warning; `where` is the author's line (`errors.source(op)`)."""
        self.warnings.append(ProgramWarning(code, what, where, hint))


@dataclass(frozen=True, slots=True, eq=False)
class Pass(Generic[U, O]):
    """`run(unit, options, stats)` gives the rewritten unit, the same object where nothing changes.

    `needs` are promises of passes before it, `gives` its own: the checker behind each pass holds the unit
    against all that were given so far.
    """

    name: str
    run: Callable[[U, O, Stats], U]
    needs: tuple[Promise, ...] = ()
    gives: tuple[Promise, ...] = ()


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did: nanoseconds of it and of the check behind it, and its counters."""

    name: str
    duration_ns: int
    seam_ns: int
    counters: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counted = ", ".join(f"{k}: {v}" for k, v in self.counters.items())
        took = (self.duration_ns + self.seam_ns) / 1e6
        return f"compiler.{self.name} {{ {counted} }} took {took:.2f} ms"


Observer: TypeAlias = "Callable[[str, Any, Any], None]"
"""Gets a pass's name, and the unit before and after it."""


def summed(reports: Sequence[PassReport]) -> tuple[PassReport, ...]:
    """Reports of passes that ran several times (per target, per round) as one each, in order of the first."""
    found: dict[str, PassReport] = {}
    for report in reports:
        so_far = found.get(report.name)
        if so_far is not None:
            counters = {**so_far.counters}
            for name, count in report.counters.items():
                counters[name] = counters.get(name, 0) + count
            duration_ns = so_far.duration_ns + report.duration_ns
            report = PassReport(report.name, duration_ns, so_far.seam_ns + report.seam_ns, counters)
        found[report.name] = report
    return tuple(found.values())
