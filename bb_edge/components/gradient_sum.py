"""The gradient that a model has between two steps: one flat vector that backward passes add to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram

__all__ = ["GradientSum"]


class GradientSum:
    """dL/dparameters, 1-D f32 in the order of the parameters, summed over all passes since the last step.

    The first pass writes its gradients straight into the vector; only where a second comes before a step is
    there another vector, which stays. `views` gives the parameters' tensors as views of a flat vector.
    """

    def __init__(self, size: int, views: Callable[[Array], Sequence[Array]]) -> None:
        self._views_of = views
        self._size = size
        self._flat: Array
        self._views: Sequence[Array] | None
        self._take_memory()
        self._spare: Array | None = None
        self._spare_views: Sequence[Array] = ()
        self.filled = False
        """Whether a pass has added to it since the last step."""

    def _take_memory(self) -> Sequence[Array]:
        self._flat = np.zeros(self._size, np.float32)
        self._views = self._views_of(self._flat)
        return self._views

    def release(self) -> None:
        """Gives back the memory of a sum that nothing was added to; `add` and `take` take it again."""
        self._spare, self._spare_views = None, ()
        if not self.filled:
            self._flat, self._views = np.zeros(0, np.float32), None

    def add(
        self,
        program: BackendProgram,
        inputs: Sequence[Array],
        others: tuple[Sequence[Array], Sequence[Array]],
    ) -> None:
        """Runs a program and adds the gradients among its results.

        `others` are arrays for its results before and behind the gradients. Where the program fails, the
        gradient is what it was.
        """
        before, behind = others
        if not self.filled:
            views = self._take_memory() if self._views is None else self._views
            program.run_into(inputs, (*before, *views, *behind))
            self.filled = True
            return
        if self._spare is None:
            self._spare = np.empty_like(self._flat)
            self._spare_views = self._views_of(self._spare)
        program.run_into(inputs, (*before, *self._spare_views, *behind))
        np.add(self._flat, self._spare, out=self._flat)

    def take(self) -> Array:
        """Returns the vector, zeros where nothing was added, to be changed in place; the sum begins anew."""
        if self._views is None:
            self._take_memory()
        elif not self.filled:
            self._flat.fill(0)
        self.filled = False
        return self._flat

    def current(self) -> Array | None:
        """Returns the sum without taking it; None where nothing was added. It changes with the next pass."""
        return self._flat if self.filled else None

    def restore(self, flat: Array | None) -> None:
        """Sets the sum to one that `current` gave."""
        self.filled = flat is not None
        if flat is not None:
            if self._views is None:
                self._take_memory()
            np.copyto(self._flat, flat)
