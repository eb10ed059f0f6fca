"""The federation's names on a broker, and what presence says (semantics §6 "MQTT").

bb/<federation>/<to>/from/<from>       one envelope
bb/<federation>/presence/<peer>        retained CBOR {up, epoch, classes, addresses, version, meta}
"""

from __future__ import annotations

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError


class TopicError(BBError):
    """A federation name that a topic cannot hold, or a topic that is none of ours."""


def check_federation(name: str) -> str:
    """The name, if a topic can hold it: 1 to 64 characters, none of ``/ + #`` or a control character."""
    if not 1 <= len(name) <= 64 or any(c in "/+#$" or ord(c) < 32 for c in name):
        raise TopicError(f"federation {name!r}", "topic", "1 to 64 characters without / + # $")
    return name


class Topics:
    """Topic names of one peer in one federation. Peer ids are parsed once each; the cache is bounded."""

    def __init__(self, federation: str, own: PeerId, max_peers: int = 4096) -> None:
        self._prefix = f"bb/{check_federation(federation)}/"
        self._own = own.to_text()
        self._max = max_peers
        self._peers: dict[str, PeerId] = {}
        self._to: dict[PeerId, str] = {}
        self.inbox = f"{self._prefix}{self._own}/from/+"
        self.presence_of_all = f"{self._prefix}presence/+"
        self.own_presence = f"{self._prefix}presence/{self._own}"
        self._inbox_prefix = self.inbox[:-1]
        self._presence_prefix = self.presence_of_all[:-1]

    def to(self, peer: PeerId) -> str:
        """Where an envelope for `peer` is published."""
        topic = self._to.get(peer)
        if topic is None:
            if len(self._to) >= self._max:
                self._to.clear()
            topic = self._to[peer] = f"{self._prefix}{peer.to_text()}/from/{self._own}"
        return topic

    def sender(self, topic: str) -> PeerId | None:
        """Who published to our inbox; None for another topic. TopicError for a name that is no peer id."""
        return self._peer(topic, self._inbox_prefix)

    def presence(self, topic: str) -> PeerId | None:
        """Whose presence a topic is; None where it is no presence. TopicError as above."""
        return self._peer(topic, self._presence_prefix)

    def _peer(self, topic: str, prefix: str) -> PeerId | None:
        if not topic.startswith(prefix):
            return None
        text = topic[len(prefix) :]
        peer = self._peers.get(text)
        if peer is None:
            try:
                peer = PeerId.from_text(text)
            except PeerIdError as error:
                raise TopicError(error.what, f"topic {topic[:120]!r}") from error
            if len(self._peers) >= self._max:
                self._peers.clear()
            self._peers[text] = peer
        return peer
