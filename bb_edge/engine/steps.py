"""What comes out of a poll: everything that must happen outside the engine, or that the outside should know.

Steps are facts about one poll, in the order in which they came about. The verbose ones
(`OpCompleted`, `AsyncSuspended`, `OpTrigger`, `OpSink`) are made only while tracing is on. Every step has its
name here; those of peers and of requests to them are written down in `bb_edge.engine.peer_steps`, those for
the disk in `bb_edge.engine.disk_steps`, those of the device in `bb_edge.engine.device_steps`.
"""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass
from typing import NamedTuple

from bb_edge.engine import device_steps, disk_steps, peer_steps, round_steps, step
from bb_edge.engine.errors import failure_text
from bb_edge.ir.ids import PeerId
from bb_edge.wire.bodies import Body

EngineStep = step.EngineStep
OpStep = step.OpStep

RecordStep = disk_steps.RecordStep
PersistOutbox = disk_steps.PersistOutbox
Journal = disk_steps.Journal
StateUpgraded = disk_steps.StateUpgraded
RecordExpired = disk_steps.RecordExpired
RecordsMissing = disk_steps.RecordsMissing
SentToNobody = disk_steps.SentToNobody
StorageRecovered = disk_steps.StorageRecovered
DataLeftOut = device_steps.DataLeftOut
DataNoted = device_steps.DataNoted
ModelNoted = device_steps.ModelNoted
ValueBeganAnew = device_steps.ValueBeganAnew
RequestDeclined = device_steps.RequestDeclined

PeerUp = peer_steps.PeerUp
PeerDown = peer_steps.PeerDown
PeerFailing = peer_steps.PeerFailing
PeerRefused = peer_steps.PeerRefused
PeersUnheard = peer_steps.PeersUnheard
PeerRestarts = peer_steps.PeerRestarts
PeerBlocked = peer_steps.PeerBlocked
PeerBeganAnew = peer_steps.PeerBeganAnew
StateRolledBack = peer_steps.StateRolledBack
PeerResolveFailed = peer_steps.PeerResolveFailed
ProgramMismatch = peer_steps.ProgramMismatch
ProgramAccepted = peer_steps.ProgramAccepted
ClassMismatch = peer_steps.ClassMismatch
AskedByTurns = peer_steps.AskedByTurns
RequestClosed = peer_steps.RequestClosed
RequestFailed = peer_steps.RequestFailed
AnswerRefused = peer_steps.AnswerRefused
NobodyHeard = peer_steps.NobodyHeard
LayoutUndeclared = peer_steps.LayoutUndeclared
ContributionsClipped = peer_steps.ContributionsClipped
ContributionsDominate = peer_steps.ContributionsDominate

ROUND_FAILED = round_steps.ROUND_FAILED
RoundsCompleted = round_steps.RoundsCompleted
RoundBackedOff = round_steps.RoundBackedOff
RoundWaits = round_steps.RoundWaits
TicksLeftOut = round_steps.TicksLeftOut


class _SendEnvelope(NamedTuple):
    peer: PeerId
    rest: bytes
    expires_in_ns: int = 0
    durable: bool = False
    resent: bool = False
    body: Body = b""
    kept: bool = False


class SendEnvelope(_SendEnvelope, EngineStep):
    """Hand an envelope to the transport: `body`, which envelopes to other peers share, and then `rest`.

    An envelope with small fills has no body. `expires_in_ns` is how long it is worth delivering (0 = for
    ever); `resent` tells a repetition. `kept` says that the node holds the envelope, within its bounds, and
    repeats it until it is acknowledged: a transport without room need not drop it.
    """

    # Every message makes one of these, every invoke an AppEvent and an ExecutionEnded: named tuples, because
    # they are as immutable as frozen dataclasses and made in a third of the time.
    __slots__ = ()

    @property
    def payload(self) -> bytes:
        """The whole envelope: a copy, where it has a body."""
        return b"".join((self.body, self.rest)) if self.body else self.rest

    @property
    def size(self) -> int:
        """Bytes of the whole envelope."""
        return len(self.body) + len(self.rest)


class _AppEvent(NamedTuple):
    target: str
    execution: int
    topic: str
    value: object = None
    omitted_bytes: int = 0


class AppEvent(_AppEvent, EngineStep):
    """A program speaks to its host: an `AppEmit`, an `AppNotify` or a declared output of its root module.

    `topic` is the name that the program gives. `value` is valid until the next poll; `copy()` keeps it. A
    value larger than `NodeConfig.app_event_bytes` is left out: `value` is None, `omitted_bytes` its size.
    """

    __slots__ = ()

    def copy(self) -> AppEvent:
        """The same event with a value of its own."""
        return self._replace(value=copy.deepcopy(self.value))


