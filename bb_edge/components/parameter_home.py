"""Where a model's parameters are: in one flat vector, or large ones in the memory of what trains them.

An interpreter reads its inputs in memory of its own, so that each training step would copy all parameters
into it. Where it lets them be changed there (`BackendProgram.move_residents`), steps change those whose
gradients it lends in that memory, and nothing is copied until somebody asks for the vector.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bb_edge.components.batch_fit import BatchFit
    from bb_edge.components.model_layout import ModelLayout
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram

__all__ = ["ParameterHome"]


class ParameterHome:
    """The parameters of a model, in its layout; `vector` is 1-D f32, and stale where some are `away`."""

    def __init__(self, vector: Array, layout: ModelLayout) -> None:
        self.vector = vector
        self.away = False
        """Whether some parameters are in the memory of the program that trains them."""
        self._learned = vector[: layout.learned]
        self._first = layout.sent_from
        self._sent = vector[layout.sent_from : layout.sent_from + layout.sent.size]
        self._program: BackendProgram | None = None
        self._numbers: Mapping[int, tuple[int, int]] = {}  # by place of a tensor: its number and its size
        self._moved: dict[int, Array] = {}  # by place: a tensor in the program's memory, 1-D
        self.read = False
        """Whether nobody has changed the vector since the program began to run: who runs it says so."""
        self._pieces: list[Array] = []  # where those that travel are, while some are away
        # What `beside` gave last, and for which list, unless the next time something may be moved.
        self._paired: tuple[object, list[tuple[int, Array, Array]]] = None, []

    def trained_by(self, fit: BatchFit | None, tensors: Sequence[Array]) -> None:
        """Says what trains them, its program's residents in the order of `tensors`, views of the vector."""
        if fit is not None:
            places = accumulate((tensor.size for tensor in tensors), initial=0)
            self._numbers = {at: (n, each.size) for n, (at, each) in enumerate(zip(places, tensors))}  # noqa: B905
            self._program = fit.program

    def whole(self) -> Array:
        """Returns the vector with all parameters in it, to be read or changed."""
        self.read = False
        if self.away:
            for at, values in self._moved.items():
                self.vector[at : at + values.size] = values
            self.away, self._moved, self._pieces, self._paired = False, {}, [], (None, [])
            if self._program is not None:
                self._program.return_residents()
        return self.vector

    def sent(self) -> Array:
        """Returns those that travel, to be read or changed."""
        self.whole()
        return self._sent

    def learned(self) -> Array:
        """Returns those that are learned, to be read or changed."""
        self.whole()
        return self._learned

    def shown(self) -> Array:
        """Returns the vector as it is and will be, read-only: from now on, nothing is moved."""
        view: Array = self.whole().view()
        view.setflags(write=False)
        self._program = None
        return view

    def beside(self, parts: Sequence[tuple[int, Array]]) -> list[tuple[int, Array, Array]]:
        """Returns parts of a gradient, each with its place and the parameters that belong to it.

        Those may be changed there. What the program lends gradients of is moved into its memory first, where
        it has read the parameters as they are. Given the same list, it returns the same one.
        """
        if self._paired[0] is parts:
            self.read = self.away
            return self._paired[1]
        if self.away:
            sizes = {at: gradient.size for at, gradient in parts}
            if any(sizes.get(at) != memory.size for at, memory in self._moved.items()):
                self.whole()  # a part is longer than what has moved
        wanted = {}
        if not self.away and self._program is not None:
            for at, gradient in parts:
                number, size = self._numbers.get(at, (-1, 0))
                if size == gradient.size:
                    wanted[number] = at
        if self.read and wanted and self._program is not None:
            found = self._program.move_residents(frozenset(wanted))
            self._moved = {wanted[number]: memory.reshape(-1) for number, memory in found.items()}
            self.away = bool(found)
            self._pieces = self._pieces_of_sent()
        self.read = self.away  # what is not moved changes now
        moved, vector = self._moved, self.vector
        paired = [
            (at, gradient, moved[at] if at in moved else vector[at : at + gradient.size])
            for at, gradient in parts
        ]
        if self.away or not wanted:
            self._paired = parts, paired
        return paired

    def release(self) -> None:
        """Lets go of gradients that `beside` was given."""
        self._paired = None, []

    def copy_sent(self, target: Array) -> None:
        """Copies those that travel, from wherever they are."""
        if self.away:
            np.concatenate(self._pieces, out=target)
        else:
            target[...] = self._sent

    def _pieces_of_sent(self) -> list[Array]:
        """Those that travel in order, each piece from where it is."""
        pieces: list[Array] = []
        done, size = 0, self._sent.size
        for start, values in sorted(self._moved.items()):
            at = start - self._first
            if 0 <= at < size:  # what travels is made of whole tensors
                pieces += [self._sent[done:at], values] if at > done else [values]
                done = at + values.size
        return [*pieces, self._sent[done:]]
