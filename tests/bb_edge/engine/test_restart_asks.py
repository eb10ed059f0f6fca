"""What a restart changes of what goes out and comes in: who is asked again, what is written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import f32
from busy_nodes import DURABLE, REQUESTS
from durable_program import greeted, kept, records, rows, say, write_down
from envelopes import durable_message, fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from plays import installer, polled
from snapshots import body_of, resealed
from times import MS, S
from wire_ops import SAY

from bb_edge import PeerId
from bb_edge.engine.steps import (
    AppEvent,
    EngineStep,
    Journal,
    OpFailed,
    PeerResolveFailed,
    PersistOutbox,
    SendEnvelope,
)
from bb_edge.node import Node
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope


def sent(found: list[EngineStep]) -> list[tuple[PeerId, Envelope]]:
    return [(s.peer, envelope.decode(s.payload, EDGE_CAPS)) for s in of(SendEnvelope, found)]


def requests(found: list[EngineStep]) -> dict[tuple[int, PeerId], Envelope]:
    """What is asked, by the site and the peer that it is for."""
    return {(m.fills[0].dest_suffix[-1], peer): m for peer, m in sent(found) if m.kind == REQUEST}


# --- requests -----------------------------------------------------------------------------------------


def asking() -> tuple[Any, Node, dict[tuple[int, PeerId], Envelope]]:
    """A node that has asked A and B twice in its second poll, with what it has asked."""
    make = installer(REQUESTS, targets=("Main", "Hear"))
    node = greeted(make(), A, B)
    node.invoke("Main", {"x": f32(5), "all": (A, B)})
    asked = requests(node.poll(2))
    assert len(asked) == 4
    return make, node, asked


def answer(node: Node, site: int, peer: PeerId, number: int, seq: int = 1) -> None:
    node.deliver_inbound(durable_message(site, seq, seq, RESPONSE, wire_req_id=number), peer)


def test_only_who_has_not_answered_is_asked_again_and_under_the_same_number():
    make, node, asked = asking()
    answer(node, 0xB1, A, asked[0xA1, A].wire_req_id)
    node.poll(3)
    node.poll(4)
    again = make(node.snapshot(5), 5)
    found = requests(again.poll(6))
    assert set(found) == {(0xA1, B), (0xA2, A), (0xA2, B)}
    for key, message in found.items():
        assert message.wire_req_id == asked[key].wire_req_id
        assert [bytes(f.payload) for f in message.fills] == [fill(0, 5).payload]
    assert found[0xA1, B].remaining_deadline_ns == 4 * S + 2 - 6
    answer(again, 0xB1, A, asked[0xA1, A].wire_req_id, seq=2)
    answer(again, 0xB1, B, asked[0xA1, B].wire_req_id)
    steps = [step for _, step in polled(again, S, 6)]
    assert [s.value.tolist() for s in of(AppEvent, steps) if s.topic == "z"] == [[7.0], [7.0]], "A is heard"


def test_behind_a_request_that_is_closed_an_open_one_is_asked_again():
    make, node, asked = asking()
    for peer in (A, B):
        answer(node, 0xB1, peer, asked[0xA1, peer].wire_req_id)
    node.poll(3)
    node.poll(4)
    assert [row["state"] == "open" for row in node.inspect().requests] == [False, True]
    data = node.snapshot(5)
    again = make(data, 5)
    units = [(unit["peer"], unit["kind"], unit["durable"]) for unit in again.inspect().outgoing]
    assert units == [(str(A), REQUEST, False), (str(B), REQUEST, False)]
    assert set(requests(again.poll(6))) == {(0xA2, A), (0xA2, B)}
    # Who cannot be asked is named, with who asks.
    body = body_of(data)
    body["neighbours"]["addresses"] = []
    lonely = make(resealed(body), 5)
    (execution,) = [row["id"] for row in lonely.inspect().executions if not row["parent"]]
    (op,) = [row["op"].removeprefix("Main/") for row in lonely.inspect().requests if row["state"] == "open"]
    assert of(PeerResolveFailed, lonely.poll(6)) == [
        PeerResolveFailed(peer, "Main", execution, op) for peer in (A, B)
    ]


def test_a_request_is_asked_again_once_however_often_the_node_comes_back():
    make, node, _ = asking()
    once = make(node.snapshot(3), 3)
    units = once.inspect().outgoing
    assert [(unit["peer"], unit["kind"]) for unit in units] == [(str(p), REQUEST) for p in (A, B, A, B)]
    assert sorted(unit["deadline_ns"] for unit in units) == [900 * MS + 2] * 2 + [4 * S + 2] * 2
    twice = make(once.snapshot(4), 4 + S)
    assert twice.inspect().outgoing == [{**unit, "deadline_ns": unit["deadline_ns"] + S} for unit in units]
    assert {m.remaining_deadline_ns for m in requests(twice.poll(5 + S)).values()} == {
        *(4 * S - 3, 900 * MS - 3),
    }


def test_what_stands_in_the_program_is_not_in_the_snapshot():
    _, node, _ = asking()
    (row,) = body_of(node.snapshot(3))["executions"][2]
    ((_, values, *_),) = row["frames"]
    constant = np.arange(64, dtype=np.float32).tobytes()
    assert values and constant not in [value[3] for _, value in values if value[0] == "a"]


# --- durable records ----------------------------------------------------------------------------------


def test_what_waits_for_room_leaves_in_turn_under_the_next_tokens():
    make = installer(DURABLE, durable=True)
    node = greeted(make(), A, B)
    for _ in range(66):
        say(node, to=(A,))
    found = node.poll(2)
    again = make(node.snapshot(3), 3)
    again.adopt_outbox(rows(found), 3, 3)
    out = [message for _, message in sent(kept(again, 3)) if message.base]
    assert [message.seq for message in out] == [*range(1, 65)]
    for message in out:
        again.deliver_inbound(envelope.encode(Envelope(acks=(Ack(message.epoch, message.seq),))), A)
    assert [message.seq for _, message in sent(kept(again, 7)) if message.base] == [65, 66]


def test_what_no_disk_has_taken_when_the_snapshot_is_taken_is_asked_for_again():
    make = installer(DURABLE, durable=True)
    node = greeted(make(), A, B)
    for _ in range(3):
        say(node, to=(A,))
    asked = node.poll(2)
    again = make(node.snapshot(3), 3)
    again.adopt_outbox([], 3, 3)
    found = again.poll(4)
    assert [r.encoded for r in records(found)] == [r.encoded for r in records(asked)]
    write_down(again, found)
    assert [message.seq for _, message in sent(kept(again, 5)) if message.base] == [1, 2, 3]


def test_a_record_that_is_being_written_keeps_what_it_is_and_how_long_it_waits():
    make = installer(DURABLE, durable=True)
    node = greeted(make(), A, B)
    say(node, ask=(A,))
    before = of(PersistOutbox, node.poll(2))
    for step in before:
        node.persist_failed(step.token, OSError("full"))
    node.poll(3)
    again = make(node.snapshot(4), 4)
    again.adopt_outbox([], 4, 4)
    asked = again.poll(5)
    assert next(step.name for step in of(PersistOutbox, asked)) == 1
    for step in of(PersistOutbox, asked):
        again.persist_failed(step.token, OSError("full"))
    found = polled(again, S + 7, 6)
    assert S + 5 in {when for when, step in found if isinstance(step, PersistOutbox)}
    write_down(again, asked)
    assert sent(again.poll(S + 8)), "the snapshot that it comes from holds who asks"


# --- in -----------------------------------------------------------------------------------------------

HEARS = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Main}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  said: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="ring">(said)
function program.Clock() -> () {{entry=1, partition=Clock}}
  tick: I64 = syscall.Interval<period_ns=7000000>()
  syscall.AppEmit<name="tick">(tick)
"""
KEEPS = HEARS.replace(SAY, f"{SAY}, durable=1")


