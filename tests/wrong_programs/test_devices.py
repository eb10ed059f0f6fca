"""Configurations that cannot be, components that answer wrongly, and nodes that would wait for ever."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from refusals import refused

from bb_edge import PeerId, install, load, open_model
from bb_edge.cli import main
from bb_edge.cli.bootstraps import BootstrapFlagError, BootstrapInputError, parse_flags, read_inputs
from bb_edge.cli.idle_targets import NothingStarts
from bb_edge.config_file import load_config
from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import MissingInput, UnknownInput, UnknownTarget
from bb_edge.inference import InferenceError
from bb_edge.registry import Registry
from bb_edge.roles import Aggregator, DataSource, PeerSelector
from bb_edge.roles.completion import Later
from bb_edge.run_config import ConfigFileError
from bb_edge.syscalls.results import ResultError
from bb_edge.targets import InstallError, UnknownTargetError
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot
from bb_host.build import build_edge
from bb_host.errors import EntryInBootstrap
from bb_host.learn import mlp, trainable

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing is contributed")  # what an aggregate gives matters

# --- components that answer wrongly ------------------------------------------------------------------------


class Sum(Aggregator):
    """An aggregator of which each test says what `aggregate` gives."""

    TYPE_NAME: ClassVar[str] = "acme.Sum"
    stateless: ClassVar[bool] = True
    gives: ClassVar[Callable[[Any], Any]] = staticmethod(lambda ctx: None)

    @classmethod
    def construct(cls, env: Any) -> Sum:
        return cls()

    def contribute(
        self,
        ctx: Any,
        contribution: Any,
        weight: Any = None,
        peer: Any = None,
        round: Any = None,
        sent: Any = None,
    ):
        return None

    def aggregate(self, ctx: Any, stack: Any = None, round: Any = None) -> Any:
        return type(self).gives(ctx)

    def current_tensor(self, ctx: Any, trigger: Any = None) -> Any:
        return np.zeros(3, np.float32)


class Summed(Module):
    """What an aggregator gives goes into arithmetic that wants F32."""

    name = "Summed"
    agg = AggregatorSlot("agg")

    def body(self, g: Any) -> None:
        new, total = self.agg.aggregate(g, after=g.input("go", "F32", [1]))
        g.output("new", new * g.constant(np.ones(3, np.float32)))
        g.output("total", total)


def later(result: Any) -> Callable[[Any], Later]:
    """Answers with a `Later` that another thread would complete."""

    def give(ctx: Any) -> Later:
        found = ctx.later()
        found.complete(result)
        return found

    return give


TOTAL = np.float32(2)
WRONG_RESULTS = {
    "one array for two outputs": (lambda _: f32(0, 0, 0), "Tensor<F32>[3]", "a tuple of 2"),
    "three for two": (lambda _: (f32(0, 0, 0), TOTAL, 1), "3 values", "2 are expected"),
    "one in a tuple": (lambda _: (f32(0, 0, 0),), "1 values", "2 are expected"),
    "None for two": (lambda _: None, "None", "a tuple of 2"),
    "None for a tensor": (lambda _: (None, TOTAL), "None", "output 'result'"),
    "an int": (lambda _: (3, TOTAL), "int 3", "Tensor"),
    "a text": (lambda _: ("weights", TOTAL), "str 'weights'", "Tensor"),
    "a list of numbers": (lambda _: ([0.0, 0.0], TOTAL), "a list of 2 (float)", "Tensor"),
    "F64 total": (lambda _: (f32(0, 0, 0), np.float64(2)), "Tensor<F64>[]", "Tensor<F32>[]"),
    "I64 total": (lambda _: (f32(0, 0, 0), np.array(2)), "Tensor<I64>[]", "Tensor<F32>"),
    "objects": (lambda _: (np.array([None]), TOTAL), "object", "Tensor"),
    "big-endian": (lambda _: (np.zeros(3, ">f4"), TOTAL), ">f4", "Tensor"),
    "a Python float for the total": (lambda _: (f32(0, 0, 0), 2.0), "float 2.0", "Tensor<F32>"),
    "a total in a list": (lambda _: (f32(0, 0, 0), f32(2)), "Tensor<F32>[1]", "Tensor<F32>[]"),
    "later, one array": (later(f32(0, 0, 0)), "Tensor<F32>[3]", "a tuple of 2"),
    "later, None": (later(None), "None", "a tuple of 2"),
    "offloaded, an int": (lambda ctx: ctx.offload(lambda: 7), "int 7", "a tuple of 2"),
}


def one_run(registry: Registry, artifact: Any, target: str, inputs: dict[str, Any]) -> list[Any]:
    node = install(PeerId.from_name("n"), (), artifact, [target], registry=registry, seed=1)
    node.invoke(target, inputs)
    return [step for now in range(1, 6) for step in node.poll(now)]


@pytest.fixture(scope="module")
def summed() -> bytes:
    data: bytes = Compiler().bind_aggregator("agg", Sum).compile(Summed()).SerializeToString()
    return data


def test_a_right_result_is_taken(summed, monkeypatch) -> None:
    registry = Registry()
    registry.register(Sum)
    for right in ((f32(1, 2, 3), TOTAL), [f32(1, 2, 3), np.array(2, np.float32)]):
        monkeypatch.setattr(Sum, "gives", staticmethod(lambda _, right=right: right))
        found = one_run(registry, summed, "Summed", {"go": f32(0)})
        events = {s.topic: s.value.tolist() for s in found if isinstance(s, steps.AppEvent)}
        assert events == {"new": [1, 2, 3], "total": 2}


@pytest.mark.parametrize("case", WRONG_RESULTS)
def test_a_wrong_result_names_slot_type_method_and_what_was_expected(case, summed, monkeypatch) -> None:
    gives, came, expected = WRONG_RESULTS[case]
    monkeypatch.setattr(Sum, "gives", staticmethod(gives))
    registry = Registry()
    registry.register(Sum)
    found = one_run(registry, summed, "Summed", {"go": f32(0)})
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    assert isinstance(failed.error, ResultError) and failed.error.hint
    assert failed.text.startswith("slot 'agg' (acme.Sum.aggregate): ")
    assert came in failed.text and expected in failed.text
    assert "test_devices.py:" in failed.source
    assert not [s for s in found if isinstance(s, steps.AppEvent)]
    assert [s.failed for s in found if isinstance(s, steps.ExecutionEnded)] == [True]


def test_the_edge_form_holds_the_dimensions_that_the_contract_fixes(monkeypatch) -> None:
    """It has no types of inner values; a total of shape [1] would be refused on the other side of a wire."""
    registry = Registry()
    registry.register(Sum)
    (edge,) = build_edge(Summed(), Compiler().bind_aggregator("agg", Sum)).artifacts
    monkeypatch.setattr(Sum, "gives", staticmethod(lambda _: (f32(1, 2, 3), f32(2))))
    (failed,) = [
        s for s in one_run(registry, edge.data, "Summed", {"go": f32(0)}) if isinstance(s, steps.OpFailed)
    ]
    assert "Tensor<F32>[1], expected Tensor<F32>[]" in failed.text


class Source(DataSource):
    """A data source of which each test says what it gives."""

    TYPE_NAME: ClassVar[str] = "acme.Source"
    stateless: ClassVar[bool] = True
    gives: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)

    @classmethod
    def construct(cls, env: Any) -> Source:
        return cls()

    def next_batch(self, ctx: Any) -> Any:
        return type(self).gives()

    def num_samples(self, ctx: Any) -> Any:
        return type(self).gives()

    def reset(self, ctx: Any, trigger: Any) -> Any:
        return type(self).gives()


class Peers(PeerSelector):
    """A selector of which each test says whom it gives."""

    TYPE_NAME: ClassVar[str] = "acme.Peers"
    stateless: ClassVar[bool] = True
    gives: ClassVar[Callable[[], Any]] = staticmethod(lambda: ())

    @classmethod
    def construct(cls, env: Any) -> Peers:
        return cls()

    def sample(self, ctx: Any, *, n: int, min: int = 0) -> Any:
        return type(self).gives()

    def current_view(self, ctx: Any) -> Any:
        return type(self).gives()


class Sourced(Module):
    name = "Sourced"
    data, peers = DataSourceSlot("data"), PeerSelectorSlot("peers", peer_class="self")

    def body(self, g: Any) -> None:
        first = g.input("batch", "F32", [1])
        second = g.input("count", "F32", [1])
        third = g.input("reset", "F32", [1])
        fourth = g.input("peers", "F32", [1])
        x, y = self.data.next_batch(g, after=first)
        g.app_emit("x", x * g.constant(f32(1)))
        g.app_emit("y", y)
        g.app_emit("n", self.data.num_samples(g, after=second))
        g.app_notify("reset", self.data.reset(g, g.threshold(1, third)))
        g.app_emit("who", self.peers.sample(g, n=1, after=fourth))


@pytest.fixture(scope="module")
def sourced() -> bytes:
    compiler = Compiler().bind_data_source("data", Source).bind_peer_selector("peers", Peers)
    data: bytes = compiler.compile(Sourced()).SerializeToString()
    return data


SOMEBODY = PeerId.from_name("a")
WRONG_ANSWERS = {
    "a batch alone": ("batch", f32(1), "next_batch", "a tuple of 2"),
    "a batch of F64": ("batch", (np.zeros(1), None), "next_batch", "Tensor<F32>"),
    "a plain count": ("count", 12, "num_samples", "Tensor<I64>"),
    "a count of I32": ("count", np.int32(12), "num_samples", "Tensor<I64>"),
    "a count in a list": ("count", [12], "num_samples", "Tensor<I64>"),
    "no trigger": ("reset", None, "reset", "Trigger"),
    "True for a trigger": ("reset", True, "reset", "Trigger"),
    "names for peers": ("peers", ("a", "b"), "sample", "PeerIdVec"),
    "one peer": ("peers", SOMEBODY, "sample", "PeerIdVec"),
    "no peers at all": ("peers", None, "sample", "PeerIdVec"),
    "more peers than asked for": (
        "peers",
        (SOMEBODY, PeerId.from_name("b")),
        "sample",
        "gave 2 peers, the op asks for 1 at most",
    ),
}


@pytest.mark.parametrize("case", WRONG_ANSWERS)
def test_wrong_answers_of_sources_and_selectors(case, sourced, monkeypatch) -> None:
    port, answer, method, expected = WRONG_ANSWERS[case]
    monkeypatch.setattr(Peers if port == "peers" else Source, "gives", staticmethod(lambda: answer))
    registry = Registry()
    registry.register(Source)
    registry.register(Peers)
    found = one_run(registry, sourced, "Sourced", {port: f32(0)})
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    assert f".{method}): " in failed.text and expected in failed.text and "acme." in failed.text
    assert failed.error.hint


@pytest.mark.parametrize(
    ("port", "answer", "topic"),
    [
        ("count", np.int64(12), "n"),  # a NumPy scalar is the 0-D array of its dtype
        ("peers", [SOMEBODY], "who"),  # a list of peers is their tuple
        ("batch", (f32(1), None), "x"),  # labels that are not there
    ],
)
def test_what_is_unambiguous_is_taken(port, answer, topic, sourced, monkeypatch) -> None:
    monkeypatch.setattr(Peers if port == "peers" else Source, "gives", staticmethod(lambda: answer))
    registry = Registry()
    registry.register(Source)
    registry.register(Peers)
    found = one_run(registry, sourced, "Sourced", {port: f32(0)})
    assert [s.topic for s in found if isinstance(s, steps.AppEvent)] == [topic]
    (value,) = [s.value for s in found if isinstance(s, steps.AppEvent)]
    assert isinstance(value, tuple if port == "peers" else np.ndarray)


def test_an_exception_carries_its_class_slot_and_type(sourced, monkeypatch) -> None:
    def unplugged() -> None:
        raise OSError("camera unplugged")

    monkeypatch.setattr(Source, "gives", staticmethod(unplugged))
    registry = Registry()
    registry.register(Source)
    registry.register(Peers)
    found = one_run(registry, sourced, "Sourced", {"batch": f32(0)})
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    said, _, line = failed.text.partition(", at ")
    assert said == "slot 'data' (acme.Source.next_batch): OSError: camera unplugged"
    assert re.fullmatch(r".*test_devices\.py:\d+", line)
    assert isinstance(failed.error, OSError)


# --- bootstraps that are given the wrong things -------------------------------------------------------------


class Booted(Module):
    """Parameters come from the bootstrap's input."""

    name = "Booted"
    model = ModelSlot("model")

    def bootstrap(self, g: Any) -> None:
        self.model.load_parameters(g, g.input("p", "F32", [8]))

    def body(self, g: Any) -> None:
        with g.rounds(times=1) as start:
            g.app_emit("params", self.model.params(g, after=start))


