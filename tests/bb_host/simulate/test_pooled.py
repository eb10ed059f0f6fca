"""Nodes of one worker share programs and activations, and compute what they would compute alone."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from bb_edge.backends.numpy_backend import NumPyBackend
from bb_edge.components import GraphModel
from bb_edge.ir.onnx_pb2 import FunctionProto
from bb_edge.registry import Registry, default_registry
from bb_edge.roles.component import ComponentEnv
from bb_edge.syscalls.batches import is_shipped
from bb_host.build import build_edge
from bb_host.simulate import Dealt, Group, Outcome, Rule, Scenario, shard, simulate
from bb_host.simulate.pooled import PoolingRegistry
from federated_digits.federation import program


def room(size: int) -> np.ndarray:
    return np.empty(size, np.float32)


def product() -> FunctionProto:
    """y = Relu(x W + b)."""
    text = """<opset_import: ["" : 20], domain: "test">
        product (x, w, b) => (y) { p = MatMul(x, w) s = Add(p, b) y = Relu(s) }"""
    return FunctionProto.FromString(onnx.parser.parse_function(text).SerializeToString())


def made(kind: type, tensor_bytes: int = 0) -> NumPyBackend:
    backend = kind.construct(ComponentEnv(slot="backend", target="T", tensor_bytes=tensor_bytes))
    assert isinstance(backend, NumPyBackend)
    return backend


def test_nodes_that_take_turns_have_their_own_parameters():
    kind = PoolingRegistry(Registry(), room).lookup("bb.NumPyBackend")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    nodes = []
    for _ in range(3):
        own = {
            "w": rng.normal(size=(6, 5)).astype(np.float32),
            "b": rng.normal(size=5).astype(np.float32),
        }
        nodes.append((own, made(kind).prepare(product(), {}, own)))
    for turn in range(2):
        for own, pooled in nodes:
            own["b"] += np.float32(turn)  # contents change between runs, as a step of training changes them
            (alone,) = made(NumPyBackend).prepare(product(), {}, own).run([x])
            into = np.empty_like(alone)
            pooled.run_into([x], [into])
            again = np.empty_like(alone)
            run = pooled.runner([again], ())
            assert not run([x]) and not run([x]) and again.tobytes() == into.tobytes()
            assert pooled.input_names == ("x",) and pooled.output_names == ("y",)
            assert pooled.run([x])[0].tobytes() == into.tobytes() == alone.tobytes()


def test_a_graph_is_made_ready_once_for_all_nodes_with_the_same_limits():
    kind = PoolingRegistry(Registry(), room).lookup("bb.NumPyBackend")
    functions: dict[tuple[str, str], FunctionProto] = {}
    first, second, bounded = made(kind), made(kind), made(kind, tensor_bytes=1 << 20)
    assert first.prepare(product(), functions) is second.prepare(product(), functions)
    assert first.prepare(product(), functions) is not bounded.prepare(product(), functions)
    assert first.prepare(product(), functions) is not first.prepare(product(), {})
    assert first.arena is second.arena is not None
    other_worker = made(PoolingRegistry(Registry(), room).lookup("bb.NumPyBackend"))
    assert other_worker.arena is not first.arena


def test_what_stands_in_for_a_component_of_the_project_counts_as_its_own():
    """An author's are lent their inputs read-only, a call or two for each op."""
    pooling = PoolingRegistry(default_registry(), room)
    for name in ("bb.NumPyBackend", "bb.GraphModel", "bb.ArrayDataSource"):
        assert pooling.lookup(name) is not default_registry().lookup(name)
        assert is_shipped(pooling.lookup(name))


def test_other_components_are_those_of_the_registry_behind():
    behind = Registry()
    assert PoolingRegistry(behind, room).lookup("bb.FedAvg") is behind.lookup("bb.FedAvg")


@pytest.fixture(scope="module")
def learning(tmp_path_factory) -> Scenario:
    """Clients that learn digits' shapes from random rows, three of nine in each round."""
    path = tmp_path_factory.mktemp("learning") / "rows.npz"
    rng = np.random.default_rng(8)
    np.savez(path, x=rng.random((200, 64), np.float32), y=np.arange(200, dtype=np.int64) % 10)
    module, compiler = program("mlp", rounds=4, clients=3, local_steps=3)
    data = {a.target: a.data for a in build_edge(module, compiler).artifacts}
    groups = (
        Group("Server", "Server", data["Server"], 1, True),
        Group("Client", "Client", data["Client"], 9),
    )
    dealt = (Dealt("shard", Path(path), Rule.parse("draw:40")),)
    return Scenario(groups, settings={"test": {"path": str(path)}}, dealt=dealt)


def shown(outcome: Outcome) -> tuple[object, ...]:
    return outcome.trace, outcome.events, outcome.sent_bytes, outcome.trouble


def test_a_federation_that_shares_computes_the_bits_of_one_that_does_not(learning, monkeypatch):
    shared = shown(simulate(learning, 1, "here"))
    monkeypatch.setattr(shard, "PoolingRegistry", lambda behind, room: behind)
    assert shown(simulate(learning, 2, "here")) == shared


def test_nodes_that_give_memory_back_after_each_turn_compute_the_same(learning, monkeypatch):
    released = shown(simulate(learning, 1, "here"))
    monkeypatch.setattr(GraphModel, "release", lambda model: None)
    assert shown(simulate(learning, 1, "here")) == released


def test_a_model_takes_memory_for_what_it_gives_when_it_gives_it() -> None:
    kind = PoolingRegistry(Registry(), room).lookup("bb.GraphModel")
    tensors = {"w": np.ones((1 << 14, 4), np.float32)}
    for model, takes in ((GraphModel(tensors), True), (kind(tensors), False)):
        tracemalloc.start()
        model.reserve()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (held >= tensors["w"].nbytes) is takes
        assert model.params(None).tobytes() == tensors["w"].tobytes()
