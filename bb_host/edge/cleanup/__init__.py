"""Passes over ordinary ONNX functions: smaller and faster, with no result changed beyond rounding.

Each is a pure function of its own module; `clean_up` runs them to the fixed point.
"""

from __future__ import annotations

from bb_host.edge.cleanup import batch_first, batch_norm, constants, dead_code, identities, picks, transposes
from bb_host.edge.cleanup.shapes import ShapeArgumentError, fix_shapes, parse_shapes
from bb_host.onnx_model import infer_types
from bb_host.program import Function

__all__ = ["MAX_ROUNDS", "PASSES", "ShapeArgumentError", "clean_up", "fix_shapes", "parse_shapes"]

PASSES = {
    "constants": constants.run,
    "batch_norm": batch_norm.run,
    "batch_first": batch_first.run,
    "picks": picks.run,
    "transposes": transposes.run,
    "identities": identities.run,
    "dead_code": dead_code.run,
}
"""In the order in which they run."""

MAX_ROUNDS = 10
"""Every round removes something; real models come to rest after two or three."""


def clean_up(function: Function) -> Function:
    """Runs all passes until nothing changes. A function that has nothing to clean is returned itself."""
    for _ in range(MAX_ROUNDS):
        before = function
        for run in PASSES.values():
            function = run(function)
        if function is before:
            return function
        function = infer_types(function)
    return function
