"""Removes ops that no output needs. Bodies count as readers of what they capture."""

from __future__ import annotations

import dataclasses

from bb_host.edge.cleanup.values import reads
from bb_host.program import Function

__all__ = ["run"]


def run(function: Function) -> Function:
    """The function without its dead ops, and without types of values that are gone."""
    needed = set(function.outputs)
    kept = []
    for op in reversed(function.ops):
        if any(name in needed for name in op.outputs):
            needed.update(reads(op))
            kept.append(op)
    if len(kept) == len(function.ops):
        return function
    alive = {*function.inputs, *(name for op in kept for name in op.outputs)}
    return dataclasses.replace(
        function,
        ops=tuple(reversed(kept)),
        types={name: value for name, value in function.types.items() if name in alive},
    )
