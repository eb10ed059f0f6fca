"""Inference against onnxruntime: `Node.invoke` to result, and the bare backend program, one thread each.

Both sides run the same ordinary model in turns; ours is compiled by `bb_host.plain`, theirs optimised by its
session. Outputs are compared. Cold start and peak memory are those of fresh processes that load a file, run
it once and say how long that took and how large they grew; beside them a Python that imports NumPy and reads
its input. The steady state is what tracemalloc sees of one inference after a thousand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from bb_edge import NodeConfig, PeerId, install
from bb_edge.backends import NumPyBackend
from bb_edge.engine.steps import AppEvent
from bb_edge.node import Node
from bb_host.build import build_edge
from bb_host.plain import compile_plain_model
from benchmarks import models
from benchmarks.measuring import ROOT, Row, in_turns, nanoseconds

REPEATS = 40
"""Inferences per sample, of which the median counts."""

GOALS = {"autoencoder": 1.05}
GEOMEAN_GOAL = 2.5
COLD_GOAL = 0.85
RSS_GOAL = 0.55
STEADY_GOAL = 1024.0


def session_of(data: bytes) -> object:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


class Installed:
    """A node with one compiled model."""

    def __init__(self, data: bytes, target: str) -> None:
        self.node: Node = install(PeerId.from_name("bench"), (), data, [target], NodeConfig.host(), seed=1)
        self.target = target
        self.now = 0

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        self.node.invoke(self.target, inputs)
        self.now += 1
        for step in self.node.poll(self.now):
            if isinstance(step, AppEvent):
                assert isinstance(step.value, np.ndarray)
                return step.value
        raise AssertionError(f"{self.target} gave no result")


def bare(data: bytes) -> Callable[[list[np.ndarray]], tuple[np.ndarray, ...]]:
    """The backend program of an artifact, without an engine."""
    from bb_edge.ir.onnx_pb2 import ModelProto

    return NumPyBackend().prepare(ModelProto.FromString(data).functions[1]).run


def sampler(act: Callable[[], object]) -> Callable[[], float]:
    def sample() -> float:
        return median(nanoseconds(act) for _ in range(REPEATS)) / 1000

    return sample


def latency(name: str, model: onnx.ModelProto, rounds: int, seconds: float) -> dict[str, float]:
    """Medians in µs: `node`, `program`, `onnxruntime`. AssertionError where the results differ."""
    data = compile_plain_model(model).SerializeToString()
    inputs = models.example(model)
    node, program, session = Installed(data, name), bare(data), session_of(model.SerializeToString())
    arrays = list(inputs.values())
    (want,) = session.run(None, inputs)  # type: ignore[attr-defined]
    for got in (node(inputs), program(arrays)[0]):
        worst = float(np.abs(got - want).max() / np.abs(want).max())
        assert worst < 1e-4, f"{name} differs from onnxruntime by {worst:.2g}"
    sides = {
        "node": sampler(lambda: node(inputs)),
        "program": sampler(lambda: program(arrays)),
        "onnxruntime": sampler(lambda: session.run(None, inputs)),  # type: ignore[attr-defined]
    }
    for sample in sides.values():
        sample()
    return in_turns(sides, rounds, seconds)


def steady_state(name: str, model: onnx.ModelProto, runs: int = 1000) -> float:
    """Bytes that one inference takes at its peak, beyond its outputs, after `runs` of them."""
    node = Installed(compile_plain_model(model).SerializeToString(), name)
    inputs = models.example(model)
    size = node(inputs).nbytes
    tracemalloc.start()
    try:
        for _ in range(runs):
            node(inputs)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        node(inputs)
        return float(tracemalloc.get_traced_memory()[1] - before - size)
    finally:
        tracemalloc.stop()


# --- fresh processes ------------------------------------------------------------------------------

_OURS = """
import sys
import numpy as np
import bb_edge
x = np.load(sys.argv[2])
y = bb_edge.open_model(sys.argv[1])(x)
"""
_THEIRS = """
import sys
import numpy as np
import onnxruntime as ort
x = np.load(sys.argv[2])
o = ort.SessionOptions()
o.intra_op_num_threads = o.inter_op_num_threads = 1
s = ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"])
y = s.run(None, {"x": x})[0]
"""
_BARE = """
import sys
import numpy as np
y = np.load(sys.argv[2])
"""
# What a cold start adds for the digest: its module, an implementation of SHA-256, and the bytes.
_DIGEST = """
import sys
import time
import bb_edge.inference
from bb_edge.ir.seals import check_seal
data = open(sys.argv[1], "rb").read()
began = time.perf_counter()
check_seal(data)
sys.stdout.write(str((time.perf_counter() - began) * 1000))
"""
# VmHWM belongs to the new program alone; getrusage would give the parent's peak where that was larger.
_END = """
peak = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
sys.stdout.write(f"{float(abs(y).sum())} {peak}")
"""


def _fresh(script: str, *files: Path) -> str:
    """What a fresh process prints that runs a script."""
    folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "kernels", "firmware_shims"))
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, files)],
        # One thread for everybody, and compiled modules kept, as an installed package has them.
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
    if done.returncode:
        raise AssertionError(f"a fresh process failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _process(script: str, model: Path, x: Path) -> tuple[float, float, float]:
    """(milliseconds from spawn to end, peak MiB, checksum)."""
    began = time.perf_counter()
    said = _fresh(script + _END, model, x)
    took = (time.perf_counter() - began) * 1000
    checksum, peak = said.split()
    return took, int(peak) / 1024, float(checksum)


def digest_ms(data: bytes, rounds: int) -> float:
    """Median milliseconds that checking the digest of an artifact takes in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ours.onnx"
        file.write_bytes(data)
        return median(float(_fresh(_DIGEST, file)) for _ in range(rounds))


