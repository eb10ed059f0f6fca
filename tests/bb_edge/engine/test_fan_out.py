"""What goes to many peers is encoded once, and is in memory once: in queues, steps and repetitions."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds_of_steps import of
from peers import HERE, SELF
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.net.never_left import WAITED
from bb_edge.engine.steps import AppEvent, EngineStep, OutboundDropped, SendEnvelope
from bb_edge.ir.address import site_suffix
from bb_edge.node import Node
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope, Fill, decode, encode

LARGE = np.arange(64 * 1024, dtype=np.float32)  # 256 KiB
SMALL = LARGE[:4]
TAIL = 100  # most bytes of what is a peer's own

TEXT = """
program Demo {module=Demo}
function program.Main(x: F32, y: F32, to: PeerIdVec, ask: PeerIdVec) -> () {entry=1, partition=Main}
  h: Trigger = wire.Send(x, to) {wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, batch_group_id=1}
  i: Trigger = wire.Send(y, to) {wire.wire_id=4, wire.site_ids=c2, wire.type_hashes=101, batch_group_id=1}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, wire.answer_mode=none, deadline_ns=4000000000}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}
  syscall.AppEmit<name="missing">(missing)
  q: Trigger, who: PeerIdVec, req: WireReqId = wire.RecvReq() {wire.wire_id=5, wire.site_ids=d1, wire.transport_kind=trigger_only}
  k: Trigger = wire.SendResp(q, who, req) {wire.wire_id=6, wire.site_ids=d2, wire.transport_kind=trigger_only}
