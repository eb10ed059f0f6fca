"""`OutboxRoom` against the same sums made anew from a list of records; and records that name a body."""

from __future__ import annotations

import random

import pytest
from peers import A, B

from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.outbox import (
    NAMING_VERSION,
    RECORD_VERSION,
    Cause,
    OutboxFullError,
    OutboxRecord,
    OutboxRecordError,
    body_record,
)
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.resend import EnvelopeKey
from tests.aids.peers import numbered

PEERS = [A, B, numbered(3)]


class Model:
    """Records by state, and nothing counted beforehand."""

    def __init__(self) -> None:
        self.open: list[OutboxRecord] = []
        self.settled: list[OutboxRecord] = []

    @staticmethod
    def bytes_of(records: list[OutboxRecord]) -> int:
        bodies = {id(r.body): len(r.body) for r in records}
        return sum(len(r.encoded) for r in records) + sum(bodies.values())

    def for_peer(self, peer: PeerId) -> int:
        return sum(len(r.encoded) + len(r.body) for r in self.open if r.key.peer == peer)

    def compare(self, room: OutboxRoom) -> None:
        everything = self.open + self.settled
        assert room.records == len(everything)
        assert room.bytes_in_use == self.bytes_of(everything)
        assert room.open_bytes == self.bytes_of(self.open)
        assert [room.bytes_for(peer) for peer in PEERS] == [self.for_peer(peer) for peer in PEERS]
        assert room.any_settled == bool(self.settled)
        freed = sum(len(r.encoded) for r in self.settled)
        full = room.records >= room.max_records * 3 / 4 or room.bytes_in_use >= room.max_bytes * 3 / 4
        worth = len(self.settled) >= room.max_records / 8 or freed >= room.max_bytes / 8
        assert room.wants_snapshot == (full and worth)


@pytest.mark.parametrize("seed", range(30))
def test_the_sums_are_those_of_the_records(seed: int) -> None:
    rng = random.Random(seed)
    room = OutboxRoom(rng.choice([5, 8, 16]), rng.choice([40, 64, 400]))
    model = Model()
    assert room.share == room.max_bytes // 4
    bodies = [bytes([n]) * rng.choice([1, 5, 12]) for n in range(3)]
    refusals = set()
    for number in range(300):
        record = OutboxRecord(
            EnvelopeKey(rng.choice(PEERS), 1, number),
            bytes(rng.randint(1, rng.choice([4, 12]))),
            body=rng.choice([b"", *bodies]),
        )
        peer, size = record.key.peer, len(record.encoded) + len(record.body)
        waiting = model.for_peer(peer)
        within_share = waiting == 0 or waiting + size <= room.share
        used = model.bytes_of(model.open + model.settled)
        with_it = model.bytes_of([*model.open, *model.settled, record])
        fits = room.records < room.max_records and with_it <= room.max_bytes
        assert room.has_share(peer, size) == within_share
        assert room.has_room(len(record.encoded), record.body) == fits
        if within_share and fits:
            room.take(record)
            model.open.append(record)
        else:
            with pytest.raises(OutboxFullError) as refused:
                room.take(record)
            assert refused.value.where == "outbox"
            if not within_share:
                assert refused.value.what == f"{size} bytes for peer {peer}, for which {waiting} wait already"
                assert refused.value.hint == (
                    f"at most {room.share} for one peer, a quarter of limits.outbox_bytes"
                )
            else:
                assert refused.value.what == (
                    f"{room.records} records with {used} bytes, {size} bytes requested"
                )
                assert refused.value.hint == (
                    f"at most {room.max_records} records (limits.outbox_records) and {room.max_bytes} bytes "
                    "(limits.outbox_bytes)"
                )
            refusals.add(within_share)
            if rng.random() < 0.1:  # it is on disk already
                room.adopt(record)
                model.open.append(record)
        model.compare(room)
        if model.open and rng.random() < 0.5:
            done = model.open.pop(rng.randrange(len(model.open)))
            room.settle(done)
            model.settled.append(done)
            model.compare(room)
        if room.wants_snapshot or rng.random() < 0.02:
            for gone in model.settled:
                room.release(gone)
            model.settled.clear()
            model.compare(room)
    assert refusals, "a world in which everything fits says nothing"


def test_a_record_names_its_body_and_gets_it_back() -> None:
    body = b"shared by many"
    record = OutboxRecord(
        EnvelopeKey(A, 7, 8), b"head", 9, Cause(B, 5, 6), 11, body=body, body_name=BodyName(b"n" * 32)
    )
    plain = OutboxRecord(EnvelopeKey(A, 7, 8), b"head", 9, Cause(B, 5, 6), 11)
    row, plain_row = cbor.loads(record.to_bytes()), cbor.loads(plain.to_bytes())
    assert (row[0], plain_row[0]) == (NAMING_VERSION, RECORD_VERSION)
    assert row[1:] == [*plain_row[1:], b"n" * 32], "the name stands behind, and the body in a row of its own"
    found = OutboxRecord.from_bytes(record.to_bytes())
    assert found.body == b"" and found.body_name == record.body_name
    assert found.with_body(body) == record and found.with_body(b"") is found
    assert cbor.loads(body_record(body)) == [NAMING_VERSION, body]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (cbor.dumps([NAMING_VERSION, *range(17)]), "damaged"),
        (cbor.dumps([RECORD_VERSION, [[1]]]), "damaged"),
        (cbor.dumps([NAMING_VERSION, *range(9)]), "not a record of this version"),
        (cbor.dumps(5), "not a record of this version"),
    ],
)
def test_rows_of_another_shape_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(OutboxRecordError) as refused:
        OutboxRecord.from_bytes(data)
    assert refused.value.what.startswith(says)
