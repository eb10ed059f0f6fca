"""The life of an execution as a table, and what holds an execution open."""

from __future__ import annotations

import enum
from typing import Final

from bb_edge.ir.transitions import Table


class State(enum.IntEnum):
    """Where an execution is in its life."""

    IDLE = 0  # a record in the pool
    STARTED = 1  # its first values are being written
    RUNNING = 2  # it stands in the run queue
    WAITING = 3  # nothing of it is ready, and something holds it open
    ENDING = 4  # nothing of it is ready and nothing holds it; gates across executions look at it


RUNNING: Final = State.RUNNING
"""By a name of its own: each write asks for it, and an enumeration is slow to look into."""


class Event(enum.IntEnum):
    """What happens to an execution."""

    START = 0
    WAKE = 1  # an op of it got all of its inputs
    HELD = 2  # its last ready op has run, and something holds it
    DRAINED = 3  # its last ready op has run, and nothing holds it
    END = 4


class Hold(enum.IntEnum):
    """Why an execution with nothing ready does not end."""

    PARKED = 0  # an op waits for a timer, or for a component that answers later
    PERMIT = 1  # an op waits for another execution: a permit, a queue, an answer to a request
    REQUEST = 2  # a request is open
    CHILD = 3  # a child execution runs
    CLAIM = 4  # an op waits until the execution has claimed its components
    LOCK = 5  # an op waits for a bootstrap that holds its component
    BUSY = 6  # an op waits for a component that takes one op at a time
    BOOTSTRAP = 7  # a bootstrap waits for the components that it claims


LIFE: Final = Table(
    "execution",
    State.IDLE,
    {
        (State.IDLE, Event.START): State.STARTED,
        (State.STARTED, Event.WAKE): State.RUNNING,
        (State.RUNNING, Event.HELD): State.WAITING,
        (State.WAITING, Event.WAKE): State.RUNNING,
        (State.RUNNING, Event.DRAINED): State.ENDING,
        (State.ENDING, Event.WAKE): State.RUNNING,
        (State.ENDING, Event.END): State.IDLE,
    },
)

KEEPS_CLAIMS: Final = frozenset({Hold.PARKED, Hold.CLAIM, Hold.LOCK, Hold.BUSY, Hold.BOOTSTRAP})
"""Holds under which an execution keeps what it has claimed.

The others wait for somebody else, who may need the same components: the claims are given up meanwhile.
"""
