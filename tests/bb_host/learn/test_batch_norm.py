"""BatchNormalization that learns its statistics, against PyTorch in training mode (batch_norm_steps.json)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from learners import chunked, component
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bb_edge import PeerId, install
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.errors import OpError
from bb_edge.roles import ComponentError
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.cli import main
from bb_host.errors import LearnError
from bb_host.ir.proto import to_proto
from bb_host.learn import export_training, mlp, trainable
from bb_host.learn.exchange import export_model
from bb_host.learn.merged_statistics import part_in_file
from bb_host.tflite.fits import lowered_fit

CTX: Any = SimpleNamespace(exec_id=1)
TORCH = json.loads(Path(__file__).with_name("batch_norm_steps.json").read_text())
STATISTICS = ("1.running_mean", "1.running_var", "5.running_mean", "5.running_var")


def net(start: dict[str, Any] = TORCH["start"]) -> onnx.ModelProto:
    """The net of the file, as an exporter writes it for inference."""
    bn = [[f"{k}.{w}" for w in ("weight", "bias", "running_mean", "running_var")] for k in (1, 5)]
    nodes = [
        helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", *bn[0]], ["n"], "norm", momentum=0.7),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "4.weight", "4.bias"], ["g"], transB=1),
        helper.make_node("BatchNormalization", ["g", *bn[1]], ["logits"], "last", momentum=0.9, epsilon=1e-3),
    ]
    tensors = {name: np.array(values, np.float32) for name, values in start.items()}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 4, 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def learning(model: onnx.ModelProto, **settings: Any) -> Any:
    given = {"loss": "sparse_softmax_cross_entropy", "learning_rate": 0.2, "momentum": 0.9, **settings}
    return trainable(model, batch_norm="update", **given)


def test_steps_and_statistics_are_those_of_pytorch() -> None:
    model = learning(net())
    assert model.statistics == STATISTICS and tuple(model.model.parameters)[-4:] == STATISTICS
    assert model.warnings() == ()
    learner = component(model)
    for batch in TORCH["batches"]:
        x, y = np.array(batch["x"], np.float32), np.array(batch["y"])
        np.testing.assert_allclose(learner.train(CTX, x, y), batch["loss"], rtol=1e-5)
        learner.step(CTX)
        found = learner.named_parameters()
        for name, expected in batch["state"].items():
            np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(learner.forward(CTX, x), batch["output"], rtol=1e-3, atol=1e-5)


def test_rows_without_a_class_are_in_the_statistics_and_not_in_the_mean() -> None:
    x = np.array(TORCH["batches"][0]["x"], np.float32)
    labels = np.arange(len(x)) % 3
    partly = np.where(np.arange(len(x)) == 1, -1, labels)
    learner, other = (component(learning(net(), loss="sparse_softmax_cross_entropy")) for _ in range(2))
    loss = learner.train(CTX, x, labels)
    assert loss != other.train(CTX, x, partly)
    running = [{n: a for n, a in m.named_parameters().items() if "running" in n} for m in (learner, other)]
    assert running[0]
    for name, statistic in running[0].items():
        np.testing.assert_array_equal(statistic, running[1][name])


def test_statistics_are_sent_and_loaded_with_the_parameters() -> None:
    learner, other = component(learning(net())), component(learning(net()))
    batch = TORCH["batches"][0]
    x, y = np.array(batch["x"], np.float32), np.array(batch["y"])
    learner.train(CTX, x, y)
    before = other.forward(CTX, x)
    other.load_parameters(CTX, learner.params(CTX))
    np.testing.assert_array_equal(other.forward(CTX, x), learner.forward(CTX, x))
    assert not np.array_equal(other.forward(CTX, x), before)


def test_no_optimizer_touches_statistics() -> None:
    learner = component(learning(net(), optimizer="adamw", config={"weight_decay": 0.5}))
    before = learner.named_parameters()
    learner.step(CTX, np.ones(learner.params(CTX).size, np.float32))
    after = learner.named_parameters()
    for name in before:
        assert np.array_equal(before[name], after[name]) == (name in STATISTICS), name


def test_a_snapshot_and_another_program_take_them_over() -> None:
    learner = component(learning(net()))
    batch = TORCH["batches"][0]
    learner.train(CTX, np.array(batch["x"], np.float32), np.array(batch["y"]))
    learner.step(CTX)
    restored, adopting = component(learning(net())), component(learning(net()))
    restored.restore(learner.serialize())
    assert adopting.adopt(learner.serialize()).left == ()
    for other in (restored, adopting):
        np.testing.assert_array_equal(other.params(CTX), learner.params(CTX))


def merged(by: str) -> onnx.ModelProto:
    """Fresh statistics are zeros and ones, as biases and scales are: such files have equal ones once."""
    model = net({**TORCH["start"], "1.running_mean": [0.0, 0.0], "1.bias": [0.0, 0.0]})
    (norm,) = (node for node in model.graph.node if node.name == "norm")
    if by == "name":
        norm.input[3] = "1.bias"
    else:
        model.graph.node.insert(0, helper.make_node("Identity", ["1.bias"], ["same"]))
        model.graph.node.insert(1, helper.make_node("Identity", ["same"], ["1.running_mean"]))
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "1.running_mean"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


PARTED = "1.running_mean"  # as the exporter had named it


@pytest.mark.parametrize("by", ["name", "identity"])
def test_statistics_that_an_exporter_has_merged_are_parted(by: str) -> None:
    model = learning(merged(by))
    assert model.statistics[0] == PARTED
    learner = component(model)
    batch = TORCH["batches"][0]
    learner.train(CTX, np.array(batch["x"], np.float32), np.array(batch["y"]))
    found = learner.named_parameters()
    assert not found["1.bias"].any() and found[PARTED].any()


@pytest.mark.parametrize("by", ["name", "identity"])
@pytest.mark.parametrize("batch_norm", ["frozen", "update"])
def test_merged_statistics_do_not_go_with_what_they_were_merged_with(by: str, batch_norm: str) -> None:
    """The bias learns; on the device and in the file that comes out, the statistic is as it should be."""
    source = merged(by)
    model = trainable(source, batch_norm=batch_norm, loss="sparse_softmax_cross_entropy", learning_rate=0.2)
    assert {"1.weight", "1.bias"} <= {i.name for i in model.initializers if i.learned}
    learner = component(model)
    for batch in TORCH["batches"]:
        learner.train(CTX, np.array(batch["x"], np.float32), np.array(batch["y"]))
        learner.step(CTX)
    x = np.array(TORCH["batches"][0]["x"], np.float32)
    named = learner.named_parameters()
    assert named["1.bias"].any() and (batch_norm == "update") == (PARTED in named)
    export_model(source, named)
    onnx.checker.check_model(source)
    (there,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(there, learner.forward(CTX, x), rtol=1e-4, atol=1e-5)


def test_frozen_statistics_stay_constants() -> None:
    model = learning(net(), frozen=["1.running_*"])
    assert model.statistics == STATISTICS[2:]


def test_statistics_that_are_personal_stay_on_their_node() -> None:
    """FedBN's: each node normalizes by its own data, and shares what it learns from it."""
    own = "1.running_*"
    model = learning(net(), personal=[own])
    assert model.statistics == (*STATISTICS[2:], *STATISTICS[:2])  # personal ones are the last
    assert "personal  1.running_mean" in model.table() and "4 statistics in 2 are personal" in model.table()
    learner, other = component(model), component(learning(net(), personal=[own]))
    batch = TORCH["batches"][0]
    x, y = np.array(batch["x"], np.float32), np.array(batch["y"])
    learner.train(CTX, x, y)
    learner.step(CTX)
    after, before = learner.named_parameters(), other.named_parameters()
    for name, expected in batch["state"].items():  # it learns what a model learns that shares all
        np.testing.assert_allclose(after[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
    sent = learner.params(CTX)
    assert sent.size == sum(a.size for a in after.values()) - 4
    other.load_parameters(CTX, sent)
    loaded = other.named_parameters()
    for name in after:
        kept = name.startswith("1.running")
        np.testing.assert_array_equal(loaded[name], (before if kept else after)[name], err_msg=name)
    np.testing.assert_array_equal(other.params(CTX), sent)
    restored = component(learning(net(), personal=[own]))
    restored.restore(learner.serialize())
    np.testing.assert_array_equal(restored.forward(CTX, x), learner.forward(CTX, x))


def test_a_whole_normalization_is_personal() -> None:
    model = learning(net(), personal=["1.*"])
    assert model.model.personal == ("1.weight", "1.bias")
    learner, other = component(model), component(learning(net(), personal=["1.*"]))
    batch = TORCH["batches"][0]
    learner.train(CTX, np.array(batch["x"], np.float32), np.array(batch["y"]))
    learner.step(CTX)
    before = other.named_parameters()
    other.load_parameters(CTX, learner.params(CTX))
    after, loaded = learner.named_parameters(), other.named_parameters()
    for name in after:
        np.testing.assert_array_equal(
            loaded[name], (before if name[:2] == "1." else after)[name], err_msg=name
        )
        if name != "0.bias":  # the normalization behind it takes its mean out: its gradient is rounding alone
            assert not np.array_equal(after[name], before[name]), name


def test_a_pattern_for_a_layer_means_its_merged_statistics_too() -> None:
    for by in ("name", "identity"):
        model = learning(merged(by), personal=["1.*"])
        assert model.statistics[2:] == (PARTED, "1.running_var")
        assert f"personal  {PARTED}" in model.table()


def test_an_identity_that_something_else_reads_keeps_its_name() -> None:
    source = merged("identity")
    source.graph.node.append(helper.make_node("Identity", [PARTED], ["spare"]))
    source.graph.output.append(helper.make_tensor_value_info("spare", onnx.TensorProto.FLOAT, [2]))
    part_in_file(source.graph)
    (norm,) = (node for node in source.graph.node if node.name == "norm")
    assert norm.input[3] == "1.running_mean_1"
    onnx.checker.check_model(source)


def test_statistics_of_layers_that_share_a_scale_are_named_after_their_operators() -> None:
    source = merged("name")
    norms = [node for node in source.graph.node if node.op_type == "BatchNormalization"]
    norms[1].input[1] = norms[0].input[1]
    part_in_file(source.graph)
    assert norms[0].input[3] == "norm.running_mean"


def test_merged_statistics_are_personal_by_the_names_that_they_are_listed_under() -> None:
    model = learning(merged("name"), personal=["1.running_mean", "1.running_var"])
    assert model.statistics[2:] == ("1.running_mean", "1.running_var")
    assert "personal  1.running_mean" in model.table()


@pytest.mark.parametrize("personal", [[], ["1.*"]])
def test_a_model_that_only_answers_takes_what_one_that_learns_gives(personal: list[str]) -> None:
    learner = component(learning(net(), personal=personal))
    answering = trainable(net(), learning=False, batch_norm="update", personal=personal)
    assert answering.gradient is None and set(answering.statistics) == set(STATISTICS)
    answers = component(answering)
    assert answers.layout_hash == learner.layout_hash
    batch = TORCH["batches"][0]
    x = np.array(batch["x"], np.float32)
    learner.train(CTX, x, np.array(batch["y"]))
    learner.step(CTX)
    answers.load_parameters(CTX, learner.params(CTX))
    if not personal:
        np.testing.assert_array_equal(answers.forward(CTX, x), learner.forward(CTX, x))
    with pytest.raises(ComponentError, match="the model takes"):  # another layout is refused where they meet
        component(trainable(net(), learning=False)).load_parameters(CTX, learner.params(CTX))


class Shares(Module):
    model = ModelSlot("model")

    def body(self, g: Graph) -> None:
        loss = self.model.train(g, g.input("x", "F32", (2, 1, 4, 4)), g.input("y", "I64", (2,)))
        g.app_emit("sent", self.model.params(g, after=self.model.step(g, after=loss)))


def test_the_compiler_knows_how_much_is_sent() -> None:
    compiler = Compiler().bind_model("model", GraphModel, learning(net(), personal=["1.*"]))
    main_, *_ = compiler.run(Shares()).program.functions
    (sent,) = (main_.types[op.outputs[0]].shape for op in main_.ops if op.op_type == "Params")
    total = sum(np.size(values) for values in TORCH["start"].values())
    assert sent == (total - 8,)


def test_a_device_cannot_have_more_personal_statistics_than_statistics() -> None:
    with pytest.raises(ComponentError, match="personal_statistics is 5, of 4 statistics"):
        component(learning(net()), config={"personal_statistics": 5})


def test_without_it_the_warning_tells_how() -> None:
    (warning,) = trainable(net()).warnings()
    assert warning.code == "frozen-statistics" and 'batch_norm="update"' in warning.hint


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trainable(mlp([2, 2]), batch_norm="update"), "no BatchNormalization"),
        (lambda: trainable(mlp([2, 2]), batch_norm="yes"), "known: frozen, update"),
        (lambda: export_training(learning(net())), "batch_norm"),
        (lambda: learning(net(), frozen=["*.running_*"]), "statistics that it should update are frozen"),
        (lambda: trainable(net(), personal=["1.*"]), 'batch_norm="update" learns it'),
    ],
)
def test_what_cannot_be_says_so(make: Any, message: str) -> None:
    with pytest.raises(LearnError, match=message):
        make()


