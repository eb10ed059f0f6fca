"""Runs each example and puts the picture that it leaves into docs/pictures. Takes some minutes, and a broker.

Run it when an example, or what it shows, has changed: `python tools/make_gallery.py [NAME …]`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
EXAMPLES = (
    *("federated_digits", "personal_layers", "split_learning", "gossip_learning", "hierarchical"),
    "anomaly_detection",
)


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "examples" / name / "run.py"), "--out", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (picture,) = Path(folder).glob("*.png")
            shutil.copy(picture, PICTURES / f"{name}.png")
        print(PICTURES / f"{name}.png", (PICTURES / f"{name}.png").stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
