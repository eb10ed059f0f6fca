"""The program that docs/tour.md shows is the example's. What its commands print is held by tests/pages."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
PROGRAM = (ROOT / "examples" / "federated_digits" / "federation.py").read_text()


def parts() -> list[str]:
    """The paragraphs of the two blocks that show the example."""
    shown = re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)[:2]
    return [part for block in shown for part in block.rstrip().split("\n\n")]


@pytest.mark.parametrize("shown", parts())
def test_the_program_is_the_examples(shown: str) -> None:
    assert shown in PROGRAM or textwrap.indent(shown, "    ") in PROGRAM
