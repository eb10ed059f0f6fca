"""What a node knows about one peer's envelopes, and the capacities of all such links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire.bodies import Shelved, shelved
from bb_edge.wire.dedup import Received
from bb_edge.wire.envelope_records import REQUEST
from bb_edge.wire.resend import DeliveryError, EnvelopeKey, Pending, Unacknowledged
from bb_edge.wire.round_trip import RoundTrip

MIB = 1024 * 1024
MS = 1_000_000
S = 1_000_000_000


class LinksFullError(DeliveryError):
    """The table of links is full, and on each link something is open."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Capacities and times of all links of a node; each at least 1, `ack_delay_ns` at least 0."""

    # Peers with state at once: as many as the other tables about peers hold.
    max_links: int = 1024
    # Envelopes that wait for their acknowledgement: about ten per link. And their bytes: one model of a few
    # million parameters to some peers at once.
    max_pending: int = 10_000
    pending_bytes: int = 64 * MIB
    # Best-effort epochs of one peer whose numbers are remembered: a peer that restarts twice while its old
    # envelopes are on the way is still recognised.
    best_effort_epochs: int = 3
    # An acknowledgement waits this long for an envelope to go with: long enough for the reply of a fast op,
    # and a fiftieth of the first repetition.
    ack_delay_ns: int = 20 * MS
    # The first repetition comes after more than a round trip over any usable network, and later where round
    # trips to that peer take longer; the time doubles up to the longest, so that a peer that was away for a
    # day hears of it within about a minute.
    resend_ns: int = 1 * S
    resend_longest_ns: int = 64 * S

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value < (0 if spec.name == "ack_delay_ns" else 1):
                raise DeliveryError(
                    f"{spec.name} = {value}",
                    "LinkConfig",
                    f"give at least {0 if spec.name == 'ack_delay_ns' else 1}",
                )


class Link(Unacknowledged):
    """The numbers, windows and waiting envelopes of one peer."""

    __slots__ = (
        "last_seq",
        "peer",
        "peer_epoch",
        "received",
        "spoke",
        "trip",
        "used_ns",
    )

    def __init__(self, peer: PeerId, last_seq: int) -> None:
        super().__init__()
        self.peer = peer
        self.last_seq = last_seq
        self.received = Received()
        self.peer_epoch: int | None = None  # the epoch in which it last came up
        self.used_ns = 0
        self.trip = RoundTrip()  # of this peer's present life
        self.spoke = False  # whether it has acknowledged anything, as far as this process knows

    @property
    def blank(self) -> bool:
        """Whether nothing has gone or come."""
        return not (self.last_seq or self.received or self.spoke or self.waits)

    def idle(self) -> bool:
        """Returns whether nothing is open on either side."""
        return not self.waits and not self.received.owes()

    def measure(self, pending: Pending, now_ns: int) -> None:
        """Takes the round trip of an envelope that is acknowledged now, if it was sent once."""
        took_ns = pending.took_ns(now_ns)
        if took_ns is not None:
            self.trip.measured(took_ns, now_ns - took_ns)

    def inspect(self) -> dict[str, Any]:
        """Returns the link as plain data, for people and tests."""
        return {
            "last_seq": self.last_seq,
            "peer_epoch": self.peer_epoch or 0,
            "round_trip_ns": self.trip.srtt_ns,
            "pending": [
                {"epoch": pending.key.epoch, "seq": pending.key.seq, "next_ns": pending.next_ns}
                for pending in self.waiting
            ],
            **self.received.inspect(),
        }

    # --- snapshot ----------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int) -> list[Any]:
        """Returns plain values for CBOR; deadlines are nanoseconds that remain."""
        return [
            self.peer.to_bytes(),
            self.last_seq,
            self.peer_epoch,
            self.received.snapshot(),
            [_pending_row(pending, now_ns) for pending in self.waiting if _outlives(pending, now_ns)],
        ]

    @classmethod
    def restored(cls, data: Sequence[Any], now_ns: int, bodies: Sequence[bytes] = ()) -> Link:
        """Returns the link of a snapshot; its envelopes are `waiting`, and not yet in any queue.

        `bodies` are those of the snapshot, which rows name by their places.
        """
        link = cls(PeerId.from_bytes(data[0]), data[1])
        link.peer_epoch = data[2]
        link.received = Received.restored(data[3])
        link.used_ns = now_ns
        for epoch, seq, kind, encoded, remaining, interval, body in data[4]:
            expires = now_ns + remaining if remaining else 0
            pending = Pending(EnvelopeKey(link.peer, epoch, seq), kind, expires, interval)
            pending.encoded = encoded
            if body:
                pending.body = body.body if isinstance(body, Shelved) else bodies[body - 1]
            pending.brought_back()
            link.add(pending)
        return link


