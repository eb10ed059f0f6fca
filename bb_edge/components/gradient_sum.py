"""The gradient that a model has between two steps: one flat vector that backward passes add to."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.components.state import pack_array
from bb_edge.ir.quiet import hush, unhush

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bb_edge.components.state import StateReader
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram, Runner

    Others = tuple[Sequence[Array], Sequence[Array]]
    """Arrays for a program's results before its gradients, and behind them."""

    _Bound = tuple[BackendProgram, Others, Sequence[Array], Runner]

    Parts = list[tuple[int, Array]]
    """Parts of a vector: where each begins, and its numbers, 1-D."""
    Spares = list[tuple[Array, Sequence[Array], Parts, Parts]]
    """Vectors, each with its tensors as views, with all of them as one part, and with each as a part."""

__all__ = ["GradientSum", "read_gradient"]

COPIED_BYTES = 16 << 10
"""Bytes up to which a gradient is copied: a step has several calls for each part of its own."""

SPARES = 2
"""Memory of sums that were given back, as much as is kept for others of the same layout."""

_NOTHING: Array = np.zeros(0, np.float32)


class GradientSum:
    """dL/dparameters, 1-D f32 in the order of the parameters, summed over all passes since the last step.

    The first pass writes its gradients straight into the vector; only where a second comes before a step is
    there another vector, which stays. `views` gives the parameters' tensors as views of a flat vector.

    Gradients of the first pass stay in the program's memory where it lends them (`run_lending`), until
    somebody reads the vector or another pass comes: a step that follows at once reads them where they are
    (`take_parts`). Those of later passes are added from there. Small ones are copied, but where a step does
    no more than add them.

    The sum is times `factor`, which is that of its first pass: 1, or what makes of a step an addition
    (`Optimizer.factor`).
    """

    def __init__(
        self,
        size: int,
        views: Callable[[Array], Sequence[Array]],
        spares: Spares | None = None,
        factor: float = 1.0,
    ) -> None:
        """`factor` is the other one that passes may have. `spares` is a list that models of one layout share,
        of memory that was given back: clients of a simulation, which take turns, share it.
        """
        self._views_of = views
        self._size = size
        self.factor, self._other = 1.0, factor
        self._spares: Spares = [] if spares is None else spares
        self._flat: Array
        self._views: Sequence[Array] | None
        self._in_vector: Parts
        self._by_tensor: Parts
        self._starts = list(accumulate((view.size for view in self._take_memory()), initial=0))
        self._spare: Array | None = None
        self._spare_views: Sequence[Array] = ()
        self._runs: _Bound | None = None  # into the vector, and into the spare one
        self._spare_runs: _Bound | None = None
        self._mapping: Mapping[int, Array] = {}  # what a program lent last
        self._placed: Parts = []  # of it: where in the vector each belongs, its numbers
        self._parts: Parts = []  # those, and what lies in the vector
        self._is_lent = False
        # What a program lent last to be added; of each part the sum, what comes to it, and memory for it.
        self._sums: tuple[object, list[tuple[Array, Array, Array]]] = None, []
        self.filled = False
        """Whether a pass has added to it since the last step."""

    def _take_memory(self) -> Sequence[Array]:
        if self._spares:
            self._flat, views, self._in_vector, self._by_tensor = self._spares.pop()
            self._flat.fill(0)
        else:
            self._flat = np.zeros(self._size, np.float32)
            views = self._views_of(self._flat)
            starts = list(accumulate((view.size for view in views), initial=0))
            self._in_vector = [(0, self._flat[: starts[-1]])]
            self._by_tensor = [(at, view.reshape(-1)) for at, view in zip(starts, views)]  # noqa: B905
        self._views = views
        return views

    def release(self) -> None:
        """Gives back the memory of a sum that nothing was added to; `add` and `take` take it again."""
        self._collect()
        self._mapping, self._placed, self._parts, self._sums = {}, [], [], (None, [])
        self._spare, self._spare_views, self._runs, self._spare_runs = None, (), None, None
        if not self.filled and self._views is not None:
            if len(self._spares) < SPARES:
                self._spares.append((self._flat, self._views, self._in_vector, self._by_tensor))
            self._flat, self._views, self._in_vector, self._by_tensor = _NOTHING, None, [], []

    def add(
        self,
        program: BackendProgram,
        inputs: Sequence[Array],
        others: Others,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> None:
        """Runs a program and adds the gradients among its results, times `scale`; they are times `factor`.

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
                bound = self._runs = self._bind(program, others, views, factor)
                self._mapping = {}
            lent = bound[3](inputs)
            if lent:
                if lent is not self._mapping:
                    self._mapping, self._placed = lent, self._place(lent, others)
                    self._parts = self._whole(self._flat, self._placed)
                self._is_lent = True
            self.filled, self.factor = True, factor
            if scale != 1:
                self._collect()
                self._multiply(self._flat, scale)
            return
        self._add_more(program, inputs, others, scale, factor)

    def _add_more(
        self, program: BackendProgram, inputs: Sequence[Array], others: Others, scale: float, factor: float
    ) -> None:
        """Runs a program and adds to the gradients that are there."""
        if factor != self.factor:
            scale *= self.factor / factor
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
            bound = self._spare_runs = self._bind(program, others, self._spare_views, factor)
            self._sums = None, []
        lent = bound[3](inputs)
        if lent is not self._sums[0]:
            parts = self._whole(self._spare, self._place(lent, others))
            cuts = [(slice(start, start + values.size), values) for start, values in parts]
            self._sums = lent, [(self._flat[cut], values, self._spare[cut]) for cut, values in cuts]
        token = hush()  # a warning that is raised would leave a sum of which a part is added
        try:
            for part, values, free in self._sums[1]:
                if scale != 1:
                    values = np.multiply(values, np.float32(scale), out=free)
                np.add(part, values, out=part)
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
    def _bind(program: BackendProgram, others: Others, views: Sequence[Array], factor: float) -> _Bound:
        """Has a program run into these views."""
        first, least = len(others[0]), 0 if factor != 1 else COPIED_BYTES + 1
        lendable = frozenset(n for n, view in enumerate(views, first) if view.nbytes >= least)
        return program, others, views, program.runner((*others[0], *views, *others[1]), lendable)

    def _place(self, lent: Mapping[int, Array], others: Others) -> Parts:
        """The gradients that a program lends, in order, each with its place."""
        first = len(others[0])
        return [(self._starts[n - first], array.reshape(-1)) for n, array in sorted(lent.items())]

    def _whole(self, flat: Array, lent: Sequence[tuple[int, Array]]) -> Parts:
        """All gradients in order: those that are lent, and what a vector has of the others."""
        parts: Parts = []
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
        """Returns the vector, zeros where nothing was added, to be changed in place; the sum begins anew.

        It is times `factor`.
        """
        if self._views is None:
            self._take_memory()
        elif not self.filled:
            self._flat.fill(0)
        self._collect()
        self.filled = False
        return self._flat

    def take_parts(self) -> Parts:
        """Returns the sum in parts where some of it is lent, or a step only adds it, and begins anew.

        Else it returns an empty list, and nothing was taken.

        The parts cover all gradients, each with its first number's place in the vector; they are only read,
        until the next pass. The list is the same one as long as the arrays in it are.
        """
        if not self._is_lent:
            if not self.filled or self.factor == 1:
                return []
            self.filled = False
            # By tensor where the program lent some, for parameters may be in its memory, too.
            return self._by_tensor if self._sums[0] else self._in_vector
        self._is_lent = self.filled = False
        return self._parts

    def gradient(self) -> Array:
        """Does what `take` does, and returns a copy that is not times `factor`."""
        is_times = self.filled and self.factor != 1
        copied: Array = self.take().copy()
        if is_times:
            self._multiply(copied, 1 / self.factor)
        return copied

    def _collect(self) -> None:
        """Copies what is lent into the vector."""
        if self._is_lent:
            self._is_lent = False
            for start, values in self._placed:
                np.copyto(self._flat[start : start + values.size], values)

    def current(self) -> Array | None:
        """Returns the sum without taking it; None where nothing was added. It changes with the next pass."""
        self._collect()
        return self._flat if self.filled else None

    def save(self) -> dict[str, object]:
        """Returns the sum for a snapshot, as it is, for `read_gradient`; one times a factor says so."""
        flat = self.current()
        if flat is None or self.factor == 1:
            return {"gradient": pack_array(flat)}
        return {"gradient": None, "change": pack_array(flat), "change_factor": self.factor}

    def restore(self, flat: Array | None, factor: float = 1.0) -> None:
        """Sets the sum to one that `current` gave, and that is times `factor`."""
        self._is_lent = False
        self.filled = flat is not None
        if flat is not None:
            if self._views is None:
                self._take_memory()
            np.copyto(self._flat, flat)
            self.factor = factor
            if factor not in (1.0, self._other):  # of another learning rate
                self._multiply(self._flat, 1 / factor)
                self.factor = 1.0


def read_gradient(read: StateReader) -> tuple[Array | None, float]:
    """Returns what `save` has saved, and what it is times. ComponentStateError where it is damaged."""
    if not read.has("change"):
        return read.optional_array("gradient"), 1.0
    flat, factor = read.array("change"), read.number("change_factor")
    if not factor or not math.isfinite(factor):
        raise read.error(f"its gradient is times {factor}")
    return flat, factor
