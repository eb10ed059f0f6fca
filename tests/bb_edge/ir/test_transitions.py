"""Transition tables: which state follows, what is refused, and how a table is drawn."""

from __future__ import annotations

import enum

import pytest

from bb_edge.ir.transitions import Table, TransitionError
from tests.aids.transitions import assert_decides_by, without_row


class Door(enum.IntEnum):
    SHUT = 0
    OPEN = 1
    GONE = 2


class Act(enum.IntEnum):
    PUSH = 0
    PULL = 1
    BURN = 2


ROWS = {
    (Door.SHUT, Act.PUSH): Door.OPEN,
    (Door.SHUT, Act.PULL): Door.OPEN,
    (Door.OPEN, Act.PULL): Door.SHUT,
    (Door.OPEN, Act.BURN): Door.GONE,
}


@pytest.fixture
def door() -> Table[Door, Act]:
    return Table("door", Door.SHUT, ROWS)


@pytest.mark.parametrize(("pair", "following"), ROWS.items())
def test_a_row_gives_the_next_state(door, pair, following):
    assert door.next(*pair) is following
    assert door.allows(*pair)


def test_a_pair_without_a_row_is_refused_with_the_events_of_the_state(door):
    with pytest.raises(TransitionError) as refused:
        door.next(Door.OPEN, Act.PUSH)
    assert str(refused.value) == (
        "door: event push in state open, which has no row for it (events in this state: pull, burn)"
    )
    assert not door.allows(Door.OPEN, Act.PUSH)


def test_a_state_that_no_event_leaves_says_so(door):
    with pytest.raises(TransitionError, match="events in this state: none"):
        door.next(Door.GONE, Act.PUSH)


def test_a_table_with_a_state_that_cannot_be_reached_is_refused():
    with pytest.raises(TransitionError, match="door: no path leads from shut to gone"):
        Table("door", Door.SHUT, {(Door.SHUT, Act.PUSH): Door.OPEN, (Door.GONE, Act.PULL): Door.SHUT})


def test_the_drawing_joins_the_events_of_an_arrow(door):
    assert door.drawing() == (
        "stateDiagram-v2\n"
        "    [*] --> shut\n"
        "    shut --> open: push, pull\n"
        "    open --> shut: pull\n"
        "    open --> gone: burn\n"
        "    gone --> [*]\n"
    )


def test_rows_cannot_be_written_from_outside(door):
    with pytest.raises(TypeError):
        door.rows[Door.GONE, Act.PUSH] = Door.OPEN


def test_states_and_events_may_be_texts():
    assert Table("lamp", "off", {("off", "press"): "on", ("on", "press"): "off"}).next("off", "press") == "on"


def test_a_walk_that_reaches_every_row_is_accepted(door):
    def walk() -> None:
        assert {pair: door.next(*pair) for pair in ROWS} == ROWS

    assert_decides_by(door, walk)
    assert door.rows == ROWS


def test_a_walk_that_misses_a_row_is_refused(door):
    with pytest.raises(pytest.fail.Exception, match="passes without the row"):
        assert_decides_by(door, lambda: door.next(Door.SHUT, Act.PUSH))


def test_a_row_comes_back_in_its_place(door):
    with without_row(door, (Door.SHUT, Act.PUSH)):
        assert not door.allows(Door.SHUT, Act.PUSH)
    assert list(door.rows) == list(ROWS)
