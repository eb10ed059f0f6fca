"""Values of command lines that argparse has no type for."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["file_name"]


def file_name(text: str) -> Path:
    """A path. `--state "$UNSET"` is a mistake, and not the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no file and no folder")
    return Path(text)
