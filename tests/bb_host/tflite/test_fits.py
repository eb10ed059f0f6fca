"""Training on batches in artifacts: what a graph `fit` becomes, how many rows it takes, what it gives."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.backends.tflite.program import WATCHED_RUNS, TFLiteProgram
from bb_edge.backends.tflite.tuning import Choice, save_tuning
from bb_edge.cli import main
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.steps import AppEvent
from bb_edge.roles.errors import BackendRunError
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import build_edge
from bb_host.ir.proto import function_to_proto
from bb_host.learn import trainable
from bb_host.tflite.fits import CACHE, FEWEST, UNKNOWN, Cost, best_chunk
from bb_host.tflite.lower import TFLITE_BACKEND
from benchmarks.training_nets import CLASSES, NETS, digits_cnn_bn

SHAPES = {
    "MLP 64-32-10": (64,),
    "MLP 784-256-128-10": (784,),
    "digits CNN": (1, 8, 8),
    "transformer block": (16, 32),
}
ROWS = 21
CONFIG = NodeConfig(app_event_bytes=1 << 20)


def program(net: str, rows: int | None) -> Module:
    """One step on a batch that comes from outside."""

    class Step(Module):
        name = "Step"
        model = ModelSlot("model")

        def body(self, g: Graph) -> None:
            x = g.input("x", np.float32, [rows, *SHAPES[net]])
            y = g.input("y", np.float32, [rows, CLASSES])
            loss = self.model.train(g, x, y)
            g.output("loss", loss)
            g.output("params", self.model.params(g, after=self.model.step(g, after=loss)))

    return Step()


@cache
def built(net: str, backend: str, rows: int | None = ROWS, max_batch: int | None = None) -> Any:
    compiler = Compiler().bind_model("model", GraphModel, trainable(NETS[net](), learning_rate=0.1))
    return build_edge(program(net, rows), compiler, backend=backend, max_batch=max_batch).artifacts[0]


def batch(net: str, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((rows, *SHAPES[net])).astype(np.float32)
    return x, np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, rows)]


def stepped(data: bytes, x: np.ndarray, y: np.ndarray, tuning: str = "", steps: int = 1) -> list[np.ndarray]:
    """Loss and parameters on this machine, after so many steps."""
    components = {"backend": {"tuning": tuning}} if tuning else {}
    node = install(PeerId.from_name("t"), (), load(data), ["Step"], CONFIG, components=components)
    for number in range(steps):
        node.invoke("Step", {"x": x, "y": y})
        events = {s.topic: np.asarray(s.value) for s in node.poll(number) if isinstance(s, AppEvent)}
    return [events["loss"], events["params"]]


def fit_of(artifact: Any) -> Any:
    (found,) = (f for f in artifact.program.functions if f.name.partition("#")[0] == "model.fit")
    return found


@pytest.mark.parametrize("rows", [ROWS, None])
@pytest.mark.parametrize("net", SHAPES)
def test_a_device_trains_as_on_numpy(net, rows, run_on):
    """Also where the last chunk is not full."""
    x, y = batch(net)
    want = stepped(built(net, "numpy", rows).data, x, y)
    got = run_on("invoked", built(net, "tflite", rows).data, [x, y])
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
@pytest.mark.parametrize("net", SHAPES)
def test_steps_go_on_as_on_numpy(net):
    """Those of large gradients read them in the interpreter's memory, which the next step's pass needs."""
    x, y = batch(net)
    want = stepped(built(net, "numpy").data, x, y, steps=4)
    got = stepped(built(net, "tflite").data, x, y, steps=4)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("net", SHAPES)
def test_the_graph_is_one_model_of_as_many_rows_as_it_says(net):
    artifact = built(net, "tflite")
    (chunk,) = artifact.lowering.chunks
    fit = fit_of(artifact)
    assert fit.facts.chunk == chunk.rows
    assert (chunk.function, chunk.batch) == (fit.name, ROWS)
    (model,) = fit.ops
    assert model.op_type == "Model"
    assert f"{chunk.rows} rows at a time, of batches of {ROWS}" in artifact.lowering.explain()
    assert artifact.program.facts.bound("Step", "backend").type_name == TFLITE_BACKEND


def test_a_batch_that_nobody_knows_has_small_chunks():
    (chunk,) = built("digits CNN", "tflite", None).lowering.chunks
    assert chunk.batch is None
    assert chunk.rows <= UNKNOWN


def test_numpy_leaves_the_graph_as_it_is():
    artifact = built("digits CNN", "numpy")
    assert fit_of(artifact).facts.chunk is None
    assert not artifact.lowering.chunks


@cache
def normalized(backend: str, rows: int | None = ROWS) -> Any:
    model = trainable(digits_cnn_bn(), learning_rate=0.1, batch_norm="update")
    compiler = Compiler().bind_model("model", GraphModel, model)
    return build_edge(program("digits CNN", rows), compiler, backend=backend).artifacts[0]


def test_a_graph_that_takes_statistics_has_the_rows_of_the_batch(run_on):
    artifact = normalized("tflite")
    (chunk,) = artifact.lowering.chunks
    assert (chunk.rows, chunk.batch, fit_of(artifact).facts.chunk) == (ROWS, ROWS, ROWS)
    (model,) = fit_of(artifact).ops
    assert model.op_type == "Model"
    x, y = batch("digits CNN")
    want = stepped(normalized("numpy").data, x, y)
    for one, other in zip(run_on("invoked", artifact.data, [x, y]), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_it_stays_on_numpy_where_nobody_knows_the_batch():
    artifact = normalized("tflite", None)
    assert "nobody says of how many rows" in artifact.lowering.explain()
    assert not fit_of(artifact).facts.chunk
    loss, _ = stepped(artifact.data, *batch("digits CNN"))
    assert np.isfinite(loss)


class FromShard(Module):
    """The batch's size is the data source's."""

    name = "FromShard"
    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def body(self, g: Graph) -> None:
        x, y = self.shard.next_batch(g, after=g.input("start", np.int64, []))
        g.output("loss", self.model.train(g, x, y))


class InALoop(FromShard):
    name = "InALoop"

    def body(self, g: Graph) -> None:
        start = g.input("start", np.int64, [])
        with g.loop(3, after=start):
            x, y = self.shard.next_batch(g)
            self.model.step(g, after=self.model.train(g, x, y))


class BehindGates(FromShard):
    """`after=` at a step puts gates between it and its batch: one for one value, another for several."""

    name = "BehindGates"

    def body(self, g: Graph) -> None:
        start, go = g.input("start", np.int64, []), g.input("go", np.int64, [])
        x, y = self.shard.next_batch(g, after=start)
        first = self.model.train(g, x, y, after=go)
        g.output("loss", self.model.train(g, x, y, after=[first, go]))


@pytest.mark.parametrize("module", [FromShard, InALoop, BehindGates])
def test_the_batch_is_what_the_data_source_gives(module):
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(NETS["MLP 64-32-10"]()))
        .bind_data_source("shard", ArrayDataSource, {"batch_size": 24, "one_hot": CLASSES})
    )
    (artifact,) = build_edge(module(), compiler, backend="tflite").artifacts
    assert [c.batch for c in artifact.lowering.chunks] == [24]


def test_chunks_need_less_memory_than_the_batch_at_once():
    rows = 128
    chunked, whole = built("digits CNN", "auto", rows), built("digits CNN", "numpy", rows, rows)

    def work(artifact):
        told = ("activations of TFLite models", "arena, shared: the largest of", "weights as TFLite")
        return sum(share.nbytes for share in artifact.budget.ram if share.what.startswith(told))

    assert work(chunked) < work(whole) * 0.65


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_what_measured_faster_runs_it(tmp_path, capsys):
    artifact = built("MLP 64-32-10", "auto")
    path = tmp_path / "step.edge.onnx"
    path.write_bytes(artifact.data)
    assert main(["bench", "--tune", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "1 thread" in shown and "NumPy" in shown
    x, y = batch("MLP 64-32-10")
    place = tmp_path / "step.edge.tune.json"
    found = {}
    for threads in (0, 1):
        save_tuning(place, {artifact.lowering.models[0].sha256: Choice(threads)}, interpreter())
        found[threads] = stepped(artifact.data, x, y, str(place))
    for one, other in zip(found[0], found[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_results_are_written_where_they_are_wanted():
    attrs = fit_of(built("MLP 64-32-10", "tflite")).ops[0].attrs
    make, ports = interpreter().make, len(fit_of(built("MLP 64-32-10", "tflite")).inputs)
    program = TFLiteProgram(make, attrs["model"], attrs["sha256"], ports, ports - 2, 1, "a test")
    inputs = [np.full(shape, 0.5, dtype) for dtype, shape in program.ports]
    outputs = [np.empty(shape, dtype) for dtype, shape in program.results]
    for _ in range(2):
        program.run_into(inputs, outputs)
    for one, other in zip(outputs, program.run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(BackendRunError, match="the array given for it is"):
        program.run_into(inputs, [*outputs[:-1], np.empty(3, np.float32)])


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_gradients_are_lent_where_the_interpreter_keeps_them():
    fit = fit_of(built("MLP 784-256-128-10", "tflite"))
    attrs, ports = fit.ops[0].attrs, len(fit.inputs)
    program = TFLiteProgram(
        interpreter().make, attrs["model"], attrs["sha256"], ports, ports - 2, 1, "a test"
    )
    inputs = [np.full(shape, 0.01, dtype) for dtype, shape in program.ports]
    want = program.run(inputs)
    outputs = [np.zeros(shape, dtype) for dtype, shape in program.results]
    large = {n for n, output in enumerate(outputs) if output.size >= 128 * 256}
    assert len(large) == 2
    run = program.runner(outputs, frozenset(large))
    lent = run(inputs)
    assert lent.keys() == large
    for number, (result, output) in enumerate(zip(want, outputs, strict=True)):
        np.testing.assert_array_equal(lent.get(number, output), result)
        assert number not in large or not output.any()
    with pytest.raises(ValueError, match="read-only"):
        lent[min(large)][...] = 0
    assert run([2 * array for array in inputs]) is lent
    assert all((array != want[number]).any() for number, array in lent.items())
    all_but_loss = program.run_lending(inputs, outputs, range(len(outputs)))
    assert [n for n in range(len(outputs)) if n not in all_but_loss] == [
        n for n, result in enumerate(want) if not result.shape
    ]
    program.run_into(inputs, outputs)
    for output, result in zip(outputs, want, strict=True):
        np.testing.assert_array_equal(output, result)


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
@pytest.mark.parametrize("net", ["MLP 64-32-10", "MLP 784-256-128-10"])
def test_arrays_for_results_may_be_given_again_and_again(net):
    """By two programs, and lent or not."""
    fit = fit_of(built(net, "tflite"))
    rng = np.random.default_rng(6)

    def filled(name: str) -> np.ndarray:
        return rng.standard_normal([int(n) for n in fit.types[name].shape]).astype(np.float32) / 16

    resident = {name: filled(name) for name in fit.inputs[3:]}
    one, other = (TFLiteBackend().prepare(function_to_proto(fit), {}, resident) for _ in range(2))
    shapes = [result.shape for result in one.run([filled(name) for name in fit.inputs[:3]])]
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    some, none = frozenset(range(1, len(shapes))), frozenset[int]()
    runs = {(p, lendable): p.runner(outputs, lendable) for p in (one, other) for lendable in (some, none)}
    for program, lendable in [(one, some), (one, some), (one, none), (other, none), (other, some)] * 2:
        inputs = [filled(name) for name in fit.inputs[:3]]
        for output in outputs:
            output.fill(np.nan)
        lent = dict(runs[program, lendable](inputs))
        assert bool(lent) == (lendable is some)
        found = [np.array(lent.pop(number, output)) for number, output in enumerate(outputs)]
        for result, wanted in zip(found, program.run(inputs), strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_parameters_are_changed_in_the_interpreters_memory():
    fit = fit_of(built("MLP 784-256-128-10", "tflite"))
    rng = np.random.default_rng(5)

    def filled(name: str) -> np.ndarray:
        return rng.standard_normal([int(n) for n in fit.types[name].shape]).astype(np.float32) / 16

    inputs, resident = [filled(name) for name in fit.inputs[:3]], {n: filled(n) for n in fit.inputs[3:]}
    program = TFLiteBackend().prepare(function_to_proto(fit), {}, resident)
    for _ in range(WATCHED_RUNS):
        assert program.move_residents({0, 2}) == {}, "an interpreter is watched before"
        program.run(inputs)
    moved = program.move_residents({0, 2})
    assert moved.keys() == {0, 2}
    given = list(resident.values())
    kept = [given[number].copy() for number in (0, 2)]
    for number, array in moved.items():
        np.testing.assert_array_equal(array, given[number])
        array += 0.01
        given[number].fill(np.nan)
    given[1] += 0.01
    found = program.run(inputs)
    for number, array in moved.items():
        given[number][...] = array
    program.return_residents()
    for one, other in zip(found, program.run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    for number, array in zip((0, 2), kept, strict=True):
        np.testing.assert_allclose(given[number], array + np.float32(0.01), rtol=1e-6)


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_an_interpreter_that_works_in_its_inputs_gets_them_each_time():
    fit = fit_of(built("MLP 64-32-10", "tflite"))
    shapes = {name: [int(n) for n in fit.types[name].shape] for name in fit.inputs}
    inputs = [np.ones(shapes[name], np.float32) for name in fit.inputs[:3]]
    resident = {name: np.full(shapes[name], 0.5, np.float32) for name in fit.inputs[3:]}
    program = TFLiteBackend().prepare(function_to_proto(fit), {}, resident)
    for _ in range(WATCHED_RUNS):
        program.run(inputs)
    want = program.run(inputs)
    first = next(iter(resident.values()))
    first[0, 0] = 7  # as if the interpreter's memory had changed instead
    assert program.move_residents({0}) == {}
    first[0, 0] = 0.5
    assert program.move_residents({0}) == {}, "it is not asked again"
    for one, other in zip(want, program.run(inputs), strict=True):
        np.testing.assert_array_equal(one, other)


# --- how many rows ----------------------------------------------------------------------------------


def cost(per_row: int, written: int) -> Any:
    return lambda rows: Cost(rows * per_row, rows * written)


def test_what_fits_the_cache_is_computed_at_once():
    assert best_chunk(64, 10_000, cost(CACHE // 64, CACHE)) == 64


def test_what_does_not_is_cut_in_even_parts():
    chunk = best_chunk(100, 1000, cost(CACHE // 30, CACHE))
    assert chunk <= 30
    assert chunk * ceil(100 / chunk) < 100 + chunk
    assert chunk == ceil(100 / ceil(100 / chunk))


def test_many_parameters_are_not_read_again_for_the_sake_of_few_activations():
    assert best_chunk(64, 100 << 20, cost(CACHE // 8, CACHE // 4)) == 64


def test_chunks_have_rows_enough_for_a_product():
    assert best_chunk(64, 1000, cost(CACHE * 2, CACHE * 50)) == FEWEST
    assert best_chunk(3, 1000, cost(CACHE * 2, CACHE * 50)) == 3


def test_an_unknown_batch_is_not_filled_up_for_long():
    assert best_chunk(None, 1000, cost(10, 10)) == UNKNOWN


@pytest.mark.skipif(interpreter().make is None, reason="no TFLite interpreter here")
def test_what_comes_to_moved_parameters_is_copied_and_checked_each_time():
    fit = fit_of(built("MLP 64-32-10", "tflite"))
    rng = np.random.default_rng(5)

    def filled(name: str) -> np.ndarray:
        return rng.standard_normal([int(n) for n in fit.types[name].shape]).astype(np.float32) / 16

    resident = {name: filled(name) for name in fit.inputs[3:]}
    given = [array.copy() for array in resident.values()]
    program, plain = (TFLiteBackend().prepare(function_to_proto(fit), {}, arrays)
                      for arrays in (resident, dict(zip(resident, given, strict=True))))  # fmt: skip
    outputs = [np.zeros_like(result) for result in plain.run([filled(name) for name in fit.inputs[:3]])]
    run = program.runner(outputs, frozenset())

    def same(inputs: list[np.ndarray]) -> bool:
        run(inputs)
        return all(map(np.array_equal, outputs, plain.run(inputs)))

    def fails(inputs: list[np.ndarray]) -> list[str]:
        said = []
        for runs in (run, program.run, plain.run):
            with pytest.raises(BackendRunError) as error:
                runs(inputs)
            said.append(str(error.value))
        return said

    for _ in range(WATCHED_RUNS + 1):
        assert same([filled(name) for name in fit.inputs[:3]])
    moved = program.move_residents(set(range(len(given))))
    assert len(moved) == len(given)
    for _ in range(3):
        assert same([filled(name) for name in fit.inputs[:3]])
        for number, array in moved.items():
            array += 0.01
            given[number][...] = array
    x, target, weights = (filled(name) for name in fit.inputs[:3])
    wrong = [x[:, :1], target, weights], [x, target[0], weights], [x.astype(np.float64), target, weights]
    for inputs in wrong:
        first, *others = fails(inputs)
        assert {*others} == {first}
        assert same([x, target, weights])
    program.return_residents()
    for number, array in enumerate(resident.values()):
        array.fill(0.5)
        given[number].fill(0.5)
    assert same([x, target, weights])
