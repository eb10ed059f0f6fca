"""What a script gives as a scenario is looked at before anything runs, and told by names of fields."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge.engine.config import NodeConfig
from bb_host.errors import ScenarioError
from bb_host.simulate import Conditions, Dealt, Group, Rule, simulate
from bb_host.simulate.accounts import Trouble
from bb_host.simulate.checks import check_scenario
from bb_host.simulate.conditions import NS
from bb_host.simulate.dealing import Dealer
from bb_host.simulate.room import limits_of
from bb_host.simulate.workers import Processes

ROWS = Dealt("shard", Path("rows.npz"), Rule.parse("iid"))
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no nodes": ({"groups": ()}, "Scenario.groups: it has no nodes"),
    "groups in a list": ({"groups": [1]}, r"Scenario.groups: groups are \[1\]"),
    "a seed in a text": ({"seed": "0"}, "Scenario.seed: '0' is not a whole number"),
    "a seed with a fraction": ({"seed": 1.5}, "Scenario.seed: 1.5"),
    "a seed that is a flag": ({"seed": True}, "Scenario.seed: True"),
    "no seed": ({"seed": None}, "Scenario.seed: None"),
    "no latency": ({"latency_ns": 0}, "Scenario.latency_ns: 0"),
    "jitter below 0": ({"jitter_ns": -1}, "Scenario.jitter_ns: -1"),
    "settings in a list": ({"settings": []}, r"Scenario.settings: settings are \[\]"),
    "settings without keys": ({"settings": {"model": 3}}, "Scenario.settings"),
    "one Dealt": ({"dealt": ROWS}, "Scenario.dealt: dealt is"),
    "what is not a Dealt": ({"dealt": ("shard",)}, "Scenario.dealt: 'shard' is not a Dealt"),
    "a rule in a text": ({"dealt": (replace(ROWS, rule="iid"),)}, "Dealt of 'shard': 'iid' is not a Rule"),
    "something that is not a path": (
        {"dealt": (replace(ROWS, path=7),)},
        "Dealt of 'shard': 7 is not a path",
    ),
    "two files for a slot": ({"dealt": (ROWS, ROWS)}, "slot 'shard' is dealt the rows of two files"),
    "a chance below 0": ({"conditions": Conditions(dropout_chance=-1)}, "dropout_chance: -1 is not a number"),
    "a chance above 1": ({"conditions": Conditions(dropout_chance=2)}, "dropout_chance: 2 is not a number"),
    "something that is not a chance": (
        {"conditions": Conditions(dropout_chance=math.nan)},
        "dropout_chance: nan",
    ),
    "a chance in a text": ({"conditions": Conditions(dropout_chance="0.1")}, "dropout_chance: '0.1'"),  # type: ignore[arg-type]
    "nobody there": ({"conditions": Conditions(up_share=0.0)}, r"up_share: 0.0 is not .*nobody would ever"),
    "no period": ({"conditions": Conditions(up_share=0.5, up_period_ns=0)}, "up_period_ns: 0"),
    "spans that overlap": ({"conditions": Conditions(trace={3: [(0, 9), (5, 12)]})}, "client 3 is up from 5"),
    "a span that ends early": (
        {"conditions": Conditions(trace={3: [(9, 9)]})},
        r"trace\[3\]: 9 is not a whole",
    ),
    "a module in a text": ({"load": "parts.py"}, "Scenario.load: load is 'parts.py'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_scenario_is_refused_by_its_field(scenario, what):
    changed, words = WRONG[what]
    with pytest.raises(ScenarioError, match=words):
        simulate(replace(scenario(3), **changed), on="here")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"count": 0}, "Group.count of 'Client': 0 is not a whole number"),
        ({"count": 2.5}, "Group.count of 'Client': 2.5"),
        ({"large": "no"}, r"Group.large: large is 'no' \(give True, False or None"),
        (
            {"config": {"ingress_bytes": 5}},
            "Group.config of 'Client': {'ingress_bytes': 5} is not a NodeConfig",
        ),
        ({"data": b""}, "Group.data: the artifact of 'Client' is not bytes"),
        ({"peer_class": "Clint"}, "the target 'Client' is of the class 'Client'"),
        ({"target": "Clint"}, r"holds no target 'Clint' \(did you mean 'Client'"),
    ],
)
def test_a_group_that_is_none_is_refused(scenario, changed, words):
    told = scenario(3)
    groups = tuple(replace(g, **changed) if g.peer_class == "Client" else g for g in told.groups)
    with pytest.raises(ScenarioError, match=words):
        simulate(replace(told, groups=groups), on="here")


@pytest.mark.parametrize("place", ["Server", ("Client", "model"), ("Server", "agg"), ("Server", "none")])
def test_models_that_an_outcome_cannot_have(scenario, place):
    with pytest.raises(ScenarioError, match="is not a class of one node with a slot that holds a model"):
        simulate(replace(scenario(3), models=(place,)), on="here")


def test_two_groups_of_a_class_would_have_the_same_nodes(scenario):
    told = scenario(3)
    with pytest.raises(ScenarioError, match="two groups are of the class 'Client'"):
        check_scenario(replace(told, groups=(*told.groups, told.groups[-1])))


@pytest.mark.parametrize("more", [{"workers": 0}, {"workers": 1.5}, {"for_ns": 0}, {"for_ns": 1.5}])
def test_a_run_that_is_none_is_refused(scenario, more):
    with pytest.raises(ScenarioError, match=f"{next(iter(more))}: "):
        simulate(scenario(3), on="here", **more)


def test_what_a_worker_raises_is_told_with_the_worker(scenario):
    workers = Processes()
    try:
        workers.start(told := scenario(4), [told.members()])
        with pytest.raises(Exception, match=r"bb-simulate-0: it failed: .*Error") as failed:
            workers.step("soon", [[]])  # type: ignore[arg-type]
        assert "traceback stands above" in failed.value.hint
    finally:
        workers.close()


@pytest.mark.parametrize(
    "labels",
    [
        np.linspace(0, 1, 12).reshape(4, 3),
        np.array([0.5, 1.0, 2.0, 3.0]),
        np.ones((4, 2)),
        np.ones((4, 2, 2)),
    ],
)
def test_measurements_are_no_labels(labels):
    with pytest.raises(ScenarioError, match=r"--labels: the labels are float64\[4"):
        Dealer(Rule.parse("label:1"), 4, labels, 2, 0)


@pytest.mark.parametrize("rule", ["iid", "draw:3", "same", "column:x"])
def test_what_is_no_class_may_be_there_where_nothing_is_dealt_by_it(rule):
    targets, columns = np.linspace(0, 1, 12).reshape(4, 3), {"x": np.arange(4)}
    assert len(Dealer(Rule.parse(rule), 4, targets, 2, 0, columns).rows_of(0))


@pytest.mark.parametrize("labels", [np.eye(4), np.array([0.0, 1.0, 1.0, 3.0]), np.array(list("abca"))])
def test_classes_are_labels_however_they_are_written(labels):
    hands = [Dealer(Rule.parse("label:1"), 4, labels, 2, 0).rows_of(client) for client in range(2)]
    assert all(len(hand) for hand in hands)


def test_the_first_trouble_is_that_of_no_worker():
    one = Trouble(2, 3 * NS, "client-5", "a", {"client-5": 2})
    other = Trouble(3, 3 * NS, "client-0", "b", {"client-0": 2, "client-5": 1})
    for joined in (one.with_more(other), other.with_more(one)):
        assert (joined.count, joined.first) == (5, "client-0 at 3.000 s: b")
        assert joined.nodes == {"client-0": 2, "client-5": 3}


def test_a_class_of_one_node_has_a_servers_budget_unless_it_is_said():
    def budget(count, large=None):
        return limits_of(Group("Server", "Server", b"x", count, large))

    assert budget(1) == budget(2, True) == NodeConfig.host()
    assert budget(2) == budget(1, False) == NodeConfig.edge()
