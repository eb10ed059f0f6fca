"""What a timer, a queued entry or an execution calls later, by name.

A closure cannot be written down. So whatever the engine keeps for later is a registered callable and plain
arguments: a snapshot holds the name and the arguments, and the node that is restored looks the name up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bb_edge.engine.plain import Shift, dump, load
from bb_edge.ir.errors import BBError

Callback = Callable[..., object]
Args = tuple[Any, ...]


class Written(NamedTuple):
    """How the arguments of a callable are written down: as plain data, and back on another clock."""

    dump: Callable[[Args], Any]
    load: Callable[[Any, Shift], Args]


VALUES = Written(dump, lambda plain, _shift: load(plain))
"""For arguments that are values."""


class UnknownCallbackError(BBError):
    """A snapshot names something that this node has not got."""


class Callbacks:
    """The callables of one node; names are fixed at install and equal on every node of the same artifact."""

    __slots__ = ("_by_name", "_names", "_written")

    def __init__(self) -> None:
        self._by_name: dict[str, Callback] = {}
        self._names: dict[Callback | None, str] = {}
        self._written: dict[str, Written] = {}

    def register(self, name: str, callback: Callback, written: Written = VALUES) -> None:
        """Gives a callable its name, and tells how its arguments are written. Each name is given once."""
        assert name not in self._by_name, name
        self._by_name[name] = callback
        self._written[name] = written
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

    def dump(self, name: str | None, args: Args) -> Any:
        """Plain data for the arguments of the callable of that name."""
        return self._written.get(name or "", VALUES).dump(args)

    def load(self, name: str, plain: Any, shift: Shift) -> Args:
        """The arguments that `dump` wrote; absolute times among them are moved by `shift`."""
        return self._written.get(name, VALUES).load(plain, shift)
