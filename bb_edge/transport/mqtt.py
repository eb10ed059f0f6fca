"""Carries envelopes over MQTT, on the driver's thread.

paho-mqtt makes and keeps the connection (connection.py); the packets that carry envelopes take a shorter way
through the same socket (shared_socket.py). Sessions persist at the broker. Presence is in membership.py.

An envelope is acknowledged to the broker once the node has taken it. If the node is full, the envelope is
offered again after the next poll, and nothing more is read until then: a node that is behind slows the broker
down (receive maximum) instead of collecting what it cannot handle.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from bb_edge.engine.ledger import IngressFull
from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode, Log
from bb_edge.transport.broker import (
    MAX_PACKET_BYTES,
    Broker,
    BrokerFileError,
    BrokerUrlError,
    MqttOptionError,
    MqttOptions,
)
from bb_edge.transport.chunks import HEADER_BYTES, ChunkError, Reassembly
from bb_edge.transport.connection import INCOMING_ALIASES, Connection, Granted
from bb_edge.transport.credentials import stranger
from bb_edge.transport.membership import Acts, Membership
from bb_edge.transport.outgoing import MAX_OVERHEAD, Item, Outgoing
from bb_edge.transport.packets import (
    FAILURE,
    PUBACK,
    PUBLISH,
    QUOTA_EXCEEDED,
    PacketError,
    Splitter,
    parse_puback,
    parse_publish,
    puback,
)
from bb_edge.transport.rollcall import CallError
from bb_edge.transport.shared_socket import SharedSocket
from bb_edge.transport.strays import Strays
from bb_edge.transport.topics import Kind, Place, TopicError, Topics, UnknownTopic
from bb_edge.wire.presence import PresenceError

__all__ = [
    "Broker",
    "BrokerFileError",
    "BrokerUrlError",
    "Log",
    "MqttOptionError",
    "MqttOptions",
    "MqttTransport",
]

GOODBYE_S = 2.0
"""Seconds that `stop` waits until everything is acknowledged; systemd grants a service 90 in all."""
READ_AT_ONCE = 512 * 1024
"""Bytes that one `wait` reads at most before the node is polled: milliseconds of work on a small board."""

COUNTERS = (
    "connects",
    "disconnects",
    "sent",
    "sent_bytes",
    "received",
    "received_bytes",
    "dropped",  # no space left, either way; each of them is an original
    "repeats_left_out",  # on purpose: their originals may still wait here
    "expired",  # their deadline passed before they could be sent
    "refused",  # by the broker: connections, subscriptions, publishes
    "unheard",  # publishes that nobody subscribes to
    "malformed",  # topics, presences, packets
    "presences",  # that came, the node's own among them
    "foreign",  # messages of topics that this node has not subscribed to
    "roll_calls",  # that asked the peers of a class to say their presence again
    "twins",  # presences in this node's name that are not its own
    "oversize",  # packets above the size that is taken in
    "too_large",  # envelopes that do not fit the broker's limit even in chunks
    "cut",  # envelopes that were sent in chunks
    "joined",  # envelopes that came in chunks
    "chunks_sent",
    "chunks_received",
    "chunks_refused",
    "chunks_expired",  # transfers that made no progress
    "held",  # envelopes that waited until a full node was polled
)


def _silent(level: str, message: str, *, kind: str = "", peer: PeerId | None = None) -> None:
    """Logs nothing."""


class _Held(NamedTuple):
    """A message that the node had no space for; `mid` is its unacknowledged packet identifier, or 0."""

    topic: bytes
    place: Place
    payload: bytes
    mid: int


class MqttTransport:
    """The MQTT transport of one node. All methods but `wake` belong to the driver's thread."""

    def __init__(
        self,
        node: DrivenNode,
        broker: Broker,
        federation: str,
        *,
        on_log: Log = _silent,
        options: MqttOptions | None = None,
        meta: Mapping[str, object] | None = None,
        jitter: random.Random | None = None,
        version: str = "auto",
    ) -> None:
        """Makes a transport that does not dial before `start`.

        `version` is ``"5"``, ``"3.1.1"``, or ``"auto"``: 5 first, else 3.1.1. `meta` is added to the
        presence; `on_log` takes what people should know. Raises BrokerFileError where a certificate cannot be
        used, TopicError for a federation name that a topic cannot hold.
        """
        self._node = node
        options = options or MqttOptions()
        self._topics = topics = Topics(federation, node.peer_id)
        self._log = on_log
        self._jitter = jitter or random.Random()
        self._stranger = stranger(broker, node.peer_id)
        self._counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._outgoing = Outgoing(options.max_waiting, options.max_waiting_bytes, self._counters)
        self._chunks = Reassembly(
            options.chunked_at_once,
            options.chunked_bytes,
            options.max_envelope_bytes,
            options.chunked_age_s * 1_000_000_000,
        )
        # The largest packet that the broker may send: the largest envelope, its topic and properties.
        self._largest = min(MAX_PACKET_BYTES, options.max_envelope_bytes + MAX_OVERHEAD + HEADER_BYTES + 512)
        self._splitter = Splitter(self._largest)
        self._aliases: dict[int, bytes] = {}
        self._held: _Held | None = None
        self._behind = False  # whether envelopes waited for the broker after the last write
        where = f"federation {federation!r} at {broker}"
        acts = Acts(self._say, self._call, on_log)
        facts = meta or {}
        self._membership = Membership(node, topics, facts, where, self._counters, acts, self._jitter)
        filters = (topics.inbox, topics.chunks, *self._membership.filters)
        self._connection = Connection(
            broker,
            options,
            version,
            # The broker's session is of this federation alone: a device may be in several.
            client_id=f"bb-{federation}-{node.peer_id}",
            will=self._membership.will,
            filters=filters,
            largest=self._largest,
            counters=self._counters,
            log=on_log,
            jitter=self._jitter,
            wake=self.wake,
            opened=self._opened,
            up=self._up,
            down=self._down,
        )
        self._membership.link = self._connection
        own = (*filters, *self._membership.called_at)
        self._strays = Strays(own, self._counters, self._connection, on_log)
        self._poll = select.poll()
        self._polled_fd = -1
        self._polled_write = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._poll.register(self._wake_r, select.POLLIN)

    # --- what a driver calls --------------------------------------------------------------------------

    @property
    def counters(self) -> Mapping[str, int]:
        return self._counters

    @property
    def connected(self) -> bool:
        return self._connection.connected

    @property
    def protocol(self) -> str:
        return "5" if self._connection.v5 else "3.1.1"

    @property
    def waiting(self) -> int:
        """The number of envelopes that wait for the broker or for its acknowledgement."""
        return len(self._outgoing)

    def start(self) -> None:
        self._connection.dial()

    def send(self, step: SendEnvelope) -> None:
        """Takes an envelope. It is sent by the next `wait`, or once the broker is connected and takes it.

        A repetition is left out while its original may still wait here.
        """
        if step.resent and (not self._connection.connected or self._behind):
            self._counters["repeats_left_out"] += 1
            return
        names, life = self._topics.names(step.peer), step.expires_in_ns
        until = time.monotonic_ns() + life if life else 0
        item = Item(names.envelope, step.rest, body=step.body, peer=step.peer, kept=step.kept)
        item.expires_ns, item.chunk_topic = until, names.chunk
        gone = self._outgoing.put(item)
        if gone is not None:
            waits = f"{self.waiting} envelopes with {self._outgoing.bytes_held} bytes wait for the broker"
            self._log("warning", f"an envelope is dropped: {waits}", kind="outgoing dropped", peer=gone.peer)

    def tell(self, fact: str, value: object) -> None:
        """Adds a fact to the node's presence, for people who look; said seldom where it changes often."""
        self._membership.tell(fact, value)

    def wake(self) -> None:
        # A full pipe wakes too. After `stop` the pipe is closed: a second signal can come then.
        with contextlib.suppress(BlockingIOError):
            if self._wake_w >= 0:
                os.write(self._wake_w, b"\0")

    def wait(self, timeout_s: float | None) -> None:
        connection = self._connection
        timeout_s = connection.before_wait(timeout_s)
        shared = connection.shared
        if shared is None:
            self._watch(-1, False)
        else:
            if self._held is not None:
                self._offer_held()
            if connection.shared is not shared:
                return
            self._write(shared)
            # Looked up here and not in `send`, so that repetitions of one poll do not block each other.
            self._behind = self._outgoing.congested
            self._watch(shared.fileno(), shared.queued_bytes > 0)
            if shared.ended or shared.pending:
                timeout_s = 0.0
        readable = False
        for fd, event in self._poll.poll(None if timeout_s is None else timeout_s * 1000.0):
            if fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            else:
                readable = bool(event & ~select.POLLOUT)
        if shared is None:
            return
        if readable or shared.ended or shared.pending:
            self._read(shared)
        if connection.shared is shared and connection.client.want_write():
            self._write(shared)  # the subscriptions of a new connection
        if connection.after_wait():
            self._chunks.expire(time.monotonic_ns())
            self._counters["chunks_expired"] = self._chunks.expired
            if connection.connected:
                self._membership.tick(time.monotonic())

    def stop(self) -> None:
        connection = self._connection
        connection.leave()
        if connection.connected:
            end = time.monotonic() + GOODBYE_S
            self._drain(end)
            self._membership.leave()  # behind what it has sent: a goodbye is the last word
            self._drain(max(end, time.monotonic() + GOODBYE_S / 4))
        self._watch(-1, False)
        connection.close()
        fds, self._wake_w = (self._wake_r, self._wake_w), -1
        for fd in fds:
            os.close(fd)

    def _drain(self, end: float) -> None:
        """Waits until nothing waits any more, until `end` at most (monotonic seconds)."""
        while self._connection.connected and self.waiting and time.monotonic() < end:
            self.wait(0.05)

    # --- callbacks of the connection, and of the membership ----------------------------------------------

    def _opened(self) -> None:
        self._splitter = Splitter(self._largest)
        self._aliases.clear()

    def _up(self, granted: Granted) -> None:
        self._outgoing.connected(
            v5=granted.v5,
            same_session=granted.same_session,
            window=granted.window,
            aliases=granted.aliases,
            packet_bytes=granted.packet_bytes,
            transfer=self._jitter.getrandbits(64),
        )
        # Calls that came while the node was away need no answer: it says its presence now.
        self._connection.subscribe(self._membership.called_at, qos=0)
        self._membership.connected()

    def _down(self) -> None:
        self._outgoing.disconnected()
        self._held = None

    def _say(self, topic: str, payload: bytes) -> None:
        self._outgoing.put_first(Item(topic.encode(), payload, retain=True))

    def _call(self, topic: str, payload: bytes) -> None:
        self._counters["roll_calls"] += 1
        self._outgoing.put_first(Item(topic.encode(), payload))

    # --- out ------------------------------------------------------------------------------------------

    def _write(self, shared: SharedSocket) -> None:
        """Makes packets while the broker takes more, and writes what the socket takes."""
        client = self._connection.client
        if client.want_write():
            client.loop_write()
        if self._connection.connected:
            for piece in self._outgoing.pieces(shared.queued_bytes, time.monotonic_ns()):
                shared.queue(piece)
        if shared.queued_bytes:
            shared.flush()

    def _acknowledged(self, mid: int, reason: int) -> bool:
        item = self._outgoing.acknowledged(mid, reason)
        if item is None:
            return False
        if reason >= FAILURE:
            topic = item.topic.decode(errors="replace")
            text = f"the broker refused a publish to {topic}: reason {reason:#04x}; {self._stranger}"
            self._log("warning", text.removesuffix("; "), kind="publish refused", peer=item.peer)
            if item.peer is not None:
                with contextlib.suppress(IngressFull):  # only a hint: a busy node can do without
                    self._node.peer_failed(item.peer)
        return True

    # --- in -------------------------------------------------------------------------------------------

    def _read(self, shared: SharedSocket) -> None:
        """Reads at most READ_AT_ONCE bytes; stops early if the node is full."""
        splitter, left = self._splitter, READ_AT_ONCE
        try:
            while left > 0 and self._held is None:
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
        message = parse_publish(first, data, body, end, self._connection.v5)
        topic = message.topic
        if message.alias:
            if topic and message.alias <= INCOMING_ALIASES:
                self._aliases[message.alias] = topic
            topic = topic or self._aliases.get(message.alias, b"")
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

    def _offer_held(self) -> None:
        """Offers the held message again, after a poll; refuses it if the node is still full."""
        held, self._held = self._held, None
        shared = self._connection.shared
        if held is None or shared is None:
            return
        reason = 0
        try:
            self._deliver(held.topic, held.place, held.payload)
        except IngressFull as error:
            self._counters["dropped"] += 1
            reason = QUOTA_EXCEEDED if self._connection.v5 else 0
            self._log(
                "warning", f"an envelope is dropped: {error}", kind="envelope dropped", peer=held.place.peer
            )
        if held.mid:
            shared.queue(puback(held.mid, reason))
        try:
            self._take(shared, self._splitter)
        except PacketError as error:
            self._counters["malformed"] += 1
            self._connection.drop(f"the broker's bytes are not MQTT: {error}")

    def _join(self, peer: PeerId, chunk: bytes) -> bytes | None:
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
        self._log(
            "warning",
            f"a packet of {size} bytes is dropped; the limit is {self._largest} bytes",
            kind="packet too large",
        )
        if first & 0xF0 != PUBLISH:
            raise PacketError(f"a packet of type {first >> 4} with {size} bytes", "broker")
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        if first >> 1 & 3 and topic_end + 2 <= end:
            # Without an acknowledgement the broker would send it again at each connection.
            shared.queue(puback(data[topic_end] << 8 | data[topic_end + 1]))

    def _refuse(self, what: str, error: BBError, peer: PeerId | None = None) -> None:
        self._counters["malformed"] += 1
        self._log("warning", f"{what} is refused: {error}", kind="malformed message", peer=peer)

    def _deliver(self, topic: bytes, place: Place, payload: bytes) -> None:
        """Hands a message to the node, or counts it as malformed. Raises IngressFull for a full node."""
        if place.kind in (Kind.PRESENCE, Kind.ROLL_CALL):
            take = self._membership.called
            if place.kind is Kind.PRESENCE:
                self._counters["presences"] += 1
                take = partial(self._membership.take, place.peer)
            try:
                if not take(place.peer_class, payload):
                    self._strays.take(topic)
            except (PresenceError, CallError) as error:
                self._refuse("a presence or roll call", error, place.peer)
            return
        self._node.deliver_inbound(payload, place.peer, self._topics.names(place.peer).address)
        self._counters["received"] += 1

    # --- sockets --------------------------------------------------------------------------------------

    def _watch(self, fd: int, write: bool) -> None:
        if fd == self._polled_fd and write == self._polled_write:
            return
        if self._polled_fd >= 0 and fd != self._polled_fd:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._poll.unregister(self._polled_fd)
        if fd >= 0:
            self._poll.register(fd, select.POLLIN | (select.POLLOUT if write else 0))
        self._polled_fd, self._polled_write = fd, write
