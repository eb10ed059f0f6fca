"""A component's side of the control plane: what it sends, what it serves, and what it sees meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial

from bb_edge.engine.errors import OpError
from bb_edge.engine.net.calls import Calls, Done, Replies, Reply, payload_of
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.surroundings import Surroundings
from bb_edge.engine.net.units import Unit
from bb_edge.engine.run.components import Components
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import ProtocolComponent, method_name
from bb_edge.roles.completion import Later
from bb_edge.roles.containment import contained
from bb_edge.wire import envelope
from bb_edge.wire.codecs import BYTES_HASH
from bb_edge.wire.envelope import Envelope, Fill

Remote = Callable[[PeerId, Fill, Envelope], object]
"""`remote(sender, fill, envelope)`: what serves a remote op. WireReceiveError for a payload that is none."""

_PEER, _BYTES = types.PEER_ID.id, types.BYTES.id


class ControlContext(Surroundings):
    """What a component's timers, callbacks and remote ops see: no execution stands behind them."""

    __slots__ = ("outlet", "replying")

    outlet: Outlet
    exec_id = 0

    def __init__(self, runtime: Runtime, components: Components, peers: PeerStates, outlet: Outlet) -> None:
        super().__init__(runtime, components, peers)
        self.outlet = outlet
        # The remote op that runs and may answer later; None in timers, callbacks and hooks.
        self.replying: Reply | None = None

    @property
    def target(self) -> str:
        """The component's target."""
        return self.outlet.target

    def later(self, deadline_ns: int | None = None) -> Later:
        """Lets the remote op that runs answer later; OpError in timers, callbacks and hooks, where none does.

        The deadline is the given one, else the node's; never beyond what remains of the request's.
        """
        if self.replying is None:
            raise OpError(
                "no op to answer later for", f"slot {self.outlet.name!r}", "send the answer instead"
            )
        return self.outlet.replies.park(self.replying, deadline_ns)


@dataclass(slots=True, eq=False)
class Outlet:
    """One component's side of the control plane: what its `ctx.send` and `ctx.request` do.

    `ref` is the slot's number in the artifact, under which peers reach it; `name` is the slot.
    """

    _runtime: Runtime
    components: InitVar[Components]
    peers: InitVar[PeerStates]
    _outgoing: Outgoing
    _calls: Calls
    replies: Replies
    ref: InitVar[int]
    component: ProtocolComponent
    target: str
    name: str
    ctx: ControlContext = field(init=False)
    _suffixes: dict[str, bytes] = field(init=False)

    def __post_init__(self, components: Components, peers: PeerStates, ref: int) -> None:
        self.ctx = ControlContext(self._runtime, components, peers, self)
        self._runtime.callbacks.register(f"component.timer/{self.name}", self.fire)
        remote = [op.name for op in self.component.atomic_opset().ops.values() if op.remote]
        self._suffixes = {op: Address.empty().with_component(ref, op).to_bytes() for op in remote}

    def replace(self, component: ProtocolComponent) -> None:
        """Puts a component that was constructed anew in the place of its predecessor."""
        self.component = component

    def remotes(self) -> dict[str, Remote]:
        """What serves the component's remote ops, by name. OpError for one that cannot be served."""
        methods = remote_methods(self.component)
        return {op: partial(self.handle, op, method) for op, method in methods.items()}

    def fill(self, op: str, payload: bytes) -> Fill:
        """What carries a payload to the remote op. OpError for an unknown op, or no bytes."""
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
        until = self._runtime.now_ns + deadline_ns if deadline_ns else 0
        return self._queue(Unit(peer, [self.fill(op, payload)], deadline_ns=until), op)

    def request(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int, done: Done) -> None:
        """Asks the peer; `done(ctx, reply)` is called once, None where nobody answers; see `Calls.ask`."""
        self._calls.ask(self, self.target, peer, op, self.fill(op, payload), deadline_ns, done)

    def answer(self, reply: Reply, payload: bytes | None) -> None:
        """Sends the reply, where one is asked for."""
        if not reply.number:
            return
        fill = self.fill(reply.op, payload or b"")
        if payload is None:
            fill = Fill(fill.dest_suffix, b"", True, 0)
        unit = Unit(
            reply.peer,
            [fill],
            kind=envelope.RESPONSE,
            wire_req_id=reply.number,
            deadline_ns=reply.deadline_ns,
        )
        self._queue(unit, reply.op)

    def _queue(self, unit: Unit, op: str) -> bool:
        self._runtime.count("control.sent")
        return self._outgoing.queue(unit, self.target, 0, f"{self.name}.{op}")

    def handle(self, op: str, method: str, peer: PeerId, fill: Fill, asked: Envelope) -> None:
        """Calls a remote op; what it gives is the reply, where a reply is asked for."""
        self._runtime.count("control.received")
        deadline = asked.deadline_after(self._runtime.now_ns)
        number = asked.wire_req_id if asked.kind == envelope.REQUEST else 0
        reply = self.ctx.replying = Reply(self, op, peer, number, deadline)
        try:
            result = getattr(self.component, method)(self.ctx, peer, bytes(fill.payload))
            if isinstance(result, Later):
                if reply.handle is not result.handle:
                    raise OpError("answers with a Later of another call", op, "return what ctx.later() gave")
                return
            payload = payload_of(result)
        # The border to users' components: what they raise ends this call only; the asker hears nothing.
        except BaseException as error:  # noqa: BLE001
            self.replies.withdraw(reply)
            self.failed(op, contained(error))
            return
        finally:
            self.ctx.replying = None
        self.replies.withdraw(reply)
        self.answer(reply, payload)

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
        """Reports what the component raised, outside of any op."""
        origin = f"slot {self.name!r} ({self.component.TYPE_NAME}.{where})"
        self._runtime.component_failed(self.target, f"{self.name}.{where}", origin, error)


def remote_methods(component: ProtocolComponent) -> dict[str, str]:
    """The name of the method that serves each remote op.

    OpError where an opset cannot be served (see `atomic_opset`).
    """
    methods: dict[str, str] = {}
    for op in component.atomic_opset().ops.values():
        where = f"{component.TYPE_NAME}, op {op.name}"
        method = method_name(op.name)
        if not callable(getattr(component, method, None)):
            raise OpError("the component has no method for it", where, f"define {method}")
        if not op.remote:
            continue
        ports = [port.type for port in op.inputs], [port.type for port in op.outputs]
        if ports not in (([_PEER, _BYTES], []), ([_PEER, _BYTES], [_BYTES])):
            raise OpError(
                "a remote op takes (sender:PeerId, payload:Bytes) and gives nothing or (reply:Bytes)", where
            )
        methods[op.name] = method
    return methods
