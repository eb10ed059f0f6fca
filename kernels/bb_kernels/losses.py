"""Losses over class scores: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Scores are [N,C,D…], labels [N,D…]. The mean divides by the sum of the weights of the labels that count. A
label outside of [0,C) raises KernelShapeError at run unless it is ``ignore_index``.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from .errors import KernelShapeError
from .registry import Call, kernel
from .spec import FLOAT, Array, Prepared, TensorSpec
from .ufuncs import add_reduce, max_reduce

_ATTRS = "ignore_index reduction"


class _Loss(NamedTuple):
    """The weighted negative log-likelihood of labels, with its shapes and reduction."""

    op_type: str
    rows: int  # N
    classes: int
    places: int  # product of D…
    shape: tuple[int, ...]  # of the labels
    reduction: str
    ignore: int | None

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Return the loss's shape: that of the labels without a reduction, else a scalar's."""
        return self.shape if self.reduction == "none" else ()

    def __call__(self, log_prob: Array, labels: Array, weights: Array | None, out: Array) -> None:
        """Compute the loss of log-probabilities [N,C,D…] into ``out``; allocates arrays like the labels."""
        at: Array = labels.reshape(self.rows, 1, self.places)
        counted: Any = True
        if self.ignore is not None:
            counted = at != self.ignore
            at = np.where(counted, at, 0)
        if at.size and (at.min() < 0 or at.max() >= self.classes):
            raise KernelShapeError(f"{self.op_type}: a label is outside of the {self.classes} classes")
        loss: Array = -np.take_along_axis(log_prob.reshape(self.rows, self.classes, self.places), at, 1)
        share = np.ones_like(loss) if weights is None else weights[at]
        share = share * counted
        loss *= share
        if self.reduction == "none":
            np.copyto(out, loss.reshape(self.shape))
            return
        add_reduce(loss, None, None, out)
        if self.reduction == "mean":
            np.divide(out, add_reduce(share, None), out)


def _loss(call: Call) -> _Loss:
    """Check scores, labels and weights against each other; KernelShapeError where they do not fit."""
    scores, labels = call.spec(0).shape, call.spec(1).shape
    if len(scores) < 2 or labels != (scores[0], *scores[2:]):
        raise KernelShapeError(f"{call.op_type}: scores {scores} and labels {labels} do not fit")
    if call.has(2) and call.spec(2).shape != (scores[1],):
        raise KernelShapeError(
            f"{call.op_type}: weights {call.spec(2).shape} must be a value for each of {scores[1]} classes"
        )
    ignore = call.int_attr("ignore_index") if "ignore_index" in call.attrs else None
    reduction = call.str_attr("reduction", "mean", ("none", "sum", "mean"))
    return _Loss(call.op_type, scores[0], scores[1], prod(scores[2:]), labels, reduction, ignore)


@kernel("NegativeLogLikelihoodLoss", "T I T?", since=12, dtypes=FLOAT, half=True, attrs=_ATTRS)
def _nll(call: Call) -> Prepared:
    """NegativeLogLikelihoodLoss (opset 12+) sums, averages or lists the negative score of each label.

    log_prob[N,C,D…], labels[N,D…], weights[C]? → loss[] or loss[N,D…]; floats (float16 via float32), labels
    int32 or int64. Run allocates some arrays like the labels.
    """
    loss, n = _loss(call), len(call.inputs)

    def run(*arrays: Any) -> None:
        loss(arrays[0], arrays[1], arrays[2] if n > 2 else None, arrays[n])

    return Prepared((TensorSpec(call.spec(0).dtype, loss.out_shape),), run)


@kernel("SoftmaxCrossEntropyLoss", "T I T?", since=12, dtypes=FLOAT, half=True, attrs=_ATTRS, max_outputs=2)
def _softmax_cross_entropy(call: Call) -> Prepared:
    """SoftmaxCrossEntropyLoss (opset 12+) is LogSoftmax over the classes, then NegativeLogLikelihoodLoss.

    scores[N,C,D…], labels[N,D…], weights[C]? → loss[] or loss[N,D…], log_prob[N,C,D…]?; floats (float16 via
    float32), labels int32 or int64. Run allocates some arrays like the labels.
    """
    spec, loss, n = call.spec(0), _loss(call), len(call.inputs)
    row = TensorSpec(spec.dtype, (spec.shape[0], 1, *spec.shape[2:]))

    def run(*arrays: Any) -> None:
        scores, outs, (own, exps, total) = (
            arrays[0],
            arrays[n : n + call.n_outputs],
            arrays[n + call.n_outputs :],
        )
        log_prob = outs[1] if call.n_outputs > 1 and outs[1] is not None else own
        max_reduce(scores, 1, None, total, True)
        np.subtract(scores, total, log_prob)
        np.exp(log_prob, exps)
        add_reduce(exps, 1, None, total, True)
        np.log(total, total)
        np.subtract(log_prob, total, log_prob)
        if outs[0] is not None:
            loss(log_prob, arrays[1], arrays[2] if n > 2 else None, outs[0])

    outputs = (TensorSpec(spec.dtype, loss.out_shape), spec)[: call.n_outputs]
    return Prepared(outputs, run, (spec, spec, row))
