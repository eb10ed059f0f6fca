"""The TFLite backend: `Node.invoke` to result against bare LiteRT on the same flatbuffer and onnxruntime.

One thread each, in turns, outputs checked. Bare is what a user of the interpreter writes: `set_tensor`,
`invoke`, `get_tensor`; a net that is more than one flatbuffer has no such side. The int8 rows run nets that
were calibrated on random data: what they cost in time, and beside it how far they are from float. Cold start
and memory are those of fresh processes, as for NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx

from bb_edge.backends.tflite.probe import interpreter
from bb_edge.ir import keys
from bb_host.edge import build_edge
from bb_host.edge.quantize import Quantization
from benchmarks import models
from benchmarks.inference import Installed, cold, sampler, session_of
from benchmarks.measuring import Row, in_turns

OVERHEAD_US = 10.0
GEOMEAN_GOAL = 0.80
INT8_GOAL = 1.05
COLD_GOAL = 0.85
RSS_GOAL = 0.78
SAMPLES = 64
"""Of the calibration."""


def flatbuffer_of(data: bytes) -> bytes | None:
    """The only flatbuffer of an artifact; None where there are several, or none."""
    model = onnx.ModelProto.FromString(data)
    found = [
        attribute.s
        for function in model.functions
        for node in function.node
        if node.domain == keys.TFLITE_DOMAIN
        for attribute in node.attribute
        if attribute.name == "model"
    ]
    return bytes(found[0]) if len(found) == 1 else None


def bare(model: bytes) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """The interpreter by itself."""
    make = interpreter().make
    assert make is not None
    tflite = make(model_content=model, num_threads=1)
    tflite.allocate_tensors()
    (given,), (result,) = tflite.get_input_details(), tflite.get_output_details()
    at, out = given["index"], result["index"]

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        tflite.set_tensor(at, next(iter(inputs.values())))
        tflite.invoke()
        return np.asarray(tflite.get_tensor(out))

    return run


def _artifact(model: onnx.ModelProto, quantization: Any = None) -> bytes:
    (built,) = build_edge(model, backend="tflite", quantization=quantization).artifacts
    return built.data


def _rows(name: str, model: onnx.ModelProto, rounds: int, seconds: float) -> tuple[list[Row], float]:
    inputs = models.example(model)
    data = _artifact(model)
    node, session = Installed(data, name), session_of(model.SerializeToString())
    (want,) = session.run(None, inputs)  # type: ignore[attr-defined]
    sides = {"node": sampler(lambda: node(inputs))}
    whole = flatbuffer_of(data)
    alone = None if whole is None else bare(whole)
    for run in (node, *(() if alone is None else (alone,))):
        worst = float(np.abs(run(inputs) - want).max() / np.abs(want).max())
        assert worst < 1e-4, f"{name} differs from onnxruntime by {worst:.2g}"
    if alone is not None:
        sides["LiteRT"] = sampler(lambda: alone(inputs))
    sides["onnxruntime"] = sampler(lambda: session.run(None, inputs))  # type: ignore[attr-defined]
    times = in_turns(sides, rounds, seconds)
    ratio = times["node"] / times["onnxruntime"]
    found = [Row(f"{name}, invoke to result", times, "µs", ratio)]
    if alone is not None:
        beyond = times["node"] - times["LiteRT"]
        found.append(Row(f"{name}, beyond bare LiteRT", {"node": beyond}, "µs", goal=OVERHEAD_US))
    return found, ratio


def _int8(name: str, model: onnx.ModelProto, rounds: int, seconds: float) -> list[Row]:
    inputs = models.example(model)
    rng = np.random.default_rng(3)
    calibration = {
        key: np.concatenate([array, rng.standard_normal((SAMPLES, *array.shape[1:])).astype(array.dtype)])
        for key, array in inputs.items()
    }
    data = _artifact(model, Quantization("int8", calibration))
    whole = flatbuffer_of(data)
    assert whole is not None, f"{name} in int8 is no single flatbuffer"
    node, alone = Installed(data, name), bare(whole)
    session = session_of(model.SerializeToString())
    (want,) = session.run(None, inputs)  # type: ignore[attr-defined]
    got = node(inputs)
    error = float(np.abs(got - want).max() / (want.max() - want.min()))
    sides = {"node": sampler(lambda: node(inputs)), "LiteRT": sampler(lambda: alone(inputs))}
    times = in_turns(sides, rounds, seconds)
    goal = INT8_GOAL * times["LiteRT"] + OVERHEAD_US
    return [
        Row(f"{name} int8, invoke to result", times, "µs", times["node"] / goal, 1.0),
        Row(f"{name} int8, largest change over the outputs' range", {"int8": 100 * error}, "%", goal=2.0),
    ]


def run(rounds: int = 15, seconds: float = 6.0) -> list[Row]:
    """Rows per model, the geometric mean of the four of MLPerf Tiny, int8, cold start, memory."""
    found = interpreter()
    assert found.make is not None, str(found)
    rows: list[Row] = []
    ratios = []
    for name, build in models.ALL.items():
        more, ratio = _rows(name, build(), rounds, seconds)
        rows += more
        if name in models.MLPERF_TINY:
            ratios.append(ratio)
    mean = prod(ratios) ** (1 / len(ratios))
    rows.append(Row("MLPerf Tiny, geometric mean", {"node": mean}, "× onnxruntime", mean, GEOMEAN_GOAL))
    for name, build in models.MLPERF_TINY.items():
        rows += _int8(name, build(), rounds, seconds / 2)
    model = models.resnet8()
    times, peaks = cold("resnet8", _artifact(model), model, rounds, seconds)
    rows.append(Row("cold start, resnet8", times, "ms", times["ours"] / times["onnxruntime"], COLD_GOAL))
    rows.append(Row("peak RSS, resnet8", peaks, "MiB", peaks["ours"] / peaks["onnxruntime"], RSS_GOAL))
    return rows
