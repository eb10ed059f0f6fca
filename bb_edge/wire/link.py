"""What a node knows of a peer's envelopes, and the capacities of all such links (semantics §6 "Once")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from bb_edge.ir.ids import PeerId
from bb_edge.wire import dedup
from bb_edge.wire.dedup import BestEffortWindow, DurableWindow
from bb_edge.wire.envelope_records import REQUEST, Ack
from bb_edge.wire.resend import DeliveryError, EnvelopeKey, Pending

MIB = 1024 * 1024
MS = 1_000_000
S = 1_000_000_000


class LinksFullError(DeliveryError):
    """As many peers have something open as there may be links."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Capacities and times of all links of a node; each at least 1, but `ack_delay_ns` at least 0."""

    # Peers with state at once.
    max_links: int = 1024
    # Envelopes that wait for their acknowledgement, and their bytes.
    max_pending: int = 10_000
    pending_bytes: int = 64 * MIB
    # Durable envelopes that one peer may leave unacknowledged; a receiver's window is DURABLE_UNACKNOWLEDGED
    # wide.
    durable_unacknowledged: int = dedup.DURABLE_UNACKNOWLEDGED
    # Best-effort epochs of one peer whose numbers are remembered.
    best_effort_epochs: int = 3
    # Durable epochs of one peer. Two, so that a straggler of an outbox that was replaced is still told apart.
    durable_epochs: int = 2
    # An acknowledgement waits this long for an envelope to ride on.
    ack_delay_ns: int = 20 * MS
    # First repetition; doubles up to the longest, so that a peer that was away for a day is not left for
    # another.
    resend_ns: int = 1 * S
    resend_longest_ns: int = 64 * S

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value < (0 if spec.name == "ack_delay_ns" else 1):
                raise DeliveryError(f"{spec.name} = {value}", "LinkConfig", "it is too small")
        if self.durable_unacknowledged > dedup.DURABLE_UNACKNOWLEDGED:
            raise DeliveryError(
                f"durable_unacknowledged = {self.durable_unacknowledged}",
                "LinkConfig",
                f"receivers accept {dedup.DURABLE_UNACKNOWLEDGED}",
            )


class Link:
    """What is known about one peer."""

    __slots__ = (
        "best_effort",
        "durable",
        "last_durable",
        "last_seq",
        "peer",
        "peer_epoch",
        "pending",
        "used_ns",
    )

    def __init__(self, peer: PeerId, last_seq: int, last_durable: int) -> None:
        self.peer = peer
        self.last_seq = last_seq
        self.last_durable = last_durable
        self.pending: dict[int, dict[int, Pending]] = {}  # our epoch -> number, ascending -> envelope
        self.best_effort: dict[int, BestEffortWindow] = {}  # its epochs, the one heard last at the end
        self.durable: dict[int, DurableWindow] = {}
        self.peer_epoch: int | None = None  # that it last came up in
        self.used_ns = 0

    def owes(self) -> bool:
        return any(w.owed for w in self.best_effort.values()) or any(w.owed for w in self.durable.values())

    def idle(self) -> bool:
        """Nothing is open on either side."""
        return not self.pending and not self.owes() and not any(w.held for w in self.durable.values())

    def add_pending(self, pending: Pending) -> None:
        """Keeps the numbers of an epoch ascending: the first is the `base`, and acks go by order."""
        waiting = self.pending.setdefault(pending.key.epoch, {})
        in_order = not waiting or next(reversed(waiting)) < pending.key.seq
        waiting[pending.key.seq] = pending
        if not in_order:
            self.pending[pending.key.epoch] = dict(sorted(waiting.items()))

    def best_effort_window(self, epoch: int, epochs: int) -> BestEffortWindow:
        """The window of an epoch, made where there is none; the epoch heard least recently makes room."""
        windows = self.best_effort
        window = windows.get(epoch)
        if window is None:
            if len(windows) >= epochs:
                del windows[next(iter(windows))]
            window = windows[epoch] = BestEffortWindow(epoch)
        elif len(windows) > 1 and next(reversed(windows)) != epoch:
            windows[epoch] = windows.pop(epoch)
        return window

    def durable_window(self, epoch: int, ahead: int, epochs: int) -> DurableWindow | None:
        """The same for a durable epoch; None for a first number too far ahead of its base."""
        windows = self.durable
        window = windows.pop(epoch, None)
        if window is None:
            if ahead >= dedup.DURABLE_UNACKNOWLEDGED:
                return None
            if len(windows) >= epochs:
                del windows[next(iter(windows))]
            window = DurableWindow(epoch)
        windows[epoch] = window
        return window

    def inspect(self) -> dict[str, Any]:
        """The link as plain data, for people and tests."""
        windows = {**self.best_effort, **self.durable}
        return {
            "last_seq": self.last_seq,
            "last_durable": self.last_durable,
            "peer_epoch": self.peer_epoch or 0,
            "pending": [
                {"epoch": epoch, "seq": seq, "durable": pending.durable, "next_ns": pending.next_ns}
                for epoch, waiting in self.pending.items()
                for seq, pending in waiting.items()
            ],
            "owes": sorted(epoch for epoch, window in windows.items() if window.owed),
            "held": {epoch: sorted(window.held) for epoch, window in self.durable.items() if window.held},
        }

    # --- snapshot ----------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int) -> list[Any]:
        """Plain values for CBOR; times as what remains of them."""
        return [
            self.peer.to_bytes(),
            self.last_seq,
            self.last_durable,
            self.peer_epoch,
            [window.snapshot() for window in self.best_effort.values()],
            [window.snapshot() for window in self.durable.values()],
            [
                _pending_row(pending, now_ns)
                for waiting in self.pending.values()
                for pending in waiting.values()
                if _outlives(pending, now_ns)
            ],
        ]

    @classmethod
    def restored(cls, data: Sequence[Any], now_ns: int) -> Link:
        """The link of a snapshot; its envelopes are in `pending`, not yet in any queue."""
        link = cls(PeerId.from_bytes(data[0]), data[1], data[2])
        link.peer_epoch = data[3]
        link.best_effort = {row[0]: BestEffortWindow.restored(row) for row in data[4]}
        link.durable = {row[0]: DurableWindow.restored(row) for row in data[5]}
        link.used_ns = now_ns
        for epoch, seq, kind, durable, encoded, remaining, interval in data[6]:
            expires = now_ns + remaining if remaining else 0
            pending = Pending(EnvelopeKey(link.peer, epoch, seq), kind, durable, expires, interval)
            pending.encoded = encoded
            pending.handed_out = False
            link.add_pending(pending)
        return link


