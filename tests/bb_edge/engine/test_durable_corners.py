"""Durable sends and receipts where something else happens meanwhile (docs/design/durability.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from durable_program import greeted, kept, program, records, say, write_down
from envelopes import durable_message
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from times import S

from bb_edge import NodeConfig, install
from bb_edge.engine import steps
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.engine.snapshot import look_into
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope, SnapshotWanted
from bb_edge.ir.address import Address
from bb_edge.node import Node
from bb_edge.wire import cbor, envelope
from bb_edge.wire.envelope import REQUEST, Envelope, Fill

TEXT = program(2 * S)


@pytest.fixture
def make(compile_text):
    data = compile_text(TEXT)

    def made(
        snapshot: bytes | None = None, now_ns: int = 0, incarnation: int | None = None, **config: int
    ) -> Node:
        return install(
            SELF,
            (HERE,),
            data,
            ["Main"],
            NodeConfig.edge().with_(**config),
            seed=3,
            durable=True,
            snapshot=snapshot,
            now_ns=now_ns,
            incarnation=incarnation,
        )

    return made


def request(number: int = 77, deadline_ns: int = 0, seq: int = 1, **more: Any) -> bytes:
    asked = {"kind": REQUEST, "wire_req_id": number, "remaining_deadline_ns": deadline_ns}
    return durable_message(0xA1, seq, **asked, **more)


def test_causes_that_a_run_makes_up_are_no_other_runs(make):
    """Records of a run that is lost may be on disk under its causes, which nothing else may come by."""

    def made(run: int) -> object:
        node = greeted(make(incarnation=run, outbox_records=1), A)
        for _ in range(2):
            say(node, to=(A,))
        kept(node, 2)
        _, body = look_into(node.snapshot(3))
        (waits,) = body["outbound"]["waiting"]
        assert waits[8] is not None
        return waits[8]

    assert made(1) == made(1) != made(2)


# --- out ----------------------------------------------------------------------------------------------


def test_a_reply_that_is_put_off_beyond_its_deadline_is_not_written_down(make):
    node = greeted(make(), A)
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    patience = Fill(suffix, cbor.dumps({"min_backoff_ns": 5 * S}), False, 0x0B)
    node.deliver_inbound(envelope.encode(Envelope([patience])), A)
    node.deliver_inbound(request(deadline_ns=2 * S), A)
    (keep,) = of(Journal, node.poll(2))
    node.persisted(keep.token)
    found = [*node.poll(3), *node.poll(4)]
    assert node.counters["outbound.put_off"] == 1 and not records(found)
    found = [*node.poll(5 * S + 2), *node.poll(5 * S + 3)]
    assert not records(found)
    assert node.counters["deadlines.expired"] == 1


def test_what_finds_no_place_among_all_that_is_unacknowledged_waits(make):
    node = greeted(make(outbox_records=2), A, B, C)
    found: list[Any] = []
    for k, peer in enumerate((A, B, C)):
        say(node, to=(peer,))
        found += kept(node, 4 * k + 2)
    asked = records(found)
    assert [record.key.peer for record in asked] == [A, B]
    assert node.counters["outbound.waiting"] == 1
    assert {s.peer for s in of(SendEnvelope, found)} == {A, B}
    ack = Envelope(acks=(envelope.Ack(asked[0].key.epoch, asked[0].key.seq),))
    node.deliver_inbound(envelope.encode(ack), A)
    assert [s.reason for s in of(SnapshotWanted, [*node.poll(21), *node.poll(22)])] == ["outbox full"]
    node.snapshot(23)
    node.snapshot_written()
    assert [record.key.peer for record in records(kept(node, 24))] == [C]


def test_a_record_that_is_written_after_all_is_not_asked_for_again(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    asked = of(PersistOutbox, node.poll(2))
    for ask in asked:
        node.persist_failed(ask.token, OSError("full"))
        node.persisted(ask.token)
    assert len(of(SendEnvelope, node.poll(3))) == 1
    assert not records(node.poll(3 * S))


def test_a_record_that_cannot_be_written_is_asked_for_ever_more_seldom(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    write_down(node, node.poll(1))  # the first of an epoch, which begins with it
    say(node, to=(A,))
    found = of(PersistOutbox, node.poll(2))
    asked, now_ns = [2], 2
    while len(asked) < 10:
        (step,) = found
        node.persist_failed(step.token, OSError("full"))
        node.poll(now_ns + 1)
        due = node.next_deadline_ns()
        assert due is not None
        now_ns = due
        found = of(PersistOutbox, node.poll(now_ns))
        asked.append(now_ns)
    waits = [b - a for a, b in pairwise(asked)]
    assert waits == [S, 2 * S, 4 * S, 8 * S, 16 * S, 32 * S, 64 * S, 64 * S, 64 * S]


def test_a_timer_of_an_earlier_run_asks_for_no_row_twice(make):
    """The tokens of a run begin anew, so that the timer meets a row that the disk was just asked for."""
    node = greeted(make(), A)
    say(node, to=(A,))
    for step in of(PersistOutbox, node.poll(2)):
        node.persist_failed(step.token, OSError("full"))
    node.poll(3)
    again = make(snapshot=node.snapshot(4), now_ns=4)
    again.adopt_outbox([], 4, 4)
    assert of(PersistOutbox, again.poll(5)), "the row is on no disk"
    assert not of(PersistOutbox, [*again.poll(2 * S), *again.poll(3 * S)])


def test_a_request_that_expires_while_the_snapshot_is_written_is_not_published(make):
    node = greeted(make(), A)
    say(node, ask=(A,))
    write_down(node, node.poll(2))
    assert [s.reason for s in of(SnapshotWanted, node.poll(3))] == ["a durable request"]
    node.snapshot(4)
    assert not of(steps.AppEvent, [*node.poll(3 * S), *node.poll(3 * S + 1)]), (
        "nobody has answered: unsaid yet"
    )
    gone = node.snapshot_written()
    assert 1 in gone
    found = node.poll(3 * S + 2)
    assert [s.reason for s in of(SnapshotWanted, found)] == ["a durable request that lacks an answer"]
    node.snapshot(3 * S + 3)
    node.snapshot_written()
    assert node.next_deadline_ns() == 0
    found += [*node.poll(3 * S + 4), *node.poll(9 * S)]
    assert of(steps.AppEvent, found) and not of(SendEnvelope, found)


def test_only_requests_that_the_snapshot_holds_are_published(make):
    node = greeted(make(), A, B)
    say(node, ask=(A,))
    write_down(node, node.poll(2))
    node.poll(3)
    node.snapshot(4)
    say(node, ask=(B,))
    write_down(node, node.poll(5))  # against the rule that there is no poll meanwhile
    node.snapshot_written()
    found = [*node.poll(6), *node.poll(7)]
    assert {s.peer for s in of(SendEnvelope, found)} == {A}
    assert [s.reason for s in of(SnapshotWanted, found)] == ["a durable request"], "for the second, once"
    node.snapshot(8)
    node.snapshot_written()
    found = [*node.poll(9), *node.poll(10)]
    assert {s.peer for s in of(SendEnvelope, found)} == {B}
    assert not of(SnapshotWanted, found)


# --- in -----------------------------------------------------------------------------------------------


def test_a_request_of_the_journal_runs_again_though_its_asker_waits_no_longer(make):
    """What its answer had changed here is in no snapshot."""
    node = greeted(make(), A)
    record = JournalRecord(A, request(deadline_ns=3 * S), wall_ns=1, observed=HERE)
    node.replay([record.to_bytes()])
    found = [step for now_ns in (60 * S, 60 * S + 1) for step in node.poll(now_ns)]
    assert node.counters["journal.replayed"] == 1 and "deadlines.expired" not in node.counters
    assert of(PersistOutbox, found), "its reply"


def test_a_receipt_step_by_step(compile_text):
    wall_ns = 10**18
    more: dict[str, Any] = {"seed": 3, "durable": True, "clock_offset_ns": wall_ns}
    node = install(SELF, (HERE,), compile_text(TEXT), ["Main"], NodeConfig.edge(), **more)
    node.poll(1)
    first, second = request(seq=1), request(seq=2)
    node.deliver_inbound(first, A, HERE)
    node.deliver_inbound(second, A)
    journaled = of(Journal, node.poll(2))
    assert [(step.token, step.peer) for step in journaled] == [(-1, A), (-2, A)]
    assert [JournalRecord.from_bytes(step.record) for step in journaled] == [
        JournalRecord(A, first, wall_ns + 2, HERE),
        JournalRecord(A, second, wall_ns + 2, None),
    ]
    assert node.counters["ingress.journaled"] == 2
    for data in (first, second):
        node.deliver_inbound(data, A)
    found = [*node.poll(3), *node.poll(S)]
    assert not of(Journal, found) and not of(SendEnvelope, found), "they are taken, and not acknowledged"

    error = OSError("full")
    node.persist_failed(-2, error)
    assert of(steps.StorageFailed, node.poll(S + 1)) == [steps.StorageFailed("journal", error)]
    assert node.counters["storage.failed"] == 1
    node.deliver_inbound(first, A)
    node.deliver_inbound(second, A)
    (again,) = of(Journal, node.poll(S + 2))
    assert (again.token, JournalRecord.from_bytes(again.record).data) == (-3, second), "it was never received"

    for token, up_to in ((-1, 1), (-3, 2)):  # the acknowledgements ride on the replies
        node.persisted(token)
        reply, *_ = of(SendEnvelope, kept(node, S + 5 * up_to))
        assert reply.durable
        assert envelope.decode(reply.payload, node.config.caps).acks == (envelope.Ack(9, up_to),)


@pytest.mark.parametrize("how", ["as it says", "as it was seen", "nothing is said"])
def test_an_answer_to_the_journal_finds_its_peer_before_that_is_heard_of(make, how):
    """The node took the request just before it was cut off, and its snapshot is older than the peer."""
    data = request(src_addresses=(HERE,) if how == "as it says" else ())
    observed = HERE if how == "as it was seen" else None
    node = make(make().snapshot(1), 2)
    node.replay([JournalRecord(A, data, 2, observed).to_bytes()])
    found = [*node.poll(3), *node.poll(4)]
    assert node.counters["journal.replayed"] == 1
    if how == "nothing is said":
        assert [s.peer for s in of(steps.PeerResolveFailed, found)] == [A] and not records(found)
        return
    assert not of(steps.PeerResolveFailed, found)
    (record,) = records(found)
    write_down(node, found)
    (out,) = of(SendEnvelope, node.poll(5))
    assert (record.key.peer, out.peer) == (A, A) and out.payload.startswith(record.encoded)
    message = envelope.decode(out.payload, node.config.caps)
    assert (message.kind, message.wire_req_id) == (envelope.RESPONSE, 77)


def test_what_a_node_told_itself_is_replayed_without_an_address_of_its_own(make):
    node = make()
    node.replay(
        [JournalRecord(SELF, request(src_addresses=(b"\xe2\x01" + bytes(7) + b"\x01",)), 2).to_bytes()]
    )
    found = [*node.poll(3), *node.poll(4)]
    assert str(SELF) not in node.inspect().peers
    assert [record.key.peer for record in records(found)] == [SELF]


def test_acknowledgements_of_what_no_run_sent_are_counted_where_they_can_be_seen(make):
    node = make()
    assert node.counters["wire.foreign_acks"] == 0
    node.deliver_inbound(envelope.encode(Envelope(acks=(envelope.Ack(0xBAD, 1), envelope.Ack(0xBAD, 2)))), A)
    node.poll(1)
    assert node.counters["wire.foreign_acks"] == 2
    assert {"wire.acks_forgotten", "wire.links_forgotten"} <= node.counters.keys()


def test_acknowledgements_of_what_was_sent_are_none_of_those(make):
    node = greeted(make(), A)
    say(node, to=(A,))
    (out,) = [step for step in of(SendEnvelope, kept(node, 2)) if step.durable]
    acked = envelope.decode(out.payload, node.config.caps)
    foreign = envelope.Ack(0xBAD, 1)
    node.deliver_inbound(envelope.encode(Envelope(acks=(envelope.Ack(acked.epoch, acked.seq), foreign))), A)
    node.poll(10)
    assert node.counters["wire.foreign_acks"] == 1
