"""The sender of durable flows by itself: windows, numbers, questions, epochs."""

from __future__ import annotations

import pytest
from durable_ends import asked_by, emptied, marks_in, opened, record, sender, state, write_all
from peers import A, B, C

from bb_edge import PeerId
from bb_edge.wire import envelope, marks
from bb_edge.wire.caps import UNBOUNDED_CAPS
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED
from bb_edge.wire.durable_flows import NoWindow, Publish, RolledBack, Say, Settled, Write
from bb_edge.wire.durable_questions import (
    ASK_AGAIN_NS,
    OLD_AGAIN_NS,
    OLD_FORGOTTEN_NS,
    OLD_LONGEST_NS,
    Question,
)
from bb_edge.wire.durable_sender import FAR_EPOCHS, RANDOM_EPOCH, DurableSender
from bb_edge.wire.envelope import Ack
from bb_edge.wire.marks import Heard, Open, Taken, Took
from bb_edge.wire.outbox import OutboxFullError


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
