"""Peers that are up and leave requests without an answer: they hold nobody up, and are asked again in time."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import pytest
from arrays import f32
from asking import SLOWLY, Mute
from kinds_of_steps import of
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.wire import envelope
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.envelope import RESPONSE, Envelope, Fill


def told(fed):
    return [(s.peer, s.failing) for s in of(steps.PeerFailing, (seen.step for seen in fed.sim.seen))]


def test_after_five_rounds_nobody_waits_for_a_mute_peer(askers):
    fed = askers(clients=3)
    mute = fed.clients[1]
    client = Mute(mute)
    peer = mute.peer_id
    for _ in range(5):
        took, missing = fed.ask()
        assert took >= 5000 and missing == [(peer, "deadline")]
    assert told(fed) == [(peer, True)]
    assert fed.server.counters["peers.failing"] == 1
    assert not of(steps.PeerDown, (seen.step for seen in fed.sim.seen)), "it is heard, so it is up"
    for _ in range(50):
        took, missing = fed.ask()
        assert took < 100
        assert missing in ([], [(peer, "failing")])
    asked = sum(1 for step in fed.closed[5:] if step.asked == 3)
    assert 1 <= asked < 50, "it is tried, and not each time"

    client.mute = False
    fed.sim.run(for_ns=70 * S)
    fed.ask()
    fed.sim.run(for_ns=S)
    for _ in range(3):
        took, missing = fed.ask()
        assert took < 100 and missing == [], "what it answers to a trial, though late, is heard"
    assert told(fed) == [(peer, True), (peer, False)]
    counters = fed.server.counters
    assert counters["ingress.trial_answers"] >= 1 and "ingress.late_answers" not in counters


def test_late_answers_that_are_refused_do_not_end_failing(askers):
    """What the peer answers never counts, and comes when the others' answers are there already."""
    fed = askers(clients=3)
    bad = fed.clients[0]
    Mute(bad, late=True)
    fed.server.component("codec").refused = bad.peer_id
    for _ in range(40):
        fed.ask()
        fed.sim.run(for_ns=2 * S)
    assert told(fed) == [(bad.peer_id, True)]
    assert fed.server.inspect().peers[str(bad.peer_id)]["failing"]
    assert {reason for step in fed.closed for peer, reason in step.missing} >= {"failing", "refused"}
    assert sum(1 for step in fed.closed[5:] if step.asked == 3) < 30, "its back-off grows all the same"


@pytest.mark.parametrize(
    ("answers", "fails"), [("....!.", True), (".!" * 4 + ".", True), ("!!!!!." * 5, False)]
)
def test_who_leaves_five_of_sixteen_requests_is_failing(askers, answers, fails):
    fed = askers(clients=2)
    client = Mute(fed.clients[0])
    for answer in answers:
        assert told(fed) == []
        client.mute = answer == "."
        fed.ask()
    assert told(fed) == ([(fed.clients[0].peer_id, True)] if fails else [])


def test_failed_answers_make_a_peer_failing_as_well(askers):
    fed = askers(clients=2)
    bad = fed.clients[0]
    bad.component("codec").mood = "fails"
    for _ in range(5):
        assert fed.ask()[1] == [(bad.peer_id, "failed")]
    assert told(fed) == [(bad.peer_id, True)]
    assert fed.ask()[1] in ([], [(bad.peer_id, "failing")])


def test_a_failing_peer_that_starts_anew_is_tried_at_once(askers):
    fed = askers(clients=2)
    bad = fed.clients[0]
    bad.component("codec").mood = "fails"
    for _ in range(20):
        fed.ask()
        fed.sim.run(for_ns=20 * MS)
    assert fed.closed[-1].asked == 1, "its back-off is long by now"
    fed.sim.remove(bad.peer_id)
    again = fed.anew(bad, "Client")
    fed.sim.run(for_ns=S)
    fed.ask()
    fed.sim.run(for_ns=S)
    assert fed.ask()[1] == [], "what it answered came late, so that it is waited for"
    assert told(fed)[-1] == (again.peer_id, False)


