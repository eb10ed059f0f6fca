"""Who waits for room, until when, and what is over with an answer (docs/design/durability.md)."""

from __future__ import annotations

from typing import Any

import pytest
from arrays import f32
from durable_program import kept, program, records, rows, say, write_down
from envelopes import durable_message, fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.net import features
from bb_edge.engine.net.never_left import UNSAVED, UNTOLD, UNWRITTEN, WAITED
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.net.writing import RETRY_NS
from bb_edge.engine.steps import Journal, OutboundDropped, PersistOutbox, SendEnvelope, SnapshotWanted
from bb_edge.ir.address import Address
from bb_edge.node import Node
from bb_edge.wire import cbor, durable_rows, envelope
from bb_edge.wire.caps import EDGE_CAPS, PeerLimits
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, Fill
from bb_edge.wire.outbox import OutboxRecord


@pytest.fixture
def make(compile_text):
    data = compile_text(program(2 * S))

    def made(snapshot: bytes | None = None, now_ns: int = 0, **config: int) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        node: Node = install(SELF, (HERE,), data, ["Main"], NodeConfig.edge().with_(**config), **more)
        if snapshot is None:
            for peer in (A, B, C):
                node.peer_presence(peer, True, (HERE,), epoch=1)
            node.poll(1)
        return node

    return made


def sent(found: list[steps.EngineStep]) -> list[Any]:
    return [step for step in of(SendEnvelope, found) if step.durable]


def answering(node: Node, now_ns: int, deadline_ns: int = 0, seq: int = 1) -> list[steps.EngineStep]:
    """A's durable request comes and is written down; what the node then does."""
    node.deliver_inbound(
        durable_message(0xA1, seq, kind=REQUEST, wire_req_id=70 + seq, remaining_deadline_ns=deadline_ns), A
    )
    for step in of(Journal, node.poll(now_ns)):
        node.persisted(step.token)
    return [*node.poll(now_ns), *node.poll(now_ns)]


def acknowledge(node: Node, record: OutboxRecord) -> None:
    ack = Envelope(acks=(Ack(record.key.epoch, record.key.seq),))
    node.deliver_inbound(envelope.encode(ack), record.key.peer)


# --- deadlines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patience_ns", "leaves"), [(2 * S - 1, True), (2 * S, False), (2 * S + 1, False)])
def test_at_its_deadline_a_reply_is_too_late(make, patience_ns, leaves):
    node = make()
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    patience = Fill(suffix, cbor.dumps({"min_backoff_ns": patience_ns}), False, 0x0B)
    node.deliver_inbound(envelope.encode(Envelope([patience])), A)
    assert not records(answering(node, 2, 2 * S)), "its deadline is at 2 s and 2 ns"
    assert node.counters["outbound.put_off"] == 1
    now_ns = 2 + patience_ns
    found = [*node.poll(now_ns), *node.poll(now_ns)]
    assert len(records(found)) == leaves and not of(OutboundDropped, found)
    assert node.counters.get("deadlines.expired", 0) == (not leaves)


@pytest.mark.parametrize(("at_ns", "leaves"), [(2 * S + 1, True), (2 * S + 2, False), (2 * S + 3, False)])
def test_what_waited_for_room_until_its_deadline_is_too_late(make, at_ns, leaves):
    node = make(outbox_records=1)
    say(node, to=(B,))
    (first,) = records(kept(node, 2))
    assert not records(answering(node, 2, 2 * S)), "there is room for one"
    assert node.counters["outbound.waiting"] == 1
    acknowledge(node, first)
    node.poll(2)
    node.snapshot(2)
    node.snapshot_written()
    found = [*node.poll(at_ns), *node.poll(at_ns)]
    assert [record.key.peer for record in records(found)] == [A] * leaves
    assert node.counters.get("deadlines.expired", 0) == (not leaves)
    told = [step.reason for step in of(OutboundDropped, found)]
    assert told == ([] if leaves else [WAITED])


def test_a_request_that_waits_for_room_beyond_its_deadline_is_told_as_not_sent(make):
    node = make(outbox_records=1)
    say(node, to=(B,))
    (first,) = records(kept(node, 2))
    say(node, ask=(A, C))
    assert not records(kept(node, 3))
    again = make(node.snapshot(4), 5, outbox_records=1)
    again.adopt_outbox([durable_rows.record_row(1, first)], 5, 0)
    found = [step for now_ns in (6, 2 * S + 4, 2 * S + 5, 3 * S) for step in again.poll(now_ns)]
    assert not records(found)
    again.snapshot(3 * S)
    again.snapshot_written()
    found += kept(again, 3 * S + 1)
    assert [step.value for step in of(steps.AppEvent, found)] == [(A, C)]
    assert {step.reason for step in of(OutboundDropped, found)} == {WAITED}
    assert not records(found)


