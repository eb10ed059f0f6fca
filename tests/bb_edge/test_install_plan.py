"""Nodes that are installed by one plan are those that each would be by itself."""

from __future__ import annotations

import pytest
from arrays import f32
from asking import changed, registry
from times import S

from bb_edge.engine.config import NodeConfig
from bb_edge.install_plan import InstallPlan
from bb_edge.installer import install
from bb_edge.ir.errors import InstallError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.once import Kept, each_time
from bb_edge.loading import load
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
