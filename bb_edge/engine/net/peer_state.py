"""What the node knows of other peers: presence, health, back-off, addresses (semantics §6 "Gates", §7).

Presence and any authenticated envelope are successes; a request unanswered at its deadline is a failure. The
gates, the selectors and open requests read what stands here; nobody else writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.net.outgoing import Unit
from bb_edge.ir.address import Address, AddressError
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor, envelope
from bb_edge.wire.address_book import AddressBook, AddressBookError
from bb_edge.wire.backoff import Backoff
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.codecs import BYTES_HASH, WireReceiveError, WireReceiveErrorKind
from bb_edge.wire.envelope import Envelope, Fill, RttReport
from bb_edge.wire.health import PeerHealth
from bb_edge.wire.peers import PeersFullError, PeerTable, Presence, PresenceChange

if TYPE_CHECKING:
    from bb_edge.engine.net.outgoing import Outbound
    from bb_edge.engine.net.requests import Requests
    from bb_edge.engine.run.scheduler import Scheduler
    from bb_edge.wire.delivery import Links

BACKOFF_OP = "Backoff"
"""The engine's own remote op, of component 0: its caller wants fewer envelopes from this node."""
BACKOFF_SUFFIX = Address.empty().with_component(0, BACKOFF_OP).to_bytes()
LIMITS_META = "limits"
"""Where a node's presence says what it accepts (`PeerLimits.meta`)."""


class PeerView:
    """The peers as selectors see them: those that are up, the node itself where its own presence lists the
    class, and, once per back-off, those that stopped answering: who is never asked never answers again.
    """

    __slots__ = ("_neighbours",)

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        neighbours = self._neighbours
        found = neighbours.up_peers(peer_class)
        again = [p for p in neighbours.table.unreachable(peer_class) if neighbours.probe(p)]
        return tuple(sorted((*found, *again))) if again else found


