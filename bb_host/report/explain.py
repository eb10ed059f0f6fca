"""A program before and after one pass, as a unified text diff in our notation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx

from bb_edge.ir.errors import BBError
from bb_host.compiler.driver import Compiler, Source
from bb_host.errors import UnknownStage
from bb_host.ir.program import Function, Program
from bb_host.ir.text import print_program
from bb_host.passes.device.pipeline import DEVICE_PASSES, TargetProgram
from bb_host.passes.one_pass import Observer, PassReport
from bb_host.passes.pipeline import CANONICAL_PASS_NAMES, LEAVABLE_PASS_NAMES, STAMP
from bb_host.passes.tensor.cleaning import TENSOR_PASSES
from bb_host.plain import is_plain

Run: TypeAlias = "Callable[[Observer], Sequence[PassReport]]"
"""Compiles, shows each pass to the observer, and gives their reports."""

_QUIET = ("source", "scope")
"""Facts of every op that say nothing about a pass."""


_LONG_BYTES = re.compile(r"0x([0-9a-f]{16})[0-9a-f]{48,}")
_CONTEXT_LINES = 3


_BUILDING = tuple(one.name for one in (*TENSOR_PASSES, *DEVICE_PASSES))
"""Passes that run when files are built: over tensor work, and over targets."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a pass got and gave, in our notation, and what it counted: once per target, function or round.

    `refused` is what a later pass refuses the program for; there is no report then.
    """

    name: str
    runs: tuple[tuple[str, str, str], ...]  # title, before, after
    report: PassReport | None
    refused: BBError | None = None

    def diff(self) -> str:
        """The unified diffs; empty where the pass changed nothing."""
        lines: list[str] = []
        for title, before, after in self.runs:
            lines += difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"before {title}",
                f"after {title}",
                n=_CONTEXT_LINES,
                lineterm="",
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        head = f"compiler.{self.name}" if self.report is None else str(self.report)
        return "\n".join([head, self.diff() or f"{self.name} changes nothing in this program"])


def pass_name(text: str, compiler: Compiler) -> str:
    """The name of a pass, given as such or as its number among canonical ones. UnknownStage for others."""
    if text.isdigit() and 1 <= int(text) <= len(CANONICAL_PASS_NAMES):
        return CANONICAL_PASS_NAMES[int(text) - 1]
    known = (*LEAVABLE_PASS_NAMES, *(s.NAME for _, s in compiler.extra), STAMP.name, *_BUILDING)
    if text not in known:
        raise UnknownStage(f"no pass {text!r}", "explain", f"passes: {', '.join(dict.fromkeys(known))}")
    return text


def explain(module: Source, compiler: Compiler, name: str, build: Run | None = None) -> Explanation:
    """Compiles a module and keeps what stands before and after the pass `name` (or its number).

    A pass that runs when files are built is explained by `build`. Values of tensors and states are shortened,
    source lines left out. What a later pass refuses is the explanation's `refused`. Raises UnknownStage, also
    for a pass that the compiler leaves out or a program that is compiled already, and what this pass and
    those before it refuse.
    """
    name = pass_name(name, compiler)
    if name not in _BUILDING and isinstance(module, onnx.ModelProto) and is_plain(module):
        passes_of_models = ", ".join(dict.fromkeys(_BUILDING))
        raise UnknownStage(
            f"{name} is a pass over recorded programs, and this is an ordinary ONNX model",
            "explain",
            f"passes over such a model: {passes_of_models}; backend",
        )
    runs: list[tuple[str, str, str]] = []

    def observe(one: str, before: Any, after: Any) -> None:
        if one == name:
            of = _of(before)
            runs.append((f"{name} of {of}" if of else name, _text(before), _text(after)))

    report: PassReport | None = None
    refused: BBError | None = None
    try:
        if build is not None and name in _BUILDING:
            passes = build(observe)
        else:
            passes = compiler.run(module, observe).passes
        report = next((r for r in passes if r.name == name), None)
    except BBError as error:
        if not runs:
            raise
        refused = error
    if not runs:
        hint = "give a program that is not compiled yet"
        if name in _BUILDING:
            hint = "the program has no work for it, or no artifact is made (--target portable)"
        raise UnknownStage(f"{name} did not run", "explain", hint)
    return Explanation(name, tuple(runs), report, refused)


def _of(unit: Program | Function | TargetProgram) -> str:
    """What tells a pass's runs apart: the target, the function of a program's tensor work."""
    if isinstance(unit, TargetProgram):
        return unit.target
    return unit.name if isinstance(unit, Function) and unit.is_tensor_work else ""


def _text(unit: Program | Function | TargetProgram) -> str:
    if isinstance(unit, Function):
        unit = Program(unit.name, (unit,))
    program = unit.program if isinstance(unit, TargetProgram) else unit
    whole = print_program(program, _QUIET)
    return _LONG_BYTES.sub(lambda found: f"0x{found[1]}…{len(found[0]) // 2 - 1} bytes", whole)
