"""Links that come back: what a snapshot keeps of them."""

from __future__ import annotations

import pytest
from link_ends import EPOCH, B, C, fills, links, read, send, sources, take, take_durable
from times import MS, S

from bb_edge.wire import cbor
from bb_edge.wire.delivery import (
    Links,
    LinksFullError,
    PendingFullError,
    Verdict,
)
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope


def restart(node: Links, now: int, epoch: int = EPOCH + 100, at: int = 0) -> Links:
    restored = Links(epoch, sources())
    restored.restore(cbor.loads(cbor.dumps(node.snapshot(now)), 100_000), at)  # type: ignore[arg-type]
    return restored


def test_a_snapshot_keeps_every_table() -> None:
    node = links()
    take(node, Envelope(fills=fills(), epoch=5, seq=3, kind=REQUEST), peer=B)
    take(node, Envelope(fills=fills(), epoch=6, seq=2, base=1), peer=B)
    send(node, RESPONSE)
    send(node, RESPONSE, deadline=10 * S)
    node.peer_up(B, 77, 0)
    same = restart(node, 0, EPOCH)
    assert same.snapshot(0) == node.snapshot(0)
    assert take(same, Envelope(fills=fills(), epoch=5, seq=3), peer=B) is Verdict.DUPLICATE
    assert take(same, Envelope(fills=fills(), epoch=6, seq=2, base=1), peer=B) is Verdict.DUPLICATE
    assert take(same, Envelope(fills=fills(), epoch=6, seq=1, base=1), peer=B) is Verdict.NEW
    assert same.peer_up(B, 77, 0) == 0


def test_after_a_restart_numbers_begin_anew_in_another_epoch() -> None:
    node = links()
    for _ in range(3):
        send(node)
    after = restart(node, 0)
    assert (send(after)[0].epoch, send(after)[0].seq) == (EPOCH + 100, 2)
    assert send(restart(node, 0, EPOCH))[0].seq == 4, "and go on in the same"


def test_after_a_restart_what_waited_goes_at_once_under_its_old_number() -> None:
    node = links()
    request, _ = send(node, REQUEST)
    reply, reply_key = send(node, RESPONSE)
    second, second_key = send(node, RESPONSE, deadline=20 * S)
    after = restart(node, 5 * S, at=1000 * S)
    out = {o.key: o for o in after.due(1000 * S)}
    assert set(out) == {reply_key, second_key}  # requests are asked anew
    assert read(out[reply_key]) == reply
    assert out[second_key].expires_in_ns == 15 * S
    receiver = links()
    for envelope in (request, reply, second):
        take(receiver, envelope)
    for outgoing in out.values():
        assert take(receiver, read(outgoing)) is Verdict.DUPLICATE
    for o in receiver.due(S):
        assert after.acknowledged(B, read(o).acks, 0) == []
    assert after.pending == 0


def test_what_expired_before_the_snapshot_is_not_in_it() -> None:
    node = links()
    send(node, RESPONSE, deadline=2 * S)
    assert restart(node, 2 * S - 1).pending == 1
    assert restart(node, 2 * S).pending == 0


def test_owed_acks_and_held_envelopes_go_after_a_restart() -> None:
    node = links()
    take(node, Envelope(fills=fills(), epoch=5, seq=1, kind=REQUEST))
    take_durable(node, Envelope(fills=fills(), epoch=6, seq=1, base=1), hold=True)
    after = restart(node, 0)
    (alone,) = after.due(20 * MS)
    assert set(read(alone).acks) == {Ack(5, 1), Ack(6, 1)}


def test_what_a_restart_brought_is_a_repetition_from_the_second_time_on() -> None:
    node = links()
    for peer in (B, C):
        send(node, RESPONSE, peer=peer)
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
    send(node, RESPONSE)
    send(node, RESPONSE)
    with pytest.raises(PendingFullError):
        links(pending_bytes=1).restore(node.snapshot(0), 0)


def test_a_body_that_several_share_comes_back_once() -> None:
    node, body = links(), bytes(5000)
    for peer in (B, C):
        key = node.stamp(peer, Envelope(kind=RESPONSE), 0, resend=True, body=body)
        node.sent(peer, key, b"rest", body=body)
    rows = node.snapshot(0)
    same = links()
    same.restore(rows, 0)
    for link in rows["links"]:
        for pending in link[4]:
            pending[6] = 1  # as in a snapshot's bytes, where bodies have a table of their own
    read_back = links()
    read_back.restore(rows, 0, bodies=[body])
    for restored in (same, read_back):
        assert restored.pending_bytes == 5000 + 2 * len(b"rest")
        assert {(out.peer, bytes(out.body), out.payload) for out in restored.due(0)} == {
            (B, body, b"rest"),
            (C, body, b"rest"),
        }