def test_what_is_held_or_waits_for_its_poll_is_delivered_once():
    make = installer(KEEPS, durable=True)
    first, second = (durable_message(0xC1, seq, seq) for seq in (1, 2))
    node = make()
    node.poll(1)
    node.deliver_inbound(first, A)
    (keep,) = of(Journal, node.poll(2))
    node.persisted(keep.token)
    node.deliver_inbound(second, A)
    held = of(Journal, node.poll(3))  # the first is delivered, the second held
    assert len(held) == 1 and node.inspect().journal["held"]
    again = make(node.snapshot(4), 4)
    again.poll(5)
    again.deliver_inbound(second, A, HERE)
    found = [*again.poll(6), *again.poll(10 * S)]
    assert not of(Journal, found), "its number is taken"
    assert [row.tolist() for row in again.ring("ring")] == [[1.0], [2.0]]
    assert of(SendEnvelope, found), "and it is acknowledged"


def test_what_a_node_told_itself_has_its_place_however_much_that_is():
    small = {"durable": True, "ingress_entries": 8, "answer_entries": 8}
    make = installer(KEEPS, **small)
    node = make()
    node.poll(1)
    asked = []
    node.invoke("Main", {"x": f32(9), "to": (SELF,)})
    write_down(node, node.poll(1))  # the first of an epoch, which begins with it
    for now_ns in (2, 3):
        for value in range(8):
            node.invoke("Main", {"x": f32(value), "to": (SELF,)})
        asked += node.poll(now_ns)
    write_down(node, asked)
    node.poll(4)
    waiting = node.inspect().ingress["envelopes"]
    assert len(waiting) > 8, "more than a share"
    assert make(node.snapshot(4), 4).inspect().ingress["envelopes"] == waiting


def test_a_node_that_keeps_things_reads_the_snapshot_of_one_that_did_not():
    plain, keeps = installer(HEARS), installer(HEARS, durable=True)
    node = plain()
    node.poll(1)
    for make in (keeps, plain):
        one = make(node.snapshot(2), 2)
        assert not of(OpFailed, one.poll(3))
        plain(one.snapshot(4), 4).poll(5)


# --- times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift_ns", [50 * S, -10 * MS, 0])
def test_ticks_go_on_with_the_clock_of_the_restored_node(shift_ns):
    make = installer(HEARS, targets=("Clock",))
    node = make()
    polled(node, 15 * MS, 0)
    data = node.snapshot(16 * MS)
    expected = [(when, step.value) for when, step in polled(node, 100 * MS, 16 * MS)]
    assert len(expected) == 12
    again = make(data, 16 * MS + shift_ns)
    found = polled(again, 100 * MS + shift_ns, 16 * MS + shift_ns)
    assert [(when - shift_ns, step.value - shift_ns) for when, step in found] == expected


def test_when_a_peer_was_asked_to_slow_down_moves_with_the_clock():
    make = installer(HEARS)
    body = body_of(make().snapshot(2 * S))
    body["neighbours"]["noticed"] = [[A.to_bytes(), 1 * S, 1]]
    for now_ns, last_ns in ((2 * S, 1 * S), (102 * S, 101 * S)):
        again = make(resealed(body), now_ns)
        assert body_of(again.snapshot(now_ns))["neighbours"]["noticed"] == [[A.to_bytes(), last_ns, 1]]
