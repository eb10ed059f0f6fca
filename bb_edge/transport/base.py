"""The interfaces between drivers, transports and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bb_edge.engine.steps import EngineStep, SendEnvelope
from bb_edge.ir.ids import PeerId


class DrivenNode(Protocol):
    """The part of `bb_edge.Node` that drivers and transports use."""

    @property
    def peer_id(self) -> PeerId:
        """The id of the node."""

    @property
    def epoch(self) -> int:
        """The number of the node's incarnation; each start of a process has a higher one."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The peer classes that the node's presence lists."""

    @property
    def hears(self) -> tuple[str, ...] | None:
        """The classes of peers whose presence the node needs; None for every class."""

    @property
    def presence_meta(self) -> Mapping[str, object]:
        """Further facts that the node's presence carries."""

    def poll(self, now_ns: int) -> list[EngineStep]:
        """Runs one cycle of the engine, and returns its steps. Times are monotonic nanoseconds."""

    def next_deadline_ns(self) -> int | None:
        """The latest time of the next poll, in monotonic nanoseconds; None if nothing is due by itself."""

    @property
    def has_ready(self) -> bool:
        """Whether ops are ready that the last poll left."""

    def set_waker(self, waker: Callable[[], None] | None) -> None:
        """Sets what is called when something arrives between polls, from any thread."""

    def fire_lifecycle(self, phase: int) -> None:
        """Starts the ops of a phase (`Phase.SHUTDOWN`, `Phase.SNAPSHOT`); the next poll runs them."""

    def deliver_inbound(
        self, data: bytes | memoryview, src_peer: PeerId, observed_address: bytes | None = None
    ) -> None:
        """Takes the bytes of one envelope. Raises IngressFull where the node has no space left for it."""

    def presences_come(self) -> None:
        """Tells the node that it will be told of peers' presences."""

    def peer_presence(
        self,
        peer: PeerId,
        up: bool,
        addresses: tuple[bytes, ...] = (),
        meta: Mapping[str, object] | None = None,
        *,
        epoch: int = 0,
        classes: tuple[str, ...] = (),
        session: int = 0,
        seq: int = 0,
    ) -> None:
        """Tells the node that a peer came up or went down, in these of its classes.

        Raises IngressFull where the node has no space left for the notice.
        """

    def presence_cleared(self, peer: PeerId, peer_class: str | None = None) -> None:
        """Tells the node that a peer's presence was removed, in a class or altogether (None).

        Raises IngressFull where the node has no space left for the notice.
        """

    def connected(self, up: bool) -> None:
        """Tells the node whether what it sends leaves the device now, each time that this changes.

        Before the first poll, too, where there is no connection yet. Behind a reconnection the presences of
        those who are there are told again, as a broker does.
        """

    def peer_failed(self, peer: PeerId) -> None:
        """Tells the node that an envelope could not be delivered to a peer.

        For MQTT, the broker refused it with a reason code of 128 or more. Raises IngressFull where the node
        has no space left for the notice.
        """


class Log(Protocol):
    """Takes what a transport tells people: `message`, at a level from debug to error.

    `kind` names lines that say the same, which a log may limit together; `peer` is whom the line is about.
    """

    def __call__(self, level: str, message: str, *, kind: str = "", peer: PeerId | None = None) -> None: ...


class Link(Protocol):
    """What others than the transport ask of a connection."""

    def subscribe(self, filters: Sequence[str], qos: int = 1) -> None:
        """Subscribes to further topics, for this connection."""

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Ends subscriptions."""

    def redial(self, reason: str, clean: bool = False) -> None:
        """Connects anew at once; `clean` has the broker forget the session."""

    def contested(self) -> None:
        """Another client takes this one's place: once the connection is lost, the next dial waits long."""


class Transport(Protocol):
    """Carries envelopes for one node, on the driver's thread; what arrives goes into the node."""

    def start(self) -> None:
        """Begins to connect. Never blocks, and does not fail if the peer or broker is not reachable yet."""

    def send(self, step: SendEnvelope) -> None:
        """Takes one envelope; what cannot be sent now is kept within a bound, or dropped and counted."""

    def wait(self, timeout_s: float | None) -> None:
        """Does IO until something may have arrived, `wake` was called, or the timeout is over."""

    def wake(self) -> None:
        """Ends a `wait`; may be called from any thread."""

    def stop(self) -> None:
        """Announces that the node leaves, and closes everything; waits a bounded time."""

    @property
    def holding(self) -> bool:
        """Whether an envelope waits until the node, which is full, has been polled."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts of messages and bytes each way, of connections, and of what was dropped."""