@pytest.mark.parametrize(
    ("writes", "holds", "knows", "reason"),
    [
        (False, False, False, UNWRITTEN),
        (True, False, False, UNSAVED),
        (True, False, True, UNTOLD),
        (True, True, False, None),
    ],
)
def test_a_request_that_never_left_is_told_with_what_held_it_back(make, writes, holds, knows, reason):
    """A, which is asked, knows marks or does not, and says nothing at all."""
    node = make()
    if knows:
        node.peer_presence(A, True, (HERE,), {features.META: [features.MARKS]}, epoch=2)
    say(node, ask=(A,))
    found = kept(node, 2) if writes else node.poll(2)
    if holds:
        node.snapshot(2)
        node.snapshot_written()
    found = [*node.poll(3), *node.poll(3 * S), *node.poll(3 * S)]
    assert bool(sent(found)) is (reason is None)
    assert [step.reason for step in of(OutboundDropped, found)] == ([] if reason is None else [reason])


def test_a_request_that_waited_in_a_snapshot_and_is_on_disk_is_asked_once(make):
    node = make(outbox_records=1)
    say(node, to=(B,))
    (first,) = records(kept(node, 2))
    say(node, ask=(A,))
    assert not records(kept(node, 3)), "there is room for one"
    acknowledge(node, first)
    node.poll(4)
    data = node.snapshot(4)
    node.snapshot_written()
    found = kept(node, 5)
    assert len(records(found)) == 1
    again = make(data, 6, outbox_records=8)
    again.adopt_outbox(rows(found), 6, 0)
    assert not records(kept(again, 7)), "it waits in the snapshot, and is on disk"
    assert [row["peer"] for row in again.inspect().outbox["records"]] == [str(A)]


def test_what_the_host_began_and_a_snapshot_has_waiting_is_sent_once(make):
    node = make()
    for _ in range(3):
        say(node, to=(A,))
    data = node.snapshot(2)
    node.snapshot_written()
    found = kept(node, 3)
    assert len(records(found)) == 3
    again = make(data, 4)
    again.adopt_outbox(rows(found), 4, 0)
    assert not records(kept(again, 5))
    assert again.counters["outbound.reused"] == 3


def test_what_a_best_effort_envelope_starts_that_a_snapshot_has_unread_is_sent_once(make):
    node = make()
    message = Envelope([fill(0xA1, 3)], REQUEST, 70, 0, epoch=5, seq=1)
    node.deliver_inbound(envelope.encode(message), A)
    data = node.snapshot(2)
    node.snapshot_written()
    found = kept(node, 3)
    assert len(records(found)) == 1
    again = make(data, 4)
    again.adopt_outbox(rows(found), 4, 0)
    assert not records(kept(again, 5))
    assert again.counters["outbound.reused"] == 1


# --- room ---------------------------------------------------------------------------------------------


def full(node: Node, peer: PeerId, now_ns: int, more: int = 0) -> list[OutboxRecord]:
    """64 unacknowledged envelopes to a peer, and some that wait for a number."""
    for _ in range(64 + more):
        say(node, to=(peer,))
    found = kept(node, now_ns)
    assert len(sent(found)) == 64
    return records(found)


def test_who_waits_for_one_peer_holds_up_no_other(make):
    node = make()
    full(node, A, 2, more=2)
    say(node, to=(B,))
    say(node, to=(A,))
    assert [step.peer for step in sent(kept(node, 6))] == [B]
    assert [row["seq"] for row in node.inspect().outbox["records"] if row["peer"] == str(A)][64:] == [0] * 3


def test_what_comes_while_another_waits_for_the_same_peer_leaves_behind_it(make):
    node = make()
    (first, *_) = full(node, A, 2, more=1)
    say(node, to=(A,))
    acknowledge(node, first)
    (out,) = sent(kept(node, 6))
    assert envelope.decode(out.payload, EDGE_CAPS).seq == 65, "room for one"
    assert [row["seq"] for row in node.inspect().outbox["records"]][-2:] == [65, 0], "in their order"


def test_what_its_peer_would_refuse_is_lost_once_and_waits_for_nothing(make):
    node = make()
    limits = PeerLimits(30, 16, 1 << 10, 1 << 20)
    node.peer_presence(A, True, (HERE,), {LIMITS_META: limits.meta()}, epoch=1)
    say(node, to=(A,))
    (dropped,) = of(OutboundDropped, node.poll(2))
    assert dropped.peer == A and dropped.reason.endswith(
        "bytes, the peer takes 30: raise limits.caps.total_bytes on both sides"
    )
    assert not of(OutboundDropped, [*node.poll(3), *node.poll(S)])
    assert "outbound.waiting" not in node.counters
    assert node.counters["outbound.too_large"] == node.counters["outbound.dropped"] == 1
    node.peer_presence(A, True, (HERE,), epoch=1)
    say(node, to=(A,))
    (out,) = sent(kept(node, S + 1))
    made = envelope.decode(out.payload, EDGE_CAPS)
    assert made.base == made.seq == 1, "and nobody waits for the one that was given up"


