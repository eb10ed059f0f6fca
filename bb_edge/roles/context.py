"""What the engine hands to every Contract method as `ctx`, as Protocols: components never see the engine
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from bb_edge.ir.address import Address
    from bb_edge.ir.ids import PeerId
    from bb_edge.roles.completion import Later

__all__ = ["AddressBookView", "Bus", "Ctx", "PeerView", "ProtocolCtx", "Scheduler"]


class PeerView(Protocol):
    """Who is up, by class; the node itself counts where its own presence lists the class."""

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers that are up and whose presence lists `peer_class`, sorted.

        One that is present but left requests without answer is among them once per back-off interval.
        """


class AddressBookView(Protocol):
    """The node's address book, read side (semantics §7)."""

    def lookup(self, peer: PeerId) -> Sequence[Address] | None:
        """The peer's addresses in order; None for an unknown peer and for one without an address."""

    def learn(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None = None) -> bool:
        """Merges addresses that somebody claims for a peer; True where that is news. AddressError,
        AddressBookFullError.
        """


class Scheduler(Protocol):
    """Timers of the engine."""

    def complete_after(self, delay_ns: int, later: Later, result: object = None) -> None:
        """Completes `later` with `result` after `delay_ns` of monotonic time, unless it is settled before."""

    def after(self, delay_ns: int, callback: Callable[[ProtocolCtx], object]) -> int:
        """Calls `callback(ctx)` once, `delay_ns` from now, for a protocol component; gives a token."""

    def cancel(self, token: int) -> None:
        """Forgets a timer of `after`; one that is past is fine."""


class Bus(Protocol):
    """The node's event bus; `EventSource(kind)` ops hear it."""

    def publish(self, kind: int) -> None:
        """Publishes one event of that kind, in the next poll's bus phase."""


class Ctx(Protocol):
    """One call's surroundings. Valid during the call only; what `later()` returns may be kept."""

    @property
    def now_ns(self) -> int:
        """Monotonic time of this poll, nanoseconds."""

    @property
    def exec_id(self) -> int:
        """The execution that the op runs in; ids are never reused."""

    @property
    def own_peer(self) -> PeerId:
        """The node's id."""

    @property
    def own_class(self) -> str:
        """Peer class of the partition that the op stands in."""

    @property
    def peers(self) -> PeerView:
        """Presence, by class."""

    @property
    def address_book(self) -> AddressBookView:
        """Addresses, by peer."""

    @property
    def rng(self) -> np.random.Generator:
        """The node's generator, seeded with the node's seed; the only randomness that a component uses."""

    @property
    def scheduler(self) -> Scheduler:
        """Timers."""

    @property
    def bus(self) -> Bus:
        """Events."""

    @property
    def local_addresses(self) -> tuple[bytes, ...]:
        """Addresses under which the node is reached, encoded as envelopes carry them."""

    def dependency(self, slot: str) -> Any:
        """Returns the component bound to another slot of the node, of whatever class was bound there.

        Raises ComponentError where the slot has none.
        """

    def later(self, deadline_ns: int | None = None) -> Later:
        """Parks this op: the method returns the result, and somebody completes it."""

    def offload(self, work: Callable[[], object], deadline_ns: int | None = None) -> Later:
        """Parks this op and has `work()` run on the node's executor, or inline; return what this gives.

        `work` must touch nothing that the engine's thread touches; what it returns or raises ends the op.
        """


class ProtocolCtx(Ctx, Protocol):
    """What a protocol component sees. In timers, hooks and remote ops `exec_id` is 0.

    A remote op may answer `later`, within what remains of the request's deadline; timers and hooks may not.
    """

    @property
    def own_classes(self) -> tuple[str, ...]:
        """The peer classes that the node presents."""

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """Sends `payload` to the remote op `op` of the component in the same slot of the peer; once, one way.

        False where nobody knows where the peer is.
        """

    def request(
        self,
        peer: PeerId,
        op: str,
        payload: bytes,
        deadline_ns: int,
        done: Callable[[ProtocolCtx, bytes | None], object],
    ) -> None:
        """Asks the peer's remote op `op`; `done(ctx, reply)` is called once, in a later poll.

        `reply` is None where the peer is down, unknown, or silent for `deadline_ns`; b"" where the op gave
        nothing. CapacityError where `NodeConfig.max_component_calls` wait already.
        """
