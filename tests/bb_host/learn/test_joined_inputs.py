"""Models of several inputs, trained as ones of a single input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from learners import component
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_host.errors import LearnError
from bb_host.learn import join_inputs, trainable
from bb_host.learn.exchange import export_model
from tests.aids.refusals import refused

CTX: Any = SimpleNamespace(exec_id=1)
F, IDS = TensorProto.FLOAT, TensorProto.INT64


def net(opset: int = 21, ids: Any = ("N",), image: Any = ("N", 1, 4, 4)) -> onnx.ModelProto:
    """An image, and which of five rows of a table goes with it."""
    rng = np.random.default_rng(0)
    shapes = {"kernel": (2, 1, 3, 3), "table": (5, 2), "head": (10, 3)}
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["c"], "conv"),
        helper.make_node("Flatten", ["c"], ["f"], "flat"),
        helper.make_node("Gather", ["table", "ids"], ["e"], "look_up"),
        helper.make_node("Concat", ["f", "e"], ["both"], "both", axis=1),
        helper.make_node("MatMul", ["both", "head"], ["y"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", F, image), helper.make_tensor_value_info("ids", IDS, ids)],
        [helper.make_tensor_value_info("y", F, ["N", 3])],
        [numpy_helper.from_array(rng.normal(0, 0.5, s).astype(np.float32), n) for n, s in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [11, 21])
def test_it_computes_the_same_and_learns(opset: int) -> None:
    rng = np.random.default_rng(1)
    model, images, ids = net(opset), rng.standard_normal((3, 1, 4, 4)).astype(np.float32), np.array([4, 0, 4])
    x = np.concatenate([a.reshape(len(a), -1) for a in (images, ids)], axis=1, dtype=np.float32)
    joined = join_inputs(model)
    onnx.checker.check_model(joined, full_check=True)
    expected = ReferenceEvaluator(model).run(None, {"image": images, "ids": ids})[0]
    made = trainable(joined, "mse", learning_rate=0.1)
    assert list(made.model.parameters) == ["kernel", "table", "head"]
    learner = component(made)
    np.testing.assert_allclose(learner.forward(CTX, x), expected, rtol=1e-5)
    first = learner.train(CTX, x, np.zeros((3, 3), np.float32))
    before = learner.named_parameters()["table"]
    learner.step(CTX)
    assert learner.evaluate(CTX, x, np.zeros((3, 3), np.float32)) < first
    rows = (learner.named_parameters()["table"] != before).any(axis=1)
    np.testing.assert_array_equal(rows, [True, False, False, False, True])  # those that were looked up
    export_model(model, learner.named_parameters(), "learned")  # and into the file of two inputs
    back = ReferenceEvaluator(model).run(None, {"image": images, "ids": ids})[0]
    np.testing.assert_allclose(back, learner.forward(CTX, x), rtol=1e-5, atol=1e-6)


def test_trainable_says_how() -> None:
    with refused(LearnError, "it has 2 inputs ('image', 'ids')", "trainable(join_inputs(model))"):
        trainable(net())  # <-


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (net(image=("N", 1, "H", 4)), ("its input 'image' has [N, 1, H, 4]", "as numbers")),
        (net(image=(2, 1, 4, 4)), ("'image' and 'ids' have batches of 2, N",)),
        (net(ids=()), ("its input 'ids' has no shape",)),
        (join_inputs(net()), ("it has one input: there is nothing to join",)),
    ],
)
def test_what_cannot_be_joined(model: onnx.ModelProto, words: tuple[str, ...]) -> None:
    with refused(LearnError, *words, marked=False):
        join_inputs(model)
