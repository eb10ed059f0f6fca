"""What the engine makes of presences: sessions, classes, goodbyes before the last envelope."""

from __future__ import annotations

import random

import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope
from tests.aids.envelopes import fill
from tests.aids.peers import numbered

A = PeerId.from_name("a")
PROGRAM = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=Main}
  x: F32[1], s: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  y: F32[1], t: PeerIdVec = gate.PeerHealthGateRx(x, s)
  syscall.AppEmit<name="y">(y)
"""


@pytest.fixture
def told(bench):
    """`told(up, classes=("C",), epoch=1, session=0)`: polls with a presence of A; the steps about peers.

    What is down is told by the broker, which has no `seq`, unless one is given.
    """
    bench = bench(PROGRAM)

    def tell(up, classes=("C",), epoch=1, session=0, seq=None):
        seq = int(up) if seq is None else seq
        bench.node.peer_presence(A, up, epoch=epoch, classes=classes, session=session, seq=seq)
        return [s for s in bench.poll() if isinstance(s, steps.PeerUp | steps.PeerDown)]

    tell.bench = bench
    return tell


def test_a_session_that_is_over_stays_over(told):
    assert told(True, session=1) == [steps.PeerUp(A, ("C",))]
    assert told(False, session=1) == [steps.PeerDown(A, "presence")]
    assert told(True, session=1) == []  # a retained one that a broker of a cluster tells late
    assert told.bench.node.counters["peers.stale"] == 1
    assert told(True, session=2) == [steps.PeerUp(A, ("C",))]
    assert told(False, session=1) == []  # the will of the connection before
    assert told.bench.node.peers_up("C") == (A,)


def test_a_peer_comes_up_in_each_of_its_classes(told):
    assert told(True, ("C",)) == [steps.PeerUp(A, ("C",))]
    assert told(True, ("D",)) == [steps.PeerUp(A, ("C", "D"))]
    assert told(True, ("D",)) == []
    node = told.bench.node
    node.presence_cleared(A, "C")
    told.bench.poll()
    assert (node.peers_up("C"), node.peers_up("D")) == ((), (A,))
    node.presence_cleared(A)
    told.bench.poll()
    assert told.bench.of(steps.PeerDown) == [steps.PeerDown(A, "removed")]


def test_what_comes_behind_a_goodbye_is_taken_and_brings_nobody_up(told):
    """A goodbye may overtake the last envelopes of a peer: they count, and it is gone all the same."""
    told(True, session=1)
    told(False, session=1)
    b = told.bench
    assert not b.node.inspect().peers[str(A)]["up"]
    b.node.deliver_inbound(envelope.encode(Envelope([fill(0xA1, 3.0)], epoch=1, seq=1)), A)
    b.settle()
    assert len(b.events("y")) == 1
    assert len(b.of(steps.PeerUp)) == 1
    assert b.node.peers_up("C") == ()
    assert b.node.inspect().peers[str(A)]["up"] is False
    assert told(True, session=2) == [steps.PeerUp(A, ("C",))]


S = 1_000_000_000


def test_a_peer_beyond_the_ceiling_is_told_with_what_to_raise(bench):
    """Once, then seldom: a broker tells all presences again at each connection."""
    b = bench(PROGRAM, config=NodeConfig(max_peers=2))
    peers = [PeerId.from_name(f"p{number}") for number in range(100)]

    def storm():
        for peer in peers:
            b.node.peer_presence(peer, True, epoch=1, classes=("C",))
        b.poll()

    storm()
    (told,) = b.of(steps.PeerRefused)
    assert (told.peer, told.refused) == (peers[2], 1)
    assert "2 peers are known" in told.reason and "max_peers" in told.hint
    storm()
    assert b.node.counters["peers.refused"] == 2 * 98
    assert len(b.of(steps.PeerRefused)) == 1
    for wait_s, count in ((10, 2), (10, 2), (10, 3)):  # after 10 s, then 20 s
        b.now_ns += wait_s * S
        storm()
        assert len(b.of(steps.PeerRefused)) == count
    assert [s.refused for s in b.of(steps.PeerRefused)] == [1, 2 * 98, 2 * 98]
    assert not b.of(steps.IngressDropped)
    assert len(b.node.peers_up("C")) == len(b.node.inspect().peers) == 2


def test_strangers_do_not_take_the_places_of_those_that_speak(bench):
    b = bench(PROGRAM, config=NodeConfig(max_peers=3))
    b.node.peer_presence(A, True, epoch=1, classes=("C",))
    b.poll()
    b.node.deliver_inbound(envelope.encode(Envelope([fill(0xA1, 3.0)], epoch=1, seq=1)), A)
    b.settle()
    b.node.peer_presence(A, False, epoch=1)
    for number in range(100):
        b.node.peer_presence(numbered(number), True, epoch=1, classes=("C",))
    b.poll()
    assert len(b.node.peers_up("C")) == 2
    b.node.peer_presence(A, True, epoch=2, classes=("C",))
    b.poll()
    assert A in b.node.peers_up("C")


def test_a_newcomer_gets_the_place_of_a_dead_peer_and_nobody_s_address(bench):
    """Those that were heard of first are the ones that a full address book would forget first."""
    b = bench(PROGRAM, config=NodeConfig(max_peers=4))

    def says(name, up, epoch=1):
        peer, meta = PeerId.from_name(name), {"limits": [1 << 20, 4, 1 << 18, 64]}
        address = Address.empty().with_peer(peer).to_bytes()
        b.node.peer_presence(peer, up, (address,), meta, epoch=epoch, classes=("C",))
        b.poll()

    for name in ("old", "dead0", "dead1", "dead2"):
        says(name, True)
    for name in ("dead0", "dead1", "dead2"):
        says(name, False)
    for name in ("late0", "late1", "late2"):  # of the dead nothing ever came
        says(name, True)
        peers = b.node.inspect().peers
        up = [PeerId.from_name(each) for each in ("old", name)]
        assert all(peers[str(peer)]["addresses"] and peers[str(peer)]["limits"] for peer in up)
    assert len(b.node.inspect().peers) == 4, "what was known of those that lost their place goes with it"


def test_a_server_s_budget_holds_a_region(bench):
    """The ceiling is fixed, what is allocated is what is there."""
    b = bench(PROGRAM, config=NodeConfig.host())
    assert b.node.config.max_peers == 100_000
    for number in range(5_000):
        b.node.peer_presence(numbered(number), True, epoch=1, classes=("C",))
        if number % 1_000 == 999:
            b.poll()
    assert len(b.node.inspect().peers) == len(b.node.peers_up("C")) == 5_000
    assert not b.of(steps.PeerRefused)


def restarts(told):
    return [(s.peer, s.times, "two machines run" in s.reason[:16]) for s in told.bench.of(steps.PeerRestarts)]


def test_two_machines_of_one_name_are_told_by_name(told):
    """Each takes the other's connection, and comes back with the epoch that it had."""
    told(True, epoch=1, session=1)
    told(False, epoch=1, session=1)
    told(True, epoch=2, session=1)
    told(True, epoch=1, session=2)
    assert restarts(told) == []
    told(True, epoch=2, session=2)
    assert restarts(told) == [(A, 3, True)]
    for number in range(100):
        told(True, epoch=1 + number % 2, session=3 + number)
    assert len(restarts(told)) == 1, "seldom"
    assert told.bench.node.counters["peers.restarted"] == 103


