"""All clean-up passes, run to the fixed point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bb_host.ir.program import Function
from bb_host.onnx_io.model import infer_types
from bb_host.passes.one_pass import Observer, Pass, PassReport, Stats
from bb_host.passes.runner import run_passes
from bb_host.passes.tensor import batch_first, batch_norm, constants, dead_code, identities, picks, transposes
from bb_host.passes.verify import check_functions


def _pass(name: str, rewritten: Callable[[Function], Function]) -> Pass[Function, None]:
    """A pass without options, which counts nothing."""

    def run(function: Function, options: None, stats: Stats) -> Function:
        return rewritten(function)

    return Pass(name, run)


TENSOR_PASSES = (
    _pass("constants", constants.run),
    _pass("batch_norm", batch_norm.run),
    _pass("batch_first", batch_first.run),
    _pass("picks", picks.run),
    _pass("transposes", transposes.run),
    _pass("identities", identities.run),
    _pass("dead_code", dead_code.run),
)
"""In the order in which they run."""

MAX_ROUNDS = 10
"""Every round removes something; real models come to rest after two or three."""


def clean_up(
    function: Function, observe: Observer | None = None, reports: list[PassReport] | None = None
) -> Function:
    """Runs all passes until nothing changes. A function that has nothing to clean is returned itself.

    What each pass of each round did is added to `reports`.
    """
    for _ in range(MAX_ROUNDS):
        before = function
        function, found, _ = run_passes(TENSOR_PASSES, function, None, _check, observe)
        if reports is not None:
            reports += found
        if function is before:
            return function
        function = infer_types(function)
    return function


def _check(one: Pass[Any, Any], before: Function, after: Function) -> None:
    if after is not before:
        check_functions(one.name, f"model {after.name}", (before,), (after,))
