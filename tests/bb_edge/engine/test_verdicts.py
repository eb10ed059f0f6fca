"""Who gives an answer that does not count hears it, and why."""

from __future__ import annotations

from arrays import f32
from asking import SLOWLY
from kinds_of_steps import of
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.net.verdicts import ANSWER_REFUSED_OP
from bb_edge.ir.address import Address, site_suffix
from bb_edge.wire import cbor, envelope
from bb_edge.wire.codecs import BYTES_HASH
from bb_edge.wire.envelope import RESPONSE, Envelope, Fill


def told(fed):
    """Who was told, by whom, why, to which request, and for how many refusals."""
    return [(s.peer, step) for s in fed.sim.seen if isinstance(step := s.step, steps.AnswerRefused)]


def test_a_client_hears_that_its_answer_is_refused_and_why(askers):
    fed = askers(clients=1)
    client = fed.clients[0]
    fed.server.component("codec").mood = "refuses once"
    assert fed.ask()[1] == [(client.peer_id, "refused")]
    fed.sim.run(for_ns=100 * MS)
    ((who, step),) = told(fed)
    assert (who, step.peer, step.port, step.times) == (client.peer_id, fed.server.peer_id, "ask", 1)
    assert "Decompress" in step.reason and "not this" in step.reason
    assert client.counters["requests.answers_refused"] == 1
    assert fed.server.counters["requests.refused"] == 1
    fed.ask()
    fed.sim.run(for_ns=2 * S)
    assert len(told(fed)) == 1, "an answer that counts is not news"


def test_it_is_told_once_a_second_with_how_many_there_were(askers):
    """The client answers 2 s after it was asked."""
    fed = askers(clients=1, changes=[("  h: Trigger = wire.SendResp(y,", SLOWLY)])
    fed.server.component("codec").mood = "refuses"
    for _ in range(2):
        fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.ask()
    fed.sim.run(until=lambda: len(fed.closed) == 3)
    fed.sim.run(for_ns=10 * MS)
    assert [step.times for _, step in told(fed)] == [1]
    fed.ask()
    fed.sim.run(for_ns=10 * MS)
    assert [step.times for _, step in told(fed)] == [1, 3]
    assert fed.clients[0].counters["requests.answers_refused"] == 2


def test_an_answer_that_cannot_be_read_is_told_as_well(askers):
    fed = askers(clients=1)
    client = fed.clients[0]
    client.component("codec").mood = "fails"
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.server.poll(fed.sim.now_ns)
    (number,) = fed.server.inspect().requests[0]["numbers"]
    answer = Envelope([Fill(site_suffix(0xBB), b"\xff", False, BYTES_HASH)], RESPONSE, number)
    fed.server.deliver_inbound(envelope.encode(answer), client.peer_id)
    fed.sim.run(for_ns=S)
    ((_, step),) = told(fed)
    assert step.reason.startswith(("TypeMismatch: ", "DecodeFailed: "))


def test_a_peer_that_does_not_read_it_is_not_told(askers):
    fed = askers(clients=1)
    client = fed.clients[0]
    fed.server.peer_presence(
        client.peer_id, True, (), {"features": ["failures"]}, epoch=client.epoch, classes=("Client",), seq=9
    )
    fed.server.component("codec").mood = "refuses once"
    assert fed.ask()[1] == [(client.peer_id, "refused")]
    fed.sim.run(for_ns=S)
    assert told(fed) == [] and client.counters.get("wire.receive_errors", 0) == 0


def test_a_notice_that_is_none_is_refused(askers):
    fed = askers(clients=1)
    client, server = fed.clients[0], fed.server.peer_id
    suffix = Address.empty().with_component(0, ANSWER_REFUSED_OP).to_bytes()
    good = {"port": "ask", "times": 1, "why": "because"}
    notices = [
        b"\xff",
        cbor.dumps([1]),
        *(
            cbor.dumps({**good, key: bad})
            for key, bad in [("port", 1), ("times", 0), ("times", True), ("why", b"x")]
        ),
    ]
    for notice in notices:
        client.deliver_inbound(envelope.encode(Envelope([Fill(suffix, notice, False, BYTES_HASH)])), server)
    found = client.poll(fed.sim.now_ns)
    assert [s.kind for s in of(steps.WireReceiveFailed, found)] == ["DecodeFailed"] * len(notices)
    long = cbor.dumps({**good, "why": "x" * 5000, "port": "p" * 5000})
    client.deliver_inbound(envelope.encode(Envelope([Fill(suffix, long, False, BYTES_HASH)])), server)
    (step,) = of(steps.AnswerRefused, client.poll(fed.sim.now_ns))
    assert (len(step.reason), len(step.port)) == (200, 200)


def test_why_an_answer_is_refused_is_in_a_snapshot(askers):
    """The op that refuses it has failed before the snapshot; the child ends after it."""
    slow = """  t: Trigger = syscall.OnTrigger(a)
  late: Trigger = syscall.Sleep<duration_ns=2000000000>(t)
  b: Tensor"""
    fed = askers(clients=1, changes=[("  b: Tensor", slow)])
    fed.server.component("codec").mood = "refuses once"
    fed.server.invoke("Server", {"x": f32(1, 2)})
    fed.sim.run(for_ns=S)
    fed.server = fed.again(fed.server, "Server")
    fed.sim.run(for_ns=3 * S)
    ((_, step),) = told(fed)
    assert "not this" in step.reason