class Neighbours:
    """The tables about other peers, and what happens when they change."""

    def __init__(
        self, engine: Scheduler, requests: Requests, links: Links, own_classes: tuple[str, ...]
    ) -> None:
        config = engine.runtime.config
        self._engine = engine
        self._runtime = engine.runtime
        self._requests = requests
        self._links = links
        self._outbound: Outbound | None = None
        self.own_classes = own_classes
        self.table = PeerTable(config.max_peers)
        self.peers = PeerView(self)
        self.health = PeerHealth(config.health_threshold, config.max_peers)
        self.backoff = Backoff(capacity=config.max_peers)
        self.address_book = AddressBook(config.max_peers, config.peer_addresses)
        self.blocked: set[PeerId] = set()
        self.limits: dict[PeerId, PeerLimits] = {}  # of peers whose presence tells them
        # (peer, chain, hop, site) -> what that peer last said of that hop
        self.rtt_reports: dict[tuple[PeerId, int, int, int], RttReport] = {}
        self.imposed: dict[PeerId, int] = {}  # peers that asked for patience, and until when
        engine.runtime.callbacks.register("presence", self.presence)
        engine.runtime.callbacks.register("peer.failed", self.failed)
        self.on_peer_up: Callable[[], None] = _nothing

    def attach(self, outbound: Outbound) -> None:
        """Ties in what sends back-off notices; called once at install."""
        self._outbound = outbound

    # --- presence and health -------------------------------------------------------------------------------

    def presence(
        self,
        peer: PeerId,
        up: bool,
        epoch: int,
        classes: tuple[str, ...],
        addresses: Sequence[bytes],
        meta: Mapping[str, object],
    ) -> None:
        """A peer's presence, as the transport tells it."""
        try:
            said = Presence(up, epoch or None, classes, tuple(addresses), meta)
            change = self.table.update(peer, said)
        except PeersFullError as error:
            self._runtime.count("peers.refused")
            self._runtime.emit(steps.IngressDropped(peer, error.what))
            return
        if up:
            self._take_limits(peer, meta)
        if up and addresses:
            self.merge_addresses(peer, tuple(addresses), None)
        if change in (PresenceChange.UP, PresenceChange.NEW_EPOCH):
            self.health.success(peer)
            self.backoff.succeeded(peer)
            self._links.peer_up(peer, epoch, self._runtime.now_ns)
            self._came_up(peer, classes)
        elif change is PresenceChange.DOWN:
            self.health.down(peer)
            self._went_down(peer, "presence")

    def _take_limits(self, peer: PeerId, meta: Mapping[str, object]) -> None:
        said = PeerLimits.from_meta(meta.get(LIMITS_META))
        self.limits.pop(peer, None)
        if said is not None:
            if len(self.limits) >= self._runtime.config.max_peers:
                del self.limits[next(iter(self.limits))]
            self.limits[peer] = said

    def heard(self, peer: PeerId, now_ns: int) -> None:
        """An authenticated envelope of the peer: a success, recorded before the gates."""
        if not self.imposed or self.imposed.get(peer, 0) <= now_ns:
            self.imposed.pop(peer, None)
            self.backoff.succeeded(peer)
        if self.health.success(peer):
            self.table.set_reachable(peer, True)
            presence = self.table.get(peer)
            self._came_up(peer, presence.classes if presence is not None else ())

    def unanswered(self, peer: PeerId) -> None:
        """A request to the peer has passed its deadline."""
        self.failed(peer)

    def failed(self, peer: PeerId) -> None:
        """The peer, or the broker on its behalf, failed us once."""
        self.backoff.failed(peer, self._runtime.now_ns)
        if self.health.failure(peer):
            self.table.set_reachable(peer, False)
            self._went_down(peer, "unanswered")

    def _came_up(self, peer: PeerId, classes: tuple[str, ...]) -> None:
        self._runtime.count("peers.up")
        self._runtime.emit(steps.PeerUp(peer, classes))
        self._runtime.bus.publish(Bus.PEER_UP)
        self.on_peer_up()

    def _went_down(self, peer: PeerId, reason: str) -> None:
        engine = self._engine
        self._runtime.count("peers.down")
        self._runtime.emit(steps.PeerDown(peer, reason))
        self._runtime.bus.publish(Bus.PEER_DOWN)
        self._requests.peer_down(peer)
        engine.control.peer_down(peer)

    # --- what gates ask -------------------------------------------------------------------------------

    def is_up(self, peer: PeerId) -> bool:
        return self.health.is_up(peer)

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers of a class that are up, the node itself among them where it is of that class; sorted."""
        found = self.table.up_peers(peer_class)
        own = self._runtime.own_peer
        return tuple(sorted({*found, own})) if peer_class in self.own_classes else found

    @property
    def health_threshold(self) -> int:
        """Failures in a row after which a peer counts as down; may be set at run time."""
        return self.health.threshold

    @health_threshold.setter
    def health_threshold(self, value: int) -> None:
        self.health.threshold = value

    def patience_until(self, peer: PeerId) -> int:
        """Until when the peer has asked to be left alone, monotonic; 0 where it has not."""
        return self.imposed.get(peer, 0) if self.imposed else 0

    def ready(self, peer: PeerId, now_ns: int) -> bool:
        """Whether a back-off, if there is one, lets something through now; counts as the probe then."""
        if not self.backoff.ready(peer, now_ns):
            return False
        self.backoff.probed(peer, now_ns)
        return True

    def probe(self, peer: PeerId) -> bool:
        """Whether a peer that is down by failures may be tried once; never one whose presence says down."""
        presence = self.table.get(peer)
        if presence is not None and not presence.up:
            return False
        return self.backoff.ready(peer, self._runtime.now_ns)

    # --- addresses ------------------------------------------------------------------------------------

    def merge_addresses(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None) -> None:
        """Claimed addresses first, then the observed one; an unchanged list is not rewritten."""
        try:
            self.address_book.learn(peer, claimed, observed)
        except (AddressError, AddressBookError):
            self._runtime.count("addresses.refused")

    # --- round-trip times -----------------------------------------------------------------------------

    def take_rtt(self, peer: PeerId, reports: Sequence[RttReport]) -> None:
        """Keeps the last report of each hop (envelope field 5), `max_peers` at most: the oldest goes."""
        table = self.rtt_reports
        for report in reports:
            key = (peer, report.chain_id, report.hop_index, report.next_hop_site_id)
            table.pop(key, None)
            if len(table) >= self._runtime.config.max_peers:
                del table[next(iter(table))]
                self._runtime.count("rtt.forgotten")
            table[key] = report

    # --- back-pressure --------------------------------------------------------------------------------

    def send_backoff_notice(self, peer: PeerId, min_backoff_ns: int) -> None:
        if self._outbound is None:
            return
        payload = cbor.dumps({"min_backoff_ns": min_backoff_ns})
        fill = Fill(BACKOFF_SUFFIX, payload, False, BYTES_HASH)
        self._outbound.add_notice(Unit(peer, [fill], envelope.NONE, 0, 0, False, None))

    def told_to_back_off(self, peer: PeerId, fill: Fill, _message: Envelope) -> None:
        """Serves `BACKOFF_OP`: the peer is left alone as long as it asks.

        WireReceiveError for a bad notice.
        """
        try:
            said = cbor.loads(fill.payload)
        except cbor.CborError as error:
            raise WireReceiveError(WireReceiveErrorKind.DecodeFailed, error.what) from error
        wait = said.get("min_backoff_ns") if isinstance(said, dict) else None
        if type(wait) is not int or wait < 0:
            raise WireReceiveError(
                WireReceiveErrorKind.DecodeFailed, "a back-off notice without min_backoff_ns"
            )
        now_ns = self._runtime.now_ns
        self.backoff.impose(peer, now_ns, wait)
        if len(self.imposed) < self._runtime.config.max_peers:
            self.imposed[peer] = now_ns + wait
        self._runtime.count("backpressure.heeded")


def _nothing() -> None:
    return None
