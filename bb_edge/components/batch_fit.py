"""Forward pass, loss and gradient of a batch as one graph, run over the batch in chunks where it says so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bb_edge.components.gradient_sum import GradientSum
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.programs import BackendProgram

__all__ = ["BatchFit"]

_MOST = float(np.finfo(np.float32).max)


class BatchFit:
    """Runs the graph `fit`: (x, target, row_weights) to the weighted sum of the rows' losses, and gradients.

    Each row weighs 1/batch, so that the sum is the mean over the batch. With a `chunk`, the graph gets as
    many rows at a time: the batch is cut, and its end is filled up with copies of its first row, which weigh
    nothing. (Rows of zeros could give a nan, and 0 * nan is one.) Without, it gets the batch as it is. With a
    `factor`, rows weigh that times as much, and so the gradient is times it; the loss is not. A
    graph that takes statistics of a `whole` batch is given no parts of one: a chunk is the largest batch. A
    batch of fewer than `fewest` rows is refused: a variance of one number is 0.
    """

    def __init__(
        self,
        program: BackendProgram,
        chunk: int = 0,
        *,
        whole: bool = False,
        fewest: int = 0,
        classes: bool = False,
        factor: float = 1.0,
    ) -> None:
        """`classes` says that targets are numbers of classes, which are looked at for each batch."""
        self._factor = factor
        self.program = program
        self._chunk = chunk
        self._whole = whole
        self._classes = classes
        self._fewest = fewest
        self._loss: Array = np.zeros((), np.float32)
        self._others: tuple[Sequence[Array], Sequence[Array]] = ((self._loss,), ())
        self._usual: tuple[tuple[int, ...], ...] = ()  # shapes of a batch that was run whole, with `_weights`
        self._weights = np.zeros(0, np.float32)
        self._weighed = (0, 0, 0)  # the arguments that the weights are for
        self._padded: dict[int, Array] = {}  # by input: the last chunk of a batch that does not fill it

    def again(self, gradient: GradientSum, x: Array, target: Array) -> Array | None:
        """Does what `add` did last; None, and nothing is done, for a batch of other shapes or of classes.

        Most batches are as large as the one before, and nothing has to be asked of them.
        """
        if (x.shape, target.shape) != self._usual:
            return None
        gradient.add(self.program, (x, target, self._weights), self._others, 1.0, self._factor)
        loss = self._loss.item() / self._factor  # no further call: it is what each step does
        return np.array(loss, np.float32) if -_MOST < loss < _MOST else self._loss_times(1.0)

    def add(
        self,
        gradient: GradientSum,
        x: Array,
        target: Array,
        where: str,
        statistics: Sequence[Array] = (),
        scale: float = 1.0,
    ) -> Array:
        """Adds the batch's gradient, times the factor, to the sum; returns its mean loss, 0-D f32.

        Both are times `scale`.
        What the graph gives behind the gradients is written to `statistics`. ComponentError for a batch
        without rows, and for one that is smaller or larger than a graph for whole batches takes.
        """
        self._usual = ()
        if statistics is not self._others[1]:
            self._others = (self._loss,), statistics
        rows = target.shape[0] if target.ndim else 0
        if not rows:
            raise ComponentError(
                f"a batch of targets {list(target.shape)} has no rows",
                where,
                "train with a batch of one row or more",
            )
        if rows < self._fewest:
            raise ComponentError(
                f"the batch has {rows} of the {self._fewest} rows that normalizations need for a variance",
                where,
                f"train on {self._fewest} rows or more: raise batch_size of the data source; a source of your"
                " own leaves out a last batch that is smaller",
            )
        chunk = self._chunk
        if not chunk or (rows == chunk and x.shape[:1] == (rows,)):
            loss = self._run(gradient, x, target, self._row_weights(rows, rows, rows), scale)
            self._usual = () if self._classes else (x.shape, target.shape)
            return loss
        if x.shape[:1] != target.shape[:1]:
            raise ComponentError(
                f"the batch has {list(x.shape)} as input and {list(target.shape)} as target: "
                "their first dimensions differ",
                where,
            )
        if self._whole and rows > chunk:
            raise ComponentError(
                f"a batch of {rows} rows: its graph takes statistics of whole batches, {chunk} rows at most",
                where,
                f"train on {chunk} rows or fewer, or compile for {rows} (batch_size of the data source where"
                " it is bound, or the shape of the input); --backend numpy takes any batch",
            )
        total: Array = np.zeros((), np.float32)
        for start in range(0, rows, chunk):
            end = min(start + chunk, rows)
            weights = self._row_weights(chunk, end - start, rows)
            arrays = x[start:end], target[start:end]
            if end - start < chunk:
                arrays = self._filled(0, arrays[0]), self._filled(1, arrays[1])
            total += self._run(gradient, *arrays, weights, scale)
        return total

    def _run(self, gradient: GradientSum, x: Array, target: Array, weights: Array, scale: float) -> Array:
        gradient.add(self.program, (x, target, weights), self._others, scale, self._factor)
        return self._loss_times(scale)

    def _loss_times(self, scale: float) -> Array:
        loss = self._loss.item() / self._factor * scale
        if not -_MOST < loss < _MOST:
            loss *= math.inf  # which NumPy would warn of
        return np.array(loss, np.float32)

    def _row_weights(self, size: int, counted: int, rows: int) -> Array:
        if self._weighed != (size, counted, rows):
            if self._weights.size != size:
                self._weights = np.zeros(size, np.float32)
            self._weights[:counted] = np.float32(self._factor) / np.float32(rows)
            self._weights[counted:] = 0
            self._weighed = size, counted, rows
        return self._weights

    def _filled(self, position: int, rows: Array) -> Array:
        """A chunk that begins with `rows` and goes on with copies of the first of them."""
        shape = (self._chunk, *rows.shape[1:])
        padded = self._padded.get(position)
        if padded is None or padded.shape != shape or padded.dtype != rows.dtype:
            padded = self._padded[position] = np.empty(shape, rows.dtype)
        padded[: len(rows)] = rows
        padded[len(rows) :] = rows[0]
        return padded
