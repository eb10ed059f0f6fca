"""Trainable models, from ONNX file to a component that learns with the runtime's own parts."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnxruntime
import pytest
from learners import component
from onnx import TensorProto, helper, numpy_helper

from bb_edge.ir import keys
from bb_host.errors import LearnError, ModelImportError
from bb_host.ir.program import Program, Subgraph
from bb_host.ir.proto import to_proto, write_attribute
from bb_host.ir.spelling import written
from bb_host.learn import import_onnx, loss_function, mlp, trainable


class Ctx:
    exec_id = 1


def small_net() -> onnx.ModelProto:
    """Convolution, normalisation, pooling and a dense layer, as an exporter writes them."""
    rng = np.random.default_rng(11)

    def weights(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "cw", "cb"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "dw", "db"], ["logits"], transB=1),
    ]
    initializers = [
        weights("cw", 4, 1, 3, 3),
        weights("cb", 4),
        weights("scale", 4),
        weights("shift", 4),
        weights("mean", 4),
        numpy_helper.from_array(np.full(4, 0.7, np.float32), "var"),
        numpy_helper.from_array(np.array([0, 16], np.int64), "shape"),
        weights("dw", 3, 16),
        weights("db", 3),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 3])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


# --- mlp ------------------------------------------------------------------------------------------


def test_mlp_is_an_ordinary_onnx_model():
    model = mlp([64, 32, 10], seed=1)
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    (logits,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    w = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    expected = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"] + w["b2"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert [t.name for t in model.graph.initializer] == ["w1", "b1", "w2", "b2"]


def test_mlp_is_drawn_as_he_says():
    w = numpy_helper.to_array(mlp([400, 300, 2], seed=3).graph.initializer[0])
    assert abs(w.mean()) < 0.002
    assert abs(w.std() - np.sqrt(2 / 400)) < 0.001


def test_mlp_repeats_and_seeds_differ():
    assert mlp([4, 3], 1).SerializeToString() == mlp([4, 3], 1).SerializeToString()
    assert mlp([4, 3], 1).SerializeToString() != mlp([4, 3], 2).SerializeToString()


@pytest.mark.parametrize("sizes", [[], [4], [4, 0, 2]])
def test_mlp_refuses_sizes_without_layers(sizes):
    with pytest.raises(LearnError, match="no layers"):
        mlp(sizes)


# --- construction ---------------------------------------------------------------------------------


def test_construction_is_what_the_artifact_holds():
    model = trainable(mlp([6, 5, 3], 1), learning_rate=0.25, momentum=0.5)
    found = model.construct("net")
    assert isinstance(found.attribute, Subgraph)
    assert list(found.attribute.initializers) == ["w1", "b1", "w2", "b2"]
    assert found.attribute.config == {"learning_rate": "0.25", "momentum": "0.5"}
    forward, train, loss, fit = found.functions
    assert [f.name for f in found.functions] == ["net.forward", "net.train", "net.loss", "net.fit"]
    assert {f.domain for f in found.functions} == {keys.COMPONENT_DOMAIN}
    assert forward.inputs == ("x", "w1", "b1", "w2", "b2")
    assert written(forward.facts)[keys.COMPONENT_ARITY_KEY] == f"1,4,{len(forward.outputs) - 1}"
    assert train.inputs == (*forward.inputs, *forward.outputs[1:], "d_logits")
    assert train.outputs == ("d_w1", "d_b1", "d_w2", "d_b2")
    assert loss.inputs == ("output", "target")
    assert fit.inputs == ("x", "target", "row_weights", "w1", "b1", "w2", "b2")
    assert fit.outputs == ("loss", "d_w1", "d_b1", "d_w2", "d_b2")
    assert model.parameter_count == 6 * 5 + 5 + 5 * 3 + 3


def test_component_functions_pass_the_checker():
    functions = trainable(small_net()).construct("model").functions
    program = Program("p", functions, opsets={"": 21, keys.COMPONENT_DOMAIN: 1})
    onnx.checker.check_model(to_proto(program))


def test_a_model_that_only_runs_has_no_gradient():
    found = trainable(small_net(), learning=False).construct("model")
    assert [f.name for f in found.functions] == ["model.forward", "model.loss"]
    assert written(found.functions[0].facts)[keys.COMPONENT_ARITY_KEY] == "1,6,0"


# --- learning -------------------------------------------------------------------------------------


def one_hot(labels, classes):
    return np.eye(classes, dtype=np.float32)[labels]


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_a_step_of_the_component_is_gradient_descent():
    """One step against the same step written out in NumPy, in float64."""
    model = mlp([5, 4, 3], 2)
    learner = component(trainable(model, learning_rate=0.3))
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((7, 5)).astype(np.float32), one_hot(rng.integers(0, 3, 7), 3)
    out = learner.forward(Ctx(), x)
    dz = (softmax(out) - y) / 7
    learner.backward(Ctx(), dz)
    learner.step(Ctx())
    w1, b1, w2, b2 = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    hidden = np.maximum(x @ w1 + b1, 0)
    dh = (dz @ w2.T) * (hidden > 0)
    grads = (x.T @ dh, dh.sum(0), hidden.T @ dz, dz.sum(0))
    expected = [w - 0.3 * g for w, g in zip((w1, b1, w2, b2), grads, strict=True)]
    np.testing.assert_allclose(
        learner.params(Ctx()), np.concatenate([e.reshape(-1) for e in expected]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("model", [mlp([64, 16, 3], 1), small_net()], ids=["mlp", "convolutional"])
def test_models_learn_in_the_runtime(model):
    learner = component(trainable(model, learning_rate=0.2, momentum=0.5))
    rng = np.random.default_rng(5)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    labels = rng.integers(0, 3, 48)
    centres = rng.standard_normal((3, *shape))
    x = (centres[labels] + 0.3 * rng.standard_normal((48, *shape))).astype(np.float32)
    y = one_hot(labels, 3)
    before = float(learner.evaluate(Ctx(), x, y))
    for _ in range(60):
        dz = (softmax(learner.forward(Ctx(), x)) - y) / len(x)
        learner.backward(Ctx(), dz)
        learner.step(Ctx())
    after = float(learner.evaluate(Ctx(), x, y))
    assert after < before / 10
    assert (learner.forward(Ctx(), x).argmax(axis=1) == labels).mean() == 1.0


def test_the_gradient_graph_agrees_with_onnxruntime():
    """The convolutional net's gradient, once by our kernels and once by another runtime."""
    model = trainable(small_net())
    assert model.gradient is not None
    rng = np.random.default_rng(9)
    arrays = {"x": rng.standard_normal((4, 1, 8, 8)).astype(np.float32), **model.model.parameters}
    learner = component(model)
    out = learner.forward(Ctx(), arrays["x"])
    seed = rng.standard_normal(out.shape).astype(np.float32)
    learner.backward(Ctx(), seed)
    sessions = {}
    for part in (model.gradient.forward, model.gradient.backward):
        graph = Subgraph("g", part.inputs, part.outputs, part.ops, part.types)
        proto = onnx.ModelProto(ir_version=10)
        proto.graph.ParseFromString(write_attribute("g", graph).g.SerializeToString())
        proto.opset_import.add(domain="", version=21)
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        feeds = {i.name: arrays[i.name] for i in session.get_inputs()}
        sessions.update(zip(part.outputs, session.run(None, feeds), strict=True))
        arrays.update(sessions)
        arrays[model.gradient.backward.inputs[-1]] = seed
    np.testing.assert_allclose(sessions["logits"], out, rtol=1e-4, atol=1e-5)
    expected = np.concatenate([sessions[name].reshape(-1) for name in model.gradient.backward.outputs])
    before = learner.params(Ctx()).copy()
    learner.step(Ctx())
    np.testing.assert_allclose((before - learner.params(Ctx())) / 0.1, expected, rtol=1e-3, atol=1e-4)


