"""Training on batches: the op `Train`, losses as graphs, and what the device makes of chunks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from learners import chunked, component
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components.graph_model import GraphModel
from bb_edge.ir.types import TENSOR_F32, TENSOR_I64, ValueType
from bb_edge.roles import ComponentError
from bb_host.errors import LearnError
from bb_host.learn import LOSSES, loss_function, mlp, trainable
from bb_host.learn.losses import row_losses
from tests.aids.refusals import refused

CTX: Any = SimpleNamespace(exec_id=1)
N, C = 5, 4
INDICES = np.array([2, 0, -1, 3, 1])
"""−1 is not a class: that row is left out, also of the mean."""


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def targets(loss: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    match loss:
        case "softmax_cross_entropy":
            return softmax(rng.standard_normal((N, C))).astype(np.float32)
        case "sparse_softmax_cross_entropy":
            return INDICES
        case "binary_cross_entropy":
            return rng.random((N, C)).round(1).astype(np.float32)
    return rng.standard_normal((N, C)).astype(np.float32)


def counted(t: np.ndarray) -> int:
    """The rows that are in the mean."""
    return int((t >= 0).sum()) if t.dtype.kind == "i" else N


def by_hand(loss: str, z: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows' losses and d(the mean of those that count)/d(output), in f64."""
    z, d = z.astype(np.float64), z.astype(np.float64) - (t if t.ndim > 1 else 0)
    one_hot = (t[:, None] == np.arange(C)).astype(np.float64) if t.ndim == 1 else t
    match loss:
        case "softmax_cross_entropy" | "sparse_softmax_cross_entropy":
            rows = -(one_hot * np.log(softmax(z))).sum(axis=1)
            slope = softmax(z) * one_hot.sum(axis=1, keepdims=True) - one_hot
            return rows, slope / counted(t)
        case "binary_cross_entropy":
            rows = -(t * np.log(sigmoid(z)) + (1 - t) * np.log(sigmoid(-z))).mean(axis=1)
            return rows, (sigmoid(z) - t) / z.size
        case "mse":
            return (d**2).mean(axis=1), 2 * d / z.size
        case "huber":
            near = np.abs(d) < 1
            return np.where(near, d * d / 2, np.abs(d) - 0.5).mean(axis=1), np.clip(d, -1, 1) / z.size
    raise AssertionError(loss)


