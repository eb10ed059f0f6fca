"""Links: numbers, acknowledgements, repetitions, bounds. Two of them are run against each other over a
network that loses, doubles and reorders in test_delivery_simulation.py."""

from __future__ import annotations

import dataclasses

import pytest
from link_ends import EPOCH, OUTBOX, A, B, C, D, durable, fills, links, read, send, take, take_durable
from times import MS, S

from bb_edge.ir.ids import PeerId
from bb_edge.wire.delivery import (
    DeliveryError,
    LinkConfig,
    Links,
    LinksFullError,
    PendingFullError,
    Verdict,
)
from bb_edge.wire.envelope import NONE, REQUEST, RESPONSE, Ack, Envelope
from bb_edge.wire.resend import EnvelopeKey, Pending, PendingEvent, ResendQueue

# --- numbers ---------------------------------------------------------------------------------------------


def test_a_sequence_per_destination_from_one() -> None:
    node = links()
    for peer in (B, C):
        found = [send(node, peer=peer)[0] for _ in range(2)]
        assert [(e.epoch, e.seq, e.base) for e in found] == [(EPOCH, 1, 0), (EPOCH, 2, 0)]


def test_the_receiver_has_room_for_all_that_a_sender_may_have_open() -> None:
    receiver = links()
    envelopes = [durable(seq) for seq in range(1, 65)]
    for envelope in reversed(envelopes):
        assert take(receiver, envelope) is Verdict.NEW


# --- receiving -------------------------------------------------------------------------------------------


def test_receive_judges_and_mark_takes() -> None:
    sender, receiver = links(), links()
    envelope, _ = send(sender)
    assert receiver.receive(A, envelope, 0) is Verdict.NEW
    assert receiver.receive(A, envelope, 0) is Verdict.NEW
    assert len(receiver) == 0
    receiver.mark(A, envelope, 0)
    assert receiver.receive(A, envelope, 0) is Verdict.DUPLICATE
    assert receiver.receive(B, envelope, 0) is Verdict.NEW  # windows are per peer


def test_envelopes_without_number() -> None:
    receiver = links()
    assert take(receiver, Envelope(acks=(Ack(1, 1),))) is Verdict.ACK_ONLY
    for _ in range(2):
        assert take(receiver, Envelope(fills=fills(), kind=REQUEST)) is Verdict.NEW
    assert receiver.next_deadline_ns() is None and len(receiver) == 0


def test_the_last_three_best_effort_epochs_are_kept() -> None:
    receiver = links()
    for epoch in (1, 2, 3):
        assert take(receiver, Envelope(fills=fills(), epoch=epoch, seq=1)) is Verdict.NEW
    for epoch in (1, 2, 3):
        assert take(receiver, Envelope(fills=fills(), epoch=epoch, seq=1)) is Verdict.DUPLICATE
    take(receiver, Envelope(fills=fills(), epoch=1, seq=2))  # 1 was heard last now, 2 longest ago
    assert take(receiver, Envelope(fills=fills(), epoch=4, seq=1)) is Verdict.NEW
    for epoch in (1, 3, 4):
        assert receiver.receive(A, Envelope(fills=fills(), epoch=epoch, seq=1), 0) is Verdict.DUPLICATE
    assert receiver.receive(A, Envelope(fills=fills(), epoch=2, seq=1), 0) is Verdict.NEW


def test_a_straggler_of_a_replaced_outbox_is_told_apart() -> None:
    receiver = links()
    old = Envelope(fills=fills(), epoch=1, seq=1, base=1)
    new = Envelope(fills=fills(), epoch=2, seq=1, base=1)
    assert [take(receiver, e) for e in (old, new, old, new)] == [
        Verdict.NEW,
        Verdict.NEW,
        Verdict.DUPLICATE,
        Verdict.DUPLICATE,
    ]


