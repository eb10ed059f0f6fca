"""What a sender of durable envelopes holds per destination, and what it has its owner do."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED
from bb_edge.wire.durable_questions import Question
from bb_edge.wire.durable_rows import Flow, RowName
from bb_edge.wire.marks import NOTHING, Heard
from bb_edge.wire.outbox import OutboxRecord


class FlowState(enum.IntEnum):
    """How far a destination has come in this run."""

    SILENT = 0
    """Its marks are not asked for: it is not up, or there is nothing to say about it."""
    ASKING = 1
    HEARD = 2
    """Its marks are heard, and nothing needs a number yet."""
    MOVING = 3
    """The row that begins the epoch is being written."""
    OPEN = 4
    PLAIN = 5
    """It is of a version without marks: its epoch goes on from run to run, and nothing is noticed."""


class FlowEvent(enum.IntEnum):
    """What happens to a destination."""

    UP = 0
    """It came up in a run of its own that this run has not exchanged marks with."""
    UP_PLAIN = 1
    DOWN = 2
    TOOK = 3
    """It answered the question that is open."""
    ASTRAY = 4
    """It said marks that are not an answer to the last question: it takes nothing until it is asked again."""
    BEGIN = 5
    """A record needs a number."""
    MOVED = 6
    """The row that begins the epoch is on disk."""


_SILENT, _ASKING, _HEARD = FlowState.SILENT, FlowState.ASKING, FlowState.HEARD
_MOVING, _OPEN, _PLAIN = FlowState.MOVING, FlowState.OPEN, FlowState.PLAIN

FLOW: Final = Table(
    "durable flow",
    _SILENT,
    {
        (_SILENT, FlowEvent.UP): _ASKING,
        (_SILENT, FlowEvent.UP_PLAIN): _PLAIN,
        (_SILENT, FlowEvent.ASTRAY): _ASKING,
        (_ASKING, FlowEvent.UP): _ASKING,
        (_ASKING, FlowEvent.UP_PLAIN): _PLAIN,
        (_ASKING, FlowEvent.DOWN): _SILENT,
        (_ASKING, FlowEvent.TOOK): _HEARD,
        (_HEARD, FlowEvent.UP): _ASKING,
        (_HEARD, FlowEvent.UP_PLAIN): _PLAIN,
        (_HEARD, FlowEvent.ASTRAY): _ASKING,
        (_HEARD, FlowEvent.BEGIN): _MOVING,
        (_MOVING, FlowEvent.UP): _ASKING,
        (_MOVING, FlowEvent.UP_PLAIN): _PLAIN,
        (_MOVING, FlowEvent.ASTRAY): _ASKING,
        (_MOVING, FlowEvent.MOVED): _OPEN,
        (_OPEN, FlowEvent.UP): _ASKING,
        (_OPEN, FlowEvent.UP_PLAIN): _PLAIN,
        (_OPEN, FlowEvent.ASTRAY): _ASKING,
        (_PLAIN, FlowEvent.UP): _ASKING,
        (_PLAIN, FlowEvent.ASTRAY): _ASKING,
    },
)


class Write(NamedTuple):
    """A row to be written; `persisted(token)` answers. Where `record` has a body, that goes before it."""

    token: int
    name: int | RowName
    row: bytes
    record: OutboxRecord | None = None


class Publish(NamedTuple):
    """A record may go out now, for the first time under its number; `payload(id)` has the bytes."""

    id: int


class Settled(NamedTuple):
    """Nobody waits for this record any more."""

    id: int


class Say(NamedTuple):
    """Marks for a peer: an envelope."""

    peer: PeerId
    payload: bytes


class RolledBack(NamedTuple):
    """A state is older than the world. `own` tells whose: this node's, or the peer's. None: one of the two
    was put back more than once, and nobody can tell which.

    `lost` are the numbers that were acknowledged and are not known there now, of many the last 64, and from
    `first` on others may be; of a sender that is old, nothing. `again` are the ids of an old sender's records
    that go out once more: the peer may have taken each of them under a number that is not known here.
    """

    peer: PeerId
    own: bool | None
    epoch: int
    lost: tuple[int, ...] = ()
    first: int = 0
    again: tuple[int, ...] = ()


class NoWindow(NamedTuple):
    """A note: a peer that had taken records of this epoch, up to `high`, has no window: it began anew."""

    peer: PeerId
    epoch: int
    high: int


Effect: TypeAlias = "Write | Publish | Settled | Say | RolledBack | NoWindow"


@dataclass(slots=True, eq=False)
class Held:
    """A record on disk, or on its way there; it stays until a snapshot, settled or not."""

    id: int
    record: OutboxRecord
    seq: int = 0  # in the epoch of its flow; 0: none yet
    writing: int = 0  # the token of its own row, until that is on disk
    numbering: int = 0  # of the row that has its number
    settled: bool = False

    @property
    def on_disk(self) -> bool:
        """Whether nothing of it is still to be written."""
        return not (self.writing or self.numbering)


@dataclass(slots=True, eq=False)
class Destination:
    """A flow to one peer; times are monotonic nanoseconds."""

    peer: PeerId
    state: FlowState = FLOW.start
    epoch: int = 0
    last: int = 0
    heard: Heard = NOTHING
    saved: Flow = field(default_factory=Flow)  # as it would be read from disk
    above: int = 0  # the highest epoch that the peer has named
    run: int | None = None
    question: Question = field(default_factory=Question)
    answer: int = 0
    sender_is_old: bool = False
    beginning: int = 0  # the token of the row that began the epoch
    open: dict[int, Held] = field(default_factory=dict)  # by number, ascending
    waiting: deque[Held] = field(default_factory=deque)  # without a number, in order

    @property
    def base(self) -> int:
        """The lowest number that is not settled."""
        return next(iter(self.open), self.last + 1)

    @property
    def free(self) -> int:
        """How many numbers may be given now."""
        begun = self.epoch and self.epoch == self.saved.epoch
        return DURABLE_UNACKNOWLEDGED - (self.last + 1 - self.base) if begun else 0

    def save(self) -> Flow:
        """What a snapshot says of it: an epoch only once its first row is on disk."""
        if self.epoch == self.saved.epoch:
            return Flow(self.epoch, self.last, self.heard)
        return Flow(self.saved.epoch, self.saved.last, self.heard)

    def inspect(self) -> dict[str, Any]:
        """The flow as plain data, for people and tests."""
        return {
            "state": self.state.name,
            "epoch": self.epoch,
            "last": self.last,
            "heard": tuple(self.heard),
            "saved": (self.saved.epoch, self.saved.last, tuple(self.saved.heard)),
            "marks": (self.question.token, self.answer, self.above, self.run, self.sender_is_old),
            "open": [(seq, held.id, held.on_disk) for seq, held in self.open.items()],
            "waiting": [(held.id, held.on_disk) for held in self.waiting],
        }