def table(output: np.ndarray) -> onnx.ModelProto:
    """A model whose output for the identity is its only parameter: dL/dparameters is dL/doutput."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["rows"])],  # a name that the loss has as well
        "table",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", len(output)])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", output.shape[1]])],
        [numpy_helper.from_array(output, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model


def moved(learner: GraphModel, before: np.ndarray, rate: float) -> np.ndarray:
    """The gradient that a step applied."""
    learner.step(CTX)
    return (before - learner.params(CTX)) / rate


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.25, 3.0])
def test_where_hubers_loss_bends_is_a_setting_of_it(delta: float) -> None:
    z = np.linspace(-4, 4, N * C, dtype=np.float32).reshape(N, C)
    t, x = np.zeros_like(z), np.eye(N, dtype=np.float32)
    learner = component(trainable(table(z), "huber", 1.0, huber_delta=delta))
    size = np.abs(z)
    expected = np.where(size < delta, z * z / 2, delta * (size - delta / 2)).mean()
    before = learner.params(CTX)
    for found in (learner.evaluate(CTX, x, t), learner.train(CTX, x, t)):
        np.testing.assert_allclose(found, expected, rtol=2e-5)
    slope = np.clip(z, -delta, delta).ravel() / z.size
    np.testing.assert_allclose(moved(learner, before, 1.0), slope, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("loss", "delta", "words"),
    [
        ("mse", 0.5, ("huber_delta is for the loss 'huber', and this is 'mse'",)),
        ("huber", 0, ("huber_delta is 0",)),
        ("huber", "wide", ("huber_delta must be a number, not 'wide'",)),
    ],
)
def test_a_bend_that_cannot_be(loss: str, delta: Any, words: tuple[str, ...]) -> None:
    with refused(LearnError, *words):
        trainable(table(np.ones((N, C), np.float32)), loss, huber_delta=delta)  # <-


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 12.0], ids=["ordinary", "confident"])
def test_train_evaluate_and_the_graph_agree_with_the_formula(loss: str, scale: float, runtime: Any) -> None:
    z = (np.random.default_rng(1).standard_normal((N, C)) * scale).astype(np.float32)
    t = targets(loss)
    rows, slope = by_hand(loss, z, t)
    output = ValueType(TENSOR_F32, ("N", C))
    np.testing.assert_allclose(
        runtime(row_losses(loss, output), {"output": z, "target": t})["rows"], rows, rtol=2e-5, atol=1e-6
    )
    learner = component(trainable(table(z), loss=loss, learning_rate=1.0))
    x = np.eye(N, dtype=np.float32)
    mean = rows.sum() / counted(t)
    np.testing.assert_allclose(learner.evaluate(CTX, x, t), mean, rtol=2e-5)
    before = learner.params(CTX)
    found = learner.train(CTX, x, t)
    assert found.shape == () and found.dtype == np.float32
    np.testing.assert_allclose(found, mean, rtol=2e-5)
    np.testing.assert_allclose(moved(learner, before, 1.0), slope.ravel(), rtol=1e-4, atol=2e-6)


IGNORED = [
    ("one column", -100, (N,)),
    ("the first class", 0, (N, 3)),
    ("a class", 2, (N, 3)),
    ("all", -1, (N,)),
]


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize(("what", "ignored", "shape"), IGNORED)
def test_places_without_a_class_are_left_out_as_onnx_has_it(
    what: str, ignored: int, shape: tuple[int, ...], chunk: int
) -> None:
    rng = np.random.default_rng(3)
    places = int(np.prod(shape[1:]))
    z = rng.standard_normal((N, places * C)).astype(np.float32)
    t = rng.integers(0, C, shape)
    t[rng.random(shape) < 0.4] = ignored
    if what == "all":
        t[:] = ignored
    made = trainable(
        by_places(z, shape), "sparse_softmax_cross_entropy", learning_rate=1.0, ignore_index=ignored
    )
    learner = component(chunked(made, chunk) if chunk else made)
    x, before = np.eye(N, dtype=np.float32), learner.params(CTX)
    logits = z.reshape(*shape, C).astype(np.float64)
    hits = (t[..., None] == np.arange(C)) & (t != ignored)[..., None]
    slope = np.where((t != ignored)[..., None], softmax(logits) - hits, 0) / max(1, (t != ignored).sum())
    expected = 0.0 if what == "all" else onnx_loss(np.moveaxis(z.reshape(*shape, C), -1, 1), t, ignored)
    for found in (learner.evaluate(CTX, x, t), learner.train(CTX, x, t)):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(moved(learner, before, 1.0), slope.reshape(-1), rtol=1e-4, atol=2e-6)


def by_places(z: np.ndarray, shape: tuple[int, ...]) -> onnx.ModelProto:
    """`table`, whose output is [n, places…, C]."""
    model = table(z)
    if len(shape) > 1:
        model.graph.node.append(helper.make_node("Reshape", ["rows", "to"], ["by_places"]))
        model.graph.initializer.append(numpy_helper.from_array(np.array([-1, *shape[1:], C]), "to"))
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("by_places", TensorProto.FLOAT, ["N", *shape[1:], C])
        )
    return model


def onnx_loss(scores: np.ndarray, labels: np.ndarray, ignored: int) -> float:
    """SoftmaxCrossEntropyLoss of ONNX's reference: classes on the second axis."""
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["s", "t"], ["loss"], ignore_index=ignored)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "loss",
        [value("s", TensorProto.FLOAT, None), value("t", TensorProto.INT64, None)],
        [value("loss", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    return float(ReferenceEvaluator(model).run(None, {"s": scores, "t": labels})[0])


def test_what_is_left_out_of_a_sum_of_batches_scales_its_own_batch_alone(batch: Any) -> None:
    x, y = batch
    full, partly = np.argmax(y, axis=1), np.argmax(y, axis=1)
    partly[1:] = -1
    gradients = []
    for batches in ([full], [partly], [full, partly], [partly, full]):
        learner = component(trainable(mlp([6, 5, 3], seed=4), loss="sparse_softmax_cross_entropy"))
        for labels in batches:
            learner.train(CTX, x, labels)
        gradients.append(learner.gradient(CTX))
    for both in gradients[2:]:
        np.testing.assert_allclose(both, gradients[0] + gradients[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "ignored", "words"),
    [
        ("mse", -100, ("ignore_index is for numbers of classes, and the loss 'mse' takes others",)),
        ("sparse_softmax_cross_entropy", 1.5, ("ignore_index is the number of a class, not 1.5",)),
        ("sparse_softmax_cross_entropy", True, ("ignore_index is the number of a class, not True",)),
    ],
)
def test_a_class_to_ignore_that_cannot_be(loss: str, ignored: Any, words: tuple[str, ...]) -> None:
    with refused(LearnError, *words):
        trainable(table(np.ones((N, C), np.float32)), loss, ignore_index=ignored)  # <-


def test_a_label_that_is_ignored_by_another_number_is_named_with_the_setting(batch: Any) -> None:
    x, y = batch
    classes = np.argmax(y, axis=1)
    classes[0] = -100
    learner = component(trainable(mlp([6, 5, 3], seed=4), loss="sparse_softmax_cross_entropy"))
    with pytest.raises(ComponentError, match=r"class -100, the model has 3 classes.*ignore_index"):
        learner.train(CTX, x, classes)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_extreme_outputs_are_finite_and_so_are_their_gradients(loss: str) -> None:
    z = np.array([[3e4, -3e4, 0, 1], [-200, 200, 0, 0]], np.float32)
    t = np.array([1, 0]) if loss.startswith("sparse") else np.eye(4, dtype=np.float32)[[1, 0]]
    learner = component(trainable(table(z), loss=loss))
    before = learner.params(CTX)
    assert np.isfinite(learner.train(CTX, np.eye(2, dtype=np.float32), t))
    assert np.isfinite(moved(learner, before, 1.0)).all()


@pytest.mark.parametrize(
    ("shape", "target"),
    [((N, 3, C), (N, 3)), ((N, 2, 2, C), (N, 2, 2)), ((N, C), (N,))],
)
def test_a_row_is_the_mean_over_its_places(
    shape: tuple[int, ...], target: tuple[int, ...], runtime: Any
) -> None:
    rng = np.random.default_rng(2)
    z, t = rng.standard_normal(shape).astype(np.float32), rng.integers(0, C, target)
    function = row_losses("sparse_softmax_cross_entropy", ValueType(TENSOR_F32, ("N", *shape[1:])))
    assert function.types["target"] == ValueType(TENSOR_I64, ("N", *target[1:]))
    (rows,) = runtime(function, {"output": z, "target": t}).values()
    places = -np.log(np.take_along_axis(softmax(z), t[..., None], -1))[..., 0]
    np.testing.assert_allclose(rows, places.reshape(N, -1).mean(axis=1), rtol=1e-5)


def test_an_output_of_unknown_rank_is_taken_row_by_row(runtime: Any) -> None:
    rng = np.random.default_rng(3)
    z, t = (rng.standard_normal((N, 2, 3)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(
        runtime(row_losses("mse"), {"output": z, "target": t})["rows"],
        ((z - t) ** 2).mean(axis=(1, 2)),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        runtime(loss_function("mse"), {"output": z, "target": t})["loss"], ((z - t) ** 2).mean(), rtol=1e-5
    )


def test_classes_by_number_need_a_number_of_classes() -> None:
    with pytest.raises(LearnError, match="number of classes is not known"):
        loss_function("sparse_softmax_cross_entropy", ValueType(TENSOR_F32, ("N", "C")))


# --- batches --------------------------------------------------------------------------------------


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    return rng.standard_normal((7, 6)).astype(np.float32), np.eye(3, dtype=np.float32)[rng.integers(0, 3, 7)]


def model() -> Any:
    return trainable(mlp([6, 5, 3], seed=4), learning_rate=0.5)


def test_train_is_forward_loss_and_backward(batch: Any) -> None:
    x, y = batch
    one, by_parts = component(model()), component(model())
    one.train(CTX, x, y)
    by_parts.backward(CTX, (softmax(by_parts.forward(CTX, x)) - y) / len(x))
    for learner in (one, by_parts):
        learner.step(CTX)
    np.testing.assert_allclose(one.params(CTX), by_parts.params(CTX), rtol=1e-5, atol=1e-6)


def test_train_changes_nothing_but_the_gradient_to_which_it_adds(batch: Any) -> None:
    x, y = batch
    twice, once = component(model()), component(model())
    before = twice.params(CTX)
    losses = [float(twice.train(CTX, x, y)) for _ in range(2)]
    assert losses[0] == losses[1] == float(once.train(CTX, x, y))
    np.testing.assert_array_equal(twice.params(CTX), before)
    np.testing.assert_allclose(moved(twice, before, 0.5), 2 * moved(once, before, 0.5), rtol=1e-3, atol=1e-5)
    after = twice.params(CTX)
    twice.step(CTX)
    np.testing.assert_array_equal(twice.params(CTX), after)  # nothing is left of it


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16])
def test_a_batch_in_chunks_is_the_batch(batch: Any, chunk: int) -> None:
    x, y = batch
    whole, cut = component(model()), component(chunked(model(), chunk))
    for _ in range(3):
        np.testing.assert_allclose(cut.train(CTX, x, y), whole.train(CTX, x, y), rtol=1e-5)
        for learner in (whole, cut):
            learner.step(CTX)
    np.testing.assert_allclose(cut.params(CTX), whole.params(CTX), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9}])
