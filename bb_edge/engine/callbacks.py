"""What a timer, a queued entry or an execution calls later, by name.

A closure cannot be written down. So whatever the engine keeps for later is a registered callable and plain
arguments: a snapshot holds the name and the arguments, and the node that is restored looks the name up.
"""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.ir.errors import BBError

Callback = Callable[..., object]


class UnknownCallbackError(BBError):
    """A snapshot names something that this node has not got."""


class Callbacks:
    """The callables of one node; names are fixed at install and equal on every node of the same artifact."""

    __slots__ = ("_by_name", "_names")

    def __init__(self) -> None:
        self._by_name: dict[str, Callback] = {}
        self._names: dict[Callback | None, str] = {}

    def register(self, name: str, callback: Callback) -> None:
        """Gives a callable its name. Each name is given once."""
        assert name not in self._by_name, name
        self._by_name[name] = callback
        self._names[callback] = name

    def name_of(self, callback: Callback | None) -> str | None:
        """The name of a callable; None for one that no snapshot can hold, and for none."""
        return self._names.get(callback)

    def get(self, name: str) -> Callback:
        """The callable of that name. UnknownCallbackError."""
        callback = self._by_name.get(name)
        if callback is None:
            raise UnknownCallbackError(f"nothing here is called {name!r}", "snapshot")
        return callback
