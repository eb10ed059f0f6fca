"""What is called later, by name: by a timer, a queued entry or the end of an execution.

A closure cannot be written down. So whatever the engine keeps for later is a registered callable and plain
arguments: a snapshot holds the name and the arguments, and the node that is restored looks the name up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class Callbacks:
    """The callables of one node; names are fixed at install and equal on every node of the same artifact."""

    _by_name: dict[str, Callback] = field(default_factory=dict)
    _names: dict[Callback | None, str] = field(default_factory=dict)
    _written: dict[str, Written] = field(default_factory=dict)

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


class Due(NamedTuple):
    """`callback(now_ns, *args)`."""

    callback: Callable[..., object]
    args: tuple[Any, ...]


class Timer(NamedTuple):
    """A timer that runs, as a snapshot sees it."""

    token: int
    when_ns: int
    due: Due


class TimersFull(BBError):
    """No place for one more timer: names the bound."""


@dataclass(slots=True, eq=False)
class Timers:
    """Callbacks run in order of their time, equal times in order of their making.

    Cancelling is lazy: a cancelled entry stays in the heap until its time, but the bound counts live ones
    only. The heap is rebuilt when the dead outnumber the living.
    """

    _bound: int
    heap: list[tuple[int, int]] = field(default_factory=list)
    """(when, token): the first is the earliest, cancelled ones among them. To be read only."""
    _live: dict[int, Due] = field(default_factory=dict)
    _next: int = 1

    def __len__(self) -> int:
        return len(self._live)

    @property
    def full(self) -> bool:
        """Whether the bound is reached."""
        return len(self._live) >= self._bound

    def at(self, when_ns: int, callback: Callable[..., object], *args: object, reserved: bool = False) -> int:
        """Calls `callback(now_ns, *args)` in the first poll at or after `when_ns`; returns a token for
        `cancel`.

        `reserved` timers never raise TimersFull: there is one per thing that has a bound of its own (an open
        request, a parked op, a Repeat), which must not be left without its end.
        """
        if len(self._live) >= self._bound and not reserved:
            raise TimersFull(
                f"{self._bound} timers run already",
                where="timers",
                hint="raise limits.max_timers (--config; in Python NodeConfig)",
            )
        token = self._next
        self._next += 1
        self._live[token] = Due(callback, args)
        heapq.heappush(self.heap, (when_ns, token))
        return token

    def cancel(self, token: int) -> None:
        """Forgets a timer; an unknown or past token is fine."""
        if self._live.pop(token, None) is not None and len(self.heap) > 2 * len(self._live) + 16:
            self.heap[:] = [entry for entry in self.heap if entry[1] in self._live]
            heapq.heapify(self.heap)

    def next_ns(self) -> int | None:
        """When the earliest live timer is due, None where there is none."""
        heap, live = self.heap, self._live
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ns: int) -> bool:
        """Whether a timer's time has come."""
        when = self.next_ns()
        return when is not None and when <= now_ns

    def pop_due(self, now_ns: int) -> Due | None:
        """The earliest timer that is due, removed; None where none is."""
        if not self.due(now_ns):
            return None
        _, token = heapq.heappop(self.heap)
        return self._live.pop(token)

    # --- snapshot -------------------------------------------------------------------------------------

    def running(self) -> list[Timer]:
        """All live timers in the order in which they are due."""
        live = sorted(entry for entry in self.heap if entry[1] in self._live)
        return [Timer(token, when_ns, self._live[token]) for when_ns, token in live]

    def save(self, callbacks: Callbacks) -> list[Any]:
        """[next token, timers], as plain values.

        Timers whose callback has no name are left out: they are components' own callables, gone with the
        process.
        """
        named = [(timer, callbacks.name_of(timer.due.callback)) for timer in self.running()]
        return [
            self._next,
            [
                [timer.token, timer.when_ns, name, callbacks.dump(name, timer.due.args)]
                for timer, name in named
                if name is not None
            ],
        ]

    def restore(self, plain: Any, shift: Shift, callbacks: Callbacks) -> None:
        """Takes what `save` gave, under the same tokens; for a wheel without timers."""
        self._next, rows = plain
        for token, when_ns, name, args in rows:
            self._live[token] = Due(callbacks.get(name), callbacks.load(name, args, shift))
            self.heap.append((when_ns + shift.delta_ns, token))
        self.heap.sort()
