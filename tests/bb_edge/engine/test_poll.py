"""The phases of a poll are a table, from which the next deadline comes as well."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge import PeerId
from bb_edge.engine.steps import LifecycleFired, Phase

PROGRAM = """
program Demo {module=Demo}
function program.Main(x: F32[1]) -> () {entry=1, partition=self}
  y: F32[1] = Neg(x)
  syscall.AppEmit<name="y">(y)
  t: Trigger = syscall.LifecyclePhase<phase=1>()
  syscall.AppNotify<name="stopped">(t)
  k: EventKind = syscall.EventSource<kind=2>()
  syscall.AppEmit<name="up">(k)
"""
A = PeerId.from_name("a")


@pytest.fixture
def b(bench):
    made = bench(PROGRAM)
    made.settle()
    return made


def test_a_node_at_rest_asks_for_no_poll(b):
    assert b.node.next_deadline_ns() is None
    assert b.node.poll(1) == [] and b.node.next_deadline_ns() is None


@pytest.mark.parametrize(
    "arrival",
    [
        lambda node: node.invoke("Main", {"x": np.ones(1, np.float32)}),
        lambda node: node.peer_presence(A, True, (), epoch=1),
        lambda node: node.deliver_inbound(b"", A),
        lambda node: node.fire_lifecycle(Phase.SHUTDOWN),
        lambda node: node.ingress.deliver(7, None, None),
    ],
    ids=["invoke", "notice", "envelope", "lifecycle", "completion"],
)
def test_what_arrives_asks_for_a_poll_at_once_and_one_poll_is_enough(b, arrival):
    arrival(b.node)
    assert b.node.next_deadline_ns() == 0
    b.node.poll(1)
    assert b.node.next_deadline_ns() is None


def test_a_completion_that_came_too_late_is_counted_in_the_next_poll_and_asks_for_none(b):
    b.node.ingress.late(7)
    b.node.ingress.late(8)
    assert b.node.next_deadline_ns() is None
    b.node.poll(1)
    assert b.node.counters["completions.late"] == 2


def test_phases_have_an_order_events_of_a_poll_come_before_its_lifecycle(b):
    b.node.fire_lifecycle(Phase.SHUTDOWN)
    b.node.peer_presence(A, True, (), epoch=1)
    b.poll()
    (fired,) = b.of(LifecycleFired)
    topics = [getattr(step, "topic", "fired" if step is fired else None) for step in b.said]
    assert [topic for topic in topics if topic] == ["up", "fired", "stopped"]
