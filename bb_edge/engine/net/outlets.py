"""A component's side of the control plane: what it sends, and how its callbacks are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

from bb_edge.engine.errors import OpError, failure_text
from bb_edge.engine.net.outgoing import Outgoing
from bb_edge.engine.net.units import Unit
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import types
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.roles import ProtocolComponent, method_name
from bb_edge.roles.completion import CompletionHandle
from bb_edge.roles.containment import contained
from bb_edge.wire import envelope
from bb_edge.wire.codecs import BYTES_HASH
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.envelope_records import Failure

Remote = Callable[[PeerId, Fill, Envelope], object]
"""`remote(sender, fill, envelope)`: what serves a remote op. WireReceiveError for a damaged payload."""

_PEER, _BYTES = types.PEER_ID.id, types.BYTES.id


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


@dataclass(slots=True, eq=False)
class Outlet:
    """One component's side of the control plane.

    `ref` is the slot's number in the artifact, under which peers reach it; `name` is the slot. `ctx`, which
    `make_ctx(outlet)` gives, is what the component's callbacks see; `replying` the remote op that runs and
    may answer later, None in timers, callbacks and hooks.
    """

    _runtime: Runtime
    _outgoing: Outgoing
    ref: InitVar[int]
    component: ProtocolComponent
    target: str
    name: str
    make_ctx: InitVar[Callable[[Outlet], object]]
    ctx: Any = field(init=False)
    replying: Reply | None = None
    _suffixes: dict[str, bytes] = field(init=False)

    def __post_init__(self, ref: int, make_ctx: Callable[[Outlet], object]) -> None:
        self.ctx = make_ctx(self)
        self._runtime.callbacks.register(f"component.timer/{self.name}", self.fire)
        remote = [op.name for op in self.component.atomic_opset().ops.values() if op.remote]
        self._suffixes = {op: Address.empty().with_component(ref, op).to_bytes() for op in remote}

    # --- what it sends --------------------------------------------------------------------------------

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
        return self.queue(Unit(peer, [self.fill(op, payload)], deadline_ns=until), op)

    def answer(self, reply: Reply, payload: bytes | None) -> None:
        """Sends the reply, where one is asked for."""
        if not reply.number:
            return
        fill = self.fill(reply.op, payload or b"")
        if payload is None:
            fill = Fill(fill.dest_suffix, b"", True, 0)
        self._reply(reply, [fill])

    def refuse(self, reply: Reply, failure: Failure) -> None:
        """Sends a failure in place of the reply."""
        self._reply(reply, [], failure)

    def _reply(self, reply: Reply, fills: list[Fill], failure: Failure | None = None) -> None:
        unit = Unit(
            reply.peer,
            fills,
            kind=envelope.RESPONSE,
            wire_req_id=reply.number,
            deadline_ns=reply.deadline_ns,
            failure=failure,
        )
        self.queue(unit, reply.op)

    def queue(self, unit: Unit, op: str) -> bool:
        """Queues what carries a call of the op, or its answer. False as `Outgoing.queue`."""
        self._runtime.count("control.sent")
        return self._outgoing.queue(unit, self.target, 0, f"{self.name}.{op}")

    # --- its callbacks --------------------------------------------------------------------------------

    def call(self, where: str, function: Callable[..., object], *arguments: object) -> None:
        """Runs a component's callback; what it raises is reported."""
        try:
            function(self.ctx, *arguments)
        # The border to users' components: what they raise ends this call only.
        except BaseException as error:  # noqa: BLE001
            self.failed(where, contained(error))

    def fire(self, _now_ns: int, method: str) -> None:
        """A timer of the component's is due that calls one of its methods."""
        self.call(method, getattr(self.component, method))

    def fire_callback(self, _now_ns: int, name: str, callback: Callable[..., object]) -> None:
        """The same for any other callable; no snapshot can hold this one."""
        self.call(name, callback)

    def failed(self, where: str, error: BaseException) -> str:
        """Reports what the component raised, outside of any op; gives it as a text."""
        origin = f"slot {self.name!r} ({self.component.TYPE_NAME}.{where})"
        self._runtime.component_failed(self.target, f"{self.name}.{where}", origin, error)
        return failure_text(error, origin)


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
