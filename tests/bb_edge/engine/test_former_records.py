"""What a node of another program had under way durably, read from its snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from peers import A, B, C
from times import S

from bb_edge.engine.net.former_records import FormerRecords, Left, Part
from bb_edge.engine.net.units import PUT_OFF, Unit
from bb_edge.ir.address import site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.wire import durable_rows, envelope
from bb_edge.wire.bodies import NO_BODY
from bb_edge.wire.caps import EnvelopeCaps
from bb_edge.wire.envelope import NONE, REQUEST, RESPONSE, Envelope, Fill
from bb_edge.wire.envelope_records import Failure, FailureCode
from bb_edge.wire.outbox import OutboxRecord, name_of
from bb_edge.wire.presence import Presence, decode_presence, encode_presence
from bb_edge.wire.resend import EnvelopeKey

THEN, WALL = 1_000, 2_000_000_000 * S
CAPS = EnvelopeCaps(1 << 40, 1 << 20, 1 << 40, 1 << 20)
HERE, THERE = Fill(site_suffix(0xA1), b"here"), Fill(site_suffix(0xB1), b"there")
LARGE = Fill(site_suffix(0xC1), bytes(3_000))
BODY = envelope.encode(Envelope([LARGE]))


def old(
    waiting: tuple[list[Any], ...] = (),
    units: tuple[list[Any], ...] = (),
    timers: tuple[list[Any], ...] = (),
    **outbound: Any,
) -> dict[str, Any]:
    """The parts of a snapshot that are looked at; its second body is BODY."""
    return {
        "outbound": {"waiting": list(waiting), "units": list(units), **outbound},
        "bodies": [b"another", BODY],
        "timers": [0, list(timers)],
        "now_ns": THEN,
        "neighbours": {"peers": []},
        "links": {"sources": []},
    }


def unit(peer: PeerId, **more: Any) -> list[Any]:
    return Unit(peer, (HERE,), **{"durable": True, "wire_id": 7, **more}).save()


def large(peer: PeerId, **more: Any) -> list[Any]:
    row = unit(peer, **more)
    row[1] = 2  # the place of its body
    return row


def read(body: dict[str, Any], *rows: bytes) -> list[OutboxRecord]:
    """The records that are found; their ids count from 1, and none has a number."""
    found = FormerRecords.of(body, rows, WALL).records
    assert [(one.id, one.number) for one in found] == [(n, 0) for n in range(1, len(found) + 1)]
    return [one.record for one in found]


def message(record: OutboxRecord) -> Envelope:
    return envelope.decode(record.encoded, CAPS)


def test_what_waits_is_read_in_the_order_of_where_it_waits():
    timers = ([1, 2, "another", ["no unit"]], [3, 4, PUT_OFF, [unit(C)]])
    found = read(old(waiting=(unit(A),), units=(unit(B, durable=False), unit(B)), timers=timers))
    assert [record.key for record in found] == [EnvelopeKey(peer, 0, 0) for peer in (A, B, C)]
    for record in found:
        assert (record.wire_id, record.cause, record.expires_wall_ns) == (7, None, 0)
        assert record.written_s == WALL // S
        assert (record.body, record.body_name) == (b"", NO_BODY)
        assert [bytes(fill.payload) for fill in message(record).fills] == [b"here"]
        assert (message(record).kind, message(record).wire_req_id, message(record).remaining_deadline_ns) == (
            NONE,
            0,
            0,
        )


@pytest.mark.parametrize(("left", "told"), [(500, 500), (1, 1), (0, 1), (-9, 1)])
def test_of_a_deadline_what_was_left_then_is_left_now(left, told):
    (record,) = read(old(waiting=(unit(A, deadline_ns=THEN + left),)))
    assert message(record).remaining_deadline_ns == told
    assert record.expires_wall_ns == WALL + told


def test_a_request_to_many_is_a_record_for_each_under_its_own_id():
    row = unit(A, kind=REQUEST, to={5: A, 6: B})
    found = read(old(waiting=(row,)))
    assert [(record.key.peer, message(record).wire_req_id) for record in found] == [(A, 5), (B, 6)]
    assert {message(record).kind for record in found} == {REQUEST}


def test_a_failure_in_place_of_a_reply_comes_along():
    failure = Failure.of(FailureCode.TOO_LARGE, "why")
    (record,) = read(old(units=(unit(A, kind=RESPONSE, wire_req_id=4, failure=failure),)))
    assert (message(record).kind, message(record).wire_req_id) == (RESPONSE, 4)
    assert message(record).failure == failure


def test_a_body_stands_beside_the_rest_of_the_bytes():
    (record,) = read(old(waiting=(large(A),)))
    assert (record.body, record.body_name) == (BODY, name_of(BODY))
    assert len(record.encoded) < 100 and not message(record).fills


def test_a_record_that_a_snapshot_alone_has_keeps_when_it_was_written_and_its_body():
    data = OutboxRecord(EnvelopeKey(A, 0, 0), envelope.encode(Envelope([])), 7).to_bytes()
    body = old(flows=[4, [], [4]], unwritten=[[4, data, 2, 99]])
    (found,) = FormerRecords.of(body, (), WALL).records
    assert (found.id, found.number) == (4, 0)
    assert (found.record.written_s, found.record.body) == (99, BODY)


def test_rows_of_an_older_version_come_last_each_under_an_id_of_its_own():
    told = [OutboxRecord(EnvelopeKey(B, 9, seq), envelope.encode(Envelope([HERE])), 7) for seq in (3, 4)]
    mine = OutboxRecord(EnvelopeKey(A, 0, 0), envelope.encode(Envelope([THERE])), 7)
    rows = [*(record.to_bytes() for record in told), durable_rows.record_row(5, mine)]
    former = FormerRecords.of(old(waiting=(unit(C),)), rows, WALL)
    found = [(one.id, one.number, one.record.key.peer) for one in former.records]
    assert found == [(5, 0, A), (6, 3, B), (7, 4, B), (8, 0, C)]
    former.take(all_but(), WALL)
    assert former.flows[0] == 9 and former.flows[2] == [5, 6, 7, 8]


def test_who_is_known_is_known_as_if_away_and_of_no_program():
    said = {"name": "kitchen", "program": bytes(32), "accepts": [], "contracts": {}}
    presence = Presence(True, 8, ("Client",), meta=said, session=3, seq=4)
    body = old()
    body["neighbours"]["peers"] = [[A.to_bytes(), encode_presence(presence), 0]]
    (met,) = FormerRecords.of(body, (), WALL).met
    found = decode_presence(met.presence)
    assert met.peer == A and (found.up, found.epoch, found.session, found.seq) == (False, None, 0, 0)
    assert found.meta == {"name": "kitchen"}


# --- what is taken ------------------------------------------------------------------------------------------


def all_but(*refused: bytes) -> Any:
    """Judges fills one by one: those to these sites are refused."""
    return lambda message: [
        Part("a send", "no" if fill.dest_suffix in refused else "", (fill,)) for fill in message.fills
    ]


def kept(former: FormerRecords) -> list[OutboxRecord]:
    rows = durable_rows.read([row for _, row in former.rows], {})
    return [rows.records[number] for number in sorted(rows.records)]


def test_a_record_of_which_a_part_is_left_has_its_body_in_its_own_bytes():
    both = envelope.encode(Envelope([LARGE, THERE]))
    body = old(waiting=(large(A), large(B), large(A)))
    body["bodies"] = [b"another", both]
    former = FormerRecords.of(body, (), WALL)
    left = former.take(all_but(THERE.dest_suffix), WALL)
    assert left == [Left(A, "a send", "no"), Left(B, "a send", "no"), Left(A, "a send", "no")]
    for record in kept(former):
        assert [fill.dest_suffix for fill in message(record).fills] == [LARGE.dest_suffix]
        assert (record.body, record.body_name) == (b"", NO_BODY)
    assert former.taken == {A: 2, B: 1} and former.flows == [4, [], [1, 2, 3]]


def test_a_body_is_one_row_whatever_refers_to_it():
    former = FormerRecords.of(old(waiting=(large(A), unit(C), large(B))), (), WALL)
    assert former.take(all_but(), WALL) == []
    assert [name for name, _ in former.rows] == [name_of(BODY), 1, 2, 3]
    assert [record.body for record in kept(former)] == [BODY, b"", BODY]
