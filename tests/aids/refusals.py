"""What a wrong program must be answered with: a typed error, at the author's line, with a way out."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bb_edge.ir.errors import BBError

_LINE = re.compile(r"(?P<file>[^\s:]+\.py):(?P<line>\d+)")
MARK = "# <-"
"""Ends the line of a test that an error has to name."""


@contextlib.contextmanager
def refused(kind: type[BBError], *words: str, marked: bool = True) -> Iterator[None]:
    """The block raises `kind`; its text holds all `words`, names a line marked `# <-`, and gives a remedy.

    `marked=False` is for what has no line of an author: a file, a configuration, an artifact. The marked line
    is looked for in the file of the test.
    """
    test = Path(sys._getframe(2).f_code.co_filename)
    with pytest.raises(BBError) as caught:
        yield
    error = caught.value
    text = str(error)
    assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {text}"
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
    assert error.hint, f"no remedy in: {text}"
    if marked:
        places = [(m["file"], int(m["line"])) for m in _LINE.finditer(error.where)]
        lines = [linecache.getline(str(test), line).rstrip() for file, line in places if file == test.name]
        assert any(line.endswith(MARK) for line in lines), f"no marked line named in: {text}"