@pytest.fixture(scope="module")
def booted() -> bytes:
    compiler = Compiler().bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
    data: bytes = compiler.compile(Booted()).SerializeToString()
    return data


class Plain(Module):
    """Inference alone."""

    name = "Plain"

    def body(self, g: Any) -> None:
        g.output("y", g.onnx.relu(g.input("x", "F32", [3])))


def test_an_entry_in_a_bootstrap_is_refused() -> None:
    class Pulsed(Booted):
        def bootstrap(self, g: Any) -> None:
            self.model.step(g, after=g.pulse())  # <-

    compiler = Compiler().bind_model("model", "bb.GraphModel", trainable(mlp([3, 2], 1)))
    with refused(EntryInBootstrap, "Pulse never fires in a bootstrap"):
        compiler.compile(Pulsed())


@pytest.fixture(scope="module")
def plain() -> bytes:
    data: bytes = Compiler().compile(Plain()).SerializeToString()
    return data


def given(data: bytes, *flags: str) -> dict[str, dict[str, object]]:
    program = load(data)
    return read_inputs(program, tuple(program.targets.values()), parse_flags(flags))


def test_inputs_of_every_kind_arrive(booted, tmp_path) -> None:
    eight = np.arange(8, dtype=np.float32)
    np.save(tmp_path / "init.npy", eight)
    np.savez(tmp_path / "named.npz", q=np.zeros(1), p=eight)
    np.savez(tmp_path / "only.npz", whatever=eight)
    for value in ("[0,1,2,3,4,5,6,7]", *(tmp_path / n for n in ("init.npy", "named.npz", "only.npz"))):
        np.testing.assert_array_equal(given(booted, f"Booted.p={value}")["Booted"]["p"], eight)


