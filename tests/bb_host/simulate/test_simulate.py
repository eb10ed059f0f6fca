"""The same bits for any number of workers; who sleeps, drops out or is away; and workers that are lost."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bb_edge import NodeConfig
from bb_edge.install_plan import InstallPlan
from bb_edge.loading import load
from bb_edge.targets import InstallError
from bb_host.errors import ScenarioError, WorkerError
from bb_host.simulate import Conditions, Dealt, Outcome, Rule, Scenario, on_ray, simulate
from bb_host.simulate import run as run_module
from bb_host.simulate.accounts import Progress
from bb_host.simulate.conditions import NS
from bb_host.simulate.workers import Processes
from bb_host.spawned import Spawned

MS = 1_000_000
BAD_WEATHER = Conditions(
    up_share=0.8,
    up_period_ns=1 * NS,
    slow_share=0.3,
    slow_by_ns=30 * MS,
    dropout_chance=0.2,
    dropout_ns=200 * MS,
)


def shown(outcome: Outcome) -> tuple[object, ...]:
    return outcome.trace, outcome.events, outcome.delivered, outcome.lost, outcome.sent_bytes, outcome.awake


def test_rounds_run_and_only_clients_that_were_asked_woke(scenario):
    outcome = simulate(scenario(200, rounds=3, asked=5), on="here")
    rounds = [event.value for event in outcome.events if event.topic == "round"]
    assert [value[0] for value in rounds] == [1, 2, 3] and all(value[2] == 5 for value in rounds)
    assert outcome.awake <= 1 + 3 * 5 and not outcome.trouble
    assert all(event.node == "server" for event in outcome.events)


@pytest.mark.parametrize(
    ("clients", "least", "taken"), [(20, 1, 2), (21, 1, 3), (40, 6, 6), (3, 1, 1), (200, 1, 15)]
)
def test_a_share_of_the_clients_is_asked(scenario, clients, least, taken):
    outcome = simulate(scenario(clients, rounds=2, asked=15, least=least, fraction=0.1), on="here")
    rounds = [event.value for event in outcome.events if event.topic == "round"]
    assert [value[2] for value in rounds] == [taken] * 2 and not outcome.trouble


@pytest.mark.parametrize("conditions", [Conditions(), BAD_WEATHER], ids=["calm", "bad weather"])
def test_any_number_of_workers_gives_the_same_bits(scenario, conditions):
    found = [
        shown(
            simulate(
                scenario(30, rounds=6, asked=8, jitter_ns=7 * MS, conditions=conditions), workers, "here"
            )
        )
        for workers in (1, 2, 3, 5)
    ]
    assert len(set(map(repr, found))) == 1


def test_processes_with_a_hash_seed_each_give_the_same_bits(scenario, monkeypatch):
    told = scenario(20, rounds=4, asked=6, jitter_ns=7 * MS, conditions=BAD_WEATHER)
    here = shown(simulate(told, 1, "here"))
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    for workers in (1, 2, 3):
        assert shown(simulate(told, workers, "processes")) == here


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_it_does_not_matter_who_shares_a_worker(scenario, monkeypatch, data):
    told = scenario(
        data.draw(st.integers(2, 12)),
        rounds=3,
        asked=5,
        seed=data.draw(st.integers(0, 99)),
        jitter_ns=data.draw(st.sampled_from([0, 9 * MS])),
        conditions=data.draw(st.sampled_from([Conditions(), BAD_WEATHER])),
    )
    alone = shown(simulate(told, 1, "here"))
    workers = data.draw(st.integers(2, 3))
    numbers = data.draw(st.lists(st.integers(0, workers - 1), min_size=13, max_size=13))

    def anywhere(members, count):
        lists = [[] for _ in range(count)]
        for member, number in zip(members, numbers, strict=False):
            lists[number % count].append(member)
        return lists

    monkeypatch.setattr(run_module, "placed", anywhere)
    assert shown(simulate(told, workers, "here")) == alone
    monkeypatch.undo()


def test_another_seed_gives_another_run(scenario):
    traces = {simulate(scenario(10, seed=seed), on="here").trace for seed in (1, 2)}
    assert len(traces) == 2


def test_who_is_away_is_not_asked_and_who_drops_out_is_missing(scenario):
    nobody = Conditions(trace={client: [(50 * NS, 60 * NS)] for client in range(10)})
    late = simulate(scenario(10, rounds=1, asked=5, conditions=nobody), on="here")
    assert late.events[0].at_ns > 50 * NS, "the round waits until somebody is there"
    dropping = Conditions(dropout_chance=1.0, dropout_ns=5 * NS)
    lost = simulate(scenario(10, rounds=1, asked=5, conditions=dropping), on="here", for_ns=4 * NS)
    (value,) = [event.value for event in lost.events if event.topic == "round"]
    assert value[2] == 0 and len(value[3]) == 5 and lost.lost >= 5


def test_slow_clients_answer_later(scenario):
    slow = Conditions(slow_share=1.0, slow_by_ns=500 * MS)
    quick, late = (
        simulate(scenario(5, rounds=1, conditions=conditions), on="here")
        for conditions in (Conditions(), slow)
    )
    assert 500 * MS <= late.events[0].at_ns - quick.events[0].at_ns < 1_500 * MS


def test_who_starts_workers_has_no_need_of_numpy():
    needs = "import sys, bb_host.simulate.run, bb_host.simulate.lying; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", needs], capture_output=True, check=True).stdout == b"False\n"


def test_rounds_without_an_end_need_a_time(scenario):
    with pytest.raises(ScenarioError, match="--for SECONDS"):
        simulate(scenario(5, rounds=None), on="here")
    outcome = simulate(scenario(5, rounds=None), on="here", for_ns=NS)
    assert len(outcome.events) > 5 and outcome.events[-1].at_ns <= NS


def test_what_a_worker_refuses_is_told_and_no_process_stays(scenario, tmp_path):
    missing = (Dealt("shard", tmp_path / "nothing.npz", Rule.parse("iid")),)
    with pytest.raises(ScenarioError, match=r"nothing\.npz"):
        simulate(scenario(5, dealt=missing), 2)


def test_a_worker_that_is_killed_is_named_and_leaves_nothing(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = Processes()
    told = scenario(4)
    try:
        workers.start(told, [told.members()])
        (process,) = multiprocessing.active_children()
        assert isinstance(process, Spawned) and process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(WorkerError, match="signal SIGKILL"):
            workers.step(NS, [[]])
        assert list(tmp_path.glob("*/*")), "the worker's folder"
    finally:
        workers.close()
    assert not list(tmp_path.iterdir())


def test_a_first_request_is_dropped_by_chance_as_later_ones_are(scenario):
    conditions = Conditions(dropout_chance=0.5, dropout_ns=5 * NS)
    told = scenario(40, rounds=1, asked=40, conditions=conditions)
    (event,) = simulate(told, on="here").events
    dropped = {f"client-{number}" for number in range(40) if conditions.drops_out(told.seed, number, 1)}
    assert set(event.value[3]) == dropped and 10 < len(dropped) < 30


def test_where_nothing_comes_of_clients_that_come_and_go_it_ends(scenario):
    conditions = Conditions(up_share=0.01, up_period_ns=NS)
    with pytest.raises(ScenarioError, match=r"nothing has come of the last 10\d s: .*the class 'Client'"):
        simulate(scenario(5, least=5, conditions=conditions), on="here")


def test_where_a_round_waits_for_peers_that_find_no_place_it_ends(scenario):
    """Their presences are larger than the least that a check reckons with, and are told in vain."""
    told = scenario(2, least=2)
    server, clients = told.groups
    program, config = load(server.data), NodeConfig.host()
    for room in range(200, 1000):  # until two of the smallest fit
        config = NodeConfig.host().with_(peer_bytes=room)
        with contextlib.suppress(InstallError):
            InstallPlan(program, [server.target], config)
            break
    told = dataclasses.replace(told, groups=(dataclasses.replace(server, config=config), clients))
    with pytest.raises(
        ScenarioError, match=r"nothing has come of the last 8.*: round 1 waits for 2"
    ) as caught:
        simulate(told, on="here")
    assert "PeerRefused" in caught.value.hint


@pytest.mark.parametrize("for_ns", [7 * NS])
def test_the_time_that_was_asked_for_is_simulated_and_what_waited_is_told(scenario, for_ns):
    away = Conditions(trace={client: [(100 * NS, 101 * NS)] for client in range(3)})
    outcome = simulate(scenario(3, conditions=away), on="here", for_ns=for_ns)
    assert outcome.simulated_ns == for_ns and not outcome.events
    assert outcome.waits == "round 1 waits for 1 node of the class 'Client'"


def test_a_wait_that_is_over_is_not_told(scenario):
    late = Conditions(trace={client: [(NS, 101 * NS)] for client in range(3)})
    outcome = simulate(scenario(3, rounds=500, conditions=late), on="here", for_ns=2 * NS)
    assert outcome.events and not outcome.waits


@pytest.mark.parametrize(
    ("field", "words"), [({"latency_ns": 0}, "latency_ns: 0 is not a whole number from 1")]
)
def test_what_no_run_can_have_is_refused(scenario, field, words):
    with pytest.raises(ScenarioError, match=words):
        simulate(scenario(2, **field), on="here")


def test_ray_with_a_hash_seed_in_each_actor_gives_the_same_bits(scenario, monkeypatch):
    """docs/how-to/simulate.md says how to have Ray."""
    pytest.importorskip("ray", reason="Ray is not installed")
    told = scenario(20, rounds=4, asked=6, jitter_ns=7 * MS, conditions=BAD_WEATHER)
    here = shown(simulate(told, 1, "here"))
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert shown(simulate(told, 2, "ray")) == here


def test_an_actor_that_is_killed_is_told(scenario, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    workers = on_ray.RayWorkers()
    told = scenario(4)
    try:
        workers.start(told, [told.members()])
        ray.kill(workers.actors[0])
        with pytest.raises(WorkerError, match="an actor failed"):
            workers.step(NS, [[]])
    finally:
        workers.close()


def test_an_actor_gives_refusals_back_as_values(scenario, tmp_path):
    told = scenario(4, dealt=(Dealt("shard", tmp_path / "nothing.npz", Rule.parse("iid")),))
    refusal = on_ray.ShardActor(told, told.members()).call("progress")
    assert isinstance(refusal, ScenarioError) and "nothing.npz" in refusal.where
    told = scenario(4)
    actor = on_ray.ShardActor(told, told.members())
    progress = actor.call("progress")
    assert isinstance(progress, Progress) and progress.open_rounds == 1
    actor.close()


def test_without_ray_the_remedy_is_named(scenario, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ScenarioError, match=r"bytesandbrains-edge\[ray\]"):
        simulate(scenario(2), 1, "ray")


def test_files_of_rows_are_gone_when_nodes_have_read_them(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    simulate(scenario(5), on="here")
    assert not list(Path(tmp_path).rglob("*.npz")) and not list(tmp_path.glob("bb-simulate-*"))


def test_a_round_that_can_never_begin_ends_the_run(scenario):
    with pytest.raises(
        ScenarioError, match="round 1 waits for 1 node of the class 'Client', and there are 0"
    ):
        simulate(
            Scenario(scenario(1).groups[:1] if scenario(1).groups[0].large else scenario(1).groups[1:]),
            on="here",
        )


def test_rounds_that_reach_nobody_end_the_run_with_the_reason(scenario):
    away = Conditions(dropout_chance=1.0, dropout_ns=NS)
    with pytest.raises(ScenarioError, match=r"10 rounds in a row went in vain: no"):
        simulate(scenario(5, rounds=1, conditions=away), on="here")


@pytest.mark.parametrize("field", ["settings", "dealt"])
def test_a_slot_that_nobody_has_is_refused_with_the_nearest_one(scenario, rows, field):
    value = {"settings": {"shrd": {"batch_size": 2}}, "dealt": (Dealt("shrd", rows, Rule.parse("same")),)}[
        field
    ]
    with pytest.raises(ScenarioError, match="did you mean 'shard'"):
        simulate(scenario(5, **{field: value}), on="here")


def test_a_client_whose_share_is_too_small_is_named(scenario, rows):
    few = (Dealt("shard", rows, Rule.parse("draw:2")),)
    with pytest.raises(ScenarioError, match=r"client-\d+: .*batch_size 4.* see --deal"):
        simulate(scenario(5, dealt=few), on="here")


def test_a_trace_of_clients_that_are_not_there_is_refused(scenario):
    with pytest.raises(ScenarioError, match="names client 77, and there are 5"):
        simulate(scenario(5, conditions=Conditions(trace={77: [(0, NS)]})), on="here")


def test_rows_that_are_dealt_and_set_besides_are_refused(scenario):
    both = {"shard": {"path": "mine.npz"}}
    with pytest.raises(ScenarioError, match="slot 'shard' is dealt rows, and its 'path' is set besides"):
        simulate(scenario(5, settings=both), on="here")


def test_trouble_names_nodes_and_not_their_ids(scenario):
    dropping = Conditions(dropout_chance=1.0, dropout_ns=5 * NS)
    lost = simulate(scenario(10, rounds=3, asked=5, conditions=dropping), on="here", for_ns=20 * NS)
    told = " ".join(map(str, lost.trouble.values()))
    assert told and "Qm" not in told
