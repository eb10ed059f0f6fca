"""The state of components as rows of a snapshot, and back."""

from __future__ import annotations

from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.run.components import Components
from bb_edge.ir.errors import BBError
from bb_edge.ir.fault_lines import fault_line
from bb_edge.roles import forgets
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import ComponentStateError


def save(components: Components) -> list[Any]:
    """[type, state] of each component. ComponentStateError, with the slot, where one gives no bytes."""
    return [[c.TYPE_NAME, _serialized(components, n)] for n, c in enumerate(components)]


def _serialized(components: Components, number: int) -> bytes:
    component = components[number]
    try:
        state: object = component.serialize()
    # The border to users' components: the node goes on, and tries again later.
    except BaseException as error:
        raise _failure(components, number, "serialize", contained(error)) from error
    if isinstance(state, bytes | bytearray | memoryview):
        return bytes(state)
    raise ComponentStateError(
        f"{component.TYPE_NAME}.serialize gives a {type(state).__name__}, bytes are expected",
        f"slot {components.slot_of(number)!r}",
        "return pack_state(self, version, {…}), or b'' where there is nothing to keep",
    )


def restore(components: Components, plain: Any) -> list[steps.StateForgotten]:
    """Gives the components the states of a snapshot; tells which of them have none.

    ComponentStateError where a component refuses its state.
    """
    forgotten = []
    for number, (component, (name, state)) in enumerate(zip(components, plain, strict=True)):
        if name != component.TYPE_NAME:
            raise ValueError(f"the state of a {name} for a {component.TYPE_NAME}")
        if not _restored(components, number, state):
            forgotten.append(steps.StateForgotten(components.slot_of(number), name))
    return forgotten


def _restored(components: Components, number: int, state: bytes) -> bool:
    """Whether a component has its state back; False for one that has kept none."""
    component = components[number]
    try:
        component.restore(state)
    except BaseException as error:
        if state:
            raise _failure(components, number, "restore", contained(error)) from error
        contained(error)
        # Nothing was written: by a class that kept no state then. It starts anew, as it was constructed.
        return False
    return bool(state) or not forgets(type(component))


def _failure(components: Components, number: int, method: str, error: Exception) -> ComponentStateError:
    """What one of the two methods raised, with the slot, the type, and the line of the component."""
    text, hint = steps.failure_text(error), "mend the component"
    if isinstance(error, BBError):
        own = isinstance(error, ComponentStateError) or not error.where
        text, hint = error.what if own else f"{error.where}: {error.what}", error.hint or hint
    line = fault_line(error)
    what = f"{components[number].TYPE_NAME}.{method}: {text}"
    what += f", at {line}" if line and line not in text else ""
    return ComponentStateError(what, f"slot {components.slot_of(number)!r}", hint)
