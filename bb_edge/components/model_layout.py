"""What of a model's parameters follows from their names and shapes: the same for all nodes of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.components.vector_layout import VectorLayout

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.component import ComponentEnv

__all__ = ["LAYOUT_KEYS", "ModelLayout", "checked_counts", "room_for_parameters"]

LAYOUT_KEYS = ("personal_tensors", "personal_statistics", "statistics", "untrained_tensors")
"""The keys of a model's configuration that count tensors, in the order of `ModelLayout`'s arguments."""


class ModelLayout:
    """Where each tensor lies in the flat vector of parameters, which are sent, and which are learned.

    Personal tensors stand before those that are sent, personal statistics behind them. Learned tensors stand
    before those that are sent alone, and statistics are the last ones. `all` and `sent` are the layouts of
    the vector and of the part that travels, which begins at `sent_from`; `personal` names what stays here;
    `tensors_learned` tensors with
    `learned` numbers are learned, and statistics have `statistics` numbers.
    """

    def __init__(
        self,
        tensors: Mapping[str, Array],
        personal_tensors: int = 0,
        personal_statistics: int = 0,
        statistics: int = 0,
        untrained_tensors: int = 0,
    ) -> None:
        sizes = [array.size for array in tensors.values()]
        self.names = tuple(tensors)
        self.shapes = tuple(array.shape for array in tensors.values())
        self.all = VectorLayout(tensors)
        end = len(tensors) - personal_statistics
        self.sent = VectorLayout(dict(list(tensors.items())[personal_tensors:end]))
        self.personal = (*self.names[:personal_tensors], *self.names[end:])
        self.sent_from = sum(sizes[:personal_tensors])
        self.statistic_shapes = self.shapes[len(sizes) - statistics :]
        self.tensors_learned = len(sizes) - statistics - untrained_tensors
        self.learned = sum(sizes[: self.tensors_learned])
        self.statistics = sum(sizes[len(sizes) - statistics :])


def checked_counts(env: ComponentEnv, read: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the settings of `LAYOUT_KEYS`, in their order.

    ComponentError where they count more tensors than there are.
    """
    room = len(env.tensors)
    for key in ("statistics", "untrained_tensors", "personal_tensors"):  # one after another, no overlap
        if read[key] > room:
            others = "" if room == len(env.tensors) else f", {room} of which are left for it"
            raise env.error(f"{key} is {read[key]}, it has {len(env.tensors)} parameters{others}", key)
        room -= read[key]
    if read["personal_statistics"] > read["statistics"]:
        what = f"personal_statistics is {read['personal_statistics']}, of {read['statistics']} statistics"
        raise env.error(what, "personal_statistics")
    return tuple(read[key] for key in LAYOUT_KEYS)


def room_for_parameters(size: int) -> Array:
    """Returns memory for so many parameters, 1-D f32; what is in it says nothing."""
    return np.empty(size, np.float32)
