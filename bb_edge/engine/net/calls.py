"""Calls between components: requests that wait for answers here, and answers that are given later."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.engine import steps
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.outlets import Outlet, Reply
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.unanswered import Unanswered
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.waiting import check_deadline
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.roles.completion import CompletionHandle, CompletionSink, Later
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import CompletionExpiredError
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.envelope_records import Failure, FailureCode

Done = Callable[[Any, "bytes | None"], object]
"""`done(ctx, reply)`: None where there is no reply and none will come."""


# --- requests that wait here ----------------------------------------------------------------------------


class CallState(enum.Enum):
    """How far a request of a component is."""

    WAITING = "waiting"
    LOST = "lost"
    """No answer will come. The component hears of it in the next poll: it may still be asking."""
    OVERDUE = "overdue"
    """Its deadline has passed; the component hears of it after all that wait for the same peer."""
    OVER = "over"


class CallEvent(enum.Enum):
    """What happens to a request of a component."""

    LOST = "lost"
    """It was never sent, or its peer is down."""
    EXPIRED = "expired"
    ANSWERED = "answered"
    TOLD = "told"
    """The component hears that nobody answered."""


_WAITING, _LOST, _OVER = CallState.WAITING, CallState.LOST, CallState.OVER

CALL: Final = Table(
    "call of a component",
    _WAITING,
    {
        (_WAITING, CallEvent.LOST): _LOST,
        (_LOST, CallEvent.LOST): _LOST,
        (CallState.OVERDUE, CallEvent.LOST): CallState.OVERDUE,
        (_WAITING, CallEvent.EXPIRED): CallState.OVERDUE,
        (_WAITING, CallEvent.ANSWERED): _OVER,
        (_LOST, CallEvent.ANSWERED): _OVER,
        (_WAITING, CallEvent.TOLD): _OVER,  # a snapshot does not hold that a call was lost
        (_LOST, CallEvent.TOLD): _OVER,
        (CallState.OVERDUE, CallEvent.TOLD): _OVER,
    },
)


@dataclass(slots=True)
class Call:
    """A request that waits for its answer."""

    peer: PeerId
    outlet: Outlet
    op: str
    done: Done
    timer: int
    stretch: int = 0  # of the connection (`Uplink`) in which it was made
    state: CallState = CALL.start

    def happens(self, event: CallEvent) -> CallState:
        """Moves on by the table; gives the state that follows."""
        self.state = CALL.next(self.state, event)
        return self.state

    def save(self) -> list[Any]:
        """The call as plain values; of a callback that is not a method of the component there is no name."""
        own = getattr(self.done, "__self__", None) is self.outlet.component
        method = getattr(self.done, "__name__", "") if own else ""
        return [self.peer.to_bytes(), self.outlet.name, self.op, method, self.timer]

    @classmethod
    def restored(cls, row: Any, outlets: Mapping[str, Outlet]) -> Call:
        """The call that `save` wrote. KeyError or AttributeError where there is no such slot or method."""
        peer, slot, op, method, timer = row
        outlet = outlets[slot]
        done = getattr(outlet.component, method) if method else _forgotten
        return cls(PeerId.from_bytes(peer), outlet, op, done, timer)


def _forgotten(_ctx: Any, _reply: bytes | None) -> None:
    """Stands for a callback that did not outlive a restart."""


@dataclass(slots=True, eq=False)
class Calls:
    """The requests of all components of a node, bounded by `max_component_calls`."""

    _runtime: Runtime
    _outgoing: Outgoing
    _peers: PeerStates
    waiting: dict[int, Call] = field(default_factory=dict)
    overdue: list[int] = field(default_factory=list)
    _unanswered: Unanswered = field(init=False)

    def __post_init__(self) -> None:
        self._unanswered = Unanswered(self._runtime, self._outgoing, self._peers)
        self._runtime.callbacks.register("call.expired", self._expired)
        self._runtime.callbacks.register("call.unanswered", self._nobody_answers)

    def ask(
        self, outlet: Outlet, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Done
    ) -> None:
        """Sends a request; `done(ctx, reply)` is called once, in a later poll; None where nobody answers.

        Raises CapacityError where `max_component_calls` wait already, OpError without a deadline, for an
        unknown op, or no bytes.
        """
        fill = outlet.fill(op, payload)
        if deadline_ns <= 0:
            raise OpError("a request needs a deadline", f"slot {outlet.name!r}, {op}")
        if len(self.waiting) >= self._runtime.config.max_component_calls:
            raise CapacityError(
                f"{len(self.waiting)} requests of components wait already",
                f"slot {outlet.name!r}, {op}",
                "raise limits.max_component_calls (--config; in Python NodeConfig), or shorten deadlines",
            )
        number = self._runtime.ids.getrandbits(64) or 1
        until = self._runtime.now_ns + deadline_ns
        timer = self._runtime.timers.at(until, self._expired, number, reserved=True)
        self.waiting[number] = Call(peer, outlet, op, done, timer, self._peers.uplink.stretch)
        unit = Unit(peer, [fill], kind=envelope.REQUEST, wire_req_id=number, deadline_ns=until)
        if not outlet.queue(unit, op):
            self.lost(number, peer)

    def expects(self, number: int, peer: PeerId) -> bool:
        """Whether an answer with that number, from that peer, is waited for."""
        call = self.waiting.get(number)
        return call is not None and call.peer == peer

    def answer(self, number: int, message: Envelope) -> None:
        """Takes an expected answer. One that is not the single fill of the op asked for counts as none."""
        call, fills = self.waiting[number], message.fills
        if message.failure is not None:
            failure = message.failure
            self._runtime.emit(steps.RequestFailed(call.peer, failure.name, failure.detail, call.op))
            self._settle(number, CallEvent.ANSWERED, None)
            return
        good = len(fills) == 1 and fills[0].dest_suffix == call.outlet.fill(call.op, b"").dest_suffix
        if not good:
            self._runtime.count("wire.receive_errors")
            self._runtime.emit(steps.WireReceiveFailed(call.peer, "DecodeFailed", f"no answer to {call.op}"))
        self._settle(number, CallEvent.ANSWERED, bytes(fills[0].payload) if good else None)

    def lost(self, number: int, peer: PeerId) -> bool:
        """A request will not be answered: `done` hears of it in the next poll. False where it is not ours."""
        call = self.waiting.get(number)
        if call is None or call.peer != peer:
            return False
        if call.happens(CallEvent.LOST) is CallState.LOST:
            timers = self._runtime.timers
            timers.cancel(call.timer)
            call.timer = timers.at(self._runtime.now_ns + 1, self._nobody_answers, number, reserved=True)
        return True

    def peer_down(self, peer: PeerId) -> None:
        """Nobody waits for a peer that is down."""
        for number in [n for n, call in self.waiting.items() if call.peer == peer]:
            self.lost(number, peer)

    def tell_overdue(self) -> None:
        """Tells components of their requests whose deadline has passed.

        Apart from the deadline itself: where it took the peer down, all that wait for that peer hear first.
        """
        overdue, self.overdue = self.overdue, []
        for number in overdue:
            self._settle(number, CallEvent.TOLD, None)

    def _expired(self, _now_ns: int, number: int) -> None:
        call = self.waiting.get(number)
        if call is not None:
            call.happens(CallEvent.EXPIRED)
            self._unanswered.judge(number, call.peer, call.stretch, "control.unanswered")
            self.overdue.append(number)

    def _nobody_answers(self, _now_ns: int, number: int) -> None:
        if number in self.waiting:
            self._settle(number, CallEvent.TOLD, None)

    def _settle(self, number: int, event: CallEvent, reply: bytes | None) -> None:
        call = self.waiting.pop(number)
        call.happens(event)
        self._runtime.timers.cancel(call.timer)
        self._outgoing.forget_ask(number)
        call.outlet.call(call.op, call.done, reply)

    def save(self) -> list[Any]:
        """The requests as plain values; `restore` takes them."""
        return [[number, *call.save()] for number, call in self.waiting.items()]

    def restore(self, rows: Any, outlets: Mapping[str, Outlet]) -> None:
        """Takes what `save` gave.

        Calls whose callback is a method of the component go on; of others nobody hears any more.
        """
        self.waiting.update((number, Call.restored(row, outlets)) for number, *row in rows)


# --- remote ops that are called here --------------------------------------------------------------------


def payload_of(result: object) -> bytes | None:
    """What a remote op gave, if it is a reply. TypeError where it is none."""
    if result is not None and not isinstance(result, bytes):
        raise TypeError(f"a remote op replies with bytes or nothing, not {type(result).__name__}")
    return result


@dataclass(slots=True, eq=False)
class Replies:
    """The remote ops of a node as they are called, and those that will answer later.

    These are bounded by `max_component_calls`. `_sink` takes their results, from any thread. Their tokens are
    below 0: parked ops have those above.
    """

    _runtime: Runtime
    _peers: PeerStates
    _sink: CompletionSink
    pending: dict[int, Reply] = field(default_factory=dict)
    _next_token: int = -1

    def serve(self, outlet: Outlet, op: str, method: str, peer: PeerId, fill: Fill, asked: Envelope) -> None:
        """Calls a remote op; what it gives is the reply, where a reply is asked for."""
        self._runtime.count("control.received")
        deadline = asked.deadline_after(self._runtime.now_ns)
        number = asked.wire_req_id if asked.kind == envelope.REQUEST else 0
        reply = outlet.replying = Reply(outlet, op, peer, number, deadline)
        try:
            result = getattr(outlet.component, method)(outlet.ctx, peer, bytes(fill.payload))
            if isinstance(result, Later):
                if reply.handle is not result.handle:
                    raise OpError("answers with a Later of another call", op, "return what ctx.later() gave")
                return
            payload = payload_of(result)
        # The border to users' components: what they raise ends this call only, and the asker hears it.
        except BaseException as error:  # noqa: BLE001
            self._withdraw(reply)
            self._failed(reply, contained(error))
            return
        finally:
            outlet.replying = None
        self._withdraw(reply)
        outlet.answer(reply, payload)

    def park(self, reply: Reply, deadline_ns: int | None) -> Later:
        """A handle for the remote op that runs; a second call in one op withdraws the first one's.

        CapacityError where `max_component_calls` wait already.
        """
        runtime = self._runtime
        check_deadline(deadline_ns)
        self._withdraw(reply)
        if len(self.pending) >= runtime.config.max_component_calls:
            raise CapacityError(
                f"{len(self.pending)} remote ops are to be answered already",
                f"slot {reply.outlet.name!r}, {reply.op}",
                "raise limits.max_component_calls (--config; in Python NodeConfig), or shorten deadlines",
            )
        token = self._next_token
        self._next_token -= 1
        handle = CompletionHandle(self._sink, token)
        wait = runtime.config.later_deadline_ns if deadline_ns is None else deadline_ns
        until = runtime.now_ns + wait if wait else 0
        if reply.deadline_ns and (not until or reply.deadline_ns < until):
            until = reply.deadline_ns
        if until:
            reply.timer = runtime.timers.at(until, self._expired, token, reserved=True)
        reply.token, reply.handle = token, handle
        self.pending[token] = reply
        return Later(handle, until - runtime.now_ns if until else 0)

    def _withdraw(self, reply: Reply) -> None:
        """The op answered at once, or failed, after it had asked for a `Later`."""
        if reply.handle is not None and self._unpark(reply.token) is not None:
            reply.handle.revoke()
            reply.handle = None

    def completed(self, token: int, result: object, error: BaseException | None) -> bool:
        """Answers for a remote op whose handle was settled; False where nobody waits (any more)."""
        reply = self._unpark(token)
        if reply is None:
            return False
        try:
            if error is not None:
                raise error
            reply.outlet.answer(reply, payload_of(result))
        # What the component failed with, on whichever thread: the asker hears it.
        except BaseException as failure:  # noqa: BLE001
            self._failed(reply, contained(failure))
        return True

    def _failed(self, reply: Reply, error: BaseException) -> None:
        """Reports what a remote op raised, here and to whoever asked."""
        text = reply.outlet.failed(reply.op, error)
        if reply.number and self._peers.reads_failures(reply.peer):
            self._runtime.count("requests.failures_sent")
            reply.outlet.refuse(reply, Failure.of(FailureCode.OP_FAILED, text))

    def _expired(self, _now_ns: int, token: int) -> None:
        reply = self.pending.get(token)
        if reply is not None and reply.handle is not None and reply.handle.revoke():
            del self.pending[token]
            self._runtime.count("completions.expired")
            error = CompletionExpiredError("nobody completed it in time", reply.op, "answer sooner")
            self._failed(reply, error)

    def _unpark(self, token: int) -> Reply | None:
        reply = self.pending.pop(token, None)
        if reply is not None and reply.timer:
            self._runtime.timers.cancel(reply.timer)
            reply.timer = 0
        return reply
