"""Carries envelopes over MQTT, on the driver's thread.

paho-mqtt makes and keeps the connection (connection.py); the packets that carry envelopes take a shorter way
through the same socket (shared_socket.py). Sessions persist at the broker. Presence is in membership.py.

What goes out waits in outgoing.py, what comes is taken by incoming.py: a node that is behind slows the broker
down (receive maximum) instead of collecting what it cannot handle.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
from collections.abc import Mapping

from bb_edge.engine.ledger import IngressFull
from bb_edge.engine.steps import SendEnvelope
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
from bb_edge.transport.chunks import HEADER_BYTES, Reassembly
from bb_edge.transport.connection import Connection, Granted
from bb_edge.transport.credentials import stranger
from bb_edge.transport.echo import Echo
from bb_edge.transport.incoming import Incoming
from bb_edge.transport.lost import refusal
from bb_edge.transport.membership import Acts, Membership
from bb_edge.transport.outgoing import MAX_OVERHEAD, Item, Outgoing, packet_bytes
from bb_edge.transport.packets import FAILURE
from bb_edge.transport.shared_socket import SharedSocket
from bb_edge.transport.strays import Strays
from bb_edge.transport.too_large import TooLarge
from bb_edge.transport.topics import Topics

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
SAME_END_NS = 1_000_000
"""Envelopes that expire within a millisecond do so together."""
COUNTERS = (
    "connects",
    "disconnects",
    "sent",
    "sent_bytes",
    "received",
    "received_bytes",
    "dropped",  # no space left on their way out; each of them is an original
    "turned_away",  # no space left for what came, nor after a poll; its sender repeats it
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
    "too_large",  # presences, and envelopes even in chunks, that do not fit the broker's limit
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
        version: str = "auto",
        planned: int = 0,
    ) -> None:
        """Makes a transport that does not dial before `start`.

        `version` is ``"5"``, ``"3.1.1"``, or ``"auto"``: 5 first, else 3.1.1. `meta` is added to the
        presence; `on_log` takes what people should know. `planned` bytes are in the largest envelope that
        the program is known to receive: memory for one is taken now, and kept. Raises BrokerFileError where
        a certificate cannot be used, TopicError for a federation name that a topic cannot hold.
        """
        self._node = node
        options = options or MqttOptions()
        self._topics = topics = Topics(federation, node.peer_id)
        self._log = on_log
        self._jitter = random.Random()
        self._stranger = stranger(broker, node.peer_id)
        self._counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        chunks = Reassembly(
            options.chunked_at_once,
            options.chunked_bytes,
            options.max_envelope_bytes,
            options.chunked_age_s * 1_000_000_000,
        )
        # The largest packet that is taken in: the largest envelope, its topic and properties.
        largest = min(MAX_PACKET_BYTES, options.max_envelope_bytes + MAX_OVERHEAD + HEADER_BYTES + 512)
        self._planned = planned
        self._until = 0  # when the envelope before expires: those of one request share the number
        self._behind = False  # whether envelopes waited for the broker after the last write
        where = f"federation {federation!r} at {broker}"
        acts = Acts(self._say, self._call, on_log)
        facts = meta or {}
        self._membership = Membership(node, topics, facts, where, self._counters, acts, self._jitter)
        self._too_large = TooLarge(broker, options.max_packet_bytes, on_log, self._membership.unsaid)
        self._outgoing = Outgoing(
            options.max_waiting, options.max_waiting_bytes, self._counters, self._too_large.tell
        )
        self._echo = Echo(topics, node.peer_id, where, self._say_to_itself, on_log)
        filters = (topics.inbox, topics.chunks, *self._membership.filters)
        self._connection = Connection(
            broker,
            options,
            version,
            # The broker's session is of this federation alone: a device may be in several.
            client_id=f"bb-{federation}-{node.peer_id}",
            will=self._membership.will,
            filters=filters,
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
        strays = Strays(own, self._counters, self._connection, on_log)
        self._incoming = Incoming(
            node,
            topics,
            self._connection,
            self._membership,
            strays,
            self._echo,
            chunks,
            self._counters,
            on_log,
            largest,
            self._acknowledged,
            planned,
        )
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
    def holding(self) -> bool:
        return self._incoming.holds

    @property
    def protocol(self) -> str:
        return "5" if self._connection.v5 else "3.1.1"

    @property
    def waiting(self) -> int:
        """The number of envelopes that wait for the broker or for its acknowledgement."""
        return len(self._outgoing)

    @property
    def deaf(self) -> int:
        """By how many ways nothing comes to this node, envelopes and chunks, as its log has said."""
        return self._echo.deaf

    @property
    def presence_packet_bytes(self) -> int:
        """The bytes of the largest packet in which the node says its presence."""
        return max(packet_bytes(topic.encode(), len(said)) for topic, said in self._membership.says)

    def start(self) -> None:
        self._node.connected(False)
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
        if 0 <= until - self._until < SAME_END_NS:
            until = self._until
        else:
            self._until = until
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
            if self._incoming.holds:
                self._incoming.offer_held()
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
            self._incoming.read(shared)
        if connection.shared is shared and connection.client.want_write():
            self._write(shared)  # the subscriptions of a new connection
        if connection.after_wait():
            self._incoming.expire()
            if connection.connected:
                now = time.monotonic()
                self._membership.tick(now)
                self._echo.tick(now)

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
        self._incoming.opened()

    def _up(self, granted: Granted) -> None:
        self._outgoing.connected(
            v5=granted.v5,
            same_session=granted.same_session,
            window=granted.window,
            aliases=granted.aliases,
            packet_bytes=granted.packet_bytes,
            transfer=self._jitter.getrandbits(64),
        )
        self._too_large.connected(granted.packet_bytes)
        # Calls that came while the node was away need no answer: it says its presence now.
        self._connection.subscribe(self._membership.called_at, qos=0)
        self._membership.connected()
        in_chunks = self._planned + MAX_OVERHEAD > granted.packet_bytes
        self._echo.connected(time.monotonic(), in_chunks)
        self._node.connected(True)

    def _down(self) -> None:
        self._node.connected(False)
        self._outgoing.disconnected()
        self._membership.lost()
        self._echo.lost()
        self._incoming.lost()

    def _say(self, topic: str, payload: bytes) -> None:
        self._outgoing.put_first(Item(topic.encode(), payload, retain=True))

    def _call(self, topic: str, payload: bytes) -> None:
        self._counters["roll_calls"] += 1
        self._outgoing.put_first(Item(topic.encode(), payload))

    def _say_to_itself(self, topic: bytes, payload: bytes) -> None:
        self._outgoing.put_first(Item(topic, payload, once=True))

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
        if reason >= FAILURE and item.once and not item.retain:
            self._echo.refused(item.topic)
        elif reason >= FAILURE:
            topic = item.topic.decode(errors="replace")
            text = f"the broker refused a publish to {topic}: {refusal(reason, self._stranger)}"
            self._log("warning", text, kind="publish refused", peer=item.peer)
            if item.peer is not None:
                with contextlib.suppress(IngressFull):  # only a hint: a busy node can do without
                    self._node.peer_failed(item.peer)
        return True

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
