"""The option `bb-edge bench --tune`: measures what runs each flatbuffer fastest on this device.

Every `Model` of the artifact runs on the interpreter with 1, 2, 4, … threads, up to the number of cores, and
on NumPy if the artifact holds its ops. The ways take turns, and their medians are compared. The choice is
written to a file beside the artifact, which `bb-edge run`, `bb-edge bench` and `bb_edge.open_model` read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.errors import TFLiteInterpreterError
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.backends.tflite.program import TFLiteProgram
from bb_edge.backends.tflite.tuning import Choice, save_tuning
from bb_edge.backends.tflite.tuning_files import TUNING_SUFFIX
from bb_edge.input_files import read_artifact
from bb_edge.ir import keys
from bb_edge.ir.onnx_reader import read_model
from bb_edge.loading import load
from bb_edge.roles.errors import BackendError
from bb_edge.roles.programs import BackendProgram

ROUNDS = 25
"""Runs of each way: enough for a median on a machine that does other work too."""
SECONDS = 2.0
"""Seconds for one model, all ways together; slow models get fewer rounds, three at least."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The figures of one flatbuffer, and the choice.

    A way is `"numpy"` or a number of threads; `microseconds` is the median of each.
    """

    sha256: str
    ops: str
    microseconds: dict[str, float]
    chosen: str


def tune(artifact: Path) -> tuple[list[Tuned], Path]:
    """Measures all models and writes the file; returns the figures and the path of the file.

    Raises TFLiteInterpreterError where no interpreter runs, BackendError for an artifact without flatbuffers.
    """
    chosen = interpreter()
    if chosen.make is None:
        raise TFLiteInterpreterError(
            f"there is {chosen}", "bench --tune", "install bytesandbrains-edge[litert] or [tflite]"
        )
    data = read_artifact(artifact)
    load(data)  # says what is wrong with an artifact
    proto: Any = read_model(data)
    functions = {(f.domain, f.name): f for f in proto.functions}
    tuned: dict[str, Tuned] = {}
    for node in _models(proto):
        attributes = {attribute.name: attribute.s for attribute in node.attribute}
        if not {"model", "sha256"} <= attributes.keys():
            raise BackendError("a flatbuffer of it is damaged", str(artifact), "compile it again")
        digest = attributes["sha256"].decode("utf-8", "replace")
        if digest not in tuned:
            ways = _ways(node, attributes, functions)
            tuned[digest] = _measured(digest, attributes.get("ops", b"").decode(), ways)
    if not tuned:
        raise BackendError(
            "it holds no flatbuffer", str(artifact), "compile it with --backend auto or --backend tflite"
        )
    place = Path(os.fspath(artifact).removesuffix(".onnx") + TUNING_SUFFIX)
    choices = {digest: Choice(0 if t.chosen == "numpy" else int(t.chosen)) for digest, t in tuned.items()}
    save_tuning(place, choices, chosen)
    return list(tuned.values()), place


def _models(proto: Any) -> Iterator[Any]:
    for function in proto.functions:
        for node in function.node:
            if node.domain == keys.TFLITE_DOMAIN:
                yield node


def _threads() -> list[int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [1]
    while counts[-1] * 2 <= cores:
        counts.append(counts[-1] * 2)
    return counts


def _ways(node: Any, attributes: dict[str, bytes], functions: Any) -> dict[str, BackendProgram]:
    """The programs that are compared, by the name of their way."""
    make = interpreter().make
    assert make is not None
    model, digest = bytes(attributes["model"]), bytes(attributes["sha256"])
    ports = (len(node.input), len(node.output))
    ways: dict[str, BackendProgram] = {
        str(threads): TFLiteProgram(make, model, digest, *ports, threads, "bench --tune")
        for threads in _threads()
    }
    name = attributes.get("fallback", b"").decode("utf-8", "replace")
    plain = functions.get((keys.BACKEND_DOMAIN, name))
    if plain is not None:
        ways["numpy"] = TFLiteBackend().prepare(plain, functions)
    return ways


def _measured(digest: str, ops: str, ways: dict[str, BackendProgram]) -> Tuned:
    first = ways["1"]
    assert isinstance(first, TFLiteProgram)
    rng = np.random.default_rng(0)
    inputs = [_example(rng, dtype, shape) for dtype, shape in first.ports]
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for program in ways.values():
        for _ in range(3):
            program.run(inputs)
    end = time.perf_counter() + SECONDS
    for number in range(ROUNDS):
        if number >= 3 and time.perf_counter() > end:
            break
        for way, program in ways.items():
            began = time.perf_counter()
            program.run(inputs)
            taken[way].append((time.perf_counter() - began) * 1e6)
    figures = {way: median(times) for way, times in taken.items()}
    return Tuned(digest, ops, figures, min(figures, key=lambda way: figures[way]))


def _example(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    dims = [abs(d) for d in shape]  # an open dimension (-1) becomes 1
    if dtype.kind == "f":
        return rng.standard_normal(dims).astype(dtype)
    return rng.integers(0, 2, dims).astype(dtype)
