"""A node that has no reply says so, and whoever asked it goes on at once."""

from __future__ import annotations

import pytest
from arrays import f32
from asking import PROGRAM, SLOWLY
from durable_program import program, records, rows
from kinds_of_steps import of
from peers import HERE
from times import S

from bb_edge.engine import steps
from bb_edge.installer import install
from bb_edge.ir.address import site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.wire import envelope
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope
from bb_edge.wire.envelope_records import Failure, FailureCode
from bb_edge.wire.outbox import Cause


def test_a_peer_whose_op_fails_is_not_waited_for(askers):
    fed = askers()
    bad = fed.clients[0]
    bad.component("codec").mood = "fails"
    took, missing = fed.ask()
    assert took < 100 and missing == [(bad.peer_id, "failed")]
    (step,) = fed.failed
    assert (step.peer, step.code, step.port) == (bad.peer_id, "OP_FAILED", "ask")
    assert "slot 'codec'" in step.detail and "out of memory" in step.detail
    assert len(step.detail.encode()) == 200
    assert fed.server.counters["requests.failed"] == fed.server.counters["requests.answers"] == 1
    assert fed.clients[0].counters["requests.failures_sent"] == 1


def test_a_reply_that_starves_is_a_failure(askers):
    never = """  t: Trigger = syscall.OnTrigger(y)
  z: Tensor = syscall.Hold.Flush<slot="never">(t)
"""
    changes = [("  h: Trigger = wire.SendResp(y,", never + "  h: Trigger = wire.SendResp(z,")]
    fed = askers(clients=1, changes=changes)
    took, missing = fed.ask()
    assert took < 100 and missing == [(fed.clients[0].peer_id, "failed")]
    assert fed.failed[0].code == "STARVED" and "SendResp" in fed.failed[0].detail


def test_a_reply_that_is_too_large_is_a_failure(askers):
    fed = askers()
    fed.clients[1].component("codec").mood = "grows"
    took, missing = fed.ask()
    assert took < 100 and missing == [(fed.clients[1].peer_id, "too large")]
    assert [s.code for s in fed.failed] == ["TOO_LARGE"]
    assert fed.failed[0].detail == (
        "a payload of 800010 bytes, the peer takes 65536: raise limits.caps.fill_bytes on both sides"
    )


def test_a_reply_that_the_asker_does_not_take_is_a_failure(askers):
    before = "wire.SendResp(y, sender, req) {"
    fed = askers(changes=[(before, f'{before}shapes="[2]", ')])
    fed.clients[1].component("codec").mood = "grows"
    took, missing = fed.ask()
    assert took < 100 and missing == [(fed.clients[1].peer_id, "failed")]
    (step,) = fed.failed
    assert step.code == "OP_FAILED" and "is [200000], its receiver takes [2]; not sent" in step.detail


