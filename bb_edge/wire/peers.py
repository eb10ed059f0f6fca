"""Who is there (semantics §6 "MQTT", "Gates"; §8 PeerSelector): the presence of peers.

Presence comes from the transport: up with an epoch, classes and addresses, or down. A *will* (down, said by
the broker in a peer's name) counts for the epoch that it was left in only: it may come late, when the peer is
up again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor

MAX_CLASSES = 16
MAX_ADDRESSES = 8
MAX_META = 64
MAX_TEXT = 256
PRESENCE_VERSION = 1


class PresenceError(BBError):
    """Bytes that are no presence, or one beyond the bounds; the fault is the peer's."""


class PeersFullError(BBError):
    """As many peers are up as the table holds."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What a peer says of itself.

    `epoch` is its incarnation, None where the transport has no notion of it.
    """

    up: bool
    epoch: int | None = None
    classes: tuple[str, ...] = ()
    addresses: tuple[bytes, ...] = ()
    meta: Mapping[str, object] = field(default_factory=dict)
    version: int = PRESENCE_VERSION


class PresenceChange(enum.Enum):
    """What news a presence was."""

    NONE = "nothing new"
    UP = "came up"
    NEW_EPOCH = "was started anew while it counted as up"
    CHANGED = "other classes, addresses or metadata"
    DOWN = "went down"
    STALE = "a will of an earlier epoch; ignored"


def encode_presence(presence: Presence) -> bytes:
    """Canonical CBOR `{up, epoch, classes, addresses, version, meta}`.

    CborError for metadata that is not plain.
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

    PresenceError and nothing else.
    """
    try:
        found = cbor.loads(data, max_items=512, max_depth=4)
    except cbor.CborError as error:
        raise PresenceError(error.what, "presence") from error
    if not isinstance(found, dict) or not isinstance(found.get("up"), bool):
        raise PresenceError("no map with a boolean `up`", "presence")
    epoch, version = found.get("epoch", 0), found.get("version", PRESENCE_VERSION)
    meta = found.get("meta", {})
    if type(epoch) is not int or type(version) is not int or epoch < 0:
        raise PresenceError("epoch and version are unsigned integers", "presence")
    if not isinstance(meta, dict) or len(meta) > MAX_META or not all(isinstance(key, str) for key in meta):
        raise PresenceError(f"meta is a map of at most {MAX_META} texts", "presence")
    return Presence(
        found["up"],
        epoch or None,
        _bounded(found.get("classes", []), str, MAX_CLASSES, "classes"),
        _bounded(found.get("addresses", []), bytes, MAX_ADDRESSES, "addresses"),
        meta,
        version,
    )


def _bounded(value: object, kind: type[str] | type[bytes], count: int, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > count:
        raise PresenceError(f"{name} is a list of at most {count}", "presence")
    if not all(isinstance(item, kind) and len(item) <= MAX_TEXT for item in value):
        raise PresenceError(
            f"{name} holds {kind.__name__} values of at most {MAX_TEXT} bytes or letters", "presence"
        )
    return tuple(value)


class PeerTable:
    """Presence of all peers, and the up ones by class. Bounded: those longest down make room for others."""

    __slots__ = ("_by_class", "_capacity", "_down", "_peers", "_unreachable", "forgotten")

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._peers: dict[PeerId, Presence] = {}
        self._down: dict[PeerId, None] = {}  # peers whose presence says down, longest first
        self._unreachable: set[PeerId] = set()  # present, but they do not answer
        self._by_class: dict[str, tuple[PeerId, ...]] = {}  # asked for since the last change
        self.forgotten = 0  # down peers that made room for others

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def get(self, peer: PeerId) -> Presence | None:
        return self._peers.get(peer)

    def epoch(self, peer: PeerId) -> int | None:
        """The epoch that the peer was last present in."""
        presence = self._peers.get(peer)
        return None if presence is None else presence.epoch

    def is_up(self, peer: PeerId) -> bool:
        """Present, and not known to leave us without answer."""
        presence = self._peers.get(peer)
        return presence is not None and presence.up and peer not in self._unreachable

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        """The peers that are up and whose presence lists `peer_class`, sorted."""
        found = self._by_class.get(peer_class)
        if found is None:
            if len(self._by_class) >= MAX_CLASSES:
                self._by_class.clear()
            found = tuple(
                sorted(p for p, at in self._peers.items() if peer_class in at.classes and self.is_up(p))
            )
            self._by_class[peer_class] = found
        return found

    def unreachable(self, peer_class: str) -> list[PeerId]:
        """The peers of the class that are present and do not answer, in no particular order."""
        return [p for p in self._unreachable if peer_class in self._peers[p].classes]

    def update(self, peer: PeerId, presence: Presence) -> PresenceChange:
        """Takes a presence over and says what news it was.

        Raises PeersFullError, changing nothing, where a new peer finds only peers that are up.
        """
        before = self._peers.get(peer)
        if not presence.up:
            return self._went_down(peer, before, presence)
        if before is None:
            self._make_room(peer)
        self._peers[peer] = presence
        self._down.pop(peer, None)
        # A peer that says it is up deserves another try.
        was_up = before is not None and before.up and peer not in self._unreachable
        self._unreachable.discard(peer)
        if before is None or not was_up:
            change = PresenceChange.UP
        elif before.epoch != presence.epoch:
            change = PresenceChange.NEW_EPOCH
        elif before != presence:
            change = PresenceChange.CHANGED
        else:
            return PresenceChange.NONE
        self._by_class.clear()
        return change

    def _went_down(self, peer: PeerId, before: Presence | None, presence: Presence) -> PresenceChange:
        if before is None:
            return PresenceChange.NONE  # nobody counted on it: nothing is kept
        if presence.epoch is not None and before.epoch is not None and presence.epoch != before.epoch:
            return PresenceChange.STALE
        if not before.up:
            return PresenceChange.NONE
        reachable = peer not in self._unreachable
        self._unreachable.discard(peer)
        self._peers[peer] = Presence(False, before.epoch, before.classes, before.addresses, before.meta)
        self._down[peer] = None
        self._by_class.clear()
        return PresenceChange.DOWN if reachable else PresenceChange.NONE

    def set_reachable(self, peer: PeerId, reachable: bool) -> None:
        """What the health table found out; a present peer that does not answer is not up."""
        if peer in self._peers and (peer in self._unreachable) == reachable:
            (self._unreachable.discard if reachable else self._unreachable.add)(peer)
            self._by_class.clear()

    def _make_room(self, peer: PeerId) -> None:
        if len(self._peers) < self._capacity:
            return
        victim = next(iter(self._down), None)
        if victim is None:
            raise PeersFullError(
                f"{self._capacity} peers are up already", f"peer {peer}", "raise NodeConfig.max_peers"
            )
        del self._down[victim], self._peers[victim]
        self.forgotten += 1

    def snapshot(self) -> list[list[Any]]:
        """[peer, presence as CBOR, reachable] rows."""
        return [
            [peer.to_bytes(), encode_presence(presence), peer not in self._unreachable]
            for peer, presence in self._peers.items()
        ]

    def restore(self, data: Sequence[Sequence[Any]]) -> None:
        """Replaces the table; the latest `capacity` rows are kept."""
        self._peers, self._down, self._unreachable = {}, {}, set()
        self._by_class.clear()
        for raw, encoded, reachable in data[-self._capacity :]:
            peer = PeerId.from_bytes(raw)
            self._peers[peer] = presence = decode_presence(encoded)
            if not presence.up:
                self._down[peer] = None
            if not reachable:
                self._unreachable.add(peer)