def test_each_chunk_has_the_same_shape_and_rows_that_fill_it_up_weigh_nothing(
    batch: Any, config: dict[str, Any]
) -> None:
    """Others weigh 1/rows; times minus the rate, where a step adds what it gets."""
    x, y = batch
    seen = []

    class Watched(NumPyBackend):
        def prepare(self, function: Any, *given: Any) -> Any:
            program = super().prepare(function, *given)
            if function.name.endswith(".fit"):
                made = program.runner

                def watched(*given: Any) -> Any:
                    run = made(*given)
                    return lambda inputs: (seen.append([array.copy() for array in inputs]), run(inputs))[1]

                program.runner = watched
            return program

    component(chunked(model(), 4), config={"learning_rate": 0.5, **config}, backend=Watched()).train(
        CTX, x, y
    )
    assert [[array.shape for array in run] for run in seen] == [[(4, 6), (4, 3), (4,)]] * 2
    weights = np.concatenate([run[2] for run in seen])
    factor = 1 if config else -0.5
    np.testing.assert_array_equal(weights, np.float32(factor) * np.float32([1 / 7] * 7 + [0]))
    np.testing.assert_array_equal(seen[1][0][3], x[4])  # a row that is really there: its loss is finite


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((0, 6), np.float32), np.zeros((0, 3), np.float32), "has no rows"),
        (np.zeros((4, 6), np.float32), np.zeros((3, 3), np.float32), "has 4 results, and 3 targets"),
    ],
)
def test_batches_that_cannot_be_trained_on_are_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ComponentError, match=message):
        component(chunked(model(), 2)).train(CTX, x, y)