def test_a_batch_whose_statistics_are_taken_is_filled_up_and_never_cut() -> None:
    """Rows that fill it up have no part in statistics, nor in the correction of the variance."""
    plain, filled = component(learning(net())), component(chunked(learning(net()), 9))
    for batch in TORCH["batches"]:
        x, y = np.array(batch["x"], np.float32), np.array(batch["y"])
        assert len(x) < 9
        np.testing.assert_allclose(filled.train(CTX, x, y), plain.train(CTX, x, y), rtol=1e-5)
        filled.step(CTX)
        plain.step(CTX)
        np.testing.assert_allclose(filled.params(CTX), plain.params(CTX), rtol=1e-4, atol=1e-6)
    small = component(chunked(learning(net()), 2))
    x, y = np.zeros((3, 1, 4, 4), np.float32), np.zeros(3, np.int64)
    with pytest.raises(ComponentError, match=r"a batch of 3 rows: .*, 2 rows at most"):
        small.train(CTX, x, y)


@pytest.mark.parametrize("rows", [None, 1])
def test_a_batch_that_nobody_knows_leaves_its_graph_alone(rows: int | None) -> None:
    """Nor is one compiled for a single row: no node trains on such batches."""
    (fit,) = (f for f in learning(net()).construct("m").functions if f.name == "m.fit")
    found = lowered_fit(fit, rows, lambda function, for_good: pytest.fail("it is not lowered"))
    assert found.function is fit and "statistics of a whole batch" in found.lowering.kept[0].reason


