"""Memory: plans against their lower bounds, predicted against real RSS, and what an install weighs.

The bound of a plan is the largest sum of simultaneously live bytes, without the padding to cache lines that
the plan has. Besides our own models these are the vision architectures that come with the onnx package; their
weights are made while they run, and count. Sizes are exact and the same on every run; the RSS is that of a
fresh process with an installed node after two inferences.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from bb_host.build import build_edge
from bb_host.passes.device.memory_plan import PlannedGraph, plan_program
from bb_host.plain import compile_plain
from benchmarks import models
from benchmarks.measuring import ROOT, UNPACKED_GOAL, WHEEL_GOAL, Row

PLAN_GOAL = 1.05
MEASURED = ("autoencoder", "resnet8", "mobilenet", "u_net")
"""The nets whose RSS is compared with what compiling them predicts."""

PACKAGES = ("bb_edge", "bb_host", "kernels/bb_kernels", "firmware_shims/bb_shims")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def live(planned: PlannedGraph) -> int:
    """The largest sum of simultaneously live bytes, as they are."""
    changes: dict[int, int] = {}
    for life in planned.entries[0].lives:
        changes[life.first] = changes.get(life.first, 0) + life.nbytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.nbytes
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def _plan_row(name: str, planned: PlannedGraph) -> Row:
    assert not planned.reason, f"{name} has no plan: {planned.reason}"
    bound = live(planned)
    size, unit = (2**20, "MiB") if bound >= 2**20 else (2**10, "KiB")
    figures = {"arena": planned.arena / size, "live": bound / size}
    buffers = len(planned.entries[0].lives)
    return Row(f"plan of {name}, {buffers} buffers", figures, unit, planned.arena / bound, PLAN_GOAL)


def plans() -> list[Row]:
    """A row per model."""
    rows = []
    for name, build in models.ALL.items():
        (artifact,) = build_edge(build()).artifacts
        rows.append(_plan_row(name, artifact.planned[0]))
    for path in sorted(LIGHT.glob("light_*.onnx")):
        program = compile_plain(onnx.load(path), optimize=False)
        _, (planned,) = plan_program(program, program.name)
        rows.append(_plan_row(path.stem.removeprefix("light_"), planned))
    return rows


_NODE = """
import sys
import numpy as np
from bb_edge import NodeConfig, PeerId, install
with open(sys.argv[1], "rb") as file:
    node = install(PeerId.from_name("bench"), (), file.read(), [sys.argv[2]], NodeConfig.edge(), seed=1)
x = np.load(sys.argv[3])
for now in (1, 2):
    node.invoke(sys.argv[2], {"x": x})
    assert any(getattr(step, "topic", "") for step in node.poll(now))
peak = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
sys.stdout.write(peak)
"""


def _peak(artifact: Path, target: str, x: Path) -> float:
    """MiB."""
    folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "kernels", "firmware_shims"))
    done = subprocess.run(
        [sys.executable, "-c", _NODE, str(artifact), target, str(x)],
        env={
            **os.environ,
            "PYTHONPATH": folders,
            "PYTHONDONTWRITEBYTECODE": "",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"a fresh process failed: {done.stderr.strip().splitlines()[-1:]}"
    return int(done.stdout) / 1024


def predictions(rounds: int) -> list[Row]:
    """Predicted against real peak RSS."""
    rows = []
    for name in MEASURED:
        net = models.ALL[name]()
        (artifact,) = build_edge(net).artifacts
        with tempfile.TemporaryDirectory() as folder:
            file, x = Path(folder) / "a.onnx", Path(folder) / "x.npy"
            file.write_bytes(artifact.data)
            np.save(x, models.example(net)["x"])
            _peak(file, artifact.target, x)  # compiled modules are there from now on
            real = median(_peak(file, artifact.target, x) for _ in range(max(1, min(rounds, 3))))
        predicted = artifact.report.rss_bytes / 2**20
        rows.append(
            Row(f"RSS of {name} on a node", {"predicted": predicted, "real": real}, "MiB", predicted / real)
        )
    return rows


def install_size() -> list[Row]:
    """The four packages as a wheel packs them, and as they lie on the disk of a device."""
    packed = io.BytesIO()
    unpacked = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for path in sorted((ROOT / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(ROOT))
                    unpacked += path.stat().st_size
    return [
        Row("wheel", {"packed": len(packed.getvalue()) / 1000}, "kB", goal=WHEEL_GOAL),
        Row("wheel, unpacked", {"on disk": unpacked / 1000}, "kB", goal=UNPACKED_GOAL),
    ]


def run(rounds: int = 3, seconds: float = 6.0) -> list[Row]:
    """Plans, predictions, install size. Sizes need no time: `seconds` is not looked at."""
    del seconds
    return [*plans(), *predictions(rounds), *install_size()]
