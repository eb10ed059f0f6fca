"""An array that carries the metadata of its TensorProto, as a model's parameters do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["AnnotatedArray", "annotate", "metadata_of"]


class AnnotatedArray(np.ndarray[Any, np.dtype[Any]]):
    """An ndarray with `metadata`, its TensorProto's `metadata_props`; results of arithmetic have none."""

    metadata: Mapping[str, str]

    def __array_finalize__(self, source: object) -> None:
        self.metadata = {}


def annotate(array: np.ndarray[Any, np.dtype[Any]], metadata: Mapping[str, str]) -> AnnotatedArray:
    """Returns a view of `array` that carries `metadata`."""
    view = array.view(AnnotatedArray)
    view.metadata = metadata
    return view


def metadata_of(array: object) -> Mapping[str, str]:
    """Returns the metadata that an array carries; empty for plain ones."""
    return array.metadata if type(array) is AnnotatedArray else {}
