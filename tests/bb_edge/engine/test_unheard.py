"""Presences of peers that are not there: once more of them fail than answer, peers are greeted first."""

from __future__ import annotations

import pytest
from asking import SLOWLY
from kinds_of_steps import of
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net import features
from bb_edge.ir.address import Address
from tests.aids.peers import numbered

SAMPLE = ("CurrentView()", "Sample<n=2>()")


def forge(fed, count, first=1, up=True):
    """Presences of clients that are nowhere."""
    peers = [numbered(number) for number in range(first, first + count)]
    for peer in peers:
        address = (Address.empty().with_peer(peer).to_bytes(),)
        fed.server.peer_presence(peer, up, address, epoch=7, classes=("Client",), session=1)
    fed.sim.run(for_ns=10 * MS)
    return peers


def told(fed):
    return [(s.peers, s.greeted) for s in of(steps.PeersUnheard, (seen.step for seen in fed.sim.seen))]


def test_fakes_cost_one_deadline_where_all_are_asked(askers):
    fed = askers(clients=3)
    fakes = forge(fed, 20)
    took, missing = fed.ask()
    assert took >= 5000 and {peer for peer, _ in missing} == set(fakes)
    (step,) = of(steps.PeersUnheard, (seen.step for seen in fed.sim.seen))
    assert (step.peers, step.greeted) == (17, True), "an answer makes up for one of them"
    assert "access rules" in step.hint
    for _ in range(3):
        took, missing = fed.ask()
        assert took < 100 and missing == []
    assert len(told(fed)) == 1


def test_a_sample_finds_the_real_ones_among_fakes(askers):
    fed = askers(clients=3, changes=[SAMPLE])
    forge(fed, 300)
    rounds = 0
    while not told(fed):
        fed.ask()
        rounds += 1
    assert rounds <= 6, "nine of them, two a round, and an answer or so in between"
    fed.sim.run(for_ns=100 * MS)
    names = {client.peer_id for client in fed.clients}
    asked = set()
    for _ in range(12):
        took, missing = fed.ask()
        assert took < 100 and missing == [] and fed.closed[-1].asked == 2
    for client in fed.clients:
        asked.update({client.peer_id} if client.counters["wire.received"] else ())
    assert asked == names
    assert fed.server.counters["peers.greeted"] >= 300


def test_a_client_that_comes_later_is_greeted_within_a_second(askers):
    fed = askers(clients=1, changes=[SAMPLE])
    (client,) = fed.clients
    fed.sim.remove(client.peer_id)
    forge(fed, 30)
    while not told(fed):
        fed.ask()
    assert fed.ask()[0] < 100 and fed.closed[-1].asked == 0, "nobody is left to ask"
    client = fed.anew(client, "Client")
    fed.sim.run(for_ns=2 * S)
    assert fed.ask() == (pytest.approx(30, abs=70), []) and fed.closed[-1].asked == 1


def test_greeted_fakes_go_down_and_make_room(askers):
    fed = askers(clients=2, changes=[SAMPLE], config=NodeConfig(max_peers=40))
    forge(fed, 60)  # two clients are there already: 22 find no place
    assert fed.server.counters["peers.refused"] == 22
    while not told(fed):
        fed.ask()
    fed.sim.run(for_ns=12 * S)
    assert len(fed.server.peers_up("Client")) == 40, "the first greeting may be late"
    fed.sim.run(for_ns=20 * S)
    assert len(fed.server.peers_up("Client")) == 2
    (real,) = forge(fed, 1, first=1000)
    assert real in fed.server.peers_up("Client"), "a newcomer has the place of one that is not there"


def test_presences_are_believed_again_when_the_fakes_are_gone(askers):
    fed = askers(clients=3)
    fakes = forge(fed, 20)
    fed.ask()
    for fake in fakes:
        fed.server.presence_cleared(fake, "Client")
    fed.sim.run(for_ns=2 * S)
    assert told(fed) == [(17, True), (0, False)]
    assert fed.server.next_deadline_ns() is None, "no timer is left"
    (newcomer,) = forge(fed, 1, first=500)
    assert fed.ask()[1] == [(newcomer, "deadline")], "it is asked as any other"


def test_a_restarted_server_goes_on_greeting(askers):
    fed = askers(clients=3)
    forge(fed, 20)
    fed.ask()
    fed.server = fed.again(fed.server, "Server")
    took, missing = fed.ask()
    assert took < 100 and missing == []


def test_slow_clients_are_heard_by_their_acknowledgements(askers, monkeypatch):
    """Twelve clients that take longer than the deadline: they are there, and are asked on.

    Their server reads no failures, so that nothing but acknowledgements comes of them.
    """
    monkeypatch.setattr(features, "OWN", ())
    slow = SLOWLY.replace("2000000000", "9000000000")
    fed = askers(clients=12, changes=[("  h: Trigger = wire.SendResp(y,", slow)])
    for _ in range(2):
        assert fed.ask()[0] >= 5000
    assert told(fed) == [] and fed.closed[-1].asked == 12


def test_a_few_dead_devices_change_nothing(askers):
    fed = askers(clients=3)
    dead = forge(fed, 8)
    for _ in range(4):
        assert {peer for peer, _ in fed.ask()[1]} == set(dead)
    assert told(fed) == []


def test_a_greeting_is_acknowledged_and_counts_as_nothing(askers):
    fed = askers(clients=1, changes=[SAMPLE])
    fed.sim.remove(fed.clients[0].peer_id)
    forge(fed, 40)
    while not told(fed):
        fed.ask()
    client = fed.anew(fed.clients[0], "Client")
    fed.sim.run(for_ns=2 * S)
    assert client.counters["wire.received"] == client.counters["wire.acks_alone"] == 1
    assert not client.counters.get("ingress.late_answers") and not client.counters["ingress.dropped"]


def test_without_a_connection_nobody_is_called_silent(askers):
    fed = askers(clients=3)
    forge(fed, 20)
    fed.ask()
    assert told(fed) == [(17, True)]
    fed.sim.connect(fed.server.peer_id, False)
    fed.sim.run(for_ns=300 * S)
    assert not of(steps.PeerDown, (seen.step for seen in fed.sim.seen))
