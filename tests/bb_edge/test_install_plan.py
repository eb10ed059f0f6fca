"""Nodes that are installed by one plan are those that each would be by itself."""

from __future__ import annotations

import gc
from typing import ClassVar

import pytest
from arrays import f32
from asking import changed, registry
from times import S

from bb_edge.engine.config import NodeConfig
from bb_edge.engine.run.frames import FreeFrames
from bb_edge.install_plan import InstallPlan
from bb_edge.installer import install
from bb_edge.ir.errors import InstallError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.once import Kept, each_time
from bb_edge.loading import load
from bb_edge.node import Node
from bb_edge.roles import Component, ComponentEnv, ComponentError, Setting
from bb_edge.transport.in_process import Simulation


@pytest.fixture
def trace(compile_text):
    """`trace(plan)`: the hash of what a server and three clients say, the clients installed by the plan."""
    program = load(compile_text(changed()))

    def run(plan: InstallPlan | None) -> str:
        sim = Simulation(seed=3)
        server = install(PeerId.from_name("s"), (), program, ["Server"], seed=1, registry=registry())
        sim.add(server)
        for seed in range(3):
            peer = PeerId.from_name(f"c{seed}")
            sim.add(install(peer, (), program, ["Client"], plan=plan, seed=seed, registry=registry()))
        sim.run(for_ns=S)
        for number in (1, 2):
            server.invoke("Server", {"x": f32(number, 2)})
            sim.run(for_ns=S)
        assert sim.delivered > 6
        return sim.trace_hash()

    return run, program


def test_nodes_of_one_plan_say_the_same_bytes_as_nodes_without_one(trace):
    run, program = trace
    kept = Kept()
    assert run(InstallPlan(program, ["Client"], once=kept)) == run(None)
    assert run(InstallPlan(program, ["Client"])) == run(None)


def frames_of(program, plan: InstallPlan) -> tuple[FreeFrames, Node]:
    """The frames of a node that is installed by the plan."""
    before = {id(found) for found in gc.get_objects() if type(found) is FreeFrames}
    node = install(PeerId.from_name("c"), (), program, *plan.asked, plan=plan, registry=registry())
    (frames,) = (f for f in gc.get_objects() if type(f) is FreeFrames and id(f) not in before)
    return frames, node


@pytest.mark.parametrize("many", [True, False])
def test_nodes_of_many_make_their_frames_when_they_run_and_as_many_as_others(trace, many):
    program, planned = trace[1], NodeConfig.edge().max_executions
    plan = InstallPlan(program, ["Client"], **({"once": Kept()} if many else {}))
    assert plan.many is many
    gc.collect()
    frames, node = frames_of(program, plan)
    (region, *_) = frames
    assert len(frames[region]) == (0 if many else planned)
    made = list(frames[region]) or [frames.make(region) for _ in range(planned)]
    assert len(set(map(id, made))) == planned and not node.counters["frames.grown"]
    frames.make(region)
    assert node.counters["frames.grown"] == 1


@pytest.mark.parametrize(
    ("targets", "config"), [(["Server"], None), (["Client"], NodeConfig.edge().with_(max_peers=7))]
)
def test_a_plan_of_something_else_is_refused(trace, targets, config):
    program = trace[1]
    plan = InstallPlan(program, ["Client"], once=Kept())
    with pytest.raises(InstallError, match="the plan was made of another program, other targets"):
        install(PeerId.from_name("c"), (), program, targets, config, plan=plan, registry=registry())


def test_what_is_kept_is_made_once_and_what_is_not_each_time():
    made: list[int] = []

    def make() -> list[int]:
        made.append(0)
        return [len(made)]

    kept = Kept()
    assert kept("a", make) is kept("a", make) and kept("b", make) == [2]
    assert each_time("a", make) == [3] and each_time("a", make) == [4]


def test_what_the_artifact_configures_is_checked_once_and_what_a_node_does_each_time():
    checked: list[int] = []

    class Counted(Component):
        TYPE_NAME = "test.Counted"
        CONFIG: ClassVar = {"most": Setting.integer(1, 1)}

        @classmethod
        def wrong_settings(cls, config, complete):
            checked.append(config["most"])
            return []

        @classmethod
        def unread_settings(cls, config):
            return {"most": "it is not read"}

    kept = Kept()

    def env(most: int, alike: bool) -> ComponentEnv:
        return ComponentEnv(slot="slot", config={"most": most}, compiled={"most": 3}, once=kept, alike=alike)

    for of_node in (env(3, True), env(3, True)):
        assert of_node.settings(Counted) == of_node.settings(Counted) == {"most": 3}
        notes = of_node.unread_notes(Counted)
        assert notes == ["slot 'slot', key 'most' has no effect: it is not read"]
        notes.clear()  # they are the node's own
        assert of_node.with_config({"most": 5}).settings(Counted) == {"most": 5}
    assert checked == [3, 5, 5]
    for most in (4, 6):
        own = env(most, False)
        assert own.settings(Counted) == own.settings(Counted) == {"most": most}
    assert checked == [3, 5, 5, 4, 6]
    with pytest.raises(ComponentError, match="must lie in"):
        env(0, False).check(Counted)
    with pytest.raises(ComponentError, match="must lie in"):
        env(3, True).with_config({"most": 0}).check(Counted)