def _outlives(pending: Pending, now_ns: int) -> bool:
    """Whether an envelope is still worth sending after a restart.

    A best-effort request is not: the node that restores asks again, under a new number.
    """
    expired = pending.expires_ns and now_ns >= pending.expires_ns
    return bool(pending.encoded) and not expired and (pending.durable or pending.kind != REQUEST)


def _pending_row(pending: Pending, now_ns: int) -> list[Any]:
    remaining = pending.expires_ns - now_ns if pending.expires_ns else 0
    key = pending.key
    return [
        key.epoch,
        key.seq,
        pending.kind,
        pending.durable,
        pending.encoded,
        remaining,
        pending.interval_ns,
    ]


class LinkTable:
    """The links by peer, bounded, and which of them owe acknowledgements."""

    __slots__ = ("_config", "_counters", "by_peer", "first_durable", "first_seq", "owing")

    def __init__(self, config: LinkConfig, counters: dict[str, int]) -> None:
        self._config = config
        self._counters = counters
        self.by_peer: dict[PeerId, Link] = {}
        # When acks go alone, by peer. One delay for all: the order of insertion is that of time.
        self.owing: dict[PeerId, int] = {}
        # The numbers of a forgotten link must not come again in the same epoch: new links count on from the
        # highest.
        self.first_seq = 0
        self.first_durable = 0

    def has_room(self) -> bool:
        return len(self.by_peer) < self._config.max_links or self._victim() is not None

    def new(self, peer: PeerId) -> Link | None:
        """A link for a peer that has none; an idle one makes room. None where there is no room."""
        if len(self.by_peer) >= self._config.max_links:
            victim = self._victim()
            if victim is None:
                return None
            del self.by_peer[victim.peer]
            self.owing.pop(victim.peer, None)
            self.first_seq = max(self.first_seq, victim.last_seq)
            self.first_durable = max(self.first_durable, victim.last_durable)
            self._counters["links_forgotten"] += 1
        link = self.by_peer[peer] = Link(peer, self.first_seq, self.first_durable)
        return link

    def _victim(self) -> Link | None:
        """The idle link that was used least recently."""
        idle = [link for link in self.by_peer.values() if link.idle()]
        return min(idle, key=lambda link: link.used_ns) if idle else None

    def full_error(self, peer: PeerId) -> LinksFullError:
        return LinksFullError(
            f"{len(self.by_peer)} peers have something open", f"peer {peer}", "raise LinkConfig.max_links"
        )

    def owe(self, link: Link, window: BestEffortWindow | DurableWindow, seq: int, now_ns: int) -> None:
        """An acknowledgement that rides along, or goes alone after the delay."""
        self._counters["acks_forgotten"] += window.owe(seq)
        if window.owed:
            self.owing.setdefault(link.peer, now_ns + self._config.ack_delay_ns)

    def collect(self, link: Link) -> list[Ack]:
        """The acks that are owed to the peer; what does not fit into one each stays owed."""
        found = []
        more = False
        for windows in (link.durable, link.best_effort):
            for window in windows.values():
                if window.owed:
                    found.append(Ack(window.epoch, *window.collect()))
                    more = more or bool(window.owed)
        if not more:
            self.owing.pop(link.peer, None)
        return found