WRONG_INPUTS = {
    "missing": ((), ("Booted", "'p'", "Tensor<F32>[8]", "--bootstrap Booted.p=VALUE")),
    "misspelt input": (("Booted.q=1",), ("no input 'q'", "p")),
    "misspelt target": (("Boted.p=1",), ("no target 'Boted'", "did you mean 'Booted'?")),
    "too short": (("Booted.p=[1,2]",), ("shape [2]", "Tensor<F32>[8]")),
    "a number for a vector": (("Booted.p=1",), ("shape []", "Tensor<F32>[8]")),
    "ragged": (("Booted.p=[[1],[1,2]]",), ("rows of different lengths",)),
    "texts": (('Booted.p=["a"]',), ("not a number",)),
    "no such file": (("Booted.p=nope.npy",), ("nope.npy cannot be read", "No such file")),
    "no equals sign": (("Booted.p",), ("TARGET.INPUT=VALUE",)),
    "no input named": (("Booted=1",), ("TARGET.INPUT=VALUE",)),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_a_wrong_input_of_a_bootstrap_is_refused(case, booted) -> None:
    flags, words = WRONG_INPUTS[case]
    kind = BootstrapFlagError if "TARGET.INPUT=VALUE" in words else BootstrapInputError
    with refused(kind, *words, marked=False):
        given(booted, *flags)


@pytest.mark.parametrize("case", ["F64", "damaged", "pickled", "several arrays", "a text file", "a folder"])
def test_a_wrong_file_of_a_bootstrap_is_refused(case, booted, tmp_path) -> None:
    path, words = tmp_path / "init.npy", ("cannot be read",)
    if case == "F64":
        np.save(path, np.zeros(8))
        words = ("float64", "expected dtype float32")
    elif case == "damaged":
        np.save(path, np.zeros(8, np.float32))
        path.write_bytes(path.read_bytes()[:-7])
    elif case == "pickled":
        np.save(path, np.array([{}]), allow_pickle=True)
    elif case == "several arrays":
        path = tmp_path / "init.npz"
        np.savez(path, a=f32(1), b=f32(2))
        words = ("a, b", "'p'")
    elif case == "a text file":
        path.write_text("0 1 2 3 4 5 6 7")
    else:
        path.mkdir()
    with refused(BootstrapInputError, str(path), *words, marked=False):
        given(booted, f"Booted.p={path}")


def test_an_input_for_a_target_without_bootstrap_is_refused(plain) -> None:
    with refused(BootstrapInputError, "no bootstrap", "Plain", marked=False):
        given(plain, "Plain.p=1")


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [({}, MissingInput), ({"Booted": {"P": f32(1)}}, UnknownInput), ({"Bootd": {}}, UnknownTarget)],
)
def test_hosts_are_refused_the_same(inputs, kind, booted) -> None:
    node = install(PeerId.from_name("n"), (), booted, ["Booted"], seed=1)
    with refused(kind, marked=False):
        node.keep_bootstrapping(inputs)


