"""What a driver needs of a transport, and both of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bb_edge.engine.steps import EngineStep, SendEnvelope
from bb_edge.ir.ids import PeerId


class NodeDoors(Protocol):
    """The part of `bb_edge.Node` that drivers and transports use."""

    @property
    def peer_id(self) -> PeerId:
        """Who the node is."""

    @property
    def epoch(self) -> int:
        """Its incarnation."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The peer classes that its presence lists."""

    @property
    def presence_meta(self) -> Mapping[str, object]:
        """What its presence says of it beside."""

    def poll(self, now_ns: int) -> list[EngineStep]:
        """One cycle."""

    def next_deadline_ns(self) -> int | None:
        """When to poll at the latest."""

    def set_waker(self, waker: Callable[[], None] | None) -> None:
        """Who is told that something arrived."""

    def fire_lifecycle(self, phase: int) -> None:
        """Shutdown, snapshot."""

    def deliver_inbound(self, data: bytes, src_peer: PeerId, observed_address: bytes | None = None) -> None:
        """One envelope as it came."""

    def peer_presence(
        self,
        peer: PeerId,
        up: bool,
        addresses: tuple[bytes, ...] = (),
        meta: Mapping[str, object] | None = None,
        *,
        epoch: int = 0,
        classes: tuple[str, ...] = (),
    ) -> None:
        """A peer came up or went down."""

    def peer_failed(self, peer: PeerId) -> None:
        """The carrier could not bring something to a peer (for MQTT, a reason code of 128 or more)."""


class Transport(Protocol):
    """Moves envelopes for one node, from the driver's thread; delivers into the node's doors."""

    def start(self) -> None:
        """Begins to connect; never blocks, never fails for a peer or broker that is not there yet."""

    def send(self, step: SendEnvelope) -> None:
        """Hands one envelope over; what cannot be sent now is kept within a bound, or counted as dropped."""

    def wait(self, timeout_s: float | None) -> None:
        """Does IO until something may have arrived, the waker was called, or the time is over."""

    def wake(self) -> None:
        """Ends a `wait`, from any thread."""

    def stop(self) -> None:
        """Says goodbye and closes everything; waits a bounded time."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages and bytes each way, connects, drops."""
