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
from bb_edge.engine.steps import EngineStep, SendEnvelope
from bb_edge.node import Node
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, decode, encode

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
"""


@pytest.fixture
def make(compile_text):
    """`make(count, **config)`: a node, and as many peers that are up."""
    data = compile_text(TEXT)

    def made(count: int, **config: int) -> tuple[Node, tuple[PeerId, ...]]:
        node = install(SELF, (), data, ["Main"], NodeConfig.host().with_(**config), seed=3)
        peers = tuple(PeerId.from_name(f"p{number}") for number in range(count))
        for peer in peers:
            node.peer_presence(peer, True, (HERE,), epoch=1)
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
