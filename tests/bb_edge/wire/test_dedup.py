"""The windows against a plain set of all numbers ever taken, and at their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.wire import cbor
from bb_edge.wire.dedup import (
    DURABLE_UNACKNOWLEDGED,
    MAX_ALSO,
    MAX_OWED,
    WINDOW,
    BestEffortWindow,
    DurableWindow,
    Verdict,
)


@given(st.lists(st.one_of(st.integers(1, 30), st.integers(1, 3 * WINDOW)), max_size=60))
def test_best_effort_takes_each_number_once_and_tells_what_it_knows(numbers: list[int]) -> None:
    window = BestEffortWindow(1)
    taken: set[int] = set()
    for seq in numbers:
        verdict = window.verdict(seq)
        if verdict is Verdict.NEW:
            assert seq not in taken
        elif verdict is Verdict.DUPLICATE:
            assert seq in taken
        else:
            assert verdict is Verdict.BELOW_WINDOW and seq <= max(taken) - WINDOW
        window.mark(seq)
        if verdict is Verdict.NEW:
            taken.add(seq)
            assert window.verdict(seq) is Verdict.DUPLICATE
        # `prefix` is what an ack claims: it may never claim a number that was not taken.
        assert all(number in taken for number in range(1, window.prefix + 1))
        assert window.bits.bit_length() <= WINDOW


def test_best_effort_in_order_keeps_no_bits() -> None:
    window = BestEffortWindow(1)
    for seq in range(1, 10_000):
        assert window.verdict(seq) is Verdict.NEW
        window.mark(seq)
        assert (window.prefix, window.floor, window.bits) == (seq, seq, 0)


def test_best_effort_gap_filled_late() -> None:
    window = BestEffortWindow(1)
    for seq in (1, 3, 4, 5):
        window.mark(seq)
    assert window.prefix == 1
    window.mark(2)
    assert (window.prefix, window.bits) == (5, 0)


@pytest.mark.parametrize(
    ("seq", "verdict"), [(WINDOW, Verdict.NEW), (WINDOW + 1, Verdict.NEW), (WINDOW + 2, Verdict.BELOW_WINDOW)]
)
def test_best_effort_slides_exactly_beyond_its_width(seq: int, verdict: Verdict) -> None:
    # 1 is taken and 2 is lost; the numbers WINDOW + 1 above the floor are the last that keep 2 in the window.
    window = BestEffortWindow(1)
    window.mark(1)
    window.mark(seq)
    assert window.verdict(2) is verdict
    assert window.prefix == 1
    assert window.verdict(1) is Verdict.DUPLICATE


def test_best_effort_survives_a_leap_to_the_last_number() -> None:
    window = BestEffortWindow(1)
    window.mark(1)
    window.mark(2**64 - 1)
    assert window.verdict(2**64 - 1) is Verdict.DUPLICATE
    assert window.verdict(2**64 - 2) is Verdict.NEW
    assert window.verdict(1) is Verdict.DUPLICATE and window.verdict(2) is Verdict.BELOW_WINDOW


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 70)), max_size=80))
def test_durable_takes_each_number_once_and_never_slides_over_a_gap(rows: list[tuple[int, int]]) -> None:
    window = DurableWindow(1)
    taken: set[int] = set()
    highest_base = 1
    for seq, back in rows:
        base = max(seq - back, 1)
        verdict = window.verdict(seq, base)
        floor = max(highest_base, base) - 1
        if verdict is Verdict.NEW:
            assert seq not in taken
        elif verdict is Verdict.DUPLICATE:
            assert seq in taken or seq < highest_base
        else:
            assert verdict is Verdict.BEYOND_WINDOW and seq > floor + DURABLE_UNACKNOWLEDGED
        window.mark(seq, base)
        if verdict is Verdict.NEW:
            taken.add(seq)
            highest_base = max(highest_base, base)
        # Everything at or below the floor was taken, or the sender has an acknowledgement for it.
        assert all(number in taken or number < highest_base for number in range(1, window.floor + 1))
        assert window.bits.bit_length() <= DURABLE_UNACKNOWLEDGED


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(62, Verdict.NEW), (63, Verdict.NEW), (64, Verdict.BEYOND_WINDOW)]
)
def test_durable_width(ahead: int, verdict: Verdict) -> None:
    window = DurableWindow(1)
    assert window.verdict(100 + ahead, 100) is verdict
    window.mark(100 + ahead, 100)
    assert (window.verdict(100 + ahead, 100) is Verdict.DUPLICATE) == (verdict is Verdict.NEW)


def test_a_held_number_is_not_acknowledged_and_not_taken_twice() -> None:
    window = DurableWindow(1)
    window.mark(1, 1)
    window.mark(2, 1, hold=True)
    window.mark(3, 1)
    for seq in (1, 2, 3):
        window.owe(seq)
    assert window.verdict(2, 1) is Verdict.DUPLICATE
    assert window.collect() == (1, (3,))
    assert window.release(2) and not window.release(2)
    window.owe(2)
    assert window.collect() == (3, ())


def test_a_held_number_can_be_withdrawn() -> None:
    window = DurableWindow(1)
    window.mark(1, 1, hold=True)
    window.mark(2, 1)
    assert window.withdraw(1) and not window.withdraw(1) and not window.withdraw(2)
    assert window.verdict(1, 1) is Verdict.NEW
    window.mark(1, 1)
    assert window.floor == 2


def test_a_held_number_below_a_base_counts_once_it_is_journaled() -> None:
    """Its sender has given it up; but a record of it in the journal is delivered after a crash."""
    window = DurableWindow(1)
    window.mark(1, 1, hold=True)
    window.mark(5, 5)
    assert window.held == {1: 1} and window.floor == 5
    assert window.verdict(1, 1) is Verdict.DUPLICATE and window.owe(1) == 0
    assert window.release(1) and not window.release(1) and window.floor == 5
    window.owe(1)
    assert window.collect() == (5, ())


def test_a_held_number_below_a_base_that_is_not_journaled_does_not_come_again() -> None:
    window = DurableWindow(1)
    for seq in (1, 2, 3):
        window.mark(seq, 1, hold=True)
    window.mark(6, 4, hold=True)
    assert (window.floor, sorted(window.held)) == (3, [1, 2, 3, 6])
    assert window.withdraw(2) and not window.withdraw(2)
    assert window.release(3) and window.told == (0, 0b100), "3 is on disk, and that 4 is the lowest is not"
    assert window.withdraw(6) and window.told == (0, 0b100)
    assert window.release(1) and window.told == (0, 0b101)
    assert [window.verdict(seq, 1) for seq in (2, 6)] == [Verdict.DUPLICATE, Verdict.NEW]
    window.mark(6, 4, hold=True)
    assert window.release(6) and window.told == (3, 0b100)


def test_a_held_number_above_the_base_that_comes_stays_taken() -> None:
    window = DurableWindow(1)
    window.mark(2, 1, hold=True)
    window.mark(5, 1, hold=True)
    window.mark(6, 4, hold=True)
    assert window.floor == 3, "the sender has given up 1 to 3, the 2 among them"
    assert [window.verdict(seq, 4) for seq in (4, 5, 6)] == [
        Verdict.NEW,
        Verdict.DUPLICATE,
        Verdict.DUPLICATE,
    ]
    assert window.withdraw(5) and window.verdict(5, 4) is Verdict.NEW


@pytest.mark.parametrize("count", [MAX_ALSO - 1, MAX_ALSO, MAX_ALSO + 1])
def test_single_numbers_of_one_ack(count: int) -> None:
    window = BestEffortWindow(1)
    numbers = list(range(3, 3 + 2 * count, 2))
    for seq in numbers:
        window.mark(seq)
        window.owe(seq)
    assert window.collect() == (0, tuple(numbers[:MAX_ALSO]))
    assert list(window.owed) == numbers[MAX_ALSO:]


def test_owed_acks_are_bounded() -> None:
    window = BestEffortWindow(1)
    assert sum(window.owe(seq) for seq in range(3, 3 + MAX_OWED)) == 0
    assert window.owe(3) == 0
    assert window.owe(1000) == 1
    assert len(window.owed) == MAX_OWED and 3 not in window.owed


def test_snapshots() -> None:
    best = BestEffortWindow(7)
    for seq in (1, 2, 4, 9000, 8000):
        best.mark(seq)
        best.owe(seq)
    row = cbor.loads(cbor.dumps(best.snapshot()))
    again = BestEffortWindow.restored(row)  # type: ignore[arg-type]
    assert again.snapshot() == best.snapshot()
    assert again.verdict(8000) is Verdict.DUPLICATE and again.verdict(8001) is Verdict.NEW
    durable = DurableWindow(8)
    durable.mark(3, 2)
    durable.mark(4, 2, hold=True)
    row = cbor.loads(cbor.dumps(durable.snapshot()))
    restored = DurableWindow.restored(row)  # type: ignore[arg-type]
    assert restored.snapshot() == durable.snapshot()
    assert [*restored.held] == [4] and restored.verdict(2, 2) is Verdict.NEW


def test_a_number_below_that_comes_again_takes_nothing_back() -> None:
    window = BestEffortWindow(1)
    for seq in (1, 2, 3, 2, 1):
        window.mark(seq)
    assert (window.prefix, window.floor, window.bits) == (3, 3, 0)


def test_what_the_window_slides_over_is_forgotten_and_the_rest_is_kept() -> None:
    window = BestEffortWindow(1)
    for seq in (2, 100, WINDOW, WINDOW + 50):
        window.mark(seq)
    assert (window.prefix, window.floor) == (0, 50)
    taken = [seq for seq in range(51, WINDOW + 51) if window.verdict(seq) is Verdict.DUPLICATE]
    assert taken == [100, WINDOW, WINDOW + 50]


def test_a_base_one_above_moves_the_floor() -> None:
    window = DurableWindow(1)
    window.mark(2, 2)
    assert (window.floor, window.bits) == (2, 0)


def test_a_base_just_above_a_held_number_lifts_the_floor_above_it() -> None:
    window = DurableWindow(1)
    window.mark(4, 4, hold=True)
    assert window.floor == 3
    window.mark(5, 5)
    assert window.held == {4: 4} and window.floor == 5


def test_of_several_held_numbers_the_withdrawn_one_may_come_again() -> None:
    window = DurableWindow(1)
    window.mark(1, 1)
    for seq in (2, 3, 4):
        window.mark(seq, 1, hold=True)
    assert window.owe(3) == 0 and not window.owed
    assert window.withdraw(3)
    verdicts = [window.verdict(seq, 1) for seq in (2, 3, 4)]
    assert verdicts == [Verdict.DUPLICATE, Verdict.NEW, Verdict.DUPLICATE]
    assert window.release(2) and window.floor == 2


def test_rows_of_a_window() -> None:
    best, durable = BestEffortWindow(7), DurableWindow(8)
    for seq in (1, 9):
        best.mark(seq)
        best.owe(seq)
    durable.mark(8, 1, hold=True)
    assert best.snapshot() == [7, 1, b"\x80", [1, 9], 1]
    assert durable.snapshot() == [8, 0, b"\x80", [], [8]]


def test_a_base_is_told_once_the_number_that_named_it_is_on_disk() -> None:
    window = DurableWindow(1)
    for seq in (1, 2, 5):
        window.mark(seq, 1)
    window.mark(7, 7, hold=True)  # 3 and 4 were given up by the sender
    assert window.floor == 6 and window.told == (2, 0b100), "1, 2 and 5 are on disk, and nothing else"
    window.owe(7)
    window.owe(4)
    window.owe(5)
    assert window.collect() == (2, (5,))
    assert window.withdraw(7) and window.told == (2, 0b100), "no room on the disk"
    window.mark(8, 1, hold=True)
    assert window.release(8) and window.told == (2, 0b100100), "what it says of the others is not new"
    window.mark(9, 7, hold=True)
    window.owe(9)
    assert window.release(9) and window.told == (6, 0b110)
    window.owe(9)
    assert window.collect() == (6, (9,))


def test_bases_that_rise_before_the_disk_knows_any() -> None:
    window = DurableWindow(1)
    window.mark(1, 1)
    window.mark(3, 3, hold=True)
    window.mark(6, 5, hold=True)  # 3 is given up
    assert window.told == (1, 0)
    assert window.release(3) and window.told == (2, 0b1)
    window.mark(1 << 50, 1 << 50, hold=True)
    assert window.told == (2, 0b1) and window.withdraw(1 << 50)
    window.mark((1 << 50) + 1, 1 << 50, hold=True)
    assert window.release((1 << 50) + 1) and window.told == ((1 << 50) - 1, 0b10)


def test_a_base_that_is_on_disk_lifts_what_is_told_though_a_higher_one_is_not() -> None:
    window = DurableWindow(1)
    window.mark(1, 1)
    window.mark(5, 4, hold=True)
    window.mark(9, 8, hold=True)
    window.withdraw(9)
    window.mark(10, 6, hold=True)
    assert window.release(10) and window.told == (5, 0b10000)
