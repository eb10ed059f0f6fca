"""The bytes of the journal, and names of what is done later."""

from __future__ import annotations

import pytest

from bb_edge.engine.callbacks import Callbacks, Timers, TimersFull, UnknownCallbackError, Written
from bb_edge.engine.net.journal import JournalRecord, JournalRecordError
from bb_edge.engine.plain import Shift
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor

PEER = PeerId.from_name("x")
ROW = [1, PEER.to_bytes(), b"data", 12, b"seen"]


def test_the_bytes_of_a_record():
    assert JournalRecord(PEER, b"data", 12, b"seen").to_bytes() == cbor.dumps(ROW)
    assert JournalRecord(PEER, b"data", 12).to_bytes() == cbor.dumps([*ROW[:4], None])
    assert JournalRecord.from_bytes(memoryview(cbor.dumps(ROW))) == JournalRecord(PEER, b"data", 12, b"seen")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (7, "no record of this version"),
        ([2, *ROW[1:]], "no record of this version"),
        (ROW[:4], "no record of this version"),
        ([*ROW, 1], "no record of this version"),
        ([True, *ROW[1:]], "fields of other types"),
        ([1, "peer", *ROW[2:]], "fields of other types"),
        ([*ROW[:2], "data", 12, None], "fields of other types"),
        ([*ROW[:3], "12", None], "fields of other types"),
        ([*ROW[:3], True, None], "fields of other types"),
        ([*ROW[:4], "seen"], "fields of other types"),
        ([*ROW[:4], 0], "fields of other types"),
        ([1, b"short", *ROW[2:]], "damaged: "),
        ([[[1]]], "damaged: CBOR: nested too deeply"),
        ([0] * 9, "damaged: CBOR: too many items"),
    ],
)
def test_anything_else_is_refused(row, said):
    with pytest.raises(JournalRecordError) as caught:
        JournalRecord.from_bytes(cbor.dumps(row))
    error = caught.value
    assert error.what.startswith(said) and error.what != "damaged: None"
    assert (error.where, error.hint) == ("journal", "drop the file")


def test_actions_have_one_name_each():
    actions = Callbacks()
    actions.register("one", test_the_bytes_of_a_record)
    assert actions.get("one") is test_the_bytes_of_a_record
    assert actions.name_of(test_the_bytes_of_a_record) == "one"
    assert actions.name_of(test_actions_have_one_name_each) is None
    with pytest.raises(UnknownCallbackError) as caught:
        actions.get("two")
    assert str(caught.value) == "snapshot: nothing here is called 'two'"
    with pytest.raises(AssertionError, match="one"):
        actions.register("one", test_actions_have_one_name_each)
    assert actions.get("one") is test_the_bytes_of_a_record


def test_arguments_are_written_as_values_or_as_their_callable_says():
    actions = Callbacks()
    moved = Written(lambda args: [-n for n in args], lambda plain, shift: (*map(shift.time, plain),))
    actions.register("values", test_the_bytes_of_a_record)
    actions.register("times", test_actions_have_one_name_each, moved)
    for name in ("values", "unknown", None):
        assert actions.dump(name, (1, b"x")) == ["t", 1, b"x"]
    for name in ("values", "unknown"):
        assert actions.load(name, ["t", 1, b"x"], Shift(5)) == (1, b"x")
    assert actions.dump("times", (1, 2)) == [-1, -2]
    assert actions.load("times", [1, 2], Shift(5)) == (6, 7)


def test_timers_run_in_order_and_the_bound_is_for_those_that_live():
    timers = Timers(40)
    called: list[tuple[int, str]] = []
    assert timers.next_ns() is None and not timers.full
    tokens = [timers.at(100 + n, called.append, n) for n in range(40)]
    assert timers.full and len(timers) == 40
    with pytest.raises(TimersFull) as caught:
        timers.at(1, called.append)
    error = caught.value
    assert (error.what, error.where) == ("40 timers run already", "timers")
    assert error.hint == "raise limits.max_timers (--config; in Python NodeConfig)"
    reserved = timers.at(50, called.append, reserved=True)
    assert timers.next_ns() == 50
    timers.cancel(reserved)
    timers.cancel(reserved)
    assert timers.next_ns() == 100
    for token in tokens[:38]:
        timers.cancel(token)
    assert len(timers) == 2 and not timers.full and timers.next_ns() == 138
    assert len(timers.heap) <= 20, "what is cancelled goes where it outnumbers the rest"


def test_few_that_are_cancelled_stay_until_their_time_and_no_token_comes_twice():
    timers = Timers(40)
    tokens = [timers.at(100, print) for _ in range(36)]
    assert tokens == [*range(1, 37)]
    timers.cancel(tokens[0])
    timers.cancel(tokens[0])
    timers.cancel(10**6)
    assert len(timers.heap) == 36, "one dead entry costs less than to make the heap anew"
    for token in tokens[1:26]:
        timers.cancel(token)
    assert (len(timers), len(timers.heap)) == (10, 36), "as many as twice the living and sixteen"
    timers.cancel(tokens[26])
    assert (len(timers), len(timers.heap)) == (9, 9)
