"""Tracers: every op runs through what an observer makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bb_edge.engine.run.bound import BoundGraph, BoundOp

Wrap = Callable[[BoundOp], Callable[..., Any]]
"""Gives what runs instead of an op's `run`."""


class OpObserver:
    """Whoever observes the ops of a node; nobody, until `observe` is called."""

    def __init__(self) -> None:
        self._wrap: Wrap | None = None

    def observe(self, wrap: Wrap, graphs: Sequence[BoundGraph]) -> None:
        """Has every op of these graphs run through `wrap(op)`, for good."""
        self._wrap = wrap
        for graph in graphs:
            for op in graph.ops:
                self.rebind(op, op.run)

    def rebind(self, op: BoundOp, run: Callable[..., Any]) -> None:
        """Gives an op this implementation, seen by whoever observes ops."""
        op.run = run
        if self._wrap is not None:
            op.run = self._wrap(op)
            op.plain = None
