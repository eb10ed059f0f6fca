"""The control plane: components that speak to their counterparts on other nodes (semantics §6 "Sites", §8).

A component with `remote` ops is reached at `/component/<ref>/op/<name>`; `ref` is its slot's number in the
artifact, so a slot speaks to the slot of the same name at the peer, whatever component is bound there. One
fill carries one op; its payload is the component's own affair. What comes in is handled at once, in the
ingress phase, outside of any execution.

    request ──► WAITING ──answer │ peer down │ could not be sent │ deadline──► settled: `done` is called once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bb_edge.engine import steps
from bb_edge.engine.context import ControlContext
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.waiting import check_deadline
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles.completion import CompletionHandle, Later
from bb_edge.roles.containment import contained
from bb_edge.roles.errors import CompletionExpiredError
from bb_edge.wire import envelope
from bb_edge.wire.codecs import BYTES_HASH
from bb_edge.wire.envelope import Envelope, Fill

if TYPE_CHECKING:
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.roles import ProtocolComponent


Remote = Callable[[PeerId, Fill, Envelope], object]
"""`remote(sender, fill, envelope)`: what serves a remote op. WireReceiveError for a payload that is none."""

Done = Callable[[Any, "bytes | None"], object]
"""`done(ctx, reply)`: None where there is no reply and none will come."""


@dataclass(slots=True)
class _Call:
    """A request that waits for its answer."""

    peer: PeerId
    outlet: Outlet
    op: str
    done: Done
    timer: int


@dataclass(slots=True, eq=False)
class Reply:
    """A remote op of this node that was called: whom to answer. `number` is 0 where nobody waits.

    `deadline_ns` is absolute, 0: none. `token` and `handle` are there while it may answer later.
    """

    outlet: Outlet
    op: str
    peer: PeerId
    number: int
    deadline_ns: int
    token: int = 0
    timer: int = 0
    handle: CompletionHandle | None = None


def reply_of(result: object) -> bytes | None:
    """What a remote op gave, if it is a reply. TypeError where it is none."""
    if result is not None and not isinstance(result, bytes):
        raise TypeError(f"a remote op replies with bytes or nothing, not {type(result).__name__}")
    return result


class Outlet:
    """One component's side of the control plane: what its `ctx.send` and `ctx.request` do."""

    __slots__ = ("_plane", "_suffixes", "component", "ctx", "name", "target")

    def __init__(
        self, plane: ControlPlane, ref: int, component: ProtocolComponent, target: str, slot: str
    ) -> None:
        self._plane = plane
        self.component = component
        self.target = target
        self.name = slot
        self.ctx = ControlContext(plane.engine, self)
        plane.engine.runtime.callbacks.register(f"component.timer/{slot}", self.fire)
        remote = [op.name for op in component.atomic_opset().ops.values() if op.remote]
        self._suffixes = {op: Address.empty().with_component(ref, op).to_bytes() for op in remote}

    def _fill(self, op: str, payload: bytes) -> Fill:
        suffix = self._suffixes.get(op)
        if suffix is None:
            known = ", ".join(self._suffixes) or "none"
            raise OpError(
                f"{self.component.TYPE_NAME} has no remote op {op!r}",
                f"slot {self.name!r}",
                f"it has: {known}",
            )
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise OpError(
                f"{self.component.TYPE_NAME} sends a {type(payload).__name__} to its op {op!r}, "
                "bytes are expected",
                f"slot {self.name!r}",
                "a text has .encode(), an array pack_array(…)",
            )
        return Fill(suffix, bytes(payload), False, BYTES_HASH)

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """One way. False, with a PeerResolveFailed, where nobody knows where the peer is."""
        now_ns = self._plane.engine.runtime.now_ns
        unit = Unit(peer, [self._fill(op, payload)], deadline_ns=now_ns + deadline_ns if deadline_ns else 0)
        return self._plane.queue(unit, self, op)

    def request(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Done) -> None:
        """Asks the peer; `done(ctx, reply)` is called once, in a later poll, with None where nobody answers.

        Raises CapacityError where `max_component_calls` wait already, OpError without a deadline.
        """
        self._plane.ask(self, peer, op, self._fill(op, payload), deadline_ns, done)

    def handle(self, op: str, method: str, peer: PeerId, fill: Fill, asked: Envelope) -> None:
        """Calls a remote op; what it gives is the reply, where a reply is asked for."""
        plane = self._plane
        plane.engine.runtime.count("control.received")
        now_ns = plane.engine.runtime.now_ns
        deadline = asked.deadline_after(now_ns)
        number = asked.wire_req_id if asked.kind == envelope.REQUEST else 0
        pending = self.ctx.replying = Reply(self, op, peer, number, deadline)
        try:
            result = getattr(self.component, method)(self.ctx, peer, bytes(fill.payload))
            if isinstance(result, Later):
                if pending.handle is not result.handle:
                    raise OpError("answers with a Later of another call", op, "return what ctx.later() gave")
                return
            reply = reply_of(result)
        # The border to users' components: what they raise ends this call only; the asker hears nothing.
        except BaseException as error:  # noqa: BLE001
            plane.withdraw(pending)
            self.failed(op, contained(error))
            return
        finally:
            self.ctx.replying = None
        plane.withdraw(pending)
        self.answer(pending, reply)

    def later(self, pending: Reply, deadline_ns: int | None) -> Later:
        """A handle for the remote op that runs; a second call in one op withdraws the first one's."""
        return self._plane.park(pending, deadline_ns)

    def answer(self, pending: Reply, reply: bytes | None) -> None:
        """Sends the reply, where one is asked for."""
        if not pending.number:
            return
        fill = self._fill(pending.op, reply or b"")
        if reply is None:
            fill = Fill(fill.dest_suffix, b"", True, 0)
        unit = Unit(
            pending.peer,
            [fill],
            kind=envelope.RESPONSE,
            wire_req_id=pending.number,
            deadline_ns=pending.deadline_ns,
        )
        self._plane.queue(unit, self, pending.op)

    def call(self, where: str, function: Callable[..., object], *arguments: object) -> None:
        """Runs a component's callback; what it raises is reported."""
        try:
            function(self.ctx, *arguments)
        except BaseException as error:  # noqa: BLE001 (the border, as above)
            self.failed(where, contained(error))

    def fire(self, _now_ns: int, method: str) -> None:
        """A timer of the component's is due that calls one of its methods."""
        self.call(method, getattr(self.component, method))

    def fire_callback(self, _now_ns: int, name: str, callback: Callable[..., object]) -> None:
        """The same for any other callable; no snapshot can hold this one."""
        self.call(name, callback)

    def failed(self, where: str, error: BaseException) -> None:
        origin = f"slot {self.name!r} ({self.component.TYPE_NAME}.{where})"
        self._plane.engine.runtime.component_failed(self.target, f"{self.name}.{where}", origin, error)


