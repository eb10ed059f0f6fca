"""Coming to a broker, staying there, and coming back: dials, versions, refusals, waits in between.

Only a dial (name lookup, TCP and TLS set-up, which block) runs on a thread of its own; nothing else touches
the client meanwhile. MQTT 5 is tried first where both versions may be; a broker that refuses it, hangs up on
it or answers with silence is spoken to in 3.1.1.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bb_edge.transport.broker import MAX_PACKET_BYTES, Broker, MqttOptions
from bb_edge.transport.shared_socket import EnvelopeClient, SharedSocket, connect

CONNECT_TIMEOUT_S = 5.0
RETRY_FIRST_S, RETRY_MAX_S = 0.25, 30.0
STABLE_S = 5.0
"""A connection that broke sooner does not reset the waits: two processes of one name, of which each takes the
session from the other, would go on at full speed (not every broker says 0x8E), and so would a broker that
accepts and dies.
"""
CONNACK_S = 3.0
"""How long a broker may take to answer a CONNECT. Some answer a version they don't know with silence."""
INCOMING_ALIASES = 64
TAKEN_OVER = 0x8E

VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}
LOST_IN_311 = "no message expiry, reason codes, receive maximum, topic aliases or session expiry"

Log = Callable[[str, str], None]
"""Takes (level, message)."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What the broker's CONNACK allows: publishes under way, topic aliases, bytes of a packet's body."""

    v5: bool
    same_session: bool
    window: int
    aliases: int
    packet_bytes: int