# --- losses ---------------------------------------------------------------------------------------


def test_losses(runtime):
    rng = np.random.default_rng(3)
    z, y = rng.standard_normal((6, 4)).astype(np.float32) * 30, one_hot(rng.integers(0, 4, 6), 4)
    (cross,) = runtime(loss_function("softmax_cross_entropy"), {"output": z, "target": y}).values()
    p = softmax(z.astype(np.float64))
    np.testing.assert_allclose(cross, -np.log((p * y).sum(axis=1)).mean(), rtol=1e-5)
    (square,) = runtime(loss_function("mse"), {"output": z, "target": y}).values()
    np.testing.assert_allclose(square, ((z - y) ** 2).mean(), rtol=1e-5)
    assert cross.shape == square.shape == ()


# --- import ---------------------------------------------------------------------------------------


def test_import_takes_weights_as_parameters_and_leaves_the_rest_constant():
    found = import_onnx(small_net())
    assert list(found.parameters) == ["cw", "cb", "scale", "shift", "dw", "db"]
    assert found.inputs == ("x",)
    constants = [op.outputs[0] for op in found.function.ops if op.op_type == "Constant"]
    assert constants == ["mean", "var", "shape"]
    assert found.function.types["x"].shape == ("N", 1, 8, 8)
    assert found.function.opsets[""] == 21


