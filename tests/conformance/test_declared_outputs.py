"""What a program declares as its outputs is what its host is given: every program in the tests, all forms.

The random programs of tests/property do the same across partitions, with the values.
"""

# ruff: noqa: E402  (nothing below can be imported without the onnx package)

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="compiling needs the onnx package")
parser = pytest.importorskip("onnx.parser")

from every_program import files, loaded, modules

from bb_edge import NodeConfig, PeerId, install, load, open_model
from bb_edge.components import (
    ArrayDataSource,
    FedAvg,
    FlatIndex,
    Float16Codec,
    GraphModel,
    PresenceSelector,
)
from bb_edge.engine import steps
from bb_edge.ir import keys, types
from bb_edge.ir.errors import BBError
from bb_edge.ir.opsets import OpKind
from bb_edge.transport.in_process import Simulation
from bb_host import MS, AggregatorSlot, Compiler, DataSourceSlot, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.build import build_edge
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable
from bb_host.plain import compile_plain

BACKENDS = ("numpy", "tflite")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data for whoever wants some."""
    path = tmp_path_factory.mktemp("data") / "shard.npz"
    np.savez(path, x=np.ones((8, 3), np.float32), y=np.zeros((8, 2), np.float32))
    return path


def bound(program: Any, shard: Path, width: int) -> Compiler:
    """A compiler that gives each slot without a component one of its role; models take rows of `width`."""
    compiler = Compiler()
    model = trainable(mlp([width, 2], 0), loss="mse", learning_rate=0.1)
    kinds: dict[str, tuple[Any, Any]] = {
        keys.ROLE_MODEL: (GraphModel, model),
        keys.ROLE_AGGREGATOR: (FedAvg, None),
        keys.ROLE_CODEC: (Float16Codec, None),
        keys.ROLE_INDEX: (FlatIndex, {"dim": 3}),
        keys.ROLE_DATA_SOURCE: (ArrayDataSource, {"path": str(shard), "batch_size": 2}),
        keys.ROLE_PEER_SELECTOR: (PresenceSelector, None),
    }
    declared = {name: slot for f in program.functions for name, slot in f.slots.items()}
    for name, slot in declared.items():
        if slot.role in kinds and slot.state is None:
            kind, config = kinds[slot.role]
            compiler = getattr(compiler, f"bind_{slot.role}")(name, kind, config)
    return compiler


def artifacts(program: Any, compiler: Compiler | None = None) -> Iterator[tuple[str, str, bytes]]:
    """(form, target, artifact): the portable one, and the stripped ones per backend."""
    for backend in BACKENDS:
        build = build_edge(program, compiler, backend=backend)
        for artifact in build.artifacts:
            if backend == BACKENDS[0]:
                yield "portable", artifact.target, build.data
            yield f"stripped, {backend}", artifact.target, artifact.data


def outputs_of(artifact: bytes, target: str) -> tuple[str, ...]:
    program = load(artifact)
    return tuple(program.functions[program.targets[target].main].output)


def alone(artifact: bytes, target: str) -> dict[str, Any] | None:
    """Inputs for a target that an invoke alone sets off; None for others, and where one is not a tensor."""
    program = load(artifact)
    ops = program.graphs[program.targets[target].main].ops
    if program.targets[target].bootstrap is not None:
        return None
    if any(op.domain == keys.WIRE_DOMAIN or op.kind is OpKind.ENTRY for op in ops):
        return None
    found = {}
    for name, declared in program.graphs[program.targets[target].main].input_types.items():
        if not types.is_subtype(declared.node, types.TENSOR) or declared.shape is None:
            return None
        dtype = types.dtype_of_elem(declared.node.elem_type or types.TENSOR_F32.elem_type)
        found[name] = np.ones([d if isinstance(d, int) else 2 for d in declared.shape], dtype)
    return found


class Failed(Exception):
    """An op of the program failed."""


def heard(artifact: bytes, target: str, inputs: dict[str, Any], **config: Any) -> list[steps.AppEvent]:
    """The events of one invoke, with time passing while there is something to wait for. Failed."""
    node = install(PeerId.from_name("n"), (), artifact, [target], NodeConfig.host().with_(**config), seed=1)
    number, now, found = node.invoke(target, inputs), 0, []
    for _ in range(200):
        for step in node.poll(now):
            if isinstance(step, steps.OpFailed):
                raise Failed(step)
            if isinstance(step, steps.AppEvent):
                found.append(step.copy())
            if isinstance(step, steps.ExecutionEnded) and step.execution == number:
                return found
        now = max(now, node.next_deadline_ns() or 0)
    raise AssertionError("the execution does not end")


# --- every program ----------------------------------------------------------------------------------


def test_every_program_keeps_and_delivers_its_outputs(shard: Path) -> None:
    compared: Counter[str] = Counter()
    for file in files():
        compare(file, shard, compared)
    assert compared["compiled"] >= 50 and compared["ran"] >= 60 > 4 * compared["failed"], compared


def compare(file: str, shard: Path, compared: Counter[str]) -> None:
    """Compares the programs of a file; counts how many were compiled, refused and run."""
    for name, module in modules(file):
        program, forms = None, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for width in (3, 4):
                with contextlib.suppress(BBError):  # to be refused, or in need of more: its own test knows
                    program = module.record()
                    forms = list(artifacts(program, bound(program, shard, width)))
                    break
        if not forms:
            compared["refused"] += 1
            continue
        declared = program.functions[0].outputs
        compared["compiled"] += 1
        found = Counter((form, output) for form, t, data in forms for output in outputs_of(data, t))
        assert found == {(form, output): 1 for form, _, _ in forms for output in declared}, (file, name)
        for form, target, data in forms:
            inputs = alone(data, target)
            here = outputs_of(data, target)
            if inputs is None or not here:
                continue
            try:
                topics = Counter(e.topic for e in heard(data, target, inputs) if e.topic in here)
            except Failed:  # these inputs are none for it
                compared["failed"] += 1
                continue
            assert topics == dict.fromkeys(here, 1), (file, name, form)
            opened = open_model(data, target)
            assert opened.outputs == here
            assert list(opened.run(inputs)) == list(here)
            compared["ran"] += 1


@pytest.mark.parametrize("seed", range(8))
def test_an_ordinary_model_gives_all_of_its_values_when_all_are_outputs(seed: int) -> None:
    builder = loaded("tests/bb_host/passes/tensor/test_random_models.py").Builder(seed)
    head, _, body = builder.text().partition("=> (")
    shapes = ", ".join(f"float[{', '.join(map(str, s))}] {n}" for n, s in builder.values)
    text = f'<ir_version: 8, opset_import: ["" : 13]> {head}=> ({shapes}) {body.partition(") ")[2]}'
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in builder.weights.items()
    )
    declared = tuple(name for name, _ in builder.values)
    x = np.random.default_rng(seed).standard_normal(builder.values[0][1]).astype(np.float32)
    wanted = open_model(to_bytes(compile_plain(model, optimize=False)))(x)
    assert tuple(wanted) == declared
    for form, target, data in artifacts(model):
        if form == "portable":  # there is none: it goes straight to its artifact
            continue
        given = (
            open_model(data)(x),
            load(data)(x),
            {e.topic: e.value for e in heard(data, target, {"x": x})},
        )
        for found in given:
            assert sorted(found) == sorted(declared), form
            for name in declared:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-3, atol=1e-4, err_msg=name)
        assert tuple(given[0]) == tuple(given[1]) == declared


# --- programs that put out all that there is -------------------------------------------------------------


class Inner(Module):
    """Outputs of a module that is called are its caller's: they are not outputs of the program."""

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (3,))
        g.output("inner", g.onnx.relu(x))
        g.output("unused", x * 2.0)


