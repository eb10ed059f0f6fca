"""Where the fills of an envelope go: to the sites of ops that receive, or to components' remote ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.callbacks import Written
from bb_edge.engine.errors import OpError
from bb_edge.engine.net.failures import Failures
from bb_edge.engine.net.outlets import Remote
from bb_edge.engine.net.ports import Port
from bb_edge.engine.plain import Shift
from bb_edge.engine.run.bound import BoundOp
from bb_edge.engine.run.frames import Execution, Frame
from bb_edge.engine.run.scheduler import Scheduler
from bb_edge.engine.runtime import Runtime
from bb_edge.ir import keys, types
from bb_edge.ir.ids import PeerId
from bb_edge.ir.tensors import TensorError, decode_tensor
from bb_edge.roles import TRIGGER, BackendError
from bb_edge.wire import envelope
from bb_edge.wire.codecs import WireReceiveError, WireReceiveErrorKind, decode_value
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.envelope_records import FailureCode
from bb_edge.wire.outbox import Cause


def cause_of(peer: PeerId, message: Envelope) -> Cause | None:
    """What tells the sends of the execution that a durable envelope starts; None for any other envelope."""
    return Cause(peer, message.epoch, message.seq) if message.base else None


RESERVE_NS = 50_000_000
"""The least time that a reply has for its way back: a few hops of a slow network."""
TWICE = "two fills for one site"
NOT_HERE = "this node has nothing of that name: another version of the program?"
"""What a peer is told that asks for a site or an op which is not there."""


def _dump_arrival(args: tuple[Any, ...]) -> list[Any]:
    peer, message, deadline_ns = args
    return [peer.to_bytes(), envelope.encode(message), deadline_ns]


class Routing:
    """The way of each fill, once its envelope is taken."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        failures: Failures,
        ports: Mapping[int, Port],
        acknowledges: bool,
    ) -> None:
        """`ports` are by site. With `acknowledges`, senders of durable envelopes do not repeat them."""
        self._runtime = runtime
        self._scheduler = scheduler
        self._failures = failures
        self._ports = ports
        self._acknowledges = acknowledges
        self._caps = runtime.config.caps
        self._remote: dict[tuple[int, str], tuple[Remote, int]] = {}
        runtime.callbacks.register("envelope", self.fill, Written(_dump_arrival, self._load_arrival))

    def register(self, ref: int, op: str, remote: Remote, component: int = -1) -> None:
        """Makes `/component/<ref>/op/<name>` reachable.

        `component` is the index of the component behind it, which a bootstrap may lock.
        """
        if (ref, op) in self._remote:
            raise OpError(f"remote op {op!r} of component {ref} is declared twice", "install")
        self._remote[ref, op] = (remote, component)

    def _load_arrival(self, plain: Any, shift: Shift) -> tuple[Any, ...]:
        peer, encoded, deadline_ns = plain
        message = envelope.decode(encoded, self._caps)
        return PeerId.from_bytes(peer), message, shift.time(deadline_ns)

    # --- to sites -------------------------------------------------------------------------------------

    def port_of(self, message: Envelope) -> Port | None:
        """The port of an envelope's first known site: it names the envelope's target and sender's class."""
        for fill in message.fills:
            port = self._ports.get(fill.route.site)
            if port is not None:
                return port
        return None

    def fill(self, execution: Execution, peer: PeerId, message: Envelope, deadline_ns: int) -> None:
        """Writes an envelope's fills into its execution; a fill that fails does not hold up its siblings."""
        acknowledged = self._acknowledges and message.base > 0
        cause = cause_of(peer, message)
        if message.kind == envelope.REQUEST:
            first = self._ports.get(message.fills[0].route.site) if message.fills else None
            reply = None if first is None else first.reply
            # 5 % of the time, so that a partial result is there before nobody waits for it any more.
            reserve = max(RESERVE_NS, message.remaining_deadline_ns // 20)
            until_ns = deadline_ns - reserve if deadline_ns else 0
            execution.came_from(
                peer,
                cause,
                deadline_ns,
                acknowledged,
                message.wire_req_id,
                reply,
                self._failures.ended,
                until_ns,
            )
            if self._declines(execution, peer, message):
                return
        else:
            execution.came_from(peer, cause, deadline_ns, acknowledged)
        reached: dict[BoundOp, tuple[Port, Frame]] = {}
        filled: set[int] = set()
        for fill in message.fills:
            port = self._port(peer, fill, message)
            if port is None:
                execution.went_wrong(FailureCode.REFUSED, NOT_HERE)
                continue
            try:
                if port.site in filled:
                    raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, TWICE)
                filled.add(port.site)
                value = self._value_of(port, fill)
            except WireReceiveError as error:
                self.failed(peer, error)
                execution.went_wrong(FailureCode.REFUSED, f"{error.kind.name}: {error.what}")
                continue
            graph, op = port.graph, port.op
            execution.will_claim(graph.claims.get(op.index, ()))
            frame = execution.frame_of(graph.regions[op.spec.region])
            self._scheduler.write_all(frame, ((port.site, value),))
            reached[op] = port, frame
        for port, frame in reached.values():
            tail: tuple[object, ...] = ((peer,), TRIGGER)
            if port.asks:
                tail = ((peer,), message.wire_req_id, TRIGGER)
            self._scheduler.write_all(frame, zip(port.behind, tail))  # noqa: B905 (the trigger is optional)
            if port.graph.starts:
                self._scheduler.start_outputs(frame, port.op.index)

    def _declines(self, execution: Execution, peer: PeerId, message: Envelope) -> bool:
        """Whether a request trains, and this node does not now: it ends, and the peer hears why."""
        ask = self._runtime.why_not_train
        if ask is None:
            return False
        ports = [self._ports.get(fill.route.site) for fill in message.fills]
        training = [port for port in ports if port is not None and port.op.index in port.graph.trains]
        why = ask() if training else ""
        if why:
            execution.went_wrong(FailureCode.DECLINED, why)
            self._runtime.count("requests.declined")
            self._runtime.emit(steps.RequestDeclined(peer, training[0].graph.target, why))
        return bool(why)

    def answer(self, peer: PeerId, message: Envelope, mode: str) -> tuple[object, ...]:
        """The payloads of an answer in the reply's order. WireReceiveError where it is not what was asked."""
        if mode == keys.ANSWER_NONE:
            return ()  # nobody reads the answers, so there are no sites for them
        values: dict[int, object] = {}
        for fill in message.fills:
            port = self._port(peer, fill, message)
            if port is None:
                raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, "an answer with a foreign fill")
            if port.index in values:
                raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, TWICE)
            values[port.index] = self._value_of(port, fill)
            expected = port.count
        if not values:
            raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, "an answer without fills")
        if sorted(values) != list(range(expected)):
            raise WireReceiveError(
                WireReceiveErrorKind.DecodeFailed, "an answer with a gap between its fills"
            )
        return tuple(values[index] for index in range(len(values)))

    def _value_of(self, port: Port, fill: Fill) -> object:
        """Decodes a fill for its port. WireReceiveError where it is not what the site expects."""
        if fill.trigger_only:
            if port.trigger_only or port.expected in (0, types.TRIGGER.wire_hash):
                return TRIGGER
            raise WireReceiveError(
                WireReceiveErrorKind.TypeMismatch, f"a trigger where {port.expected:#x} is expected"
            )
        if port.expected and fill.type_hash != port.expected:
            raise WireReceiveError(
                WireReceiveErrorKind.TypeMismatch,
                f"type hash {fill.type_hash:#x}, {port.expected:#x} is expected",
            )
        if port.backend is not None and fill.type_hash in types.TENSOR_HASHES:
            backend = port.backend
            try:
                # A slot holds arrays: its other readers know nothing of a backend's handles.
                value = backend.to_array(backend.materialize_from_wire(fill.type_hash, fill.payload))
            except BackendError as error:
                raise WireReceiveError(WireReceiveErrorKind.BackendMaterializeFailed, error.what) from error
            # The border to users' backends: whatever they raise, this fill alone is lost.
            except Exception as error:
                what = f"backend {backend.TYPE_NAME}: {type(error).__name__}: {error}"
                raise WireReceiveError(WireReceiveErrorKind.BackendMaterializeFailed, what) from error
            return port.held(value)
        if port.dtype is not None:
            try:
                array = decode_tensor(fill.payload)
            except (TensorError, MemoryError, ValueError):
                pass  # `decode_value` says what is wrong
            else:
                if array.dtype == port.dtype:
                    known = port.shape is None or array.shape == port.shape
                    return array if known else port.held(array)
        return port.held(decode_value(fill.type_hash, fill.payload, self._caps))

    def _port(self, peer: PeerId, fill: Fill, message: Envelope) -> Port | None:
        """The port of a fill; None for a fill that goes to a component, which has got it then, or nowhere."""
        route = fill.route
        port = self._ports.get(route.site)
        if port is None:
            if route.site >= 0:
                self._unroutable(peer, f"no site {route.site:#018x} on this node")
            else:
                self._call(peer, fill, message)
        return port

    # --- to components --------------------------------------------------------------------------------

    def call(self, peer: PeerId, message: Envelope) -> None:
        """Hands an envelope that has nothing for sites to the remote ops that it names."""
        for fill in message.fills:
            self._call(peer, fill, message)

    def _call(self, peer: PeerId, fill: Fill, message: Envelope) -> None:
        """Hands a fill to the remote op that it names; only ops declared `remote` can be named."""
        route = fill.route
        remote, _ = (None, -1) if route.error else self._remote.get((route.component, route.op), (None, -1))
        if remote is None:
            self._unroutable(peer, route.error or f"no remote op {route.op!r} of component {route.component}")
            if message.kind == envelope.REQUEST:
                self._failures.refuse(peer, message, NOT_HERE)
            return
        try:
            remote(peer, fill, message)
        except WireReceiveError as error:
            self.failed(peer, error)

    def components(self, message: Envelope) -> tuple[int, ...]:
        """The components that an envelope's fills are for; -1 for one that the node does not have.

        Those to the engine itself, as component 0, and those that name nothing are left out.
        """
        names = [(fill.route.component, fill.route.op) for fill in message.fills if fill.route.component]
        return tuple(self._remote.get(name, (None, -1))[1] for name in names)

    # --- reports --------------------------------------------------------------------------------------

    def failed(self, peer: PeerId, error: WireReceiveError) -> None:
        """Reports a fill that could not be read."""
        self._runtime.count("wire.receive_errors")
        self._runtime.emit(steps.WireReceiveFailed(peer, error.kind.name, error.what))
        self._runtime.bus.publish(Bus.WIRE_RECEIVE_ERROR)

    def _unroutable(self, peer: PeerId, why: str) -> None:
        self._runtime.count("ingress.unroutable")
        self._runtime.emit(steps.WireReceiveFailed(peer, "Unroutable", why))