def test_open_model_says_that_a_bootstrap_wants_an_input(booted) -> None:
    with refused(InferenceError, "'p'", "bootstrap", marked=False):
        open_model(booted)


# --- targets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "kind", "words"),
    [
        ("Plain", InstallError, ("'Plain'", '["Plain"]')),
        (["Plain", "Plain"], InstallError, ("'Plain'", "twice")),
        ([], InstallError, ("no targets", "Plain")),
        (["Plian"], UnknownTargetError, ("'Plian'", "did you mean 'Plain'?")),
        ([3], InstallError, ("int", "Plain")),
    ],
)
def test_targets_that_cannot_be(targets, kind, words, plain) -> None:
    with refused(kind, *words, marked=False):
        install(PeerId.from_name("n"), (), plain, targets)


# --- configurations -----------------------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path, booted: bytes, plain: bytes) -> Callable[..., Path]:
    (tmp_path / "booted.onnx").write_bytes(booted)
    (tmp_path / "plain.onnx").write_bytes(plain)
    np.save(tmp_path / "init.npy", np.zeros(8, np.float32))

    def make(**changes: object) -> Path:
        values = {
            "artifact": "booted.onnx",
            "targets": ["Booted"],
            "peer": "kitchen",
            "broker": "mqtt://127.0.0.1:1",
            "bootstrap": {"Booted": {"p": "init.npy"}},
            **changes,
        }
        path = tmp_path / "kitchen.json"
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
        return path

    return make


