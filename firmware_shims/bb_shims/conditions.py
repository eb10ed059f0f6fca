"""Whether now is a good time for heavy work: the board cool, on mains, idle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .board import Board
from .errors import ConditionError, SensorError

CONDITIONS: Final = ("cool", "mains", "idle")
"""The conditions that there are."""
COOL_CELSIUS: Final = 65.0
"""Below it a board is cool: 15 K below where a Raspberry Pi slows down."""
IDLE_LOAD: Final = 0.7
"""Below it a board is idle: processes per core; a node that trains on one of four cores is 0.25 of it."""


class Conditions:
    """Conditions of a board, read anew at each question, with the thresholds that an operator has set."""

    __slots__ = ("_board", "_celsius", "_load", "names")

    def __init__(
        self,
        board: Board,
        names: Iterable[str],
        cool_celsius: float = COOL_CELSIUS,
        idle_load: float = IDLE_LOAD,
    ) -> None:
        """Raise :class:`ConditionError` for an unknown name, and for what this board cannot tell."""
        self.names = tuple(dict.fromkeys(names))
        self._board = board
        self._celsius = cool_celsius
        self._load = idle_load
        for name in self.names:
            if name not in CONDITIONS:
                raise ConditionError(f"no condition {name!r}: there are {', '.join(CONDITIONS)}")
            if self._reading(name) is None:
                raise ConditionError(f"this {board.model} does not tell whether it is {_WORDS[name]}")

    def unmet(self) -> str:
        """Return why now is not a good time, all reasons in one text; "" where all conditions hold.

        What a sensor stops to tell counts as not holding: nobody knows that it is cool.
        """
        return "; ".join(filter(None, map(self._why, self.names)))

    def _reading(self, name: str) -> float | None:
        """A condition's sensor; whether the board is on mains as 1.0 or 0.0."""
        try:
            if name == "cool":
                return self._board.thermal.celsius()
            return self._board.supply.on_mains() if name == "mains" else self._board.load.per_core()
        except SensorError:
            return None

    def _why(self, name: str) -> str:
        reading = self._reading(name)
        if reading is None:
            return f"nobody can tell whether the board is {_WORDS[name]}"
        if name == "cool":
            cool = reading < self._celsius
            return "" if cool else f"the board has {reading:.0f} °C, cool is below {self._celsius:g}"
        if name == "mains":
            return "" if reading else "the board runs on its battery"
        idle = reading < self._load
        return "" if idle else f"the load is {reading:.2f} per core, idle is below {self._load:g}"


_WORDS: Final = {"cool": "cool", "mains": "on mains", "idle": "idle"}