def test_the_command_lists_statistics_and_warns_for_a_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    model = net()
    model.graph.node[-1].output[0] = "scores"
    model.graph.node.append(helper.make_node("Softmax", ["scores"], ["logits"], "end"))
    onnx.save(model, path)
    listing = ["compile", str(path), "--trainable", "--loss"]
    assert main([*listing, "mse", "--batch-norm", "update"]) == 0
    out = capsys.readouterr()
    kinds = {line.split()[1]: line.split()[0] for line in out.out.splitlines()[1:-1]}
    assert {kinds[name] for name in STATISTICS} == {"sent"} and not out.err
    assert main([*listing, "softmax_cross_entropy", "--batch-norm", "update"]) == 0
    assert "probabilities-as-output" in capsys.readouterr().err
    assert main([*listing, "none"]) != 0
    out = capsys.readouterr()
    assert "unknown loss 'none'" in out.err and "0.weight" in out.out  # the list comes all the same


class Learner(Module):
    """Trains on what a data source gives."""

    name = "Learner"
    data, model = DataSourceSlot("data"), ModelSlot("model")

    def __init__(self, rows: int | None = None) -> None:
        super().__init__()
        self.rows = rows

    def body(self, g: Graph) -> None:
        if self.rows is None:
            x, y = self.data.next_batch(g, after=g.input("go", "Trigger"))
        else:
            x, y = g.input("x", "F32", (self.rows, 1, 4, 4)), g.input("y", "I64", (self.rows,))
        loss = self.model.train(g, x, y)
        g.output("stepped", self.model.step(g, after=loss))