@pytest.mark.parametrize(
    ("bootstrap", "words"),
    [
        ([1], ("bootstrap", "table")),
        ({"Booted": 1}, ("bootstrap.Booted", "table")),
        ({"Booted": {"p": None}}, ("bootstrap.Booted.p", "a number, a list or a file")),
        ({"Booted": {"p": {"file": "x"}}}, ("bootstrap.Booted.p", "a number, a list or a file")),
    ],
)
def test_a_bootstrap_table_that_cannot_be(bootstrap, words, configured) -> None:
    with pytest.raises(ConfigFileError) as caught:
        load_config(configured(bootstrap=bootstrap))
    assert all(word in str(caught.value) for word in words)


def test_a_dry_run_of_a_right_configuration(configured, capsys) -> None:
    path = configured()
    assert main(["check", "--config", str(path)]) == 0
    assert "bootstrap of the target, with p: Tensor<F32>[8]" in capsys.readouterr().out
    assert main(["inspect", str(path.parent / "booted.onnx")]) == 0
    assert "bootstrap: p: Tensor<F32>[8]" in capsys.readouterr().out


WRONG_CONFIGURATIONS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "no such artifact": ({"artifact": "nope.onnx"}, ("nope.onnx",)),
    "no such target": ({"targets": ["Bootd"]}, ("Bootd", "did you mean 'Booted'?")),
    "no such slot": ({"components": {"modl": {}}}, ("modl", "did you mean 'model'?")),
    "no such key": ({"components": {"model": {"learning_rat": 1}}}, ("learning_rat",)),
    "no such module": ({"load": ["nope_nope"]}, ("nope_nope",)),
    "no input for the bootstrap": ({"bootstrap": {}}, ("'p'", "--bootstrap Booted.p=VALUE")),
    "no such input": ({"bootstrap": {"Booted": {"q": 1}}}, ("'q'",)),
    "no such bootstrap": ({"bootstrap": {"Other": {"p": 1}}}, ("Other", "Booted")),
    "inference alone": (
        {"artifact": "plain.onnx", "targets": ["Plain"], "bootstrap": {}},
        ("nothing ever starts it", "bb-edge bench", "open_model"),
    ),
}


