"""A node that comes back with its outbox: what goes out again, until when, and under which number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from busy_nodes import patience
from durable_program import greeted, program, records, rows, say, write_down
from envelopes import durable_message, fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope
from bb_edge.node import Node
from bb_edge.wire import envelope
from bb_edge.wire.durable_rows import Numbers
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope
from bb_edge.wire.outbox import OutboxRecord

WALL = 10**18
TEXT = program(900 * S)


@pytest.fixture
def make(compile_text):
    data = compile_text(TEXT)

    def made(snapshot: bytes | None = None, now_ns: int = 0, **config: int) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "clock_offset_ns": WALL}
        settings = NodeConfig.edge().with_(**config)
        return install(SELF, (HERE,), data, ["Main"], settings, snapshot=snapshot, now_ns=now_ns, **more)

    return made


def sent(found: list[steps.EngineStep]) -> list[bytes]:
    """What goes out beyond acknowledgements."""
    return [bytes(s.payload) for s in of(SendEnvelope, found) if s.durable]


def take(node: Node, peer: PeerId, data: bytes, now_ns: int) -> tuple[list[bytes], list[steps.EngineStep]]:
    """A durable envelope comes and is written down: the journal, and what the node then does."""
    node.deliver_inbound(data, peer)
    kept = of(Journal, node.poll(now_ns))
    for step in kept:
        node.persisted(step.token)
    return [step.record for step in kept], [*node.poll(now_ns + 1), *node.poll(now_ns + 2)]


def writes(
    node: Node, now_ns: int, *, to: tuple[PeerId, ...] = (), ask: tuple[PeerId, ...] = ()
) -> list[Any]:
    """What it asks to write down when the program starts, at the poll of that time."""
    say(node, to, ask)
    return of(PersistOutbox, node.poll(now_ns))


def test_what_runs_again_finds_what_it_sent_and_what_did_not_run_sends_anew(make):
    node = greeted(make(), A, B)
    asked = {"kind": REQUEST, "site": 0xA1, "wire_req_id": 7, "src_addresses": (HERE,)}
    first, found = take(node, A, durable_message(seq=1, **asked), 2)
    written = rows(found)
    (record,) = records(found)
    second, _ = take(node, A, durable_message(seq=2, **asked), 10)  # its answer never reached the disk
    third, _ = take(node, B, durable_message(seq=1, **asked), 20)  # nor did this one's, of the same number
    again = make(now_ns=100)
    again.adopt_outbox(written, 100, WALL + 100)
    again.replay([*first, *second, *third])
    found = [*again.poll(101), *again.poll(102)]
    assert again.counters["outbound.reused"] == 1
    (out,) = sent(found)
    assert out.startswith(record.encoded) and envelope.decode(out, node.config.caps).seq == 1, "as it was"
    anew = records(found)
    assert [(r.key.peer, r.cause and r.cause.seq) for r in anew] == [(A, 2), (B, 1)]
    assert anew[0].key.epoch == record.key.epoch and anew[0].key.seq == record.key.seq + 1


def test_a_snapshot_before_it_has_caught_up_forgets_no_number(make):
    node = greeted(make(), A, B)
    data = durable_message(0xA1, 1, kind=REQUEST, wire_req_id=7, src_addresses=(HERE,))
    journal, found = take(node, A, data, 2)
    written = rows(found)
    (record,) = records(found)
    again = make(now_ns=100)
    again.adopt_outbox(written, 100, WALL + 100)
    again.replay(journal)
    again.deliver_inbound(envelope.encode(Envelope(acks=(Ack(record.key.epoch, 1),))), A)
    again.snapshot(101)
    assert again.snapshot_written() == (), "what sent it is still to come"
    found = [*again.poll(102), *again.poll(103)]
    assert again.counters["outbound.reused"] == 1 and not of(PersistOutbox, found)
    again.snapshot(104)
    assert 1 in again.snapshot_written(), "acknowledged, and its cause has come by"


@pytest.mark.parametrize("asked_durably", [True, False])
def test_a_reply_that_is_put_off_is_still_to_come_and_finds_what_was_sent(make, asked_durably):
    node = greeted(make(), A, B)
    node.deliver_inbound(patience(5 * S), A)
    ask = Envelope([fill(0xA1, 3)], REQUEST, wire_req_id=7, epoch=9, seq=1, base=int(asked_durably))
    _, found = take(node, A, envelope.encode(ask), 2)
    assert node.counters["outbound.put_off"] == 1 and not records(found)
    snapshot = node.snapshot(10)
    node.snapshot_written()
    written = rows([*node.poll(6 * S), *node.poll(6 * S)])
    again = greeted(make(snapshot, 100), A, now_ns=100)
    again.adopt_outbox(written, 100, WALL + 100)
    (out,) = sent(again.poll(101))
    number = envelope.decode(out, node.config.caps)
    again.deliver_inbound(envelope.encode(Envelope(acks=(Ack(number.epoch, number.seq),))), A)
    again.poll(102)
    again.snapshot(103)
    assert 1 not in again.snapshot_written(), "the reply is still to come"
    found = [*again.poll(6 * S), *again.poll(6 * S)]
    assert again.counters["outbound.reused"] == 1 and not of(PersistOutbox, found) and not sent(found)
    again.snapshot(6 * S)
    assert 1 in again.snapshot_written()


@pytest.mark.parametrize(("left_ns", "goes"), [(5 * S, True), (1, True), (0, False), (-1, False)])
def test_a_record_goes_out_again_for_what_is_left_of_its_time(make, left_ns, goes):
    node = greeted(make(), A, B)
    _, found = take(
        node, A, durable_message(0xA1, 1, kind=REQUEST, wire_req_id=7, remaining_deadline_ns=8 * S), 2
    )
    written = rows(found)
    (record,) = records(found)
    assert record.expires_wall_ns == WALL + 8 * S + 2
    assert envelope.decode(record.encoded, node.config.caps).remaining_deadline_ns == 8 * S - 1
    wall_ns = record.expires_wall_ns - left_ns
    again = greeted(make(now_ns=100), A, B, now_ns=100)
    again.adopt_outbox(written, 100, wall_ns)
    found = again.poll(100)
    assert bool(sent(found)) is goes
    if not goes:
        again.snapshot(101)
        assert 1 in again.snapshot_written()
        return
    assert [s.expires_in_ns for s in of(SendEnvelope, found)] == [left_ns]
    repeated = [payload for n in range(1, 40) for payload in sent(again.poll(100 + n * S))]
    assert bool(repeated) is (left_ns > S)
    again.snapshot(100 * S)
    assert 1 in again.snapshot_written(), "it has expired"


@pytest.mark.parametrize(("left_ns", "gone"), [(1, False), (0, True), (-1, True)])
def test_a_record_that_has_expired_meanwhile_goes_with_the_first_snapshot(make, left_ns, gone):
    node = greeted(make(), A, B)
    _, found = take(
        node, A, durable_message(0xA1, 1, kind=REQUEST, wire_req_id=7, remaining_deadline_ns=8 * S), 2
    )
    written = rows(found)
    (record,) = records(found)
    again = make(now_ns=100)
    again.adopt_outbox(written, 100, record.expires_wall_ns - left_ns)
    again.snapshot(100)
    assert (1 in again.snapshot_written()) is gone, "no poll has been"


def test_a_record_without_a_deadline_is_repeated_until_it_is_acknowledged(make):
    node = greeted(make(), A, B)
    found = writes(node, 2, to=(A,))
    assert [(step.token, step.peer) for step in found] == [(1, A), (2, A)]
    written = rows(found)
    (record,) = records(found)
    assert record.expires_wall_ns == 0
    again = greeted(make(now_ns=100), A, B, now_ns=100)
    again.adopt_outbox(written, 100, WALL)
    found = again.poll(100)
    assert [out.startswith(record.encoded) for out in sent(found)] == [True]
    assert [s.expires_in_ns for s in of(SendEnvelope, found)] == [0]
    assert sent([step for n in range(1, 2000, 60) for step in again.poll(n * S)]), "however long it takes"
    ack = Envelope(acks=(Ack(record.key.epoch, record.key.seq),))
    again.deliver_inbound(envelope.encode(ack), A)
    again.poll(3000 * S)
    assert not sent(again.poll(9000 * S))
    again.snapshot(9000 * S)
    assert 1 in again.snapshot_written()


def asking(make) -> tuple[list[bytes], OutboxRecord, bytes, int]:
    """A durable request on disk, as rows and itself, the snapshot that holds who asks, and its number."""
    node = greeted(make(), A, B)
    found = writes(node, 2, ask=(A,))
    write_down(node, found)
    node.poll(3)
    data = node.snapshot(4)
    (record,) = records(found)
    number = envelope.decode(record.encoded, node.config.caps).wire_req_id
    return rows(found), record, data, number


def test_a_request_that_is_answered_is_not_repeated_though_nobody_acknowledged_it(make):
    node = greeted(make(), A, B)
    write_down(node, writes(node, 2, ask=(A,)))
    node.poll(3)
    node.snapshot(4)
    assert node.snapshot_written() == ()
    (out,) = sent(node.poll(5))
    assert sent(node.poll(2 * S)), "it is repeated"
    number = envelope.decode(out, node.config.caps).wire_req_id
    _, found = take(node, A, durable_message(0xB1, 1, kind=RESPONSE, wire_req_id=number), 3 * S)
    assert [s.value for s in of(steps.AppEvent, found)] == [()], "it is answered"
    assert not [step for n in range(4, 60) for step in sent(node.poll(n * S))]
    node.snapshot(60 * S)
    assert 1 in node.snapshot_written()


def test_a_request_goes_out_again_and_ends_with_its_answer(make):
    written, record, data, number = asking(make)
    again = make(data, 100)
    again.adopt_outbox(written, 100, WALL)
    (first,) = sent([*again.poll(101), *again.poll(102)])
    assert first.startswith(record.encoded), "what is left of its time stands behind it"
    assert [step for n in range(1, 10) for step in sent(again.poll(n * S))], "it is repeated"
    _, found = take(again, A, durable_message(0xB1, 1, kind=RESPONSE, wire_req_id=number), 10 * S)
    assert [s.value for s in of(steps.AppEvent, found)] == [()], "it is answered"
    assert not sent([*again.poll(50 * S), *again.poll(500 * S)]), "though nobody has acknowledged it"
    again.snapshot(500 * S)
    assert 1 in again.snapshot_written()


def test_a_request_of_nobody_stays_where_it_is(make):
    written, *_ = asking(make)
    again = greeted(make(now_ns=100), A, B, now_ns=100)
    again.adopt_outbox(written, 100, WALL)
    assert not sent([*again.poll(101), *again.poll(2 * S), *again.poll(50 * S)])
    assert "outbound.expired" not in again.counters, "there was time left"
    again.snapshot(50 * S)
    assert 1 in again.snapshot_written()


def test_records_that_cannot_be_written_are_told_and_asked_for_again_however_many_timers_run(make):
    node = greeted(make(max_timers=1), A, B)
    asked = [*writes(node, 2, to=(A,)), *writes(node, 3, to=(B,))]
    assert [(step.token, step.peer) for step in asked] == [(1, A), (2, A), (3, B), (4, B)]
    assert node.counters["outbound.persisting"] == 4
    errors = [OSError("full"), OSError("full"), OSError("still full"), OSError("still full")]
    for step, error in zip(asked, errors, strict=True):
        node.persist_failed(step.token, error)
    found = node.poll(4)
    assert of(steps.StorageFailed, found) == [steps.StorageFailed("outbox", error) for error in errors]
    assert node.counters["storage.failed"] == 4
    again = of(PersistOutbox, node.poll(2 * S))
    assert [(s.token, s.record) for s in again] == [(s.token, s.record) for s in asked]
    assert node.counters["outbound.persisting"] == 8


def test_only_so_many_wait(make):
    node = greeted(make(outbound_queue=2, outbox_records=3), A, B)
    asked = [step for now_ns in range(2, 7) for step in writes(node, now_ns, to=(A,))]
    assert node.counters["outbound.waiting"] == 2, "three are being written, two wait"
    node.invoke("Main", {"x": np.ones(1, np.float32), "to": (A,)})
    (dropped,) = of(steps.OutboundDropped, node.poll(8))
    assert dropped == steps.OutboundDropped(A, "too many durable envelopes wait", durable=True)
    assert node.unkept() == {A: 5} and node.counters["outbound.unwritten"] == 5
    assert not node.unkept(lambda _: True), "none was on the disk yet"
    for step in asked:
        node.persisted(step.token)
    assert node.unkept() == {A: 2} and node.unkept(lambda _: True) == {A: 3}
    second = [step.name for step in asked if isinstance(step.name, int)][1]
    assert node.unkept(lambda name: name == second) == {A: 1} and not node.unkept(lambda _: False)
    assert node.counters["outbound.dropped"] == 1


def test_a_record_that_its_peer_has_taken_is_not_sent_again_and_goes_with_the_first_snapshot(make):
    node = greeted(make(), A)
    asked = rows(writes(node, 2, to=(A,)))
    given = [Numbers(A, 5, 1, (1,)), Numbers(A, 6, 1, ())]
    again = greeted(make(now_ns=100), A, now_ns=100)
    again.adopt_outbox([*asked[:1], *(row.to_bytes() for row in given)], 100, WALL)
    assert not sent([*again.poll(101), *again.poll(2 * S), *again.poll(50 * S)])
    again.snapshot(50 * S)
    assert 1 in again.snapshot_written()
    assert not again.inspect().outbox["records"]


def test_a_row_that_the_snapshot_let_go_is_let_go_again(make):
    """The power went after the snapshot, and before its rows were dropped."""
    node = greeted(make(), A)
    found = writes(node, 2, to=(A,))
    write_down(node, found)
    (out,) = sent(node.poll(3))
    message = envelope.decode(out, node.config.caps)
    node.deliver_inbound(envelope.encode(Envelope(acks=(Ack(message.epoch, message.seq),))), A)
    node.poll(4)
    for now_ns in (5, 6):
        data = node.snapshot(now_ns)
        node.snapshot_written()
    again = make(data, 100)
    again.adopt_outbox(rows(found), 100, WALL)
    assert not sent([*again.poll(101), *again.poll(2 * S)])
    again.snapshot(3 * S)
    assert 1 in again.snapshot_written()
