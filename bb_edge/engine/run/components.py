"""What outlives executions: the components of one node, by number and by slot, and what ops keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.errors import OpError, failure_text
from bb_edge.engine.plain import dump, load
from bb_edge.engine.run.bound import BoundOp
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line
from bb_edge.roles import forgets
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import Component
from bb_edge.roles.containment import contained
from bb_edge.roles.contracts import Aggregator, method_name
from bb_edge.roles.errors import ComponentStateError

Observer = tuple[Component, Callable[[int], None], Aggregator | None]
"""A component, where it wants to hear of the end of each execution, and itself if it is an aggregator."""


@dataclass(slots=True, eq=False)
class Components:
    """All components, in install order: backends first. A number is a component's place in that order.

    `slots` gives the number for (target, slot), `class_of_target` the peer class of each target.
    """

    _all: tuple[Component, ...]
    slots: Mapping[tuple[str, str], int]
    class_of_target: Mapping[str, str]
    backends: tuple[Backend, ...] = field(init=False)
    observers: tuple[Observer, ...] = field(init=False)

    def __post_init__(self) -> None:
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

    # --- snapshot -------------------------------------------------------------------------------------

    def save(self) -> list[Any]:
        """[type, state] of each component. ComponentStateError, with the slot, where one gives no bytes."""
        return [[c.TYPE_NAME, self._serialized(n)] for n, c in enumerate(self)]

    def _serialized(self, number: int) -> bytes:
        component = self[number]
        try:
            state: object = component.serialize()
        # The border to users' components: the node goes on, and tries again later.
        except BaseException as error:
            raise self._failure(number, "serialize", contained(error)) from error
        if isinstance(state, bytes | bytearray | memoryview):
            return bytes(state)
        raise ComponentStateError(
            f"{component.TYPE_NAME}.serialize gives a {type(state).__name__}, bytes are expected",
            f"slot {self.slot_of(number)!r}",
            "return pack_state(self, version, {…}), or b'' where there is nothing to keep",
        )

    def restore(self, plain: Any) -> list[steps.StateForgotten]:
        """Gives the components the states of a snapshot; tells which of them have none.

        ComponentStateError where a component refuses its state.
        """
        forgotten = []
        for number, (component, (name, state)) in enumerate(zip(self, plain, strict=True)):
            if name != component.TYPE_NAME:
                raise ValueError(f"the state of a {name} for a {component.TYPE_NAME}")
            if not self._restored(number, state):
                forgotten.append(steps.StateForgotten(self.slot_of(number), name))
        return forgotten

    def _restored(self, number: int, state: bytes) -> bool:
        """Whether a component has its state back; False for one that has kept none."""
        component = self[number]
        try:
            component.restore(state)
        except BaseException as error:
            if state:
                raise self._failure(number, "restore", contained(error)) from error
            contained(error)
            # Nothing was written: by a class that kept no state then. It starts anew, as it was constructed.
            return False
        return bool(state) or not forgets(type(component))

    def _failure(self, number: int, method: str, error: Exception) -> ComponentStateError:
        """What one of the two methods raised, with the slot, the type, and the line of the component."""
        text, hint = failure_text(error), "mend the component"
        if isinstance(error, BBError):
            own = isinstance(error, ComponentStateError) or not error.where
            text = error.what if own else f"{error.where}: {error.what}"
            hint = error.hint or (_ANOTHER_SETTING if isinstance(error, ComponentStateError) else hint)
        line = fault_line(error)
        what = f"{self[number].TYPE_NAME}.{method}: {text}"
        what += f", at {line}" if line and line not in text else ""
        return ComponentStateError(what, f"slot {self.slot_of(number)!r}", hint)


_ANOTHER_SETTING = (
    "give it the settings and the data that it had, or start with an empty --state and --adopt this one,"
    " which takes what fits"
)
"""What to do about a state that a component does not take."""


def _observers(components: Sequence[Component]) -> tuple[Observer, ...]:
    return tuple(
        (c, c.execution_ended, c if isinstance(c, Aggregator) else None)
        for c in components
        if type(c).execution_ended is not Component.execution_ended
    )


@dataclass(slots=True, eq=False)
class OpStates:
    """All of a node. `by_target` has for each target its ops' states, under keys that the ops choose.

    A state has `save()`, which gives a list of values that a snapshot can hold, and `restore(row)`.
    """

    by_target: dict[str, dict[object, Any]] = field(default_factory=dict)
    rings: dict[str, deque[object]] = field(default_factory=dict)

    def save(self) -> list[Any]:
        """A row (target, key, state) for each state, as plain data."""
        return [
            [target, dump(key), dump(state.save())]
            for target, states in self.by_target.items()
            for key, state in states.items()
        ]

    def restore(self, plain: Any) -> None:
        """Takes what `save` gave. LookupError where the artifact has no such state."""
        for target, key, row in plain:
            self.by_target[target][load(key)].restore(load(row))

    def save_rings(self) -> list[Any]:
        """A row (name, values) for each ring, oldest value first."""
        return [[name, [dump(value) for value in ring]] for name, ring in self.rings.items()]

    def restore_rings(self, plain: Any) -> None:
        """Takes what `save_rings` gave."""
        for name, values in plain:
            self.rings[name].extend(load(value) for value in values)