@pytest.mark.parametrize("verb", ["check", "doctor", "run"])
@pytest.mark.parametrize("case", WRONG_CONFIGURATIONS)
def test_every_verb_refuses_a_wrong_configuration(case, verb, configured, capsys) -> None:
    changes, words = WRONG_CONFIGURATIONS[case]
    assert main([verb, "--config", str(configured(**changes))]) == (3 if verb == "run" else 1)
    said = "".join(capsys.readouterr())
    assert all(word in said for word in words), said
    assert "Traceback" not in said
    assert "ok       configuration" not in said


@pytest.mark.parametrize("missing", ["peer", "broker"])
def test_a_dry_run_says_what_the_configuration_leaves_out(missing, configured, capsys) -> None:
    assert main(["check", "--config", str(configured(**{missing: None}))]) == 1
    assert f'"{missing}" in the file of --config' in capsys.readouterr().out


def test_an_inference_artifact_is_not_run(plain, tmp_path, capsys) -> None:
    path = tmp_path / "plain.onnx"
    path.write_bytes(plain)
    words = ["run", str(path), "--target", "Plain", "--peer", "a", "--broker", "mqtt://127.0.0.1:1"]
    assert main(words) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing ever starts it" in line and f"bb-edge bench {path}" in line and "open_model" in line
    assert issubclass(NothingStarts, Exception)


def test_a_setting_that_is_missing_says_how_to_give_it(tmp_path, capsys) -> None:
    class Windows(Module):
        name = "Windows"
        windows = DataSourceSlot("windows")

        def body(self, g: Any) -> None:
            with g.rounds(times=1) as start:
                g.app_emit("x", self.windows.next_batch(g, after=start)[0])

    compiler = Compiler().bind_data_source("windows", "bb.ArrayDataSource", {"batch_size": 4})
    path = tmp_path / "windows.onnx"
    path.write_bytes(compiler.compile(Windows()).SerializeToString())
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert "path" in said and "--set windows.path=" in said


# --- one line -----------------------------------------------------------------------------------------------


def test_what_is_printed_is_one_line(plain) -> None:
    program, model = load(plain), open_model(plain)
    node = install(PeerId.from_name("n"), (), program, ["Plain"])
    for thing in (program, model, node):
        assert len(repr(thing)) < 200 and "\n" not in repr(thing)
    assert list(program.inputs) == ["x"] and program.outputs == ("y",)
    assert str(program.inputs["x"]) == "Tensor<F32>[3]"
