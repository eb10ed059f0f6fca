"""Types of command line values that argparse does not have."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["file_name"]


def file_name(text: str) -> Path:
    """Returns a path. Refuses an empty text: `--state "$UNSET"` does not mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not the name of a file or folder")
    return Path(text)
