"""Where the author's program calls this package: the file and line that errors and warnings name."""

from __future__ import annotations

import os
import sys
from typing import TypeVar

import numpy as np

from bb_edge.ir.errors import AuthoringError

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NOT_THE_AUTHORS = (_PACKAGE, os.path.dirname(os.path.abspath(np.__file__)) + os.sep)
"""Folders whose frames are passed by: `np.mean(x)` is called at the author's line, not in NumPy."""

_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
"""Python's own, passed by as well: `statistics.mean(x)`. What is installed beneath it may be the author's."""

_INSTALLED = tuple(f"{_LIBRARY}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))

_E = TypeVar("_E", bound=AuthoringError)


def is_ours(file: str) -> bool:
    """Whether a file is one of this package."""
    return os.path.abspath(file).startswith(_PACKAGE)


def author_line() -> tuple[str, int]:
    """File and line of the innermost frame outside this package, NumPy and Python's library: the author's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _IS_NOT_THE_AUTHORS[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class _NotTheAuthors(dict[str, bool]):
    """Whether a file is not the author's, by name; remembered, since every op asks some ten times."""

    def __missing__(self, file: str) -> bool:
        library = file.startswith((_LIBRARY, "<frozen ")) and not file.startswith(_INSTALLED)
        self[file] = found = library or file.startswith(_NOT_THE_AUTHORS)
        return found


_IS_NOT_THE_AUTHORS = _NotTheAuthors()


def short_line(line: tuple[str, int]) -> str:
    """`file.py:12`, without the folder: what artifacts and messages say."""
    return f"{line[0].rpartition(os.sep)[2]}:{line[1]}"


def authoring_error(kind: type[_E], what: str, hint: str = "", line: tuple[str, int] | None = None) -> _E:
    """An error at the author's line, or at an earlier one that it is about."""
    line = author_line() if line is None else line
    return kind(what, short_line(line), hint, file=line[0], line=line[1])