def test_a_durable_envelope_too_far_ahead_is_refused_and_leaves_nothing() -> None:
    receiver = links()
    ahead = Envelope(fills=fills(), epoch=1, seq=65, base=1)
    assert take(receiver, ahead) is Verdict.BEYOND_WINDOW
    assert take(receiver, ahead) is Verdict.BEYOND_WINDOW
    assert receiver.next_deadline_ns() is None and len(receiver) == 0
    assert take(receiver, dataclasses.replace(ahead, base=2)) is Verdict.NEW
    again = dataclasses.replace(ahead, epoch=2)  # of a known peer, in an epoch without window
    assert take(receiver, again) is Verdict.BEYOND_WINDOW
    ((_, windows),) = receiver.snapshot(0)["sources"]
    assert [row[0] for row in windows] == [1]


def test_numbers_below_base_are_settled_even_if_never_seen() -> None:
    receiver = links()
    assert take(receiver, Envelope(fills=fills(), epoch=1, seq=10, base=10)) is Verdict.NEW
    assert take(receiver, Envelope(fills=fills(), epoch=1, seq=9, base=1)) is Verdict.DUPLICATE


# --- acknowledgements ------------------------------------------------------------------------------------


def test_acks_go_alone_after_the_delay_with_seq_0() -> None:
    sender, receiver = links(), links()
    envelope, _ = send(sender, REQUEST)
    take(receiver, envelope, now=5 * MS)
    assert receiver.next_deadline_ns() == 25 * MS
    assert receiver.due(25 * MS - 1) == []
    (alone,) = receiver.due(25 * MS)
    assert (alone.peer, alone.key, alone.resent) == (A, None, False)
    assert read(alone) == Envelope(acks=(Ack(EPOCH, 1),))
    assert receiver.due(10 * S) == [] and receiver.next_deadline_ns() is None
    assert receiver.counters["acks_alone"] == 1


def test_acks_ride_along() -> None:
    sender, receiver = links(), links()
    take(receiver, send(sender, REQUEST)[0])
    take(receiver, durable(1))
    reply = Envelope(fills=fills())
    receiver.stamp(A, reply, 1 * MS)
    assert set(reply.acks) == {Ack(EPOCH, 1), Ack(OUTBOX, 1)}
    assert receiver.next_deadline_ns() is None
    assert sender.acknowledged(B, reply.acks, 2 * MS) == [Ack(OUTBOX, 1)], "of another sequence"
    assert sender.pending == 0 and sender.pending_bytes == 0 and sender.next_deadline_ns() is None


def test_plain_sends_are_not_acknowledged() -> None:
    sender, receiver = links(), links()
    envelope, _ = send(sender)
    assert take(receiver, envelope) is Verdict.NEW
    assert take(receiver, envelope) is Verdict.DUPLICATE
    assert receiver.next_deadline_ns() is None and sender.pending == 0


def test_a_duplicate_is_acknowledged_again() -> None:
    sender, receiver = links(), links()
    for envelope in (send(sender, REQUEST)[0], send(sender, RESPONSE)[0], durable(1)):
        take(receiver, envelope, now=0)
        assert receiver.due(1 * S)
        assert take(receiver, envelope, now=2 * S) is Verdict.DUPLICATE
        assert len(receiver.due(3 * S)) == 1


def test_numbers_behind_a_lost_plain_send_are_acknowledged_by_name() -> None:
    sender, receiver = links(), links()
    send(sender)  # lost
    request, key = send(sender, REQUEST)
    take(receiver, request)
    (alone,) = receiver.due(S)
    assert read(alone).acks == (Ack(EPOCH, 0, (2,)),)
    assert sender.acknowledged(B, read(alone).acks, S) == []
    assert not sender.is_pending(key)


def test_many_owed_acks_go_in_several_pieces() -> None:
    sender, receiver = links(), links()
    keys = []
    for _ in range(150):
        send(sender)  # lost
        request, key = send(sender, REQUEST)
        keys.append(key)
        take(receiver, request)
    alone = receiver.due(S)
    assert len(alone) == 3
    assert [sender.acknowledged(B, read(out).acks, S) for out in alone] == [[], [], []]
    assert sender.pending == 0 and not any(sender.is_pending(key) for key in keys)


