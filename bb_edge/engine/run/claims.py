"""Who holds which stateful component (semantics §3).

An execution claims every unshared component that its flow writes in one step, so that claims cannot deadlock.
Waiters are served in order of arrival; one that cannot be served lets others pass only where they want
nothing
that it wants.
"""

from __future__ import annotations

from collections import deque

from bb_edge.engine.run.frames import Execution


class Claims:
    """`owners[component]` is the execution that holds it, or None."""

    __slots__ = ("owners", "waiters")

    def __init__(self, components: int) -> None:
        self.owners: list[Execution | None] = [None] * components
        self.waiters: deque[Execution] = deque()

    @property
    def waiting(self) -> int:
        return len(self.waiters)

    def owner(self, component: int) -> Execution | None:
        return self.owners[component]

    def acquire(self, execution: Execution) -> bool:
        """True: all of its claim set is its own now. False: it stands in the queue."""
        wanted = execution.claim_set
        if execution in self.waiters:
            return False
        if self._free(wanted) and not any(set(wanted) & set(w.claim_set) for w in self.waiters):
            self._take(execution)
            return True
        self.waiters.append(execution)
        return False

    def release(self, execution: Execution) -> list[Execution]:
        """Gives everything up (also a place in the queue); returns who holds their claims now, in order."""
        if execution in self.waiters:
            self.waiters.remove(execution)
        if execution.claimed:
            for component in execution.claim_set:
                if self.owners[component] is execution:
                    self.owners[component] = None
            execution.claimed = False
        granted: list[Execution] = []
        still: deque[Execution] = deque()
        wanted_before: set[int] = set()
        for waiter in self.waiters:
            if self._free(waiter.claim_set) and not wanted_before & set(waiter.claim_set):
                self._take(waiter)
                granted.append(waiter)
            else:
                wanted_before |= set(waiter.claim_set)
                still.append(waiter)
        self.waiters = still
        return granted

    def _free(self, components: tuple[int, ...]) -> bool:
        return all(self.owners[c] is None for c in components)

    def _take(self, execution: Execution) -> None:
        for component in execution.claim_set:
            self.owners[component] = execution
        execution.claimed = True
