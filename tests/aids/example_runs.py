"""The examples as their users start them: `python run.py …` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def started(script: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """What an example's script did with these words."""
    return subprocess.run(
        [sys.executable, script, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )


def printed(script: Path, *words: object) -> str:
    """What an example prints that comes to its end; skips the test where no broker is installed."""
    found = started(script, *words)
    if "no MQTT broker on this machine" in found.stderr:
        pytest.skip("no broker is installed here")
    assert found.returncode == 0, found.stderr
    return found.stdout
