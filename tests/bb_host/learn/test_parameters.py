"""Which initializers are learned: the page that says so shows what is printed, and masks are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.learn import trainable

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "models.md"


def page_model():
    """The model of docs/how-to/models.md: a normalized input and two layers, as PyTorch exports it."""

    def tensor(name, *shape):
        return numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)

    nodes = [
        ("Sub", "x mean", "centred", "norm", {}),
        ("MatMul", "centred encoder.weight", "hidden", "proj", {}),
        ("Relu", "hidden", "act", "act", {}),
        ("MatMul", "act val_12", "scores", "head", {}),
        ("Add", "scores head.bias", "biased", "add", {}),
        ("Mul", "biased val_72", "y", "scale", {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), [o], n, **more) for op, i, o, n, more in nodes],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [
            tensor("mean", 16),
            tensor("encoder.weight", 16, 16),
            tensor("val_12", 16, 4),
            tensor("head.bias", 4),
            tensor("val_72", 1),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_the_page_shows_what_is_printed():
    shown = PAGE.read_text().split("--trainable\n", 1)[1].split("```", 1)[0]
    assert shown.rstrip("\n") == trainable(page_model()).table()


@pytest.mark.parametrize(
    ("hidden", "learned"), [(-np.inf, False), (-1e9, False), (-65504, False), (-3.0, True)]
)
def test_what_is_added_to_attention_to_hide_places_is_a_mask(hidden, learned):
    """A learned one could not be sent: parameters with infinities are refused."""
    mask = np.triu(np.full((4, 4), hidden, np.float32), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["keys"], "keys"),
        helper.make_node("Transpose", ["keys"], ["across"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["keys", "across"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], "masked"),
        helper.make_node("Softmax", ["masked"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 4])],
        [numpy_helper.from_array(mask, "mask"), numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    model = trainable(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), "mse"
    )
    (found,) = (i for i in model.initializers if i.name == "mask")
    assert found.learned is learned
    assert learned or found.why == f"operand of Add 'masked', a mask: it holds {hidden:g}"