def test_a_peer_that_crashes_again_and_again_is_told_by_name(told):
    for epoch in range(1, 6):
        told(True, epoch=epoch)
    assert restarts(told) == []
    told(True, epoch=6)
    assert restarts(told) == [(A, 5, False)]


def test_a_peer_that_is_restarted_now_and_then_is_not(told):
    for epoch in range(1, 30):
        told(True, epoch=epoch)
        told.bench.now_ns += 601 * S
    assert restarts(told) == []


def test_a_device_that_says_goodbye_before_it_sleeps_is_not(told):
    """A goodbye has a number; what the broker says of one that crashed has none."""
    for epoch in range(1, 30):
        told(True, epoch=epoch, session=1, seq=1)
        told(False, epoch=epoch, session=1, seq=2)
    assert restarts(told) == []
    for epoch in range(30, 36):
        told(True, epoch=epoch, session=1, seq=1)
        told(False, epoch=epoch, session=1)
    assert restarts(told) == [(A, 5, False)]


@pytest.mark.parametrize("seed", range(60))
def test_nobody_goes_twice_without_having_come(bench, seed):
    """Goodbyes and wills in every class, removals, failures and late envelopes, in any order."""
    dice, bench = random.Random(seed), bench(PROGRAM)
    node, down = bench.node, False
    for number in range(1, 60):
        name = (dice.choice("CD"),)
        event = dice.choice(("up", "down", "cleared", "removed", "failed", "failed", "failed", "envelope"))
        if event in ("up", "down"):
            when = {"epoch": dice.choice((1, 2)), "session": dice.randrange(3), "seq": dice.randrange(3)}
            node.peer_presence(A, event == "up", classes=name, **when)
        elif event == "envelope":
            node.deliver_inbound(envelope.encode(Envelope(epoch=1, seq=number)), A)
        elif event == "failed":
            for _ in range(dice.choice((1, 5))):
                node.peer_failed(A)
        else:
            node.presence_cleared(A, name[0] if event == "cleared" else None)
        for step in bench.poll():
            if isinstance(step, steps.PeerDown):
                assert not down, f"event {number}: {event}"
                down = True
            elif isinstance(step, steps.PeerUp):
                down = False
