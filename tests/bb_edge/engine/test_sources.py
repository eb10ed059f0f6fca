"""The kinds of entry ops: each has an owner, and those that begin by themselves begin with their target."""

from __future__ import annotations

import pytest

from bb_edge import PeerId, wiring
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.entries.sources import Sources
from bb_edge.engine.errors import LoadError
from bb_edge.engine.run.bound import BoundGraph
from bb_edge.engine.runtime import Runtime
from bb_edge.wire.programs import ProgramClaim

PROGRAM = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  t: Trigger = syscall.Pulse()
  syscall.AppNotify<name="fired">(t)
"""


@pytest.mark.parametrize(
    "entry",
    [
        "t: Trigger = syscall.Pulse()",
        "t: Timestamp = syscall.Interval<period_ns=100>()",
        "t: I64 = syscall.Repeat<times=1>()",
    ],
)
def test_a_target_with_a_kind_that_begins_by_itself_starts_in_the_first_poll(bench, entry):
    b = bench(PROGRAM.replace("t: Trigger = syscall.Pulse()", entry))
    assert b.node.inspect().targets["Main"] == "starts"
    b.poll()
    assert b.node.inspect().targets["Main"] == "started"


def test_an_entry_op_of_a_kind_that_nothing_starts_is_refused_by_name(bench):
    runtime = Runtime(NodeConfig(), PeerId.from_name("a"), Drawing(1), Drawing(2))
    slots = wiring.Slots({}, {}, {}, dict.__getitem__)
    core = wiring.core(runtime, slots, {"Main": "self"}, ProgramClaim(), False)
    (slot,) = bench(PROGRAM).node.program.graphs.values()
    graph = BoundGraph(slot, 0, "Main")
    entries = {"Pulse": [(graph, graph.ops[0])], "Alarm": [(graph, graph.ops[0])]}
    with pytest.raises(LoadError, match="type 'Alarm'") as refused:
        Sources(
            runtime,
            core.scheduler,
            core.ingress,
            core.control,
            core.wish.want,
            core.ctx,
            lambda target, slot: target,
            core.peers,
            entries,
        )
    assert refused.value.where == f"Main, {graph.ops[0].spec.name}"