class ControlPlane:
    """All outlets of a node; the requests that they have made and those that they will answer later.

    Both are bounded by `max_component_calls`.
    """

    def __init__(self, engine: Scheduler, outgoing: Outgoing, peers: PeerStates) -> None:
        self.engine = engine
        self.runtime = engine.runtime
        self._outgoing = outgoing
        self._peers = peers
        self._outlets: dict[int, Outlet] = {}
        self.calls: dict[int, _Call] = {}
        self.overdue: list[int] = []
        self.replies: dict[int, Reply] = {}
        self._next_token = -1  # below 0: parked ops have the numbers above
        engine.runtime.callbacks.register("call.expired", self._expired)
        engine.runtime.callbacks.register("call.unanswered", self._nobody_answers)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def contexts(self) -> list[ControlContext]:
        """What the components' callbacks see, in the order of install."""
        return [outlet.ctx for outlet in self._outlets.values()]

    # --- install --------------------------------------------------------------------------------------

    def add(
        self, ref: int, index: int, component: ProtocolComponent, target: str, slot: str
    ) -> dict[str, Remote]:
        """Ties in a component; gives what serves its remote ops, by name."""
        outlet = self._outlets[index] = Outlet(self, ref, component, target, slot)
        return {op: partial(outlet.handle, op, method) for op, method in remote_methods(component).items()}

    def replace(self, index: int, component: ProtocolComponent) -> None:
        """Puts a component that was constructed anew behind its outlet."""
        self._outlets[index].component = component

    def outlet_of(self, component: int) -> Outlet:
        """The outlet of a component, by index. OpError where it is no protocol."""
        outlet = self._outlets.get(component)
        if outlet is None:
            raise OpError("the component has no ops of its own", "control plane", "derive ProtocolComponent")
        return outlet

    def start(self, target: str) -> None:
        """A target runs: its components begin."""
        for outlet in self._outlets.values():
            if outlet.target == target:
                outlet.call("started", outlet.component.started)

    def stop(self) -> None:
        """The node shuts down: components say goodbye."""
        for outlet in self._outlets.values():
            outlet.call("stopping", outlet.component.stopping)

    @property
    def targets(self) -> frozenset[str]:
        """Targets with components that want to be started."""
        return frozenset(outlet.target for outlet in self._outlets.values())

    # --- answering later ------------------------------------------------------------------------------

    def park(self, pending: Reply, deadline_ns: int | None) -> Later:
        """See `ControlContext.later`. CapacityError where `max_component_calls` wait already."""
        engine = self.engine
        check_deadline(deadline_ns)
        self.withdraw(pending)
        if len(self.replies) >= self.runtime.config.max_component_calls:
            raise CapacityError(
                f"{len(self.replies)} remote ops are to be answered already",
                f"slot {pending.outlet.name!r}, {pending.op}",
                "raise NodeConfig.max_component_calls, or shorten deadlines",
            )
        token = self._next_token
        self._next_token -= 1
        handle = CompletionHandle(engine.waiting.sink, token)
        wait = self.runtime.config.later_deadline_ns if deadline_ns is None else deadline_ns
        until = self.runtime.now_ns + wait if wait else 0
        if pending.deadline_ns and (not until or pending.deadline_ns < until):
            until = pending.deadline_ns

        if until:
            pending.timer = self.runtime.timers.at(until, self._reply_expired, token, reserved=True)
        pending.token, pending.handle = token, handle
        self.replies[token] = pending
        return Later(handle, until - self.runtime.now_ns if until else 0)

    def _reply_expired(self, _now_ns: int, token: int) -> None:
        pending = self.replies.get(token)
        if pending is not None and pending.handle is not None and pending.handle.revoke():
            del self.replies[token]
            self.runtime.count("completions.expired")
            error = CompletionExpiredError("nobody completed it in time", pending.op, "answer sooner")
            pending.outlet.failed(pending.op, error)

    def withdraw(self, pending: Reply) -> None:
        """The op answered at once, or failed, after it had asked for a `Later`."""
        if pending.handle is not None and self._unpark(pending.token) is not None:
            pending.handle.revoke()
            pending.handle = None

    def completed(self, token: int, result: object, error: BaseException | None) -> bool:
        """Answers for a remote op whose handle was settled; False where nobody waits (any more)."""
        pending = self._unpark(token)
        if pending is None:
            return False
        try:
            if error is not None:
                raise error
            pending.outlet.answer(pending, reply_of(result))
        # What the component failed with, on whichever thread: the asker hears nothing.
        except BaseException as failure:  # noqa: BLE001
            pending.outlet.failed(pending.op, contained(failure))
        return True

    def _unpark(self, token: int) -> Reply | None:
        pending = self.replies.pop(token, None)
        if pending is not None and pending.timer:
            self.runtime.timers.cancel(pending.timer)
            pending.timer = 0
        return pending

    # --- asking ---------------------------------------------------------------------------------------

    def queue(self, unit: Unit, outlet: Outlet, op: str) -> bool:
        """Hands a unit to the outbound side."""
        self.runtime.count("control.sent")
        return self._outgoing.queue(unit, outlet.target, 0, f"{outlet.name}.{op}")

    def ask(self, outlet: Outlet, peer: PeerId, op: str, fill: Fill, deadline_ns: int, done: Done) -> None:
        if deadline_ns <= 0:
            raise OpError("a request needs a deadline", f"slot {outlet.name!r}, {op}")
        if len(self.calls) >= self.runtime.config.max_component_calls:
            raise CapacityError(
                f"{len(self.calls)} requests of components wait already",
                f"slot {outlet.name!r}, {op}",
                "raise NodeConfig.max_component_calls, or shorten deadlines",
            )
        number = self.runtime.ids.getrandbits(64) or 1
        until = self.runtime.now_ns + deadline_ns
        timer = self.runtime.timers.at(until, self._expired, number, reserved=True)
        self.calls[number] = _Call(peer, outlet, op, done, timer)
        unit = Unit(peer, [fill], kind=envelope.REQUEST, wire_req_id=number, deadline_ns=until)
        if not self.queue(unit, outlet, op):
            self.lost(number, peer)

    def lost(self, number: int, peer: PeerId) -> bool:
        """A request will not be answered: `done` hears of it in the next poll. False where it is not ours."""
        call = self.calls.get(number)
        if call is None or call.peer != peer:
            return False
        # Not at once: the component is still in the call that asked.
        self.runtime.timers.cancel(call.timer)
        call.timer = self.runtime.timers.at(
            self.runtime.now_ns + 1, self._nobody_answers, number, reserved=True
        )
        return True

    def revive(self, number: int, peer: PeerId, slot: str, op: str, method: str, timer: int) -> None:
        """A request that a snapshot brings; `method` of the component is called with the answer.

        KeyError or AttributeError where there is no such slot or method.
        """
        outlet = {outlet.name: outlet for outlet in self._outlets.values()}[slot]
        done = getattr(type(outlet.component), method) if method else None
        bound = _forgotten if done is None else getattr(outlet.component, method)
        self.calls[number] = _Call(peer, outlet, op, bound, timer)

    def peer_down(self, peer: PeerId) -> None:
        """Nobody waits for a peer that is down."""
        for number in [n for n, call in self.calls.items() if call.peer == peer]:
            self.lost(number, peer)

    def expects(self, number: int, peer: PeerId) -> bool:
        call = self.calls.get(number)
        return call is not None and call.peer == peer

    def answer(self, number: int, message: Envelope) -> None:
        """Takes an expected answer. One that is not the single fill of the op asked for counts as none."""
        call = self.calls[number]
        fills = message.fills
        good = len(fills) == 1 and fills[0].dest_suffix == call.outlet._fill(call.op, b"").dest_suffix
        if not good:
            self.runtime.count("wire.receive_errors")
            self.runtime.emit(steps.WireReceiveFailed(call.peer, "DecodeFailed", f"no answer to {call.op}"))
        self._settle(number, bytes(fills[0].payload) if good else None)

    def _nobody_answers(self, _now_ns: int, number: int) -> None:
        self._settle(number, None)

    def _expired(self, _now_ns: int, number: int) -> None:
        call = self.calls.get(number)
        if call is not None:
            self.runtime.count("control.unanswered")
            self._peers.failed(call.peer)
            self.overdue.append(number)

    def tell_overdue(self) -> None:
        """Tells components of their requests whose deadline has passed.

        Apart from the deadline itself: where it took the peer down, all that wait for that peer hear first.
        """
        overdue, self.overdue = self.overdue, []
        for number in overdue:
            self._settle(number, None)

    def _settle(self, number: int, reply: bytes | None) -> None:
        call = self.calls.pop(number, None)
        if call is None:
            return
        self.runtime.timers.cancel(call.timer)
        self._outgoing.forget_ask(number)
        call.outlet.call(call.op, call.done, reply)


def remote_methods(component: ProtocolComponent) -> dict[str, str]:
    """Remote op → the name of the method that serves it.

    OpError where an opset cannot be served (see `atomic_opset`).
    """
    from bb_edge.roles import method_name

    table = component.atomic_opset()
    found: dict[str, str] = {}
    for op in table.ops.values():
        where = f"{component.TYPE_NAME}, op {op.name}"
        method = getattr(component, method_name(op.name), None)
        if not callable(method):
            raise OpError("the component has no method for it", where, f"define {method_name(op.name)}")
        if not op.remote:
            continue
        given = [port.type for port in op.inputs], [port.type for port in op.outputs]
        if given not in (([_PEER, _BYTES], []), ([_PEER, _BYTES], [_BYTES])):
            raise OpError(
                "a remote op takes (sender:PeerId, payload:Bytes) and gives nothing or (reply:Bytes)", where
            )
        found[op.name] = method_name(op.name)
    return found


_PEER, _BYTES = types.PEER_ID.id, types.BYTES.id


def _forgotten(_ctx: Any, _reply: bytes | None) -> None:
    """Stands for a callback that did not outlive a restart."""