class Many(Module):
    """Tensors: read, twice, handed through, constant, out of a call, out of a branch."""

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (3,))
        feat = g.onnx.relu(x)
        g.output("feat", feat)
        g.output("prob", g.onnx.softmax(feat))
        g.output("again", feat)
        g.output("echo", x)
        seven = g.constant(7)
        g.output("seven", seven)
        g.output("seven_too", seven)
        g.output("computed", g.onnx.add(seven, g.constant(2)))
        g.output("called", g.call(Inner(), x=x)["inner"])
        g.output(
            "chosen", g.onnx.if_(g.onnx.reduce_max(x, keepdims=0) > 0.0, lambda h: feat, lambda h: -feat)
        )


class Kinds(Module):
    """Values that are not tensors, and tensors of components."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelSlot("model", GraphModel, trainable(mlp([3, 2], 0), loss="mse", learning_rate=0.1))
        self.agg = AggregatorSlot("agg", FedAvg)
        self.peers = PeerSelectorSlot("peers", PresenceSelector, at="self")

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (3,))
        done = g.threshold(1, x)
        g.output("trigger", done)
        g.output("bytes", g.constant("text"))
        g.output("bundle", g.bundle([x, done]))
        g.output("when", g.clock(done))
        g.output("number", g.rng_u64(done))
        g.output("token", g.correlate_tag(done))
        g.output("view", self.peers.current_view(g, after=x))
        g.output("params", self.model.params(g, after=x))
        g.output("cmd", self.model.load_parameters(g, g.constant(np.zeros(8, np.float32)), after=x))
        result, total = self.agg.aggregate(g, g.onnx.unsqueeze(x, [0]))
        g.output("result", result)
        g.output("total", total)
        g.output("late", g.gate(x, g.sleep(done, 5 * MS)))


@pytest.mark.parametrize("kind", [Many, Kinds])
def test_all_kinds_of_values_come_by_every_way(kind: type[Module]) -> None:
    program = kind().record()
    declared = program.functions[0].outputs
    x = np.array([1, -2, 3], np.float32)
    for form, target, data in artifacts(program):
        for config in ({}, {"trace": True}, {"cycle_op_budget": 1}):
            events = heard(data, target, {"x": x}, **config)
            assert sorted(e.topic for e in events) == sorted(declared), (form, config)
        for opened in (open_model(data), load(data)):
            assert list(opened(x)) == list(declared), form


def test_what_they_are_is_what_the_program_says() -> None:
    x = np.array([1, -2, 3], np.float32)
    for form, _, data in artifacts(Many()):
        found = open_model(data)(x)
        relu = np.maximum(x, 0)
        wanted = {"feat": relu, "again": relu, "called": relu, "chosen": relu, "echo": x, "seven": 7}
        wanted |= {"prob": np.exp(relu) / np.exp(relu).sum(), "seven_too": 7, "computed": 9}
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=f"{form}, {name}")


def test_what_is_too_large_comes_without_its_value() -> None:
    for _, target, data in artifacts(Many()):
        found = {e.topic: e for e in heard(data, target, {"x": np.ones(3, np.float32)}, app_event_bytes=8)}
        assert {t for t, e in found.items() if e.omitted_bytes == 12 and e.value is None} == {
            *("feat", "again", "called", "chosen", "echo", "prob"),
        }
        assert found["seven"].value == 7


# --- federations ------------------------------------------------------------------------------------------


class Spread(Module):
    """A value on each side of each wire; rounds, requests, answers, and something sent on."""

    home = "Server"

    def __init__(self) -> None:
        super().__init__()
        self.clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client", at="Server")
        self.shard = DataSourceSlot("shard", ArrayDataSource, {"batch_size": 2}, at="Client")

    def body(self, g: Any) -> None:
        with g.rounds(times=2, pause_ns=100 * MS) as start:
            g.output("round", start.round)
            g.output("version", g.constant(7))
            asked = g.onnx.cast(start.round, to=1) * 2.0
            g.output("asked", asked)
            r = g.request("ask", self.clients.sample(g, n=2, min=2, after=start), asked, deadline_ns=5 * S)
            g.output("got", r.value)
            reply = r.value + g.onnx.cast(self.shard.num_samples(g, after=r.value), to=1)
            g.output("reply", reply)
            r.reply(reply)
            g.output("answer", r.answer)
            g.output("who", r.answer.sender)
            g.output("doubled", r.answer * 2.0)
            g.output("missing", r.missing)
            told = g.net_out("told", r.answer.sender, r.answer * 3.0)
            g.output("told", told)


PER_ROUND = {
    "Server": {"round": 1, "version": 1, "asked": 1, "answer": 2, "who": 2, "doubled": 2, "missing": 1},
    "Client": {"got": 1, "reply": 1, "told": 1},
}


def check_rounds(target: str, count: Counter[str], rounds: int) -> None:
    """That many rounds with two answers; the first may have run before anybody was known."""
    per_round = PER_ROUND[target]
    assert count.keys() == per_round.keys()
    begun = max(count["round"], rounds)
    for topic, n in per_round.items():
        alone = topic in ("round", "version", "asked", "missing")
        assert count[topic] == (begun if alone else rounds * n), (topic, count)


def test_each_output_comes_from_the_node_where_it_is(shard: Path) -> None:
    for form in ("portable", "stripped, numpy", "stripped, tflite"):
        found = {target: data for name, target, data in artifacts(Spread()) if name == form}
        sim = Simulation(seed=1)
        names = {"Server": ["server"], "Client": ["c0", "c1"]}
        for target in ("Client", "Server"):
            given = {"shard": {"path": str(shard)}} if target == "Client" else {}
            for name in names[target]:
                sim.add(
                    install(PeerId.from_name(name), (), found[target], [target], seed=3, components=given)
                )
        sim.run(for_ns=60 * S)
        for target, nodes in names.items():
            for name in nodes:
                peer = PeerId.from_name(name)
                events = [s.step for s in sim.seen if s.peer == peer and isinstance(s.step, steps.AppEvent)]
                check_rounds(target, Counter(event.topic for event in events), 2)


# --- processes ----------------------------------------------------------------------------------------------


class Told(Module):
    """Outputs of rounds: read, constant, of several kinds, and one that may be too large for an event."""

    def body(self, g: Any) -> None:
        with g.rounds(times=2, pause_ns=10 * MS) as start:
            x = g.onnx.cast(start.round, to=1)
            g.output("x", x)
            g.output("y", x + 1.0)
            g.output("version", g.constant([1, 2]))
            g.output("done", g.threshold(1, x))
            g.output("large", g.onnx.expand(x, g.constant([1000])))


@pytest.fixture
def run_node(tmp_path: Path, patience: float) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`run_node(url, artifact, target, name, *more)`: a process of `bb-edge run`."""
    started: list[subprocess.Popen[str]] = []

    def start(url: str, artifact: bytes, target: str, name: str, *more: str) -> subprocess.Popen[str]:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(artifact)
        command = [sys.executable, "-m", "bb_edge.cli", "run", str(path), "--target", target, "--peer", name]
        process = subprocess.Popen(
            [*command, "--broker", url, *more],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=30 * patience)


