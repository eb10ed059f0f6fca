"""The environment in which pages are run."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READER = os.environ.get("BB_TEST_READER", "")
"""The Python of an environment that has the wheel: `./dev pages` makes one."""

HELPERS = {
    "MOONS": str(ROOT / "tests" / "aids" / "folder_of_moons.py"),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment whose `python`, `bb-host` and `bb-edge` are this checkout's, or those beside READER."""
    if READER:
        beside = [Path(READER).with_name(name) for name in ("python", "bb-host", "bb-edge")]
        assert all(path.is_file() for path in beside), f"BB_TEST_READER={READER}: no wheel is installed there"
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = os.pathsep.join([str(Path(READER).parent), os.environ["PATH"], "/usr/sbin"])
        return {**own, **HELPERS, "PATH": path}
    folder = tmp_path / "bin"
    folder.mkdir()
    commands = {
        **dict.fromkeys(("python", "python3"), ""),
        "bb-host": "-m bb_host.cli",
        "bb-edge": "-m bb_edge.cli",
    }
    for name, arguments in commands.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    roots = [ROOT, ROOT / "kernels", ROOT / "firmware_shims", ROOT / "examples", ROOT / "tests" / "aids"]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"], "/usr/sbin"]),
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        **HELPERS,
    }
