"""What a timer, a queued entry or an execution calls later, by name.

A closure cannot be written down. So whatever the engine keeps for later is a registered callable and plain
arguments: a snapshot holds the name and the arguments, and the node that is restored looks the name up.
"""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.ir.errors import BBError

Action = Callable[..., object]


class UnknownActionError(BBError):
    """A snapshot names something that this node has not got."""


class Actions:
    """The callables of one node; names are fixed at install and equal on every node of the same artifact."""

    __slots__ = ("_by_name", "_names")

    def __init__(self) -> None:
        self._by_name: dict[str, Action] = {}
        self._names: dict[Action | None, str] = {}

    def register(self, name: str, action: Action) -> None:
        """Gives a callable its name. A name stands once; it is the engine's own choice."""
        assert name not in self._by_name, name
        self._by_name[name] = action
        self._names[action] = name

    def name_of(self, action: Action | None) -> str | None:
        """The name of a callable; None for one that no snapshot can hold, and for none."""
        return self._names.get(action)

    def get(self, name: str) -> Action:
        """The callable of that name. UnknownActionError."""
        action = self._by_name.get(name)
        if action is None:
            raise UnknownActionError(f"nothing here is called {name!r}", "snapshot")
        return action