def test_acks_of_other_epochs_are_given_back_and_counted_where_they_are_nobody_s() -> None:
    node = links()
    send(node, REQUEST)
    others = [Ack(99, 5, (1,)), Ack(OUTBOX, 5)]
    assert node.acknowledged(B, [*others, Ack(EPOCH, 0)], 0) == others
    assert node.acknowledged(C, [Ack(EPOCH, 5)], 0) == [Ack(EPOCH, 5)], "only its own peer may settle it"
    node.count_foreign(2)
    assert node.pending == 1 and node.counters["foreign_acks"] == 2


def test_an_ack_waits_for_the_journal() -> None:
    receiver = links()
    first, second = durable(1), durable(2)
    take_durable(receiver, first, hold=True)
    assert receiver.next_deadline_ns() is None
    assert take(receiver, first, 1 * S) is Verdict.DUPLICATE  # a repetition meanwhile: still no ack
    take(receiver, second, 1 * S)
    (alone,) = receiver.due(2 * S)
    assert read(alone).acks == (Ack(OUTBOX, 0, (2,)),)
    assert receiver.sources.journaled(A, OUTBOX, 1)
    receiver.owe_durable(A, 3 * S)
    (alone,) = receiver.due(4 * S)
    assert read(alone).acks == (Ack(OUTBOX, 2),)
    receiver.owe_durable(A, 5 * S)
    assert receiver.next_deadline_ns() is None


# --- repetition ------------------------------------------------------------------------------------------


def times_of(node: Links, until: int) -> list[int]:
    found = []
    while (when := node.next_deadline_ns()) is not None and when <= until:
        found += [when] * len(node.due(when))
    return found


@pytest.mark.parametrize("kind", [REQUEST, RESPONSE])
def test_repeated_after_a_second_doubling_under_the_same_number(kind: int) -> None:
    node = links()
    envelope, key = send(node, kind)
    assert node.due(1 * S - 1) == []
    (again,) = node.due(1 * S)
    assert again.key == key and again.resent and not again.durable and again.expires_in_ns == 0
    assert read(again) == envelope
    assert times_of(node, 64 * S) == [3 * S, 7 * S, 15 * S, 31 * S, 63 * S]
    assert times_of(node, 200 * S) == [127 * S, 191 * S]  # 64 s is the longest
    assert node.counters["resent"] == 8
    node.acknowledged(B, [Ack(key.epoch, 1)], 200 * S)
    assert node.next_deadline_ns() is None


def test_repeated_until_it_expires_with_what_remains_of_the_deadline() -> None:
    node = links()
    _, key = send(node, REQUEST, deadline=int(2.5 * S))
    (again,) = node.due(1 * S)
    assert read(again).remaining_deadline_ns == again.expires_in_ns == int(1.5 * S)
    assert node.next_deadline_ns() == int(2.5 * S)
    assert node.due(int(2.5 * S)) == []
    assert node.take_expired() == [key] and node.take_expired() == []
    assert node.counters["expired"] == 1 and node.pending == 0 and node.pending_bytes == 0


def test_once_more_when_the_peer_comes_up_in_a_new_epoch() -> None:
    node = links()
    send(node, REQUEST)
    send(node, RESPONSE)
    assert node.peer_up(B, 1, 100) == 2
    assert len(node.due(100)) == 2
    assert node.peer_up(B, 1, 200) == 0  # the same epoch again
    assert node.peer_up(C, 1, 200) == 0
    assert node.next_deadline_ns() == 100 + 1 * S  # the series goes on, undoubled
    assert len(node.due(100 + 1 * S)) == 2
    assert node.peer_up(B, 2, 2 * S) == 2
    assert len(node.due(2 * S)) == 2 and node.next_deadline_ns() == 4 * S


def test_cancel() -> None:
    node = links()
    _, key = send(node, REQUEST)
    assert node.cancel(key) and not node.cancel(key)
    assert node.next_deadline_ns() is None and node.pending == 0
    node.sent(B, key, b"late")
    assert node.pending_bytes == 0


# --- bounds ----------------------------------------------------------------------------------------------


