"""The receiver of durable flows by itself: what it takes, tells, forgets and knows after a restart."""

from __future__ import annotations

from durable_ends import emptied, marks_in, receiver, took_by
from peers import A, B, C

from bb_edge.wire import marks
from bb_edge.wire.dedup import Verdict
from bb_edge.wire.durable_flows import RolledBack, Say
from bb_edge.wire.durable_receiver import PROMPT_NS
from bb_edge.wire.envelope import Ack
from bb_edge.wire.marks import Ask, Heard, Open, Taken, Took


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