@pytest.mark.parametrize("loss", ["mse", "sparse_softmax_cross_entropy"])
def test_one_target_beside_several_rows_is_refused(batch: Any, loss: str) -> None:
    """It would stand for each of them, and the loss be that of so many more."""
    x, y = batch
    learner = component(trainable(mlp([6, 5, 3], seed=4), loss=loss))
    target = y if loss == "mse" else np.argmax(y, axis=1)
    for op in (learner.train, learner.evaluate):
        with pytest.raises(ComponentError, match=rf"has {len(x)} results, and one target \[1"):
            op(CTX, x, target[:1])
        assert op(CTX, x[:1], target[:1]).ndim == 0


@pytest.mark.parametrize(("rows", "targets"), [(1, 7), (6, 7), (7, 6), (7, 0)])
@pytest.mark.parametrize("loss", ["mse", "sparse_softmax_cross_entropy"])
def test_another_number_of_targets_than_rows_is_refused(
    batch: Any, loss: str, rows: int, targets: int
) -> None:
    """One row was the result beside each target; others ended in the words of an operator of the graph."""
    x, y = batch
    learner = component(trainable(mlp([6, 5, 3], seed=4), loss=loss))
    target = y if loss == "mse" else np.argmax(y, axis=1)
    for op in (learner.train, learner.evaluate):
        with pytest.raises(ComponentError, match=rf"has {rows} results, and {targets} targets \[{targets}"):
            op(CTX, x[:rows], target[:targets])


