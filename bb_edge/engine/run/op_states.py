"""What ops keep between executions: state by target, and the rings of `Record`."""

from __future__ import annotations

from collections import deque
from typing import Any

from bb_edge.engine.plain import dump, load


class OpStates:
    """All of a node. `by_target` has for each target its ops' states, under keys that the ops choose.

    A state has `save()`, which gives a list of values that a snapshot can hold, and `restore(row)`.
    """

    def __init__(self) -> None:
        self.by_target: dict[str, dict[object, Any]] = {}
        self.rings: dict[str, deque[object]] = {}

    def save(self) -> list[Any]:
        """A row (target, key, state) for each state, as plain data."""
        return [
            [target, dump(key), dump(state.save())]
            for target, states in self.by_target.items()
            for key, state in states.items()
        ]

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave. LookupError where the artifact has no such state."""
        for target, key, row in plain:
            self.by_target[target][load(key)].restore(load(row))

    def save_rings(self) -> list[Any]:
        """A row (name, values) for each ring, oldest value first."""
        return [[name, [dump(value) for value in ring]] for name, ring in self.rings.items()]

    def restore_rings(self, plain: Any) -> None:
        """Takes what `save_rings` gave."""
        for name, values in plain:
            self.rings[name].extend(load(value) for value in values)
