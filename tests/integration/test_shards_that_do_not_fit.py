"""A shard whose samples are not those that the program was compiled for is refused before the node runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from bb_edge import PeerId, install
from bb_edge.cli import main
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.errors import OpError
from bb_edge.engine.steps import OpFailed
from bb_edge.ir import keys
from bb_edge.ir.values import TRIGGER
from bb_edge.registry import Registry
from bb_edge.roles import DataSource
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.learn import mlp, trainable
from tests.aids.refusals import refused

SAMPLES = np.zeros((10, 6), np.float32)
LABELS = np.arange(10) % 3


class Learner(Module):
    """Learns from batches of six columns; reads the labels, too, where it is said to."""

    name = "Learner"
    data, model = DataSourceSlot("data"), ModelSlot("model")

    def __init__(self, labels: bool) -> None:
        super().__init__()
        self.labels = labels

    def body(self, g: Graph) -> None:
        batch, labels = self.data.next_batch(g, after=g.input("go", "Trigger"))
        g.output("y", self.model.forward(g, batch))
        if self.labels:
            g.output("loss", self.model.evaluate(g, batch, labels))


def compiled(labels: bool = True, kind: Any = ArrayDataSource, module: Module | None = None) -> Any:
    compiler = Compiler().bind_data_source("data", kind, {"one_hot": 3} if labels else {})
    return compiler.bind_model("model", GraphModel, trainable(mlp([6, 4, 3]))).compile(
        module or Learner(labels)
    )


def held(artifact: Any, path: Path, registry: Registry | None = None, **config: object) -> None:
    """Installs the program with a shard."""
    settings = {"data": {"path": str(path), **config}}
    install(
        PeerId.from_name("n"),
        (),
        artifact.SerializeToString(),
        ["Learner"],
        components=settings,
        registry=registry,
        seed=1,
    )


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    def written(**arrays: np.ndarray) -> Path:
        path = tmp_path / "shard.npz"
        np.savez(path, **arrays)
        return path

    return written


WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "columns": ({"x": SAMPLES[:, :5], "y": LABELS}, "batches of Tensor<F32>[10, 5], the program takes"),
    "a rank": ({"x": SAMPLES[..., None], "y": LABELS}, "batches of Tensor<F32>[10, 6, 1], the program"),
    "a dtype": ({"x": SAMPLES.astype(np.float64), "y": LABELS}, "batches of Tensor<F64>[10, 6], the program"),
}


@pytest.mark.parametrize("what", WRONG)
def test_other_samples_are_refused_at_install(what: str, shard: Callable[..., Path]) -> None:
    arrays, said = WRONG[what]
    with refused(OpError, "slot 'data'", said, "Tensor<F32>[?,6]", marked=False):
        held(compiled(), shard(**arrays))


def test_missing_and_other_labels_are_refused_where_they_are_read(shard: Callable[..., Path]) -> None:
    silent = compiled(labels=False)
    held(silent, shard(x=SAMPLES))
    with refused(
        OpError, "slot 'data'", "labels of Tensor<I64>[10], the program takes Tensor<F32>[?,3]", marked=False
    ):
        held(compiled(), shard(x=SAMPLES, y=LABELS), one_hot=0)
    with refused(OpError, "slot 'data'", "gives no labels, the program takes Tensor<F32>[?,3]", marked=False):
        held(compiled(), shard(x=SAMPLES), one_hot=0)


class Later(Learner):
    """Reads a batch first, and uses it behind `after=`, twice over."""

    name = "Learner"

    def body(self, g: Graph) -> None:
        batch, labels = self.data.next_batch(g, after=g.input("go", "Trigger"))
        seen = self.model.params(g, after=labels)
        first = self.model.forward(g, batch, after=seen)
        g.output("y", self.model.forward(g, g.pass_through(batch), after=first))


class Prepared(Learner):
    """Computes on a batch before the model takes it."""

    name = "Learner"

    def __init__(self, prepare: Callable[[Any, Graph, Any], Any]) -> None:
        super().__init__(labels=False)
        self.prepare = prepare

    def body(self, g: Graph) -> None:
        batch, _ = self.data.next_batch(g, after=g.input("go", "Trigger"))
        g.output("y", self.prepare(self, g, batch))


def standardized(m: Any, g: Graph, x: Any) -> Any:
    return m.model.forward(g, (x - g.constant(SAMPLES[0])) / g.constant(SAMPLES[:1] + 2))


def cast(m: Any, g: Graph, x: Any) -> Any:
    return m.model.forward(g, g.onnx.cast(x, to="F32") * 0.5)


def chosen(m: Any, g: Graph, x: Any) -> Any:
    some = g.onnx.reduce_max(g.onnx.cast(x, to="F32")) > 1.0
    return g.onnx.if_(some, lambda b: m.model.forward(b, x), lambda b: b.constant(SAMPLES[:1, :3]))


def looped(m: Any, g: Graph, x: Any) -> Any:
    with g.loop(2) as step:
        found = step.collect(m.model.forward(g, x))
    return g.pass_through(found)


@pytest.mark.parametrize("prepare", [standardized, cast, chosen, looped])
def test_columns_are_known_through_what_is_computed_of_a_batch(
    prepare: Callable[[Any, Graph, Any], Any], shard: Callable[..., Path]
) -> None:
    artifact = compiled(labels=False, module=Prepared(prepare))
    held(artifact, shard(x=SAMPLES))
    if prepare is cast:
        held(artifact, shard(x=SAMPLES.astype(np.uint8)))
    with refused(OpError, "slot 'data'", "[10, 5], the program takes", "[?,6]", marked=False):
        held(artifact, shard(x=SAMPLES[:, :5]))


def test_a_batch_beside_a_value_of_unknown_shape_is_held_to_nothing(shard: Callable[..., Path]) -> None:
    """It may be repeated along any axis."""

    def beside(m: Any, g: Graph, x: Any) -> Any:
        return m.model.forward(g, x * g.input("by", "F32"))

    held(compiled(labels=False, module=Prepared(beside)), shard(x=SAMPLES[:, :1]))


def test_a_batch_that_is_used_behind_others_is_known_all_the_same(shard: Callable[..., Path]) -> None:
    later = compiled(module=Later(True))
    held(later, shard(x=SAMPLES, y=LABELS))
    with refused(OpError, "slot 'data'", "Tensor<F32>[10, 5], the program takes", "F32>[?,6]", marked=False):
        held(later, shard(x=SAMPLES[:, :5], y=LABELS))


def test_what_fits_is_taken_whatever_the_batch(shard: Callable[..., Path]) -> None:
    for size in (0, 1, 7):
        held(compiled(), shard(x=SAMPLES, y=LABELS), batch_size=size)


def test_check_says_it(tmp_path: Path, shard: Callable[..., Path], capsys: Any) -> None:
    artifact = tmp_path / "learner.onnx"
    artifact.write_bytes(compiled().SerializeToString())
    path = shard(x=SAMPLES[:, :5], y=LABELS)
    assert main(["check", str(artifact), "--set", f"data.path={path}"]) != 0
    said = capsys.readouterr()
    assert "[10, 5], the program takes Tensor<F32>[?,6]" in said.out + said.err
    shard(x=SAMPLES, y=LABELS)
    assert main(["check", str(artifact), "--set", f"data.path={path}"]) == 0


class Padded(ArrayDataSource):
    """Gives one column more than the file has."""

    TYPE_NAME = "tests.Padded"

    def next_batch(self, ctx: Any) -> Any:
        batch, labels = super().next_batch(ctx)
        return np.pad(batch, ((0, 0), (0, 1))), labels


def test_what_a_source_makes_of_its_samples_is_its_own(shard: Callable[..., Path]) -> None:
    registry = Registry()
    registry.register(Padded)
    held(compiled(kind=Padded), shard(x=SAMPLES[:, :5], y=LABELS), registry)


@pytest.mark.parametrize(
    ("batch", "labels", "told"),
    [
        (SAMPLES[:, :5], np.eye(3, dtype=np.float32)[LABELS], "batches of Tensor<F32>[10, 5], the program"),
        (
            SAMPLES.astype(np.float64),
            None,
            "batches of Tensor<F64>[10, 6], the program takes Tensor<F32>[?,6]",
        ),
        (SAMPLES, None, "it gives no labels, the program takes Tensor<F32>[?,3]"),
        (SAMPLES, LABELS, "labels of Tensor<I64>[10], the program takes Tensor<F32>[?,3]"),
        (SAMPLES, np.eye(3, dtype=np.float32)[LABELS], ""),
    ],
)
def test_a_source_that_does_not_say_what_it_gives_has_each_batch_held(
    batch: Any, labels: Any, told: str
) -> None:
    class Silent(DataSource):
        TYPE_NAME = "tests.Silent"
        stateless = True

        @classmethod
        def construct(cls, env: Any) -> Silent:
            return cls()

        def next_batch(self, ctx: Any) -> Any:
            return batch, labels

        def num_samples(self, ctx: Any) -> Any:
            return np.array(10, np.int64)

        def reset(self, ctx: Any, trigger: Any) -> Any:
            return trigger

        def on_data_loaded(self, ctx: Any) -> Any:
            return TRIGGER

    registry = Registry()
    registry.register(Silent)
    compiler = Compiler().bind_data_source("data", Silent)
    compiler = compiler.bind_model("model", GraphModel, trainable(mlp([6, 4, 3])))
    node = install(
        PeerId.from_name("n"),
        (),
        compiler.compile(Learner(True)).SerializeToString(),
        ["Learner"],
        registry=registry,
        seed=1,
    )
    node.invoke("Learner", {"go": TRIGGER})
    failed = [step for step in node.poll(1) if isinstance(step, OpFailed)]
    assert [step.error.where for step in failed] == (["slot 'data'"] if told else [])
    assert all(told in str(step.error) for step in failed)


def test_a_damaged_stamp_is_refused(shard: Callable[..., Path]) -> None:
    model = compiled()
    for function in model.functions:
        for node in function.node:
            for entry in node.metadata_props:
                if entry.key == keys.PARTS_KEY:
                    entry.value = "(101[6"
    with refused(OpError, "a stamp is damaged", marked=False):
        held(model, shard(x=SAMPLES, y=LABELS))


class Sorter(Learner):
    """Trains on numbers of classes, behind an `after=`, in a loop where it is said to."""

    name = "Learner"

    def __init__(self, looped: bool = False) -> None:
        super().__init__(labels=True)
        self.looped = looped

    def body(self, g: Graph) -> None:
        go = g.input("go", "Trigger")
        if self.looped:
            with g.loop(3, after=go) as steps:
                self.learn(g)
            g.output("y", self.model.params(g, after=steps))
        else:
            g.output("y", self.learn(g, after=go))

    def learn(self, g: Graph, **after: Any) -> Any:
        batch, labels = self.data.next_batch(g, **after)
        seen = self.model.params(g, after=labels)
        return self.model.step(g, after=self.model.train(g, batch, g.pass_through(labels, after=seen)))


@pytest.mark.parametrize("looped", [False, True])
def test_a_label_that_is_no_class_of_the_model_is_refused_at_install(
    looped: bool, shard: Callable[..., Path]
) -> None:
    def program(**settings: Any) -> Any:
        net = trainable(mlp([6, 4, 3]), loss="sparse_softmax_cross_entropy", **settings)
        compiler = Compiler().bind_data_source("data", ArrayDataSource).bind_model("model", GraphModel, net)
        return compiler.compile(Sorter(looped))

    artifact = program()
    held(artifact, shard(x=SAMPLES, y=LABELS))
    held(artifact, shard(x=SAMPLES, y=LABELS - (LABELS == 2) * 3))  # -1: a sample of no class
    for label in (3, -2):
        y = LABELS.copy()
        y[7] = label
        said = f"sample 7 has label {label}, the model has 3 classes, 0 to 2"
        with refused(OpError, "slot 'data'", said, "-1 is the label of a row", marked=False):
            held(artifact, shard(x=SAMPLES, y=y))
        held(program(ignore_index=label), shard(x=SAMPLES, y=y))


def test_labels_that_a_program_maps_to_classes_are_its_own(shard: Callable[..., Path]) -> None:
    class Shifted(Sorter):
        name = "Learner"

        def learn(self, g: Graph, **after: Any) -> Any:
            batch, labels = self.data.next_batch(g, **after)
            return self.model.step(g, after=self.model.train(g, batch, labels - np.int64(3)))

    net = trainable(mlp([6, 4, 3]), loss="sparse_softmax_cross_entropy")
    compiler = Compiler().bind_data_source("data", ArrayDataSource).bind_model("model", GraphModel, net)
    held(compiler.compile(Shifted()), shard(x=SAMPLES, y=LABELS + 3))


def test_a_damaged_stamp_of_classes_is_refused(shard: Callable[..., Path]) -> None:
    net = trainable(mlp([6, 4, 3]), loss="sparse_softmax_cross_entropy")
    compiler = Compiler().bind_data_source("data", ArrayDataSource).bind_model("model", GraphModel, net)
    artifact = compiler.compile(Sorter())
    stamps = [
        entry
        for function in artifact.functions
        for node in function.node
        for entry in node.metadata_props
        if entry.key == keys.LABEL_CLASSES_KEY
    ]
    assert [stamp.value for stamp in stamps] == ["3,-1"]
    stamps[0].value = "three"
    with refused(OpError, "'three' are not classes", "compile it again", marked=False):
        held(artifact, shard(x=SAMPLES, y=LABELS))


class Weighed(Module):
    """Multiplies batches with a matrix of the program's own, in two steps; `guarded` behind a condition."""

    name = "Learner"
    data = DataSourceSlot("data")

    def __init__(self, guarded: bool = False) -> None:
        super().__init__()
        self.guarded = guarded

    def body(self, g: Graph) -> None:
        batch, _ = self.data.next_batch(g, after=g.input("go", "Trigger"))
        doubled = batch + batch
        g.app_emit("doubled", doubled)  # what is told is computed apart from the product
        if self.guarded:
            doubled = g.pass_through(doubled, after=g.when(g.onnx.shape(batch)[1] == 3))
        g.app_emit("y", doubled @ g.constant(np.ones((3, 2), np.float32)))


def test_an_operator_that_cannot_take_the_batches_of_the_device_is_refused_at_install(
    shard: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    artifact = Compiler().bind_data_source("data", ArrayDataSource).compile(Weighed())
    held(artifact, shard(x=SAMPLES[:, :3]))
    with refused(OpError, "slot 'data'", "MatMul", "(10, 6)", "(3, 2)", "Tensor<F32>[10, 6]", marked=False):
        held(artifact, shard(x=SAMPLES))
    path = tmp_path / "weighed.onnx"
    path.write_bytes(artifact.SerializeToString())
    assert main(["check", str(path), "--set", f"data.path={shard(x=SAMPLES)}"]) == 1
    assert "its batches do not fit the program" in capsys.readouterr().out


def test_an_operator_behind_a_condition_is_left_to_it(shard: Callable[..., Path]) -> None:
    compiler = Compiler().bind_data_source("data", ArrayDataSource)
    held(compiler.compile(Weighed(guarded=True)), shard(x=SAMPLES))