def test_one_row_has_no_variance() -> None:
    """PyTorch: "Expected more than 1 value per channel when training"."""
    learner = component(learning(net()))
    x, y = np.ones((1, 1, 4, 4), np.float32), np.array([0])
    before = learner.params(CTX)
    with pytest.raises(ComponentError, match="1 of the 2 rows that normalizations need") as error:
        learner.train(CTX, x, y)
    assert "raise batch_size" in error.value.hint
    np.testing.assert_array_equal(learner.params(CTX), before)
    learner.train(CTX, np.repeat(x, 2, 0), np.repeat(y, 2))


def test_one_image_has_a_variance_where_a_normalization_sees_its_pixels() -> None:
    model = net()
    del model.graph.node[5]
    model.graph.node[4].output[0] = "logits"
    learner = component(learning(model))
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    assert np.isfinite(learner.train(CTX, x, np.array([0])))


def test_the_compiler_refuses_batches_of_one_row() -> None:
    compiler = Compiler().bind_model("model", GraphModel, learning(net()))
    with pytest.raises(LearnError, match="the batch has 1 of the 2 rows") as error:
        compiler.compile(Learner(1))
    assert "test_batch_norm.py:" in error.value.where and "batch_size" in error.value.hint
    compiler.run(Learner(2))


def test_a_model_for_one_row_is_refused_where_it_is_bound() -> None:
    model = net()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(LearnError, match="gets one row, and takes the variance of a batch"):
        Compiler().bind_model("model", GraphModel, learning(model))


