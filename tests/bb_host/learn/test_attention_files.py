"""ONNX's own Attention, as newer exporters write it, with an open batch: against central differences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from learners import component
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_host.learn import trainable

CTX: Any = SimpleNamespace(exec_id=1)
WIDTH, STEPS, ENTRIES, STEP = 8, 5, 4, 1e-3


def net(tensors: dict[str, np.ndarray], mask: np.ndarray | None, **attributes: Any) -> onnx.ModelProto:
    """Heads of a 3-D sequence: how wide one is follows from the number of elements alone."""
    nodes = [helper.make_node("MatMul", ["x", f"w{v}"], [v]) for v in "qkv"]
    inputs = ["q", "k", "v"] if mask is None else ["q", "k", "v", "mask"]
    nodes.append(helper.make_node("Attention", inputs, ["heads"], "heads", **attributes))
    nodes.append(helper.make_node("MatMul", ["heads", "wo"], ["y"]))
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["N", STEPS, WIDTH]) for v in ("x", "y")]
    held = {} if mask is None else {"mask": mask}
    graph = helper.make_graph(
        nodes,
        "net",
        ends[:1],
        ends[1:],
        [numpy_helper.from_array(array, name) for name, array in {**tensors, **held}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


@pytest.mark.parametrize(
    ("heads", "mask", "more"),
    [
        ((2, 2), None, {}),
        ((2, 2), None, {"is_causal": 1}),
        ((2, 2), None, {"softcap": 2.0, "scale": 0.3}),
        ((4, 2), None, {}),
        ((2, 2), np.tril(np.ones((STEPS, STEPS), bool)), {}),
    ],
    ids=["plain", "causal", "softcap", "grouped", "mask"],
)
def test_gradients_of_attention(
    heads: tuple[int, int], mask: np.ndarray | None, more: dict[str, Any]
) -> None:
    rng = np.random.default_rng(1)
    inner = WIDTH * heads[1] // heads[0]
    shapes = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, inner), "wv": (WIDTH, inner), "wo": (WIDTH, WIDTH)}
    tensors = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
    x, target = rng.standard_normal((2, 2, STEPS, WIDTH))

    def written(values: dict[str, np.ndarray]) -> onnx.ModelProto:
        return net(values, mask, q_num_heads=heads[0], kv_num_heads=heads[1], **more)

    def loss(values: dict[str, np.ndarray]) -> float:
        output = ReferenceEvaluator(written(values)).run(None, {"x": x})[0]
        return float(((output - target) ** 2).mean())

    model = trainable(written({name: a.astype(np.float32) for name, a in tensors.items()}), "mse")
    learner = component(model)
    learner.train(CTX, x.astype(np.float32), target.astype(np.float32))
    found = dict(zip(tensors, np.split(learner.gradient(CTX), _ends(model.model.parameters)), strict=True))
    for name, array in tensors.items():
        for place in rng.permutation(array.size)[:ENTRIES]:
            sides = []
            for sign in (1, -1):
                moved = array.copy()
                moved.flat[place] += sign * STEP
                sides.append(loss({**tensors, name: moved}))
            expected = (sides[0] - sides[1]) / (2 * STEP)
            np.testing.assert_allclose(found[name][place], expected, rtol=1e-3, atol=1e-5, err_msg=name)


def _ends(parameters: dict[str, np.ndarray]) -> np.ndarray:
    return np.cumsum([array.size for array in parameters.values()])[:-1]
