"""The components of one node, by number and by slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bb_edge.engine.errors import OpError
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir import keys
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import Component
from bb_edge.roles.contracts import method_name

Observer = tuple[Component, Callable[[int], None]]
"""A component, and where it wants to hear of the end of each execution."""


class Components:
    """All components, in install order: backends first. A number is a component's place in that order.

    `slots` gives the number for (target, slot), `class_of_target` the peer class of each target.
    """

    __slots__ = ("_all", "backends", "class_of_target", "observers", "slots")

    def __init__(
        self,
        components: Sequence[Component],
        slots: Mapping[tuple[str, str], int],
        class_of_target: Mapping[str, str],
    ) -> None:
        self._all: tuple[Component, ...] = tuple(components)
        self.slots = dict(slots)
        self.class_of_target = dict(class_of_target)
        self.backends = tuple(c for c in self._all if isinstance(c, Backend))
        self.observers = _observers(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Component:
        return self._all[number]

    def __iter__(self) -> Iterator[Component]:
        return iter(self._all)

    def of(self, target: str, slot: str) -> Component:
        """The component that a target's slot is bound to. OpError where there is no such slot."""
        number = self.slots.get((target, slot))
        if number is None:
            raise OpError(f"no slot {slot!r}", where=target, hint="declare it in the module and bind it")
        return self._all[number]

    def slot_of(self, number: int) -> str:
        """The name of the first slot that a component is bound to."""
        return next(slot for (_, slot), n in self.slots.items() if n == number)

    def origin_of(self, op: BoundOp) -> str:
        """The component behind an op: `slot 'cam' (acme.Camera.next_batch)`; empty for an op without one."""
        if op.component < 0:
            return ""
        component = self._all[op.component]
        if component.ROLE == keys.ROLE_BACKEND:
            return f"backend {component.TYPE_NAME}"
        slot = op.spec.meta.get(keys.SLOT_KEY, "")
        return f"slot {slot!r} ({component.TYPE_NAME}.{method_name(op.spec.op_type)})"

    def replace(self, fresh: Mapping[int, Component]) -> None:
        """Puts components that were constructed anew in their places. The caller binds their ops again."""
        self._all = tuple(fresh.get(i, c) for i, c in enumerate(self._all))
        self.observers = _observers(self._all)


def _observers(components: Sequence[Component]) -> tuple[Observer, ...]:
    return tuple(
        (c, c.execution_ended) for c in components if type(c).execution_ended is not Component.execution_ended
    )
