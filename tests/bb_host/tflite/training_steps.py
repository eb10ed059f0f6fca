"""Gradients as graphs, lowered, run on an interpreter and beside themselves in float64."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bb_host.ir.program import Function, Op
from bb_host.learn import trainable
from bb_host.learn.fit_graph import fit_function
from bb_host.tflite.fits import for_rows
from bb_host.tflite.lower import lower_gradient
from bb_kernels import TensorSpec, evaluate, prepare
from benchmarks.training_nets import CLASSES

Arrays = dict[str, np.ndarray]
LARGEST = 1e-5
"""Difference of a gradient's entries, of the largest of them."""


class Step:
    """The graph `fit` of a net, (x, target, row_weights, parameters…) → (loss, gradients…), for some rows."""

    def __init__(
        self,
        model: onnx.ModelProto,
        rows: int,
        loss: str = "softmax_cross_entropy",
        batch_norm: str = "frozen",
        train: Collection[str] = (),
    ) -> None:
        made = trainable(model, loss, batch_norm=batch_norm, train=train)
        self.parameters: Arrays = dict(made.model.parameters)
        fit = fit_function(made.model.function, loss, made.statistics)
        assert fit is not None
        self.function: Function = for_rows(fit, rows)
        self.loss, self.rows = loss, rows
        self.lowered, self.report = lower_gradient(self.function)

    @property
    def models(self) -> list[Op]:
        return [op for op in self.lowered.ops if op.op_type == "Model"]

    def feeds(self, seed: int = 3) -> Arrays:
        """Half of each image is zeros: where maxima and comparisons tie."""
        rng = np.random.default_rng(seed)
        x, target, weights, *_ = self.function.inputs
        wide, shape = (
            [d for d in self.function.types[v].shape or () if isinstance(d, int)] for v in (x, target)
        )
        data = rng.standard_normal(wide).astype(np.float32)
        if data.ndim == 4:
            data[..., : data.shape[-1] // 2 + 1] = 0
        chosen: np.ndarray = rng.integers(0, CLASSES, shape)
        if not self.loss.startswith("sparse"):
            chosen = np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], shape[:-1])]
        share = np.full(self.rows, 1 / self.rows, np.float32)
        return {x: data, target: chosen, weights: share, **self.parameters}


def computed(body: Function, feeds: Mapping[str, np.ndarray], interpret: Callable[..., Any]) -> Arrays:
    """All values of a lowered body: models on an interpreter, what stays on the device's kernels."""
    values: Arrays = dict(feeds)
    for op in body.ops:
        given = [values[name] if name else None for name in op.inputs]
        if op.op_type == "Model":
            found = interpret(op.attrs["model"], given)
        else:
            specs = [None if g is None else TensorSpec(g.dtype, g.shape) for g in given]
            prepared = prepare(op.op_type, body.opsets[""], op.attrs, specs, given, len(op.outputs))
            found = prepared.values or evaluate(prepared, given)
        values.update(zip(op.outputs, found, strict=True))
    return values


def in_double(function: Function, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What a function gives on the device's kernels, all that is float in float64."""

    def wide(value: Any) -> Any:
        return (
            value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value
        )

    values = {name: wide(x) for name, x in feeds.items()}
    for op in function.ops:
        attrs = {name: wide(value) for name, value in op.attrs.items()}
        if op.op_type == "Cast" and attrs["to"] == onnx.TensorProto.FLOAT:
            attrs["to"] = onnx.TensorProto.DOUBLE
        given = [values[name] if name else None for name in op.inputs]
        specs = [None if g is None else TensorSpec(g.dtype, g.shape) for g in given]
        prepared = prepare(op.op_type, function.opsets[""], attrs, specs, given, len(op.outputs))
        found = prepared.values or evaluate(prepared, given)
        values.update({name: wide(x) for name, x in zip(op.outputs, found, strict=False) if name})
    return [values[name] for name in function.outputs]


def worst(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference, of the largest entry of its tensor.

    Tensors that vanish but for rounding (an attention's key biases) are measured by a thousandth of what the
    others reach.
    """
    least = max(np.abs(x).max() for x in want) / 1000
    return max(
        float(np.abs(g - w).max() / max(np.abs(w).max(), least)) for g, w in zip(got, want, strict=True)
    )


def _emulated() -> bool:
    """Whether this ARM processor is one that an x86 machine emulates."""
    return platform.machine() in ("aarch64", "armv7l") and "vendor_id" in Path("/proc/cpuinfo").read_text()


def operators(data: bytes) -> list[str]:
    """The names of a flatbuffer's operators, in order, before a delegate takes any."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter
    return [op["op_name"] for op in interpreter(model_content=data, num_threads=1)._get_ops_details()]


def outside(data: bytes) -> list[str]:
    """What LiteRT's XNNPACK leaves of a flatbuffer, and what it is not given or does not give itself."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter
    it = interpreter(model_content=data, num_threads=1)
    it.allocate_tensors()
    ops = it._get_ops_details()
    delegates = [op for op in ops if op["op_name"] == "DELEGATE"]
    if not delegates:
        if _emulated():
            pytest.skip("XNNPACK does not start: it reads /proc/cpuinfo, which tells of another processor")
        return sorted({op["op_name"] for op in ops})
    taken = delegates[0]
    outputs = [place["index"] for place in it.get_output_details()]
    makers = {int(i): op["op_name"] for op in ops if op["op_name"] != "DELEGATE" for i in op["outputs"]}
    found = [
        f"a further delegate, after {makers.get(int(i), 'itself')}"
        for d in delegates[1:]
        for i in d["inputs"]
    ]
    found += [
        f"{makers[int(i)]} before it" for i in taken["inputs"] if int(i) in makers and int(i) not in outputs
    ]
    found += [f"{makers.get(i, 'nobody')} for an output" for i in outputs if i not in taken["outputs"]]
    return sorted(set(found))
