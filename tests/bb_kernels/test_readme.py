"""The example on the kernels page and in the package's docstring run as they are printed."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import bb_kernels

PAGE = Path(bb_kernels.__file__).parent.parent / "README.md"


def test_first_example_of_the_page() -> None:
    if not PAGE.exists():
        pytest.skip("the page is part of the repository, not of the package")
    code = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert names["out"].shape == (1, 8, 32, 32)  # type: ignore[attr-defined]


def test_docstring() -> None:
    assert doctest.testmod(bb_kernels).failed == 0
