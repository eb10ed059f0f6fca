"""A node without a connection: what its peers leave unanswered is not held against them."""

from __future__ import annotations

from asking import SLOWLY, Mute
from connections import first_connection
from kinds_of_steps import of
from times import MS, S

from bb_edge.engine import steps


def told_of_peers(fed):
    return of((steps.PeerDown, steps.PeerFailing), (seen.step for seen in fed.sim.seen))


def whys(missing):
    return {why for _, why in missing}


def test_what_does_not_leave_is_not_sent_and_no_fault_of_anybody(askers):
    fed = askers(clients=3)
    fed.sim.connect(fed.server.peer_id, False)
    for _ in range(7):
        took, missing = fed.ask()
        assert took >= 5000 and len(missing) == 3 and whys(missing) == {"not sent"}
    assert told_of_peers(fed) == []
    assert fed.server.counters["requests.not_sent"] == 21
    assert "requests.unanswered" not in fed.server.counters
    assert {s.reason.split(": ")[1] for s in of(steps.OutboundDropped, (s.step for s in fed.sim.seen))} == {
        "this node has no connection"
    }
    fed.sim.connect(fed.server.peer_id, True)
    took, missing = fed.ask()
    assert took < 100 and missing == []


def test_a_connection_that_comes_in_time_carries_what_waits(askers):
    fed = askers(clients=2)
    fed.sim.connect(fed.server.peer_id, False)
    fed.sim.at(fed.sim.now_ns + S, lambda: fed.sim.connect(fed.server.peer_id, True))
    took, missing = fed.ask()
    assert 1000 <= took < 1100 and missing == []


def test_a_connection_that_is_lost_on_the_way_is_the_reason(askers):
    """The requests have left; the answers, after 2 s, find nobody."""
    fed = askers(clients=3, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)])
    server = fed.server.peer_id
    for _ in range(6):
        now = fed.sim.now_ns
        fed.sim.at(now + S, lambda: fed.sim.connect(server, False))
        fed.sim.at(now + 4900 * MS, lambda: fed.sim.connect(server, True))
        assert whys(fed.ask()[1]) == {"offline"}
    assert told_of_peers(fed) == []
    assert fed.server.counters["requests.offline"] == 18


def test_a_broker_that_comes_back_is_given_time_to_find_everybody_again(askers):
    fed = askers(clients=2)
    server, client = fed.server.peer_id, fed.clients[0].peer_id
    first_connection(fed.sim, server)
    for peer, up in ((client, False), (server, False), (server, True)):
        fed.sim.connect(peer, up)
    for _ in range(8):
        assert fed.ask()[1] == [(client, "offline")], "nothing of it has come since"
    assert told_of_peers(fed) == []
    assert fed.server.counters["requests.offline"] == 8
    assert "requests.unanswered" not in fed.server.counters
    for _ in range(5):
        assert fed.ask()[1] == [(client, "deadline")]
    assert {step.peer for step in told_of_peers(fed)} == {client}


def test_whose_presence_has_come_since_is_there_and_answers_late(askers):
    fed = askers(clients=2)
    server, client = fed.server.peer_id, fed.clients[0].peer_id
    first_connection(fed.sim, server)
    for up in (False, True):
        fed.sim.connect(server, up)
    fed.sim.run(for_ns=S)
    fed.sim.connect(client, False)
    assert fed.ask()[1] == [(client, "deadline")]
    assert told_of_peers(fed) == []


def test_a_failing_peer_is_not_tried_without_a_connection(askers):
    """It keeps its turn: the first request behind the outage tries it."""
    fed = askers(clients=2)
    fed.clients[0].component("codec").mood = "fails"
    for _ in range(5):
        fed.ask()
    (failing,) = of(steps.PeerFailing, told_of_peers(fed))
    assert failing.failing
    fed.sim.connect(fed.server.peer_id, False)
    fed.clients[0].component("codec").mood = "well"
    for _ in range(4):
        fed.ask()
    fed.sim.connect(fed.server.peer_id, True)
    fed.ask()
    assert dict(fed.ask()[1]) == {}
    assert [step.failing for step in of(steps.PeerFailing, told_of_peers(fed))] == [True, False]


def test_who_has_answered_behind_a_reconnection_is_blamed_again(askers):
    """The time that a broker's return is given is over for a peer once an answer of it counts."""
    fed = askers(clients=2)
    server = fed.server.peer_id
    quick, quiet = fed.clients
    first_connection(fed.sim, server)
    for up in (False, True):
        fed.sim.connect(server, up)
    fed.sim.connect(quiet.peer_id, False)
    quiet_too = fed.ask()[1]
    assert [peer for peer, _ in quiet_too] == [quiet.peer_id]
    Mute(quick)
    began = fed.sim.now_ns
    while not of(steps.PeerFailing, told_of_peers(fed)):
        fed.ask()
        assert fed.sim.now_ns < began + 40 * S
    assert {s.peer for s in of(steps.PeerFailing, told_of_peers(fed))} == {quick.peer_id}
