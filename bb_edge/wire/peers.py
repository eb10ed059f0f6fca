"""Which peers are there, by what their presence says and by whether they answer.

Presence comes from the transport: up with an epoch, classes and addresses, or down. A *will* (down, published
by the broker in a peer's name) counts only for the epoch in which it was left with the broker: it may arrive
late, when the peer is up again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.transitions import Table
from bb_edge.wire import cbor

MAX_CLASSES = 16
"""Peer classes of one node: a node serves one target per class, and programs have a handful."""
MAX_ADDRESSES = 8
"""Addresses of one node, as many as the address book holds per peer by default."""
MAX_META = 64
"""Entries of `meta`; the runtime itself uses one, the rest is the host's."""
MAX_TEXT = 256
"""Letters of a class name, bytes of an address: as many as an envelope may carry of one address."""
PRESENCE_VERSION = 1


class PresenceError(BBError):
    """Bytes that are not a presence, or one beyond the bounds; the fault is the peer's."""


class PeersFullError(BBError):
    """The table is full, and every peer in it is up."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What a peer publishes about itself.

    `epoch` is a number that the peer draws at each start, None where the transport has no such number.
    `classes` are the peer classes that it serves, `addresses` the ways to reach it, as bytes.
    """

    up: bool
    epoch: int | None = None
    classes: tuple[str, ...] = ()
    addresses: tuple[bytes, ...] = ()
    meta: Mapping[str, object] = field(default_factory=dict)
    version: int = PRESENCE_VERSION


class PresenceChange(enum.Enum):
    """What a presence changed."""

    NONE = "nothing new"
    UP = "came up"
    NEW_EPOCH = "was started anew while it counted as up"
    CHANGED = "other classes, addresses or metadata"
    DOWN = "went down"
    STALE = "a will of an earlier epoch; ignored"


class PeerState(enum.IntEnum):
    """What a node believes about a peer."""

    UNKNOWN = 0
    UP = 1
    SILENT = 2
    """Its presence says up, and it does not answer."""
    DOWN = 3


class PeerEvent(enum.IntEnum):
    """What changes a node's belief."""

    CAME = 0
    """Its presence says up."""
    WENT = 1
    """Its presence, or a will of its current epoch, says down."""
    FELL_SILENT = 2
    ANSWERED = 3
    DISPLACED = 4
    """Another peer needs its place in the table."""


_UNKNOWN, _UP, _SILENT, _DOWN = PeerState.UNKNOWN, PeerState.UP, PeerState.SILENT, PeerState.DOWN

PRESENCE: Final = Table(
    "peer presence",
    _UNKNOWN,
    {
        (_UNKNOWN, PeerEvent.CAME): _UP,
        (_UNKNOWN, PeerEvent.WENT): _UNKNOWN,  # nobody counted on it: nothing is remembered
        (_UNKNOWN, PeerEvent.FELL_SILENT): _UNKNOWN,
        (_UNKNOWN, PeerEvent.ANSWERED): _UNKNOWN,
        (_UP, PeerEvent.CAME): _UP,
        (_UP, PeerEvent.WENT): _DOWN,
        (_UP, PeerEvent.FELL_SILENT): _SILENT,
        (_UP, PeerEvent.ANSWERED): _UP,
        (_SILENT, PeerEvent.CAME): _UP,  # a peer that says it is up deserves another try
        (_SILENT, PeerEvent.WENT): _DOWN,
        (_SILENT, PeerEvent.FELL_SILENT): _SILENT,
        (_SILENT, PeerEvent.ANSWERED): _UP,
        (_DOWN, PeerEvent.CAME): _UP,
        (_DOWN, PeerEvent.WENT): _DOWN,
        (_DOWN, PeerEvent.FELL_SILENT): _DOWN,
        (_DOWN, PeerEvent.ANSWERED): _DOWN,  # only its presence brings it up
        (_DOWN, PeerEvent.DISPLACED): _UNKNOWN,
    },
)


