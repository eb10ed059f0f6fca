"""Which compilers were derived from a compiler, and which of them were dropped before anything used them.

A compiler is a value: each of its methods returns a new one. An author who leaves the result lying compiles
without the binding that the program names. So each compiler has a history, which holds that of the compiler
that it was derived from, and knows weakly those that were derived from it, by the line and the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

from bb_host.author_lines import author_line, short_line
from bb_host.diagnostics import ProgramWarning


@dataclass(frozen=True, slots=True)
class Derivation:
    """One call of a compiler's method, at the author's line. `slot` is empty where it binds none."""

    where: str
    call: str
    slot: str = ""

    @property
    def remedy(self) -> str:
        """What to write so that its result is used."""
        return f"keep what it returns: compiler = compiler.{self.call}"

    def warning(self) -> ProgramWarning:
        """What is told of one whose result was dropped."""
        return ProgramWarning(
            "unused-compiler",
            f"nothing uses what {self.call} returns: every method returns a new compiler, and changes none",
            self.where,
            self.remedy,
        )


class History:
    """What a compiler was derived from, and what was derived from it.

    Compilers that one line derived from one compiler, as in a loop, share a history: what is dropped of them
    is told where all were. Copies in other processes begin anew.
    """

    __slots__ = ("__weakref__", "_by", "_derived", "_parent")

    def __init__(self, parent: History | None = None, by: Derivation | None = None) -> None:
        self._parent = parent
        self._by = by
        self._derived: dict[Derivation, ref[History] | None] = {}
        """None where one of them was compiled with."""

    def derive(self, call: str, slot: str = "") -> History:
        """The history of what a call of the author's returns."""
        by = Derivation(short_line(author_line()), call, slot)
        known = self._derived.get(by)
        alive = None if known is None else known()
        if alive is not None:
            return alive
        new = History(self, by)
        if by not in self._derived or known is not None:
            self._derived[by] = ref(new)
        return new

    def compiled(self) -> tuple[Derivation, ...]:
        """Notes that the compiler is compiled with; the calls whose results were dropped on the way to it."""
        dropped: list[Derivation] = []
        for history in self._line():
            if history._parent is not None and history._by is not None:
                history._parent._derived[history._by] = None
            dropped += [by for by, known in history._derived.items() if known is not None and known() is None]
        return tuple(dropped)

    def _line(self) -> Iterator[History]:
        """This history, and those that it stems from."""
        history: History | None = self
        while history is not None:
            yield history
            history = history._parent

    def __reduce__(self) -> tuple[type[History], tuple[()]]:
        return History, ()
