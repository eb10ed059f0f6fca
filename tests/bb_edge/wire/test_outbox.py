"""Outbox records: bytes, causes that run again, snapshots, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import A, B

from bb_edge.wire import cbor
from bb_edge.wire.outbox import (
    RECORD,
    Cause,
    Outbox,
    OutboxFullError,
    OutboxRecord,
    OutboxRecordError,
    body_record,
    name_of,
    read_all,
)
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
        ({6: [7, 1, 1]}, "damaged: "),
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


def test_a_full_outbox_says_what_it_holds() -> None:
    outbox = Outbox(max_records=1, max_bytes=30)
    outbox.add(record(1, size=7))
    with pytest.raises(OutboxFullError) as caught:
        outbox.add(record(2, size=11))
    assert str(caught.value) == (
        "outbox: 1 records with 7 bytes, 11 bytes requested (at most 1 records and 30 bytes; take a snapshot)"
    )
    assert EnvelopeKey(A, 1, 1) in outbox and EnvelopeKey(A, 1, 2) not in outbox


def test_the_bounds_where_nobody_says_otherwise() -> None:
    outbox = Outbox()
    outbox.add(record(1, size=64 << 20))
    with pytest.raises(OutboxFullError):
        outbox.add(record(2, size=1))
    for seq in range(2, 4097):
        outbox.add(record(seq, size=0))
    with pytest.raises(OutboxFullError):
        outbox.add(record(4097, size=0))


@pytest.mark.parametrize(
    ("records", "settled", "wanted"), [(5, 5, False), (6, 0, False), (6, 1, True), (8, 1, True)]
)
def test_three_quarters_of_the_records_and_an_eighth_settled_want_a_snapshot(
    records: int, settled: int, wanted: bool
) -> None:
    outbox = Outbox(max_records=8)
    for seq in range(records):
        outbox.add(record(seq))
    for seq in range(settled):
        outbox.settle(EnvelopeKey(A, 1, seq))
    assert outbox.wants_snapshot is wanted


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
    outbox = Outbox(max_bytes=limit)
    for seq, size in enumerate(sizes):
        outbox.add(record(seq, size=size))
    for seq in range(settled):
        outbox.settle(EnvelopeKey(A, 1, seq))
    assert outbox.wants_snapshot is wanted


def test_a_settled_record_that_is_removed_leaves_nothing_behind() -> None:
    outbox = Outbox(max_bytes=100)
    for ahead in (False, True):
        outbox.add(record(1, CAUSE, size=80), ahead=ahead)
        outbox.settle(EnvelopeKey(A, 1, 1))
        assert outbox.settled(EnvelopeKey(A, 1, 1))
        assert outbox.remove(EnvelopeKey(A, 1, 1))
        assert not outbox.settled(EnvelopeKey(A, 1, 1)) and not outbox.any_settled
        assert outbox.find(A, CAUSE, 0) is None
        outbox.add(record(2, size=80))
        assert not outbox.wants_snapshot, "nothing is settled"
        outbox.remove(EnvelopeKey(A, 1, 2))
    assert outbox.bytes_in_use == 0


def test_a_record_of_the_same_key_is_not_counted_twice() -> None:
    outbox = Outbox()
    outbox.add(record(1, size=10))
    outbox.add(record(1, size=99))
    assert outbox.bytes_in_use == 10


def test_what_has_caught_up_is_settled_by_its_acknowledgement_alone() -> None:
    outbox = Outbox()
    outbox.add(record(1, CAUSE), ahead=True)
    assert outbox.find(A, CAUSE, 0) is not None
    assert not outbox.settled(EnvelopeKey(A, 1, 1))
    assert outbox.snapshot_taken(lambda cause: True) == []
    outbox.settle(EnvelopeKey(A, 1, 1))
    assert outbox.snapshot_taken(lambda cause: True) == [EnvelopeKey(A, 1, 1)]


def test_a_cause_that_runs_again_finds_its_number() -> None:
    outbox = Outbox()
    first = record(1, CAUSE, wire_id=3)
    outbox.add(first)
    outbox.add(first)
    assert len(outbox) == 1
    assert outbox.find(A, CAUSE, 3) == first
    assert outbox.find(A, CAUSE, 4) is None
    assert outbox.find(B, CAUSE, 3) is None
    assert outbox.find(A, CAUSE._replace(seq=7), 3) is None
    assert not outbox.settled(first.key)
    assert outbox.settle(first.key)
    assert outbox.find(A, CAUSE, 3) == first and outbox.settled(first.key)


def test_a_snapshot_drops_what_is_settled_and_all_causes() -> None:
    outbox = Outbox()
    for seq in (1, 2):
        outbox.add(record(seq, CAUSE, wire_id=seq))
    outbox.settle(EnvelopeKey(A, 1, 1))
    assert [r.key.seq for r in outbox.waiting()] == [2]
    assert outbox.snapshot_taken(_nothing) == [EnvelopeKey(A, 1, 1)]
    assert len(outbox) == 1 and outbox.bytes_in_use == 10
    assert outbox.find(A, CAUSE, 2) is None
    assert outbox.settle(EnvelopeKey(A, 1, 2)) and not outbox.settle(EnvelopeKey(A, 1, 1))
    assert outbox.snapshot_taken(_nothing) == [EnvelopeKey(A, 1, 2)] and outbox.bytes_in_use == 0


def _nothing(cause: Cause) -> bool:
    return False


def test_what_a_restart_finds_keeps_its_cause_until_that_has_run_or_cannot() -> None:
    outbox = Outbox()
    sent = [record(seq, CAUSE._replace(seq=seq)) for seq in (1, 2, 3, 4)]
    for one in sent:
        outbox.add(one, ahead=True)
    outbox.add(record(5), ahead=True)  # of nothing that comes again
    for seq in (1, 2, 3, 5):
        outbox.settle(EnvelopeKey(A, 1, seq))
    assert outbox.settled(sent[0].key) and [r.key.seq for r in outbox.waiting()] == [4]
    assert outbox.find(A, CAUSE._replace(seq=1), 0) == sent[0]

    # 1 has come by, 2 cannot any more, 3 and 4 are still to come, 5 was nobody's.
    gone = outbox.snapshot_taken(lambda cause: cause.seq >= 3)
    assert sorted(key.seq for key in gone) == [1, 2, 5]
    assert outbox.settled(sent[2].key) and not outbox.settled(sent[3].key)
    assert not outbox.any_settled  # what stays for its cause makes no room
    for one in sent[2:]:
        assert outbox.find(A, CAUSE._replace(seq=one.key.seq), 0) == one
    assert outbox.snapshot_taken(lambda cause: True) == [sent[2].key]
    assert outbox.find(A, CAUSE._replace(seq=4), 0) is None
    assert outbox.remove(sent[3].key) and len(outbox) == 0 == outbox.bytes_in_use


def test_what_the_snapshot_knows_is_not_ahead() -> None:
    outbox = Outbox()
    outbox.add(record(1, CAUSE))
    outbox.add(record(1, CAUSE), ahead=True)
    outbox.settle(EnvelopeKey(A, 1, 1))
    assert outbox.snapshot_taken(lambda cause: True) == [EnvelopeKey(A, 1, 1)]


def test_what_could_not_be_written_is_taken_back() -> None:
    outbox = Outbox()
    outbox.add(record(1, CAUSE))
    assert outbox.remove(EnvelopeKey(A, 1, 1)) and not outbox.remove(EnvelopeKey(A, 1, 1))
    assert len(outbox) == 0 and outbox.bytes_in_use == 0 and outbox.find(A, CAUSE, 0) is None


def test_records_below_at_and_above_the_bound() -> None:
    outbox = Outbox(max_records=3)
    for seq in (1, 2):
        outbox.add(record(seq))
    assert not outbox.wants_snapshot
    outbox.add(record(3))
    assert not outbox.wants_snapshot and not outbox.any_settled  # it would make no room
    with pytest.raises(OutboxFullError):
        outbox.add(record(4))
    assert len(outbox) == 3
    outbox.settle(EnvelopeKey(A, 1, 2))
    assert outbox.wants_snapshot and outbox.any_settled
    with pytest.raises(OutboxFullError):
        outbox.add(record(4))  # settled records stay until the snapshot
    outbox.snapshot_taken(_nothing)
    outbox.add(record(4))


def test_bytes_below_at_and_above_the_bound() -> None:
    outbox = Outbox(max_bytes=100)
    outbox.add(record(1, size=60))
    with pytest.raises(OutboxFullError):
        outbox.add(record(2, size=41))
    outbox.add(record(2, size=39))
    outbox.add(record(3, size=1))
    assert outbox.bytes_in_use == 100
    outbox.settle(EnvelopeKey(A, 1, 3))
    assert not outbox.wants_snapshot  # for one byte
    outbox.settle(EnvelopeKey(A, 1, 2))
    outbox.settle(EnvelopeKey(A, 1, 2))
    assert outbox.wants_snapshot
    with pytest.raises(OutboxFullError):
        outbox.add(record(4, size=1))


def test_a_record_is_decided_by_its_table() -> None:
    def taken(outbox: Outbox, may_run: bool = True) -> list[int]:
        return [key.seq for key in outbox.snapshot_taken(lambda _cause: may_run)]

    def walk() -> None:
        plain, ahead = record(1, CAUSE), record(2, CAUSE, wire_id=2)
        outbox = Outbox()
        outbox.add(plain)
        assert outbox.find(A, CAUSE, 0) is plain  # waiting: caught_up
        assert outbox.settle(plain.key) and outbox.settle(plain.key)  # waiting, settled: settle
        assert outbox.find(A, CAUSE, 0) is plain  # settled: caught_up
        assert taken(outbox) == [1]  # settled: snapshot
        assert not outbox.settle(plain.key)

        outbox.add(ahead, ahead=True)  # waiting: found
        assert taken(outbox) == []  # ahead: snapshot
        assert outbox.find(A, CAUSE, 2) is ahead  # ahead: caught_up
        assert taken(outbox) == []  # waiting: snapshot
        assert outbox.find(A, CAUSE, 2) is None
        assert outbox.remove(ahead.key)

        outbox.add(ahead, ahead=True)
        assert outbox.settle(ahead.key) and outbox.settle(ahead.key)  # ahead, ahead_settled: settle
        assert outbox.settled(ahead.key) and not outbox.any_settled
        assert taken(outbox) == []  # ahead_settled: snapshot
        assert taken(outbox, may_run=False) == [2]  # ahead_settled: caught_up

    assert_decides_by(RECORD, walk)


def test_a_record_whose_body_is_missing_is_refused() -> None:
    body = b"x" * 5000
    record = OutboxRecord(EnvelopeKey(A, 1, 1), b"rest", 0, None, 0, body, name_of(body))
    both = [body_record(body), record.to_bytes()]
    assert read_all(both)[0] == [record]
    with pytest.raises(OutboxRecordError, match="the body that it names is missing"):
        read_all(both[1:])