def test_an_answer_that_arrives_too_large_settles_its_peer(askers):
    """Its sender does not heed what the server's presence says."""
    fed = askers()
    careless = fed.clients[1]
    careless.component("codec").mood = "grows"
    careless.peer_presence(
        fed.server.peer_id, True, (), {"features": ["failures"]}, epoch=fed.server.epoch, classes=("Server",)
    )
    fed.server.invoke("Server", {"x": f32(1, 2)})
    sent = []
    original = careless.poll

    def spy(now_ns):
        found = original(now_ns)
        sent.extend(of(steps.SendEnvelope, found))
        return found

    careless.poll = spy
    fed.sim.run(for_ns=S // 10)
    assert len(sent[0].payload) > 800_000
    # The door refuses what is larger than any envelope may be; in the limits of one, a fill may be too large.
    message = envelope.decode(sent[0].payload, HOST_CAPS)
    message.fills[0].payload = message.fills[0].payload[:100_000]
    fed.server.deliver_inbound(envelope.encode(message), careless.peer_id)
    fed.sim.run(for_ns=S // 10)
    assert fed.closed[-1].missing == ((careless.peer_id, "too large"),)


def test_a_contribution_that_is_refused_is_no_answer(askers):
    """The op that takes it fails: its peer is missing, and others are waited for."""
    fed = askers(clients=3, enough=2)
    fed.server.component("codec").mood = "refuses once"
    took, missing = fed.ask()
    assert took < 100
    assert len(fed.sim.events("answer")) == 2
    assert [reason for _, reason in missing] == ["refused"]
    assert (fed.closed[-1].answered, fed.closed[-1].reason) == (2, "enough")
    assert fed.server.counters["requests.refused"] == 1
    assert fed.server.counters["requests.answers"] == 2


def test_no_more_answers_are_worked_on_than_are_enough(askers):
    fed = askers(clients=4, enough=2)
    _, missing = fed.ask()
    assert len(fed.sim.events("answer")) == 2
    assert [reason for _, reason in missing] == ["enough", "enough"]
    fed.sim.run(for_ns=S)
    assert len(fed.sim.events("answer")) == 2
    assert fed.server.counters["ingress.bytes"] == 0


def test_who_does_not_say_that_it_reads_failures_is_told_nothing(askers):
    fed = askers(clients=1)
    (client,) = fed.clients
    client.component("codec").mood = "fails"
    server = fed.server
    client.peer_presence(
        server.peer_id,
        True,
        (),
        {"limits": server.presence_meta["limits"]},
        epoch=server.epoch,
        classes=("Server",),
    )
    took, missing = fed.ask()
    assert 5000 <= took < 5100 and missing == [(client.peer_id, "deadline")]
    assert "requests.failures_sent" not in client.counters


def asked(node, peer, now_ns, meta, **more):
    """What a node answers to a request of a peer of that presence, that names a site which is not there."""
    node.peer_presence(peer, True, (b"\xe2\x01" + bytes(8),), meta, epoch=7, classes=("Server",))
    fills = [envelope.Fill(b"\xe2\x01" + bytes(7) + b"\x77", b"", True, 0)]
    made = Envelope(fills, REQUEST, 99, 5 * S, epoch=7, seq=more.pop("seq", 1), **more)
    node.poll(now_ns)
    node.deliver_inbound(envelope.encode(made), peer)
    found = [*node.poll(now_ns), *node.poll(now_ns + 1)]
    return [envelope.decode(s.payload, HOST_CAPS) for s in of(steps.SendEnvelope, found)]


def test_a_request_for_what_is_not_there_is_refused(askers):
    fed = askers(clients=1)
    (answer,) = asked(fed.clients[0], PeerId.from_name("other"), fed.sim.now_ns, {"features": ["failures"]})
    assert (answer.kind, answer.wire_req_id, answer.fills) == (RESPONSE, 99, [])
    assert answer.failure is not None and answer.failure.code == FailureCode.REFUSED
    assert answer.acks


def test_features_that_are_no_list_say_nothing(askers):
    fed = askers(clients=1)
    for number, odd in enumerate(("failures", {"failures": 1}, 5, None, [], [["failures"]])):
        peer = PeerId.from_name(f"odd{number}")
        assert asked(fed.clients[0], peer, fed.sim.now_ns, {"features": odd}) == []


def test_the_first_reply_or_failure_is_final(askers):
    """A second one, of whatever kind, is acknowledged and counts for nothing."""
    fed = askers()
    fed.clients[0].component("codec").mood = "fails"
    fed.clients[1].deliver_inbound = lambda *_arguments, **_more: None
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    (request,) = fed.server.inspect().requests
    (number,) = [n for n, peer in request["numbers"].items() if peer == str(fed.clients[0].peer_id)]
    late = [Envelope((), RESPONSE, number, failure=Failure(1, "again"), epoch=5, seq=n) for n in (1, 2)]
    late.append(Envelope([envelope.Fill(b"", b"x")], RESPONSE, number, epoch=5, seq=3))
    for made in late:
        fed.server.deliver_inbound(envelope.encode(made), fed.clients[0].peer_id)
    fed.sim.run(for_ns=S)
    assert fed.server.counters["ingress.late_answers"] == 3
    assert len(fed.failed) == 1


def test_only_one_reply_of_an_execution_leaves(askers):
    reply = PROGRAM.rstrip().splitlines()[-1]
    again = reply.replace("h: Trigger", "k: Trigger").replace("wire_id=2", "wire_id=3")
    fed = askers(clients=1, changes=[(reply, f"{reply}\n{again}")])
    _, missing = fed.ask()
    fed.sim.run(for_ns=S)
    assert missing == []
    assert fed.clients[0].counters["requests.replied_twice"] == 1
    assert "ingress.late_answers" not in fed.server.counters


@pytest.mark.parametrize(
    ("code", "reason"), [(1, "failed"), (2, "failed"), (3, "refused"), (4, "too large"), (9, "failed")]
)
def test_each_failure_has_its_reason(askers, code, reason):
    fed = askers(clients=1)
    fed.clients[0].deliver_inbound = lambda *_arguments, **_more: None
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S // 10)
    (request,) = fed.server.inspect().requests
    (number,) = request["numbers"]
    made = Envelope((), RESPONSE, number, failure=Failure(code, "why"), epoch=5, seq=1)
    fed.server.deliver_inbound(envelope.encode(made), fed.clients[0].peer_id)
    fed.sim.run(for_ns=S // 10)
    assert fed.closed[-1].missing == ((fed.clients[0].peer_id, reason),)
    assert MissingReason[reason.upper().replace(" ", "_")].text == reason


def test_the_failure_of_a_durable_request_is_durable_and_sent_once(compile_text):
    """What ran before a crash runs again after it, and finds the failure that it has sent."""
    data = compile_text(program(900 * S))
    asker = PeerId.from_name("asker")

    def made(now_ns, **more):
        node = install(
            PeerId.from_name("node"), (HERE,), data, ["Main"], seed=3, durable=True, now_ns=now_ns, **more
        )
        node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
        return node

    node = made(0)
    node.poll(1)
    kept = node.snapshot(2)
    wrong = envelope.Fill(site_suffix(0xA1), b"", True, 0)
    node.deliver_inbound(envelope.encode(Envelope([wrong], REQUEST, 77, epoch=9, seq=1, base=1)), asker)
    (journaled,) = of(steps.Journal, node.poll(3))
    node.persisted(journaled.token)
    found = [*node.poll(4), *node.poll(5)]
    (record,) = records(found)
    message = envelope.decode(record.encoded, HOST_CAPS)
    assert (message.kind, message.wire_req_id, message.fills) == (RESPONSE, 77, [])
    assert message.failure is not None and message.failure.code == FailureCode.REFUSED
    assert "a trigger where 0x101 is expected" in message.failure.detail
    assert (record.wire_id, record.cause) == (2, Cause(asker, 9, 1))

    again = made(100, snapshot=kept)
    again.adopt_outbox(rows(found), 100, 100)
    again.replay([journaled.record])
    found = [s for now in (101, 102, 103) for s in again.poll(now)]
    assert not of(steps.PersistOutbox, found)
    (out,) = of(steps.SendEnvelope, found)
    assert out.payload.startswith(record.encoded)
    assert again.counters["outbound.reused"] == 1


def test_what_an_execution_owes_is_in_a_snapshot(askers):
    fed = askers(clients=1, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)])
    (client,) = fed.clients
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    (execution,) = client.inspect().executions
    assert execution["owes"] and not execution["replied"] and execution["fault"] is None
    again = fed.again(client, "Client")
    fed.sim.run(until=lambda: bool(fed.closed))
    fed.sim.run(for_ns=S)
    assert fed.closed[-1].missing == ()
    assert "requests.failures_sent" not in again.counters

    again.component("codec").mood = "fails"
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    third = fed.again(again, "Client")
    fed.sim.run(until=lambda: len(fed.closed) > 1)
    assert fed.closed[-1].missing == ((third.peer_id, "failed"),)
    assert [s.code for s in fed.failed] == ["OP_FAILED"]
