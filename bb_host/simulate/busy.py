"""A node that computes for long at one instant of simulated time: how long, and in which loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

from bb_edge.ir.ids import PeerId

AFTER_S = 10.0
"""Seconds of one node at one instant after which it is told, and then whenever they have doubled."""

_NAMED = 3
"""Nodes that an error names."""

Told = Callable[[str], None]
"""Takes a line about a node that is busy."""


class Looked(Protocol):
    """The part of a node that tells what it does."""

    @property
    def peer_id(self) -> PeerId:
        """Who it is."""

    def inspect(self) -> Any:
        """Its tables (`bb_edge.inspection.Inspection`)."""


def nobody(text: str) -> None:
    """Takes a line that nobody wants to know."""


class Busy:
    """Adds up what each node takes at one instant. Nothing of the simulation depends on it."""

    def __init__(
        self, tell: Told, name_of: Callable[[PeerId], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._name_of = name_of
        self._clock = clock
        self._instant = -1
        self._at = clock()
        self._taken: dict[PeerId, float] = {}
        self._next: dict[PeerId, float] = {}

    def polled(self, node: Looked, now_ns: int) -> None:
        """A node has had a turn, behind that of the one before."""
        now = self._clock()
        if now_ns != self._instant:
            self._instant = now_ns
            self._taken.clear()
            self._next.clear()
        peer = node.peer_id
        taken = self._taken[peer] = self._taken.get(peer, 0.0) + now - self._at
        self._at = now
        if taken >= self._next.get(peer, AFTER_S):
            self._next[peer] = max(2 * taken, AFTER_S)
            since = f"has computed for {taken:,.0f} s at {now_ns / 1e9:,.3f} s of simulated time"
            self._tell(f"{self._name_of(peer)} {since}: it is {doing(node)}")

    def begins(self) -> None:
        """A window begins: what was waited for until now is nobody's."""
        self._at = self._clock()


def doing(node: Looked) -> str:
    """The loops that a node is in, outermost first, each with its iteration; else the op that is next."""
    executions = node.inspect().executions
    loops = [
        f"{frame['call'].replace('/', ', ')}, iteration {frame['iteration'] + 1:,}"
        for row in executions
        for frame in row["frames"]
        if frame["iteration"] is not None
    ]
    if loops:
        return f"in {' and '.join(loops)}"
    ready = [op for row in executions for op in row["ready"]]
    return f"before {ready[0].replace('/', ', ')}" if ready else "in what starts by itself"


def still_busy(nodes: Iterable[Looked], name_of: Callable[[PeerId], str]) -> str:
    """`; NAME is in …` of the first nodes that have work at this instant, for an error."""
    working = (node for node in nodes if node.inspect().runnable)
    return "".join(f"; {name_of(node.peer_id)} is {doing(node)}" for node in islice(working, _NAMED))
