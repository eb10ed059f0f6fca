"""What tests of the host share: programs, artifacts of them, and interpreters of flatbuffers.

The host is tested where its packages are; boards without them run the rest.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the host needs the onnx package, which is not installed here")

from program_text import parse_function

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_host import (
    AggregatorSlot,
    Compiler,
    DataSourceSlot,
    ModelSlot,
    Module,
    PeerSelectorSlot,
    S,
)
from bb_host.ir.facts import Bound, FunctionFacts, ProgramFacts
from bb_host.ir.program import Function, Op, Program
from bb_host.ir.queries import captured
from bb_host.learn import mlp, trainable

COMPILED = ProgramFacts(
    compiled=keys.COMPILED_VERSION,
    targets=("Main",),
    module="M",
    bindings={("Main", "backend"): Bound("backend", "bb.NumPyBackend", 1)},
)


def main_of(text: str) -> Function:
    """A partition main from text; opsets are taken from its ops."""
    function = parse_function(text)
    domains = {op.domain for op in function.ops}
    opsets = {domain: 21 if domain == "" else 1 for domain in sorted({"", *domains})}
    facts = function.facts | FunctionFacts(entry=True, partition="self")
    return dataclasses.replace(function, opsets=opsets, facts=facts)


@pytest.fixture(scope="session")
def main() -> Callable[[str], Function]:
    return main_of


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Program]:
    """compiled(text, *more): a compiled program with one target `Main`, its backend bound."""

    def build(text: str, *more: str) -> Program:
        functions = (main_of(text), *(dataclasses.replace(parse_function(t), opsets={"": 21}) for t in more))
        opsets = {d: v for f in functions for d, v in f.opsets.items()}
        opsets.update({f.domain: 1 for f in functions})
        return Program("M", functions, COMPILED, opsets)

    return build


@pytest.fixture(scope="session")
def run_main() -> Callable[..., dict[str, np.ndarray]]:
    """run_main(artifact, inputs): one invoke on an installed node; the outputs that surfaced."""

    def run(artifact: bytes, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        node = install(PeerId.from_name("t"), (), load(artifact), ["Main"], NodeConfig())
        node.invoke("Main", inputs)
        found = node.poll(0)
        assert [s for s in found if isinstance(s, steps.OpFailed)] == []
        return {s.topic: np.asarray(s.value) for s in found if isinstance(s, steps.AppEvent)}

    return run


# --- an abstract engine: when is what there ---------------------------------------------------------

ANY = ("Any", "DeadlineMatch", "Threshold")


def _fires(op: Op, there: set[str]) -> bool:
    reads = [v for v in (*op.inputs, *captured(op)) if v]
    return any(v in there for v in reads) if op.op_type in ANY else all(v in there for v in reads)


def availability(function: Function, order: Sequence[str]) -> dict[str, int]:
    """After how many of the inputs (in `order`) each value is there."""
    there: set[str] = set()
    when: dict[str, int] = {}
    for count, name in enumerate(["", *order]):
        there.add(name)
        changed = True
        while changed:
            changed = False
            for op in function.ops:
                new = [v for v in op.outputs if v and v not in there]
                if new and _fires(op, there):
                    there.update(new)
                    changed = True
        for value in there:
            when.setdefault(value, count)
    return when


@pytest.fixture(scope="session")
def same_times() -> Callable[[Function, Function], None]:
    """Asserts that no value comes later, whatever the order in which the inputs arrive.

    Values that only ONNX ops read may move inside a group; what others read, and what surfaces, may not.
    """

    def check(before: Function, after: Function) -> None:
        read = {v for op in before.ops for v in (*op.inputs, *captured(op))}
        seen = {v for op in before.ops if op.domain for v in op.inputs} | (set(before.outputs) - read)
        for order in itertools.islice(itertools.permutations(before.inputs), 24):
            old, new = availability(before, order), availability(after, order)
            late = {v: (old[v], new.get(v)) for v in seen if v in old and old[v] != new.get(v)}
            assert late == {}, f"inputs in order {order}"

    return check


# --- a federated program ----------------------------------------------------------------------------


class Tiny(Module):
    """A round of federated learning, two local steps."""

    name, home = "Tiny", "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")
    shard = DataSourceSlot("shard", at="Client")

    def bootstrap(self, g: Any) -> None:
        self.shard.reset(g, self.shard.on_data_loaded(g))

    def body(self, g: Any) -> None:
        with g.rounds(times=2) as start:
            peers = self.clients.sample(g, n=2, after=start)
            r = g.request("global", peers, self.model.params(g, after=start), deadline_ns=30 * S)
            done = self.model.load_parameters(g, r.value)
            for _ in range(2):
                x, y = self.shard.next_batch(g, after=done)
                p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                done = self.model.step(g, after=self.model.backward(g, (p - y) / 4.0))
            r.reply([self.model.params(g, after=done), self.shard.num_samples(g, after=done)])
            weights, n = r.answer
            self.agg.contribute(g, weights, weight=n, peer=r.answer.sender, round=start.round)
            new, total = self.agg.aggregate(g, after=r.closed)
            self.model.load_parameters(g, new)
            g.app_emit("round", total)


def tiny_compiler() -> Compiler:
    return (
        Compiler()
        .bind_peer_selector("clients", "bb.PresenceSelector")
        .bind_model("model", "bb.GraphModel", trainable(mlp([4, 3, 2], 1)))
        .bind_aggregator("agg", "bb.FedAvg")
        .bind_data_source("shard", "bb.ArrayDataSource", {"batch_size": 4, "one_hot": 2})
    )


@pytest.fixture(scope="session")
def tiny() -> tuple[Module, Compiler]:
    """A small federated module and its compiler."""
    return Tiny(), tiny_compiler()


# --- TFLite interpreters ----------------------------------------------------------------------------

HERE = Path(__file__).resolve().parent / "tflite"
ROOT = HERE.parents[2]
SECOND = ROOT / ".venv-tflite"
HAS_SECOND = (SECOND / "bb-setup.json").is_file()
"""`./dev test` has made an environment with tflite-runtime: all that runs flatbuffers runs there as well."""


def _running() -> Any:
    spec = importlib.util.spec_from_file_location("tflite_running", HERE / "running.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SecondEnvironment:
    """A process there, which is asked for one thing after the other."""

    def __init__(self, running: Any) -> None:
        places = os.pathsep.join(str(ROOT / place) for place in (".", "kernels", "firmware_shims"))
        self._running = running
        self.process = subprocess.Popen(
            [str(SECOND / "bin" / "python"), str(HERE / "running.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": places},
        )

    def run(self, what: str, data: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = {f"x{i}": x for i, x in enumerate(inputs)}
        stated = {"what": np.array(what), "data": np.frombuffer(data, np.uint8)}
        try:
            self._running.send(self.process.stdin, {**stated, **arrays})
            found = self._running.receive(self.process.stdout)
        except BrokenPipeError:
            found = None
        assert found is not None, f"its process ended with {self.process.wait()}"
        assert "error" not in found, str(found["error"])
        return [found[f"y{i}"] for i in range(len(found))]

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def second() -> Iterator[SecondEnvironment]:
    environment = SecondEnvironment(_running())
    yield environment
    environment.close()


def _here() -> Any:
    for name in ("ai_edge_litert.interpreter", "tflite_runtime.interpreter"):
        try:
            return importlib.import_module(name).Interpreter
        except ImportError:
            continue
    return None


@pytest.fixture(params=["here", "tflite-runtime"] if HAS_SECOND else ["here"])
def run_on(request: pytest.FixtureRequest) -> Callable[..., list[np.ndarray]]:
    """`run_on(what, data, inputs)`, what one of `running.py`: on each interpreter that is to be had."""
    if request.param != "here":
        environment: SecondEnvironment = request.getfixturevalue("second")
        return environment.run
    interpreter = _here()
    if interpreter is None:
        pytest.skip("no TFLite interpreter here")
    running = _running()

    def run(what: str, data: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if what == "flatbuffer":
            return list(running.flatbuffer(interpreter, data, inputs))
        return list(getattr(running, what)(data, inputs))

    return run


@pytest.fixture
def interpret(run_on: Callable[..., list[np.ndarray]]) -> Callable[..., list[np.ndarray]]:
    """A flatbuffer on its inputs, in order."""
    return lambda data, inputs: run_on("flatbuffer", data, inputs)
