"""A program before and after one pass of the compiler, as a unified text diff in our notation."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_host.compiler.driver import Compiler, Source
from bb_host.compiler.pipeline import CANONICAL_PASS_NAMES, PRE_PASS_NAMES, STAMP_NAME, PassReport
from bb_host.errors import UnknownStage
from bb_host.program import Program
from bb_host.text import print_program

__all__ = ["Explanation", "explain", "pass_name"]

_QUIET = frozenset({keys.SOURCE_LINE_KEY, keys.MODULE_INSTANCE_KEY})
"""Metadata on every op that says nothing about a pass."""

_LONG_BYTES = re.compile(r"0x([0-9a-f]{16})[0-9a-f]{48,}")
_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a pass got and gave, in our notation, and what it counted.

    `refused` is what a later pass refuses the program for; there is no report then.
    """

    name: str
    before: str
    after: str
    report: PassReport | None
    refused: BBError | None = None

    def diff(self, context: int = _CONTEXT_LINES) -> str:
        """The unified diff; empty where the pass changed nothing."""
        lines = difflib.unified_diff(
            self.before.splitlines(),
            self.after.splitlines(),
            f"before {self.name}",
            f"after {self.name}",
            n=context,
            lineterm="",
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        head = f"compiler.{self.name}" if self.report is None else str(self.report)
        return "\n".join([head, self.diff() or f"{self.name} changes nothing in this program"])


def pass_name(text: str, compiler: Compiler) -> str:
    """The name of a pass, given as such or as its number from 1 to 17. UnknownStage where there is none."""
    if text.isdigit() and 1 <= int(text) <= len(CANONICAL_PASS_NAMES):
        return CANONICAL_PASS_NAMES[int(text) - 1]
    known = (*PRE_PASS_NAMES, *CANONICAL_PASS_NAMES, *(s.NAME for _, s in compiler.extra), STAMP_NAME)
    if text not in known:
        raise UnknownStage(f"no pass {text!r}", "explain", f"passes: {', '.join(known)}")
    return text


def explain(module: Source, compiler: Compiler, name: str) -> Explanation:
    """Compiles a module and keeps what stands before and after the pass `name` (or its number).

    Values of tensors and states are shortened, source lines left out. What a later pass refuses is the
    explanation's `refused`. Raises UnknownStage, also for a pass that the compiler leaves out or a program
    that is compiled already, and what this pass and those before it refuse.
    """
    name = pass_name(name, compiler)
    kept: list[tuple[Program, Program]] = []

    def observe(stage: str, before: Program, after: Program) -> None:
        if stage == name:
            kept.append((before, after))

    report: PassReport | None = None
    refused: BBError | None = None
    try:
        passes = compiler.run(module, observe).passes
        report = next((r for r in passes if r.name == name), None)
    except BBError as error:
        if not kept:
            raise
        refused = error
    if not kept:
        raise UnknownStage(f"{name} did not run", "explain", "give a program that is not compiled yet")
    before, after = kept[0]
    return Explanation(name, _text(before), _text(after), report, refused)


def _text(program: Program) -> str:
    whole = print_program(program, _QUIET.__contains__)
    return _LONG_BYTES.sub(lambda found: f"0x{found[1]}…{len(found[0]) // 2 - 1} bytes", whole)
