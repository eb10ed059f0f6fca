"""A short visit to a broker, for `bb-edge doctor` and `bb-edge peers`: each step waits for its answer.

The session has a random client id and leaves nothing behind.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.ir.errors import BBError
from bb_edge.transport.broker import Broker
from bb_edge.transport.connection_states import VERSIONS
from bb_edge.transport.credentials import alert_hint, dial_fault, dial_hint, hang_up_hint, login_hint
from bb_edge.transport.packets import subscribe_bytes
from bb_edge.transport.shared_socket import connect

STEP_S = 5.0
"""Seconds that each step may take; the same as a node's dial."""
ALERT_S = 1.0
"""Seconds in which a broker that ends TLS says so: in TLS 1.3 that is behind the handshake."""

Take = Callable[[str, bytes], None]
"""Takes the topic and payload of one message."""


class VisitError(BBError):
    """The broker cannot be reached, or refuses a step; the message names the step."""


class _NoAnswer(VisitError):
    """The broker does not answer CONNECT, or hangs up: it may only know the older version."""


class Visitor:
    """One session; `properties` are those of the CONNACK."""

    def __init__(self, broker: Broker, context: ssl.SSLContext | None, protocol: str, take: Take) -> None:
        self.broker = broker
        self.protocol = protocol
        self.properties: Any = None
        v5 = VERSIONS[protocol] is MQTTProtocolVersion.MQTTv5
        self._context = context
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"bb-visitor-{secrets.token_hex(6)}",
            clean_session=None if v5 else True,
            protocol=VERSIONS[protocol],
            reconnect_on_failure=False,
        )
        client.connect_timeout = STEP_S
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if context is not None:
            client.tls_set_context(context)
        self._take = take
        self._connack: Any = None
        self._subacks: dict[int, Sequence[Any]] = {}
        self._pubacks: dict[int, Any] = {}
        self.gone = False
        """Whether the broker has ended the connection, or it broke."""
        client.on_connect, client.on_subscribe, client.on_publish = (
            self._connected,
            self._subscribed,
            self._published,
        )
        client.on_message, client.on_disconnect = self._message, self._disconnected
        client.on_socket_open = _no_delay

    @property
    def packet_limit(self) -> int | None:
        """Bytes of the largest packet that the broker takes, as its CONNACK says; None where it does not."""
        limit: int | None = getattr(self.properties, "MaximumPacketSize", None)
        return limit

    def connect(self) -> None:
        """Connects. Raises VisitError where the broker cannot be reached, or refuses the connection."""
        where = str(self.broker)
        try:
            self._client.connect(self.broker.host, self.broker.port)
        except OSError as error:
            fault, hint = dial_fault(error, self.broker), dial_hint(error, self.broker)
            raise VisitError(f"not reachable: {fault}", where, hint) from error
        if not self.until(lambda: self._connack is not None):
            fault = self._tls_fault() if self.gone else ""
            if alert := alert_hint(self.broker, fault):
                raise VisitError(f"it ended TLS: {fault}", where, alert)
            hint = hang_up_hint(self.broker) if self.gone else ""
            raise _NoAnswer(f"no answer to CONNECT{hint}", where)
        if self._connack.is_failure:
            if "protocol version" in str(self._connack).lower():
                raise _NoAnswer(str(self._connack), where)
            wanted = "broker.username and broker.password_file, or USER:PASSWORD@ in --broker"
            hint = login_hint(self.broker, str(self._connack), wanted)
            raise VisitError(f"the broker refuses the connection: {self._connack}", where, hint)

    def _tls_fault(self) -> str:
        """Why the broker ended TLS, asked once more: paho keeps to itself what came. Else empty."""
        if self._context is None:
            return ""
        try:
            with connect(self.broker.host, self.broker.port, STEP_S, self._context) as sock:
                sock.settimeout(ALERT_S)
                sock.recv(1)
        except ssl.SSLError as error:
            return str(error.strerror or error)
        except OSError:  # it hung up, or waits for what a client says first
            pass
        return ""

    def leave(self) -> None:
        """Disconnects."""
        client = self._client
        client.disconnect()
        client.on_connect = client.on_subscribe = client.on_publish = None
        client.on_message = client.on_disconnect = client.on_socket_open = None

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Subscribes, and returns once the broker has confirmed. Raises VisitError where it refuses."""
        where, names = str(self.broker), ", ".join(filters)
        limit, size = self.packet_limit, subscribe_bytes(filters)
        if limit is not None and size > limit:
            raise VisitError(
                f"it takes packets of {limit} bytes at most, as its CONNACK says, and the subscription to"
                f" {names} is one of {size}",
                where,
                "raise its limit (mosquitto: max_packet_size)",
            )
        _, mid = self._client.subscribe([(name, qos) for name in filters])
        if mid is None or not self.until(lambda: mid in self._subacks):
            what = "it hung up at" if self.gone else "no answer to"
            raise VisitError(f"{what} the subscription to {names}", where)
        for name, reason in zip(filters, self._subacks.pop(mid)):  # noqa: B905 (a broker may answer fewer)
            if reason.is_failure:
                raise VisitError(
                    f"the broker refuses the subscription to {name}: {reason}",
                    where,
                    "its access rules do not let this login read there",
                )

    def settle(self, unused: str) -> None:
        """Returns once the broker has sent what it had for this session: it answers in order.

        `unused` is a topic on which nothing comes; whether the broker grants it does not matter.
        """
        _, mid = self._client.subscribe(unused, 0)
        self.until(lambda: mid in self._subacks)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Publishes without waiting; `reason_of` has the answer."""
        return self._client.publish(topic, payload, qos=1, retain=retain).mid

    def reason_of(self, mid: int) -> Any:
        """The broker's answer to a publish; None where there is none yet."""
        return self._pubacks.get(mid)

    def until(self, condition: Callable[[], bool], seconds: float = STEP_S) -> bool:
        """Serves the connection until the condition holds; returns whether it does."""
        end = time.monotonic() + seconds
        while not condition():
            if self.gone or time.monotonic() > end:
                return condition()
            self._client.loop(0.05)
        return True

    # --- callbacks of paho ----------------------------------------------------------------------------

    def _connected(self, _c: Any, _u: Any, _flags: Any, reason: Any, properties: Any) -> None:
        self._connack, self.properties = reason, properties

    def _subscribed(self, _c: Any, _u: Any, mid: int, reasons: Any, _properties: Any) -> None:
        self._subacks[mid] = reasons

    def _published(self, _c: Any, _u: Any, mid: int, reason: Any, _properties: Any) -> None:
        self._pubacks[mid] = reason

    def _message(self, _c: Any, _u: Any, message: Any) -> None:
        self._take(message.topic, message.payload)

    def _disconnected(self, *_: Any) -> None:
        self.gone = True


@contextmanager
def visit(
    broker: Broker, version: str = "auto", take: Take = lambda _topic, _payload: None
) -> Iterator[Visitor]:
    """A visitor that is connected, in MQTT 5 or, where the broker does not know it, in 3.1.1.

    `take` gets what comes. Raises VisitError, and BrokerFileError for certificates that are unfit.
    """
    context = broker.tls_context()
    protocols = ("5", "3.1.1") if version == "auto" else (version,)
    for protocol in protocols:
        visitor = Visitor(broker, context, protocol, take)
        try:
            visitor.connect()
        except _NoAnswer as error:
            visitor.leave()
            if protocol == protocols[-1]:
                raise VisitError(error.what, error.where, error.hint) from None
            continue
        except VisitError:
            visitor.leave()
            raise
        try:
            yield visitor
        finally:
            visitor.leave()
        return


def _no_delay(_client: paho.Client, _data: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