"""


@pytest.fixture
def make(compile_text):
    """`make(count, **config)`: a node, and as many peers that are up."""
    data = compile_text(TEXT)

    def made(count: int, snapshot: bytes | None = None, **config: int) -> tuple[Node, tuple[PeerId, ...]]:
        limits = NodeConfig.host().with_(**config)
        node = install(SELF, (), data, ["Main"], limits, seed=3, snapshot=snapshot, now_ns=4)
        peers = tuple(PeerId.from_name(f"p{number}") for number in range(count))
        for peer in peers:
            node.peer_presence(peer, True, (HERE,), epoch=1)
        if snapshot is None:
            node.poll(1)
        return node, peers

    return made


def sent(found: list[EngineStep]) -> list[Any]:
    return of(SendEnvelope, found)


def one_body(found: list[Any]) -> bytes:
    """The body that all of them share: one object."""
    (name,) = {id(step.body) for step in found}
    body: bytes = found[0].body
    assert id(body) == name and len(body) > LARGE.nbytes
    return body


def test_requests_to_many_peers_have_one_body_and_a_tail_each(make):
    node, peers = make(50)
    node.invoke("Main", {"x": LARGE, "ask": peers})
    asked = sent(node.poll(2))
    assert [step.peer for step in asked] == list(peers)
    one_body(asked)
    assert max(len(step.rest) for step in asked) < TAIL
    for step in asked:
        message = decode(step.payload, HOST_CAPS)
        assert message.kind == REQUEST and bytes(message.fills[0].payload).endswith(LARGE.tobytes())
        assert step.size == len(step.payload)
    held = node.inspect().links
    assert sum(len(link["pending"]) for link in held.values()) == 50
    assert node.counters["outbound.bytes"] < LARGE.nbytes + 50 * TAIL + 100


def test_repetitions_share_the_body_and_tell_what_is_left_of_their_time(make):
    node, peers = make(20)
    node.invoke("Main", {"x": LARGE, "ask": peers})
    first = sent(node.poll(2))
    again = sent(node.poll(2 + S))
    assert len(again) == 20 and all(step.resent for step in again)
    assert one_body(again) is one_body(first)
    assert decode(again[0].payload, HOST_CAPS).remaining_deadline_ns == 3 * S


def test_the_bytes_are_free_once_the_last_peer_has_acknowledged(make):
    node, peers = make(3)
    node.invoke("Main", {"x": LARGE, "ask": peers})
    asked = sent(node.poll(2))
    for left, step in zip((2, 1, 0), asked, strict=True):
        message = decode(step.rest, HOST_CAPS)
        node.deliver_inbound(encode(Envelope(acks=(Ack(message.epoch, message.seq),))), step.peer)
        node.poll(3)
        assert (node.counters["outbound.bytes"] > LARGE.nbytes) == (left > 0)
    assert node.counters["outbound.bytes"] == 0


def test_sends_that_travel_together_have_one_body(make):
    node, peers = make(10)
    node.invoke("Main", {"x": LARGE, "y": SMALL, "to": peers})
    told = sent(node.poll(2))
    assert len(told) == 10
    one_body(told)
    for step in told:
        x, y = decode(step.payload, HOST_CAPS).fills
        assert bytes(x.payload).endswith(LARGE.tobytes()) and bytes(y.payload).endswith(SMALL.tobytes())


def test_what_is_small_has_no_body(make):
    node, peers = make(3)
    node.invoke("Main", {"x": SMALL, "ask": peers})
    assert [step.body for step in sent(node.poll(2))] == [b""] * 3


# --- more peers than there is room for ----------------------------------------------------------------------


def acknowledge(node: Node, step: Any, now_ns: int) -> list[EngineStep]:
    message = decode(step.rest, HOST_CAPS)
    node.deliver_inbound(encode(Envelope(acks=(Ack(message.epoch, message.seq),))), step.peer)
    return node.poll(now_ns)


def test_peers_are_asked_in_a_window_and_none_is_dropped(make):
    node, peers = make(10, outbound_queue=4)
    node.invoke("Main", {"x": LARGE, "ask": peers})
    asked = sent(node.poll(2))
    assert [step.peer for step in asked] == list(peers[:4])
    assert (node.counters["wire.sent"], node.pending_sends) == (4, 10)
    assert node.next_deadline_ns() == 2 + S, "no poll is due before the first repetition"
    waits = node.inspect().outgoing
    assert [row["peer"] for row in waits] == [str(peer) for peer in peers[4:]]
    for number in range(10):
        asked += sent(acknowledge(node, asked[number], 3))
    assert [step.peer for step in asked] == list(peers)
    one_body(asked)
    assert not any(step.resent for step in asked) and not of(OutboundDropped, node.poll(4))
    assert (node.counters["wire.sent"], node.pending_sends) == (10, 0)


def test_whoever_could_not_be_asked_is_told_and_not_blamed(make):
    """Six rounds: the first four peers are asked and never answer, for the others there is no room."""
    node, peers = make(6, outbound_queue=4)
    for number in range(6):
        start = 2 + number * 5 * S
        node.invoke("Main", {"x": LARGE, "ask": peers})
        node.poll(start)
        found = [*node.poll(start + 4 * S), *node.poll(start + 4 * S)]
        dropped = of(OutboundDropped, found)
        assert [step.peer for step in dropped] == list(peers[4:])
        assert {step.reason for step in dropped} == {WAITED}
        (missing,) = [event.value for event in of(AppEvent, found) if event.topic == "missing"]
        assert missing == peers
    assert node.counters["requests.not_sent"] == node.counters["outbound.dropped"] == 12
    assert node.counters["wire.sent"] == 24
    rows = node.inspect().peers
    assert [rows[str(peer)]["up"] for peer in peers] == [False] * 4 + [True] * 2


def test_a_reply_waits_for_room_and_leaves_when_there_is_some(make):
    node, peers = make(3, outbound_queue=2)
    node.invoke("Main", {"x": SMALL, "ask": peers[:2]})
    asked = sent(node.poll(2))
    question = Envelope([Fill(site_suffix(0xD1), b"", True)], REQUEST, 7, 2 * S, epoch=9, seq=1)
    node.deliver_inbound(encode(question), peers[2])
    assert not [step for step in sent(node.poll(3)) if decode(step.payload, HOST_CAPS).fills]
    (reply,) = [s for s in sent(acknowledge(node, asked[0], 4)) if s.peer == peers[2]]
    message = decode(reply.payload, HOST_CAPS)
    assert (message.kind, message.wire_req_id, message.remaining_deadline_ns) == (RESPONSE, 7, 2 * S - 1)
    assert message.acks, "the acknowledgement that was owed has not been lost meanwhile"


def test_who_waits_to_be_asked_is_asked_after_a_restart(make):
    node, peers = make(6, outbound_queue=4)
    node.invoke("Main", {"x": LARGE, "ask": peers})
    asked = sent(node.poll(2))
    acknowledge(node, asked[0], 3)
    again, _ = make(0, outbound_queue=10, snapshot=node.snapshot(4))
    found = sent(again.poll(5))
    numbers = {step.peer: decode(step.rest, HOST_CAPS).wire_req_id for step in found if step.body}
    assert set(numbers) == set(peers) and len(found) == 6
    one_body(found)
    assert numbers[asked[1].peer] == decode(asked[1].rest, HOST_CAPS).wire_req_id
