"""What a sender of durable flows reads after a restart: rows, snapshots, older versions; what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from durable_ends import (
    asked_by,
    asked_by_writing,
    emptied,
    marks_in,
    opened,
    record,
    rows_of,
    sender,
    write_all,
    written,
)
from peers import A, B, C

from bb_edge import PeerId
from bb_edge.wire import cbor, durable_rows, marks
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED
from bb_edge.wire.durable_flows import Publish, RolledBack, Say, Settled, Write
from bb_edge.wire.durable_questions import (
    ASK_AGAIN_NS,
)
from bb_edge.wire.durable_rows import Flow, Numbers
from bb_edge.wire.envelope import Ack
from bb_edge.wire.marks import Heard, Open, Taken, Took
from bb_edge.wire.outbox import OutboxFullError, OutboxRecord, OutboxRecordError, body_record, name_of
from bb_edge.wire.resend import EnvelopeKey


def test_a_settled_record_that_may_not_go_keeps_its_number() -> None:
    one = sender()
    number = one.send(record(), 0)
    effects = opened(one)
    epoch = one.inspect()[str(A)]["epoch"]
    one.acknowledged(A, [Ack(epoch, 1)])
    other = one.send(record(), 0)
    effects += write_all(one)
    effects += opened(one, A, Taken(epoch, 1), now_ns=10**11, run=2)
    rows = {effect.name: effect.row for effect in effects if isinstance(effect, Write)}
    for name in one.snapshot_taken(()):
        del rows[name]
    again = sender()
    again.restore(one.save(lambda _: True), rows.values())
    assert {held.id: held.settled for held in again} == {number: True, other: False}


def test_a_restart_goes_on_and_rows_may_be_read_in_any_order() -> None:
    one = sender()
    alone = sender()
    alone.send(record(), 0)
    unnumbered = sender()
    unnumbered.restore(alone.save(), rows_of(alone.out))
    assert unnumbered.inspect()[str(A)]["waiting"] == [(1, True)]
    first, second, third = (one.send(record(), 0) for _ in range(3))
    effects = opened(one)
    fourth = one.send(record(), 0)
    effects += write_all(one)
    epoch = one.inspect()[str(A)]["epoch"]
    for rows in (rows_of(effects), rows_of(effects)[::-1]):
        again = sender()
        again.restore(one.save(), rows)
        assert again.inspect()[str(A)]["open"] == [(seq, seq, True) for seq in (1, 2, 3, 4)]
        assert again.payload(first) is None
    # What the marks cover is settled, by the row that begins the next epoch too.
    effects += opened(again, A, Taken(epoch, 1, 0b10), now_ns=0)
    last = sender()
    last.restore([], rows_of(effects))
    assert [row[1] for row in last.inspect()[str(A)]["open"]] == [second, fourth]
    assert last.inspect()[str(A)]["heard"] == (epoch, 3, 0b101)
    assert set(last.snapshot_taken()) >= {first, third}
    # Nothing that a snapshot dropped is needed any more; a row stays while a record has its number by it.
    last.drop(second)
    last.drop(fourth)
    known = last.save()
    gone = last.snapshot_taken()
    assert {second, fourth} <= set(gone) and any(isinstance(name, durable_rows.RowName) for name in gone)
    assert known[1][0][1] > epoch
    # A row of what it dropped may be on disk still, without the one that has its number, or its body.
    left = sender()
    body = bytes(5000)
    stale = durable_rows.record_row(second, replace(record(body=body), key=EnvelopeKey(A, 0, 0)))
    left.restore(known, [stale, durable_rows.record_row(99, record())])
    assert [held.id for held in left] == [99]
    assert second in left.snapshot_taken()


def test_a_peer_without_marks_is_served_in_one_epoch() -> None:
    one = sender()
    waits = one.send(record(), 0)
    one.peer_up(A, 1, False, 0)
    effects = write_all(one)
    assert Publish(waits) in effects
    epoch = one.inspect()[str(A)]["epoch"]
    again = sender()
    again.restore(one.save(), rows_of(effects))
    again.peer_up(A, 2, False, 0)
    again.peer_up(A, 2, False, 0)
    assert Publish(waits) in emptied(again)
    again.send(record(), 0)
    assert again.inspect()[str(A)]["epoch"] == epoch
    assert again.inspect()[str(A)]["last"] == 2


def test_records_of_earlier_versions_are_written_down_anew() -> None:
    body = bytes(5000)
    old = OutboxRecord(EnvelopeKey(A, 77, 3), record().encoded, body=body, body_name=name_of(body))
    gone = OutboxRecord(EnvelopeKey(A, 70, 3), record().encoded)
    rows = [body_record(body), old.to_bytes(), gone.to_bytes()]
    one = sender()
    one.restore([], rows)
    (again,) = emptied(one, Write)
    assert one.inspect()[str(A)]["open"] == [(3, 1, False)]
    one.persisted(again.token)
    assert set(one.snapshot_taken()) == {old.key, gone.key}
    # Both are there after a crash before the old ones went: one counts.
    twice = sender()
    twice.restore([], [*rows, again.row])
    assert twice.inspect()[str(A)]["open"] == [(3, 1, True)]
    with pytest.raises(OutboxRecordError, match="body"):
        sender().restore([], rows[1:])


def test_a_record_whose_body_is_gone_is_missing_and_the_others_are_there() -> None:
    rows = [durable_rows.record_row(1, record(body=bytes(5000))), durable_rows.record_row(2, record())]
    one = sender()
    one.restore([3, [], [1, 2]], rows)
    assert one.missing == (1,) and [held.id for held in one] == [2]
    assert one.snapshot_taken() == [1], "its row goes"
    assert one.send(record(), 0) == 3, "its id is not given again"
    other = sender()
    other.restore([], rows[:1])
    assert other.missing == (1,) and other.send(record(), 0) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b"", "damaged: CBOR: ends at byte 0"),
        (b"\xff", "damaged: CBOR: an indefinite length or reserved form at byte 0"),
        (cbor.dumps([]), "not a row of this version"),
        (cbor.dumps(3), "not a row of this version"),
        (cbor.dumps([3]), "not a row of numbers"),
        (cbor.dumps([3, 1]), "not a row of numbers"),
        (cbor.dumps([3, b"x"]), "not a row of numbers"),
        (cbor.dumps([2, b"x", b"y"]), "not a record of this version"),
        (cbor.dumps([2, "x"]), "not a record of this version"),
        (cbor.dumps([3, "a", 1, 1, [1], [0, 0, 0]]), "not a row of numbers"),
        (cbor.dumps([3, 1, b"x", "now"]), "not a row of numbers"),
        (cbor.dumps([3, 1, b"x", 0]), "damaged: CBOR: ends inside an item at byte 1"),
        (record().to_bytes(), "an old record without a number"),
        *(
            (cbor.dumps([3, A.to_bytes(), *rest]), "not a row of numbers")
            for rest in (
                *([1, 1, 1, [0, 0, 0]], [1, 1, ["a"], [0, 0, 0]], [1, 1, [True], [0, 0, 0]]),
                *(["1", 1, [1], [0, 0, 0]], [1, None, [1], [0, 0, 0]], [1, 1, [1], 0]),
                *([1, 1, [1], [0]], [1, 1, [1], [0, 0, "0"]], [1, 1, [1], [0, 0, 0, 0]]),
            )
        ),
        (cbor.dumps([3, b"no peer", 1, 1, [1], [0, 0, 0]]), "not a row of numbers"),
    ],
)
def test_other_bytes_are_no_rows(row: bytes, what: str) -> None:
    with pytest.raises(OutboxRecordError) as caught:
        durable_rows.read([row], {})
    assert (caught.value.what, caught.value.where, caught.value.hint) == (what, "outbox", "drop the file")


def test_a_row_of_numbers_for_a_whole_window_is_read() -> None:
    row = Numbers(A, 5, 1, tuple(range(1, DURABLE_UNACKNOWLEDGED + 1)), Heard(4, 2, 1))
    assert durable_rows.read([row.to_bytes()], {}).given == [row]


def test_an_epoch_that_begins_with_more_than_a_window_is_read() -> None:
    """A disk that went back knows of no acknowledgement, so that more may be open than a window has."""
    row = Numbers(A, 1 << 60, 1, tuple(range(1, 200)), Heard(1 << 60, 1 << 40, (1 << 64) - 1))
    assert durable_rows.read([row.to_bytes()], {}).given == [row]


def test_a_row_names_its_record_and_peer_as_an_operator_knows_them() -> None:
    assert durable_rows.name_and_peer(durable_rows.record_row(7, record())) == ("7", A)
    old = replace(record(), key=EnvelopeKey(A, 77, 3))
    assert durable_rows.name_and_peer(old.to_bytes()) == (f"{A}:77:3", A)
    for other in (Numbers(A, 5, 1, (4, 5)).to_bytes(), body_record(b"x"), cbor.dumps([3, 1, "x", 0])):
        with pytest.raises(OutboxRecordError):
            durable_rows.name_and_peer(other)


def test_what_was_heard_is_told_by_the_row_that_begins_the_last_epoch() -> None:
    first, later = Numbers(A, 5, 1, (1,), Heard(4, 2, 1)), Numbers(A, 5, 2, (2,))
    for rows in ([first, later], [later, first]):
        found = durable_rows.read([row.to_bytes() for row in rows], {})
        assert found.flows == {A: Flow(5, 2, Heard(4, 2, 1))}
        assert found.numbers == {1: 1, 2: 2}
    # A snapshot that has the epoch is later than the row.
    known = {A: Flow(5, 1, Heard(5, 1, 0))}
    assert durable_rows.read([first.to_bytes()], known).flows == known


def test_a_record_that_has_its_number_in_an_epoch_that_is_over_is_settled() -> None:
    rows = [
        durable_rows.record_row(number, replace(record(), key=EnvelopeKey(A, epoch, seq)))
        for number, epoch, seq in ((1, 5, 1), (2, 6, 3), (3, 0, 0))
    ]
    found = durable_rows.read(rows, {})
    assert found.settled == {1} and found.numbers == {2: 3} and found.flows == {A: Flow(6, 3)}
    assert sorted(found.records) == [1, 2, 3]


def test_an_old_record_that_was_written_down_anew_under_its_number_counts_once() -> None:
    def old(peer: PeerId, epoch: int, seq: int) -> OutboxRecord:
        return replace(record(peer), key=EnvelopeKey(peer, epoch, seq))

    anew = durable_rows.record_row(1, old(A, 5, 2))
    rows = [anew, *(one.to_bytes() for one in (old(A, 5, 2), old(A, 5, 3), old(A, 4, 9), old(B, 5, 2)))]
    found = durable_rows.read(rows, {})
    assert [one.key for one in found.older] == [EnvelopeKey(A, 5, 3), EnvelopeKey(B, 5, 2)]
    assert [key[1:] for key in found.replaced] == [(5, 2), (5, 3), (4, 9), (5, 2)]


def test_bodies_that_no_record_names_are_told() -> None:
    bodies = [bytes([n]) * 5000 for n in range(3)]
    old = replace(record(body=bodies[1]), key=EnvelopeKey(A, 5, 1))
    rows = [*map(body_record, bodies), durable_rows.record_row(4, record(body=bodies[0])), old.to_bytes()]
    found = durable_rows.read(rows, {})
    assert found.orphans == {name_of(bodies[2])}
    assert found.records[4].body == bodies[0] and found.older[0].body == bodies[1]


def test_when_a_record_was_written_stands_in_its_row() -> None:
    row = durable_rows.record_row(4, replace(record(), written_s=1_700_000_000))
    assert durable_rows.read([row], {}).records[4].written_s == 1_700_000_000


def test_a_snapshot_drops_the_records_below_its_next_id_that_it_does_not_name() -> None:
    rows = [durable_rows.record_row(number, record()) for number in (1, 2, 3, 4)]
    found = durable_rows.read(rows, {}, 3, {2})
    assert sorted(found.records) == [2, 3, 4] and found.stale == [1]
    assert sorted(durable_rows.read(rows, {}).records) == [1, 2, 3, 4]


def test_rows_that_name_records_that_are_not_there_say_nothing() -> None:
    found = durable_rows.read([Numbers(A, 5, 1, (4, 5)).to_bytes()], {A: Flow(5, 9), B: Flow(1, 1)})
    assert (found.flows[A].epoch, found.flows[A].last, found.settled) == (5, 9, set())


def test_a_record_of_a_peer_that_nothing_else_is_known_of_goes_out_after_a_restart() -> None:
    one = sender()
    one.send(record(B), 0)
    again = sender()
    again.restore([], rows_of(one.out))
    assert again.peers == (B,)
    (held,) = again
    assert Publish(held.id) in opened(again, B)
    leaving = again.payload(held.id)
    assert leaving is not None and leaving[0] == B


def test_a_row_of_numbers_goes_when_its_epoch_is_over() -> None:
    one = sender()
    number = one.send(record(), 0)
    opened(one)
    first = one.inspect()[str(A)]["epoch"]
    opened(one, A, now_ns=10 * ASK_AGAIN_NS, run=2)
    last = one.inspect()[str(A)]["epoch"]
    assert last > first
    # The record is open still: its number is that of the last epoch.
    assert one.snapshot_taken() == [durable_rows.RowName(A, first, 1)]
    one.acknowledged(A, (Ack(last, 1),))
    assert one.snapshot_taken() == [number, durable_rows.RowName(A, last, 1)]


def test_records_that_a_snapshot_alone_has_are_written_down_anew() -> None:
    known = replace(record(), key=EnvelopeKey(A, 5, 2))
    rows = [Numbers(A, 5, 1, (1,)).to_bytes(), durable_rows.record_row(1, record())]
    ended, other = (replace(record(peer), key=EnvelopeKey(peer, 4, 9)) for peer in (A, B))
    one = sender()
    unwritten = [(1, known), (2, known), (3, ended), (4, other)]
    one.restore([5, [], [1, 2, 3, 4]], rows, unwritten)
    written = emptied(one, Write)
    assert [write.name for write in written] == [2, 3, 4], "that of 1 is on disk"
    assert one.inspect()[str(A)]["open"] == [(1, 1, True), (2, 2, False)]
    assert one.inspect()[str(A)]["waiting"] == [(3, False)], "its epoch is over"
    assert one.inspect()[str(B)]["waiting"] == [(4, False)]
    assert one.send(record(), 0) == 5
    # Of a record of an earlier version the snapshot has what is on disk.
    old = replace(record(), key=EnvelopeKey(C, 7, 1))
    two = sender()
    two.restore([5, [], []], [old.to_bytes()], [(9, old)])
    assert [held.id for held in two] == [5] and two.send(record(), 0) == 6


def test_a_record_that_a_snapshot_alone_has_keeps_the_number_that_a_row_gives_it() -> None:
    one = sender()
    one.restore([3, [], [1, 2]], [Numbers(A, 5, 1, (1, 2)).to_bytes()], [(2, record())])
    assert one.inspect()[str(A)]["open"] == [(2, 2, False)]
    assert one.inspect()[str(A)]["waiting"] == []


def test_what_is_dropped_by_hand_leaves_its_number_given() -> None:
    first, last, to_b = (
        replace(record(peer), key=EnvelopeKey(peer, 5, seq)) for peer, seq in ((A, 1), (A, 3), (B, 2))
    )
    given = [Numbers(A, 5, 1, (1, 2))]
    keep = durable_rows.keeping([first, last, to_b], given, {A: Flow(4, 9), B: Flow(5, 2)})
    assert keep == [Numbers(A, 5, 4, ())], "what rows or the snapshot say as well needs none"
    assert durable_rows.read([row.to_bytes() for row in [*given, *keep]], {}).flows[A].last == 3


def test_what_a_row_says_is_over_is_over_though_a_snapshot_has_it() -> None:
    kept, dropped = record(), replace(record(), key=EnvelopeKey(A, 5, 2))
    rows = [Numbers(A, 5, 1, (1, 2)).to_bytes(), durable_rows.record_row(1, kept)]
    rows += [row.to_bytes() for row in durable_rows.over([(2, dropped), (3, record()), (4, record(B))])]
    one = sender()
    one.restore([5, [], [1, 2, 3, 4]], rows, [(2, dropped), (3, record()), (4, record(B))])
    assert [held.id for held in one] == [1] and not emptied(one, Write)
    assert one.inspect()[str(A)]["open"] == [(1, 1, True)]
    # The number stays given, in the flow that has one and in none that has not.
    assert one.inspect()[str(A)]["last"] == 2 and one.inspect()[str(B)]["last"] == 0
    assert one.send(record(), 0) == 5
    # A snapshot that knows of it needs no such row any more.
    names = [row.name for row in durable_rows.over([(2, dropped), (4, record(B))])]
    assert {*names} <= {*one.snapshot_taken()}


def test_ids_go_on_above_all_that_rows_name() -> None:
    for rows in ([durable_rows.record_row(8, record())], [Numbers(A, 5, 1, (7, 8)).to_bytes()]):
        one = sender()
        one.restore([], rows)
        assert one.send(record(), 0) == 9
    one = sender()
    one.restore([12, [], []], [])
    assert one.send(record(), 0) == 12


def test_room_is_taken_again_by_what_is_read() -> None:
    size = len(record().encoded)
    one = sender()
    ids = [one.send(record(peer), 0) for peer in (A, B, C)]
    effects = opened(one)
    one.acknowledged(A, (Ack(one.inspect()[str(A)]["epoch"], 1),))
    saved = one.save(lambda _: True)
    again = sender(4 * size)
    again.restore(saved, rows_of(effects))
    assert [held.id for held in again] == ids
    with pytest.raises(OutboxFullError, match="for one peer"):
        again.send(record(B), 0)
    again.send(record(PeerId.from_name("d")), 0)
    with pytest.raises(OutboxFullError):
        again.send(record(PeerId.from_name("e")), 0)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_number_whose_row_is_being_written_is_known_to_who_is_put_back_to_that_snapshot(is_there) -> None:
    one, rows = sender(), list[bytes]()
    one.send(record(content=b"a"), 0)
    one.peer_up(A, 1, True, 0)
    one.took(A, Took(asked_by_writing(one, rows).token, 7, ()), 0)
    one.send(record(content=b"b"), 0)  # it waits: an epoch begins
    late = written(one, rows, 2)
    saved = one.save()
    epoch = one.inspect()[str(A)]["epoch"]
    again = sender()
    again.restore(cbor.loads(cbor.dumps(saved)), [*rows, late.row] if is_there else rows)
    assert again.inspect()[str(A)]["open"] == [(1, 1, True), (2, 2, is_there)]
    asked = [effect.name for effect in again.out if isinstance(effect, Write)]
    assert asked == ([] if is_there else [late.name])
    effects = opened(again, A, Taken(epoch, 2), run=2)
    assert [effect.id for effect in effects if isinstance(effect, Settled)] == [1, 2]
    assert not [effect for effect in effects if isinstance(effect, RolledBack)]


@pytest.mark.parametrize("before", [(), (Taken(40, 1),)], ids=["nothing taken", "an epoch before"])
def test_an_epoch_that_is_not_the_senders_says_that_one_of_the_two_is_old(before) -> None:
    one = sender()
    for _ in range(2):
        one.send(record(), 0)
    rows = rows_of(opened(one, A, *before))
    epoch = one.inspect()[str(A)]["epoch"]
    # A sender that was put back has given it, and so may have sent what this state has not heard to be taken.
    for windows, said in (
        (before, []),
        ((Taken(epoch, 1),), []),
        ((Taken(epoch - 1, 5),), [RolledBack(A, None, epoch - 1, again=(1, 2))]),
    ):
        copied = sender()
        copied.restore(one.save(), rows)
        effects = opened(copied, A, *windows)
        assert [effect for effect in effects if isinstance(effect, RolledBack)] == said
        opens = [marks.decoded(marks_in(effect.payload)) for effect in effects if isinstance(effect, Say)]
        assert not any(said.sender_is_old for said in opens if isinstance(said, Open))
        effects = opened(copied, A, *windows, now_ns=10 * ASK_AGAIN_NS, run=2)
        assert not [effect for effect in effects if isinstance(effect, RolledBack)], "once"


def test_a_record_that_comes_while_marks_are_asked_for_waits() -> None:
    one = sender()
    one.send(record(), 0)
    opened(one)
    one.peer_up(A, 2, True, 10 * ASK_AGAIN_NS)
    emptied(one)
    sent = record(content=b"y")
    number = one.send(sent, 10 * ASK_AGAIN_NS)
    (write,) = write_all(one)
    assert write.record is sent and write.row == durable_rows.record_row(number, sent)
    assert one.inspect()[str(A)]["waiting"] == [(number, True)] and one.payload(number) is None


def test_what_a_snapshot_knows_of_a_flow_needs_no_rows() -> None:
    one = sender()
    number = one.send(record(), 0)
    opened(one)
    epoch = one.inspect()[str(A)]["epoch"]
    one.acknowledged(A, (Ack(epoch, 1),))
    again = sender()
    body = bytes(5000)
    assert again.restore(one.save(), [body_record(body)]) == {name_of(body)}
    assert list(again) == [] and again.save() == one.save()
    assert again.inspect()[str(A)]["epoch"] == epoch and again.inspect()[str(A)]["last"] == 1
    again.peer_up(A, 1, True, 0)
    assert asked_by(again).heard == Heard(epoch, 1, 1)
    assert again.send(record(), 0) == number + 1
