"""What the node knows of its peers: presence, health, back-off, addresses, limits.

Presence and any authenticated envelope are successes; a request unanswered at its deadline is a failure. A
peer that comes up or goes down is a step, a counter, a bus event, and a fact in `take_changes`: the engine
hands it on to those who wait for peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.net import features
from bb_edge.engine.net.back_pressure import BackPressure
from bb_edge.engine.net.failing import Failing
from bb_edge.engine.net.peer_limits import LIMITS_META, LimitsOfPeers
from bb_edge.engine.net.programs import PeerPrograms
from bb_edge.engine.net.refusals import Refusals
from bb_edge.engine.net.restarts import Restarts
from bb_edge.engine.net.round_trips import RoundTrips
from bb_edge.engine.net.unheard import Unheard
from bb_edge.engine.net.uplink import Uplink
from bb_edge.engine.plain import Shift
from bb_edge.engine.program.program import PeerClasses
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import AddressError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.ir.version import RUNTIME_VERSION
from bb_edge.wire.address_book import AddressBook, AddressBookError
from bb_edge.wire.backoff import Backoff
from bb_edge.wire.caps import UNTOLD_LIMITS, PeerLimits
from bb_edge.wire.delivery import Links
from bb_edge.wire.durable_rows import Met
from bb_edge.wire.health import PeerHealth
from bb_edge.wire.peers import PeerTable, PresenceChange
from bb_edge.wire.places import PeersFullError
from bb_edge.wire.presence import Presence, decode_presence
from bb_edge.wire.programs import ProgramClaim


class MayBeAsked(NamedTuple):
    """A failing peer has answered: whoever waits for peers looks again."""

    peer: PeerId


Change = steps.PeerUp | steps.PeerDown | MayBeAsked


class PeerStates:
    """The tables about other peers. Nobody else writes them."""

    def __init__(
        self,
        runtime: Runtime,
        links: Links,
        own_classes: tuple[str, ...],
        claim: ProgramClaim | None = None,
        dealt: PeerClasses | None = None,
    ) -> None:
        """`claim` is what the node says of its program, none where its artifact names none; `dealt` are the
        classes that its targets deal with, every class where nothing says it.
        """
        config = runtime.config
        self._runtime = runtime
        self._links = links
        self.own_classes, self.own_features = own_classes, list(features.OWN)
        self.hears, asked = dealt or PeerClasses()
        self.programs = PeerPrograms(runtime, claim or ProgramClaim(), own_classes)
        # Whether a transport tells presences: where none does, no class is asked for.
        self.are_told = False
        self.uplink = Uplink(runtime)
        bounds = (config.max_peers, config.peer_bytes)
        self.presences = PeerTable(*bounds, links.heard_of, self._displaced, asked)
        self.address_book = AddressBook(
            config.max_peers, config.peer_addresses, has_place=self.presences.__contains__
        )
        self._refusals = Refusals(runtime)
        self._restarts = Restarts(runtime)
        self.health = PeerHealth(config.health_threshold, config.max_peers)
        self.backoff = Backoff(capacity=config.max_peers)
        self.back_pressure = BackPressure(runtime, self.backoff)
        self.failing = Failing(runtime, self._may_ask_again)
        self.unheard = Unheard(runtime, links)
        self.limits = LimitsOfPeers(PeerLimits.of(config.caps))
        self.round_trips = RoundTrips(runtime)
        self.note: Callable[[PeerId, Presence], None] | None = None
        """Is told of a peer that was heard of for the first time, or in another class."""
        self.changes: list[Change] = []
        self.restarted: list[PeerId] = []  # peers that have come up in a new epoch
        runtime.callbacks.register("presence", self.presence)
        runtime.callbacks.register("presence.cleared", self.cleared)
        runtime.callbacks.register("peer.failed", self.failed)

    def _may_ask_again(self, peer: PeerId) -> None:
        self.changes.append(MayBeAsked(peer))

    def take_changes(self) -> list[Change]:
        """Who came up, who went down, and who may be waited for again since the last call, in order."""
        changes, self.changes = self.changes, []
        return changes

    # --- presence and health -------------------------------------------------------------------------------

    def presence(
        self,
        peer: PeerId,
        up: bool,
        epoch: int,
        classes: tuple[str, ...],
        addresses: Sequence[bytes],
        meta: Mapping[str, object],
        session: int = 0,
        seq: int = 0,
    ) -> None:
        """Takes a peer's presence, as the transport tells it."""
        said = Presence(up, epoch or None, classes, tuple(addresses), meta, session=session, seq=seq)
        before = (known := self.presences.get(peer)) and known.epoch
        if not up:
            self._restarts.parted(peer, before, said)
        try:
            change = self.presences.update(peer, said)
        except PeersFullError as error:
            self._refusals.refused(peer, error)
            return
        if change is PresenceChange.STALE:
            self._runtime.count("peers.stale")
            return
        if self.note is not None:
            now = self.presences.get(peer)
            if now is not None and (known is None or not {*known.classes} >= {*now.classes}):
                self.note(peer, now)
        if up:
            if self.uplink.back is not None:
                self.uplink.met(peer)
            self.limits.take(peer, meta)
            self._judge(peer)
            if said.addresses:
                self.merge_addresses(peer, said.addresses, None)
        if change in (PresenceChange.UP, PresenceChange.NEW_EPOCH):
            self.health.success(peer)
            self.backoff.succeeded(peer)
            self._links.peer_up(peer, epoch, self._runtime.now_ns)
            self.failing.answers.restarted(peer)
            self.unheard.come(peer)
            if before is not None and epoch and epoch != before:
                self.restarted.append(peer)
                self._restarts.started(peer, before, epoch)
            self._came_up(peer)
        elif change is PresenceChange.NEW_CLASS:
            self._came_up(peer)
        elif change is PresenceChange.DOWN:
            self.health.down(peer)
            self._went_down(peer, "presence")

    def recall(self, met: Iterable[Met]) -> None:
        """Takes peers that an earlier run has heard of, beside those of its snapshot."""
        for peer, encoded in met:
            presence = decode_presence(encoded)
            self.presences.recall(peer, presence)
            self.limits.take(peer, presence.meta)
            self._judge(peer, tell=False)
            self.merge_addresses(peer, presence.addresses, None)

    def _judge(self, peer: PeerId, tell: bool = True) -> None:
        presence = self.presences.get(peer)
        if presence is not None:
            self.programs.judge(peer, presence.classes, presence.meta, tell)
        if (known := self.programs.known) and known > len(self.presences):
            self.programs.keep({*self.presences})

    def cleared(self, peer: PeerId, peer_class: str | None) -> None:
        """An operator, or the peer itself, has removed its presence in a class; None for all of them."""
        if self.presences.clear(peer, peer_class) is PresenceChange.DOWN:
            self.health.down(peer)
            self._went_down(peer, "removed")
        if peer not in self.presences:
            self.address_book.left_place(peer)
            self.limits.forget(peer)

    def _displaced(self, peer: PeerId, was_up: bool) -> None:
        """A newcomer has got the place of a peer: what its presence said goes, and no other peer's."""
        self.address_book.lost_place(peer)
        self.limits.forget(peer)
        if was_up:  # whoever waits for it does so no longer
            self._runtime.count("peers.displaced")
            self.health.down(peer)
            self._went_down(peer, "displaced")

    def heard(self, peer: PeerId, now_ns: int) -> None:
        """An authenticated envelope of the peer has come: a success, recorded before the gates."""
        if self.uplink.back is not None:
            self.uplink.met(peer)
        imposed = self.back_pressure.imposed
        if not (imposed or self.backoff.waits or self.health.failures or self.unheard.are_greeted):
            return  # no peer is in trouble
        if not imposed or imposed.get(peer, 0) <= now_ns:
            imposed.pop(peer, None)
            self.backoff.succeeded(peer)
        if self.presences.is_down(peer):
            return  # what it sent before its goodbye is late: only its presence brings it up again
        first = self.unheard.are_greeted and self.unheard.heard(peer)
        if self.health.success(peer):
            self.presences.set_reachable(peer, True)
            self._came_up(peer)
        elif first:  # whoever waits for peers looks again
            self.changes.append(steps.PeerUp(peer))

    def fell_silent(self, peer: PeerId) -> None:
        """Nothing has come of a peer that says it is up, not even when it was greeted."""
        if self.health.down(peer):
            self.presences.set_reachable(peer, False)
            self._went_down(peer, "unanswered")

    def failed(self, peer: PeerId) -> bool:
        """The peer left a request unanswered, or the broker refused a delivery to it.

        True where that takes the peer down.
        """
        self.backoff.failed(peer, self._runtime.now_ns)
        if not self.health.failure(peer):
            return False
        self.presences.set_reachable(peer, False)
        self._went_down(peer, "unanswered")
        return True

    def tried(self, peer: PeerId) -> None:
        """A peer that is down is asked once more: the next try waits longer, unless this one is answered."""
        self.backoff.failed(peer, self._runtime.now_ns)

    def _came_up(self, peer: PeerId) -> None:
        presence = self.presences.get(peer)
        self._runtime.count("peers.up")
        self._tell(steps.PeerUp(peer, () if presence is None else presence.classes), Bus.PEER_UP)

    def _went_down(self, peer: PeerId, reason: str) -> None:
        self._runtime.count("peers.down")
        self._tell(steps.PeerDown(peer, reason), Bus.PEER_DOWN)

    def _tell(self, change: steps.PeerUp | steps.PeerDown, event: int) -> None:
        self._runtime.emit(change)
        self._runtime.bus.publish(event)
        self.changes.append(change)

    def why_not(self, peer: PeerId) -> MissingReason:
        """Why a peer was not asked that a program wanted to ask."""
        if not self.is_up(peer):
            return MissingReason.DOWN
        return MissingReason.FAILING if peer in self.failing else MissingReason.BACKING_OFF

    # --- what gates and selectors ask -----------------------------------------------------------------

    def is_up(self, peer: PeerId) -> bool:
        """Whether the peer answers, as far as the node knows; one that nobody has heard of does."""
        return self.health.is_up(peer)

    def takes_from(self, peer: PeerId) -> bool:
        """Whether what has come from the peer is worth running: also where it said goodbye behind it."""
        return self.health.is_up(peer) or self.presences.is_down(peer)

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers of a class that are up, the node itself among them where it is of that class; sorted."""
        return self.members(peer_class, self.presences.up_peers(peer_class))

    def members(self, peer_class: str, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Of peers of a class, those whose program fits, and the node itself where it is of it; sorted."""
        if strangers := self.programs.strangers:
            peers = tuple(peer for peer in peers if peer not in strangers)
        return tuple(sorted({*peers, self._runtime.own_peer})) if peer_class in self.own_classes else peers

    def failing_of(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers of a class that say they are up, and are failing or acknowledge nothing; sorted."""
        mute = {*self.presences.unreachable(peer_class)} - self.programs.strangers.keys()
        return tuple(sorted({p for p in self.up_peers(peer_class) if p in self.failing} | mute))

    def ready(self, peer: PeerId, now_ns: int) -> bool:
        """Whether a back-off, if there is one, lets something through now; counts as the probe then."""
        if ready := self.backoff.ready(peer, now_ns):
            self.backoff.probed(peer, now_ns)
        return ready

    def probe(self, peer: PeerId) -> bool:
        """Whether a peer that is down by failures may be tried once; never one whose presence says down."""
        return not self.presences.is_down(peer) and self.backoff.ready(peer, self._runtime.now_ns)

    def knows(self, peer: PeerId) -> bool:
        """Whether the node itself, or an address of the peer, is known to send to."""
        return bool(self.address_book.addresses.get(peer)) or peer == self._runtime.own_peer

    def limits_of(self, peer: PeerId) -> PeerLimits:
        """What a peer takes: as it says, as the node itself does, or whatever any node does."""
        limits = self.limits
        return limits.own if peer == self._runtime.own_peer else limits.known.get(peer, UNTOLD_LIMITS)

    def reads_failures(self, peer: PeerId) -> bool:
        """Whether the peer's presence says that it reads failures in place of replies."""
        return self._understands(peer, features.FAILURES)

    def reads_refusals(self, peer: PeerId) -> bool:
        """Whether the peer's presence says that it wants to hear which of its answers are refused."""
        return self._understands(peer, features.REFUSALS)

    def _understands(self, peer: PeerId, feature: str) -> bool:
        return peer == self._runtime.own_peer or features.names(self.presences.get(peer), feature)

    @property
    def own_meta(self) -> dict[str, object]:
        """What the node's presence says of it beside addresses: its runtime, what it accepts and reads."""
        limits, claim = self.limits.own.meta(), self.programs.claim.meta()
        return {"runtime": RUNTIME_VERSION, LIMITS_META: limits, features.META: self.own_features, **claim}

    # --- addresses -------------------------------------------------------------------------------------

    def merge_addresses(self, peer: PeerId, claimed: Sequence[bytes], observed: bytes | None) -> None:
        """Learns the claimed addresses first, then the observed one; an unchanged list is not rewritten."""
        try:
            self.address_book.learn(peer, claimed, observed)
        except (AddressError, AddressBookError):
            self._runtime.count("addresses.refused")

    def save(self) -> dict[str, Any]:
        """All tables as plain values; `restore` takes them."""
        return {
            "peers": self.presences.snapshot(),
            "health": self.health.snapshot(),
            "answers": self.failing.answers.snapshot(self._runtime.now_ns),
            "unheard": self.unheard.save(),
            "backoff": self.backoff.snapshot(self._runtime.now_ns),
            "addresses": self.address_book.snapshot(),
            "limits": self.limits.save(),
            "rtt": self.round_trips.save(),
            **self.back_pressure.save(),
        }

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave; times move by `shift`."""
        self.presences.restore(data["peers"])
        for peer in self.presences:
            self._judge(peer, tell=False)
        self.health.restore(data["health"])
        self.failing.answers.restore(data["answers"], self._runtime.now_ns)
        self.unheard.restore(data["unheard"])
        self.backoff.restore(data["backoff"], self._runtime.now_ns)
        self.address_book.restore(data["addresses"])
        self.limits.restore(data["limits"], self.presences.__contains__)
        self.round_trips.restore(data["rtt"])
        self.back_pressure.restore(data, shift)
