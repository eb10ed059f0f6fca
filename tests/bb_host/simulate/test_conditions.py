"""Who is up when, who is slow, and what a trace may hold."""

from __future__ import annotations

from itertools import takewhile

import pytest

from bb_host.errors import ScenarioError
from bb_host.simulate.checks import check_scenario
from bb_host.simulate.conditions import NS, Conditions, read_trace
from bb_host.simulate.scenario import Group, Member, Scenario


def up_for(conditions: Conditions, client: int, until_ns: int, seed: int = 0) -> int:
    """For how many nanoseconds a client is up until then."""
    total, since, up = 0, 0, False
    for at_ns, now_up in takewhile(lambda change: change[0] < until_ns, conditions.changes(seed, client)):
        assert at_ns >= since
        total += (at_ns - since) * up
        since, up = at_ns, now_up
    return total + (until_ns - since) * up


@pytest.mark.parametrize("client", range(5))
def test_clients_are_up_for_their_share_of_every_period(client):
    conditions = Conditions(up_share=0.3, up_period_ns=100 * NS)
    assert up_for(conditions, client, 10_000 * NS) == 3_000 * NS


def test_each_client_comes_and_goes_at_times_of_its_own():
    conditions = Conditions(up_share=0.5, up_period_ns=100 * NS)
    firsts = {
        tuple(c for c, _ in zip(conditions.changes(0, client), range(3), strict=False))
        for client in range(20)
    }
    assert len(firsts) == 20


def test_without_conditions_everybody_is_there_for_ever():
    assert list(Conditions().changes(0, 7)) == [(0, True)]
    assert not Conditions().is_slow(0, 7) and not Conditions().drops_out(0, 7, 1)


def test_shares_and_chances_hold_over_many_clients():
    conditions = Conditions(slow_share=0.25, slow_by_ns=1, dropout_chance=0.1)
    assert 0.22 < sum(conditions.is_slow(1, client) for client in range(4000)) / 4000 < 0.28
    assert 0.08 < sum(conditions.drops_out(1, 5, request) for request in range(4000)) / 4000 < 0.12


def test_a_trace_says_when_clients_are_up(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,from,to\n# the nights\n0,0,10\nclient-0,20,30.5\n2,5,6\n")
    conditions = Conditions(trace=read_trace(path))
    assert list(conditions.changes(0, 0, "client-0", 0)) == [
        (0, True),
        (10 * NS, False),
        (20 * NS, True),
        (30_500_000_000, False),
    ]
    assert list(conditions.changes(0, 2, "client-2", 2)) == [(0, False), (5 * NS, True), (6 * NS, False)]
    assert list(conditions.changes(0, 1, "client-1", 1)) == [(0, True)], (
        "whom it does not name is always there"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,5", "trace.csv:1"),
        ("0,0,1\nx,0,1", "trace.csv:2"),
        ("0,9,3", "is not a span"),
        ("client,0,1\n-7,0,1", "'-7,0,1' is not a span"),
        ("gateway-,0,1", "is not a span"),
        ("0,0,5\n0,4,6", "before its last span has ended"),
        ("# nobody\n", "names no client"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_at_its_line(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=words):
        read_trace(path)


def test_clients_are_alike_where_none_is_away_or_slow():
    assert Conditions().alike and Conditions(dropout_chance=0.5).alike
    others = (Conditions(up_share=0.5), Conditions(trace={3: [(0, 1)]}), Conditions(slow_share=0.1))
    assert not any(conditions.alike for conditions in others)


def with_trace(tmp_path, text: str, **counts: int) -> Scenario:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    groups = tuple(Group(name, name, b"any", count) for name, count in counts.items())
    return Scenario(groups, conditions=Conditions(trace=read_trace(path)))


def test_a_number_is_a_client_and_other_nodes_have_names(tmp_path):
    found = with_trace(tmp_path, "1,5,6\ngateway-0,7,8\n", Server=1, Gateway=2, Client=2)
    check_scenario(found)
    away = {
        found.groups[group].name(number): list(found.changes_of(Member(group, number)))
        for group, number in found.members()
    }
    always = [(0, True)]
    assert away == {
        "server": always,
        "gateway-0": [(0, False), (7 * NS, True), (8 * NS, False)],
        "gateway-1": always,
        "client-0": always,
        "client-1": [(0, False), (5 * NS, True), (6 * NS, False)],
    }


def test_a_number_is_a_node_of_the_only_class_of_several_and_of_a_client_that_is_alone(tmp_path):
    sensors = with_trace(tmp_path, "1,0,6\n", Server=1, Sensor=2)
    alone = with_trace(tmp_path, "client-0,0,6\n", Server=1, Client=1)
    for found, member in ((sensors, Member(1, 1)), (alone, Member(1, 0))):
        check_scenario(found)
        assert list(found.changes_of(member)) == [(0, True), (6 * NS, False)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2,0,1", "of which class that is, is not clear .name the node: gateway-2 or leaf-2"),
        ("gatway-1,0,1", "no class of several nodes is called so .did you mean 'gateway'"),
        ("server-0,0,1", "'server-0', and no class of several nodes"),
        ("gateway-2,0,1", "names gateway 2, and there are 2, from 0 on"),
    ],
)
def test_a_trace_that_names_nobody_is_refused(tmp_path, text, words):
    with pytest.raises(ScenarioError, match=words):
        check_scenario(with_trace(tmp_path, text, Server=1, Gateway=2, Leaf=2))


def test_a_node_that_a_trace_names_twice_is_refused():
    twice = Conditions(trace={1: [(0, 1)], "client-1": [(2, 3)]})
    with pytest.raises(ScenarioError, match="names client-1 twice"):
        check_scenario(Scenario((Group("Client", "Client", b"any", 2),), conditions=twice))