@pytest.mark.parametrize("wrong", [3, 255, -2])
def test_targets_of_classes_that_the_model_does_not_have_are_refused(batch: Any, wrong: int) -> None:
    x, y = batch
    classes = np.argmax(y, axis=1)
    learner = component(trainable(mlp([6, 5, 3], seed=4), loss="sparse_softmax_cross_entropy"))
    classes[2] = -1  # no class: this row counts as none
    labelled = [i for i in range(len(x)) if i != 2]
    for op in (learner.train, learner.evaluate):
        np.testing.assert_allclose(op(CTX, x, classes), op(CTX, x[labelled], classes[labelled]), rtol=1e-5)
    classes[4] = wrong
    for op in (learner.train, learner.evaluate):
        with pytest.raises(ComponentError, match=f"class {wrong}, the model has 3 classes, 0 to 2"):
            op(CTX, x, classes)


def test_the_number_of_classes_is_in_the_artifact() -> None:
    counts = {
        loss: {
            f.name: f.facts.class_count for f in trainable(mlp([6, 3]), loss=loss).construct("m").functions
        }
        for loss in ("sparse_softmax_cross_entropy", "softmax_cross_entropy")
    }
    assert counts["sparse_softmax_cross_entropy"] == {
        "m.forward": None,
        "m.train": None,
        "m.loss": 3,
        "m.fit": 3,
    }
    assert set(counts["softmax_cross_entropy"].values()) == {None}


def test_a_model_without_the_graph_says_so(batch: Any) -> None:
    with pytest.raises(ComponentError, match="no graph 'fit'"):
        component(trainable(mlp([6, 3], seed=1), learning=False)).train(CTX, *batch)


def test_a_snapshot_between_train_and_step_goes_on_there(batch: Any) -> None:
    first, second = component(model()), component(model())
    first.train(CTX, *batch)
    second.restore(first.serialize())
    for learner in (first, second):
        learner.train(CTX, *batch)
        learner.step(CTX)
    np.testing.assert_array_equal(first.params(CTX), second.params(CTX))


def test_an_output_without_rows_has_no_fit_graph() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "dot",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.ones(3, np.float32), "w")],
    )
    scalar = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = trainable(scalar, loss="mse", train=["w"]).construct("m")
    assert [f.name for f in found.functions] == ["m.forward", "m.train", "m.loss"]
