"""Steps that tell of rounds: that they wait, fail, reach nobody, and end."""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine.step import EngineStep
from bb_edge.ir.ids import PeerId

ROUND_FAILED = "failed"
"""The reason of a back-off behind a round in which an op has failed."""


@dataclass(frozen=True, slots=True)
class RoundsCompleted(EngineStep):
    """A `Repeat` has come to its end: it has counted its `times`, or a round has ended it."""

    target: str
    rounds: int


@dataclass(frozen=True, slots=True)
class RoundBackedOff(EngineStep):
    """A round failed or reached nobody: the next one waits (ended by a PeerUp).

    `in_a_row` is how many have now done so, one after another: the waits double. A round that has reached
    nobody is not counted, and runs again; one that failed is. `op` is the `Repeat`, whose line in the program
    `bb-host symbolize` finds.
    """

    target: str
    round: int
    wait_ns: int
    reason: str
    in_a_row: int = 0
    op: str = ""

    @property
    def reached_nobody(self) -> int:
        """How many rounds in a row have now reached nobody; 0 for one that failed."""
        return 0 if self.reason == ROUND_FAILED else self.in_a_row


@dataclass(frozen=True, slots=True)
class TicksLeftOut(EngineStep):
    """Ticks of the interval `op` are left out (`ticks.skipped`), because executions of `running` earlier ones
    have not ended, which is its share. Said once until a tick is taken again.
    """

    target: str
    op: str
    running: int


@dataclass(frozen=True, slots=True)
class RoundWaits(EngineStep):
    """A round waits for peers of a class: it needs `wanted`, and there are `there`. Nothing of it runs.

    `failing` say that they are up as well, and left requests unanswered, or acknowledge nothing. `offline`:
    there would be enough, but this node has no connection, or has just got it back and counts whom it has
    heard of since. `next_try_ns` is how long it is until the first that is failing is tried again and counts,
    a minute at most. `op` is the sample that lacks them. Said when the wait begins; `again` after 15 s, and
    then where others lack than were said, ever more seldom.
    """

    target: str
    round: int
    peer_class: str
    there: int
    wanted: int
    failing: tuple[PeerId, ...] = ()
    offline: bool = False
    again: bool = False
    next_try_ns: int = 0
    op: str = ""
