"""What pages take for granted, written to the working directory: `python folder_of_moons.py [WHAT=OTHER …]`.

`moons.py`, the program of README.md, with each WHAT replaced by OTHER; and its data: `train.npz`, `test.npz`,
`attic.npz`, `cellar.npz`, two dimensions that a curve divides.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from page_steps import read_page

ROOT = Path(__file__).resolve().parents[2]


def write(replaced: list[str]) -> None:
    """Writes the files. Raises SystemExit for a WHAT that the program does not have."""
    (program,) = (step for step in read_page(ROOT / "README.md").steps if step.name == "moons.py")
    text = program.text
    for each in replaced:
        what, _, other = each.partition("=")
        if what not in text:
            sys.exit(f"README.md has no {what!r}")
        text = text.replace(what, other)
    Path("moons.py").write_text(text)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 2)).astype(np.float32)
    y = (x[:, 0] > x[:, 1] ** 2 - 0.5).astype(np.int64)
    rows = {"train": slice(None), "test": slice(400), "attic": slice(0, None, 2), "cellar": slice(1, None, 2)}
    for name, chosen in rows.items():
        np.savez(f"{name}.npz", x=x[chosen], y=y[chosen])


if __name__ == "__main__":
    write(sys.argv[1:])
