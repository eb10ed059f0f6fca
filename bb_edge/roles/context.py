"""The Protocols of `ctx`, which the engine passes to every Contract method.

Components never see the engine itself.
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
    """The peers of the node, by class; the node itself counts where its own presence lists the class."""

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """Returns the peers that are up and whose presence lists `peer_class`, sorted.

        A peer that is present but left requests without answer is among them once per back-off interval.
        Raises ComponentError for a class that the node hears nothing of: its program neither sends to it, nor
        receives from it, nor names it as the `peer_class` of a slot.
        """

    def known_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """Returns the peers of `peer_class` that the node remembers, up or not, sorted.

        For what waits until they are there: durable sends. A peer is forgotten once its presence is removed
        from the broker, or another needs its place (`limits.max_peers`). Raises as `up_peers` does.
        """

    def resting(self, peer_class: str) -> int:
        """Returns how many peers of the class are up and not in view: they left requests unanswered."""


class AddressBookView(Protocol):
    """The reading side of the node's address book."""

    def lookup(self, peer: PeerId) -> Sequence[Address] | None:
        """Returns the peer's addresses in order; None for an unknown peer and for one without an address."""

    def learn(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None = None) -> bool:
        """Merges addresses that somebody claims for a peer, and returns whether any is new.

        Raises AddressError and AddressBookFullError.
        """


class Scheduler(Protocol):
    """The engine's timers."""

    def complete_after(self, delay_ns: int, later: Later, result: object = None) -> None:
        """Completes `later` with `result` after `delay_ns` of monotonic time, unless it is settled before."""

    def after(self, delay_ns: int, callback: Callable[[ProtocolCtx], object]) -> int:
        """Calls `callback(ctx)` once, `delay_ns` from now, for a protocol component; returns a token."""

    def cancel(self, token: int) -> None:
        """Forgets a timer of `after`; nothing happens where it has fired."""


class Bus(Protocol):
    """The node's event bus, which `EventSource(kind)` ops listen to."""

    def publish(self, kind: int) -> None:
        """Publishes one event of that kind, in the next poll's bus phase."""


class Ctx(Protocol):
    """The surroundings of one call, valid during the call only; what `later()` returns may be kept."""

    @property
    def now_ns(self) -> int:
        """The monotonic time of this poll, in nanoseconds."""

    @property
    def exec_id(self) -> int:
        """The execution that the op runs in; ids are never reused."""

    @property
    def cohort(self) -> int:
        """Which sum `Contribute` and `Aggregate` are about, as the compiler fixed it for the slot.

        Above 0: that of the execution of this number, which asked for the contributions; `execution_ended`
        tells of its end. Below 0: that of the op's `round`. 0: there is one, and everywhere else.
        """

    @property
    def own_peer(self) -> PeerId:
        """The node's id."""

    @property
    def own_class(self) -> str:
        """The peer class of the partition that the op belongs to."""

    @property
    def peers(self) -> PeerView:
        """The presence of peers, by class."""

    @property
    def address_book(self) -> AddressBookView:
        """The addresses of peers."""

    @property
    def rng(self) -> np.random.Generator:
        """The node's generator, seeded with the node's seed; the only randomness that a component uses."""

    @property
    def scheduler(self) -> Scheduler:
        """The engine's timers."""

    @property
    def bus(self) -> Bus:
        """The node's event bus."""

    @property
    def local_addresses(self) -> tuple[bytes, ...]:
        """Addresses under which the node is reached, encoded as envelopes carry them."""

    def count(self, name: str, n: int = 1) -> None:
        """Adds `n` to the node's counter of that name, which metrics show: `acme.cut` is `bb_acme_cut_total`.

        A node has at most `limits.metric_names` counters; a new one beyond that is not counted, and
        `counters.refused` counts it. Raises ComponentError for a name that begins as the node's own do
        (`ops.`, `rounds.`, …), and for an `n` that is not a whole number from 0 on.
        """

    def dependency(self, slot: str) -> Any:
        """Returns the component bound to another slot of the node, of whatever class was bound there.

        Raises ComponentError where the slot has none.
        """

    def later(self, deadline_ns: int | None = None) -> Later:
        """Parks this op: the method returns the result of this call, and any thread completes it.

        `deadline_ns` is relative, in nanoseconds; None takes the engine's default for the op.
        """

    def offload(self, work: Callable[[], object], deadline_ns: int | None = None) -> Later:
        """Parks this op and runs `work()` on the node's executor, or inline where there is none.

        The method returns the result of this call. `work` must touch nothing that the engine's thread
        touches; the op ends with what it returns or raises.
        """


class ProtocolCtx(Ctx, Protocol):
    """The surroundings that a protocol component gets; in timers, hooks and remote ops `exec_id` is 0.

    A remote op may answer `later`, within what remains of the request's deadline; timers and hooks may not.
    """

    @property
    def own_classes(self) -> tuple[str, ...]:
        """The peer classes that the node presents."""

    def send(self, peer: PeerId, op: str, payload: bytes, deadline_ns: int = 0) -> bool:
        """Sends `payload`, once and one way, to the remote op `op` of the component in the peer's same slot.

        Returns False where the peer has no known address.
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

        `reply` is None where the peer is down, unknown, or silent for `deadline_ns` nanoseconds; b"" where
        the op returned nothing. Raises CapacityError where `NodeConfig.max_component_calls` requests wait
        already.
        """
