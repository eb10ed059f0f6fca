"""Models in ONNX's text, functions of the light form, and onnxruntime as the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from bb_edge.backends import NumPyBackend
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_host.ir.program import Function
from bb_host.onnx_io.model import as_model, infer_types, read_model


def parse(text: str, opset: int = 17, **tensors: np.ndarray) -> Any:
    """A model in ONNX's text; `tensors` are added as initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for name, array in tensors.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def read(model: Any) -> Function:
    return infer_types(read_model(model, NumPyBackend().supports))


@pytest.fixture
def model() -> Callable[..., Any]:
    return parse


@pytest.fixture
def function() -> Callable[..., Function]:
    """function(text, opset=17, **initializers): the model as a typed function."""
    return lambda text, opset=17, **tensors: read(parse(text, opset, **tensors))


def judge(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


@pytest.fixture
def reference() -> Callable[[Any, Mapping[str, np.ndarray]], list[np.ndarray]]:
    """onnxruntime's results, nothing optimised."""
    return judge


@pytest.fixture
def same_results() -> Callable[..., None]:
    """same_results(before, after, inputs): two functions, both through onnxruntime."""

    def check(
        before: Function, after: Function, inputs: Mapping[str, np.ndarray], rtol: float = 1e-5
    ) -> None:
        assert after.inputs == before.inputs
        assert after.outputs == before.outputs
        onnx.checker.check_model(as_model(after))
        pairs = zip(judge(as_model(after), inputs), judge(as_model(before), inputs), strict=True)
        for got, want in pairs:
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * (1 + float(np.abs(want).max())))

    return check


@pytest.fixture
def on_a_node() -> Callable[[Any, str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """on_a_node(artifact, target, inputs): installs the artifact, invokes it once, gives its outputs."""

    def run(artifact: Any, target: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        node = install(
            PeerId.from_name("device"), (), artifact.SerializeToString(), [target], NodeConfig.host(), seed=1
        )
        number = node.invoke(target, inputs)
        said: list[steps.EngineStep] = []
        for _ in range(100):
            said += node.poll(0)
            if any(isinstance(s, steps.ExecutionEnded) and s.execution == number for s in said):
                break
        assert not [s for s in said if isinstance(s, steps.OpFailed)]
        return {s.topic: np.asarray(s.value) for s in said if isinstance(s, steps.AppEvent)}

    return run


@pytest.fixture
def f32() -> Callable[..., np.ndarray]:
    """f32(2, 3): seeded normal numbers of that shape."""
    rng = np.random.default_rng(11)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)
