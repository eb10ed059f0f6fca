"""What a flat vector of parameters consists of: its size, and the hash by which others know its layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bb_edge.components.parameter_file import layout_of
from bb_edge.ir.annotated import metadata_of

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["METADATA_HASH", "METADATA_LAYOUT", "VectorLayout", "cut"]

METADATA_LAYOUT, METADATA_HASH = "layout", "hash"
"""Keys of the metadata of a parameter tensor: `"w1:64x32;b1:32"`, and FNV-1a-64 of it in hex."""

_MAX_LAYOUT = 512  # longer layouts travel as their hash alone


class VectorLayout:
    """The layout of a 1-D f32 vector over some tensors, in their order.

    `size` is its length, `hash` FNV-1a-64 of the layout in hex, `metadata` what a vector says of itself.
    """

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.size = sum(array.size for array in tensors.values())
        layout, self.hash = layout_of(tensors)
        self.metadata = {METADATA_HASH: self.hash}
        if len(layout) <= _MAX_LAYOUT:
            self.metadata[METADATA_LAYOUT] = layout

    def misfit(self, vector: Array) -> tuple[str, str]:
        """Returns what is wrong with a vector, and the remedy; empty texts where it has this layout."""
        if vector.ndim != 1 or vector.size != self.size:
            return f"has shape {list(vector.shape)}, the model takes [{self.size}]", ""
        if vector.dtype != np.float32:
            return f"is {vector.dtype}, not float32", ""
        given = metadata_of(vector).get(METADATA_HASH)
        if given is not None and given != self.hash:
            what = f"is laid out for another model ({given}, this one is {self.hash})"
            return what, "run the same version of the program on both sides"
        return "", ""


def cut(flat: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """Tensors of these shapes as views of a flat vector, in order."""
    found, offset = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(flat[offset : offset + size].reshape(shape))
        offset += size
    return tuple(found)
