"""Targets that are numbers of classes, checked against how many classes the model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["IGNORE_INDEX", "first_wrong", "mean_scale", "remedy"]

IGNORE_INDEX = -1
"""The target of a place that no loss is taken of, unless `ignore_index` names another."""


def mean_scale(targets: Array, count: int, ignored: int, where: str) -> float:
    """Returns the mean over the targets that are classes in terms of that over all, whose losses are then 0.

    1 where all are classes, none is, or `count` is 0: targets of another kind. Raises ComponentError where a
    target is neither one of `count` classes nor `ignored`. The loss of such a row would be 0, and its
    gradient too: data with other labels than the model was made for would be left out without a word.
    """
    if not count or not targets.size or targets.dtype.kind not in "iu":
        return 1.0
    least, greatest = int(targets.min()), int(targets.max())
    if least >= 0 and greatest < count and not 0 <= ignored < count:
        return 1.0
    left_out = targets == ignored
    wrong = targets[((targets < 0) | (targets >= count)) & ~left_out]
    if wrong.size:
        shown = greatest if greatest >= count and greatest != ignored else int(wrong.min())
        what = f"a target is class {shown}, the model has {count} classes, 0 to {count - 1}"
        raise ComponentError(what, where, remedy(ignored))
    counted = targets.size - int(np.count_nonzero(left_out))
    return targets.size / counted if counted else 1.0


def first_wrong(labels: Array, count: int, ignored: int) -> int | None:
    """Returns the first sample, [samples, …], with a label that `mean_scale` refuses; None for none."""
    if not labels.size or labels.dtype.kind not in "iu" or (labels.min() >= 0 and labels.max() < count):
        return None
    wrong = ((labels < 0) | (labels >= count)) & (labels != ignored)
    samples = wrong.reshape(len(labels), -1).any(axis=1)
    return int(samples.argmax()) if samples.any() else None


def remedy(ignored: int) -> str:
    """What to do about labels that are not classes of the model."""
    return (
        "number the labels from 0, or export a model with as many outputs as there are classes; "
        f"{ignored} is the label of a row that has no class (ignore_index of trainable)"
    )
