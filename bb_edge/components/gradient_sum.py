"""The gradient that a model has between two steps: one flat vector that backward passes add to."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.ir.quiet import hush, unhush

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram, Runner

    Others = tuple[Sequence[Array], Sequence[Array]]
    """Arrays for a program's results before its gradients, and behind them."""

    _Bound = tuple[BackendProgram, Others, Sequence[Array], Runner]

__all__ = ["GradientSum"]

SPARES = 2
"""Memory of sums that were given back, as much as is kept for others of the same layout."""

_NOTHING: Array = np.zeros(0, np.float32)


class GradientSum:
    """dL/dparameters, 1-D f32 in the order of the parameters, summed over all passes since the last step.

    The first pass writes its gradients straight into the vector; only where a second comes before a step is
    there another vector, which stays. `views` gives the parameters' tensors as views of a flat vector.

    Large gradients of the first pass stay in the program's memory where it lends them (`run_lending`), until
    somebody reads the vector or another pass comes: a step that follows at once reads them where they are
    (`take_parts`). Those of later passes are added from there.
    """

    def __init__(
        self,
        size: int,
        views: Callable[[Array], Sequence[Array]],
        spares: list[tuple[Array, Sequence[Array]]] | None = None,
    ) -> None:
        """`spares` is a list that models of one layout share, with what was given back: clients of a
        simulation that take turns take one memory by turns, too.
        """
        self._views_of = views
        self._size = size
        self._spares = [] if spares is None else spares
        self._flat: Array
        self._views: Sequence[Array] | None
        self._starts = list(accumulate((view.size for view in self._take_memory()), initial=0))
        self._spare: Array | None = None
        self._spare_views: Sequence[Array] = ()
        self._runs: _Bound | None = None  # into the vector, and into the spare one
        self._spare_runs: _Bound | None = None
        self._lent: list[tuple[int, Array]] = []  # where in the vector each belongs, and its numbers
        self.filled = False
        """Whether a pass has added to it since the last step."""

    def _take_memory(self) -> Sequence[Array]:
        try:
            self._flat, views = self._spares.pop()
            self._flat.fill(0)
        except IndexError:
            self._flat = np.zeros(self._size, np.float32)
            views = self._views_of(self._flat)
        self._views = views
        return views

    def release(self) -> None:
        """Gives back the memory of a sum that nothing was added to; `add` and `take` take it again."""
        self._collect()
        self._spare, self._spare_views, self._runs, self._spare_runs = None, (), None, None
        if not self.filled and self._views is not None:
            if len(self._spares) < SPARES:
                self._spares.append((self._flat, self._views))
            self._flat, self._views = _NOTHING, None

    def add(
        self,
        program: BackendProgram,
        inputs: Sequence[Array],
        others: Others,
        scale: float = 1.0,
    ) -> None:
        """Runs a program and adds the gradients among its results, times `scale`.

        `others` are arrays for its results before and behind the gradients, best the same tuple each time.
        Where the program fails, the gradient is what it was.
        """
        if not self.filled:
            bound = self._runs  # asked here, and not in a function: it is what each step does
            if (
                bound is None
                or bound[2] is not self._views
                or bound[1] is not others
                or bound[0] is not program
            ):
                views = self._take_memory() if self._views is None else self._views
                bound = self._runs = self._bind(program, others, views)
            lent = bound[3](inputs)
            self._lent = self._placed(lent, others) if lent else []
            self.filled = True
            if scale != 1:
                self._collect()
                self._multiply(self._flat, scale)
            return
        self._add_more(program, inputs, others, scale)

    def _add_more(
        self, program: BackendProgram, inputs: Sequence[Array], others: Others, scale: float
    ) -> None:
        """Runs a program and adds to the gradients that are there."""
        self._collect()
        if self._spare is None:
            self._spare = np.empty_like(self._flat)
            self._spare_views = self._views_of(self._spare)
        bound = self._spare_runs
        if (
            bound is None
            or bound[2] is not self._spare_views
            or bound[1] is not others
            or bound[0] is not program
        ):
            bound = self._spare_runs = self._bind(program, others, self._spare_views)
        parts = self._placed(bound[3](inputs), others)
        token = hush()  # a warning that is raised would leave a sum of which a part is added
        try:
            for start, values in self._parts(self._spare, parts):
                part = self._flat[start : start + values.size]
                np.add(part, values if scale == 1 else values * np.float32(scale), out=part)
        finally:
            unhush(token)

    @staticmethod
    def _multiply(flat: Array, scale: float) -> None:
        token = hush()
        try:
            np.multiply(flat, np.float32(scale), out=flat)
        finally:
            unhush(token)

    @staticmethod
    def _bind(program: BackendProgram, others: Others, views: Sequence[Array]) -> _Bound:
        """Has a program run into these views."""
        first = len(others[0])
        lendable = frozenset(range(first, first + len(views)))
        return program, others, views, program.runner((*others[0], *views, *others[1]), lendable)

    def _placed(self, lent: Mapping[int, Array], others: Others) -> list[tuple[int, Array]]:
        """The gradients that a program lends, in order, each with its place."""
        first = len(others[0])
        return [(self._starts[n - first], array.reshape(-1)) for n, array in sorted(lent.items())]

    def _parts(self, flat: Array, lent: Sequence[tuple[int, Array]]) -> list[tuple[int, Array]]:
        """All gradients in order: those that are lent, and what a vector has of the others."""
        parts: list[tuple[int, Array]] = []
        at = 0
        for start, values in lent:
            if start > at:
                parts.append((at, flat[at:start]))
            parts.append((start, values))
            at = start + values.size
        if at < self._starts[-1]:
            parts.append((at, flat[at : self._starts[-1]]))
        return parts

    def take(self) -> Array:
        """Returns the vector, zeros where nothing was added, to be changed in place; the sum begins anew."""
        if self._views is None:
            self._take_memory()
        elif not self.filled:
            self._flat.fill(0)
        self._collect()
        self.filled = False
        return self._flat

    def take_parts(self) -> list[tuple[int, Array]]:
        """Returns the sum in parts where some of it is lent, and begins anew; an empty list, and nothing was
        taken, where it lies in the vector.

        The parts cover all gradients, each with its first number's place in the vector; they are only read,
        and the list has to be emptied before the next pass.
        """
        if not self._lent:
            return []
        parts = self._parts(self._flat, self._lent)
        self._lent = []
        self.filled = False
        return parts

    def _collect(self) -> None:
        """Copies what is lent into the vector."""
        while self._lent:
            start, values = self._lent.pop()
            np.copyto(self._flat[start : start + values.size], values)

    def current(self) -> Array | None:
        """Returns the sum without taking it; None where nothing was added. It changes with the next pass."""
        self._collect()
        return self._flat if self.filled else None

    def restore(self, flat: Array | None) -> None:
        """Sets the sum to one that `current` gave."""
        self._lent = []
        self.filled = flat is not None
        if flat is not None:
            if self._views is None:
                self._take_memory()
            np.copyto(self._flat, flat)
