"""Calls of a model whose order nothing gives, training that nothing reads, means that are only waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, DataSourceSlot, Graph, ModelSlot, Module, PeerSelectorSlot, S
from bb_host.compiler import Compiler
from bb_host.learn import mlp, trainable
from bb_host.passes.analysis.model_order import warn_of_order
from bb_host.passes.analysis.slot_table import targets_of
from bb_host.passes.one_pass import Stats
from tests.aids.refusals import quiet, warned


class Federation(Module):
    """A server whose clients train; the test says what they do between what came and what they reply."""

    name, home = "Federation", "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    model = ModelSlot("model", GraphModel, trainable(mlp([2, 8, 2]), learning_rate=0.3))
    average = AggregatorSlot("average", FedAvg, at="Server")
    data = DataSourceSlot("data", ArrayDataSource, {"batch_size": 8, "one_hot": 2}, at="Client")

    def __init__(self, client: Callable[[Any, Graph, Any], Any], server: Callable[..., Any] | None = None):
        super().__init__()
        self._client = client
        self._server = server or (lambda m, g, mean: m.model.load_parameters(g, mean))

    def body(self, g: Graph) -> None:
        with g.rounds(3) as start:
            params = self.model.params(g, after=start)
            peers = self.clients.sample(g, n=2, min=2, after=start)
            r = g.request("train", peers, params, deadline_ns=S)
            r.reply(self._client(self, g, r.value))
            self.average.contribute(g, r.answer, peer=r.answer.sender, sent=params)
            mean, total = self.average.aggregate(g, after=r.closed)
            self._server(self, g, mean)
            g.app_emit("round", g.bundle([start.round, total]))


def good(m: Any, g: Graph, value: Any) -> Any:
    with g.loop(2, after=m.model.load_parameters(g, value)) as steps:
        x, y = m.data.next_batch(g)
        m.model.step(g, after=m.model.train(g, x, y))
    return m.model.params(g, after=steps)


def replies_before_training(m: Any, g: Graph, value: Any) -> Any:
    loaded = m.model.load_parameters(g, value)
    with g.loop(2, after=loaded):
        x, y = m.data.next_batch(g)
        m.model.step(g, after=m.model.train(g, x, y))
    return m.model.params(g, after=loaded)  # <-


def steps_first(m: Any, g: Graph, value: Any) -> Any:
    with g.loop(2, after=m.model.load_parameters(g, value)) as steps:
        x, y = m.data.next_batch(g)
        m.model.train(g, x, y)
        m.model.step(g)  # <-
    return m.model.params(g, after=steps)


def loads_beside(m: Any, g: Graph, value: Any) -> Any:
    m.model.load_parameters(g, value)
    x, y = m.data.next_batch(g, after=value)
    return m.model.params(g, after=m.model.step(g, after=m.model.train(g, x, y)))


def runs_beside_its_backward(m: Any, g: Graph, value: Any) -> Any:
    x, y = m.data.next_batch(g, after=m.model.load_parameters(g, value))
    m.model.forward(g, x)
    added = m.model.backward(g, y)  # <-
    return m.model.params(g, after=m.model.step(g, after=added))


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (replies_before_training, ("Params or Step", "after=")),
        (steps_first, ("Step or Train", "after=")),
    ],
)
def test_calls_of_a_model_without_an_order(client: Callable[..., Any], words: tuple[str, ...]) -> None:
    warned("no-order", "slot 'model'", *words, program=Federation(client))


def test_each_call_that_has_no_order_with_another_is_said() -> None:
    found = Compiler().run(Federation(loads_beside)).warnings
    assert {w.code for w in found} == {"no-order"}
    pairs = {tuple(w.what.partition("first, ")[2].split()[:3:2]) for w in found}
    assert pairs == {("Train", "LoadParameters"), ("Step", "LoadParameters"), ("Params", "LoadParameters")}


def test_a_backward_that_does_not_wait_for_its_forward() -> None:
    found = Compiler().run(Federation(runs_beside_its_backward)).warnings
    assert "no-order" in {w.code for w in found}
    assert any("Backward or Forward" in w.what for w in found)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_load_beside_a_backward_that_reads_the_parameters(keyed: bool) -> None:
    key = {"key": 7} if keyed else {}

    def client(m: Any, g: Graph, value: Any) -> Any:
        x, y = m.data.next_batch(g, after=value)
        run = m.model.forward(g, x, **key)
        added = m.model.backward(g, run - y, **key)
        m.model.load_parameters(g, value, after=run)  # the backward may come before or behind it
        return m.model.params(g, after=m.model.step(g, after=added))

    pairs = {w.what.partition("first, ")[2] for w in Compiler().run(Federation(client)).warnings}
    backward = "BackwardKeyed" if keyed else "Backward"
    assert any(pair.startswith(f"LoadParameters or {backward} (") for pair in pairs), pairs


def test_an_order_over_loops_answers_and_executions_is_one() -> None:
    quiet(Federation(good))


def test_executions_of_two_beginnings_need_no_order() -> None:
    class Serves(Federation):
        """Scores beside training: by whatever parameters are there."""

        def body(self, g: Graph) -> None:
            super().body(g)
            with g.at("Client"):
                x, y = self.data.next_batch(g, after=g.interval(S))
                g.app_emit("loss", self.model.evaluate(g, x, y))

    quiet(Serves(good))


def test_a_step_by_a_gradient_of_its_own_leaves_that_of_the_model() -> None:
    def client(m: Any, g: Graph, value: Any) -> Any:
        loaded = m.model.load_parameters(g, value)
        x, y = m.data.next_batch(g, after=loaded)
        gradient = m.model.gradient(g, after=m.model.train(g, x, y))
        return m.model.params(g, after=m.model.step(g, gradient * 0.5))

    quiet(Federation(client))


def test_training_that_nothing_reads() -> None:
    def client(m: Any, g: Graph, value: Any) -> Any:
        x, y = m.data.next_batch(g, after=m.model.load_parameters(g, value))
        m.model.step(g, after=m.model.train(g, x, y))  # <-
        return value

    warned("training-unread", "on Client", "r.reply(", program=Federation(client))


def test_a_mean_that_is_only_waited_for() -> None:
    def server(m: Any, g: Graph, mean: Any) -> None:
        g.app_notify("summed", m.model.params(g, after=mean))

    found = Compiler().run(Federation(good, server)).warnings
    assert [w.code for w in found] == ["unread-aggregate"]
    assert "waited for (after=)" in found[0].what


def work(steps: int) -> int:
    """How many calls of Python the look at the order takes, of so many steps beside evaluations."""

    def client(m: Any, g: Graph, value: Any) -> Any:
        done = m.model.load_parameters(g, value)
        for _ in range(steps):
            x, y = m.data.next_batch(g, after=done)
            scores = m.model.evaluate(g, x, y), m.model.evaluate(g, x, y)  # without order, and they need none
            done = m.model.step(g, after=(m.model.train(g, x, y), *scores))
        return m.model.params(g, after=done)

    compiled = Compiler().run(Federation(client)).program
    counted = 0

    def count(frame: object, event: str, what: object) -> None:
        nonlocal counted
        counted += event == "call"

    stats = Stats()
    targets = targets_of(compiled)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        warn_of_order(targets, stats)
    finally:
        sys.setprofile(before)
    assert not stats.warnings
    return counted


def test_the_look_at_the_order_grows_with_the_program_and_no_faster() -> None:
    assert work(80) < 2.3 * work(40)
