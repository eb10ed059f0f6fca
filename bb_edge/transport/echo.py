"""Tells whether the broker hands on what is sent to this node, by a small message from the node to itself.

A broker need not say that its access rules keep a client from its own inbox: mosquitto grants every
subscription, and filters what comes in silence. The node then looks healthy, sends, and hears nobody. So
where nothing has come for some seconds behind a connection, a node sends itself an empty envelope, and one as
a chunk where its program gets envelopes that are cut; where that is not back in time, the log names the rule
to look at. No IO.
"""

from __future__ import annotations

from collections.abc import Callable

from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import Log
from bb_edge.transport.chunks import cut
from bb_edge.transport.topics import Kind, Place, Topics
from bb_edge.wire.envelope import Envelope, encode

QUIET_S = 5.0
"""Seconds behind a connection after which a node to which nothing came sends itself something: in a fleet
that starts most get marks, requests or answers by then."""
WAIT_S = (10.0, 600.0)
"""Seconds until what is not back is told and sent again, doubling up to the longest."""
_WHAT = {
    Kind.ENVELOPE: ("envelopes", "from"),
    Kind.CHUNK: ("large envelopes, which come in chunks,", "chunk"),
}


def to_itself(peer: PeerId) -> bytes:
    """An envelope from a peer to itself, in which a node finds nothing."""
    return encode(Envelope(src_peer=peer.to_bytes()))


def in_one_chunk(envelope: bytes) -> bytes:
    """The envelope as the only chunk of a transfer."""
    return b"".join(
        bytes(part) for chunk in cut(envelope, len(envelope), 0) for part in (chunk.head, chunk.data)
    )


class Echo:
    """What a node sends itself, and what of it has come. All times are monotonic seconds."""

    def __init__(
        self, topics: Topics, peer: PeerId, where: str, send: Callable[[bytes, bytes], object], log: Log
    ) -> None:
        """`send(topic, payload)` publishes for this connection alone; `where` names federation and broker."""
        names, empty = topics.names(peer), to_itself(peer)
        self._sent = {Kind.ENVELOPE: (names.envelope, empty), Kind.CHUNK: (names.chunk, in_one_chunk(empty))}
        self._peer = peer
        self._filters = {Kind.ENVELOPE: topics.inbox, Kind.CHUNK: topics.chunks}
        self._where = where
        self._send = send
        self._log = log
        self._told: set[Kind] = set()  # ways of which the log says that nothing comes
        self._at = self._wait_s = 0.0
        self.awaited: set[Kind] = set()
        """The ways by which nothing has come in this connection."""

    @property
    def deaf(self) -> int:
        """The number of ways of which the log says that nothing comes by them."""
        return len(self._told)

    def connected(self, now: float, chunks: bool) -> None:
        """Something is waited for by each way; by that of `chunks` where envelopes are to come in them."""
        self.awaited = {Kind.ENVELOPE, Kind.CHUNK} if chunks else {Kind.ENVELOPE}
        self._wait_s = 0.0
        self._at = now + QUIET_S

    def lost(self) -> None:
        """The connection has ended: nothing is waited for."""
        self.awaited.clear()

    def takes(self, place: Place, payload: bytes | memoryview) -> bool:
        """Something has come, and its way is open; returns whether it is what the node has sent itself."""
        kind = place.kind
        if kind in self.awaited:
            self.awaited.discard(kind)
            if kind in self._told:
                self._told.discard(kind)
                self._log(
                    "info", f"{_WHAT[kind][0]} to this node come now, {self._where}", kind="inbox heard"
                )
        return place.peer == self._peer and kind in self._sent and payload == self._sent[kind][1]

    def refused(self, topic: bytes) -> None:
        """The broker does not let the node send to itself, and said so: nothing is told of that way."""
        for kind, (sent_to, _) in self._sent.items():
            if sent_to == topic and kind in self.awaited:
                self.awaited.discard(kind)
                what, _ = _WHAT[kind]
                why = f"was not tried, {self._where}: it may not send to itself"
                self._log("info", f"whether {what} to this node come {why}", kind="inbox untried")

    def tick(self, now: float) -> None:
        """Sends what is waited for, and tells what is not back; once a second or so."""
        if not self.awaited or now < self._at:
            return
        kinds = sorted(self.awaited, key=lambda kind: kind.value)
        for kind in kinds if self._wait_s else ():
            self._told.add(kind)
            what, level = _WHAT[kind]
            self._log(
                "error",
                f"{what} to this node do not come, {self._where}: what it sends to itself is not back after"
                f" {self._wait_s:.0f} s; do the broker's access rules let it read {self._filters[kind]}"
                f" (mosquitto: pattern read {self._rule(level)}), and send to itself?",
                kind="inbox unheard",
            )
        self._wait_s = min(2 * self._wait_s, WAIT_S[1]) or WAIT_S[0]
        self._at = now + self._wait_s
        for kind in kinds:
            self._send(*self._sent[kind])

    def _rule(self, level: str) -> str:
        _, federation, *_ = self._filters[Kind.ENVELOPE].split("/")
        return f"bb/{federation}/%u/{level}/+"
