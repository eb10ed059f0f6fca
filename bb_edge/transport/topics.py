"""The topics of a federation on a broker.

bb/<federation>/<to>/from/<from>       one envelope
bb/<federation>/<to>/chunk/<from>      a part of an envelope above the broker's limit (chunks.py)
bb/<federation>/presence/<class>/<peer>   retained CBOR, what a peer says of itself (wire/presence.py)
bb/<federation>/rollcall/<class>       asks the peers of a class to say their presence again (rollcall.py)
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bb_edge.ir.address import Address
from bb_edge.ir.class_names import ENVELOPE_LEVELS, is_class_name
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError


class TopicError(BBError):
    """A federation's name cannot be part of a topic, or a topic is not one of ours."""


class UnknownTopic(TopicError):
    """A topic of none of the kinds that a node subscribes to."""


class Kind(enum.Enum):
    """The kind of a message, by its topic."""

    ENVELOPE = enum.auto()
    CHUNK = enum.auto()
    PRESENCE = enum.auto()
    ROLL_CALL = enum.auto()


class Names(NamedTuple):
    """The topics to a peer, in UTF-8, and its address in the form that envelopes carry."""

    envelope: bytes
    chunk: bytes
    address: bytes


class Place(NamedTuple):
    """What a topic says about its message: its kind, and the peer that sent it or that it is about.

    `peer_class` is that of a presence or a call; nobody says who calls, and `peer` is the one that is called.
    """

    kind: Kind
    peer: PeerId
    peer_class: str = ""


def check_federation(name: str) -> str:
    """Returns the name of a federation. Raises TopicError for one that a topic cannot hold.

    A name has 1 to 64 characters, without ``/ + # $`` and control characters, and no blank at an end.
    """
    if name != name.strip():
        hint = f"write {name.strip()!r}: with another name, a node is alone"
        raise TopicError(f"federation {name!r} has a blank at an end", "topic", hint)
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
        self._own_id = own
        self._max = max_peers
        self._places: dict[bytes, Place] = {}
        self._names: dict[PeerId, Names] = {}
        self.inbox = f"{self._prefix}{self._own}/from/+"
        self.chunks = f"{self._prefix}{self._own}/chunk/+"
        self.own_presences = f"{self._prefix}presence/+/{self._own}"
        self._kinds = (
            (self.inbox[:-1].encode(), Kind.ENVELOPE),
            (self.chunks[:-1].encode(), Kind.CHUNK),
            (f"{self._prefix}presence/".encode(), Kind.PRESENCE),
        )

    def roll_call(self, peer_class: str) -> str:
        """The topic under which the peers of a class are called."""
        return f"{self._prefix}rollcall/{peer_class}"

    def presence(self, peer_class: str, peer: PeerId | None = None) -> str:
        """The topic of a peer's presence in a class; without a peer, a filter for all peers of the class."""
        return f"{self._prefix}presence/{peer_class}/{'+' if peer is None else peer.to_text()}"

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

    def meet(self, peer: PeerId) -> None:
        """Keeps the topics of a peer that has come up, so that the first round with it need not find room."""
        own = f"{self._prefix}{self._own}/from/{peer.to_text()}".encode()
        if len(self._names) < self._max and len(self._places) < self._max:
            self.names(peer)
            self._places.setdefault(own, Place(Kind.ENVELOPE, peer, ""))

    def read(self, topic: bytes) -> Place:
        """Reads a topic. Raises TopicError for one that names no peer, UnknownTopic for one of no kind."""
        place = self._places.get(topic)
        if place is None:
            place = self._parse(topic)
            if len(self._places) >= self._max:
                self._places.clear()
            self._places[topic] = place
        return place

    def _parse(self, topic: bytes) -> Place:
        where = f"topic {topic[:120].decode('utf-8', 'replace')!r}"
        calls = self.roll_call("").encode()
        if topic.startswith(calls) and is_class_name(
            called := topic[len(calls) :].decode("utf-8", "replace")
        ):
            return Place(Kind.ROLL_CALL, self._own_id, called)
        for prefix, kind in self._kinds:
            if topic.startswith(prefix):
                try:
                    name, _, peer = topic[len(prefix) :].decode().rpartition("/")
                    place = Place(kind, PeerId.from_text(peer), name)
                except (PeerIdError, UnicodeDecodeError) as error:
                    raise TopicError(getattr(error, "what", "not UTF-8"), where) from error
                if is_class_name(name) if kind is Kind.PRESENCE else not name:
                    return place
                if name in ENVELOPE_LEVELS:  # access rules let everybody write it: it is nobody's presence
                    raise TopicError(f"{name!r} is not a class", where)
        raise UnknownTopic("a topic that this node has not subscribed to", where)

    @staticmethod
    def filters_of(topic: bytes) -> tuple[str, ...]:
        """The filters under which another life of this client can have subscribed to a topic.

        Those that this runtime and earlier ones use, and the topic itself.
        """
        text = topic.decode("utf-8", "replace")
        match text.split("/"):
            case ["bb", federation, "presence", _]:
                return f"bb/{federation}/presence/+", text
            case ["bb", federation, "presence", peer_class, peer]:
                each = f"bb/{federation}/presence"
                return f"{each}/{peer_class}/+", f"{each}/+/{peer}", f"{each}/+/+", text
            case ["bb", federation, to, "from" | "chunk", _]:
                return f"bb/{federation}/{to}/from/+", f"bb/{federation}/{to}/chunk/+", text
            case ["bb", federation, "rollcall", _]:
                return f"bb/{federation}/rollcall/+", text
        return (text,)
