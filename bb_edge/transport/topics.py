"""The topics of a federation on a broker.

bb/<federation>/<to>/from/<from>       one envelope
bb/<federation>/<to>/chunk/<from>      a part of an envelope above the broker's limit (chunks.py)
bb/<federation>/presence/<peer>        retained CBOR {up, epoch, classes, addresses, version, meta}
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError


class TopicError(BBError):
    """A federation's name cannot be part of a topic, or a topic is not one of ours."""


class ForeignFederation(TopicError):
    """A topic is of another federation, which the client's session on the broker still subscribes to."""

    def __init__(self, federation: str) -> None:
        super().__init__(
            f"messages of federation {federation!r} arrive and are dropped: the broker keeps a session of"
            " this peer in which it was a member there",
            "broker",
            "give the node a name of its own per federation, or let the broker forget the old session",
        )
        self.federation = federation


class Kind(enum.Enum):
    """The kind of a message, by its topic."""

    ENVELOPE = enum.auto()
    CHUNK = enum.auto()
    PRESENCE = enum.auto()


class Names(NamedTuple):
    """The topics to a peer, in UTF-8, and its address in the form that envelopes carry."""

    envelope: bytes
    chunk: bytes
    address: bytes


class Place(NamedTuple):
    """What a topic says about its message: its kind, and the peer that sent it or that it is about."""

    kind: Kind
    peer: PeerId


def check_federation(name: str) -> str:
    """Returns the name of a federation. Raises TopicError for one that a topic cannot hold.

    A name has 1 to 64 characters, without ``/ + # $`` and control characters.
    """
    if not 1 <= len(name) <= 64 or any(c in "/+#$" or ord(c) < 32 for c in name):
        raise TopicError(
            f"federation {name!r} cannot be part of a topic", "topic", "1 to 64 characters without / + # $"
        )
    return name


class Topics:
    """The topics of one peer in one federation.

    Each peer id is parsed once; `max_peers` bounds both caches; the default is four times the peers that an
    engine keeps, and costs a megabyte or two when full.
    """

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
        """The topics for `peer`, and its address as the receiver of its envelopes sees it."""
        names = self._names.get(peer)
        if names is None:
            if len(self._names) >= self._max:
                self._names.clear()
            to = f"{self._prefix}{peer.to_text()}"
            names = self._names[peer] = Names(
                f"{to}/from/{self._own}".encode(),
                f"{to}/chunk/{self._own}".encode(),
                Address.empty().with_peer(peer).to_bytes(),
            )
        return names

    def read(self, topic: bytes) -> Place:
        """Reads a topic. Raises TopicError for one that is not ours or names no peer.

        ForeignFederation, a TopicError, is raised for a topic of another federation.
        """
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
        raise TopicError("a topic that this node has not subscribed to", where)
