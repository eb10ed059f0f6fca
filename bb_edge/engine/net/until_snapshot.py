"""Holds back what must wait until a snapshot is on disk, and asks for one.

A node that crashes goes back to its last snapshot. What must not have happened yet for a node that goes back
waits for the next one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class UntilSnapshot(Generic[K]):
    """Keys in the order of `add`. A snapshot that was taken later and is on disk makes them ready."""

    _wish: SnapshotWish
    _reason: str
    _waiting: dict[K, None] = field(default_factory=dict)
    _covered: tuple[K, ...] = ()
    ready: list[K] = field(default_factory=list)  # the same object for ever: whoever goes on takes keys out

    def __contains__(self, key: K) -> bool:
        """Whether the key waits."""
        return key in self._waiting

    @property
    def waiting(self) -> tuple[K, ...]:
        """The keys that wait, in order."""
        return tuple(self._waiting)

    def add(self, key: K) -> None:
        """Has a key wait for a snapshot, and asks for one. Without a driver that keeps any, nothing waits."""
        if self._wish.kept:
            self._waiting[key] = None
            self._wish.want(self._reason)

    def want(self, reason: str = "") -> None:
        """Asks for a snapshot for a key that is about to come, or for another reason."""
        self._wish.want(reason or self._reason)

    def drop(self, key: K) -> None:
        """Waits no more. A key that does not wait is fine."""
        self._waiting.pop(key, None)

    def pass_by(self, key: K) -> None:
        """Makes a key ready that no snapshot need hold."""
        self.ready.append(key)

    def taken(self) -> None:
        """The node is being written down: what waits now is in it."""
        self._covered = tuple(self._waiting)

    def written(self) -> None:
        """What was taken last is on disk. Asks for another snapshot where keys came after it."""
        for key in self._covered:
            if key in self._waiting:
                del self._waiting[key]
                self.ready.append(key)
        self._covered = ()
        if self._waiting:
            self._wish.want(self._reason)


@dataclass(slots=True, eq=False)
class SnapshotWish:
    """Asks the driver for a snapshot, once until it is written; nobody, unless the driver keeps things."""

    _runtime: Runtime
    kept: bool = True
    _wanted: bool = False
    _waits: list[UntilSnapshot[Any]] = field(default_factory=list)

    def want(self, reason: str) -> None:
        """Wants a snapshot. The driver hears the reason of the first who does."""
        if self.kept and not self._wanted:
            self._wanted = True
            self._runtime.emit(steps.SnapshotWanted(reason))

    def until(self, reason: str) -> UntilSnapshot[Any]:
        """A queue of what waits for a snapshot; `reason` is what it asks for one with."""
        queue: UntilSnapshot[Any] = UntilSnapshot(self, reason)
        self._waits.append(queue)
        return queue

    def taken(self) -> None:
        """The node is being written down."""
        for queue in self._waits:
            queue.taken()

    def written(self) -> None:
        """The bytes of the last snapshot are on disk."""
        self._wanted = False
        for queue in self._waits:
            queue.written()
