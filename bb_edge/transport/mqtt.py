"""MQTT through paho-mqtt, driven from the node's own thread (semantics §6 "MQTT", goals "MQTT").

paho's client is used through its socket functions: there is no thread of paho's, and a message goes from the
socket to the engine and back without a hand-over. Only a dial (name lookup, TCP and TLS set-up, which block)
runs on a thread of its own; nothing else touches the client meanwhile.

MQTT 5 is tried first. A broker that refuses it, or hangs up on it, is spoken to in 3.1.1, and `on_log` is
told
what that costs. Sessions persist; presence is retained, with a last will.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bb_edge.engine.ingress import IngressFull
from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.transport.base import NodeDoors
from bb_edge.transport.topics import TopicError, Topics
from bb_edge.wire.peers import Presence, PresenceError, decode_presence, encode_presence

KEEPALIVE_S = 30
SESSION_EXPIRY_S = 3600
CONNECT_TIMEOUT_S = 5.0
RETRY_FIRST_S, RETRY_MAX_S = 0.25, 30.0
GOODBYE_S = 2.0
CONNACK_S = 3.0
"""How long a broker may take to answer a CONNECT. Some answer a version they don't know with silence."""

VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}
LOST_IN_311 = "no message expiry, reason codes, receive maximum, topic aliases or session expiry"


class BrokerUrlError(BBError):
    """Not a broker address: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker is and how to be let in."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def from_url(cls, url: str, **files: str | None) -> Broker:
        """Parses a URL; `files` are ca_file, cert_file and key_file. BrokerUrlError otherwise."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise BrokerUrlError(
                f"{url!r}: {error}", "broker", "for example mqtt://192.168.1.10:1883"
            ) from error
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path not in ("", "/"):
            raise BrokerUrlError(f"{url!r}", "broker", "for example mqtt://192.168.1.10:1883")
        tls = parts.scheme == "mqtts"
        return cls(
            parts.hostname,
            port or (8883 if tls else 1883),
            tls,
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            **files,
        )

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


Log = Callable[[str, str], None]
"""Takes (level, message)."""


def _silent(_level: str, _message: str) -> None:
    return None


