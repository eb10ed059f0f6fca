"""Outbox records: bytes, causes that run again, snapshots, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import A, B

from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import TransitionError
from bb_edge.wire import cbor
from bb_edge.wire.outbox import (
    RECORD,
    Cause,
    Outbox,
    OutboxFullError,
    OutboxRecord,
    OutboxRecordError,
    name_of,
)
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.resend import EnvelopeKey
from tests.aids.transitions import assert_decides_by

CAUSE = Cause(B, 5, 6)


def record(seq: int, cause: Cause | None = None, size: int = 10, wire_id: int = 0) -> OutboxRecord:
    return OutboxRecord(EnvelopeKey(A, 1, seq), bytes(size), wire_id, cause)


@pytest.mark.parametrize(
    "sample", [record(1), OutboxRecord(EnvelopeKey(A, 2**56, 2**40), b"envelope", 2**64 - 1, CAUSE, 99)]
)
def test_bytes(sample: OutboxRecord) -> None:
    assert OutboxRecord.from_bytes(sample.to_bytes()) == sample


def test_truncated_anywhere() -> None:
    data = record(1, CAUSE).to_bytes()
    for end in range(len(data)):
        with pytest.raises(OutboxRecordError):
            OutboxRecord.from_bytes(data[:end])


@given(st.integers(0, 200), st.integers(0, 255))
def test_damage_gives_a_record_or_a_typed_error(place: int, byte: int) -> None:
    data = bytearray(record(1, CAUSE).to_bytes())
    data[place % len(data)] = byte
    try:
        found = OutboxRecord.from_bytes(bytes(data))
    except OutboxRecordError:
        return
    assert OutboxRecord.from_bytes(found.to_bytes()) == found


@pytest.mark.parametrize(
    "row",
    [
        {},
        [2, A.to_bytes(), 1, 1, b"", 0, None, 0],
        [1, A.to_bytes(), 1, 1, b"", 0, None],
        [1, b"x", 1, 1, b"", 0, None, 0],
        [1, A.to_bytes(), "1", 1, b"", 0, None, 0],
        [1, A.to_bytes(), 1, True, b"", 0, None, 0],
        [1, A.to_bytes(), 1, 1, b"", 0, [B.to_bytes(), 1], 0],
        [1, A.to_bytes(), 1, 1, b"", 0, [7, 1, 1], 0],
    ],
)
def test_what_is_no_record(row: object) -> None:
    with pytest.raises(OutboxRecordError):
        OutboxRecord.from_bytes(cbor.dumps(row))


ROW = [1, A.to_bytes(), 1, 1, b"", 0, None, 0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({0: 2}, "not a record of this version"),
        ({0: 0}, "not a record of this version"),
        ({0: True}, "fields of other types"),
        *(({place: "x"}, "fields of other types") for place in (1, 2, 3, 4, 5, 7)),
        ({1: b"x"}, "damaged: "),
        *(
            ({6: cause}, "its cause is not a cause")
            for cause in (7, [], [B.to_bytes(), 1], [B.to_bytes(), 1, b""])
        ),
        ({6: [B.to_bytes(), "1", 1]}, "its cause is not a cause"),
        ({6: [B.to_bytes(), 1, 1, 1]}, "its cause is not a cause"),
        ({6: [b"x", 1, 1]}, "damaged: "),
        ({6: [7, 1, 1]}, "its cause is not a cause"),
    ],
)
def test_what_is_no_record_is_said(changed: dict[int, object], said: str) -> None:
    assert OutboxRecord.from_bytes(cbor.dumps(ROW)).key == EnvelopeKey(A, 1, 1)
    row = [changed.get(place, value) for place, value in enumerate(ROW)]
    with pytest.raises(OutboxRecordError) as caught:
        OutboxRecord.from_bytes(cbor.dumps(row))
    error = caught.value
    assert error.what.startswith(said) and len(error.what) > len("damaged: ")
    assert (error.where, error.hint) == ("outbox", "drop the file")


@pytest.mark.parametrize("row", [7, [], ROW[:-1], [*ROW, 0]])
def test_a_row_of_another_shape_is_no_record(row: object) -> None:
    with pytest.raises(OutboxRecordError, match="not a record of this version"):
        OutboxRecord.from_bytes(cbor.dumps(row))


def test_the_bytes_of_a_record() -> None:
    sample = OutboxRecord(EnvelopeKey(A, 2, 3), b"four", 5, CAUSE, 6)
    row = [1, A.to_bytes(), 2, 3, b"four", 5, [B.to_bytes(), 5, 6], 6]
    assert sample.to_bytes() == cbor.dumps(row)
    assert OutboxRecord.from_bytes(memoryview(sample.to_bytes())) == sample


def full(records: int = 4096, size: int = 64 << 20) -> OutboxRoom:
    return OutboxRoom(records, size)


def test_a_full_outbox_says_what_it_holds() -> None:
    room = full(1, 80)
    room.take(record(1, size=7))
    with pytest.raises(OutboxFullError) as caught:
        room.take(record(2, size=11))
    assert str(caught.value) == (
        "outbox: 1 records with 7 bytes, 11 bytes requested"
        " (at most 1 records (limits.outbox_records) and 80 bytes (limits.outbox_bytes))"
    )
    with pytest.raises(OutboxFullError) as caught:
        room.take(record(2, size=14))
    assert f"14 bytes for peer {A}, for which 7 wait already" in str(caught.value)
    assert (room.records, room.bytes_in_use, room.open_bytes, room.bytes_for(A)) == (1, 7, 7, 7)


def test_a_quarter_of_the_bytes_is_for_one_peer_and_is_free_with_its_acknowledgement() -> None:
    room = full(size=80)
    first = record(1, size=20)
    room.take(first)
    assert not room.has_share(A, 1) and room.has_share(B, 80), "one alone always is"
    with pytest.raises(OutboxFullError):
        room.take(record(2, size=1))
    room.settle(first)
    assert room.bytes_for(A) == 0 and room.bytes_in_use == 20 and room.open_bytes == 0
    room.take(record(2, size=20))
    room.release(first)
    assert (room.records, room.bytes_in_use) == (1, 20)


def test_a_body_counts_once_and_for_each_peer() -> None:
    body = b"x" * 50
    room = full(size=800)
    both = [OutboxRecord(EnvelopeKey(peer, 0, 0), bytes(10), body=body) for peer in (A, B)]
    for one in both:
        room.take(one)
    assert (room.bytes_in_use, room.open_bytes) == (70, 70)
    assert room.bytes_for(A) == room.bytes_for(B) == 60
    assert room.has_room(730, body) and not room.has_room(731, body) and not room.has_room(730, b"y")
    room.settle(both[0])
    assert (room.bytes_in_use, room.open_bytes) == (70, 60)
    room.release(both[0])
    room.settle(both[1])
    room.release(both[1])
    assert room.records == room.bytes_in_use == room.open_bytes == 0 and not room.any_settled


def test_the_bounds_where_nobody_says_otherwise() -> None:
    room = full()
    assert OutboxRoom().max_bytes == room.max_bytes and OutboxRoom().max_records == room.max_records
    assert room.share == 16 << 20
    for seq in range(4096):
        room.take(record(seq, size=0))
    with pytest.raises(OutboxFullError):
        room.take(record(4097, size=0))
    room.adopt(record(4097, size=0))  # what is on disk is taken in any case
    assert room.records == 4097


@pytest.mark.parametrize(
    ("records", "settled", "wanted"), [(5, 5, False), (6, 0, False), (6, 1, True), (8, 1, True)]
)
def test_three_quarters_of_the_records_and_an_eighth_settled_want_a_snapshot(
    records: int, settled: int, wanted: bool
) -> None:
    room = full(8)
    for seq in range(records):
        room.take(record(seq))
    for seq in range(settled):
        room.settle(record(seq))
    assert room.wants_snapshot is wanted and room.any_settled is (settled > 0)


@pytest.mark.parametrize(
    ("limit", "sizes", "settled", "wanted"),
    [
        (100, (74,), 1, False),
        (100, (75,), 1, True),
        (100, (75,), 0, False),
        (104, (12, 66), 1, False),
        (104, (13, 65), 1, True),
        (104, (6, 6, 66), 2, False),
        (104, (6, 7, 65), 2, True),
    ],
)
def test_three_quarters_of_the_bytes_and_an_eighth_settled_want_a_snapshot(
    limit: int, sizes: tuple[int, ...], settled: int, wanted: bool
) -> None:
    room = full(size=limit)
    for seq, size in enumerate(sizes):
        room.adopt(record(seq, size=size))
    for seq in range(settled):
        room.settle(record(seq, size=sizes[seq]))
    assert room.wants_snapshot is wanted


def run_again(outbox: Outbox, peer: PeerId, cause: Cause, wire_id: int) -> int | None:
    """What a cause that runs again finds."""
    number = outbox.find(peer, cause, wire_id)
    if number is not None:
        outbox.caught_up(number)
    return number


def test_what_has_caught_up_is_settled_by_its_acknowledgement_alone() -> None:
    outbox = Outbox()
    outbox.add(1, record(1, CAUSE), ahead=True)
    assert run_again(outbox, A, CAUSE, 0) == 1
    assert not outbox.settled(1)
    assert outbox.snapshot_taken(lambda cause: True) == []
    outbox.settle(1)
    assert outbox.snapshot_taken(lambda cause: True) == [1]


def test_a_cause_that_runs_again_finds_its_record() -> None:
    outbox = Outbox()
    outbox.add(1, record(0, CAUSE, wire_id=3))
    assert len(outbox) == 1 and 1 in outbox and list(outbox) == [1]
    assert run_again(outbox, A, CAUSE, 3) == 1
    assert outbox.find(A, CAUSE, 4) is None
    assert outbox.find(B, CAUSE, 3) is None
    assert outbox.find(A, CAUSE._replace(seq=7), 3) is None
    assert not outbox.settled(1)
    assert outbox.settle(1)
    assert run_again(outbox, A, CAUSE, 3) == 1 and outbox.settled(1)


def test_a_snapshot_drops_what_is_settled_and_all_causes() -> None:
    outbox = Outbox()
    for number in (1, 2):
        outbox.add(number, record(0, CAUSE, wire_id=number))
    outbox.settle(1)
    assert outbox.snapshot_taken(_nothing) == [1]
    outbox.remove(1)
    assert len(outbox) == 1
    assert outbox.find(A, CAUSE, 2) is None
    with pytest.raises(TransitionError):
        outbox.remove(2)
    assert outbox.settle(2) and not outbox.settle(1)
    assert outbox.snapshot_taken(_nothing) == [2]


def _nothing(cause: Cause) -> bool:
    return False


def test_what_a_restart_finds_keeps_its_cause_until_that_has_run_or_cannot() -> None:
    outbox = Outbox()
    for number in (1, 2, 3, 4):
        outbox.add(number, record(0, CAUSE._replace(seq=number)), ahead=True)
    outbox.add(5, record(0), ahead=True)  # of nothing that comes again
    for number in (1, 2, 3, 5):
        outbox.settle(number)
    assert run_again(outbox, A, CAUSE._replace(seq=1), 0) == 1

    # 1 has come by, 2 cannot any more, 3 and 4 are still to come, 5 was nobody's.
    gone = outbox.snapshot_taken(lambda cause: cause.seq >= 3)
    assert sorted(gone) == [1, 2, 5]
    for number in gone:
        outbox.remove(number)
    assert outbox.settled(3) and not outbox.settled(4)
    for number in (3, 4):
        assert run_again(outbox, A, CAUSE._replace(seq=number), 0) == number
    assert outbox.snapshot_taken(lambda cause: True) == [3]
    assert outbox.find(A, CAUSE._replace(seq=4), 0) is None
    outbox.remove(3)
    assert list(outbox) == [4]


def test_a_body_goes_with_the_last_record_that_names_it() -> None:
    body = name_of(b"large")
    outbox = Outbox()
    for number in (1, 2):
        outbox.add(number, OutboxRecord(EnvelopeKey(A, 0, 0), b"", body=b"large", body_name=body))
    for number, free in ((1, []), (2, [body])):
        outbox.settle(number)
        outbox.snapshot_taken(_nothing)
        outbox.remove(number)
        assert outbox.take_free_bodies() == free
    assert outbox.take_free_bodies([body]) == [body], "one that nobody names at a start"
    outbox.add(3, OutboxRecord(EnvelopeKey(A, 0, 0), b"", body=b"large", body_name=body))
    assert outbox.take_free_bodies([body]) == []


def test_a_body_is_needed_by_what_is_open_and_by_what_is_to_find_it_again() -> None:
    outbox, large = Outbox(), name_of(b"large")

    def add(number: int, body: bytes, cause: Cause | None = None) -> None:
        found = OutboxRecord(EnvelopeKey(A, 0, 0), b"", 0, cause, body=body, body_name=name_of(body))
        outbox.add(number, found, ahead=cause is not None)

    for number, body in ((1, b"large"), (2, b"large"), (3, b"other")):
        add(number, body)
    assert outbox.needs_body(large) and not outbox.needs_body(name_of(b"nobody's"))
    outbox.settle(1)
    assert outbox.needs_body(large), "the second record has it too"
    outbox.settle(2)
    assert not outbox.needs_body(large) and outbox.needs_body(name_of(b"other"))
    add(4, b"large", CAUSE)
    outbox.settle(4)
    assert outbox.needs_body(large), "its cause may run again"
    outbox.caught_up(4)
    assert not outbox.needs_body(large)


def test_a_record_is_decided_by_its_table() -> None:
    def taken(outbox: Outbox, may_run: bool = True) -> list[int]:
        free = outbox.snapshot_taken(lambda _cause: may_run)
        for number in free:
            outbox.remove(number)
        return free

    def walk() -> None:
        plain, ahead = record(0, CAUSE), record(0, CAUSE, wire_id=2)
        outbox = Outbox()
        outbox.add(1, plain)
        assert run_again(outbox, A, CAUSE, 0) == 1  # waiting: caught_up
        assert outbox.settle(1) and outbox.settle(1)  # waiting, settled: settle
        assert run_again(outbox, A, CAUSE, 0) == 1  # settled: caught_up
        assert taken(outbox) == [1]  # settled: snapshot
        assert not outbox.settle(1)

        outbox.add(2, ahead, ahead=True)  # waiting: found
        assert taken(outbox) == []
        assert run_again(outbox, A, CAUSE, 2) == 2  # ahead: caught_up
        assert taken(outbox) == []
        assert outbox.find(A, CAUSE, 2) is None

        outbox.add(3, ahead, ahead=True)
        assert outbox.settle(3) and outbox.settle(3)  # ahead, ahead_settled: settle
        assert outbox.settled(3)
        assert taken(outbox) == []
        assert taken(outbox, may_run=False) == [3]  # ahead_settled: caught_up

    assert_decides_by(RECORD, walk)
