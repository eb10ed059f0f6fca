"""The verbose steps, made while tracing is on and only then; and what a presence brings."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.ids import PeerId
from bb_edge.roles import TRIGGER

TEXT = """
program Demo {module=Demo}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  now: Timestamp = syscall.Clock(go)
  passed: Trigger = syscall.PassThrough(go)
  slept: Trigger = syscall.Sleep<duration_ns=100>(passed)
  syscall.AppNotify<name="done">(slept)
"""


@pytest.mark.parametrize("trace", [True, False])
def test_ops_are_told_while_tracing_is_on(bench, trace):
    b = bench(TEXT, config=NodeConfig(trace=trace))
    number = b.node.invoke("Main", {"go": TRIGGER})
    b.settle()
    kinds = (steps.OpCompleted, steps.AsyncSuspended, steps.OpTrigger, steps.OpSink)
    told = {kind: b.of(kind) for kind in kinds}
    assert [[s.op for s in found] for found in told.values()] == (
        [["Clock_0"], ["Sleep_2"], ["PassThrough_1", "Sleep_2"], ["AppNotify_3"]]
        if trace
        else [[], [], [], []]
    )
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


RECORDING = """
program Demo {module=Demo}
function program.Main(x: F32[1]) -> () {entry=1, partition=self}
  syscall.Record<name="ring">(x)
"""


def test_what_a_full_ring_pushes_out_is_told(bench):
    b = bench(RECORDING, config=NodeConfig(record_entries=2))
    for n in range(5):
        b.node.invoke("Main", {"x": np.array([n], np.float32)})
    b.settle()
    assert [(s.name, s.value.tolist()) for s in b.of(steps.Telemetry)] == [
        ("ring", [0.0]),
        ("ring", [1.0]),
        ("ring", [2.0]),
    ]
    assert [value.tolist() for value in b.node.ring("ring")] == [[3.0], [4.0]]


LOOPING = """
program Demo {module=Demo}
function program.Main(x: F32[2], y: F32[3]) -> () {entry=1, partition=self}
  event: EventKind = syscall.EventSource<kind=1>()
  number: U64 = syscall.RngU64(event)
  no: F32[2] = Reshape<allowzero=0>(number, number)
  syscall.AppNotify<name="never">(no)
  syscall.AppNotify<name="x">(x)
  z: F32[3] = Add(x, y)
  syscall.AppEmit<name="z">(z)
"""


def test_an_event_that_publishes_itself_comes_once_a_poll(bench):
    b = bench(LOOPING)
    b.node.invoke("Main", {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})
    for polls in range(1, 6):
        b.poll()  # comes to its end each time, and leaves room for others
        assert len(b.of(steps.OpFailed)) == 1 + polls
        assert b.node.next_deadline_ns() == 0
    b.node.invoke("Main", {"x": np.ones(2, np.float32)})
    b.poll()
    assert len(b.of(steps.AppEvent)) == 2
