"""What comes from the broker: packets into messages, and messages to the node. The other half of `Outgoing`.

An envelope is acknowledged to the broker once the node has taken it. If the node is full, the envelope is
offered again after the next poll, and nothing more is read until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from bb_edge.engine.ledger import IngressFull
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode, Log
from bb_edge.transport.chunks import ChunkError, Reassembly
from bb_edge.transport.connection import INCOMING_ALIASES, Connection
from bb_edge.transport.echo import Echo
from bb_edge.transport.membership import Membership
from bb_edge.transport.packets import (
    PUBACK,
    PUBLISH,
    QUOTA_EXCEEDED,
    PacketError,
    Published,
    Splitter,
    parse_puback,
    parse_publish,
    puback,
)
from bb_edge.transport.rollcall import RollCallError
from bb_edge.transport.shared_socket import SharedSocket
from bb_edge.transport.strays import Strays
from bb_edge.transport.topics import Kind, Place, TopicError, Topics, UnknownTopic
from bb_edge.wire.presence import PresenceError

READ_AT_ONCE = 512 * 1024
"""Bytes that one `wait` reads at most before the node is polled: milliseconds of work on a small board."""


class _Held(NamedTuple):
    """A message that the node had no space for; `mid` is its unacknowledged packet identifier, or 0."""

    topic: bytes
    place: Place
    payload: bytes | memoryview
    mid: int


class Incoming:
    """The receiving half of a transport, on the driver's thread."""

    def __init__(
        self,
        node: DrivenNode,
        topics: Topics,
        connection: Connection,
        membership: Membership,
        strays: Strays,
        echo: Echo,
        chunks: Reassembly,
        counters: MutableMapping[str, int],
        log: Log,
        largest: int,
        acknowledged: Callable[[int, int], bool],
        planned: int = 0,
    ) -> None:
        """`largest` is the largest packet that is taken in; `acknowledged(mid, reason)` takes a PUBACK, and
        tells whether it was for one of the transport's own packets. `planned` bytes are in the largest
        envelope that the program is known to receive: there is memory for one from the start.
        """
        self._node = node
        self._topics = topics
        self._connection = connection
        self._membership = membership
        self._strays = strays
        self._echo = echo
        self._chunks = chunks
        self._counters = counters
        self._log = log
        self._largest = largest
        self._acknowledged = acknowledged
        self._splitter = Splitter(largest, connection.v5, planned)
        self._aliases: dict[int, bytes] = {}
        self._held: _Held | None = None

    def opened(self) -> None:
        """There is a new socket: what the last one began is over."""
        self._splitter.begin(self._connection.v5)
        self._aliases.clear()

    def lost(self) -> None:
        """The connection is lost: the broker sends again what was not acknowledged."""
        self._held = None
        self._strays.lost()

    @property
    def holds(self) -> bool:
        """Whether a message waits until the node has space."""
        return self._held is not None

    def expire(self) -> None:
        """Forgets envelopes in chunks that make no progress, and memory that large packets needed."""
        self._splitter.tidy()
        self._chunks.expire(time.monotonic_ns())
        self._counters["chunks_expired"] = self._chunks.expired

    def read(self, shared: SharedSocket) -> None:
        """Reads at most READ_AT_ONCE bytes; stops early if the node is full, or was given as many."""
        splitter, left, counters = self._splitter, READ_AT_ONCE, self._counters
        # Else the packet behind a large one would be in memory, too, before the node sees the first.
        enough = counters["received_bytes"] + READ_AT_ONCE
        try:
            while left > 0 and self._held is None and counters["received_bytes"] < enough:
                count = shared.read_into(splitter.room())
                if not count:
                    break
                left -= count
                splitter.filled(count)
                self._take(shared, splitter)
                if self._connection.shared is not shared:
                    return
        except PacketError as error:
            self._counters["malformed"] += 1
            self._connection.drop(f"the broker's bytes are not MQTT: {error}")
            return
        if shared.ended and self._held is None and self._connection.shared is shared:
            self._connection.feed(shared, b"")

    def _take(self, shared: SharedSocket, splitter: Splitter) -> None:
        """Handles every whole packet that was read, until the node is full or the connection ends."""
        while self._held is None and self._connection.shared is shared:
            packet = splitter.take()
            if packet is None:
                return
            first, data, start, body, end = packet
            kind = first & 0xF0
            if splitter.oversize:
                self._refuse_oversize(shared, splitter.oversize, first, data, body, end)
            elif kind == PUBLISH:
                self._published(shared, first, data, body, end)
            elif kind != PUBACK or not self._acknowledged(*parse_puback(data, body, end)):
                self._connection.feed(shared, bytes(data[start:end]))

    def _published(self, shared: SharedSocket, first: int, data: bytearray, body: int, end: int) -> None:
        message = parse_publish(first, data, body, end, self._connection.v5, self._splitter.own)
        topic = self._topic_of(message)
        if not topic:
            raise PacketError("a PUBLISH without a topic, and its alias is not defined", "broker")
        self._counters["received_bytes"] += end - body + 2
        try:
            place = self._topics.read(topic)
        except UnknownTopic:
            self._strays.take(topic)
        except TopicError as error:
            self._refuse("a message", error)
        else:
            payload = message.payload
            if self._echo.takes(place, payload):
                whole = None
            else:
                whole = payload if place.kind is not Kind.CHUNK else self._join(place.peer, payload)
            if whole is not None:
                try:
                    self._deliver(topic, place, whole)
                except IngressFull:
                    # It is not acknowledged, and nothing more is read, until the node has been polled.
                    self._counters["held"] += 1
                    self._held = _Held(topic, place, whole, message.mid)
                    return
        if message.mid:
            shared.queue(puback(message.mid))

    def _topic_of(self, message: Published) -> bytes:
        """Its topic, by its alias where it has that alone; empty where nothing says it."""
        if message.alias and message.topic and message.alias <= INCOMING_ALIASES:
            self._aliases[message.alias] = message.topic
        return message.topic or self._aliases.get(message.alias, b"")

    def offer_held(self) -> None:
        """Offers the held message again, after a poll; refuses it if the node is still full."""
        held, self._held = self._held, None
        shared = self._connection.shared
        if held is None or shared is None:
            return
        reason = 0
        try:
            self._deliver(held.topic, held.place, held.payload)
        except IngressFull as error:
            self._counters["turned_away"] += 1
            reason = QUOTA_EXCEEDED if self._connection.v5 else 0
            text = f"no space for what comes: {error.what} ({error.hint}); its sender repeats it"
            self._log("warning", text, kind="turned away", peer=held.place.peer)
        if held.mid:
            shared.queue(puback(held.mid, reason))
        try:
            self._take(shared, self._splitter)
        except PacketError as error:
            self._counters["malformed"] += 1
            self._connection.drop(f"the broker's bytes are not MQTT: {error}")

    def _join(self, peer: PeerId, chunk: bytes | memoryview) -> bytes | None:
        """The envelope that a chunk completes; None if more chunks are needed or the chunk is refused."""
        self._counters["chunks_received"] += 1
        try:
            whole = self._chunks.add(peer, chunk, time.monotonic_ns())
        except ChunkError as error:
            self._counters["chunks_refused"] += 1
            self._log("warning", f"a chunk is refused: {error}", kind="chunk refused", peer=peer)
            return None
        if whole is not None:
            self._counters["joined"] += 1
        return whole

    def _refuse_oversize(
        self, shared: SharedSocket, size: int, first: int, data: bytearray, body: int, end: int
    ) -> None:
        self._counters["oversize"] += 1
        if first & 0xF0 != PUBLISH:
            raise PacketError(f"a packet of type {first >> 4} with {size} bytes", "broker")
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        try:
            topic = self._topic_of(parse_publish(first, data, body, end, self._connection.v5))
        except PacketError:  # its properties go on beyond what is kept
            topic = bytes(data[body + 2 : topic_end])
        peer = None
        with suppress(UnknownTopic, TopicError):
            peer = self._topics.read(topic).peer
        self._log(
            "warning",
            f"a packet of {size} bytes is dropped, under {topic[:128].decode(errors='replace')!r};"
            f" the limit is {self._largest} bytes",
            kind="packet too large",
            peer=peer,
        )
        if first >> 1 & 3 and topic_end + 2 <= end:
            # Without an acknowledgement the broker would wait for it, and send it again at each connection.
            shared.queue(puback(data[topic_end] << 8 | data[topic_end + 1]))

    def _refuse(self, what: str, error: BBError, peer: PeerId | None = None) -> None:
        self._counters["malformed"] += 1
        self._log("warning", f"{what} is refused: {error}", kind="malformed message", peer=peer)

    def _deliver(self, topic: bytes, place: Place, payload: bytes | memoryview) -> None:
        """Hands a message to the node, or counts it as malformed. Raises IngressFull for a full node."""
        if place.kind in (Kind.PRESENCE, Kind.ROLL_CALL):
            take = self._membership.called
            if place.kind is Kind.PRESENCE:
                self._counters["presences"] += 1
                take = partial(self._membership.take, place.peer)
            try:
                if not take(place.peer_class, bytes(payload)):
                    self._strays.take(topic)
            except PresenceError as error:
                self._refuse("a presence", error, place.peer)
            except RollCallError as error:  # nobody says who calls
                self._refuse(f"a roll call of {place.peer_class}", error)
            return
        self._node.deliver_inbound(payload, place.peer, self._topics.names(place.peer).address)
        self._counters["received"] += 1
