"""Room in the outbox by bytes: who waits, who does not overtake whom, and what is lost at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from durable_program import ASK, SAY, greeted, kept, records, rows, write_down
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.net.durable import RECORD_BYTES
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.steps import EngineStep, OutboundDropped, PersistOutbox, SendEnvelope
from bb_edge.node import Node
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, decode, encode

WALL = 1_700_000_000 * S
BYTES = 8000
"""Of the outbox: 2000 of them for one peer."""
LARGE, SMALL = 400, 10
"""Numbers in a value: 1600 bytes, of which a peer may have one, and 40."""
TEXT = f"""
program Demo {{module=Demo}}
function program.Main(x: F32, to: PeerIdVec, ask: PeerIdVec) -> () {{entry=1, partition=Main}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {{{ASK}, wire.answer_mode=none, deadline_ns={90 * S}}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  syscall.AppEmit<name="missing">(missing)
"""


@pytest.fixture
def make(compile_text):
    data = compile_text(TEXT)

    def made(snapshot: bytes | None = None, now_ns: int = 0, **config: int) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "clock_offset_ns": WALL}
        settings = NodeConfig.edge().with_(**{"outbox_bytes": BYTES, **config})
        return install(SELF, (HERE,), data, ["Main"], settings, now_ns=now_ns, **more)

    return made


def send(node: Node, numbers: int, to: tuple[PeerId, ...] = (), ask: tuple[PeerId, ...] = ()) -> None:
    """Starts the program with a value of so many numbers."""
    peers = {name: peers for name, peers in (("to", to), ("ask", ask)) if peers}
    node.invoke("Main", {"x": np.zeros(numbers, np.float32), **peers})


def begun(found: list[EngineStep]) -> list[tuple[PeerId, int]]:
    """To whom records were begun, and about how many numbers each has."""
    return [(record.key.peer, len(record.encoded) // 4 // SMALL * SMALL) for record in records(found)]


def crowded(node: Node) -> None:
    """One large record to A, and another that waits."""
    for _ in range(2):
        send(node, LARGE, to=(A,))
    assert len(records(kept(node, 2))) == 1 and node.counters["outbound.waiting"] == 1


def settle(node: Node, found: list[EngineStep], now_ns: int) -> list[EngineStep]:
    """The peers acknowledge all that has gone out, and a snapshot frees its room."""
    for step in of(SendEnvelope, found):
        message = decode(step.payload, node.config.caps)
        node.deliver_inbound(encode(Envelope(acks=(Ack(message.epoch, message.seq),))), step.peer)
    came = node.poll(now_ns)
    write_down(node, came)
    node.snapshot(now_ns)
    node.snapshot_written()
    return [*came, *kept(node, now_ns)]


def test_what_is_small_does_not_overtake_what_waits_for_the_same_peer(make):
    node = greeted(make(), A, B)
    for numbers in (LARGE, LARGE, SMALL):
        send(node, numbers, to=(A,))
    found = [*kept(node, 2), *kept(node, 20)]
    assert [peer for peer, _ in begun(found)] == [A], "there is room for the small one"
    assert node.counters["outbound.waiting"] == 2
    found = settle(node, found, 30)
    assert begun(found) == [(A, LARGE), (A, SMALL)], "in their order"


def test_who_finds_room_leaves_in_the_same_poll_whoever_else_waits(make):
    node = greeted(make(), A, B)
    crowded(node)
    send(node, SMALL, to=(B,))
    assert begun(node.poll(20)) == [(B, SMALL)]


def test_of_a_request_to_several_who_has_room_is_asked_at_once_and_nobody_overtakes(make):
    node = greeted(make(), A, B, C)
    crowded(node)
    send(node, SMALL, ask=(B, A, C))
    found = kept(node, 20)
    assert [peer for peer, _ in begun(found)] == [B, C], "what waits for A comes first"
    assert node.unkept() == {A: 2}, "and is told with what waits behind it"
    send(node, LARGE, ask=(A, C))
    assert [peer for peer, _ in begun([*kept(node, 30), *kept(node, 40)])] == [C]


def test_where_only_the_share_of_one_is_full_the_others_are_asked_at_once(make):
    node = greeted(make(), A, B, C)
    send(node, LARGE, to=(A,))
    kept(node, 2)
    send(node, LARGE, ask=(A, B, C))
    assert [peer for peer, _ in begun(node.poll(20))] == [B, C]


def test_what_is_larger_than_the_outbox_is_lost_at_once(make):
    node = greeted(make(), A)
    send(node, BYTES // 4 + SMALL, to=(A,))
    (dropped,) = of(OutboundDropped, [*node.poll(2), *node.poll(3)])
    assert dropped.peer == A and "bytes requested" in dropped.reason and "limits.outbox" in dropped.reason
    assert not node.counters.get("outbound.waiting")


@pytest.mark.parametrize("numbers", [LARGE, 4 * LARGE], ids=["within the record", "beside it"])
@pytest.mark.parametrize("less", [0, 1])
def test_what_would_fit_into_the_outbox_alone_waits_for_what_is_there(make, numbers, less):
    alone = greeted(make(outbox_bytes=16 * BYTES), A)
    send(alone, numbers, to=(A,))
    (record,) = records(kept(alone, 2))
    assert bool(record.body) is (numbers != LARGE)
    (fill,) = decode(record.body + record.encoded, alone.config.caps).fills
    most = RECORD_BYTES + (len(record.body) or len(fill.payload))
    node = greeted(make(outbox_bytes=most - less), A)
    for size in (SMALL, numbers):
        send(node, size, to=(A,))
    found = [*kept(node, 2), *kept(node, 20)]
    assert node.counters.get("outbound.waiting", 0) == len(of(OutboundDropped, found)) ^ 1 == 1 - less


def test_a_small_value_behind_a_large_one_is_no_body(make):
    node = greeted(make(outbox_bytes=16 * BYTES), A, B)
    for numbers, peer in ((4 * LARGE, A), (SMALL, B)):
        send(node, numbers, to=(peer,))
    large, small = records(kept(node, 2))
    assert large.body and large.body_name and not small.body and not small.body_name


def test_what_has_no_deadline_does_not_wait_for_room_of_a_peer_that_does_not_answer(make):
    node = greeted(make(), A)
    send(node, LARGE, to=(A,))
    kept(node, 2)
    for _ in range(node.config.health_threshold):
        node.peer_failed(A)
    node.poll(20)
    send(node, LARGE, to=(A,))
    (dropped,) = of(OutboundDropped, [*node.poll(30), *node.poll(31)])
    assert "wait already" in dropped.reason and "outbound.waiting" not in node.counters


@pytest.mark.parametrize(("less", "leaves"), [(0, True), (1, False)])
def test_a_record_of_just_the_bytes_that_its_peer_takes_leaves(make, less, leaves):
    node = greeted(make(), A)
    send(node, SMALL, to=(A,))
    (record,) = records(kept(node, 2))
    most = len(record.encoded) - less
    meta = PeerLimits(most, 16, 1 << 10, 1 << 20).meta()
    node.peer_presence(A, True, (HERE,), {LIMITS_META: meta}, epoch=1)
    send(node, SMALL, to=(A,))
    found = [*node.poll(3), *node.poll(4)]
    assert len(records(found)) == leaves
    told = [step.reason for step in of(OutboundDropped, found)]
    assert told == ([] if leaves else [PeerLimits(most, 1, 1, 1).too_large(len(record.encoded))])


def test_a_record_says_when_it_was_written_and_has_no_body_where_it_is_small(make):
    node = greeted(make(), A)
    send(node, SMALL, to=(A,))
    found = node.poll(3 * S + 7)
    (record,) = records(found)
    assert record.written_s == (WALL + 3 * S + 7) // S
    assert {step.body_name for step in of(PersistOutbox, found)} == {b""}


def test_a_request_that_runs_again_is_written_down_again(make):
    """It has another id as a rule: the answers to the one that is on disk would find nobody."""
    node = greeted(make(), A)
    send(node, SMALL, ask=(A,))
    snapshot = node.snapshot(2)
    node.snapshot_written()
    found = kept(node, 3)
    assert len(records(found)) == 1
    again = make(snapshot, 100)
    again.adopt_outbox(rows(found), 100, WALL + 100)
    again.peer_presence(A, True, (HERE,), epoch=1)
    found = [*again.poll(101), *again.poll(102)]
    assert "outbound.reused" not in again.counters
    (record,) = records(found)
    assert decode(record.encoded, node.config.caps).kind == REQUEST