def test_a_snapshot_that_made_room_wakes_what_waits_and_no_other_does(make):
    node = make(outbox_records=8)
    for _ in range(8):
        say(node, to=(A,))
    written = records(kept(node, 2))
    node.snapshot(4)
    assert node.snapshot_written() == ()
    assert node.next_deadline_ns() != 0, "nothing waits"
    say(node, to=(A,))
    assert not of(SnapshotWanted, node.poll(5)), "it would make no room"
    assert node.counters["outbound.waiting"] == 1
    node.snapshot(6)
    assert node.snapshot_written() == ()
    assert node.next_deadline_ns() != 0, "it made no room"
    acknowledge(node, written[0])
    assert [step.reason for step in of(SnapshotWanted, [*node.poll(7), *node.poll(7)])] == ["outbox full"]
    node.snapshot(8)
    assert 1 in node.snapshot_written()
    assert node.next_deadline_ns() == 0
    assert len(records(node.poll(9))) == 1
    assert node.snapshot_written() == (), "once more, of nothing"


# --- requests -----------------------------------------------------------------------------------------


def test_a_request_that_nobody_waits_for_does_not_wait_for_a_snapshot(make):
    node = make()
    say(node, ask=(A,))
    found = node.poll(2)
    write_down(node, found)
    assert node.inspect().outbox["needs_snapshot"] == [1]
    assert of(SnapshotWanted, node.poll(3)) == [SnapshotWanted("a durable request")]
    node.poll(2 * S + 2)
    node.poll(2 * S + 3)
    assert not node.inspect().outbox["needs_snapshot"]
    node.snapshot(3 * S)
    assert 1 in node.snapshot_written()
    assert not sent([*node.poll(3 * S + 1), *node.poll(5 * S)])


def test_a_record_that_was_never_written_is_gone_with_its_deadline(make):
    node = make()
    (record,) = records(answering(node, 2, RETRY_NS // 2))
    node.persist_failed(1, OSError("full"))
    assert [row["seq"] for row in node.inspect().outbox["records"]] == [record.key.seq]
    found = [*node.poll(3), *node.poll(RETRY_NS // 2 + 2), *node.poll(RETRY_NS + 2), *node.poll(RETRY_NS + 3)]
    assert not records(found)
    assert node.inspect().outbox["writing"] == [2], "the number that it never went out under"
    node.snapshot(RETRY_NS + 3)
    assert 1 in node.snapshot_written()
    outbox = node.inspect().outbox
    assert not outbox["records"] and outbox["bytes"] == 0
    node.persisted(1)
    assert not sent(node.poll(RETRY_NS + 4)), "an answer that comes after all is of nothing"


def test_answers_of_the_disk_to_nothing_change_nothing(make):
    node = make()
    node.persisted(7)
    node.persist_failed(7, OSError("full"))
    assert not node.poll(2)
    assert "storage.failed" not in node.counters
    assert node.snapshot_written() == ()
    again = make(node.snapshot(3), 3)
    assert again.next_deadline_ns() != 0 and again.snapshot_written() == ()


def test_a_durable_request_is_not_asked_anew_of_a_peer_that_has_restarted(make):
    node = make()
    say(node, ask=(A,))
    kept(node, 2)
    node.snapshot(6)
    node.snapshot_written()
    (asked,) = sent(node.poll(7))
    node.peer_presence(A, True, (HERE,), epoch=2)
    again = sent(kept(node, 8))
    first = envelope.decode(asked.payload, EDGE_CAPS)
    for step in again:
        message = envelope.decode(step.payload, EDGE_CAPS)
        assert (message.epoch, message.seq, message.wire_req_id) == (
            first.epoch,
            first.seq,
            first.wire_req_id,
        )
    assert again, "it is repeated at once"


def test_a_durable_send_to_nobody_is_told_and_counted(make):
    node = make()
    node.invoke("Main", {"x": f32(1), "to": ()})
    found = kept(node, 2)
    assert of(steps.SentToNobody, found) == [steps.SentToNobody("Main", "Send_0")]
    assert node.counters["outbound.to_nobody"] == 1 and not records(found)
    say(node, to=(B,))
    assert not of(steps.SentToNobody, kept(node, 10))


def test_what_is_not_on_disk_yet_is_known(make):
    """It ends with the process."""
    node = make(outbox_records=2)
    assert node.counters["outbound.unwritten"] == 0
    say(node, to=(A, B, C))
    found = [*node.poll(2), *node.poll(3)]
    assert node.counters["outbound.unwritten"] == 3, "one waits for a place in the outbox"
    (first, second) = [step for step in of(PersistOutbox, found) if isinstance(step.name, int)]
    node.persist_failed(first.token, OSError("full"))
    node.persisted(second.token)
    assert node.counters["outbound.unwritten"] == 2
    write_down(node, of(PersistOutbox, node.poll(10 * S)))
    assert node.counters["outbound.unwritten"] == 1
