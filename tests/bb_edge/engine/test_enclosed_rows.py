"""The row of a durable request is written with the snapshot that holds who asks."""

from __future__ import annotations

import pytest
from arrays import f32
from durable_machines import Net
from durable_program import program
from kinds_of_steps import of
from times import MS, S

from bb_edge import PeerId
from bb_edge.engine.steps import PersistOutbox, SnapshotWanted

B = PeerId.from_name("b")


def asking(compile_text, knows_marks: bool = True) -> Net:
    """Two machines that have asked each other once, so that their flows are open."""
    net = Net(compile_text(program(60 * S)), {"a": "Main", "b": "Main"}, knows_marks)
    net.run(50 * MS)
    ask(net)
    return net


def ask(net: Net) -> None:
    net.machines["a"].node.invoke("Main", {"x": f32(1), "ask": (B,)})
    net.run(net.now_ns + 50 * MS)


@pytest.mark.parametrize("knows_marks", [True, False], ids=["marks", "plain"])
def test_a_request_to_who_knows_marks_wants_one_snapshot_that_has_its_row(compile_text, knows_marks):
    net = asking(compile_text, knows_marks)
    a = net.machines["a"]
    a.said.clear()
    before = a.disk.writes
    ask(net)
    (row,) = of(PersistOutbox, a.said)
    assert row.with_snapshot is knows_marks
    (wanted,) = of(SnapshotWanted, a.said)
    assert (a.said.index(wanted) < a.said.index(row)) is knows_marks
    asked, answer = 1 if knows_marks else 2, 1
    assert a.disk.writes == before + asked + answer
    assert [topic for topic, _ in a.events] == ["missing", "missing"], "both were answered"
    assert a.node.counters["requests.answers"] == 2


def test_the_first_request_of_a_flow_has_no_number_yet_and_is_written_as_ever(compile_text):
    net = asking(compile_text)
    rows = [step for step in of(PersistOutbox, net.machines["a"].said) if isinstance(step.name, int)]
    assert [step.with_snapshot for step in rows] == [False]


def test_who_is_killed_after_the_snapshot_asks_again_under_the_same_number(compile_text):
    net = asking(compile_text)
    a = net.machines["a"]
    net.down["b"] = net.now_ns + 1 * S  # nobody acknowledges
    a.node.invoke("Main", {"x": f32(1), "ask": (B,)})
    net.run(net.now_ns + 20 * MS)
    (name,) = a.disk.enclosed
    assert a.node.needs_row(name)
    net.down["a"] = net.now_ns + 5 * MS
    net.run(net.now_ns + 30 * S)
    assert a.starts == 2 and a.node.counters["requests.answers"] == 2, "counters are kept"
    assert not a.node.needs_row(name)
    assert len([1 for topic, _ in a.events if topic == "missing"]) == 2
    a.take_snapshot(net.now_ns)
    assert a.disk.enclosed == {}
