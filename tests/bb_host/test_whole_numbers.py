"""NumPy's numbers are taken where an author gives a whole number, and mean what Python's mean."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
from bb_host import AggregatorSlot, Compiler, DataSourceSlot, Graph, ModelSlot, Module, PeerSelectorSlot
from bb_host.errors import AttributeValueError, InfeasibleDeadline, ScenarioError
from bb_host.ir.proto import to_bytes
from bb_host.learn import mlp, trainable
from bb_host.simulate.checks import check_scenario
from bb_host.simulate.conditions import Conditions
from bb_host.simulate.scenario import Group, Scenario
from bb_host.whole_numbers import plain, whole


class Rounds(Module):
    """A program that takes a number at every place where one is given; `n` makes each of a Python int."""

    name, home = "Rounds", "Server"
    clients = PeerSelectorSlot("clients", PresenceSelector, peer_class="Client")
    average = AggregatorSlot("average", FedAvg, at="Server")

    def __init__(self, n: Any) -> None:
        super().__init__()
        self.n = n
        net = trainable(mlp([n(2), n(16), n(2)], seed=n(1)), train_last=n(1))
        self.model = ModelSlot("model", GraphModel, net)
        config = {"batch_size": n(32), "one_hot": n(2)}
        self.data = DataSourceSlot("data", ArrayDataSource, config, at="Client")

    def body(self, g: Graph) -> None:
        n = self.n
        with g.rounds(n(2), pause_ns=n(5_000_000)) as start:
            peers = self.clients.sample(g, n=n(10), min=n(2), after=start)
            params = self.model.params(g, after=start)
            r = g.request("train", peers, params, deadline_ns=n(30_000_000_000), enough=n(2))
            loaded = self.model.load_parameters(g, r.value)
            with g.loop(n(20), after=loaded) as steps:
                x, y = self.data.next_batch(g)
                self.model.step(g, after=self.model.train(g, x, y))
            r.reply(self.model.params(g, after=steps))
            self.average.contribute(g, r.answer, peer=r.answer.sender, sent=params)
            mean, _ = self.average.aggregate(g, after=g.after(r.closed, delay_ns=n(1_000_000)))
            done = self.model.load_parameters(g, mean)
            g.app_notify("round", g.threshold(n(1), done))


def compiled(n: Any) -> bytes:
    return to_bytes(Compiler().with_per_hop_budget_ns(n(10_000_000_000)).run(Rounds(n)).program)


@pytest.mark.parametrize("n", [np.int64, np.uint64])
def test_a_program_of_numpys_numbers_is_that_of_pythons(n: Any) -> None:
    assert compiled(n) == compiled(int)


@pytest.mark.parametrize("wrong", [True, np.True_, 2.0, np.float32(2), "2", np.array([2])])
def test_what_is_not_a_whole_number_is_refused_as_before(wrong: Any) -> None:
    class Wrong(Module):
        def body(self, g: Graph) -> None:
            with g.rounds(wrong) as start:
                g.app_emit("round", start.round)

    with pytest.raises(AttributeValueError, match="times is a whole number, not"):
        Wrong().record()
    with pytest.raises(InfeasibleDeadline):
        Compiler().with_per_hop_budget_ns(wrong)


def test_numbers_of_a_scenario() -> None:
    one = Group("Client", "Client", b"x", np.int32(3), settings={"data": {"rows": np.int64(8)}})
    spans = {np.int64(0): [(np.int64(1), np.int64(5))]}
    conditions = Conditions(dropout_ns=np.int64(7), trace=spans)
    scenario = Scenario((one,), seed=np.int64(3), latency_ns=np.uint32(9), conditions=conditions)
    assert [type(each) for each in (one.count, scenario.seed, scenario.latency_ns)] == [int] * 3
    assert (scenario.seed, scenario.latency_ns, one.name(2)) == (3, 9, "client-2")
    assert repr(one.settings) == "{'data': {'rows': 8}}"
    assert repr(conditions.trace) == "{0: [(1, 5)]}"
    with pytest.raises(ScenarioError, match=r"seed: 1\.5 is not a whole number"):
        check_scenario(Scenario((one,), seed=1.5))  # type: ignore[arg-type]


def test_plain_numbers() -> None:
    array = np.zeros(2)
    found: Any = plain({"a": (np.float32(0.5), [np.bool_(True)]), "x": array, "t": "text"})
    assert found == {"a": (0.5, [True]), "x": array, "t": "text"} and found["x"] is array
    assert type(found["a"][0]) is float and type(found["a"][1][0]) is bool
    assert [whole(each) for each in (3, np.int8(3), np.array(3), True, 3.0, Fraction(3), None)] == [
        *([3] * 3),
        *([None] * 4),
    ]
