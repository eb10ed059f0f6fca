"""A peer of a merely heard class that is up and loses its place is lost as any other peer is."""

from __future__ import annotations

from arrays import f32
from asking import SLOWLY
from kinds_of_steps import of
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.ir.address import Address
from tests.aids.peers import numbered

PLACES = 4


def asks(peer_class):
    """The server hears two classes, and its program asks for one of them."""
    return ("module=Demo,", f'module=Demo, hears.Server="Client,Other", asks.Server="{peer_class}",')


def come(fed, peer_class, first, count, session=1):
    peers = [numbered(number) for number in range(first, first + count)]
    for peer in peers:
        address = (Address.empty().with_peer(peer).to_bytes(),)
        fed.server.peer_presence(peer, True, address, epoch=7, classes=(peer_class,), session=session)
    fed.sim.run(for_ns=10 * MS)
    return peers


def displaced(fed):
    found = of(steps.PeerDown, (seen.step for seen in fed.sim.seen))
    return [step.peer for step in found if step.reason == "displaced"]


def test_an_asked_class_is_found_however_many_others_came_first(askers):
    fed = askers(clients=0, config=NodeConfig(max_peers=PLACES), changes=[asks("Client")])
    others = come(fed, "Other", 1, 500)
    assert fed.server.counters["peers.refused"] == 500 - PLACES and not displaced(fed)
    (client,) = come(fed, "Client", 5000, 1)
    assert fed.server.peers_up("Client") == (client,)
    assert displaced(fed) == [others[PLACES - 1]] and fed.server.counters["peers.displaced"] == 1
    come(fed, "Other", 1, 500, session=2)
    assert fed.server.peers_up("Client") == (client,) and len(displaced(fed)) == 1
    told = of(steps.PeerRefused, (seen.step for seen in fed.sim.seen))
    assert len(told) <= 2 and "max_peers" in told[0].hint


def test_who_loses_its_place_is_waited_for_no_longer(askers):
    slowly = ("  h: Trigger = wire.SendResp(y,", SLOWLY)
    fed = askers(config=NodeConfig(max_peers=PLACES), changes=[asks("Other"), slowly])
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S // 2)
    assert not fed.closed
    come(fed, "Other", 1, PLACES)
    clients = [client.peer_id for client in fed.clients]
    assert sorted(displaced(fed)) == sorted(clients) and fed.server.peers_up("Client") == ()
    assert sorted(fed.closed[-1].missing) == sorted((peer, "down") for peer in clients)
    fed.sim.run(for_ns=5 * S)
    _, missing = fed.ask()
    assert fed.closed[-1].asked == 0 and missing == []
    assert fed.server.peers_up("Other") == tuple(numbered(n) for n in range(1, PLACES + 1))


def test_a_restart_keeps_the_places_of_the_asked(askers):
    fed = askers(clients=0, config=NodeConfig(max_peers=PLACES), changes=[asks("Client")])
    come(fed, "Other", 1, PLACES)
    (client,) = come(fed, "Client", 5000, 1)
    fed.server = fed.again(fed.server, "Server")
    assert fed.server.peers_up("Client") == (client,)
    come(fed, "Other", 1, 500, session=2)
    assert fed.server.peers_up("Client") == (client,)
