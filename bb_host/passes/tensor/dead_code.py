"""Removes ops that no output needs. Bodies count as readers of what they capture."""

from __future__ import annotations

import dataclasses

from bb_host.ir.program import Function
from bb_host.ir.queries import live


def run(function: Function) -> Function:
    """The function without its dead ops, and without types of values that are gone."""
    kept = live(function.ops, function.outputs)
    if len(kept) == len(function.ops):
        return function
    alive = {*function.inputs, *(name for op in kept for name in op.outputs)}
    return dataclasses.replace(
        function,
        ops=kept,
        types={name: value for name, value in function.types.items() if name in alive},
    )