class MqttTransport:
    """The MQTT side of one node. All methods but `wake` belong to the driver's thread."""

    def __init__(
        self,
        node: NodeDoors,
        broker: Broker,
        federation: str,
        *,
        on_log: Log = _silent,
        max_waiting: int = 10_000,
        meta: Mapping[str, object] | None = None,
        jitter: random.Random | None = None,
        version: str = "auto",
    ) -> None:
        """`version` is ``"5"``, ``"3.1.1"``, or ``"auto"``: 5 first, 3.1.1 where the broker has no better."""
        self._node = node
        self._broker = broker
        self._topics = Topics(federation, node.peer_id)
        self._log = on_log
        self._jitter = jitter or random.Random()
        self._waiting: deque[SendEnvelope] = deque(maxlen=max_waiting)
        self._max_waiting = max_waiting
        own_address = (Address.empty().with_peer(node.peer_id).to_bytes(),)
        self._presence = Presence(True, node.epoch, node.classes, own_address, dict(meta or {}))
        self._absence = Presence(False, node.epoch, node.classes)
        self._counters: dict[str, int] = dict.fromkeys(
            (
                "connects",
                "disconnects",
                "sent",
                "sent_bytes",
                "received",
                "received_bytes",
                "dropped",
                "refused",
                "malformed",
            ),
            0,
        )
        self._version = VERSIONS.get(version, MQTTProtocolVersion.MQTTv5)
        self._may_fall_back = version == "auto"
        self._connack_by = 0.0
        self._hangups = 0
        self._connected = False
        self._stopping = False
        self._dialing: threading.Thread | None = None
        self._dialed_error: OSError | ValueError | None = None
        self._retry_s = RETRY_FIRST_S
        self._retry_at = 0.0
        self._next_misc = 0.0
        self._poll = select.poll()
        self._polled_fd = -1
        self._polled_write = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._poll.register(self._wake_r, select.POLLIN)
        self._client: paho.Client = self._new_client()

    # --- what a driver calls --------------------------------------------------------------------------

    @property
    def counters(self) -> Mapping[str, int]:
        return self._counters

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def protocol(self) -> str:
        return "5" if self._version is MQTTProtocolVersion.MQTTv5 else "3.1.1"

    def start(self) -> None:
        self._dial()

    def send(self, step: SendEnvelope) -> None:
        """Publishes, or keeps the envelope until the broker is there;

        a repetition is not kept beside its original.
        """
        if self._connected:
            self._publish(step)
        elif step.resent:
            self._counters["dropped"] += 1
        else:
            if len(self._waiting) == self._max_waiting:
                self._counters["dropped"] += 1
            self._waiting.append(step)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_w, b"\0")

    def wait(self, timeout_s: float | None) -> None:
        now = time.monotonic()
        client = self._client
        if self._dialing is not None:
            self._finish_dial()
        sock = client.socket() if self._dialing is None else None
        if sock is None and self._dialing is None:
            if now >= self._retry_at:
                self._dial()
            elif timeout_s is None or self._retry_at - now < timeout_s:
                timeout_s = self._retry_at - now
        self._watch(sock.fileno() if sock is not None else -1, sock is not None and client.want_write())
        if sock is not None and _buffered(sock):
            timeout_s = 0.0
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000.0)
        for fd, event in ready:
            if fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            elif event & select.POLLOUT and client.socket() is sock:
                client.loop_write()
        if sock is not None:
            if any(fd != self._wake_r and event & ~select.POLLOUT for fd, event in ready) or _buffered(sock):
                client.loop_read()
            if not self._connected and self._connack_by and now >= self._connack_by:
                self._no_connack()
            elif now >= self._next_misc:
                self._next_misc = now + 1.0
                client.loop_misc()

    def stop(self) -> None:
        self._stopping = True
        client = self._client
        if self._dialing is not None:
            self._dialing.join(CONNECT_TIMEOUT_S + 1)
            self._finish_dial()
        if self._connected:
            self._drain_waiting()
            goodbye = client.publish(
                self._topics.own_presence, encode_presence(self._absence), qos=1, retain=True
            )
            end = time.monotonic() + GOODBYE_S
            while self._connected and not goodbye.is_published() and time.monotonic() < end:
                self.wait(0.05)
            client.disconnect()
            if client.socket() is not None:
                client.loop_write()
        sock = client.socket()
        self._watch(-1, False)
        if sock is not None:
            sock.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    # --- connecting -----------------------------------------------------------------------------------

    def _new_client(self) -> paho.Client:
        v5 = self._version is MQTTProtocolVersion.MQTTv5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"bb-{self._node.peer_id}",
            clean_session=None if v5 else False,
            protocol=self._version,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_queued_messages_set(self._max_waiting)
        client.will_set(self._topics.own_presence, encode_presence(self._absence), qos=1, retain=True)
        if self._broker.username is not None:
            client.username_pw_set(self._broker.username, self._broker.password)
        if self._broker.tls:
            context = ssl.create_default_context(cafile=self._broker.ca_file)
            if self._broker.cert_file:
                context.load_cert_chain(self._broker.cert_file, self._broker.key_file)
            client.tls_set_context(context)
        client.on_socket_open = _no_delay
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        return client

    def _dial(self) -> None:
        client = self._client
        self._dialed_error = None

        def run() -> None:
            try:
                if self._version is MQTTProtocolVersion.MQTTv5:
                    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                    properties.SessionExpiryInterval = SESSION_EXPIRY_S
                    client.connect(
                        self._broker.host,
                        self._broker.port,
                        KEEPALIVE_S,
                        clean_start=False,
                        properties=properties,
                    )
                else:
                    client.connect(self._broker.host, self._broker.port, KEEPALIVE_S)
            except (OSError, ValueError) as error:
                self._dialed_error = error
            finally:
                self.wake()

        self._dialing = threading.Thread(target=run, name="bb-mqtt-dial", daemon=True)
        self._dialing.start()

    def _finish_dial(self) -> None:
        thread = self._dialing
        if thread is None or thread.is_alive():
            if thread is not None and self._client.socket() is None and self._dialed_error is None:
                return
            if thread is not None:
                thread.join()
        self._dialing = None
        if self._dialed_error is not None:
            self._later(f"broker {self._broker} not reachable: {self._dialed_error}")
        else:
            self._connack_by = time.monotonic() + CONNACK_S

    def _later(self, reason: str) -> None:
        """The next dial comes after a wait that doubles, with jitter."""
        wait = self._retry_s * (0.5 + self._jitter.random())
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        self._retry_at = time.monotonic() + wait
        self._log("warning", f"{reason}; next try in {wait:.1f} s")

    def _no_connack(self) -> None:
        """Nothing came back for a CONNECT: the other version is tried next, if both may be."""
        self._connack_by = 0.0
        sock = self._client.socket()
        self._watch(-1, False)
        if self._may_fall_back and self._version is MQTTProtocolVersion.MQTTv5:
            self._fall_back("no answer to CONNECT")
        else:
            if self._may_fall_back:
                self._version = MQTTProtocolVersion.MQTTv5
            self._client = self._new_client()
            self._later(f"broker {self._broker} does not answer")
        if sock is not None:
            sock.close()

    def _fall_back(self, reason: str) -> None:
        self._log(
            "warning",
            f"broker {self._broker} does not speak MQTT 5 ({reason}): using 3.1.1, which has {LOST_IN_311}",
        )
        self._version = MQTTProtocolVersion.MQTTv311
        self._client = self._new_client()
        self._retry_s = RETRY_FIRST_S
        self._retry_at = time.monotonic()

    def _on_connect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        if reason.is_failure:
            self._counters["refused"] += 1
            if (
                self._may_fall_back
                and self._version is MQTTProtocolVersion.MQTTv5
                and "protocol version" in str(reason).lower()
            ):
                self._fall_back(str(reason))
            else:
                self._log("error", f"broker {self._broker} refuses: {reason}")
            return
        self._connected = True
        self._hangups = 0
        self._retry_s = RETRY_FIRST_S
        self._counters["connects"] += 1
        client.subscribe([(self._topics.inbox, 1), (self._topics.presence_of_all, 1)])
        client.publish(self._topics.own_presence, encode_presence(self._presence), qos=1, retain=True)
        self._log("info", f"connected to {self._broker}, MQTT {self.protocol}")
        self._drain_waiting()

    def _on_disconnect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        if client is not self._client:
            return
        if self._connected:
            self._connected = False
            if self._stopping:
                return
            self._counters["disconnects"] += 1
            self._later(f"connection to {self._broker} lost: {reason}")
            return
        # Hung up before a CONNACK: some 3.1.1 brokers answer a version they don't know that way.
        self._hangups += 1
        if self._may_fall_back and self._version is MQTTProtocolVersion.MQTTv5 and self._hangups >= 2:
            self._fall_back("it hangs up")
        else:
            self._later(f"broker {self._broker} hung up: {reason}")

    # --- messages -------------------------------------------------------------------------------------

    def _drain_waiting(self) -> None:
        while self._waiting:
            self._publish(self._waiting.popleft())

    def _publish(self, step: SendEnvelope) -> None:
        topic = self._topics.to(step.peer)
        counters = self._counters
        if self._client.publish(topic, step.payload, qos=1).rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            counters["dropped"] += 1
            return
        counters["sent"] += 1
        counters["sent_bytes"] += len(topic) + len(step.payload)

    def _on_publish(self, client: paho.Client, _data: object, mid: int, reason: Any, properties: Any) -> None:
        if reason is not None and reason.is_failure:
            self._counters["refused"] += 1
            self._log("warning", f"broker {self._broker} refuses a publish: {reason}")

    def _on_message(self, client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        try:
            sender = self._topics.sender(topic)
            if sender is None:
                self._on_presence(topic, payload)
                return
        except (TopicError, PresenceError) as error:
            self._counters["malformed"] += 1
            self._log("warning", str(error))
            return
        self._counters["received"] += 1
        self._counters["received_bytes"] += len(topic) + len(payload)
        try:
            self._node.deliver_inbound(payload, sender, Address.empty().with_peer(sender).to_bytes())
        except IngressFull as error:
            self._counters["dropped"] += 1
            self._log("warning", f"dropped an envelope: {error}")

    def _on_presence(self, topic: str, payload: bytes) -> None:
        peer = self._topics.presence(topic)
        if peer is None:
            self._counters["malformed"] += 1
            return
        if peer == self._node.peer_id:
            self._defend(payload)
            return
        if not payload:  # a cleared retained message: the peer was forgotten
            self._node.peer_presence(peer, False, epoch=0)
            return
        said = decode_presence(payload)
        self._node.peer_presence(
            peer, said.up, said.addresses, said.meta, epoch=said.epoch or 0, classes=said.classes
        )

    def _defend(self, payload: bytes) -> None:
        """A will of an earlier incarnation may come late and overwrite our presence:

        say again that we are here.
        """
        if payload and self._connected and not decode_presence(payload).up:
            self._client.publish(
                self._topics.own_presence, encode_presence(self._presence), qos=1, retain=True
            )

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


def _no_delay(_client: paho.Client, _data: object, sock: Any) -> None:
    # Without it a QoS 1 round trip takes 88 ms instead of 0.25 ms (Nagle against delayed acknowledgements).
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _buffered(sock: Any) -> bool:
    """Whether TLS holds bytes that no poll will tell of."""
    pending = getattr(sock, "pending", None)
    return pending is not None and pending() > 0
