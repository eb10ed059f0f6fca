"""Files that a reader needs whole stay short enough to be read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = sorted((ROOT / "bb_edge" / "engine").rglob("*.py"))
LIMITS = {
    **dict.fromkeys(ENGINE, 350),
    ROOT / "bb_edge" / "node.py": 400,
    ROOT / "bb_edge" / "installer.py": 400,
}
INSTEAD = (
    "cut it where a reader would look for another file; longer lines and missing blank ones do not count"
)


def too_long(path: Path, most: int) -> bool:
    return len(path.read_text("utf-8").splitlines()) > most


def test_no_file_is_too_long_to_be_read_whole() -> None:
    assert len(ENGINE) > 40
    found = [
        f"{path.relative_to(ROOT)}: over {most} lines"
        for path, most in LIMITS.items()
        if too_long(path, most)
    ]
    assert not found, "\n".join([INSTEAD, *found])


@pytest.mark.parametrize(("lines", "is_too_long"), [(350, False), (351, True)])
def test_the_check_counts_lines(tmp_path: Path, lines: int, is_too_long: bool) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n" * lines)
    assert too_long(path, 350) is is_too_long
