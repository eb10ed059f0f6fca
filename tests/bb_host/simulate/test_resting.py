"""Nodes whose parameters and answers lie in a file between their turns compute the same bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_edge.transport import in_process
from bb_host import Compiler
from bb_host.build import build_edge
from bb_host.learn import trainable
from bb_host.simulate import Conditions, Dealt, Group, Outcome, Rule, Scenario, simulate
from bb_host.simulate import aside as aside_module
from bb_host.simulate.conditions import NS
from benchmarks.training_nets import large_mlp
from federated_digits.federation import FederatedDigits

MS = 1_000_000
WEATHER = Conditions(
    up_share=0.8,
    up_period_ns=1 * NS,
    slow_share=0.3,
    slow_by_ns=30 * MS,
    dropout_chance=0.2,
    dropout_ns=200 * MS,
)


@pytest.fixture(scope="module")
def learning(tmp_path_factory) -> Scenario:
    """Clients with Adam and a layer of their own, five of twelve in each round, some of them gone or slow."""
    path = tmp_path_factory.mktemp("learning") / "rows.npz"
    rng = np.random.default_rng(8)
    np.savez(path, x=rng.random((200, 784), np.float32), y=np.arange(200, dtype=np.int64) % 10)
    net = large_mlp()
    own = [i.name for i in net.graph.initializer][-2:]
    model = trainable(net, loss="softmax_cross_entropy", optimizer="adam", learning_rate=0.01, personal=own)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, model)
        .bind_aggregator("agg", FedAvg)
        .bind_peer_selector("clients", PresenceSelector)
        .bind_data_source("shard", ArrayDataSource, {"batch_size": 32, "one_hot": 10})
        .bind_data_source("test", ArrayDataSource, {"batch_size": 0, "one_hot": 10})
    )
    module = FederatedDigits(rounds=6, clients=5, local_steps=3, at_least=1)
    data = {a.target: a.data for a in build_edge(module, compiler).artifacts}
    groups = (
        Group("Server", "Server", data["Server"], 1, True),
        Group("Client", "Client", data["Client"], 12),
    )
    dealt = (Dealt("shard", Path(path), Rule.parse("draw:40")),)
    return Scenario(
        groups, 3, jitter_ns=7 * MS, settings={"test": {"path": str(path)}}, dealt=dealt, conditions=WEATHER
    )


def shown(outcome: Outcome) -> tuple[object, ...]:
    return (
        outcome.trace,
        outcome.events,
        outcome.delivered,
        outcome.lost,
        outcome.sent_bytes,
        outcome.counters,
    )


@pytest.fixture(scope="module")
def in_memory(learning):
    """What comes of it where nothing lies aside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aside_module, "_CAN", False)
        found = shown(simulate(learning, 1, "here"))
    assert found[3], "nobody has dropped out"
    return found


@pytest.fixture
def nothing_stays(monkeypatch):
    """No body stays in memory before others go aside."""
    monkeypatch.setattr(aside_module, "IN_MEMORY", 0)


@pytest.mark.parametrize(("workers", "stays"), [(1, 0), (2, 0), (3, 0), (1, 2 << 20), (2, 2 << 20)])
def test_what_lies_aside_is_what_it_would_be_in_memory(learning, in_memory, workers, stays, monkeypatch):
    monkeypatch.setattr(aside_module, "IN_MEMORY", stays)
    assert shown(simulate(learning, workers, "here")) == in_memory


def test_answers_that_processes_read_in_each_other_s_files_are_those_of_one(learning):
    assert shown(simulate(learning, 2, "processes")) == shown(simulate(learning, 1, "processes"))


@pytest.fixture
def placed(monkeypatch):
    """How many arrays and bodies went aside."""
    seen = {"arrays": 0, "bodies": 0}
    array, keep = aside_module.Aside.array, aside_module.Aside.keep

    def counted_array(self, nbytes):
        found = array(self, nbytes)
        seen["arrays"] += found is not None
        return found

    def counted_keep(self, body):
        found = keep(self, body)
        seen["bodies"] += found is not None
        return found

    monkeypatch.setattr(aside_module.Aside, "array", counted_array)
    monkeypatch.setattr(aside_module.Aside, "keep", counted_keep)
    return seen


@pytest.mark.usefixtures("nothing_stays")
def test_parameters_and_answers_of_clients_lie_aside(learning, placed):
    outcome = simulate(learning, 2, "here")
    woke = outcome.awake - 1
    assert placed["bodies"] and placed["arrays"] >= woke + placed["bodies"] // 3


def test_a_network_without_jitter_brings_much_at_once_and_the_bits_stay(learning, monkeypatch):
    together = dataclasses.replace(learning, jitter_ns=0, conditions=Conditions())
    found = []
    for size, workers in ((1, 1), (1, 2), (1 << 14, 2), (1 << 40, 1)):
        monkeypatch.setattr(in_process, "AT_ONCE", size)
        found.append(shown(simulate(together, workers, "here")))
    assert len(set(map(repr, found))) == 1


@pytest.mark.usefixtures("nothing_stays")
def test_an_answer_that_changed_in_the_file_would_be_seen(learning, in_memory, monkeypatch):
    keep = aside_module.Aside.keep

    def damaging(self, body):
        found = keep(self, body)
        if found is not None:
            middle = len(body) // 2
            found.obj[middle] = body[middle] ^ 1
        return found

    monkeypatch.setattr(aside_module.Aside, "keep", damaging)
    assert shown(simulate(learning, 1, "here")) != in_memory