def encode_presence(presence: Presence) -> bytes:
    """Returns a presence as canonical CBOR `{up, epoch, classes, addresses, version, meta}`.

    Raises CborError for metadata that is not plain.
    """
    return cbor.dumps(
        {
            "up": presence.up,
            "epoch": presence.epoch or 0,
            "classes": presence.classes,
            "addresses": presence.addresses,
            "version": presence.version,
            "meta": presence.meta,
        }
    )


def decode_presence(data: bytes | memoryview) -> Presence:
    """Reads a presence of any version; fields that are missing have their defaults.

    Raises PresenceError and nothing else, whatever the bytes are.
    """
    try:
        # All lists and `meta` at their bounds are below 256 items; values in `meta` may have as many again.
        fields = cbor.loads(data, max_items=512, max_depth=4)
    except cbor.CborError as error:
        raise PresenceError(error.what, "presence") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("up"), bool):
        raise PresenceError("expected a map with a boolean `up`", "presence")
    epoch, version = fields.get("epoch", 0), fields.get("version", PRESENCE_VERSION)
    meta = fields.get("meta", {})
    if type(epoch) is not int or type(version) is not int or epoch < 0:
        raise PresenceError("expected unsigned integers as epoch and version", "presence")
    if not isinstance(meta, dict) or len(meta) > MAX_META or not all(isinstance(key, str) for key in meta):
        raise PresenceError(f"expected a map of at most {MAX_META} texts as meta", "presence")
    return Presence(
        fields["up"],
        epoch or None,
        _bounded(fields.get("classes", []), str, MAX_CLASSES, "classes"),
        _bounded(fields.get("addresses", []), bytes, MAX_ADDRESSES, "addresses"),
        meta,
        version,
    )


