"""A node is put back to an older state, and soon after that its peer is restarted: they go on at once."""

from __future__ import annotations

import copy

import pytest
from arrays import f32
from durable_machines import Net
from durable_program import program
from times import MS, S

from bb_edge import PeerId

B = PeerId.from_name("b")


def ask(net: Net, for_ns: int) -> int:
    """How many answers `a` has after so long."""
    a = net.machines["a"]
    a.node.invoke("Main", {"x": f32(1), "ask": (B,)})
    net.run(net.now_ns + for_ns)
    return a.node.counters.get("requests.answers", 0)


@pytest.mark.parametrize(("back", "again"), [("a", "b"), ("b", "a")], ids=["asker", "asked"])
def test_a_peer_that_restarts_soon_after_a_state_was_put_back_is_not_kept_waiting(compile_text, back, again):
    net = Net(compile_text(program(60 * S)), {"a": "Main", "b": "Main"})
    net.run(50 * MS)
    ask(net, 100 * MS)
    for machine in net.machines.values():
        machine.take_snapshot(net.now_ns)
    image = copy.deepcopy(net.machines[back].disk)
    for _ in range(3):
        ask(net, 100 * MS)
    machine = net.machines[back]
    machine.disk = image
    machine.start(net.now_ns)
    net.greet(machine)
    before = net.machines["a"].node.counters.get("requests.answers", 0)
    assert ask(net, 6 * S) == before + 1, "the one that was put back is heard"
    other = net.machines[again]
    other.take_snapshot(net.now_ns)
    other.start(net.now_ns)
    net.greet(other)
    before = net.machines["a"].node.counters.get("requests.answers", 0)
    assert ask(net, 3 * S) == before + 1
