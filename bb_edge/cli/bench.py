"""The verb `bb-edge bench`: measures the latency, memory and cold start of inference on this device.

Latencies are those of a target that is called as a function (`bb_edge.open_model`). Cold start is the time
from the spawn of a fresh Python to its first output; the peak of memory is that of the fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.array_files import ArrayFileError, read_arrays
from bb_edge.cli.arguments import file_name
from bb_edge.cli.run_settings import parse_set
from bb_edge.inference import InferenceError, Model, open_model
from bb_edge.input_files import FileRefused, refuse_special
from bb_edge.ir.types import dtype_of_elem
from bb_edge.registry import load_all
from bb_edge.user_modules import add_load

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

PERCENTILES = (50, 90, 99)
COLD_RUNS = 3
"""Fresh processes; the median of three ignores one that waited for the disk."""
MAX_RUNS = 1_000_000
"""Runs that can be asked for: their times take 8 MB."""

_FRESH = """
import json
import sys
import numpy as np
import bb_edge
if sys.argv[5:]:
    from bb_edge.registry import load_all
    load_all(sys.argv[5:])
model = bb_edge.open_model(sys.argv[1], sys.argv[2], components=json.loads(sys.argv[4]))
with np.load(sys.argv[3]) as inputs:
    model.run(dict(inputs))
with open("/proc/self/status") as status:
    sys.stdout.write(status.read().partition("VmHWM:")[2].split()[0])
"""


def add_parser(verbs: Any) -> None:
    p: argparse.ArgumentParser = verbs.add_parser("bench", help="measure inference on this device")
    p.add_argument("artifact", type=file_name, help="a compiled .onnx file")
    p.add_argument("--target", metavar="NAME", help="partition, if there are several")
    p.add_argument("--set", action="append", default=[], metavar="SLOT.KEY=VALUE", help="as for run")
    p.add_argument(
        "--inputs", type=file_name, metavar="IN.npz", help="an array per input (default: seeded noise)"
    )
    p.add_argument("--outputs", type=file_name, metavar="OUT.npz", help="write the results there")
    p.add_argument("--runs", type=int, default=200, metavar="N", help="inferences to time (default: 200)")
    p.add_argument(
        "--no-cold-start", action="store_true", help="do not measure the cold start in fresh processes"
    )
    p.add_argument(
        "--tune",
        action="store_true",
        help="measure how each TFLite model runs fastest here, and write that beside the artifact",
    )
    add_load(p)
    p.add_argument("--json", action="store_true")
    p.set_defaults(run=run)


def noise(model: Model) -> dict[str, Array]:
    """Makes seeded inputs of the declared shapes and dtypes; open dims are 1.

    Floats are drawn from a normal distribution, all others are 0 or 1. Raises InferenceError for an input
    without a declared dtype and shape.
    """
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for name, value in model.inputs.items():
        dtype = dtype_of_elem(value.node.elem_type or 0)
        if dtype is None or value.shape is None:
            raise InferenceError(f"input {name!r} declares no type and shape", "bench", "give --inputs")
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        try:
            array = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        except (MemoryError, ValueError) as error:
            what = f"input {name!r} declares {value}, which cannot be made: {error}"
            raise InferenceError(what, "bench", "give --inputs") from error
        arrays[name] = np.asarray(array).astype(dtype)
    return arrays


def measure(model: Model, inputs: Mapping[str, Array], runs: int) -> dict[str, float]:
    """Measures latencies in microseconds: mean, minimum and percentiles, after a few runs to warm up."""
    for _ in range(min(runs, 10)):
        model.run(inputs)
    times = np.empty(runs)
    clock = time.perf_counter_ns
    for i in range(runs):
        began = clock()
        model.run(inputs)
        times[i] = clock() - began
    times /= 1000
    figures = {"mean_us": float(times.mean()), "min_us": float(times.min())}
    figures.update((f"p{p}_us", float(np.percentile(times, p))) for p in PERCENTILES)
    return figures


def cold_start(model: Sequence[str], load: Sequence[str] = ()) -> dict[str, float]:
    """Measures the time from spawn to first output (median, ms) and the peak of memory (largest, bytes).

    `model`: the artifact, its target, a file of inputs, and the configuration of slots as JSON. Each fresh
    process loads the files and modules of `load` first. Raises InferenceError where one fails.
    """
    times, peaks = [], []
    for _ in range(COLD_RUNS):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _FRESH, *model, *load],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=False,
        )
        times.append((time.perf_counter() - began) * 1000)
        if done.returncode or not done.stdout.strip().isdigit():
            reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise InferenceError(f"a fresh process failed: {reason}", "bench", "try --no-cold-start")
        peaks.append(int(done.stdout) * 1024)
    return {"cold_start_ms": sorted(times)[len(times) // 2], "peak_rss_bytes": max(peaks)}


def _load(path: Path) -> dict[str, Array]:
    try:
        arrays = read_arrays(path)
    except (ArrayFileError, FileRefused) as error:
        raise InferenceError(error.what, str(path), error.hint) from error
    if "" in arrays:
        raise InferenceError(
            "it holds one array, not one per input by name", str(path), "write it with np.savez"
        )
    return arrays


def _tune(arguments: argparse.Namespace) -> int:
    from bb_edge.cli.tune import tune

    models, place = tune(arguments.artifact)
    if arguments.json:
        print(json.dumps({"file": str(place), "models": [asdict(tuned) for tuned in models]}))
        return 0
    for tuned in models:
        print(f"{tuned.sha256[:12]}  {tuned.ops}")
        for way, took in tuned.microseconds.items():
            name = "NumPy" if way == "numpy" else f"{way} thread{'s' if way != '1' else ''}"
            print(f"  {name:10} {took:12,.1f} µs{'  ← chosen' if way == tuned.chosen else ''}")
    print(f"written to {place}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    import tempfile

    load_all(arguments.load)
    if arguments.tune:
        return _tune(arguments)

    if not 0 < arguments.runs <= MAX_RUNS:
        raise InferenceError(f"--runs {arguments.runs} is out of range", hint=f"give 1 to {MAX_RUNS}")
    components = parse_set(arguments.set)
    began = time.perf_counter()
    model = open_model(arguments.artifact, arguments.target, components=components)
    opened = (time.perf_counter() - began) * 1000
    inputs = _load(arguments.inputs) if arguments.inputs else noise(model)
    began = time.perf_counter()
    outputs = model.run(inputs)
    first = (time.perf_counter() - began) * 1000
    if arguments.outputs:
        refuse_special(arguments.outputs)
        with open(arguments.outputs, "wb") as target:  # given a name, np.savez would add a suffix to it
            np.savez(target, **outputs)  # type: ignore[arg-type]
    figures: dict[str, object] = {
        "artifact": arguments.artifact.name,
        "target": model.target,
        "runs": arguments.runs,
        "open_ms": opened,
        "first_run_ms": first,
        **measure(model, inputs, arguments.runs),
    }
    figures["arena_bytes"] = getattr(model.program, "arena_bytes", None)
    if not arguments.no_cold_start and Path("/proc/self/status").exists():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "inputs.npz"
            np.savez(path, **inputs)  # type: ignore[arg-type]
            again = (str(arguments.artifact), model.target, str(path), json.dumps(components))
            figures.update(cold_start(again, arguments.load))
    if arguments.json:
        print(json.dumps(figures))
        return 0
    for key, value in figures.items():
        text = f"{value:,.1f}" if isinstance(value, float) else "-" if value is None else str(value)
        print(f"{key:16} {text}")
    return 0
