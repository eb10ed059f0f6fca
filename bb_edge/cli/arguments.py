"""Reads values of the command line that argparse does not know."""

from __future__ import annotations

import argparse
from pathlib import Path

from bb_edge.ir.errors import BBError

__all__ = ["LEVELS", "ArgumentError", "file_name", "given_value"]

LEVELS = ("debug", "info", "warning", "error")
"""Of the log, the lowest first."""


class ArgumentError(BBError):
    """A value on the command line is wrong, or one is missing: the exit code is USAGE."""


def file_name(text: str) -> Path:
    """Returns a path. Refuses an empty text: `--state "$UNSET"` does not mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not the name of a file or folder")
    return Path(text)


def given_value(name: str, text: str) -> object:
    """Returns the value of a flag: JSON if it parses as JSON, else the text.

    Raises ArgumentError for JSON that is nested too deep to be a setting.
    """
    from bb_edge.ir.plain_values import NestedTooDeep, from_json

    try:
        return from_json(text)
    except NestedTooDeep as error:
        raise ArgumentError(str(error), name, "give a flatter value") from error
    except ValueError:
        return text
