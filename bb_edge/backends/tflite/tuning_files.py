"""Where `bb-edge bench --tune` writes what was measured of an artifact. Loads nothing: `run` only looks."""

from __future__ import annotations

import os

TUNING_SUFFIX = ".tune.json"
"""End of the name of the file beside an artifact with what was measured on this device."""


def tuning_of(artifact: str | os.PathLike[str]) -> str | None:
    """The path of the file that `bb-edge bench --tune` wrote for this artifact; None if there is none."""
    place = os.fspath(artifact).removesuffix(".onnx") + TUNING_SUFFIX
    return place if os.path.isfile(place) else None
