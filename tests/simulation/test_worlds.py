"""Thousands of small federations under faults: nothing is lost, nothing counts twice, everything ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulated.__main__ import Tally, differing, simulate, world_of, write_hashes
from simulated.network import CALM
from simulated.plan import MIXED_FROM, Plan, plan_of
from simulated.world import World, WorldError

from bb_edge.engine import steps
from bb_edge.engine.net import restarts
from bb_edge.engine.net.unanswered import NO_CONNECTION
from bb_edge.node import Node
from bb_edge.transport.rollcall import RollCall
from bb_edge.wire.programs import Kinship, ProgramClaim

PARTS = 4
SEEDS = 400
"""Of each part."""

OFTEN = {
    "dropped": 600,
    "duplicated": 300,
    "delayed": 300,
    "partitioned": 300,
    "forgotten": 10,
    "broker restarts": 50,
    "crash between polls": 300,
    "crash at a write": 50,
    "crash at a start": 2,
    "CUT_BEFORE": 10,
    "CUT_INSIDE": 10,
    "CUT_AFTER": 10,
    "FAIL": 10,
    "FULL": 10,
    "TORN": 10,
    "SHORT": 10,
    "mute": 10,
}
"""Faults that every part must see, at least so often: about a half of what it does see."""

SEEN = {
    "AppEvent": 2500,
    "RequestClosed": 1000,
    "RoundsCompleted": 800,
    "RoundBackedOff": 15,
    "RoundWaits": 300,
    "PeerUp": 2500,
    "PeerDown": 380,
    "PersistOutbox": 1500,
    "Journal": 1500,
    "SnapshotWanted": 200,
    "StorageFailed": 10,
    "restored": 100,
    "replayed": 40,
    "adopted": 150,
    "told again": 20,
    "heard nobody": 15,
    "OpFailed": 8,
    "RequestFailed": 8,
}


MIXED_PARTS = 2
MIXED_SEEDS = 200
"""Of each part: worlds on a broker, whose peers misbehave in what they are and say."""

MIXED_OFTEN = {
    "reconnects": 266,
    "late wills": 66,
    "takeovers": 86,
    "twins": 20,
    "taken by a twin": 60,
    "not connected": 90,
    "late presences": 73,
    "two classes": 33,
    "crowds": 23,
    "presence dropped": 1333,
    "other editions": 100,
    "strangers": 66,
    "replaced": 10,
    "spoiled": 93,
    "misshapen": 8,
    "broker restarts": 30,
    "crash between polls": 133,
    "crash at a write": 33,
    "partitioned": 133,
}

MIXED_SEEN = {
    "ProgramMismatch": 2333,
    "RequestFailed: program": 1,
    "ClassMismatch": 36,
    "across editions": 133,
    "roll calls": 60,
    "two machines": 10,
    "repaired": 666,
    "twins": 23,
    "name in use": 20,
    "contribution refused": 12,
    "AnswerRefused": 10,
    "ShapeMismatch": 6,
    "RoundsCompleted": 333,
    "RequestClosed": 333,
    "restored": 33,
    "replayed": 12,
    "told again": 20,
    "heard nobody": 26,
}


def check(tally: Tally, often: dict[str, int], seen: dict[str, int]) -> None:
    assert not tally.failures, "\n".join(tally.failures[:3])
    assert tally.delivered > 20 * tally.seeds
    for name, least in often.items():
        assert tally.faults[name] >= least, f"{name}: {tally.faults}"
    for name, least in seen.items():
        assert tally.seen[name] >= least, f"{name}: {tally.seen}"


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_nothing_counts_twice_everything_ends(part):
    check(simulate(range(part * SEEDS, (part + 1) * SEEDS), short=True), OFTEN, SEEN)


@pytest.mark.parametrize("part", range(MIXED_PARTS))
def test_peers_that_are_or_say_something_else_spoil_nothing(part):
    first = MIXED_FROM + part * MIXED_SEEDS
    check(simulate(range(first, first + MIXED_SEEDS), short=True), MIXED_OFTEN, MIXED_SEEN)


@pytest.mark.parametrize("start", [3, MIXED_FROM + 3])
def test_the_same_seed_gives_the_same_trace_in_any_process(start):
    seeds = range(start, start + 10)
    here = simulate(seeds, short=True).hashes
    assert here == simulate(seeds, short=True).hashes
    assert len(set(here)) == len(seeds)
    code = f"from simulated.__main__ import simulate\nprint(*simulate({seeds!r}, short=True).hashes)"
    folder = str(Path(__file__).resolve().parent)
    path = os.pathsep.join([folder, *(entry for entry in sys.path if entry)])
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


def test_traces_that_differ_from_those_written_are_named(tmp_path):
    path = tmp_path / "hashes.json"
    hashes = simulate(range(3, 6), short=True).hashes
    write_hashes(path, 3, hashes)
    assert differing(path, 3, hashes) == [] == differing(path, 4, hashes[1:])
    assert differing(path, 3, [hashes[0], "", hashes[2]]) == [4]
    with pytest.raises(KeyError, match="6"):
        differing(path, 6, hashes)


@pytest.mark.parametrize("kind", ["federation", "gossip", "nested"])
@pytest.mark.parametrize("durable", [False, True])
def test_without_faults_everybody_is_heard(kind, durable):
    plan = Plan(
        kind,
        durable=durable,
        weather=CALM,
        crashes=0,
        disk_errors=0,
        partitions=0,
        broker_restarts=0,
        mute=0,
        broken=0,
    )
    world = World(1, plan).run()
    assert not world.faults
    ended = {"federation": 1 + plan.nodes, "gossip": plan.nodes, "nested": 1}
    assert world.ledger.seen["RoundsCompleted"] == ended[kind]


def test_a_report_that_counts_twice_is_found(monkeypatch):
    world = World(5, plan_of(5))
    original, counters, over = world.ledger.done, Node.counters.fget, []

    def done() -> bool:
        if original():
            over.append(world.machines[0].node)
        return bool(over)

    def counted_twice(node: Node) -> dict[str, int]:
        counts = counters(node)
        return {**counts, "reports": counts.get("reports", 0) + (node in over)}

    monkeypatch.setattr(Node, "counters", property(counted_twice))
    world.ledger.done = done
    with pytest.raises(WorldError, match=r"seed 5: .*promised"):
        world.run()


def test_an_op_that_fails_is_found():
    world = World(3)
    with pytest.raises(AssertionError, match="OpFailed"):
        world.ledger.step(steps.OpFailed("Target", 1, "op", ValueError("no")), world.machines[0])


def test_a_stranger_that_is_heard_is_found(monkeypatch):
    monkeypatch.setattr(ProgramClaim, "kinship", lambda *_: Kinship.SAME)
    failures = simulate(range(MIXED_FROM, MIXED_FROM + 8), short=True).failures
    assert any("AssertionError" in failure for failure in failures), failures


@pytest.mark.parametrize("start", [0, MIXED_FROM])
def test_a_twin_that_nobody_has_is_found(monkeypatch, start):
    monkeypatch.setattr(restarts, "BACK", 0)
    failures = simulate(range(start, start + 8), short=True).failures
    assert any("two machines run under its name: stop" in failure for failure in failures), failures


def test_a_connection_that_is_there_and_said_to_be_lost_is_found():
    world = world_of(MIXED_FROM, True).run()
    server, peer = world.machines[0], world.machines[1].peer
    with pytest.raises(AssertionError, match="no connection"):
        world.ledger.step(steps.OutboundDropped(peer, NO_CONNECTION), server)


def test_somebody_who_stays_unknown_is_found(monkeypatch):
    monkeypatch.setattr(RollCall, "tick", lambda *_: None)
    crowded = next(seed for seed in range(MIXED_FROM, MIXED_FROM + 99) if world_of(seed, True).plan.crowd)
    failures = simulate(range(crowded, crowded + 1), short=True).failures
    assert any("does not know" in failure for failure in failures), failures


@pytest.mark.parametrize("start", [0, MIXED_FROM])
def test_plans_are_few_and_of_every_kind(start):
    plans = {plan_of(seed) for seed in range(start, start + 300)}
    assert {(plan.kind, plan.durable) for plan in plans} == {
        (kind, durable) for kind in ("federation", "gossip", "nested") for durable in (False, True)
    }
