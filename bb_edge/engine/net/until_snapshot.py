"""What must not have happened yet for a node that goes back to its last snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class UntilSnapshot(Generic[K]):
    """Keys in the order of `add`; a snapshot that was taken later and is on disk makes them `ready`."""

    __slots__ = ("_covered", "ready", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[K, None] = {}
        self._covered: tuple[K, ...] = ()
        self.ready: deque[K] = deque()

    def add(self, key: K) -> None:
        """Waits for a snapshot; the caller asks for one."""
        self.waiting[key] = None

    def drop(self, key: K) -> None:
        """Waits no more. A key that does not wait is fine."""
        self.waiting.pop(key, None)

    def taken(self) -> None:
        """The node is being written down: what waits now is in it."""
        self._covered = tuple(self.waiting)

    def written(self) -> None:
        """What was taken last is on disk."""
        for key in self._covered:
            if key in self.waiting:
                del self.waiting[key]
                self.ready.append(key)
        self._covered = ()