class GatedLearner(Learner):
    """Trains on a batch that is there before it may."""

    name = "GatedLearner"

    def body(self, g: Graph) -> None:
        x, y = self.data.next_batch(g, after=g.input("go", "Trigger"))
        loss = self.model.train(g, x, y, after=g.input("now", "Trigger"))
        g.output("stepped", self.model.step(g, after=loss))


def test_a_source_of_single_rows_is_a_warning_behind_a_gate_too() -> None:
    compiler = Compiler().bind_model("model", GraphModel, learning(net()))
    of_one = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 1}).run(GatedLearner())
    assert [w.code for w in of_one.warnings] == ["too-few-rows"]


def test_a_source_of_single_rows_is_a_warning_and_no_node_starts_with_it(tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    np.savez(path, x=np.ones((4, 1, 4, 4), np.float32), y=np.arange(4) % 3)
    compiler = Compiler().bind_model("model", GraphModel, learning(net()))
    of_one = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 1}).run(Learner())
    assert [w.code for w in of_one.warnings] == ["too-few-rows"]
    of_two = compiler.bind_data_source("data", ArrayDataSource, {"batch_size": 2}).run(Learner())
    assert of_two.warnings == ()
    artifact = to_proto(of_two.program).SerializeToString()

    def installed(**settings: object) -> None:
        data = {"data": {"path": str(path), **settings}}
        install(PeerId.from_name("n"), (), artifact, ["Learner"], components=data, seed=1)

    installed()
    with pytest.raises(OpError, match="batches of 1 of the 2 rows") as error:
        installed(batch_size=1)
    assert "slot 'data'" in error.value.where
    np.savez(path, x=np.ones((1, 1, 4, 4), np.float32), y=np.zeros(1, np.int64))
    with pytest.raises(OpError, match="batches of 1 of the 2 rows"):
        installed(batch_size=0)
