"""Numbers, acknowledgements and repetitions of envelopes, with one link per peer.

Nothing here does IO: callers pass time and epochs in, and `due` returns what must be sent. Everything has a
ceiling: links (`max_links`, idle ones are forgotten), envelopes and bytes that wait (`ResendQueue`), windows
(`dedup`).

Sending: `stamp` numbers an envelope and adds the acknowledgements that are owed to the peer; `sent` stores a
request or reply until it is acknowledged or expires. Durable envelopes have numbers of their own
(`durable_sender`). Receiving: `receive`
judges and changes nothing, `mark` takes the number and owes the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire.bodies import Body
from bb_edge.wire.dedup import Verdict
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.envelope import NONE, Ack, Envelope, encode, repeated
from bb_edge.wire.link import LinkConfig, LinksFullError, LinkTable
from bb_edge.wire.resend import (
    DeliveryError,
    EnvelopeKey,
    Outgoing,
    Pending,
    PendingEvent,
    PendingFullError,
    PendingState,
    ResendQueue,
)
from bb_edge.wire.round_trip import RoundTrip

__all__ = [
    "EPOCH_BITS",
    "DeliveryError",
    "EnvelopeKey",
    "LinkConfig",
    "Links",
    "LinksFullError",
    "Outgoing",
    "PendingFullError",
    "Verdict",
]


EPOCH_BITS = 56
"""Of a best-effort epoch, which is never 0."""

COUNTERS = ("expired", "resent", "acks_alone", "acks_forgotten", "foreign_acks", "links_forgotten")
"""The keys of `Links.counters`."""


class Links:
    """The links of one node to all its peers."""

    def __init__(
        self, best_effort_epoch: int, sources: DurableReceiver, config: LinkConfig | None = None
    ) -> None:
        """The epoch is a random number below 2^56, drawn at every start: it tells a node's lives apart.

        56 bits leave a varint at 8 bytes, and two epochs of one node meet with a chance of 2^-56. `sources`
        has the windows of durable envelopes; what it owes goes with the rest.
        """
        self.config = config or LinkConfig()
        self.best_effort_epoch = best_effort_epoch
        self.sources = sources
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._table = LinkTable(self.config, self.counters)
        self._links = self._table.by_peer
        self._durable_owed: set[PeerId] = set()  # those that `sources` owes acknowledgements
        self._queue = ResendQueue(
            self.config.max_pending, self.config.pending_bytes, self.config.resend_longest_ns
        )
        self.expired: list[EnvelopeKey] = []
        """Envelopes that `due` has dropped, for `take_expired`."""

    def __len__(self) -> int:
        return len(self._links)

    @property
    def pending(self) -> int:
        """How many envelopes wait for their acknowledgement."""
        return self._queue.count

    @property
    def pending_bytes(self) -> int:
        """How many bytes the envelopes have that wait for their acknowledgement."""
        return self._queue.bytes_in_use

    # --- sending -----------------------------------------------------------------------------------------

    def stamp(
        self,
        peer: PeerId,
        envelope: Envelope,
        now_ns: int,
        resend: bool = False,
        deadline_ns: int = 0,
        size: int = 0,
        body: bytes = b"",
    ) -> EnvelopeKey:
        """Gives the envelope its epoch, seq, base and the acks that are owed to the peer.

        One that is to be resent holds a place until it is acknowledged, cancelled, or `deadline_ns` has
        passed (monotonic nanoseconds, 0: never); `size` is about its bytes behind `body`. Raises
        PendingFullError or LinksFullError; the envelope then has no number, and nothing has changed.
        """
        link = self._links.get(peer) or self._table.new(peer)
        if link is None:
            raise self._table.full_error(peer)
        link.used_ns = now_ns
        if resend:
            self._queue.reserve(size, body)
        epoch = self.best_effort_epoch
        seq = link.last_seq = link.last_seq + 1
        envelope.epoch, envelope.seq = epoch, seq
        key = EnvelopeKey(peer, epoch, seq)
        if resend:
            interval = self.config.resend_ns
            if link.trip.wanted_ns > interval:
                remaining = deadline_ns - now_ns if deadline_ns else 0
                interval = link.trip.interval_ns(interval, self._queue.longest_ns, remaining)
            pending = Pending(key, envelope.kind, deadline_ns, interval)
            pending.next_ns = now_ns + pending.interval_ns
            link.add(pending)  # `sent` plans its repetitions and its expiry
        if peer in self._table.owing:
            envelope.acks += self._collect(peer)
        return key

    def interval_ns(self, peer: PeerId, remaining_ns: int = 0) -> int:
        """How long what is sent to the peer now waits for its acknowledgement (no deadline: 0 remains)."""
        trip, least_ns = self.trip_of(peer), self.config.resend_ns
        return trip.interval_ns(least_ns, self._queue.longest_ns, remaining_ns) if trip else least_ns

    def trip_of(self, peer: PeerId) -> RoundTrip | None:
        """How long acknowledgements of the peer take; None for one that nothing is known of."""
        link = self._links.get(peer)
        return None if link is None else link.trip

    def take_acks(self, peer: PeerId) -> tuple[Ack, ...]:
        """The acknowledgements that are owed to a peer and that go out now."""
        return self._collect(peer) if peer in self._table.owing else ()

    def sent(self, peer: PeerId, key: EnvelopeKey, encoded: bytes, body: bytes = b"") -> None:
        """Stores the bytes for repetitions; the first one is due `resend_ns` after `stamp`.

        `body` are those that the envelope begins with and shares with others; it is held once.
        Nothing happens for an envelope that holds no place.
        """
        pending = self._find(key)
        if pending is None:
            return
        self._queue.keep(pending, encoded, body)
        self._queue.arm(pending, pending.next_ns)

    def lay_aside(self, keep: Callable[[Body], Body | None]) -> None:
        """Holds in place of each body of what waits what `keep` returns: equal bytes; None leaves it."""
        if self._queue.count:
            self._queue.lay_aside(keep)

    def published(self, key: EnvelopeKey) -> bool:
        """Returns whether the envelope has gone out, or is over."""
        pending = self._find(key)
        return pending is None or pending.state is PendingState.PUBLISHED

    def is_pending(self, key: EnvelopeKey) -> bool:
        """Returns whether the envelope waits for its acknowledgement."""
        return self._find(key) is not None

    def cancel(self, key: EnvelopeKey) -> bool:
        """Frees an envelope that nobody waits for any more. Returns False where it was over before."""
        pending = self._find(key)
        if pending is None:
            return False
        self._remove(pending)
        return True

    def _find(self, key: EnvelopeKey) -> Pending | None:
        link = self._links.get(key.peer)
        return link.find(key) if link is not None else None

    def _remove(self, pending: Pending, event: PendingEvent = PendingEvent.SETTLE) -> None:
        key = pending.key
        self._links[key.peer].remove(key)
        self._queue.release(pending, event)

    def acknowledged(self, peer: PeerId, acks: Iterable[Ack], now_ns: int) -> list[Ack]:
        """Settles the envelopes that the peer acknowledges; returns the acks of other epochs than theirs."""
        link = self._links.get(peer)
        others: list[Ack] = []
        for ack in acks:
            if link is None or (ack.epoch != self.best_effort_epoch and not link.has(ack.epoch)):
                others.append(ack)
                continue
            link.spoke = True
            for pending in link.named_by(peer, ack.epoch, ack.up_to, ack.also):
                link.measure(pending, now_ns)
                self._remove(pending)
        return others

    def count_foreign(self, acks: int) -> None:
        """Counts acks of epochs that are none of this node's."""
        self.counters["foreign_acks"] += acks

    def measured(self, pending: Pending, now_ns: int) -> None:
        """A durable envelope is acknowledged, which says something about its peer, where there is room."""
        peer = pending.key.peer
        link = self._links.get(peer) or self._table.new(peer)
        if link is not None:
            link.spoke = True
            link.measure(pending, now_ns)

    # --- receiving ---------------------------------------------------------------------------------------

    def receive(self, peer: PeerId, envelope: Envelope, now_ns: int) -> Verdict:
        """Judges an envelope of the peer that is not durable, and changes nothing.

        An envelope without number is NEW each time it comes: its sender does not want its repetitions
        recognised.
        """
        seq = envelope.seq
        if seq == 0:
            return Verdict.NEW if envelope.fills else Verdict.ACK_ONLY
        link = self._links.get(peer)
        if link is not None:
            return link.received.verdict(envelope.epoch, seq)
        return Verdict.NEW if self._table.has_room() else Verdict.NO_ROOM

    def heard_of(self, peer: PeerId) -> bool:
        """Returns whether envelopes of the peer have come, as far as its link is remembered.

        Numbered ones, acknowledgements of what this node has sent, and what `note_heard` was told of.
        """
        link = self._links.get(peer)
        if link is not None and (link.spoke or link.received):
            return True
        return self.sources.has_taken(peer)

    def note_heard(self, peer: PeerId) -> None:
        """Notes that something of the peer has come, where it has a link."""
        link = self._links.get(peer)
        if link is not None:
            link.spoke = True

    def mark(self, peer: PeerId, envelope: Envelope, now_ns: int) -> None:
        """Takes the number of an envelope that is NEW, and owes an ack where its sender waits for one.

        Owes the ack of a DUPLICATE again; not for what `receive` judges otherwise.
        """
        seq = envelope.seq
        if seq == 0:
            return
        link = self._links.get(peer) or self._table.new(peer)
        if link is None:
            return  # NO_ROOM: nothing is noted of it
        link.used_ns = now_ns
        epochs = self.config.best_effort_epochs
        forgotten = link.received.mark(envelope.epoch, seq, epochs, envelope.kind != NONE)
        if forgotten is not None:
            self.counters["acks_forgotten"] += forgotten
            self._owe(peer, now_ns)

    def _owe(self, peer: PeerId, now_ns: int) -> None:
        """Notes an ack that is owed: it goes with the next envelope, or alone after the delay."""
        self._table.owing.setdefault(peer, now_ns + self.config.ack_delay_ns)

    def owe_durable(self, peer: PeerId, now_ns: int) -> None:
        """Notes acks that `sources` may owe the peer."""
        if peer not in self._durable_owed and self.sources.owes(peer):
            self._durable_owed.add(peer)
            self._owe(peer, now_ns)

    def _collect(self, peer: PeerId) -> tuple[Ack, ...]:
        """Returns the acks that are owed to the peer; numbers that do not fit stay owed."""
        link, more = self._links.get(peer), False
        acks: tuple[Ack, ...] = ()
        if peer in self._durable_owed:
            acks = self.sources.acks(peer)
            more = self.sources.owes(peer)
            if not more:
                self._durable_owed.discard(peer)
        if link is not None:
            others, more_others = link.received.collect()
            acks, more = acks + others, more or more_others
        if not more:
            self._table.owing.pop(peer, None)
        return acks

    # --- time --------------------------------------------------------------------------------------------

    def peer_up(self, peer: PeerId, epoch: int | None, now_ns: int) -> int:
        """Makes all that the peer has not acknowledged due now, where it came up in a new epoch.

        Returns how many envelopes that are.
        """
        link = self._links.get(peer)
        if link is None:
            self._table.expect(peer)
            return 0
        if epoch is not None and epoch == link.peer_epoch:
            return 0
        link.peer_epoch = epoch
        link.trip = RoundTrip()  # while it was away, nothing said how long one takes
        published = PendingState.PUBLISHED
        again = [pending for pending in link.waiting if pending.state is published]
        for pending in again:
            pending.hurry(self.config.resend_ns)
            self._queue.arm(pending, now_ns)
        return len(again)

    @property
    def quiet(self) -> bool:
        """Whether nothing is unacknowledged, owed or expired: `due` and `take_expired` return nothing."""
        return not (self._queue.count or self._table.owing or self.expired)

    def due(self, now_ns: int) -> list[Outgoing]:
        """Returns what must go now: repetitions, and acks that found no envelope within `ack_delay_ns`.

        Drops and counts envelopes whose deadline has passed; `take_expired` names them.
        """
        out: list[Outgoing] = []
        while (pending := self._queue.pop(now_ns)) is not None:
            if pending.expires_ns and now_ns >= pending.expires_ns:
                self.counters["expired"] += 1
                self.expired.append(pending.key)
                del self.expired[: -self.config.max_pending]
                self._remove(pending, PendingEvent.EXPIRE)
                continue
            remaining = pending.expires_ns - now_ns if pending.expires_ns else 0
            payload = repeated(pending.encoded, remaining)
            again, pending.handed_out = pending.handed_out, True
            key, body = pending.key, pending.body
            out.append(Outgoing(key.peer, payload, key, False, remaining, again, body))
            self.counters["resent"] += 1
            self._links[key.peer].trip.repeated(pending.repeat(self._queue.longest_ns), now_ns)
            self._queue.arm(pending, now_ns + pending.interval_ns)
        while self._table.owing:
            peer, when = next(iter(self._table.owing.items()))
            if when > now_ns:
                break
            acks = self._collect(peer)
            if not acks:  # the epoch that they were for has been forgotten meanwhile
                continue
            out.append(Outgoing(peer, encode(Envelope(acks=acks)), None, False, 0, False))
            self.counters["acks_alone"] += 1
        return out

    def take_expired(self) -> list[EnvelopeKey]:
        """Returns the envelopes that `due` dropped since the last call."""
        expired = list(self.expired)
        self.expired.clear()
        return expired

    def next_deadline_ns(self) -> int | None:
        """Returns when `due` has something, in monotonic nanoseconds; None while nothing waits."""
        resend = self._queue.next_ns()
        ack = next(iter(self._table.owing.values()), None)
        if resend is None or (ack is not None and ack < resend):
            return ack
        return resend

    def inspect(self) -> dict[str, dict[str, Any]]:
        """Every link by its peer, as plain data for people and tests."""
        return {str(peer): link.inspect() for peer, link in self._links.items()}

    # --- restart -----------------------------------------------------------------------------------------

    def _take_over(self, pending: Pending, now_ns: int) -> None:
        encoded, pending.encoded = pending.encoded, b""
        body, pending.body = pending.body, b""
        self._queue.reserve(len(encoded), body)
        self._queue.keep(pending, encoded, body)
        self._queue.arm(pending, now_ns)

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Returns plain values for CBOR: numbers, windows, owed acks, and envelopes that wait.

        Best-effort requests are not among the envelopes: a node that restores asks again.
        """
        return {
            "epoch": self.best_effort_epoch,
            **self._table.snapshot(now_ns),
            "sources": self.sources.save(),
        }

    def restore(
        self,
        data: Mapping[str, Any],
        now_ns: int,
        *,
        bodies: Sequence[bytes] = (),
    ) -> None:
        """Replaces the links by those of a snapshot; call it on a new object only.

        Envelopes that waited are due at once, under their old numbers. Numbers go on where the epoch is the
        same, and begin at 1 where it is a new one. Raises LinksFullError or PendingFullError where the
        snapshot does not fit.
        """
        self._table.restore(data, data["epoch"] == self.best_effort_epoch, now_ns, bodies)
        self.sources.restore(data["sources"])
        for link in self._links.values():
            for pending in link.waiting:
                self._take_over(pending, now_ns)
            if link.received.owes():
                self._owe(link.peer, now_ns)
            self.owe_durable(link.peer, now_ns)
        for peer in self.sources.peers:
            self.owe_durable(peer, now_ns)
