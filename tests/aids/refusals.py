"""What a wrong program must be answered with: a typed error, at the author's line, with a way out."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bb_edge.ir.errors import BBError

if TYPE_CHECKING:
    from bb_host.compiler import Compiler
    from bb_host.compiler.driver import Source
    from bb_host.diagnostics import ProgramWarning

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
        lines = [
            linecache.getline(str(test), line).rstrip()
            for file, line in places
            if Path(file).name == test.name
        ]
        assert any(line.endswith(MARK) for line in lines), f"no marked line named in: {text}"


def warned(
    code: str, *words: str, program: Source, compiler: Compiler | None = None, marked: bool = True
) -> ProgramWarning:
    """Compiles `program`, which gives one warning: `code`, with all `words`, a marked line and a remedy.

    `marked=False` is for what has no line of an author. Returns the warning.
    """
    test = Path(sys._getframe(1).f_code.co_filename)
    found = _warnings(program, compiler)
    assert [w.code for w in found] == [code], [w.render() for w in found]
    warning = found[0]
    text = warning.render()
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
    assert warning.hint, f"no remedy in: {text}"
    if marked:
        assert warning.file == test.name, text
        assert linecache.getline(str(test), warning.line).rstrip().endswith(MARK), text
    return warning


def quiet(program: Source, compiler: Compiler | None = None) -> None:
    """Compiles `program`, which gives no warning."""
    found = _warnings(program, compiler)
    assert not found, [w.render() for w in found]


def _warnings(program: Source, compiler: Compiler | None) -> tuple[ProgramWarning, ...]:
    from bb_host.compiler import Compiler  # boards without the host use `refused`

    return (compiler or Compiler()).run(program).warnings
