"""Tests a broker for `bb-edge doctor`: login, limits, and the round trip of a message.

The probe uses a session of its own that leaves nothing behind. Its messages go from the peer to itself, on
topics that the access rules in firmware_shims allow, in a federation that no node is in.
"""

from __future__ import annotations

import secrets
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.connection import VERSIONS
from bb_edge.transport.shared_socket import connect
from bb_edge.transport.topics import Topics

FEDERATION = "doctor"
ROUND_TRIPS = 10
"""Messages whose median is reported: enough to ignore one that was lost on a radio link and repeated."""
STEP_S = 5.0
"""Seconds that each step may take; the same as a node's dial."""


class ProbeError(BBError):
    """The broker cannot be reached, or refuses a step that a node needs; the message names the step."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The result of a probe. Times are milliseconds; a limit is None if the broker does not name it."""

    broker: str
    protocol: str
    connect_ms: float
    round_trip_ms: float
    max_packet_bytes: int | None
    receive_maximum: int | None
    topic_aliases: int | None


def probe(broker: Broker, peer: PeerId, federation: str = FEDERATION, version: str = "auto") -> BrokerReport:
    """Connects, subscribes, and sends messages from the peer to itself.

    Raises ProbeError where a step fails, and BrokerFileError for certificates that cannot be used.
    """
    context = broker.tls_context()
    began = time.perf_counter()
    try:
        connect(broker.host, broker.port, STEP_S, context).close()
    except OSError as error:
        raise ProbeError(f"not reachable: {error}", str(broker)) from error
    connect_ms = (time.perf_counter() - began) * 1e3
    protocols = ("5", "3.1.1") if version == "auto" else (version,)
    for protocol in protocols:
        try:
            return _Probe(broker, context, peer, federation, protocol).run(connect_ms)
        except _NoAnswer as error:
            if protocol == protocols[-1]:
                raise ProbeError(str(error), str(broker)) from None
    raise AssertionError("no version was tried")


class _NoAnswer(Exception):
    """The broker does not answer CONNECT, or hangs up: it may only know the older version."""


class _Probe:
    def __init__(self, broker: Broker, context: Any, peer: PeerId, federation: str, protocol: str) -> None:
        self._broker = broker
        self._protocol = protocol
        topics = Topics(federation, peer)
        self._inbox = topics.inbox
        self._topic = topics.names(peer).envelope.decode()
        v5 = VERSIONS[protocol] is MQTTProtocolVersion.MQTTv5
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"bb-doctor-{secrets.token_hex(6)}",
            clean_session=None if v5 else True,
            protocol=VERSIONS[protocol],
            reconnect_on_failure=False,
        )
        client.connect_timeout = STEP_S
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if context is not None:
            client.tls_set_context(context)
        self._connack: tuple[Any, Any] | None = None
        self._suback: Any = None
        self._puback: Any = None
        self._got = 0
        self._gone = False

    def run(self, connect_ms: float) -> BrokerReport:
        client = self._client

        def connected(_c: Any, _u: Any, _flags: Any, reason: Any, properties: Any) -> None:
            self._connack = reason, properties

        def subscribed(_c: Any, _u: Any, _mid: int, reasons: Any, _properties: Any) -> None:
            self._suback = reasons[0]

        def published(_c: Any, _u: Any, _mid: int, reason: Any, _properties: Any) -> None:
            self._puback = reason

        def message(*_: Any) -> None:
            self._got += 1

        def disconnected(*_: Any) -> None:
            self._gone = True

        client.on_connect, client.on_subscribe, client.on_publish = connected, subscribed, published
        client.on_message, client.on_disconnect = message, disconnected
        client.on_socket_open = _no_delay
        try:
            client.connect(self._broker.host, self._broker.port)
            return self._steps(connect_ms)
        except OSError as error:
            raise ProbeError(f"not reachable: {error}", str(self._broker)) from error
        finally:
            client.disconnect()
            client.on_connect = client.on_subscribe = client.on_publish = None
            client.on_message = client.on_disconnect = client.on_socket_open = None

    def _steps(self, connect_ms: float) -> BrokerReport:
        client, where = self._client, str(self._broker)
        if not self._until(lambda: self._connack is not None) or self._connack is None:
            raise _NoAnswer("no answer to CONNECT")
        reason, properties = self._connack
        if reason.is_failure:
            if "protocol version" in str(reason).lower():
                raise _NoAnswer(str(reason))
            raise ProbeError(f"the broker refuses the connection: {reason}", where)
        client.subscribe(self._inbox, 1)
        if not self._until(lambda: self._suback is not None) or self._suback.is_failure:
            raise ProbeError(f"the broker refuses the subscription to {self._inbox}: {self._suback}", where)
        times = []
        for number in range(1, ROUND_TRIPS + 1):
            began = time.perf_counter()
            client.publish(self._topic, b"probe", qos=1)
            if not self._until(lambda wanted=number: self._got >= wanted):  # type: ignore[misc]
                answer = f": {self._puback}" if self._puback is not None else ""
                raise ProbeError(f"a message to {self._topic} did not come back{answer}", where)
            times.append(time.perf_counter() - began)
        return BrokerReport(
            where,
            self._protocol,
            round(connect_ms, 3),
            round(statistics.median(times) * 1e3, 3),
            getattr(properties, "MaximumPacketSize", None),
            getattr(properties, "ReceiveMaximum", None),
            getattr(properties, "TopicAliasMaximum", None),
        )

    def _until(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + STEP_S
        while not condition():
            if self._gone or time.monotonic() > end:
                return condition()
            self._client.loop(0.1)
        return True


def _no_delay(_client: paho.Client, _data: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
