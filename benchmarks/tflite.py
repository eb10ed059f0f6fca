"""The TFLite backend: `Node.invoke` to result against bare LiteRT on the same flatbuffer and onnxruntime.

One thread each, in turns, several instances of node and interpreter, outputs checked. Bare is what a user
of the interpreter writes: `set_tensor`, `invoke`, `get_tensor`; a net that is more than one flatbuffer has no
such side. The int8 rows run nets that were calibrated on random data: what they cost in time beside the same
flatbuffer alone and beside onnxruntime's own int8 of the same samples, and how far they are from float. Cold
start and memory are those of fresh processes, as for NumPy.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from bb_edge.backends.tflite.probe import interpreter
from bb_edge.ir import keys
from bb_host.build import build_edge
from bb_host.passes.device.quantize import Quantization
from benchmarks import models
from benchmarks.inference import Installed, cold, sampler, session_of
from benchmarks.measuring import Row, in_turns

OVERHEAD_US = 6.0
GEOMEAN_GOAL = 0.85
INT8_GOAL = 1.05
COLD_GOAL = 0.85
RSS_GOAL = 0.75
SAMPLES = 64
"""Of the calibration."""


INSTANCES = 5
"""Of each side. Where an interpreter's buffers happen to lie is worth some µs, and stays so for its life."""

Runner = Callable[[Mapping[str, np.ndarray]], np.ndarray]


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


def bare(model: bytes) -> Runner:
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


def _one_after_the_other(
    instances: Sequence[Runner], inputs: Mapping[str, np.ndarray]
) -> Callable[[], float]:
    """Samples of each in turn."""
    samplers = itertools.cycle([sampler(partial(run, inputs)) for run in instances])

    def sample() -> float:
        return next(samplers)()

    return sample


def _artifact(
    model: onnx.ModelProto, quantization: Any = None, backend: Literal["auto", "tflite"] = "tflite"
) -> bytes:
    (built,) = build_edge(model, backend=backend, quantization=quantization).artifacts
    return built.data


def _rows(name: str, model: onnx.ModelProto, rounds: int, seconds: float) -> tuple[list[Row], float]:
    inputs = models.example(model)
    data = _artifact(model)
    session = session_of(model.SerializeToString())
    (want,) = session.run(None, inputs)  # type: ignore[attr-defined]
    whole = flatbuffer_of(data)
    nodes: list[Runner] = []
    alone: list[Runner] = []
    for _ in range(INSTANCES):
        nodes.append(Installed(data, name))
        if whole is not None:
            alone.append(bare(whole))
    for run in (*nodes, *alone):
        worst = float(np.abs(run(inputs) - want).max() / np.abs(want).max())
        assert worst < 1e-4, f"{name} differs from onnxruntime by {worst:.2g}"
    sides = {"node": _one_after_the_other(nodes, inputs)}
    if alone:
        sides["LiteRT"] = _one_after_the_other(alone, inputs)
    sides["onnxruntime"] = sampler(lambda: session.run(None, inputs))  # type: ignore[attr-defined]
    times = in_turns(sides, rounds, seconds)
    ratio = times["node"] / times["onnxruntime"]
    found = [Row(f"{name}, invoke to result", times, "µs", ratio)]
    if alone:
        beyond = times["node"] - times["LiteRT"]
        found.append(Row(f"{name}, beyond bare LiteRT", {"node": beyond}, "µs", goal=OVERHEAD_US))
    return found, ratio


def onnxruntime_int8(model: onnx.ModelProto, calibration: np.ndarray) -> bytes:
    """The net as onnxruntime's own quantizer makes it of the same samples, its optimizations before it.

    QDQ form, int8 activations and weights per channel.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            x = next(self.left, None)
            return None if x is None else {"x": x[None]}

    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("float.onnx", "ready.onnx", "int8.onnx")]
        onnx.save(model, files[0])
        logging.disable(logging.WARNING)  # it advises to do what is done here
        try:
            quant_pre_process(files[0], files[1], skip_symbolic_shape=True)
            quantize_static(
                files[1],
                files[2],
                Samples(),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
        finally:
            logging.disable(logging.NOTSET)
        return Path(files[2]).read_bytes()


def _int8(name: str, model: onnx.ModelProto, rounds: int, seconds: float) -> list[Row]:
    """What `auto` makes of the net in int8, beside the same flatbuffer alone and onnxruntime."""
    inputs = models.example(model)
    ((key, x),) = inputs.items()
    drawn = np.random.default_rng(3).standard_normal((SAMPLES, *x.shape[1:])).astype(x.dtype)
    calibration = np.concatenate([x, drawn])
    data = _artifact(model, Quantization("int8", {key: calibration}), "auto")
    whole = flatbuffer_of(data)
    assert whole is not None, f"{name} in int8 is not a single flatbuffer"
    node, alone = Installed(data, name), bare(whole)
    session, other = session_of(model.SerializeToString()), session_of(onnxruntime_int8(model, calibration))
    (want,) = session.run(None, inputs)  # type: ignore[attr-defined]
    got = node(inputs)
    assert np.array_equal(got, alone(inputs)), f"{name} in int8 differs from the interpreter by itself"
    error = float(np.abs(got - want).max() / (want.max() - want.min()))
    sides = {
        "node": sampler(lambda: node(inputs)),
        "LiteRT": sampler(lambda: alone(inputs)),
        "onnxruntime int8": sampler(lambda: other.run(None, inputs)),  # type: ignore[attr-defined]
        "onnxruntime float": sampler(lambda: session.run(None, inputs)),  # type: ignore[attr-defined]
    }
    times = in_turns(sides, rounds, seconds)
    goal = INT8_GOAL * times["LiteRT"] + OVERHEAD_US
    return [
        Row(f"{name} int8, invoke to result", times, "µs", times["node"] / times["onnxruntime int8"]),
        Row(f"{name} int8, of 1.05 bare LiteRT + 6 µs", {"node": times["node"]}, "µs", goal=goal),
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
