"""Who holds which stateful component.

An execution claims every unshared component that its flow writes in one step, so that claims cannot deadlock.
Waiters are served in order of arrival. One that cannot be served lets others pass only where they want
nothing that it wants.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from bb_edge.engine.run.frames import Execution
from bb_edge.engine.run.naming import Naming


class Claims:
    """`owners[component]` is the execution that holds it, or None."""

    __slots__ = ("owners", "waiters")

    def __init__(self, components: int) -> None:
        self.owners: list[Execution | None] = [None] * components
        self.waiters: deque[Execution] = deque()

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

    def save(self) -> list[Any]:
        """[number of the owner of each component, numbers of the waiters]; 0 for no owner."""
        owners = [0 if owner is None else owner.id for owner in self.owners]
        return [owners, [execution.id for execution in self.waiters]]

    def restore(self, plain: Any, naming: Naming) -> None:
        """Takes what `save` gave. ValueError where the node has another number of components."""
        owners, waiters = plain
        if len(owners) != len(self.owners):
            raise ValueError("claims of another number of components")
        self.owners[:] = [naming.execution(number) if number else None for number in owners]
        self.waiters.extend(naming.execution(number) for number in waiters)
