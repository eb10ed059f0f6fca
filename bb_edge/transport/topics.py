"""The federation's names on a broker, and what presence says (semantics §6 "MQTT").

bb/<federation>/<to>/from/<from>       one envelope
bb/<federation>/<to>/chunk/<from>      a part of one that is above the broker's limit (chunks.py)
bb/<federation>/presence/<peer>        retained CBOR {up, epoch, classes, addresses, version, meta}
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError


class TopicError(BBError):
    """A federation name that a topic cannot hold, or a topic that is none of ours."""


class ForeignFederation(TopicError):
    """A topic of another federation: this client's session on the broker still has subscriptions there."""

    def __init__(self, federation: str) -> None:
        super().__init__(
            f"messages of federation {federation!r} arrive and are dropped: the broker keeps a session of"
            " this peer in which it was a member there",
            "broker",
            "give the node a name of its own per federation, or let the broker forget the old session",
        )
        self.federation = federation


class Kind(enum.Enum):
    """What a message on one of our topics is."""

    ENVELOPE = enum.auto()
    CHUNK = enum.auto()
    PRESENCE = enum.auto()


class Names(NamedTuple):
    """Where a peer is written to: topics in UTF-8, and its address as an envelope's observed one."""

    envelope: bytes
    chunk: bytes
    address: bytes


class Place(NamedTuple):
    """What a topic says of its message: kind, and the peer that it comes from or is about."""

    kind: Kind
    peer: PeerId


def check_federation(name: str) -> str:
    """The name, if a topic can hold it: 1 to 64 characters, none of ``/ + # $`` or a control character."""
    if not 1 <= len(name) <= 64 or any(c in "/+#$" or ord(c) < 32 for c in name):
        raise TopicError(f"federation {name!r}", "topic", "1 to 64 characters without / + # $")
    return name


class Topics:
    """Topic names of one peer in one federation. Peer ids are parsed once each; both caches are bounded."""

    def __init__(self, federation: str, own: PeerId, max_peers: int = 4096) -> None:
        self._prefix = f"bb/{check_federation(federation)}/"
        self._own = own.to_text()
        self._max = max_peers
        self._places: dict[bytes, Place] = {}
        self._names: dict[PeerId, Names] = {}
        self.inbox = f"{self._prefix}{self._own}/from/+"
        self.chunks = f"{self._prefix}{self._own}/chunk/+"
        self.presence_of_all = f"{self._prefix}presence/+"
        self.own_presence = f"{self._prefix}presence/{self._own}"
        self._kinds = tuple(
            (name[:-1].encode(), kind)
            for name, kind in (
                (self.inbox, Kind.ENVELOPE),
                (self.chunks, Kind.CHUNK),
                (self.presence_of_all, Kind.PRESENCE),
            )
        )

    def names(self, peer: PeerId) -> Names:
        """Where an envelope for `peer` is published, and the address that it is seen at."""
        found = self._names.get(peer)
        if found is None:
            if len(self._names) >= self._max:
                self._names.clear()
            to = f"{self._prefix}{peer.to_text()}"
            found = self._names[peer] = Names(
                f"{to}/from/{self._own}".encode(),
                f"{to}/chunk/{self._own}".encode(),
                Address.empty().with_peer(peer).to_bytes(),
            )
        return found

    def read(self, topic: bytes) -> Place:
        """What a message is, and whose. TopicError for a topic that is none of ours, or names no peer."""
        place = self._places.get(topic)
        if place is None:
            place = self._parse(topic)
            if len(self._places) >= self._max:
                self._places.clear()
            self._places[topic] = place
        return place

    def _parse(self, topic: bytes) -> Place:
        where = f"topic {topic[:120].decode('utf-8', 'replace')!r}"
        for prefix, kind in self._kinds:
            if topic.startswith(prefix):
                try:
                    return Place(kind, PeerId.from_text(topic[len(prefix) :].decode()))
                except (PeerIdError, UnicodeDecodeError) as error:
                    raise TopicError(getattr(error, "what", "not UTF-8"), where) from error
        parts = topic.split(b"/")
        if len(parts) > 3 and parts[0] == b"bb" and not topic.startswith(self._prefix.encode()):
            raise ForeignFederation(parts[1].decode("utf-8", "replace"))
        raise TopicError("a topic that was not subscribed to", where)
