"""Running what the lowering makes: on the interpreters that are here (`run_on`), beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from bb_edge.backends.tflite.verify import verify
from bb_edge.ir import keys
from bb_host.ir.program import Function, Op
from bb_host.passes.device.quantize import Quantization, quantize_program
from bb_host.passes.device.strip import strip, targets_of
from bb_host.passes.tensor.collapse import collapse
from bb_host.plain import compile_plain
from bb_host.tflite.lower import MODEL, lower_program

Arrays = dict[str, np.ndarray]


class Compiled:
    """A plain model's only backend function, lowered."""

    def __init__(self, model: onnx.ModelProto, choice: str = "tflite", calibration: Any = None) -> None:
        plain = compile_plain(model)
        collapsed = collapse(plain).program
        (self.target,) = targets_of(collapsed)
        if calibration is not None:
            asked = (
                calibration if isinstance(calibration, Quantization) else Quantization("int8", calibration)
            )
            collapsed, _ = quantize_program(collapsed, self.target, asked)
        stripped = strip(collapsed, self.target).program
        self.program, self.lowering = lower_program(stripped, self.target, choice)  # type: ignore[arg-type]
        called = [op for op in stripped.functions[0].ops if op.domain == keys.BACKEND_DOMAIN]
        assert len(called) == 1
        (self.call,) = called
        body = self.program.function(keys.BACKEND_DOMAIN, self.call.op_type)
        assert body is not None
        self.body: Function = body

    @property
    def models(self) -> list[Op]:
        return [op for op in self.body.ops if op.op_type == MODEL]


@pytest.fixture
def compiled() -> Callable[..., Compiled]:
    return Compiled


@pytest.fixture
def run_lowered(interpret: Callable[..., list[np.ndarray]]) -> Callable[..., list[np.ndarray]]:
    """A lowered body: `Model`s on the interpreter, what stays on the device's kernels."""

    def run(found: Compiled, feeds: Arrays) -> list[np.ndarray]:
        from bb_kernels import TensorSpec, evaluate, prepare

        version = {**found.program.opsets, **found.body.opsets}[""]
        values: Arrays = {
            inner: feeds[outer] for inner, outer in zip(found.body.inputs, found.call.inputs, strict=True)
        }
        for op in found.body.ops:
            if op.op_type == MODEL:
                data = op.attrs["model"]
                assert isinstance(data, bytes)
                verify(data)
                results = interpret(data, [values[name] for name in op.inputs])
            else:
                given = [values[name] if name else None for name in op.inputs]
                specs = [None if g is None else TensorSpec(g.dtype, g.shape) for g in given]
                prepared = prepare(op.op_type, version, op.attrs, specs, given, len(op.outputs))
                with np.errstate(all="ignore"):  # a BLAS may compute with lanes that nobody reads
                    results = list(prepared.values or evaluate(prepared, given))
            values.update(zip(op.outputs, results, strict=True))
        return [values[name] for name in found.body.outputs]

    return run


OLD_RUNTIME = (1, 24)
"""Before it, onnxruntime (the last for Python 3.10 is 1.23) lacks, and says so, what `OLD_REFUSES` names."""

OLD_REFUSES = ("Opset 24 is under development", "Size of X.shape[axis:] must be larger than 1")


@pytest.fixture
def runtime_is_old() -> bool:
    """Whether this onnxruntime is older than the operators that are compared with it."""
    return _is_old()


def _is_old() -> bool:
    runtime = pytest.importorskip("onnxruntime")
    return tuple(map(int, runtime.__version__.split(".")[:2])) < OLD_RUNTIME


def _on_runtime(
    model: onnx.ModelProto, feeds: Arrays, prepare: Callable[[Any, Any], None]
) -> list[np.ndarray]:
    """What onnxruntime computes; skipped where an old one refuses the model."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    prepare(runtime, options)
    try:
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))
    except Exception as error:
        if _is_old() and any(text in str(error) for text in OLD_REFUSES):
            pytest.skip(f"onnxruntime {runtime.__version__} does not run this: {error!s:.200}")
        raise


@pytest.fixture
def reference() -> Callable[..., list[np.ndarray]]:
    """onnxruntime's results."""

    def one_thread(runtime: Any, options: Any) -> None:
        options.intra_op_num_threads = 1

    return lambda model, feeds: _on_runtime(model, feeds, one_thread)


@pytest.fixture
def plain_reference() -> Callable[..., list[np.ndarray]]:
    """onnxruntime's results with its rewriting off: what stands between pairs is computed in float."""

    def as_written(runtime: Any, options: Any) -> None:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL

    return lambda model, feeds: _on_runtime(model, feeds, as_written)


@pytest.fixture(scope="session")
def schema() -> Any:
    """LiteRT's own classes for a flatbuffer's parts."""
    return pytest.importorskip("ai_edge_litert.schema_py_generated")