def test_a_failing_peer_is_up_for_all_but_requests(askers):
    fed = askers(clients=2)
    bad = fed.clients[0]
    bad.component("codec").mood = "fails"
    for _ in range(6):
        fed.ask()
    assert fed.server.peers_up("Client") == tuple(sorted(node.peer_id for node in fed.clients))
    assert fed.server.inspect().peers[str(bad.peer_id)]["failing"]


def test_a_peer_that_is_not_needed_is_not_blamed(askers):
    fed = askers(clients=3, enough=2)
    slow = Mute(fed.clients[0])
    for _ in range(8):
        took, missing = fed.ask()
        assert took < 100 and [reason for _, reason in missing] == ["enough"]
    assert told(fed) == [] and slow.mute


def test_who_is_failing_is_in_a_snapshot(askers):
    fed = askers(clients=2, config=NodeConfig(failing_threshold=2))
    bad = fed.clients[0]
    bad.component("codec").mood = "fails"
    for _ in range(2):
        fed.ask()
    fed.server = fed.again(fed.server, "Server")
    fed.sim.run(for_ns=1)
    assert fed.ask()[1] in ([], [(bad.peer_id, "failing")])


def test_a_peer_that_restarts_is_asked_once_more(askers):
    """It had acknowledged the request, and forgot it with everything else."""
    fed = askers(clients=2, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)])
    dies = fed.clients[0]
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    (request,) = fed.server.inspect().requests
    fed.anew(dies, "Client")
    fed.sim.run(until=lambda: bool(fed.closed))
    assert fed.closed[-1].missing == () and fed.closed[-1].answered == 2
    assert fed.server.counters["requests.repeated"] == 1
    assert len(request["numbers"]) == 2


def test_a_peer_that_says_again_that_it_is_up_is_not_asked_once_more(askers):
    fed = askers(clients=2, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)])
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    fed.sim.add(fed.clients[0])
    fed.sim.run(until=lambda: bool(fed.closed))
    assert "requests.repeated" not in fed.server.counters


def test_a_peer_that_takes_less_than_is_asked_is_named_and_left_out(askers):
    """Its presence says so, so it never gets the request: it is missing at once, and by its own fault."""
    fed = askers(clients=3)
    small = fed.clients[1].peer_id
    meta = {LIMITS_META: PeerLimits(8, 1, 8, 8).meta()}
    fed.server.peer_presence(small, True, (), meta, epoch=99, classes=("Client",))
    for _ in range(5):
        took, missing = fed.ask()
        assert took < 100 and missing == [(small, "takes less")]
    assert told(fed) == [(small, True)]
    assert fed.server.counters["outbound.too_large"] == 5
    (text,) = {s.reason for s in of(steps.OutboundDropped, (s.step for s in fed.sim.seen))}
    assert "the peer takes 8" in text


def test_a_peer_that_answers_more_often_than_it_is_asked_is_named(askers):
    fed = askers(clients=2)
    peer = fed.clients[0].peer_id
    fed.ask()

    def drops():
        return of(steps.IngressDropped, (seen.step for seen in fed.sim.seen))

    for number in range(200):
        answer = Envelope([Fill(b"x", b"", True)], RESPONSE, wire_req_id=777, epoch=5, seq=number + 1)
        fed.server.deliver_inbound(envelope.encode(answer), peer)
        fed.sim.run(for_ns=MS)
    assert fed.server.counters["ingress.late_answers"] == 200
    assert [(s.peer, s.reason) for s in drops()] == [(peer, "65 answers that nobody waits for")] * 3


def test_late_answers_to_what_was_asked_are_not_held_against_anybody(askers):
    fed = askers(clients=2, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)], enough=0)
    for _ in range(100):
        fed.ask()
        fed.sim.run(for_ns=3 * S)
    assert not of(steps.IngressDropped, (seen.step for seen in fed.sim.seen))
