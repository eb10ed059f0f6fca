"""One open request: whom it asked, who answered, and the table by which it closes."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from bb_edge.engine.errors import OpError
from bb_edge.engine.net.arrivals import Arrival
from bb_edge.engine.net.units import Unit
from bb_edge.engine.plain import Shift, dump, load
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.naming import Naming, frame_name, op_name, region_name
from bb_edge.ir import keys, types
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import BLAMES_THE_PEER, MissingReason
from bb_edge.ir.transitions import Table
from bb_edge.ir.types import ValueType
from bb_edge.roles import TRIGGER
from bb_edge.wire.outbox import Cause

MANY: Final = 16
"""So many envelopes share one write and sync gladly; more need not wait for each other."""


class CohortState(str, enum.Enum):  # hashed as a text is: in C
    """How far a request is. Snapshots hold the values."""

    OPEN = "open"
    """Answers are taken."""
    CLOSED = "closed"
    """No more answers count; those that came are still being worked on, or a snapshot is to hold the end."""
    FIRED = "fired"
    """The execution that asked has the result."""


class CohortEvent(str, enum.Enum):
    """What happens to a request. The values of those that close it are the reasons that steps tell."""

    ANSWERED = "answered"
    SETTLED = "settled"
    """A peer will not answer: it says so, is down, could not be reached, or sent what could not be read."""
    COUNTED = "counted"
    """The execution that an answer ran in has ended: it counts, or was refused."""
    ENOUGH = "enough"
    ALL_SETTLED = "all settled"
    NOBODY_ASKED = "nobody asked"
    DEADLINE = "deadline"
    DONE = "done"
    """Nothing of a closed request runs or waits any more."""


_OPEN, _CLOSED = CohortState.OPEN, CohortState.CLOSED

REQUEST: Final = Table(
    "request",
    _OPEN,
    {
        (_OPEN, CohortEvent.ANSWERED): _OPEN,
        (_OPEN, CohortEvent.SETTLED): _OPEN,
        (_OPEN, CohortEvent.COUNTED): _OPEN,
        (_CLOSED, CohortEvent.COUNTED): _CLOSED,
        (_OPEN, CohortEvent.ENOUGH): _CLOSED,
        (_OPEN, CohortEvent.ALL_SETTLED): _CLOSED,
        (_OPEN, CohortEvent.NOBODY_ASKED): _CLOSED,
        (_OPEN, CohortEvent.DEADLINE): _CLOSED,
        (_CLOSED, CohortEvent.DONE): CohortState.FIRED,
    },
)


class Answer(NamedTuple):
    """An accepted answer that waits for its child execution.

    `values` are the decoded payloads, `cause` names the envelope of a durable one, and `size` bytes of it are
    charged to the peer.
    """

    peer: PeerId
    values: tuple[object, ...]
    cause: Cause | None
    size: int


@dataclass(slots=True, eq=False)
class Cohort:
    """One request in flight: the peers that one firing of a `SendReqBatched` asks.

    The execution of `frame` asks the `gated` peers, of those that were `asked` for. `region` is what runs
    once for each answer; None where answers are kept, or not read.

    `settled` are the peers that nobody waits for, `final` those of them that have said what they have to
    say, `accepted` those whose answers count. `reasons` tell of others why they are missing. `tried` are
    those that were down or failing when they were asked. `cut` says that the deadline is that of whoever
    asked this node; `stretch` is that of the connection in which it was made (`Uplink`).
    """

    id: int
    frame: Frame
    op: BoundOp
    gated: tuple[PeerId, ...]
    asked: tuple[PeerId, ...]
    region: BoundRegion | None
    until_ns: int
    cut: bool = False
    stretch: int = 0
    execution: Execution = field(init=False)
    port: str = field(init=False)
    mode: str = field(init=False)
    enough: int = field(init=False)
    durable: bool = field(init=False)
    ask: Unit | None = None  # what a best-effort one sends, should it have to be sent again
    state: CohortState = REQUEST.start
    by_req_id: dict[int, PeerId] = field(default_factory=dict)
    settled: set[PeerId] = field(default_factory=set)
    final: set[PeerId] = field(default_factory=set)
    tried: set[PeerId] = field(default_factory=set)
    accepted: set[PeerId] = field(default_factory=set)
    answers: list[tuple[object, ...]] = field(default_factory=list)
    waiting: deque[Answer] = field(default_factory=deque)
    running: int = 0
    collector: tuple[int, int] | None = None  # (token, number of stacks) of the parked RecvRespBatched
    timer: int = 0
    reason: str = ""
    reasons: dict[PeerId, MissingReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        meta = self.op.spec.meta
        assert self.frame.execution is not None
        self.execution = self.frame.execution
        self.port = meta.get(keys.PORT_KEY, self.op.spec.name)
        self.mode = meta.get(keys.ANSWER_MODE_KEY, keys.ANSWER_BATCH)
        self.enough = int(meta.get(keys.ENOUGH_KEY, "0"))
        self.durable = meta.get(keys.DURABLE_KEY) == "1"
        self.asked = tuple(dict.fromkeys(self.asked))
        self.gated = tuple(dict.fromkeys(self.gated))

    def allows(self, event: CohortEvent) -> bool:
        """Whether the event counts in the request's state."""
        return (self.state, event) in REQUEST.rows

    def happens(self, event: CohortEvent) -> None:
        """Moves on by the table."""
        self.state = REQUEST.rows[self.state, event]

    @property
    def held_back(self) -> tuple[PeerId, ...]:
        """The peers that were asked for and did not pass the gates."""
        if len(self.gated) == len(self.asked):
            return ()
        gated = frozenset(self.gated)
        return tuple(peer for peer in self.asked if peer not in gated)

    def answered(self, peer: PeerId) -> None:
        """The peer's answer has come, and no other one of it is taken."""
        self.settled.add(peer)
        self.final.add(peer)
        self.reasons.pop(peer, None)

    def try_out(self, peer: PeerId, reason: MissingReason) -> None:
        """The peer is asked, and nobody waits for it."""
        self.tried.add(peer)
        self.settle(peer, reason)

    def settle(self, peer: PeerId, reason: MissingReason) -> None:
        """Nobody waits for the peer; the first reason counts."""
        self.settled.add(peer)
        self.reasons.setdefault(peer, reason)

    @property
    def may_run(self) -> bool:
        """Whether one more answer may be worked on, as far as it is needed."""
        return not self.enough or self.running + len(self.accepted) < self.enough

    @property
    def over(self) -> CohortEvent | None:
        """Why the request need not wait for more answers; None while it must."""
        if self.enough and self.has_enough:
            return CohortEvent.ENOUGH
        if len(self.settled) < len(self.gated) or (self.enough and (self.running or self.waiting)):
            return None
        return CohortEvent.ALL_SETTLED if self.gated else CohortEvent.NOBODY_ASKED

    @property
    def has_enough(self) -> bool:
        """Whether as many answers count as were wanted; False where all are wanted."""
        return 0 < self.enough <= len(self.accepted)

    def has_company(self, held: Mapping[int, Arrival]) -> bool:
        """Whether more answers are to come behind one more, and those of what is `held` that are its own."""
        if len(held) >= MANY:
            return False
        came = 1 + sum([other.message.wire_req_id in self.by_req_id for other in held.values()])
        if self.enough and len(self.accepted) + came >= self.enough:
            return False
        return len(self.gated) - len(self.settled) > came

    @property
    def lacks_answers(self) -> bool:
        """Whether it ended without somebody's answer, though not because it had enough of them."""
        answered = self.final.difference(self.reasons)
        return self.reason != CohortEvent.ENOUGH.value and not answered.issuperset(self.gated)

    @property
    def missing(self) -> tuple[PeerId, ...]:
        """The peers that were asked for and whose answers do not count, once it has fired."""
        return tuple(p for p in self.asked if p not in self.accepted)

    def why(self, peer: PeerId) -> MissingReason:
        """Why a peer is missing, once the request has fired."""
        return self.reasons.get(peer, MissingReason.DEADLINE)

    @property
    def blamed(self) -> tuple[PeerId, ...]:
        """The peers that were asked and waited for, and have no answer that counts, once it has fired."""
        if len(self.accepted) == len(self.gated):
            return ()
        done = self.accepted | self.tried
        return tuple(p for p in self.gated if p not in done and self.why(p) in BLAMES_THE_PEER)

    def result(self, stacks: int) -> tuple[object, ...]:
        """(closed, missing peers, *stacks): what `RecvRespBatched` gives. OpError where answers differ."""
        missing = self.missing
        if self.answers:
            columns = ([answer[i] for answer in self.answers] for i in range(stacks))
            return (TRIGGER, missing, *(_stack(column, self.port) for column in columns))
        wire_id = self.op.spec.meta.get(keys.WIRE_ID_KEY, "")
        declared = self.frame.region.graph.slot.stacks.get(wire_id, ())
        return (TRIGGER, missing, *(_empty(t) for t in (*declared, *[None] * stacks)[:stacks]))

    def save(self) -> dict[str, Any]:
        """The request as plain values; `restored` reads them."""
        return {
            "id": self.id,
            "frame": frame_name(self.frame),
            "op": op_name(self.op),
            "state": self.state.value,
            "asked": dump(self.asked),
            "gated": dump(self.gated),
            "by_req_id": [[number, dump(peer)] for number, peer in self.by_req_id.items()],
            "settled": sorted(peer.to_bytes() for peer in self.settled),
            "final": sorted(peer.to_bytes() for peer in self.final),
            "tried": sorted(peer.to_bytes() for peer in self.tried),
            "accepted": sorted(peer.to_bytes() for peer in self.accepted),
            "reasons": [[peer.to_bytes(), reason.value] for peer, reason in self.reasons.items()],
            "until_ns": self.until_ns,
            "cut": self.cut,
            "answers": [dump(answer) for answer in self.answers],
            "waiting": [[*map(dump, answer)] for answer in self.waiting],
            "running": self.running,
            "region": None if self.region is None else region_name(self.region),
            "collector": None if self.collector is None else list(self.collector),
            "timer": self.timer,
            "reason": self.reason,
            "ask": None if self.ask is None else self.ask.save(),
        }

    @classmethod
    def restored(cls, row: Any, shift: Shift, naming: Naming) -> Cohort:
        """The request that `save` wrote; the deadline of what it repeats moves by `shift`."""
        frame, op = naming.frame(row["frame"]), naming.op(row["op"])
        region = None if row["region"] is None else naming.region(row["region"])
        cohort = cls(
            row["id"],
            frame,
            op,
            load(row["gated"]),
            load(row["asked"]),
            region,
            shift.time(row["until_ns"]),
            row["cut"],
        )
        cohort.state = CohortState(row["state"])
        cohort.by_req_id = {number: load(peer) for number, peer in row["by_req_id"]}
        by_bytes = {peer.to_bytes(): peer for peer in (*cohort.asked, *cohort.gated)}
        cohort.settled = {by_bytes[peer] for peer in row["settled"]}
        cohort.final = {by_bytes[peer] for peer in row["final"]}
        cohort.tried = {by_bytes[peer] for peer in row["tried"]}
        cohort.accepted = {by_bytes[peer] for peer in row["accepted"]}
        cohort.reasons = {by_bytes[peer]: MissingReason(reason) for peer, reason in row["reasons"]}
        cohort.answers = [load(answer) for answer in row["answers"]]
        cohort.waiting = deque(Answer(*map(load, answer)) for answer in row["waiting"])
        cohort.running = row["running"]
        if row["collector"] is not None:
            token, stacks = row["collector"]
            cohort.collector = (token, stacks)
        cohort.timer, cohort.reason = row["timer"], row["reason"]
        cohort.ask = None if row["ask"] is None else Unit.restored(row["ask"], shift)
        return cohort


def _empty(declared: ValueType | None) -> np.ndarray[Any, Any]:
    """The batch that nobody answered, of the declared dtype; unknown dimensions are 0, an unknown rank [0].

    Float32 where the artifact does not tell the element type.
    """
    elem, shape = (None, None) if declared is None else (declared.node.elem_type, declared.shape)
    dtype = None if elem is None else types.dtype_of_elem(elem)
    rest = (shape or ())[1:]
    return np.empty((0, *(d if isinstance(d, int) else 0 for d in rest)), dtype or np.float32)


def _stack(rows: Sequence[object], port: str) -> np.ndarray[Any, Any]:
    """One array with a new first axis. OpError for rows that are not arrays, or differ in dtype or shape."""
    arrays = []
    for row in rows:
        if not isinstance(row, np.ndarray):
            raise OpError(
                "only tensor replies can be read as one stack", where=port, hint="read r.answer instead"
            )
        arrays.append(row)
    if len({(a.shape, a.dtype) for a in arrays}) > 1:
        raise OpError(
            f"the answers do not stack: {sorted({(str(a.dtype), a.shape) for a in arrays})}",
            where=port,
            hint="read r.answer instead, once per answer",
        )
    return np.stack(arrays)
