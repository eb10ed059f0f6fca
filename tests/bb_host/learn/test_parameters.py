"""Which initializers are learned: the page that says so shows what is printed, and masks are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bb_host.errors import ModelImportError
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


def classifier(nodes, tensors, opset=18, producer=""):
    """Warnings and initializers, by name, of a net of these nodes from `x`, F32[N,4,6], to `y`."""
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), [o], o, **more) for op, i, o, more in nodes],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", "a", "b"])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    net = trainable(
        helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer), "mse"
    )
    return [f"{w.code}: {w.what} ({w.hint})" for w in net.warnings()], {i.name: i for i in net.initializers}


@pytest.mark.parametrize("own", [False, True], ids=["scale behind it", "scale of its own"])
def test_a_group_norm_is_learned_whatever_its_exporter_calls_scale_and_shift(own):
    """Its scale and shift are parameters that were unsqueezed when the file was written."""
    nodes = [
        ("Conv", "x c.weight", "conv", {}),
        ("Reshape", "conv groups", "grouped", {}),
        ("InstanceNormalization", "grouped val_1 val_2", "norm", {}),
        ("Shape", "conv", "shape", {}),
        ("Reshape", "norm shape", "back", {}),
        ("Mul", "back val_22", "scaled", {}),
        ("Add", "scaled val_24", "y", {}),
    ]
    ramp = np.linspace(0.5, 1.5, 4, dtype=np.float32).reshape(4, 1)
    fill = np.linspace(0.5, 1, 2, dtype=np.float32) if own else np.ones(2, np.float32)
    weight = np.ones((4, 4, 3), np.float32) * ramp[:, :, None]
    tensors = {"c.weight": weight, "groups": np.array([0, 2, -1]), "val_1": fill}
    tensors["val_2"] = fill if own else np.zeros(2, np.float32)
    warnings, found = classifier(nodes, {**tensors, "val_22": ramp, "val_24": ramp})
    learned = {name for name, i in found.items() if i.learned}
    if own:
        assert learned == {"c.weight", "val_1", "val_2"}
        assert any("'val_22' (float32[4,1]) and 1 more may have been a parameter" in w for w in warnings)
    else:
        assert learned == {"c.weight", "val_22", "val_24"} and not warnings
        assert found["val_22"].why == "scale of InstanceNormalization 'norm', behind it"
        assert found["val_24"].why == "shift of InstanceNormalization 'norm', behind it"


@pytest.mark.parametrize(
    ("table", "told"),
    [(0.5, True), (0.0, False), (-1e9, False)],
    ids=["numbers", "all zeros", "a mask"],
)
def test_a_folded_table_that_is_not_learned_is_told(table, told):
    tensors = {"c.weight": np.ones((6, 5), np.float32), "val_7": np.full((4, 5), table, np.float32)}
    nodes = [("MatMul", "x c.weight", "z", {}), ("Relu", "z", "r", {}), ("Mul", "r val_7", "y", {})]
    warnings, found = classifier(nodes, tensors)
    assert not found["val_7"].learned and found["val_7"].doubtful is told
    assert [w.partition(":")[0] for w in warnings] == ["constant-not-learned"] * told


@pytest.mark.parametrize(("shape", "told"), [((4, 6), True), ((6,), False), ((1, 6), False)])
def test_what_is_before_the_first_layer_and_not_shaped_like_a_mean_is_told(shape, told):
    """The centres of a network of radial functions, as PyTorch's older exporter names them."""
    tensors = {"c": np.full(shape, 0.5, np.float32), "fc.weight": np.ones((6, 2), np.float32)}
    nodes = [("Sub", "x c", "d", {}), ("Mul", "d d", "s", {}), ("MatMul", "s fc.weight", "y", {})]
    warnings, found = classifier(nodes, tensors)
    assert not found["c"].learned and found["c"].doubtful is told
    assert [w.partition(":")[0] for w in warnings] == ["constant-not-learned"] * told


@pytest.mark.parametrize("shape", [(), (1,)], ids=["a number", "one entry"])
@pytest.mark.parametrize(
    ("name", "value", "producer", "told"),
    [
        ("t", 2.0, "pytorch", True),
        ("gate", 0.0, "pytorch", True),
        ("eps", 1e-6, "pytorch", False),
        ("onnx::Mul_7", 0.125, "pytorch", False),
        ("unity", 1.0, "skl2onnx", False),
    ],
)
def test_a_single_number_that_bears_a_name_of_the_module_is_told(name, value, producer, told, shape):
    """PyTorch's older exporter names what the module holds; its own constants bear names that it invents."""
    tensors = {"fc.weight": np.ones((6, 5), np.float32), name: np.full(shape, value, np.float32)}
    nodes = [("MatMul", "x fc.weight", "z", {}), ("Exp", name, "e", {}), ("Mul", "z e", "y", {})]
    warnings, found = classifier(nodes, tensors, producer=producer)
    assert not found[name].learned and found[name].doubtful is told
    assert [w.partition(":")[0] for w in warnings] == ["constant-not-learned"] * told
    assert all(f"train=['{name}'] learns it" in w and "optimize" not in w for w in warnings)
    nodes = [("Exp", name, "e", {}), ("Mul", "x e", "z", {}), ("MatMul", "z fc.weight", "y", {})]
    assert not classifier(nodes, tensors, producer=producer)[0], "before the first layer it normalizes"


def test_who_says_what_a_table_is_hears_nothing():
    tensors = {"c.weight": np.ones((6, 5), np.float32), "h0": np.ones((4, 5), np.float32)}
    nodes = [("MatMul", "x c.weight", "z", {}), ("Concat", "z h0e", "y", {"axis": 0})]
    nodes.insert(0, ("Unsqueeze", "h0 axes", "h0e", {}))
    tensors["axes"] = np.array([0])
    warnings, found = classifier(nodes, tensors)
    assert found["h0"].doubtful and len(warnings) == 1
    assert "export with optimize=False" in warnings[0] and "frozen=['h0'] says" in warnings[0]


def test_a_parameter_that_is_no_number_is_refused():
    nodes = [("MatMul", "x c.weight", "y", {})]
    with pytest.raises(ModelImportError, match=r"'c.weight' holds values that are not numbers"):
        classifier(nodes, {"c.weight": np.full((6, 5), np.nan, np.float32)})


def test_packed_weights_are_refused_with_the_model_to_take():
    packed = helper.make_tensor("w4", TensorProto.INT4, [4, 3], [1] * 12)
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    nodes = [
        helper.make_node("DequantizeLinear", ["w4", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", n]) for name, n in (("x", 4), ("y", 3))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [packed, scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(ModelImportError, match=r"weights are int4 \(w4\).*before its weights were quantized"):
        trainable(model)
