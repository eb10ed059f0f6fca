"""Executions and their frames: what runs, and the values that it works on.

An execution is one cascade. It owns a frame per graph and region that it runs in. `life.py` has the table
of its states and what holds it open; only this room writes executions and frames, others call their methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bb_edge.engine.run.body_run import BodyRun
from bb_edge.engine.run.bound import BoundOp, BoundRegion
from bb_edge.engine.run.life import Hold, State
from bb_edge.ir.ids import PeerId
from bb_edge.wire.envelope_records import Failure, FailureCode
from bb_edge.wire.outbox import Cause


class Asker(Protocol):
    """Whoever opens requests in executions, and runs their answers as children."""

    def execution_ended(self, execution: Execution) -> None:
        """An execution that asked, or a child of one, has ended; its record is cleared after this call."""


class ReplyPort(NamedTuple):
    """The op that replies to a request: its wire id, and whether the request id may reach it in a later
    execution than the one that the request started.
    """

    op: BoundOp
    wire_id: int
    defers: bool


@dataclass(slots=True, eq=False)
class Frame:
    """The slot table of one execution in one region of one graph; of a function with who runs it, of a loop's
    body with how far that is.
    """

    region: BoundRegion
    execution: Execution | None = None
    parent: Frame | None = None
    children: list[Frame] | None = None
    caller: Frame | None = None
    call: BoundOp | None = None
    body: BodyRun | None = None
    # Whether writes must be passed on: to children, or to a caller.
    forwards_writes: bool = False
    consumers: tuple[tuple[tuple[BoundOp, int], ...], ...] = field(init=False)
    forwarded: frozenset[int] = field(init=False)
    values: list[Any] = field(init=False)
    waiting: list[int] = field(init=False)

    def __post_init__(self) -> None:
        slot = self.region.graph.slot
        self.consumers, self.forwarded = self.region.consumers, slot.forwarded
        self.values, self.waiting = list(slot.values), list(slot.waiting)

    def again(self) -> None:
        """Has every op wait for its inputs anew, with no value but the constants."""
        slot = self.region.graph.slot
        self.values[:], self.waiting[:] = slot.values, slot.waiting

    def reset(self) -> None:
        """Makes the frame clean again."""
        self.again()
        self.execution = self.parent = self.children = self.caller = self.call = self.body = None
        self.forwards_writes = False

    def called_by(self, caller: Frame, call: BoundOp) -> None:
        """Makes it the frame of a called function: what reaches an output goes on to the caller."""
        self.caller, self.call, self.forwards_writes = caller, call, True

    def add_child(self, child: Frame) -> None:
        """Lets a child execution's frame see this one's values, also those that are still to come."""
        child.parent = self
        if self.children is None:
            self.children = []
        self.children.append(child)
        self.forwards_writes = True

    def remove_child(self, child: Frame) -> None:
        """Ends that for a frame."""
        self.children = [frame for frame in self.children or () if frame is not child]


class FreeFrames(dict[BoundRegion, list[Frame]]):
    """Clean frames by region, made at install. `grown` counts those that were made beyond the plan."""

    __slots__ = ("_planned", "grown")

    def __init__(self) -> None:
        super().__init__()
        self.grown = 0
        self._planned: dict[BoundRegion, int] = {}  # those of the plan that are not made yet

    def fill(self, region: BoundRegion, count: int, now: bool = True) -> None:
        """Makes frames of a region until there are `count`; or plans them, to be made when needed."""
        free = self.setdefault(region, [])
        if now:
            free.extend(Frame(region) for _ in range(count - len(free)))
        else:
            self._planned[region] = max(self._planned.get(region, 0), count - len(free))

    def make(self, region: BoundRegion) -> Frame:
        """One more frame of a region, of which none is free."""
        self.setdefault(region, [])
        left = self._planned.get(region, 0)
        self._planned[region] = max(left - 1, 0)
        self.grown += not left
        return Frame(region)


@dataclass(slots=True, eq=False)
class Execution:
    """One cascade. `ready` holds (frame, op); `parked` those that wait for a claim.

    `held` counts what holds it open, by kind. `claim_timer` ends the wait for a claim at the deadline,
    `until_timer` every other one of an execution that was asked.
    `acknowledged` says that its sender will not repeat its envelope, so that no gate stops it. `cause` tells
    its durable sends from those of a later execution. `bytes_held` are those of the envelope that started
    it, charged to `source`; `answer_bytes` those of the answers to its requests. `refused` is why an
    aggregator did not count what it brought, empty where none refused anything. `deadline_ns` is
    when whoever asked gives up, `until_ns` when it should be over, so that its reply is there in time; both
    are 0 without a deadline. `owes` is the id of the request that started it (0: none), `reply` the op that
    answers it. `fault` is the first thing that went wrong: the failure in place of a reply, and why the
    answer that a child works on is refused.
    """

    _free: FreeFrames
    state: State = State.IDLE
    id: int = 0
    target: str = ""
    ready: deque[tuple[Frame, BoundOp]] = field(default_factory=deque)
    parked: list[tuple[Frame, BoundOp]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    permits: list[Callable[[int], None]] = field(default_factory=list)
    cohorts: list[int] = field(default_factory=list)
    held: dict[Hold, int] = field(default_factory=dict)
    failed: bool = False
    expired: bool = False
    acknowledged: bool = False
    claimed: bool = False
    asked_somebody: bool = False
    told_anybody: bool | None = None  # None where it has sent nothing one way
    heard_somebody: bool = False
    notify: bool = False
    replied: bool = False
    ends_rounds: bool = False  # the `Repeat` that started it starts no further one
    claim_set: tuple[int, ...] = ()
    claim_timer: int = 0
    until_timer: int = 0
    deadline_ns: int = 0
    until_ns: int = 0
    bytes_held: int = 0
    answer_bytes: int = 0
    requests_made: int = 0
    owes: int = 0
    reply: ReplyPort | None = None
    fault: Failure | None = None
    bootstrap: tuple[str, str] | None = None  # the one that it runs: its target, and its slot or ""
    parent: Execution | None = None
    asker: Asker | None = None
    source: PeerId | None = None
    cause: Cause | None = None
    on_claimed: Callable[[Execution], None] | None = None  # called instead of running `parked`
    on_end: Callable[[Execution], None] | None = None

    def clear(self) -> None:
        """Makes the record clean again, all but its state, and gives its frames back."""
        self.target, self.claim_set = "", ()
        self.failed = self.expired = self.acknowledged = self.claimed = False
        self.asked_somebody = self.notify = self.replied = self.heard_somebody = self.ends_rounds = False
        self.id = self.claim_timer = self.until_timer = self.deadline_ns = self.until_ns = 0
        self.bytes_held = self.answer_bytes = self.requests_made = self.owes = 0
        self.bootstrap = self.parent = self.asker = self.source = self.cause = self.told_anybody = None
        self.on_claimed = self.on_end = self.reply = self.fault = None
        for frame in self.frames:
            frame.reset()
            self._free[frame.region].append(frame)
        self.frames.clear()
        if self.cohorts or self.permits or self.held or self.ready or self.parked:
            for table in (self.cohorts, self.permits, self.held, self.ready, self.parked):
                table.clear()

    # --- how it begins --------------------------------------------------------------------------------

    def came_from(
        self,
        source: PeerId,
        cause: Cause | None,
        deadline_ns: int,
        acknowledged: bool,
        request: int = 0,
        reply: ReplyPort | None = None,
        on_end: Callable[[Execution], None] | None = None,
        until_ns: int = 0,
    ) -> None:
        """Notes the envelope that it handles.

        `deadline_ns` is absolute, 0 for none; `until_ns` is when it must have its reply, to be there by then.
        That of a request has its id and the op that replies; `on_end`, a registered callback, is called where
        the execution ends without a reply.
        """
        if request:
            self.owes, self.reply, self.on_end = request, reply, on_end
        self.source, self.cause, self.acknowledged = source, cause, acknowledged
        self.deadline_ns, self.until_ns = deadline_ns, until_ns or deadline_ns

    def will_claim(self, components: tuple[int, ...]) -> None:
        """Adds to the components that it claims in one step, before the first op that touches one."""
        if components and components != self.claim_set:
            self.claim_set = tuple(sorted({*self.claim_set, *components}))

    def tell_end(self, on_end: Callable[[Execution], None] | None = None) -> None:
        """Reports its end with an `ExecutionEnded`, and calls `on_end`, a registered callback."""
        self.notify, self.on_end = True, on_end

    def replies(self, number: int) -> bool:
        """Whether the reply to a request may be handed out: nobody has, here or in whoever asked in it.

        The request may be that of an execution which has ended; nothing is known of it any more.
        """
        asked: Execution | None = self
        while asked is not None:
            if asked.owes == number != 0:
                if asked.replied:
                    return False
                asked.replied, asked.on_end = True, None
                return True
            asked = asked.parent
        return True

    def went_wrong(self, code: FailureCode, detail: str) -> None:
        """Notes what whoever asked, or gave the answer that it works on, is told; the first one counts."""
        if self.fault is None and (self.owes or self.parent is not None):
            self.fault = Failure.of(code, detail)

    def charge_answer(self, size: int) -> None:
        """Keeps the bytes of an answer charged until the end."""
        self.answer_bytes += size

    def asks(self, asker: Asker, somebody: bool) -> None:
        """A request opens; `somebody` says whether anyone is asked."""
        self.asker = asker
        self.hold(Hold.REQUEST)
        self.requests_made += 1
        self.asked_somebody = self.asked_somebody or somebody

    def add_permit(self, release: Callable[[int], None]) -> None:
        """Calls `release(id)`, a registered callback, at the end."""
        self.permits.append(release)

    def tells(self, somebody: bool) -> None:
        """Something is sent one way; `somebody` says whether to anyone."""
        self.told_anybody = somebody or bool(self.told_anybody)

    @property
    def reached_nobody(self) -> str:
        """Why it reached nobody, though it asked or told: "" where it did, or neither asked nor told."""
        if self.told_anybody or self.heard_somebody:
            return ""
        if self.asked_somebody:
            return "no answer counts"
        return "nobody asked" if self.requests_made else "" if self.told_anybody is None else "nobody told"

    @property
    def is_asked(self) -> bool:
        """Whether a request has started it, or an answer to one that such an execution has made."""
        asked: Execution | None = self
        while asked is not None:
            if asked.owes:
                return True
            asked = asked.parent
        return False

    @property
    def heard_nobody(self) -> bool:
        """Whether it made requests, and no answer to them counts."""
        return self.requests_made > 0 and not self.heard_somebody

    def ends_unheard(self, request: int) -> bool:
        """Whether its end will tell whoever made that request that nobody answered what it asked in turn."""
        deferred = self.reply is not None and self.reply.defers
        return self.heard_nobody and self.owes == request != 0 and not (self.replied or deferred)

    def asked(self, cohort: int, heard: bool) -> None:
        """A request is over; `cohort` is its number, `heard` says whether an answer counts."""
        self.heard_somebody = self.heard_somebody or heard
        self.let_go(Hold.REQUEST)
        self.cohorts.append(cohort)

    def expire(self) -> None:
        """Its deadline has passed: nothing that is left of it counts as missing."""
        self.expired = True

    # --- what holds it --------------------------------------------------------------------------------

    def hold(self, why: Hold) -> None:
        """Keeps it open until `let_go` is called as often with the same reason."""
        self.held[why] = self.held.get(why, 0) + 1

    def let_go(self, why: Hold) -> None:
        """Takes one hold away. KeyError where there is none: a fault of the caller."""
        left = self.held[why] - 1
        if left:
            self.held[why] = left
        else:
            del self.held[why]

    def park(self, frame: Frame, op: BoundOp) -> None:
        """Keeps an op until the execution has its claims."""
        self.parked.append((frame, op))
        self.hold(Hold.CLAIM)

    def unpark_all(self, ready: bool) -> None:
        """Ends the wait for claims: the ops are ready, or forgotten."""
        if ready:
            self.ready.extend(self.parked)
        self.parked.clear()
        self.held.pop(Hold.CLAIM, None)

    # --- frames ---------------------------------------------------------------------------------------

    def frame_of(self, region: BoundRegion) -> Frame:
        """The execution's frame in that region, taken from the pool on first use."""
        for frame in self.frames:
            if frame.region is region and frame.caller is None:
                return frame
        return self.new_frame(region)

    def new_frame(self, region: BoundRegion) -> Frame:
        """One more frame of the execution in that region: of a called function, or of a snapshot."""
        free = self._free.get(region)
        frame = free.pop() if free else self._free.make(region)
        frame.execution = self
        self.frames.append(frame)
        return frame

    def give_back(self, frame: Frame) -> None:
        """Gives one frame back before the end."""
        self.frames.remove(frame)
        self._free[frame.region].append(frame)
        frame.reset()
