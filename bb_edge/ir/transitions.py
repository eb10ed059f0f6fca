"""State machines as data: a table says which state follows, and code that has states decides by it.

    class State(enum.IntEnum):
        UP = 0
        DOWN = 1

    class Event(enum.IntEnum):
        HEARD = 0
        LOST = 1

    PRESENCE = Table("presence", State.UP, {
        (State.UP, Event.LOST): State.DOWN,
        (State.DOWN, Event.HEARD): State.UP,
    })

    peer.state = PRESENCE.next(peer.state, Event.LOST)

Use `enum.IntEnum` where a transition happens per message or per op: an `IntEnum` hashes at the speed of an
int, an `Enum` by a Python function (before 3.12).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from bb_edge.ir.errors import BBError

S = TypeVar("S", bound=Hashable)
E = TypeVar("E", bound=Hashable)


class TransitionError(BBError):
    """An event that a state has no row for, or a table with an unreachable state: a fault of the code."""


class Table(Generic[S, E]):
    """The transitions of one kind of thing; the table itself holds no state and is shared by all of them.

    A pair that has no row is a fault of the caller. An event that changes nothing in some state gets a row
    that leads back to that state.
    """

    __slots__ = ("_rows", "name", "rows", "start")

    def __init__(self, name: str, start: S, rows: Mapping[tuple[S, E], S]) -> None:
        """`rows` maps (state, event) to the next state. TransitionError where a state cannot be reached.

        `name` is how errors and drawings call the thing; `start` is the state in which it begins. The
        attribute `rows` refuses as `next` does, and costs no Python call: for what happens per op.
        """
        self.name: Final = name
        self.start: Final = start
        self._rows = _Rows(self._refusal, rows)
        self.rows: Final[Mapping[tuple[S, E], S]] = MappingProxyType(self._rows)
        unreachable = [state for state in self.states if state not in self._reachable()]
        if unreachable:
            raise TransitionError(
                f"no path leads from {_label(start)} to {', '.join(map(_label, unreachable))}",
                name,
                "add the missing rows, or remove the state",
            )

    def next(self, state: S, event: E) -> S:
        """Returns the state that follows. TransitionError where the table has no row for the pair."""
        return self._rows[state, event]

    def allows(self, state: S, event: E) -> bool:
        """Returns whether the table has a row for the pair."""
        return (state, event) in self._rows

    @property
    def states(self) -> tuple[S, ...]:
        """All states, the first one first, then in the order of the rows."""
        named = [self.start]
        for (state, _), following in self._rows.items():
            named += [state, following]
        return tuple(dict.fromkeys(named))

    def drawing(self) -> str:
        """Returns the table as a Mermaid state diagram, for the pages in docs/.

        Events that lead from one state to the same other state share an arrow. A state that no event leaves
        has an arrow to the end mark.
        """
        arrows: dict[tuple[S, S], list[str]] = {}
        for (state, event), following in self._rows.items():
            arrows.setdefault((state, following), []).append(_label(event))
        lines = ["stateDiagram-v2", f"    [*] --> {_label(self.start)}"]
        lines += [
            f"    {_label(state)} --> {_label(following)}: {', '.join(events)}"
            for (state, following), events in arrows.items()
        ]
        left = {state for state, _ in self._rows}
        lines += [f"    {_label(state)} --> [*]" for state in self.states if state not in left]
        return "\n".join(lines) + "\n"

    def _reachable(self) -> set[S]:
        reached, grew = {self.start}, True
        while grew:
            following = {after for (before, _), after in self._rows.items() if before in reached}
            grew = not following <= reached
            reached |= following
        return reached

    def _refusal(self, state: S, event: E) -> TransitionError:
        legal = [_label(known) for before, known in self._rows if before == state]
        return TransitionError(
            f"event {_label(event)} in state {_label(state)}, which has no row for it",
            self.name,
            f"events in this state: {', '.join(legal) or 'none'}",
        )


class _Rows(dict[tuple[S, E], S]):
    """Rows that refuse a pair which is not among them."""

    __slots__ = ("_refusal",)

    def __init__(self, refusal: Callable[[S, E], TransitionError], rows: Mapping[tuple[S, E], S]) -> None:
        super().__init__(rows)
        self._refusal = refusal

    def __missing__(self, pair: tuple[S, E]) -> S:
        raise self._refusal(*pair)


def _label(value: Hashable) -> str:
    """Returns a state or an event as drawings and errors spell it: an enum's member by its name."""
    return str(getattr(value, "name", value)).lower()
