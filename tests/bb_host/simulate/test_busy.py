"""A node that computes for long at one instant is told with the loop that it is in."""

from __future__ import annotations

import re
from itertools import count

import numpy as np
import pytest

from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.transport import in_process
from bb_edge.transport.in_process import SimulationError
from bb_host import Compiler, Graph, Module
from bb_host.build import build_edge
from bb_host.simulate import Group, Scenario, busy, simulate

ITERATIONS = 2_000


class Loops(Module):
    """A round in which a node goes round a loop in a loop."""

    def body(self, g: Graph) -> None:
        with g.rounds(1) as start:
            x = g.constant(np.zeros(2, np.float32))
            with g.loop(2, carry=x, after=start) as outer:
                with g.loop(ITERATIONS, carry=outer.carried) as inner:
                    inner.next(inner.carried + 1.0)
                outer.next(inner.result)
            g.app_emit("done", outer.result)


@pytest.fixture
def looping() -> Scenario:
    (artifact,) = build_edge(Loops(), Compiler()).artifacts
    return Scenario((Group("Loops", artifact.target, artifact.data, 1),))


@pytest.fixture
def every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of a node counts as long."""
    monkeypatch.setattr(busy, "AFTER_S", 0.0)


def test_the_loops_of_a_node_that_is_busy_are_told_outermost_first(
    looping: Scenario, every_look: None
) -> None:
    lines: list[str] = []
    outcome = simulate(looping, on="here", busy=lines.append)
    assert [event.value for event in outcome.events] == [[2 * ITERATIONS] * 2]
    inside = [
        found
        for line in lines
        if (found := re.search(r"it is in Loops, (\S+), iteration (\d) and Loops, (\S+), iteration ", line))
    ]
    assert inside and {found[2] for found in inside} <= {"1", "2"}
    assert len({found[1] for found in inside} | {found[3] for found in inside}) == 2
    assert lines[0].startswith("loops ")


def test_seconds_of_one_node_at_one_instant_are_told_when_they_have_doubled(looping: Scenario) -> None:
    (group,) = looping.groups
    node, other = (install(PeerId.from_name(n), (), group.data, [group.target], seed=1) for n in ("a", "b"))
    times, lines = count(), list[str]()
    watch = busy.Busy(lines.append, lambda peer: peer.short(), lambda: float(next(times)))
    for instant in range(40):
        watch.polled(node, instant)
        watch.polled(other, instant)
    assert not lines
    for _ in range(41):
        watch.polled(node, 99)
        watch.polled(other, 99)
    mine = [line for line in lines if line.startswith(node.peer_id.short())]
    assert [re.findall(r"computed for (\d+) s", line) for line in mine] == [["10"], ["20"], ["40"]]
    assert len(lines) == 6


def test_an_instant_without_an_end_names_the_node_and_its_loop(
    looping: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "POLLS_PER_INSTANT", 5)
    with pytest.raises(
        SimulationError, match=r"still have work.*; loops is in Loops, \S+, iteration [12] and"
    ):
        simulate(looping, on="here")
