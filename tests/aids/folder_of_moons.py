"""What pages take for granted, written to the working directory: `python folder_of_moons.py [WHAT=OTHER …]`.

`moons.py`, the program of README.md, with each WHAT replaced by OTHER; and its data, as README.md makes it:
`train.npz`, `test.npz`, `attic.npz`, `cellar.npz`, two dimensions that a curve divides.
"""

from __future__ import annotations

import sys
from pathlib import Path

from page_steps import read_page

ROOT = Path(__file__).resolve().parents[2]


def write(replaced: list[str]) -> None:
    """Writes the files. Raises SystemExit for a WHAT that the program does not have."""
    shown = {step.name: step.text for step in read_page(ROOT / "README.md").steps if step.kind == "file"}
    text = shown["moons.py"]
    for each in replaced:
        what, _, other = each.partition("=")
        if what not in text:
            sys.exit(f"README.md has no {what!r}")
        text = text.replace(what, other)
    Path("moons.py").write_text(text)
    exec(shown["make_data.py"], {})


if __name__ == "__main__":
    write(sys.argv[1:])
