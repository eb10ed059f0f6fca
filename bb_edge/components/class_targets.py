"""Targets that are numbers of classes, checked against how many classes the model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb_edge.roles.errors import ComponentError

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["NO_CLASS", "check_classes"]

NO_CLASS = -1
"""The target of a place that no loss is taken of."""


def check_classes(targets: Array, count: int, where: str) -> None:
    """Raises ComponentError where a target is neither one of `count` classes nor `NO_CLASS`.

    The loss of such a row would be 0, and its gradient too: data with other labels than the model was made
    for would be left out without a word.
    """
    if not targets.size or targets.dtype.kind not in "iu":
        return
    least, greatest = int(targets.min()), int(targets.max())
    if least >= NO_CLASS and greatest < count:
        return
    wrong = greatest if greatest >= count else least
    raise ComponentError(
        f"a target is class {wrong}, the model has {count} classes, 0 to {count - 1}",
        where,
        f"number the labels from 0, or export a model with as many outputs as there are classes; "
        f"{NO_CLASS} is the label of a row that has no class",
    )