def test_pending_envelopes_are_bounded() -> None:
    node = links(max_pending=2)
    send(node, REQUEST)
    _, key = send(node, REQUEST)
    with pytest.raises(PendingFullError):
        send(node, REQUEST)
    assert send(node)[0].seq == 3  # the refusal gave no number; plain sends need no place
    node.cancel(key)
    assert send(node, REQUEST)[0].seq == 4


def test_pending_bytes_are_bounded() -> None:
    node = links(pending_bytes=200)

    def sent(peer: PeerId, size: int, body: bytes = b"") -> EnvelopeKey:
        key = node.stamp(peer, Envelope(kind=REQUEST), 0, resend=True, size=size, body=body)
        node.sent(peer, key, bytes(size), body=body)
        return key

    first = sent(B, 100)
    sent(B, 100)
    with pytest.raises(PendingFullError, match="50 bytes requested, 0 available"):
        sent(B, 50)
    assert (node.pending, node.pending_bytes) == (2, 200)
    node.acknowledged(B, [Ack(EPOCH, first.seq)], 0)
    assert sent(B, 100).seq == 3, "the refusal gave no number"


def test_a_refused_envelope_leaves_the_acknowledgements_that_it_would_have_carried() -> None:
    node = links(max_pending=1)
    send(node, REQUEST)
    take(node, Envelope(fills=fills(), kind=REQUEST, epoch=7, seq=1), peer=B)
    with pytest.raises(PendingFullError):
        send(node, REQUEST)
    assert send(node)[0].acks == (Ack(7, 1),)


def test_a_body_is_charged_once_and_one_envelope_alone_may_be_larger_than_the_bound() -> None:
    node, body = links(pending_bytes=200), bytes(1_000)
    keys = []
    for number, peer in enumerate((B, C, D)):
        keys.append(node.stamp(peer, Envelope(kind=REQUEST), 0, resend=True, size=0, body=body))
        node.sent(peer, keys[-1], b"", body=body)
        assert (node.pending, node.pending_bytes) == (number + 1, 1_000)
    with pytest.raises(PendingFullError):
        node.stamp(B, Envelope(kind=REQUEST), 0, resend=True, size=1)
    with pytest.raises(PendingFullError):
        node.stamp(B, Envelope(kind=REQUEST), 0, resend=True, body=bytes(bytearray(1)))
    assert [node.cancel(key) for key in keys] == [True] * 3
    assert (node.pending, node.pending_bytes) == (0, 0)


def test_what_has_gone_out_is_known() -> None:
    node = links()
    key = node.stamp(B, Envelope(fills=fills(), kind=REQUEST), 0, resend=True)
    assert not node.published(key)
    node.sent(B, key, b"x")
    assert node.published(key)
    node.acknowledged(B, [Ack(EPOCH, key.seq)], 0)
    assert node.published(key), "it is over"


def test_the_schedule_does_not_grow_with_settled_envelopes() -> None:
    queue = ResendQueue(max_pending=4, max_bytes=1_000, longest_ns=S)
    for number in range(1, 2_000):
        pending = Pending(EnvelopeKey(B, EPOCH, number), REQUEST, 0, S)
        queue.reserve()
        queue.arm(pending, number)
        queue.release(pending, PendingEvent.SETTLE)
    assert queue.entries <= 66
    assert queue.next_ns() is None


def test_bodies_that_lie_elsewhere_are_charged_and_sent_as_before() -> None:
    node = links()
    shared, own = b"a" * 5_000, b"b" * 6_000
    for peer, body in ((A, shared), (B, shared), (C, own)):
        key = node.stamp(peer, Envelope(fills=fills(), kind=REQUEST), 0, resend=True, body=body)
        node.sent(peer, key, b"rest", body)
    before = node.pending_bytes
    elsewhere = memoryview(bytearray(shared)).toreadonly()
    node.lay_aside(lambda body: elsewhere if body is shared else None)
    assert node.pending_bytes == before
    again = {out.peer: out.body for out in node.due(60 * S)}
    assert again[A] is elsewhere and again[B] is elsewhere and again[C] is own
    for peer in (A, B, C):
        node.acknowledged(peer, [Ack(EPOCH, 1)], 60 * S)
    assert node.pending_bytes == 0 and node.pending == 0