def test_frozen_initializers_are_constants():
    model = trainable(small_net(), frozen=["cw", "cb", "scale", "shift"])
    assert list(model.model.parameters) == ["dw", "db"]
    assert model.gradient is not None
    assert "Conv" not in [op.op_type for op in model.gradient.backward.ops]
    learner = component(model)
    x = np.random.default_rng(2).standard_normal((4, 1, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(
        learner.forward(Ctx(), x), component(trainable(small_net())).forward(Ctx(), x), rtol=1e-5
    )
    with pytest.raises(ModelImportError, match="'zz'"):
        trainable(small_net(), frozen=["zz"])


def test_import_reads_files_and_bytes(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    from_file = import_onnx(path)
    assert (tmp_path / "weights.bin").exists()
    for name, array in import_onnx(small_net().SerializeToString()).parameters.items():
        np.testing.assert_array_equal(array, from_file.parameters[name])


def test_import_inlines_the_models_own_functions():
    function = helper.make_function(
        "user",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Twice", ["m"], ["y"], domain="user")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("user", 1)],
    )
    model.ir_version = 10
    assert [op.op_type for op in import_onnx(model).function.ops] == ["Mul", "Add"]


def graph_of(op: str, inputs: int = 1, outputs: int = 1, elem: int = TensorProto.FLOAT, domain: str = ""):
    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names[:1], [f"y{i}"], domain=domain) for i in range(outputs)],
        "g",
        [helper.make_tensor_value_info(n, elem, [2]) for n in names],
        [helper.make_tensor_value_info(f"y{i}", elem, [2]) for i in range(outputs)],
    )
    opsets = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    return model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (graph_of("Exp"), "no f32 initializers"),
        (graph_of("Exp", inputs=2), "2 inputs"),
        (graph_of("Exp", outputs=2), "2 outputs"),
        (graph_of("Abs", elem=TensorProto.INT64), "output is"),
        (graph_of("Mine", domain="user.ops"), "domain 'user.ops'"),
        (b"\xff\xff\xff", "no valid ONNX model"),
        (b"", "no ONNX model: it is empty"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model, what):
    with pytest.raises(LearnError, match=what):
        trainable(model)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelImportError, match=r"absent\.onnx: No such file"):
        import_onnx(tmp_path / "absent.onnx")


def test_an_unknown_loss_is_refused():
    with pytest.raises(LearnError, match=r"softmax_cross_entropy, .*mse"):
        trainable(mlp([2, 2]), loss="hinge")


# --- optimizers -----------------------------------------------------------------------------------


def test_an_optimizer_has_its_usual_rate_and_is_written_where_it_is_another_than_before():
    adam = trainable(mlp([2, 2]), optimizer="adam", config={"weight_decay": 0.01}).construct("m").attribute
    assert adam.config == {
        "learning_rate": "0.001", "momentum": "0.0", "optimizer": '"adam"', "weight_decay": "0.01"
    }  # fmt: skip
    assert "optimizer" not in trainable(mlp([2, 2])).construct("m").attribute.config
    assert trainable(mlp([2, 2]), optimizer="adamw", learning_rate=0.5).learning_rate == 0.5
    with pytest.raises(LearnError, match="known: sgd, adam, adamw"):
        trainable(mlp([2, 2]), optimizer="adamax")
