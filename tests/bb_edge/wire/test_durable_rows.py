"""The rows that a sender of durable envelopes writes: what is read of them, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peers import A, B

from bb_edge import PeerId
from bb_edge.wire import cbor, durable_rows, presence
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.durable_rows import Flow, Met, Numbers
from bb_edge.wire.outbox import OutboxRecord, OutboxRecordError, name_of
from bb_edge.wire.presence import Presence
from bb_edge.wire.resend import EnvelopeKey

UP = presence.encode_presence(Presence(up=True))


def record(peer: PeerId, epoch: int = 0, seq: int = 0, body: bytes = b"") -> OutboxRecord:
    return OutboxRecord(
        EnvelopeKey(peer, epoch, seq), b"x", body=body, body_name=name_of(body) if body else BodyName()
    )


def test_a_row_of_a_peer_hides_no_row_behind_it() -> None:
    rows = [Met(B, UP).to_bytes(), durable_rows.record_row(1, record(A)), Met(A, UP).to_bytes()]
    assert [*durable_rows.read(rows, {}).records] == [1]
    assert durable_rows.met_in(rows) == [Met(B, UP), Met(A, UP)]


@pytest.mark.parametrize(
    "fields",
    [
        (list(A.to_bytes()), UP),
        (A.to_bytes(), list(UP)),
        (A.to_bytes(), "text"),
        (A.to_bytes(), b"no presence"),
        (b"no peer", UP),
    ],
)
def test_what_begins_like_the_row_of_a_peer_and_is_none_is_refused(fields: tuple[object, object]) -> None:
    row = cbor.dumps([durable_rows.ROW_VERSION, *fields])
    with pytest.raises(OutboxRecordError) as caught:
        durable_rows.met_in([row])
    assert caught.value.what == "not a row of a peer"


def test_a_snapshot_misses_what_is_gone_and_not_what_was_over() -> None:
    assert durable_rows.missed((1, 2, 3), {2}) == (1, 3)
    assert durable_rows.missed((1, 2), frozenset()) == (1, 2)
    assert durable_rows.missed((1, 2), None) == (), "an older runtime does not say what was over"


def test_numbers_of_dropped_records_stay_given_for_each_peer_though_nothing_else_tells_of_it() -> None:
    dropped = [record(A, 5, 4), record(B, 5, 3), record(A, 5, 2)]
    assert durable_rows.keeping(dropped, [], {}) == [Numbers(A, 5, 5, ()), Numbers(B, 5, 4, ())]
    flows = {A: Flow(5, 3)}
    assert durable_rows.keeping(dropped[:1], [], flows) == [Numbers(A, 5, 5, ())]
    assert flows == {A: Flow(5, 3)}, "what the snapshot says stays as it is"


def test_an_older_record_whose_body_is_gone_is_refused() -> None:
    old = replace(record(A, 5, 1, b"the body"), body=b"")
    with pytest.raises(OutboxRecordError) as caught:
        durable_rows.read([old.to_bytes()], {})
    assert caught.value.what == "the body that it names is missing"


def test_a_row_may_name_as_many_records_as_an_outbox_holds_and_nests_nothing_else() -> None:
    row = Numbers(A, 5, 1, tuple(range(1, 5000)))
    assert durable_rows.read([row.to_bytes()], {}).given == [row]
    deep = cbor.dumps([3, A.to_bytes(), 5, 1, [[]], [0, 0, 0]])
    with pytest.raises(OutboxRecordError) as caught:
        durable_rows.read([deep], {})
    assert caught.value.what == "damaged: CBOR: nested too deeply"