def told_by(lines: str) -> list[dict[str, Any]]:
    return [record for line in lines.splitlines() if "event" in (record := json.loads(line))]


@pytest.mark.broker
def test_a_process_prints_each_output(
    mosquitto_broker: Any, run_node: Callable[..., subprocess.Popen[str]], tmp_path: Path, patience: float
) -> None:
    (artifact,) = build_edge(Told()).artifacts
    for budget in (65536, 1000):
        config = tmp_path / "node.json"
        config.write_text(json.dumps({"limits": {"app_event_bytes": budget}}))
        more = ("--until-done", "--config", str(config))
        process = run_node(mosquitto_broker.url, artifact.data, "Told", f"teller{budget}", *more)
        out, err = process.communicate(timeout=30 * patience)
        assert process.returncode == 0, err
        records = told_by(out)
        assert Counter(r["event"] for r in records) == dict.fromkeys(
            ("x", "y", "version", "done", "large"), 2
        )
        by_name = {r["event"]: r for r in records}
        assert [by_name[n]["value"] for n in ("x", "y", "version", "done")] == [2.0, 3.0, [1, 2], True]
        assert [n for n, r in by_name.items() if "omitted_bytes" in r] == (
            ["large"] if budget == 1000 else []
        )
        if budget == 1000:
            assert (by_name["large"]["value"], by_name["large"]["omitted_bytes"]) == (None, 4000)
            assert "large: the value is left out" in err and "app_event_bytes=1000" in err
        else:
            assert by_name["large"]["value"] == {"shape": [1000], "dtype": "float32"}


@pytest.mark.broker
def test_processes_print_the_outputs_of_their_partitions(
    mosquitto_broker: Any,
    run_node: Callable[..., subprocess.Popen[str]],
    shard: Path,
    patience: float,
) -> None:
    found = {artifact.target: artifact.data for artifact in build_edge(Spread()).artifacts}
    url = mosquitto_broker.url
    clients = [
        run_node(url, found["Client"], "Client", f"c{n}", "--set", f"shard.path={shard}") for n in range(2)
    ]
    for client in clients:  # it is up once it says so
        assert client.stderr is not None
        limit = time.monotonic() + 30 * patience
        while "connected" not in client.stderr.readline():
            assert time.monotonic() < limit
    server = run_node(url, found["Server"], "Server", "server", "--until-done")
    out, err = server.communicate(timeout=60 * patience)
    assert server.returncode == 0, err
    check_rounds("Server", Counter(r["event"] for r in told_by(out)), 2)
    for client in clients:
        client.terminate()
        out, err = client.communicate(timeout=30 * patience)
        check_rounds("Client", Counter(r["event"] for r in told_by(out)), 2)
