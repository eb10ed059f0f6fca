"""The two values in slots that are neither arrays nor ids: the trigger and the bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final


@final
class Trigger:
    """A pulse that carries nothing. There is exactly one: `TRIGGER`; compare with `is`."""

    __slots__ = ()
    _only: Trigger | None = None

    def __new__(cls) -> Trigger:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __reduce__(self) -> str:
        return "TRIGGER"  # copies and pickles give the singleton back

    def __repr__(self) -> str:
        return "TRIGGER"


TRIGGER: Final[Trigger] = Trigger()


@dataclass(frozen=True, slots=True)
class Composite:
    """Several values that travel as one.

    `children` holds (wire hash of the type, value) pairs in the order in which they were bundled.
    """

    children: tuple[tuple[int, object], ...]

    @property
    def values(self) -> tuple[object, ...]:
        """The children's values, in order."""
        return tuple(value for _, value in self.children)

    def __len__(self) -> int:
        return len(self.children)