def _outlives(pending: Pending, now_ns: int) -> bool:
    """Returns whether an envelope is still worth sending after a restart.

    A best-effort request is not: the node that restores asks again, under a new number.
    """
    expired = pending.expires_ns and now_ns >= pending.expires_ns
    return bool(pending.encoded) and not expired and pending.kind != REQUEST


def _pending_row(pending: Pending, now_ns: int) -> list[Any]:
    remaining = pending.expires_ns - now_ns if pending.expires_ns else 0
    key = pending.key
    return [
        key.epoch,
        key.seq,
        pending.kind,
        pending.encoded,
        remaining,
        pending.interval_ns,
        shelved(pending.body),
    ]


class LinkTable:
    """The links by peer, bounded, and which of them owe acknowledgements."""

    __slots__ = ("_config", "_counters", "by_peer", "first_seq", "owing")

    def __init__(self, config: LinkConfig, counters: dict[str, int]) -> None:
        self._config = config
        self._counters = counters
        self.by_peer: dict[PeerId, Link] = {}
        # When acks go alone, by peer. One delay for all: the order of insertion is that of time.
        self.owing: dict[PeerId, int] = {}
        # The numbers of a forgotten link must not come again in the same epoch: new links count on from the
        # highest number of any.
        self.first_seq = 0

    def has_room(self) -> bool:
        """Returns whether a peer without a link could get one."""
        return len(self.by_peer) < self._config.max_links or self._victim() is not None

    def expect(self, peer: PeerId) -> None:
        """Makes a link for a peer that came up, as long as there are links that nobody has.

        Whoever is up will be talked to as a rule, and the memory for that is not to be found by the first
        round.
        """
        if peer not in self.by_peer and len(self.by_peer) < self._config.max_links:
            self.by_peer[peer] = Link(peer, self.first_seq)

    def new(self, peer: PeerId) -> Link | None:
        """Returns a new link for a peer that has none; None where all links are in use.

        In a full table the idle link that was used least recently is forgotten.
        """
        if len(self.by_peer) >= self._config.max_links:
            victim = self._victim()
            if victim is None:
                return None
            del self.by_peer[victim.peer]
            self.first_seq = max(self.first_seq, victim.last_seq)
            self._counters["links_forgotten"] += not victim.blank
        link = self.by_peer[peer] = Link(peer, self.first_seq)
        return link

    def _victim(self) -> Link | None:
        """Returns the idle link that was used least recently; nothing is owed to its peer."""
        idle = [link for link in self.by_peer.values() if link.idle() and link.peer not in self.owing]
        return min(idle, key=lambda link: link.used_ns) if idle else None

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Returns plain values for CBOR; `restore` takes them."""
        links = [link.snapshot(now_ns) for link in self.by_peer.values() if not link.blank]
        return {"first": self.first_seq, "links": links}

    def restore(self, data: Mapping[str, Any], same_run: bool, now_ns: int, bodies: Sequence[bytes]) -> None:
        """Fills a new table with the links of a snapshot; `bodies` as in `Link.restored`.

        Numbers go on in the `same_run`, and begin at 1 in another. LinksFullError where they do not fit.
        """
        rows = data["links"]
        if len(rows) > self._config.max_links:
            raise LinksFullError(
                f"{len(rows)} links in the snapshot, {self._config.max_links} fit",
                "restore",
                "raise limits.max_peers",
            )
        self.first_seq = data["first"] if same_run else 0
        for row in rows:
            link = Link.restored(row, now_ns, bodies)
            link.last_seq = link.last_seq if same_run else 0
            self.by_peer[link.peer] = link

    def full_error(self, peer: PeerId) -> LinksFullError:
        """Returns the error for a peer that finds the table full."""
        return LinksFullError(
            f"{len(self.by_peer)} peers have something open", f"peer {peer}", "raise limits.max_peers"
        )
