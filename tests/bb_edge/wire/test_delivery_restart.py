"""Links that come back: what a snapshot keeps of them, what the outbox on disk overrules."""

from __future__ import annotations

import pytest
from link_ends import EPOCH, OUTBOX, A, B, C, fills, links, read, send, take
from times import MS, S

from bb_edge.wire import cbor
from bb_edge.wire.delivery import (
    Links,
    LinksFullError,
    PendingFullError,
    Verdict,
)
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope, encode


def restart(node: Links, now: int, epoch: int = EPOCH + 100, outbox: int = OUTBOX, at: int = 0) -> Links:
    restored = Links(epoch, outbox)
    restored.restore(cbor.loads(cbor.dumps(node.snapshot(now)), 100_000), at)  # type: ignore[arg-type]
    return restored


def test_a_snapshot_keeps_every_table() -> None:
    node = links()
    take(node, Envelope(fills=fills(), epoch=5, seq=3, kind=REQUEST), peer=B)
    take(node, Envelope(fills=fills(), epoch=6, seq=2, base=1), peer=B)
    send(node, RESPONSE)
    send(node, durable=True, deadline=10 * S)
    node.peer_up(B, 77, 0)
    same = restart(node, 0, EPOCH)
    assert same.snapshot(0) == node.snapshot(0)
    assert take(same, Envelope(fills=fills(), epoch=5, seq=3), peer=B) is Verdict.DUPLICATE
    assert take(same, Envelope(fills=fills(), epoch=6, seq=2, base=1), peer=B) is Verdict.DUPLICATE
    assert take(same, Envelope(fills=fills(), epoch=6, seq=1, base=1), peer=B) is Verdict.NEW
    assert same.peer_up(B, 77, 0) == 0


def test_after_a_restart_durable_numbers_run_on_and_best_effort_ones_begin_anew() -> None:
    node = links()
    for _ in range(3):
        send(node)
        send(node, durable=True)
    after = restart(node, 0)
    assert (send(after)[0].epoch, send(after)[0].seq) == (EPOCH + 100, 2)
    envelope, _ = send(after, durable=True)
    assert (envelope.epoch, envelope.seq, envelope.base) == (OUTBOX, 4, 1)
    other = restart(node, 0, outbox=99)
    envelope, _ = send(other, durable=True)
    assert (envelope.epoch, envelope.seq, envelope.base) == (99, 1, 1)


def test_after_a_restart_what_waited_goes_at_once_under_its_old_number() -> None:
    node = links()
    request, _ = send(node, REQUEST)
    reply, reply_key = send(node, RESPONSE)
    durable, durable_key = send(node, durable=True, deadline=20 * S)
    after = restart(node, 5 * S, at=1000 * S)
    out = {o.key: o for o in after.due(1000 * S)}
    assert set(out) == {reply_key, durable_key}  # requests are asked anew
    assert read(out[reply_key]) == reply
    assert out[durable_key].expires_in_ns == 15 * S
    receiver = links()
    for envelope in (request, reply, durable):
        take(receiver, envelope)
    for outgoing in out.values():
        assert take(receiver, read(outgoing)) is Verdict.DUPLICATE
    settled = [key for o in receiver.due(S) for key in after.acknowledged(B, read(o).acks, 0)]
    assert set(settled) == {reply_key, durable_key} and after.pending == 0


def test_what_expired_before_the_snapshot_is_not_in_it() -> None:
    node = links()
    send(node, durable=True, deadline=2 * S)
    assert restart(node, 2 * S - 1).pending == 1
    assert restart(node, 2 * S).pending == 0


def test_owed_acks_and_held_envelopes_go_after_a_restart() -> None:
    node = links()
    take(node, Envelope(fills=fills(), epoch=5, seq=1, kind=REQUEST))
    node.mark(A, Envelope(fills=fills(), epoch=6, seq=1, base=1), 0, hold_ack=True)
    after = restart(node, 0)
    (alone,) = after.due(20 * MS)
    assert set(read(alone).acks) == {Ack(5, 1), Ack(6, 1)}


def test_the_outbox_on_disk_outranks_the_snapshot() -> None:
    node = links()
    _, first = send(node, durable=True)
    after = restart(node, 0)
    assert after.durable_keys() == [first]
    late = Envelope(fills=fills(), epoch=OUTBOX, seq=3, base=1)
    third = after.adopt(B, OUTBOX, 3, encode(late), 0)
    after.adopt(B, OUTBOX, 2, b"", 0, acknowledged=True)
    after.adopt(B, OUTBOX, 1, b"", 0, acknowledged=True)
    assert after.durable_keys() == [third]
    assert [o.key for o in after.due(0)] == [third]
    envelope, _ = send(after, durable=True)
    assert (envelope.seq, envelope.base) == (4, 3)


def test_adopting_in_any_order_keeps_the_base() -> None:
    node = links()
    for seq in (5, 3, 4):
        node.adopt(B, OUTBOX, seq, b"x", 0)
        node.adopt(B, OUTBOX, seq, b"x", 0)
    assert node.pending == 3
    envelope, _ = send(node, durable=True)
    assert (envelope.seq, envelope.base) == (6, 3)
    assert [key.seq for key in node.acknowledged(B, [Ack(OUTBOX, 4)], 0)] == [3, 4]


def test_what_a_restart_brought_is_a_repetition_from_the_second_time_on() -> None:
    node = links()
    node.adopt(B, OUTBOX, 5, b"x", 0)
    assert [out.resent for out in node.due(0)] == [False]
    assert [out.resent for out in node.due(2 * links().config.resend_ns)] == [True]
    send(node, durable=True, peer=C)
    copy = links()
    copy.restore(node.snapshot(0), 0)
    later = 100 * links().config.resend_ns
    assert {out.peer: out.resent for out in copy.due(later)} == {B: False, C: False}
    assert {out.peer: out.resent for out in copy.due(2 * later)} == {B: True, C: True}


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    node = links()
    send(node, peer=B)
    send(node, peer=C)
    with pytest.raises(LinksFullError):
        links(max_links=1).restore(node.snapshot(0), 0)
    send(node, durable=True)
    send(node, durable=True)
    with pytest.raises(PendingFullError):
        links(pending_bytes=1).restore(node.snapshot(0), 0)
