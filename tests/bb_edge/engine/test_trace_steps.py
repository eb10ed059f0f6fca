"""The verbose steps, made while tracing is on and only then; and what a presence brings (semantics §4)."""

from __future__ import annotations

import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.ids import PeerId
from bb_edge.roles import TRIGGER

TEXT = """
program Demo {module=Demo}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  passed: Trigger = syscall.PassThrough(go)
  slept: Trigger = syscall.Sleep<duration_ns=100>(passed)
  syscall.AppNotify<name="done">(slept)
"""


@pytest.mark.parametrize("trace", [True, False])
def test_ops_are_told_while_tracing_is_on(bench, trace):
    b = bench(TEXT, config=NodeConfig(trace=trace))
    number = b.node.invoke("Main", {"go": TRIGGER})
    b.settle()
    told = {kind: b.of(kind) for kind in (steps.OpCompleted, steps.AsyncSuspended, steps.OpSink)}
    assert [len(found) for found in told.values()] == ([1, 1, 1] if trace else [0, 0, 0])
    for found in told.values():
        assert all((s.target, s.execution) == ("Main", number) for s in found)
    assert len(b.of(steps.AppEvent)) == 1


def test_a_peer_that_comes_up_is_told_with_its_classes(bench):
    b = bench(TEXT)
    peer = PeerId.from_name("other")
    b.node.peer_presence(peer, True, (), epoch=4, classes=("Client",))
    b.poll()
    assert b.of(steps.PeerUp) == [steps.PeerUp(peer, ("Client",))]
    b.node.peer_presence(peer, True, (), epoch=4, classes=("Client",))
    b.poll()
    assert len(b.of(steps.PeerUp)) == 1