def test_links_are_bounded_and_an_idle_one_makes_room() -> None:
    node = links(max_links=2)
    _, key = send(node, REQUEST, peer=A, now=1)
    send(node, peer=B, now=2)
    send(node, peer=C, now=3)  # B was idle, A waits for an acknowledgement
    assert len(node) == 2 and node.counters["links_forgotten"] == 1
    send(node, REQUEST, peer=C, now=4)
    with pytest.raises(LinksFullError, match=r"raise limits\.max_peers"):
        send(node, peer=D)
    assert node.receive(D, Envelope(fills=fills(), epoch=1, seq=1), 0) is Verdict.NO_ROOM
    node.mark(D, Envelope(fills=fills(), epoch=1, seq=1), 0)
    assert len(node) == 2
    node.cancel(key)
    assert node.receive(D, Envelope(fills=fills(), epoch=1, seq=1), 0) is Verdict.NEW


def test_a_link_that_owes_is_not_forgotten() -> None:
    node = links(max_links=1)
    node.mark(A, Envelope(fills=fills(), epoch=1, seq=1, kind=REQUEST), 0)
    with pytest.raises(LinksFullError):
        send(node, peer=B)
    node.due(S)
    take(node, Envelope(fills=fills(), epoch=2, seq=1, base=1), S)
    with pytest.raises(LinksFullError):
        send(node, peer=B)
    node.due(2 * S)
    send(node, peer=B)


def test_numbers_do_not_begin_anew_when_a_link_was_forgotten() -> None:
    node, receiver = links(max_links=1), links()
    for _ in range(3):
        take(receiver, send(node, peer=B)[0])
    send(node, peer=C)
    again, _ = send(node, peer=B)
    assert take(receiver, again) is Verdict.NEW and again.seq > 3


def test_forgotten_epochs_leave_no_empty_ack() -> None:
    receiver = links()
    for epoch in (1, 2, 3, 4):
        take(receiver, Envelope(fills=fills(), kind=REQUEST if epoch == 1 else NONE, epoch=epoch, seq=1))
    assert receiver.next_deadline_ns() is not None
    assert receiver.due(S) == [] and receiver.next_deadline_ns() is None


def test_a_peer_that_comes_up_gets_a_link_that_nobody_has_and_no_other_s() -> None:
    node = links(max_links=2)
    send(node, now=1, peer=A)
    assert node.peer_up(B, 7, 0) == 0 and len(node) == 2
    assert node.peer_up(C, 7, 0) == 0 and len(node) == 2
    assert not node.heard_of(B), "that its presence came is not an envelope"
    assert take(node, Envelope(fills=fills(), epoch=5, seq=1), now=1, peer=C) is Verdict.NEW
    assert len(node) == 2 and node.counters["links_forgotten"] == 0, "nothing was known of B"
    assert len(node.snapshot(0)["links"]) == 2, "A's and C's"


def test_of_a_peer_that_was_never_talked_to_a_snapshot_has_nothing() -> None:
    node = links()
    node.peer_up(B, 7, 0)
    assert len(node) == 1 and node.snapshot(0)["links"] == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_acknowledgement_settles_those_that_it_names_and_each_once(count: int) -> None:
    sender = links()
    keys = [send(sender, REQUEST)[1] for _ in range(count)]
    assert sender.acknowledged(B, [Ack(EPOCH, 0, (99, count, count))], S) == []
    assert [sender.is_pending(key) for key in keys] == [True] * (count - 1) + [False]
    assert sender.acknowledged(B, [Ack(EPOCH, count - 1, (1, count)), Ack(EPOCH, count)], S) == []
    assert sender.pending == 0 and sender.next_deadline_ns() is None
    _, again = send(sender, REQUEST)
    assert sender.is_pending(again) and sender.cancel(again) and not sender.cancel(again)


@pytest.mark.parametrize("changes", [{"max_links": 0}, {"resend_ns": 0}, {"ack_delay_ns": -1}])
def test_a_config_that_cannot_be(changes: dict[str, int]) -> None:
    with pytest.raises(DeliveryError):
        LinkConfig(**changes)