def _bounded(value: object, kind: type[str] | type[bytes], count: int, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > count:
        raise PresenceError(f"expected a list of at most {count} as {name}", "presence")
    if not all(isinstance(item, kind) and len(item) <= MAX_TEXT for item in value):
        raise PresenceError(
            f"expected {kind.__name__} values of at most {MAX_TEXT} bytes or letters in {name}", "presence"
        )
    return tuple(value)


class PeerTable:
    """What is believed about each peer, and the peers that are up by class.

    Bounded: the peers that are down for longest make room for others.
    """

    __slots__ = ("_by_class", "_capacity", "_down", "_peers", "_silent", "_states", "forgotten")

    def __init__(self, capacity: int = 1024) -> None:
        """`capacity` peers: a federation that one broker on a small board carries."""
        self._capacity = capacity
        self._peers: dict[PeerId, Presence] = {}
        self._states: dict[PeerId, PeerState] = {}  # of the same peers; only `_turn` and `restore` write it
        self._down: dict[PeerId, None] = {}  # the peers in state DOWN, longest first
        self._silent: dict[PeerId, None] = {}  # the peers in state SILENT
        self._by_class: dict[str, tuple[PeerId, ...]] = {}  # answers since the last change
        self.forgotten = 0  # down peers that made room for others

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def get(self, peer: PeerId) -> Presence | None:
        """Returns the peer's last presence; None for a peer without one."""
        return self._peers.get(peer)

    def epoch(self, peer: PeerId) -> int | None:
        """Returns the epoch that the peer was last present in."""
        presence = self._peers.get(peer)
        return None if presence is None else presence.epoch

    def is_up(self, peer: PeerId) -> bool:
        """Returns whether the peer is present, and not known to leave requests without answer."""
        return self._states.get(peer) is _UP

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """Returns the peers that are up and whose presence lists `peer_class`, sorted."""
        peers = self._by_class.get(peer_class)
        if peers is None:
            if len(self._by_class) >= MAX_CLASSES:
                self._by_class.clear()
            peers = tuple(
                sorted(p for p, at in self._peers.items() if peer_class in at.classes and self.is_up(p))
            )
            self._by_class[peer_class] = peers
        return peers

    def up_counts(self) -> tuple[dict[str, int], int]:
        """Returns how many peers are up: by class, and in all."""
        up = [peer for peer, state in self._states.items() if state is _UP]
        counts: dict[str, int] = {}
        for peer in up:
            for name in self._peers[peer].classes:
                counts[name] = counts.get(name, 0) + 1
        return counts, len(up)

    def unreachable(self, peer_class: str) -> list[PeerId]:
        """Returns the peers of the class that are present and do not answer, in no particular order."""
        return [p for p in self._silent if peer_class in self._peers[p].classes]

    def update(self, peer: PeerId, presence: Presence) -> PresenceChange:
        """Takes a presence over and returns what it changed.

        Raises PeersFullError, changing nothing, where a new peer finds only peers that are up.
        """
        before = self._peers.get(peer)
        if not presence.up:
            return self._went_down(peer, before, presence)
        if before is None:
            self._make_room(peer)
        self._peers[peer] = presence
        state = self._turn(peer, PeerEvent.CAME)
        if before is None or state is not _UP:
            return PresenceChange.UP
        if before == presence:
            return PresenceChange.NONE
        self._by_class.clear()
        return PresenceChange.NEW_EPOCH if before.epoch != presence.epoch else PresenceChange.CHANGED

    def _went_down(self, peer: PeerId, before: Presence | None, presence: Presence) -> PresenceChange:
        if (
            before is not None
            and before.epoch != presence.epoch
            and None not in (before.epoch, presence.epoch)
        ):
            return PresenceChange.STALE
        state = self._turn(peer, PeerEvent.WENT)
        if before is not None and before.up:
            self._peers[peer] = Presence(False, before.epoch, before.classes, before.addresses, before.meta)
        # Who fell silent before has been told of as down.
        return PresenceChange.DOWN if state is _UP else PresenceChange.NONE

    def set_reachable(self, peer: PeerId, reachable: bool) -> None:
        """Takes over what the health table found out; a present peer that does not answer is not up."""
        self._turn(peer, PeerEvent.ANSWERED if reachable else PeerEvent.FELL_SILENT)

    def _turn(self, peer: PeerId, event: PeerEvent) -> PeerState:
        """Moves a peer to the state that the table gives; returns the one before."""
        before = self._states.get(peer, _UNKNOWN)
        after = PRESENCE.rows[before, event]
        if after is not before:
            self._by_class.clear()
            self._down.pop(peer, None)
            self._silent.pop(peer, None)
            if after is _UNKNOWN:
                del self._states[peer], self._peers[peer]
            else:
                self._enter(peer, after)
        return before

    def _enter(self, peer: PeerId, state: PeerState) -> None:
        self._states[peer] = state
        if state is _DOWN:
            self._down[peer] = None
        elif state is _SILENT:
            self._silent[peer] = None

    def _make_room(self, peer: PeerId) -> None:
        if len(self._peers) < self._capacity:
            return
        victim = next(iter(self._down), None)
        if victim is None:
            raise PeersFullError(
                f"{self._capacity} peers are up already", f"peer {peer}", "raise NodeConfig.max_peers"
            )
        self._turn(victim, PeerEvent.DISPLACED)
        self.forgotten += 1

    def snapshot(self) -> list[list[Any]]:
        """Returns [peer, presence as CBOR, whether it answers] rows."""
        return [
            [peer.to_bytes(), encode_presence(presence), self._states[peer] is not _SILENT]
            for peer, presence in self._peers.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]]) -> None:
        """Replaces the table by what `snapshot` returned; the latest `capacity` rows stay."""
        self._peers, self._states, self._down, self._silent = {}, {}, {}, {}
        self._by_class.clear()
        for raw, encoded, reachable in data[-self._capacity :]:
            peer = PeerId.from_bytes(raw)
            self._peers[peer] = presence = decode_presence(encoded)
            self._enter(peer, _DOWN if not presence.up else _UP if reachable else _SILENT)