@dataclass(frozen=True, slots=True)
class OpFailed(OpStep):
    """One op failed: its branch ends, the node goes on.

    `origin` names the component behind it: slot, type and method; empty where no component is. `source` is
    the author's line, where the artifact holds it. `peer` is whose contribution was refused, else whose
    envelope the execution handles; None where no peer brought anything.
    """

    error: BaseException
    origin: str = ""
    source: str = ""
    peer: PeerId | None = None

    @property
    def text(self) -> str:
        """What went wrong, for a log: who, which class of exception, what it says."""
        return failure_text(self.error, self.origin)


@dataclass(frozen=True, slots=True)
class WireReceiveFailed(EngineStep):
    """A fill or envelope could not be taken; `kind` is a WireReceiveErrorKind or EnvelopeErrorKind name."""

    peer: PeerId | None
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class IngressDropped(EngineStep):
    """Something was refused at the border, unmarked and unacknowledged; `reason` says which limit."""

    peer: PeerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class IngressPutOff(EngineStep):
    """A durable envelope found no place yet, and nothing is lost: its sender keeps it and sends it again.

    `reason` says which limit, as that of IngressDropped.
    """

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class OutboundDropped(EngineStep):
    """Something never leaves: the queue was full (the oldest best-effort unit goes), it is larger than the
    peer takes, or it found no room before its deadline ("not sent"). `reason` says which.

    A `durable` one was to arrive once, however long that takes, and is lost; where a round of this node sent
    it, `round` is that round's number.
    """

    peer: PeerId
    reason: str
    durable: bool = False
    round: int | None = None


@dataclass(frozen=True, slots=True)
class ContributionsGivenUp(EngineStep):
    """An aggregator has dropped contributions that counted: their sum was never aggregated.

    `why` names the slot and the round or execution; `peers` are whose they were, where that is known.
    """

    target: str
    why: str
    contributions: int
    peers: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionStarved(EngineStep):
    """An execution ended with ops that got some of their inputs, but not all."""

    target: str
    execution: int
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CycleBudgetExceeded(EngineStep):
    """The poll ended early: `cycle_op_budget` ops had run; the rest goes on in the next poll."""

    ops: int


class _ExecutionEnded(NamedTuple):
    target: str
    execution: int
    failed: bool


class ExecutionEnded(_ExecutionEnded, EngineStep):
    """Closes every `invoke`, delivered event and round; `failed` when one of its ops failed or it starved."""

    __slots__ = ()


class Phase(enum.IntEnum):
    """Lifecycle phases, as `LifecyclePhase(phase=…)` names them."""

    SHUTDOWN = 1
    SNAPSHOT = 2


@dataclass(frozen=True, slots=True)
class LifecycleFired(EngineStep):
    phase: int


@dataclass(frozen=True, slots=True)
class BootstrapStarted(EngineStep):
    """A target's bootstrap begins, or that of the component in `slot`."""

    target: str
    slot: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapComplete(EngineStep):
    """A target's bootstrap has ended, or that of the component in `slot`.

    `reason` is why it failed; it is tried again `wait_ns` later, 0: nobody tries again.
    """

    target: str
    failed: bool = False
    slot: str = ""
    reason: str = ""
    wait_ns: int = 0


class WaitingOnBootstrap(OpStep):
    """A body op waits for a bootstrap that touches its component."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Telemetry(EngineStep):
    """A value that `Record` has pushed out of a full ring: the host's last chance to keep it."""

    name: str
    value: object = None


class OpCompleted(OpStep):
    """An op gave values, or nothing this time (an `Any` that had its first)."""

    __slots__ = ()


class AsyncSuspended(OpStep):
    """An op was parked: a timer, a `Later`, a permit or an answer will resume it."""

    __slots__ = ()


class OpTrigger(OpStep):
    """An op fired: what it gave is a trigger alone."""

    __slots__ = ()


class OpSink(OpStep):
    """An op without outputs has run."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SnapshotWanted(EngineStep):
    """Take a snapshot soon; `reason` says what waits for it."""

    reason: str


@dataclass(frozen=True, slots=True)
class StateForgotten(EngineStep):
    """A restore found nothing of a component that keeps state; once per component, in the first poll.

    Its class does not override `serialize`, or did not when the snapshot was written.
    """

    slot: str
    type_name: str


@dataclass(frozen=True, slots=True)
class StorageFailed(EngineStep):
    """State could not be written: an outbox record (asked for again later), a journal record (the envelope
    counts as never received, its sender repeats it), or a snapshot. `what` says which.
    """

    what: str
    error: BaseException
