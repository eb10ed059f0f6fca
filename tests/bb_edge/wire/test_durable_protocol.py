"""The machines of durable flows by themselves: tables, marks, rows, bounds, restarts."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from peers import A, B, C

from bb_edge import PeerId
from bb_edge.wire import cbor, durable_rows, envelope, marks
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.caps import UNBOUNDED_CAPS
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED, Verdict
from bb_edge.wire.durable_flows import FLOW, NoWindow, Publish, RolledBack, Say, Settled, Write
from bb_edge.wire.durable_questions import (
    ASK_AGAIN_NS,
    OLD_AGAIN_NS,
    OLD_FORGOTTEN_NS,
    OLD_LONGEST_NS,
    Question,
)
from bb_edge.wire.durable_receiver import PROMPT_NS, SOURCE, DurableReceiver
from bb_edge.wire.durable_rows import Flow, Numbers
from bb_edge.wire.durable_sender import FAR_EPOCHS, RANDOM_EPOCH, DurableSender
from bb_edge.wire.envelope import Ack, Envelope, Fill
from bb_edge.wire.marks import Ask, Heard, Open, Taken, Took
from bb_edge.wire.outbox import OutboxFullError, OutboxRecord, OutboxRecordError, body_record, name_of
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.resend import EnvelopeKey
from tests.aids.transitions import assert_decides_by


def sender(max_bytes: int = 1 << 20) -> DurableSender:
    numbers = count(1)
    return DurableSender(lambda: next(numbers), OutboxRoom(max_bytes=max_bytes))


def receiver(max_sources: int = 10) -> DurableReceiver:
    numbers = count(101)
    return DurableReceiver(lambda: next(numbers), max_sources)


def record(peer: PeerId = A, content: bytes = b"x", body: bytes = b"") -> OutboxRecord:
    data = envelope.encode(Envelope([Fill(b"", content)]))
    return OutboxRecord(
        EnvelopeKey(peer, 0, 0), data, body=body, body_name=name_of(body) if body else BodyName()
    )


def emptied(machine: Any, kind: type | None = None) -> list[Any]:
    effects = [effect for effect in machine.out if kind is None or isinstance(effect, kind)]
    machine.out.clear()
    return effects


def write_all(machine: DurableSender) -> list[Any]:
    """Has all rows written, and gives what came of it."""
    effects = []
    while machine.out:
        effect = machine.out.pop(0)
        effects.append(effect)
        if isinstance(effect, Write):
            machine.persisted(effect.token)
    return effects


def asked_by(machine: DurableSender) -> Ask:
    ask = marks.decoded(marks_in(emptied(machine, Say)[-1].payload))
    assert isinstance(ask, Ask)
    return ask


def marks_in(data: bytes) -> bytes:
    return bytes(envelope.decode(data, UNBOUNDED_CAPS).fills[0].payload)


def opened(
    machine: DurableSender, peer: PeerId = A, *windows: Taken, now_ns: int = 0, run: int = 1
) -> list[Any]:
    """Takes a sender through an exchange; what comes of it."""
    effects = write_all(machine)
    machine.peer_up(peer, run, True, now_ns)
    machine.took(peer, Took(asked_by(machine).token, 7, windows), now_ns)
    return effects + write_all(machine)


def state(machine: Any, peer: PeerId = A) -> str:
    name: str = machine.inspect()[str(peer)]["state"]
    return name


def test_the_table_of_flows_decides() -> None:
    def walk() -> None:
        one = sender()
        one.send(record(), 0)
        assert state(one) == "SILENT"
        one.took(A, Took(0, 1), 0)
        one.took(A, Took(0, 1), 0)
        assert state(one) == "ASKING"
        one.peer_down(A)
        assert state(one) == "SILENT"
        now = 0
        for events in (
            ["up", "again", "answer", "moved"],
            ["plain"],
            ["up", "plain", "up", "plain", "took"],
            ["up", "answer", "again"],
            ["up", "answer", "plain"],
            ["up", "answer", "took"],
            ["up", "answer", "moved", "again"],
            ["up", "answer", "moved", "plain"],
            ["up", "answer", "moved", "took"],
            ["up", "drop", "answer", "again"],
            ["up", "drop", "answer", "plain"],
            ["up", "drop", "answer", "took"],
        ):
            machine = sender()
            number = machine.send(record(), 0)
            expected = "SILENT"
            for run, event in enumerate(events):
                now += 2 * ASK_AGAIN_NS
                if event in ("up", "again"):
                    machine.peer_up(A, run, True, now)
                    expected = "ASKING"
                elif event == "plain":
                    machine.peer_up(A, run, False, now)
                    expected = "PLAIN"
                elif event == "drop":
                    machine.drop(number)
                elif event == "answer":
                    machine.due(now)
                    machine.took(A, Took(asked_by(machine).token, 7), now)
                    expected = "HEARD" if "drop" in events else "MOVING"
                elif event == "moved":
                    for token in range(1, 10):
                        machine.persisted(token)
                    expected = "OPEN"
                else:
                    machine.took(A, Took(0, 9), now)
                    expected = "ASKING"
                assert state(machine) == expected, events

    assert_decides_by(FLOW, walk)


def test_the_table_of_sources_decides() -> None:
    def walk() -> None:
        machine = receiver()
        for knows, expected in ((True, "CLOSED"), (False, "PLAIN"), (False, "PLAIN"), (True, "CLOSED")):
            machine.peer_up(A, knows)
            assert state(machine) == expected
        for _ in range(2):
            machine.asked(A, Ask(len(machine.out) + 3))
            took = marks.decoded(marks_in(emptied(machine)[-1].payload))
            assert isinstance(took, Took) and took.windows == ()
            assert machine.opened(A, Open(took.echo, took.token, 5))
            machine.peer_up(A, True)
            assert state(machine) == "OPEN"
            machine.asked(A, Ask(1000 + took.token))
            assert state(machine) == "CLOSED"
        machine.peer_up(A, False)
        machine.asked(A, Ask(99))
        assert state(machine) == "CLOSED"
        last = marks.decoded(marks_in(emptied(machine)[-1].payload))
        assert isinstance(last, Took) and machine.opened(A, Open(last.echo, last.token, 6))
        machine.peer_up(A, False)
        assert state(machine) == "PLAIN"

    assert_decides_by(SOURCE, walk)


def test_a_record_goes_out_under_its_number_once_it_is_on_disk() -> None:
    one = sender()
    number = one.send(record(), 0)
    assert one.payload(number) is None and one.payload(99) is None
    effects = opened(one)
    assert Publish(number) in effects
    said = marks.decoded(marks_in(next(e for e in effects if isinstance(e, Say)).payload))
    assert isinstance(said, Open) and not said.sender_is_old
    leaving = one.payload(number)
    assert leaving is not None and leaving[:2] == (A, b"")
    message = envelope.decode(leaving[2], UNBOUNDED_CAPS)
    assert (message.epoch, message.seq, message.base) == (said.epoch, 1, 1)
    # Where marks are known and there is room, record and number are one write.
    second = one.send(record(), 0)
    assert [type(effect) for effect in write_all(one)] == [Write, Publish]
    one.acknowledged(B, (Ack(said.epoch, 9),))
    one.acknowledged(A, (Ack(said.epoch + 1, 9), Ack(said.epoch, 0, (2,))))
    assert emptied(one) == [Settled(second)]
    assert one.drop(number) and not one.drop(number) and not one.drop(99)


def test_the_window_is_bounded_and_what_waits_moves_up() -> None:
    one = sender()
    ids = [one.send(record(), 0) for _ in range(DURABLE_UNACKNOWLEDGED + 3)]
    effects = opened(one)
    assert sum(isinstance(effect, Publish) for effect in effects) == DURABLE_UNACKNOWLEDGED
    epoch = one.inspect()[str(A)]["epoch"]
    one.acknowledged(A, (Ack(epoch, 2),))
    assert [effect for effect in write_all(one) if isinstance(effect, Publish)] == [
        Publish(n) for n in ids[64:66]
    ]
    assert one.drop(ids[66])


def test_bytes_are_bounded_and_a_peer_has_a_quarter() -> None:
    size = len(record().encoded)
    one = sender(4 * size)
    one.send(record(), 0)
    with pytest.raises(OutboxFullError, match="for one peer"):
        one.send(record(), 0)
    for peer in (B, C, PeerId.from_name("d")):
        one.send(record(peer), 0)
    with pytest.raises(OutboxFullError):
        one.send(record(PeerId.from_name("e")), 0)
    # Bytes are free when a snapshot has dropped the rows.
    write_all(one)
    one.drop(1)
    assert one.snapshot_taken() == [1]
    one.send(record(PeerId.from_name("e")), 0)


def test_a_peer_that_answers_again_is_asked_at_once() -> None:
    """Its run is the same, and its silence has made the questions rare."""
    one = sender()
    one.peer_up(A, 1, True, 0)
    one.send(record(), 0)
    token = asked_by(one).token
    for _ in range(8):
        one.due(one.next_deadline_ns() or 0)
        assert asked_by(one).token == token
    now_ns = (one.next_deadline_ns() or 0) - ASK_AGAIN_NS
    one.due(now_ns)
    assert not emptied(one, Say)
    one.peer_up(A, 1, True, now_ns)
    assert asked_by(one).token == token
    assert one.next_deadline_ns() == now_ns + ASK_AGAIN_NS
    one.peer_up(A, 1, True, now_ns + 1)
    assert not emptied(one, Say), "once a second at most"
    assert one.next_deadline_ns() == now_ns + ASK_AGAIN_NS


def test_a_record_is_found_by_its_id_and_by_its_peer_once_it_has_a_number() -> None:
    one, kept = sender(), record()
    number = one.send(kept, 0)
    assert one.record(number) == kept and one.record(number + 1) is None
    assert one.open_of(A) == () == one.open_of(B)
    opened(one)
    assert one.open_of(A) == (number,)
    assert one.drop(number) and one.record(number) == kept and one.open_of(A) == ()


def test_questions_are_repeated_and_limited() -> None:
    one = sender()
    assert one.next_deadline_ns() is None
    one.peer_up(A, 1, True, 0)
    one.peer_down(B)
    one.send(record(), 0)
    token = asked_by(one).token
    assert one.next_deadline_ns() == ASK_AGAIN_NS
    one.due(ASK_AGAIN_NS - 1)
    assert not emptied(one, Say)
    one.due(ASK_AGAIN_NS)
    assert asked_by(one).token == token
    one.took(A, Took(token + 1, 7), 0)
    one.took(B, Took(token, 7), 0)
    far = Taken(RANDOM_EPOCH + FAR_EPOCHS + 1, 1)
    one.took(A, Took(token, 7, (far,)), 0)
    assert state(one) == "ASKING"
    # An old sender is told, numbers above what the peer knows, and asks a second later at the earliest.
    one.took(A, Took(token, 7, (Taken(500, 3),)), ASK_AGAIN_NS)
    assert RolledBack(A, True, 500, again=(1,)) in one.out
    write_all(one)
    assert one.inspect()[str(A)]["epoch"] > 500
    one.took(A, Took(token, 7), 0)
    assert isinstance(marks.decoded(marks_in(emptied(one, Say)[-1].payload)), Open)
    one.peer_up(A, 1, True, 0)
    assert state(one) == "OPEN"
    one.took(A, Took(0, 8), ASK_AGAIN_NS + 1)
    assert one.next_deadline_ns() == ASK_AGAIN_NS + OLD_AGAIN_NS


def test_who_is_called_old_again_and_again_asks_ever_more_seldom() -> None:
    question, now_ns, waits = Question(), 5 * OLD_FORGOTTEN_NS, []
    for _ in range(9):
        question.told_old(now_ns)
        question.soon(now_ns)
        waits.append((question.next_ns - now_ns) // OLD_AGAIN_NS)
        now_ns = question.next_ns
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60], "a peer that lies costs a write a minute"
    now_ns += OLD_FORGOTTEN_NS
    question.told_old(now_ns)
    question.soon(now_ns)
    assert question.next_ns - now_ns == OLD_AGAIN_NS


def test_an_old_receiver_and_one_that_began_anew_are_told() -> None:
    one = sender()
    for _ in range(3):
        one.send(record(), 0)
    opened(one)
    epoch = one.inspect()[str(A)]["epoch"]
    one.acknowledged(A, (Ack(epoch, 3),))
    emptied(one)
    effects_of = opened(one, A, Taken(epoch, 1), now_ns=10 * ASK_AGAIN_NS, run=2)
    assert RolledBack(A, False, epoch, (2, 3), 2) in effects_of
    assert not [effect for effect in effects_of if isinstance(effect, NoWindow)]
    effects_of = opened(one, A, now_ns=20 * ASK_AGAIN_NS, run=3)
    assert effects_of[0] == NoWindow(A, epoch, 1)


def test_what_is_heard_covers_the_last_64() -> None:
    heard = Heard().with_number(5, 2).with_number(5, 4).with_number(5, 3)
    assert heard == Heard(5, 4, 0b111) and heard.with_number(6, 1) == Heard(6, 1, 1)
    assert heard.lost(()) == () == heard.lost((Taken(6, 0, 1),)) == heard.lost((Taken(5, 4),))
    assert heard.lost((Taken(4, 9),)) == (2, 3, 4)
    assert heard.lost((Taken(5, 1, 0b10),)) == (2, 4)
    assert Heard.of(Taken(5, 100, 0b10)).high == 102


@pytest.mark.parametrize(
    "said",
    [
        Ask(1, Heard(2, 3, 4)),
        Took(1, 2),
        Took(1, 2, (Taken(3, 4, 5), Taken(6))),
        Took(0, (1 << 64) - 1, tuple(Taken(n) for n in range(marks.MAX_WINDOWS))),
        Open(1, 2, 3),
        Open(1, 2, 3, True),
    ],
)
def test_marks_are_read_as_they_were_written(said: Ask | Took | Open) -> None:
    message = envelope.decode(marks.encoded(said), UNBOUNDED_CAPS)
    assert message.fills[0].dest_suffix == marks.SUFFIX and not message.seq
    assert marks.decoded(marks_in(marks.encoded(said))) == said


NUMBERS = "expected a list of unsigned numbers"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "ends at byte 0"),
        (b"\xff", "an indefinite length or reserved form at byte 0"),
        (cbor.dumps([1, [1]]), "nested too deeply"),
        *((cbor.dumps(other), NUMBERS) for other in (5, {}, [1, -1, 1], [1, 0, True, 0, 0, 0], [1.0])),
        (cbor.dumps([]), "version -1, this node reads 1"),
        (cbor.dumps([2, 0, 1, 2, 3, 4]), "version 2, this node reads 1"),
        (cbor.dumps([1]), "kind -1 with 0 numbers"),
        *((cbor.dumps([1, 0, *range(n)]), f"kind 0 with {n} numbers") for n in (1, 3, 5)),
        *((cbor.dumps([1, 1, *range(n)]), f"kind 1 with {n} numbers") for n in (0, 1, 3, 4)),
        *((cbor.dumps([1, 2, *range(n)]), f"kind 2 with {n} numbers") for n in (2, 3, 5)),
        (cbor.dumps([1, 3, *range(4)]), "kind 3 with 4 numbers"),
        (cbor.dumps([1, 1, *range(2 + 3 * marks.MAX_WINDOWS + 3)]), "too many items"),
    ],
)
def test_other_bytes_are_no_marks(data: bytes, what: str) -> None:
    with pytest.raises(marks.MarksError) as caught:
        marks.decoded(data)
    assert (caught.value.what, caught.value.where) == (what, "marks")


def rows_of(effects: list[Any]) -> list[bytes]:
    return [effect.row for effect in effects if isinstance(effect, Write)]


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


def test_a_snapshot_has_an_epoch_once_its_first_row_is_on_disk() -> None:
    one = sender()
    one.send(record(), 0)
    one.peer_up(A, 1, True, 0)
    one.took(A, Took(asked_by(one).token, 7), 0)
    assert state(one) == "MOVING" and one.save()[1][0][1] == 0
    one.took(A, Took(1, 7), 0)
    assert state(one) == "MOVING", "an answer that comes twice"
    # Another exchange begins another epoch; the row of the first is late, and changes nothing.
    one.took(A, Took(0, 8), ASK_AGAIN_NS)
    ask = asked_by(one)
    one.took(A, Took(ask.token, 8), ASK_AGAIN_NS)
    for token in (3, 2, 1, 99):
        one.persisted(token)
    assert one.save()[1][0][1] == one.inspect()[str(A)]["epoch"]
    assert state(one) == "OPEN"


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


def test_nothing_is_taken_before_marks_open_an_epoch() -> None:
    hub = receiver(max_sources=1)
    assert hub.receive(A, 5, 1, 1) is Verdict.CLOSED
    hub.restore([[A.to_bytes(), [[3, 1, b"", [], []]]]])
    hub.refused(A, 0)
    hub.refused(A, PROMPT_NS - 1)
    prompt = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(prompt, Took) and prompt.echo == 0
    assert hub.receive(B, 5, 1, 1) is Verdict.NO_ROOM
    hub.refused(B, 0)
    hub.asked(B, Ask(1))
    hub.peer_up(B, True)
    assert not hub.opened(B, Open(1, 1, 1)) and hub.acks(B) == ()
    assert not hub.journaled(B, 5, 1) and not hub.not_journaled(B, 5, 1)
    hub.asked(A, Ask(3))
    took = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(took, Took)
    assert not hub.opened(A, Open(2, took.token, 5)) and not hub.opened(A, Open(3, prompt.token, 5))
    assert not hub.is_open(A) and not hub.is_open(B)
    assert hub.opened(A, Open(3, took.token, 5, True)) and hub.is_open(A) and not hub.is_open(B)
    assert emptied(hub) == [RolledBack(A, False, 5)]
    hub.asked(A, Ask(3))
    assert not hub.out, "a repetition of a question that is answered"
    assert hub.receive(A, 4, 1, 1) is Verdict.CLOSED and hub.receive(A, 5, 1, 1) is Verdict.NEW
    hub.refused(A, 2 * PROMPT_NS)
    told = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(told, Took) and (told.echo, told.token) == (3, took.token), "who opened it knows that"
    hub.again(A, 4, 1)
    # What is said to be taken is on disk: the answer waits for what is held.
    hub.hold(A, 5, 1, 1)
    hub.hold(A, 5, 3, 1)
    hub.asked(A, Ask(4))
    assert not hub.out
    assert hub.journaled(A, 5, 3) and not hub.out
    assert hub.not_journaled(A, 5, 1) and not hub.not_journaled(A, 5, 1)
    last = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(last, Took) and last.windows == (Taken(5, 0, 0b100),)
    assert hub.acks(A) == (Ack(5, 0, (3,)),) and hub.acks(A) == ()
    hub.again(A, 5, 3)
    assert hub.acks(A) == (Ack(5, 0, (3,)),)
    # The source believes more to be taken than is: this state is old.
    hub.asked(A, Ask(5, Heard(5, 4, 0b11)))
    assert RolledBack(A, True, 5, (4,), 4) in hub.out


def test_a_source_of_which_nothing_was_taken_makes_room_and_no_other_does() -> None:
    hub = receiver(max_sources=2)
    for peer in (A, B):
        hub.peer_up(peer, knows_marks=False)
    hub.hold(B, 5, 1, 1)
    assert hub.receive(C, 5, 1, 1) is Verdict.CLOSED
    hub.peer_up(C, knows_marks=False)
    assert hub.peers == (B, C) and hub.has_taken(B) and not hub.has_taken(C)
    hub.hold(C, 5, 1, 1)
    assert hub.receive(A, 5, 1, 1) is Verdict.NO_ROOM
    hub.peer_up(A, knows_marks=False)
    assert hub.peers == (B, C) and not hub.owes(A)


def test_a_window_of_which_nothing_is_on_disk_is_not_told() -> None:
    hub = receiver()
    hub.asked(A, Ask(3))
    took = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(took, Took) and hub.opened(A, Open(3, took.token, 5))
    hub.hold(A, 5, 7, 7)
    hub.not_journaled(A, 5, 7)
    hub.asked(A, Ask(4))
    last = marks.decoded(marks_in(emptied(hub)[0].payload))
    assert isinstance(last, Took) and last.windows == ()


def test_a_restart_lets_nothing_in_and_knows_what_is_on_disk() -> None:
    hub = receiver()
    hub.peer_up(A, False)
    hub.peer_up(B, True)
    for epoch in (5, 6):
        hub.hold(A, epoch, 1, 1)
        hub.journaled(A, epoch, 1)
    assert hub.receive(A, 6, 1, 1) is Verdict.DUPLICATE and hub.receive(A, 7, 1, 1) is Verdict.NEW
    hub.hold(A, 6, 2, 1)
    again = receiver()
    again.restore(hub.save())
    assert list(again.inspect()) == [str(A)], "of who has no window nothing is kept"
    assert again.receive(A, 6, 3, 1) is Verdict.CLOSED
    assert not again.replayed(A, 6, 1, 1) and not again.replayed(A, 6, 2, 1)
    assert again.replayed(A, 6, 3, 1) and again.replayed(A, 7, 1, 1) and again.replayed(C, 1, 1, 1)
    assert [window[0] for window in again.inspect()[str(A)]["windows"]] == [6, 7]
    # Once something of an epoch that marks began is on disk, those before it are over.
    again.asked(A, Ask(1))
    took = marks.decoded(marks_in(emptied(again)[0].payload))
    assert isinstance(took, Took) and again.opened(A, Open(1, took.token, 9))
    again.hold(A, 9, 1, 1)
    again.journaled(A, 9, 1)
    assert [window[0] for window in again.inspect()[str(A)]["windows"]] == [9]


def test_a_sender_knows_who_is_up() -> None:
    one = sender()
    assert not one.is_up(A)
    assert one.peer_up(A, 1, True, 0) and one.is_up(A) and not one.is_up(B)
    # It is told once per run, and each time where the run has no name.
    assert not one.peer_up(A, 1, True, 0) and one.peer_up(A, 2, True, 0)
    assert not one.peer_up(A, 2, True, 0)
    assert one.peer_up(A, None, True, 0) and one.peer_up(A, None, True, 0)
    one.peer_down(A)
    assert not one.is_up(A) and one.peer_up(A, None, True, 0)


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


def test_a_snapshot_names_the_settled_records_that_are_asked_for_alone() -> None:
    one = sender()
    ids = [one.send(record(), 0) for _ in range(3)]
    opened(one)
    epoch = one.inspect()[str(A)]["epoch"]
    one.acknowledged(A, (Ack(epoch, 2),))
    assert one.save()[2] == [ids[2]]
    assert one.save(lambda number: number == ids[1])[2] == ids[1:]
    gone = one.snapshot_taken({ids[0]})
    assert gone == [ids[0]], "the row with its number names others that are needed"
    assert [held.id for held in one] == ids[1:]


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


def test_a_record_goes_out_once_its_own_row_and_the_one_with_its_number_are_on_disk() -> None:
    for own_first in (True, False):
        one = sender()
        number = one.send(record(), 0)
        (own,) = emptied(one, Write)
        one.peer_up(A, 1, True, 0)
        one.took(A, Took(asked_by(one).token, 7), 0)
        (numbers,) = emptied(one, Write)
        first, second = (own, numbers) if own_first else (numbers, own)
        one.persisted(first.token)
        assert not emptied(one, Publish) and one.payload(number) is None
        one.persisted(second.token)
        assert emptied(one, Publish) == [Publish(number)]


def test_questions_are_asked_ever_more_seldom_up_to_64_seconds() -> None:
    one = sender()
    one.send(record(), 0)
    one.peer_up(A, 1, True, 5)
    assert asked_by(one).heard == Heard()
    waits, now = [], 5
    for _ in range(9):
        due = one.next_deadline_ns()
        assert due is not None
        one.due(due - 1)
        assert not one.out
        one.due(due)
        assert len(emptied(one, Say)) == 1
        waits.append((due - now) // ASK_AGAIN_NS)
        now = due
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    # Another run is asked at once, by another question, and its intervals begin anew.
    one.peer_up(A, 2, True, now + ASK_AGAIN_NS)
    assert asked_by(one).token == 2 and one.next_deadline_ns() == now + 2 * ASK_AGAIN_NS
    one.peer_up(A, 3, True, now + ASK_AGAIN_NS + 1)
    assert not emptied(one, Say), "not twice within a second"
    assert one.next_deadline_ns() == now + 2 * ASK_AGAIN_NS


def test_the_first_of_several_questions_says_when_the_next_is_due() -> None:
    one = sender()
    for peer, now_ns in ((A, 30), (B, 10), (C, 20)):
        one.send(record(peer), now_ns)
        one.peer_up(peer, 1, True, now_ns)
    assert one.next_deadline_ns() == 10 + ASK_AGAIN_NS
    emptied(one)
    one.due(20 + ASK_AGAIN_NS)
    assert [said.peer for said in emptied(one, Say)] == [B, C]


def test_a_presence_that_is_told_again_asks_nothing_again() -> None:
    for run in (1, None):
        one = sender()
        one.send(record(), 0)
        opened(one)
        one.peer_up(A, run, True, 10 * ASK_AGAIN_NS)
        if run is None:  # it says no run any more
            one.took(A, Took(asked_by(one).token, 8), 10 * ASK_AGAIN_NS)
            write_all(one)
        assert state(one) == "OPEN" and not one.out
        one.peer_up(A, run, True, 20 * ASK_AGAIN_NS)
        assert state(one) == "OPEN" and not one.out


@pytest.mark.parametrize(("beyond", "counts"), [(0, True), (1, False)])
def test_an_epoch_that_is_too_far_beyond_what_is_known_says_nothing(beyond: int, counts: bool) -> None:
    one = sender()
    one.send(record(), 0)
    one.peer_up(A, 1, True, 0)
    token = asked_by(one).token
    one.took(A, Took(token, 7, (Taken(5, 1), Taken(RANDOM_EPOCH + FAR_EPOCHS + beyond))), 0)
    assert (state(one) == "MOVING") is counts
    if counts:  # what is known now reaches further
        write_all(one)
        one.peer_up(A, 2, True, 2 * ASK_AGAIN_NS + OLD_AGAIN_NS)
        epoch = one.inspect()[str(A)]["epoch"]
        one.took(A, Took(asked_by(one).token, 8, (Taken(epoch + FAR_EPOCHS),)), 0)
        assert state(one) == "MOVING"


def test_a_sender_is_old_where_the_peer_has_taken_more_than_it_has_given() -> None:
    for taken, is_old in (
        (Taken(0, 2), False),
        (Taken(0, 3), True),
        (Taken(0, 2, 1), True),
        (Taken(1), True),
    ):
        one = sender()
        for _ in range(2):
            one.send(record(), 0)
        opened(one)
        epoch = one.inspect()[str(A)]["epoch"]
        window = taken._replace(epoch=epoch + taken.epoch)
        effects = opened(one, A, window, now_ns=10 * ASK_AGAIN_NS, run=2)
        told = [effect for effect in effects if isinstance(effect, RolledBack) and effect.own]
        again = (
            () if taken.epoch == 0 else (1, 2)
        )  # what the peer has under the numbers of this state is settled
        assert told == [RolledBack(A, True, epoch + taken.epoch, again=again)] * is_old
        one.send(record(), 0)
        last = [
            marks.decoded(marks_in(said.payload)) for said in [*effects, *write_all(one)] if type(said) is Say
        ]
        assert {said.sender_is_old for said in last if isinstance(said, Open)} <= {is_old}


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


def asked_by_writing(machine: DurableSender, rows: list[bytes]) -> Ask:
    said = next(effect for effect in machine.out if isinstance(effect, Say))
    ask = marks.decoded(marks_in(said.payload))
    written(machine, rows)
    assert isinstance(ask, Ask)
    return ask


def written(machine: DurableSender, rows: list[bytes], but: int = 0) -> Any:
    """Has rows written, but the one that gives this number first; gives that."""
    late = None
    while machine.out:
        effect = machine.out.pop(0)
        if isinstance(effect, Write) and getattr(effect.name, "first", -1) == but:
            late = effect
        elif isinstance(effect, Write):
            rows.append(effect.row)
            machine.persisted(effect.token)
    return late


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


def test_an_epoch_is_drawn_above_all_that_either_end_knows() -> None:
    drawn = (1 << 62) + (5 << 32) + 9
    one = DurableSender(lambda: drawn)
    one.send(record(), 0)
    opened(one)
    assert one.inspect()[str(A)]["epoch"] == 10
    opened(one, A, Taken(50), now_ns=10 * ASK_AGAIN_NS, run=2)
    assert one.inspect()[str(A)]["epoch"] == 60
    opened(one, A, Taken(7), now_ns=OLD_LONGEST_NS, run=3)
    assert one.inspect()[str(A)]["epoch"] == 70
    # Of a peer without marks nobody says what was before: it is drawn from all.
    plain = DurableSender(lambda: (1 << 60) + RANDOM_EPOCH - 1)
    plain.send(record(), 0)
    plain.peer_up(A, 1, False, 0)
    assert plain.inspect()[str(A)]["epoch"] == RANDOM_EPOCH


def test_acknowledgements_say_how_many_are_of_the_flow_and_move_the_base() -> None:
    one = sender()
    ids = [one.send(record(), 0) for _ in range(4)]
    opened(one)
    epoch = one.inspect()[str(A)]["epoch"]
    assert one.acknowledged(B, (Ack(epoch, 1),)) == 0
    assert (
        one.acknowledged(A, (Ack(epoch + 1, 4), Ack(epoch, 1), Ack(epoch, 0, (3,)), Ack(epoch, 0, (9,)))) == 3
    )
    assert emptied(one) == [Settled(ids[0]), Settled(ids[2])]
    assert one.inspect()[str(A)]["heard"] == (epoch, 3, 0b101)
    leaving = one.payload(ids[3])
    assert leaving is not None
    message = envelope.decode(leaving[2], UNBOUNDED_CAPS)
    assert (message.epoch, message.seq, message.base) == (epoch, 4, 2)
    assert one.payload(ids[0]) is None, "nobody waits for it any more"
    one.peer_up(A, 2, True, 10 * ASK_AGAIN_NS)
    assert asked_by(one).heard == Heard(epoch, 3, 0b101)


def test_what_waits_behind_a_full_window_leaves_in_order_and_may_be_dropped_there() -> None:
    one = sender()
    ids = [one.send(record(), 0) for _ in range(DURABLE_UNACKNOWLEDGED - 1)]
    opened(one)
    ids.append(one.send(record(), 0))
    assert [type(effect) for effect in write_all(one)] == [Write, Publish], "the last place, in one row"
    behind = [one.send(record(), 0) for _ in range(3)]
    assert [effect.name for effect in write_all(one)] == behind, "and no row of no numbers"
    assert [row[0] for row in one.inspect()[str(A)]["waiting"]] == behind
    assert one.payload(behind[0]) is None
    assert one.drop(behind[0]) and emptied(one) == [Settled(behind[0])]
    # A later record keeps its place behind what waits, even where the window has room again.
    one.drop(ids[0])
    effects = write_all(one)
    assert [effect for effect in effects if isinstance(effect, Publish)] == [Publish(behind[1])]
    assert one.drop(ids[1])
    emptied(one)
    assert [row[1] for row in one.inspect()[str(A)]["open"]] == [*ids[2:], *behind[1:]]


def test_a_peer_that_went_down_is_asked_when_it_comes_back() -> None:
    one = sender()
    one.send(record(), 0)
    one.peer_up(A, 1, True, 0)
    first = asked_by(one).token
    one.peer_down(A)
    one.due(100 * ASK_AGAIN_NS)
    assert not one.out and one.next_deadline_ns() is None
    one.took(B, Took(first, 7), 0)
    one.peer_up(A, 1, True, 200 * ASK_AGAIN_NS)
    assert asked_by(one).token != first
    # One that is open stays open: what is under way to it may arrive.
    one.took(A, Took(first + 1, 7), 0)
    write_all(one)
    one.peer_down(A)
    assert state(one) == "OPEN"


def test_a_flow_to_a_peer_that_is_up_begins_with_a_question() -> None:
    one = sender()
    one.peer_up(A, 1, True, 0)
    one.peer_up(B, 1, False, 0)
    assert not one.out and one.peers == ()
    one.send(record(), 7)
    assert state(one) == "ASKING" and one.next_deadline_ns() == 7 + ASK_AGAIN_NS
    number = one.send(record(B), 7)
    assert state(one, B) == "PLAIN" and Publish(number) in write_all(one)
    second = one.send(record(B), 7)
    assert [type(effect) for effect in write_all(one)] == [Write, Publish], "record and number in one row"
    assert one.payload(second) is not None


def test_an_answer_that_comes_again_opens_again_and_another_asks_again() -> None:
    one = sender()
    one.send(record(), 0)
    effects = opened(one)
    (said,) = [effect for effect in effects if isinstance(effect, Say)]
    token = one.inspect()[str(A)]["marks"][0]
    one.took(A, Took(token, 7), 5)
    assert emptied(one) == [said]
    for took in (Took(token, 8), Took(token + 1, 7)):
        two = sender()
        two.send(record(), 0)
        opened(two)
        two.took(A, took, 10 * ASK_AGAIN_NS)
        assert state(two) == "ASKING" and asked_by(two).token == token + 2


def test_a_first_exchange_has_nothing_to_tell() -> None:
    one = sender()
    number = one.send(record(), 0)
    assert [type(effect) for effect in opened(one)] == [Write, Write, Say, Publish]
    assert one.drop(number)


def test_a_snapshot_between_two_epochs_has_the_last_number_of_the_one_that_is_on_disk() -> None:
    one = sender()
    for _ in range(2):
        one.send(record(), 0)
    emptied(one)
    one.peer_up(A, 1, True, 0)
    one.took(A, Took(asked_by(one).token, 7, (Taken(4, 1),)), 0)
    (begun,) = emptied(one, Write)
    epoch = one.inspect()[str(A)]["epoch"]
    one.took(A, Took(0, 8), OLD_LONGEST_NS)
    one.took(A, Took(asked_by(one).token, 8, (Taken(4, 3),)), OLD_LONGEST_NS)
    assert one.save()[1] == [[A.to_bytes(), 0, 0, list(Heard.of(Taken(4, 3)))]]
    one.persisted(begun.token)
    assert one.inspect()[str(A)]["epoch"] > epoch
    assert one.inspect()[str(A)]["saved"] == (epoch, 2, tuple(Heard.of(Taken(4, 1))))
    assert one.save()[1] == [[A.to_bytes(), epoch, 2, list(Heard.of(Taken(4, 3)))]]


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


def took_by(hub: DurableReceiver) -> Took:
    took = marks.decoded(marks_in(emptied(hub, Say)[-1].payload))
    assert isinstance(took, Took)
    return took


def test_a_source_that_must_ask_is_told_once_a_second() -> None:
    hub = receiver()
    hub.refused(A, 5)
    first = took_by(hub)
    assert (first.echo, first.windows) == (0, ())
    hub.refused(A, 4 + PROMPT_NS)
    assert not hub.out
    hub.refused(B, 6)
    assert [said.peer for said in emptied(hub)] == [B]
    hub.refused(A, 5 + PROMPT_NS)
    assert took_by(hub) == first, "the same token, while nothing was asked"
    for knows_marks in (False, True):
        hub.peer_up(C, knows_marks)
        hub.asked(C, Ask(3 + knows_marks))
        assert hub.opened(C, Open(3 + knows_marks, took_by(hub).token, 9))
        hub.refused(C, (10 + 20 * knows_marks) * PROMPT_NS)
        told = took_by(hub)
        assert (told.echo, hub.inspect()[str(C)]["state"]) == (3 + knows_marks, "OPEN"), "the same once more"
        hub.peer_up(C, False)
        hub.refused(C, (20 + 20 * knows_marks) * PROMPT_NS)
        assert not hub.out, "it knows no marks"


def test_a_question_that_comes_again_has_the_same_answer_and_another_one_another() -> None:
    hub = receiver()
    hub.asked(A, Ask(3))
    first = took_by(hub)
    hub.asked(A, Ask(3))
    assert took_by(hub) == first
    hub.asked(A, Ask(4))
    second = took_by(hub)
    assert (second.echo, second.token != first.token) == (4, True)
    assert not hub.opened(A, Open(4, first.token, 5)) and not hub.opened(A, Open(3, second.token, 5))
    assert not hub.opened(B, Open(4, second.token, 5))
    assert hub.opened(A, Open(4, second.token, 5)) and not hub.out
    assert not hub.opened(A, Open(4, second.token, 6)), "it is open"


def test_a_full_table_of_sources_hears_no_other() -> None:
    hub = receiver(max_sources=1)
    hub.peer_up(A, knows_marks=False)
    hub.hold(A, 5, 1, 1)
    hub.refused(B, 0)
    hub.asked(B, Ask(1))
    assert not hub.out and hub.peers == (A,)
    assert hub.receive(B, 1, 1, 1) is Verdict.NO_ROOM
    for place in (hub.acks(B), hub.owes(B), hub.has_taken(B)):
        assert not place


def test_all_of_a_source_can_be_looked_at() -> None:
    hub = receiver()
    hub.asked(A, Ask(3))
    took = took_by(hub)
    assert hub.opened(A, Open(3, took.token, 5))
    for seq in (1, 2, 4):
        hub.hold(A, 5, seq, 1)
    assert hub.journaled(A, 5, 1) and hub.journaled(A, 5, 4) and not hub.journaled(A, 5, 4)
    hub.asked(A, Ask(4))
    assert hub.inspect() == {
        str(A): {
            "state": "CLOSED",
            "epoch": 5,
            "marks": (4, 0, True),
            "windows": [(5, 1, 0b101, [2], [1, 4])],
            "taken": [5],
        }
    }
    assert hub.owes(A) and hub.acks(A) == (Ack(5, 1, (4,)),) and not hub.owes(A)


def test_of_a_source_without_marks_two_epochs_are_known() -> None:
    hub = receiver()
    hub.peer_up(A, knows_marks=False)
    for epoch in (9, 5, 7):
        hub.hold(A, epoch, 1, 1)
        assert hub.journaled(A, epoch, 1)
    assert [row[0] for row in hub.inspect()[str(A)]["windows"]] == [5, 7]
    assert hub.inspect()[str(A)]["taken"] == [5, 7]
    # Which was used last stays, whatever its number.
    hub.hold(A, 5, 2, 1)
    hub.hold(A, 6, 1, 1)
    assert [row[0] for row in hub.inspect()[str(A)]["windows"]] == [5, 6]
    assert hub.inspect()[str(A)]["taken"] == [5]
    assert not hub.journaled(A, 7, 1) and not hub.not_journaled(A, 7, 1)
    hub.again(A, 7, 1)
    assert [ack.epoch for ack in hub.acks(A)] == [5]


def test_what_a_snapshot_held_is_acknowledged_after_a_restart() -> None:
    hub = receiver()
    hub.peer_up(A, knows_marks=False)
    for seq in (1, 2, 3):
        hub.hold(A, 5, seq, 1)
    hub.journaled(A, 5, 1)
    again = receiver()
    again.restore(hub.save())
    assert again.inspect()[str(A)]["taken"] == [5] and again.inspect()[str(A)]["state"] == "CLOSED"
    assert not again.journaled(A, 5, 2), "nothing is held any more"
    assert again.owes(A) and again.acks(A) == (Ack(5, 3, ()),)
    again.asked(A, Ask(1))
    assert took_by(again).windows == (Taken(5, 3, 0),)
    # A journal's record of a source that no snapshot has.
    assert again.replayed(B, 6, 2, 2) and not again.replayed(B, 6, 2, 2)
    assert again.inspect()[str(B)]["taken"] == [6] and again.has_taken(B)


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


def test_a_question_is_answered_once_and_to_who_has_asked_after_a_restart_too() -> None:
    hub = receiver()
    hub.asked(A, Ask(3))
    assert hub.opened(A, Open(3, took_by(hub).token, 5))
    hub.hold(A, 5, 1, 1)
    hub.journaled(A, 5, 1)
    assert not hub.out, "what is written down later is acknowledged, and no answer"
    again = receiver()
    again.restore(hub.save())
    assert again.replayed(B, 6, 1, 1)
    for peer in (A, B):
        again.asked(peer, Ask(4))
    assert [said.peer for said in emptied(again, Say)] == [A, B]