def cold(
    name: str, data: bytes, model: onnx.ModelProto, rounds: int, seconds: float
) -> tuple[dict[str, float], ...]:
    """Medians by side: milliseconds from spawn to end, and peak MiB. `data` is our artifact of the model."""
    peaks: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, x = (Path(folder) / file for file in ("ours.onnx", "theirs.onnx", "x.npy"))
        ours.write_bytes(data)
        theirs.write_bytes(model.SerializeToString())
        np.save(x, models.example(model)["x"])
        sums = {}

        def side(key: str, script: str, file: Path) -> Callable[[], float]:
            def sample() -> float:
                took, peak, sums[key] = _process(script, file, x)
                peaks.setdefault(key, []).append(peak)
                return took

            return sample

        sides = {
            "ours": side("ours", _OURS, ours),
            "onnxruntime": side("onnxruntime", _THEIRS, theirs),
            "bare Python": side("bare Python", _BARE, theirs),
        }
        for sample in sides.values():
            sample()
        times = in_turns(sides, rounds, seconds)
    difference = abs(sums["ours"] - sums["onnxruntime"])
    assert difference <= 1e-3 * abs(sums["onnxruntime"]), f"{name}: the processes disagree"
    return times, {key: median(found) for key, found in peaks.items()}


# --- all of it ------------------------------------------------------------------------------------


def run(rounds: int = 15, seconds: float = 6.0) -> list[Row]:
    """One row per model, the geometric mean of the four of MLPerf Tiny, cold start, memory, steady state."""
    rows = []
    ratios = []
    for name, build in models.ALL.items():
        figures = latency(name, build(), rounds, seconds)
        ratio = figures["node"] / figures["onnxruntime"]
        if name in models.MLPERF_TINY:
            ratios.append(ratio)
        rows.append(Row(f"{name}, invoke to result", figures, "µs", ratio, GOALS.get(name)))
    mean = prod(ratios) ** (1 / len(ratios))
    rows.append(Row("MLPerf Tiny, geometric mean", {"node": mean}, "× onnxruntime", mean, GEOMEAN_GOAL))
    model = models.resnet8()
    (artifact,) = build_edge(model).artifacts
    times, peaks = cold("resnet8", artifact.data, model, rounds, seconds)
    rows.append(Row("cold start, resnet8", times, "ms", times["ours"] / times["onnxruntime"], COLD_GOAL))
    what = f"of it: the digest of {len(artifact.data) // 1024} KiB"
    rows.append(Row(what, {"ours": digest_ms(artifact.data, rounds)}, "ms"))
    rows.append(Row("peak RSS, resnet8", peaks, "MiB", peaks["ours"] / peaks["onnxruntime"], RSS_GOAL))
    rows += [
        Row(
            f"steady state, {name}", {"beyond the output": steady_state(name, build())}, "B", goal=STEADY_GOAL
        )
        for name, build in models.MLPERF_TINY.items()
    ]
    return rows