class Connection:
    """One node's connection. `shared` is there while a socket is, `connected` from CONNACK on."""

    def __init__(
        self,
        broker: Broker,
        options: MqttOptions,
        version: str,
        *,
        client_id: str,
        will: tuple[str, bytes],
        filters: Sequence[str],
        largest: int,
        counters: MutableMapping[str, int],
        log: Log,
        jitter: random.Random,
        wake: Callable[[], None],
        opened: Callable[[], None],
        up: Callable[[Granted], None],
        down: Callable[[], None],
    ) -> None:
        """`opened` is called with a new socket, `up` at its CONNACK, `down` when an `up` has ended."""
        self._broker = broker
        self._options = options
        self._client_id = client_id
        self._will = will
        self._filters = filters
        self._largest = largest
        self._counters = counters
        self._log = log
        self._jitter = jitter
        self._wake = wake
        self._opened, self._up, self._down = opened, up, down
        self._tls = broker.tls_context()
        self._version = VERSIONS.get(version, MQTTProtocolVersion.MQTTv5)
        self._may_fall_back = version == "auto"
        self.client: EnvelopeClient = self._new_client()
        self.shared: SharedSocket | None = None
        self.connected = False
        self.leaving = False
        self._turned_away = ""
        self._connack_by = 0.0
        self._connected_at = 0.0
        self._hangups = 0
        self._dialing: threading.Thread | None = None
        self._dialed_error: OSError | ValueError | None = None
        self._retry_s = RETRY_FIRST_S
        self._retry_at = 0.0
        self._next_misc = 0.0

    @property
    def v5(self) -> bool:
        return self._version is MQTTProtocolVersion.MQTTv5

    # --- the driver's thread, around each wait -----------------------------------------------------------

    def before_wait(self, timeout_s: float | None) -> float | None:
        """Dials where it is time to; the timeout, shortened to the next dial."""
        if self._dialing is not None:
            self._finish_dial()
        if self.shared is None and self._dialing is None:
            left = self._retry_at - time.monotonic()
            if left <= 0:
                self.dial()
            elif timeout_s is None or left < timeout_s:
                return left
        return timeout_s

    def after_wait(self) -> bool:
        """Pings, and gives a silent broker up; True about once a second."""
        if self.shared is None:
            return False
        now = time.monotonic()
        if not self.connected and self._connack_by and now >= self._connack_by:
            self._no_connack()
        elif now >= self._next_misc:
            self._next_misc = now + 1.0
            self.client.loop_misc()
            return True
        return False

    def close(self) -> None:
        """Says DISCONNECT where there is somebody to say it to, and closes the socket."""
        self.leaving = True
        if self._dialing is not None:
            self._dialing.join(CONNECT_TIMEOUT_S + 1)
            self._finish_dial()
        if self.connected:
            self.client.disconnect()
        sock = self.client.socket()
        self.shared = None
        if sock is not None:
            sock.close()

    def feed(self, shared: SharedSocket, packet: bytes) -> None:
        """Gives paho one packet, or (empty) the end of the stream."""
        shared.grant(packet)
        try:
            self.client.loop_read()
        # paho's parsers raise whatever they stumble over in a broken packet: struct.error, IndexError, …
        except Exception as error:  # noqa: BLE001
            self._counters["malformed"] += 1
            self.drop(f"a packet {packet[:1].hex()} of {len(packet)} bytes is not MQTT: {error!r}")

    def drop(self, reason: str) -> None:
        """Ends the connection for a fault of the broker's; the next dial comes after a wait."""
        sock = self.client.socket()
        self.shared = None
        self._connack_by = 0.0
        if sock is not None:
            sock.close()
        if self.connected:
            self.connected = False
            self._counters["disconnects"] += 1
            self._down()
        self._later(f"broker {self._broker}: {reason}")

    # --- dialing --------------------------------------------------------------------------------------

    def _new_client(self) -> EnvelopeClient:
        """A client per connection: what outlives one is in `Outgoing` and in the broker's session."""
        client = EnvelopeClient(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            clean_session=None if self.v5 else False,
            protocol=self._version,
            reconnect_on_failure=False,
        )
        client.will_set(*self._will, qos=1, retain=True)
        if self._broker.username is not None:
            client.username_pw_set(self._broker.username, self._broker.password)
        broker, tls = self._broker, self._tls
        client.connector = lambda: connect(broker.host, broker.port, CONNECT_TIMEOUT_S, tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        return client

    def dial(self) -> None:
        """Begins to connect, on a thread of its own."""
        client = self.client = self._new_client()
        self._dialed_error = None
        options, broker = self._options, self._broker
        session: dict[str, Any] = {}
        if self.v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = options.session_expiry_s
            properties.ReceiveMaximum = options.receive_maximum
            properties.MaximumPacketSize = self._largest
            properties.TopicAliasMaximum = INCOMING_ALIASES
            session = {"clean_start": False, "properties": properties}

        def run() -> None:
            try:
                client.connect(broker.host, broker.port, options.keepalive_s, **session)
            except (OSError, ValueError) as error:
                self._dialed_error = error
            finally:
                self._wake()

        self._dialing = threading.Thread(target=run, name="bb-mqtt-dial", daemon=True)
        self._dialing.start()

    def _finish_dial(self) -> None:
        thread = self._dialing
        if thread is None or (
            thread.is_alive() and self.client.socket() is None and self._dialed_error is None
        ):
            return
        thread.join()
        self._dialing = None
        if self._dialed_error is not None:
            self._later(f"broker {self._broker} not reachable: {self._dialed_error}")
            return
        self.shared = self.client.shared
        self._turned_away = ""
        self._connack_by = time.monotonic() + CONNACK_S
        self._opened()

    def _later(self, reason: str) -> None:
        """The next dial comes after a wait that doubles, with jitter."""
        wait = self._retry_s * (0.5 + self._jitter.random())
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        self._retry_at = time.monotonic() + wait
        self._log("warning", f"{reason}; next try in {wait:.1f} s")

    def _no_connack(self) -> None:
        """Nothing came back for a CONNECT: the other version is tried next, if both may be."""
        self._connack_by = 0.0
        sock = self.client.socket()
        self.shared = None
        if sock is not None:
            sock.close()
        if self._may_fall_back and self.v5:
            self._fall_back("no answer to CONNECT")
            return
        if self._may_fall_back:
            self._version = MQTTProtocolVersion.MQTTv5
        self._later(f"broker {self._broker} does not answer")

    def _fall_back(self, reason: str) -> None:
        self._log(
            "warning",
            f"broker {self._broker} does not speak MQTT 5 ({reason}): using 3.1.1, which has {LOST_IN_311}",
        )
        self._version = MQTTProtocolVersion.MQTTv311
        self._retry_s = RETRY_FIRST_S
        self._retry_at = time.monotonic()

    # --- what paho tells ------------------------------------------------------------------------------

    def _on_connect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        if reason.is_failure:
            self._counters["refused"] += 1
            self._turned_away = str(reason)
            return
        self.connected = True
        self._connected_at = time.monotonic()
        self._hangups = 0
        self._counters["connects"] += 1
        named = getattr(properties, "MaximumPacketSize", MAX_PACKET_BYTES) if self.v5 else MAX_PACKET_BYTES
        client.subscribe([(name, 1) for name in self._filters])
        self._up(
            Granted(
                v5=self.v5,
                same_session=flags.session_present,
                window=getattr(properties, "ReceiveMaximum", 65_535) if self.v5 else 65_535,
                aliases=getattr(properties, "TopicAliasMaximum", 0) if self.v5 else 0,
                packet_bytes=min(named, self._options.max_packet_bytes),
            )
        )
        self._log("info", f"connected to {self._broker}, MQTT {'5' if self.v5 else '3.1.1'}")

    def _on_subscribe(
        self, client: paho.Client, _data: object, mid: int, reasons: Any, properties: Any
    ) -> None:
        for name, reason in zip(self._filters, reasons):  # noqa: B905 (a broker may answer fewer)
            if reason.is_failure:
                self._counters["refused"] += 1
                self._log("error", f"broker {self._broker} refuses the subscription {name}: {reason}")

    def _on_disconnect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        if client is not self.client:
            return
        self.shared = None
        self._connack_by = 0.0
        was_connected, self.connected = self.connected, False
        if was_connected:
            self._down()
        if self.leaving:
            return
        if was_connected:
            self._counters["disconnects"] += 1
            if time.monotonic() - self._connected_at >= STABLE_S:
                self._retry_s = RETRY_FIRST_S
            if flags.is_disconnect_packet_from_server and reason.value == TAKEN_OVER:
                self._retry_s = RETRY_MAX_S
                self._log("error", f"another client of {self._broker} has the name {self._client_id}")
            self._later(f"connection to {self._broker} lost: {reason}")
            return
        may_fall_back = self._may_fall_back and self.v5
        if self._turned_away:
            if may_fall_back and "protocol version" in self._turned_away.lower():
                self._fall_back(self._turned_away)
                return
            self._log("error", f"broker {self._broker} refuses: {self._turned_away}")
            self._later(f"broker {self._broker} does not let us in")
            return
        # Hung up before a CONNACK: some 3.1.1 brokers answer a version they don't know that way.
        self._hangups += 1
        if may_fall_back and self._hangups >= 2:
            self._fall_back("it hangs up")
        else:
            self._later(f"broker {self._broker} hung up: {reason}")
