"""The connection of one node to its broker: when it dials, and the choice of MQTT version.

It decides by the tables of connection_states.py. Nothing touches the client until its dial (dialing.py) has
ended. Where both versions are allowed, MQTT 5 is tried first, and a broker that refuses
it, hangs up on it or does not answer is spoken to in 3.1.1.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bb_edge.transport.base import Log
from bb_edge.transport.broker import MAX_PACKET_BYTES, Broker, MqttOptions
from bb_edge.transport.connection_states import (
    CONNECTION,
    HANGUPS,
    SILENCES,
    VERSION,
    VERSIONS,
    Event,
    Failure,
    State,
)
from bb_edge.transport.credentials import Refusals, alert_hint, dial_fault, dial_hint, hang_up_hint
from bb_edge.transport.dialing import CONNECT_TIMEOUT_S, Dialing
from bb_edge.transport.lost import PROTOCOL_ERROR, lost_because
from bb_edge.transport.outage import Outage
from bb_edge.transport.packets import PacketError, subscribe_bytes
from bb_edge.transport.renewal import TlsContext
from bb_edge.transport.shared_socket import EnvelopeClient, SharedSocket, connect

CONNACK_S = 3.0
"""Seconds that a broker may take to answer a CONNECT; some never answer a version that they do not know."""

INCOMING_ALIASES = 64
"""Topic aliases that the broker may use for us: one per peer of a common federation, some 6 KB in all."""

MOST_SHOWN = 32
"""Bytes that are shown of a packet that cannot be read."""
TAKEN_OVER = 0x8E
"""Reason code of a DISCONNECT: another client connected with our client id."""

LOST_IN_311 = "no message expiry, reason codes, receive maximum, topic aliases or session expiry"


@dataclass(frozen=True, slots=True)
class Granted:
    """What the broker's CONNACK allows: publishes under way, topic aliases, bytes of a packet's body."""

    v5: bool
    same_session: bool
    window: int
    aliases: int
    packet_bytes: int


class Connection:
    """One node's connection, used by the driver's thread alone.

    `shared` is the socket while there is one, else None; `state` is one of `CONNECTION`.
    """

    def __init__(
        self,
        broker: Broker,
        options: MqttOptions,
        version: str,
        *,
        client_id: str,
        will: Callable[[], tuple[str, bytes]],
        filters: Sequence[str],
        counters: MutableMapping[str, int],
        log: Log,
        jitter: random.Random,
        wake: Callable[[], None],
        opened: Callable[[], None],
        up: Callable[[Granted], None],
        down: Callable[[], None],
    ) -> None:
        """Makes a connection that has not dialed yet.

        `filters` are subscribed to at each CONNACK; `will()` gives topic and payload of the will, once per
        CONNECT. `opened()` is called when there is a new socket, `up(granted)` at its CONNACK, `down()` when
        a connection that was up has ended; `wake()` ends the driver's wait, from the thread of a dial.
        Raises BrokerFileError where a certificate cannot be used.
        """
        self._broker = broker
        self._options = options
        self._client_id = client_id
        self._will = will
        self._filters = tuple(filters)
        self._asked: dict[int, tuple[str, ...]] = {}  # the filters of each SUBSCRIBE that is not answered
        self._clean = False  # whether the next CONNECT begins the session anew
        self._contested = False
        self._fell_back = False  # since the last CONNACK: another change of the version costs a wait
        self._counters = counters
        self._log = log
        self._dialing = Dialing(jitter, wake)
        self._opened, self._up, self._down = opened, up, down
        self._tls = TlsContext(broker, log)
        self._version = VERSIONS.get(version, MQTTProtocolVersion.MQTTv5)
        self._may_fall_back = version == "auto"
        self.client: EnvelopeClient = self._new_client()
        self.shared: SharedSocket | None = None
        self.state = CONNECTION.start
        self._refusal = ""  # what the CONNACK said that refused us
        self._refusals = Refusals(broker)
        self._outage = Outage()
        self._largest = MAX_PACKET_BYTES  # that the broker takes, as it says itself
        self._fed = b""  # the packet that paho reads
        self._connack_by = 0.0
        self._connected_at = 0.0
        self._hangups = self._silences = 0
        self._next_misc = 0.0

    @property
    def v5(self) -> bool:
        """Whether MQTT 5 is spoken, or will be at the next dial."""
        return self._version is MQTTProtocolVersion.MQTTv5

    @property
    def connected(self) -> bool:
        """Whether packets can be sent: from CONNACK until the socket is closed."""
        return self.state in (State.CONNECTED, State.LEAVING)

    def _enter(self, event: Event) -> State:
        """Takes a transition, and returns the state before it."""
        before, self.state = self.state, CONNECTION.next(self.state, event)
        if self.state in (State.WAITING, State.CLOSED):
            self.shared = None
        return before

    # --- the driver's thread, around each wait -----------------------------------------------------------

    def before_wait(self, timeout_s: float | None) -> float | None:
        """Dials when its time has come, and returns the timeout in seconds, shortened to the next dial."""
        if self.state is State.DIALING:
            self._finish_dial()
        if self.state is State.WAITING:
            left = self._dialing.left_s
            if left <= 0:
                self.dial()
            elif timeout_s is None or left < timeout_s:
                return left
        return timeout_s

    def after_wait(self) -> bool:
        """Keeps the connection alive, and gives up a broker that does not answer; True once a second."""
        if self.shared is None:
            return False
        now = time.monotonic()
        if self.state is State.GREETING and now >= self._connack_by:
            self._no_connack()
        elif now >= self._next_misc:
            self._next_misc = now + 1.0
            self.client.loop_misc()
            return True
        return False

    def leave(self) -> None:
        """Stops dialing; an open connection stays until `close`, for the last packets."""
        self._enter(Event.LEAVE)

    def close(self) -> None:
        """Sends DISCONNECT where a connection is open, and closes the socket; to be called after `leave`."""
        self._dialing.join()
        if self.connected:
            self.client.disconnect()
        self._close_socket()

    def _close_socket(self) -> None:
        sock = self.client.socket()
        if sock is not None:
            sock.close()

    def feed(self, shared: SharedSocket, packet: bytes) -> None:
        """Gives paho one packet, or the end of the stream (an empty packet)."""
        shared.grant(packet)
        self._fed = packet
        try:
            self.client.loop_read()
        # In a broken packet, paho's parsers raise struct.error, IndexError and others.
        except Exception as error:  # noqa: BLE001
            self._counters["malformed"] += 1
            self.drop(f"a packet {packet[:1].hex()} of {len(packet)} bytes is not MQTT: {error!r}")

    def drop(self, reason: str) -> None:
        """Closes the connection because the broker broke the protocol; the next dial comes after a wait."""
        self._hang_up()
        if self.state is State.WAITING:
            self._later(f"broker {self._broker}: {reason}")

    def redial(self, reason: str, clean: bool = False) -> None:
        """Closes the connection and dials again at once; `clean` has the broker forget the session."""
        self._clean = clean
        self._hang_up()
        if self.state is State.WAITING:
            self._dialing.at_once()
            self._log("warning", f"connecting to {self._broker} anew: {reason}", kind="no connection")

    def _hang_up(self) -> None:
        was_connected = self.connected
        self._close_socket()
        self._enter(Event.LOST)
        if was_connected:
            self._outage.lost(time.monotonic() - self._connected_at)
            self._counters["disconnects"] += 1
            self._down()

    def contested(self) -> None:
        """Another client takes this one's place: once the connection is lost, the next dial waits long."""
        self._contested = True

    def subscribe(self, filters: Sequence[str], qos: int = 1) -> None:
        """Subscribes to further topics, for this connection; with `qos` 0 nothing is kept for the client."""
        if self.connected:
            for some in self._fitting(tuple(filters)):
                self._asked[self.client.subscribe([(name, qos) for name in some])[1] or 0] = some

    def _fitting(self, filters: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
        """The filters in one packet, or one by one where the broker takes none as large as that."""
        if subscribe_bytes(filters) <= self._largest:
            return (filters,)
        some = [(name,) for name in filters if subscribe_bytes((name,)) <= self._largest]
        if len(some) < len(filters):
            missing = [name for name in filters if (name,) not in some]
            self._log(
                "error",
                f"broker {self._broker} takes packets of {self._largest} bytes at most, and the subscription"
                f" to {', '.join(missing)} is larger: raise its limit (mosquitto: max_packet_size)",
                kind="subscription too large",
            )
        return some

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Ends subscriptions; one that is not there is no fault."""
        if self.connected:
            self.client.unsubscribe(list(filters))

    # --- dialing --------------------------------------------------------------------------------------

    def _new_client(self) -> EnvelopeClient:
        """A client for one connection; what outlives it is in `Outgoing` and in the broker's session."""
        client = EnvelopeClient(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            clean_session=None if self.v5 else self._clean,
            protocol=self._version,
            reconnect_on_failure=False,
        )
        if self._broker.username is not None:
            client.username_pw_set(self._broker.username, self._broker.password)
        broker, tls = self._broker, self._tls.current()
        patience = self._dialing.patience
        client.connector = lambda: connect(broker.host, broker.port, CONNECT_TIMEOUT_S, tls, patience)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        return client

    def dial(self) -> None:
        """Begins to connect, on a thread of its own."""
        self._enter(Event.DIAL)
        client = self.client = self._new_client()
        client.will_set(*self._will(), qos=1, retain=True)
        self._asked.clear()
        options, broker = self._options, self._broker
        session: dict[str, Any] = {}
        if self.v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = options.session_expiry_s
            properties.ReceiveMaximum = options.receive_maximum
            # No maximum packet size: mosquitto 2.0 drops what is larger, and counts it against the receive
            # maximum for ever. What is too large is thrown away as it comes, and acknowledged.
            properties.TopicAliasMaximum = INCOMING_ALIASES
            session = {"clean_start": self._clean, "properties": properties}
        self._dialing.begin(lambda: client.connect(broker.host, broker.port, options.keepalive_s, **session))

    def _finish_dial(self) -> None:
        dialing = self._dialing
        if not dialing.take_end(lambda: self.client.socket() is not None):
            return
        if dialing.error is not None:
            self._enter(Event.UNREACHABLE)
            if isinstance(dialing.error, TimeoutError):
                dialing.took_too_long()
            fault, hint = dial_fault(dialing.error, self._broker), ""
            # What these say names neither the host, nor the port, nor the DNS.
            if isinstance(dialing.error, socket.gaierror | ConnectionRefusedError):
                hint = f" ({dial_hint(dialing.error, self._broker)})"
            self._later(f"broker {self._broker} is not reachable: {fault}{hint}")
            return
        self._enter(Event.REACHED)
        self.shared = self.client.shared
        self._connack_by = time.monotonic() + CONNACK_S * dialing.patience
        self._opened()

    def _later(self, reason: str, kind: str = "no connection") -> None:
        """Sets the time of the next dial, and says why and when, ever more seldom in an outage that goes on;
        the log limits lines by `kind`.
        """
        wait = self._dialing.put_off()
        if line := self._outage.line(reason, time.monotonic()):
            self._log("warning", f"{line}; next try in {wait:.1f} s", kind=kind)

    def _no_connack(self) -> None:
        """Gives up a broker that has not answered CONNECT; the second time the other version is next, if both
        are allowed: the link may be slow.
        """
        self._close_socket()
        self._enter(Event.SILENT)
        self._dialing.took_too_long()
        self._silences += 1
        silent = self._silences >= SILENCES
        if not (silent and self._fall_back(Failure.NO_ANSWER, "no answer to CONNECT")):
            self._later(f"broker {self._broker} does not answer")

    def _fall_back(self, failure: Failure, reason: str) -> bool:
        """Changes the version as `VERSION` says, and returns whether to dial at once, in 3.1.1.

        So it is once per outage: a broker that answers neither version is dialed ever more seldom.
        """
        if not self._may_fall_back or not VERSION.allows(self._version, failure):
            return False
        self._version = VERSION.next(self._version, failure)
        if self.v5 or self._fell_back:
            return False
        self._fell_back = True
        speaks = "does not speak" if failure is Failure.UNSUPPORTED else "seems not to speak"
        self._log(
            "warning",
            f"broker {self._broker} {speaks} MQTT 5 ({reason}): using 3.1.1, which has {LOST_IN_311}",
            kind="MQTT 3.1.1",
        )
        self._dialing.at_once()
        return True

    # --- callbacks of paho ----------------------------------------------------------------------------

    def _on_connect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        if self.state is not State.GREETING:
            raise PacketError("a second CONNACK", "broker")
        if reason.is_failure:
            self._enter(Event.TURNED_AWAY)
            self._counters["refused"] += 1
            self._refusal = str(reason)
            return
        self._enter(Event.ACCEPTED)
        self._connected_at = time.monotonic()
        self._hangups = self._silences = 0
        self._clean = self._fell_back = False
        self._refusals.over()
        self._counters["connects"] += 1
        named = getattr(properties, "MaximumPacketSize", MAX_PACKET_BYTES) if self.v5 else MAX_PACKET_BYTES
        self._largest = named
        self.subscribe(self._filters)
        self._up(
            Granted(
                v5=self.v5,
                same_session=flags.session_present,
                window=getattr(properties, "ReceiveMaximum", 65_535) if self.v5 else 65_535,
                aliases=getattr(properties, "TopicAliasMaximum", 0) if self.v5 else 0,
                packet_bytes=min(named, self._options.max_packet_bytes),
            )
        )
        version = "5" if self.v5 else "3.1.1"
        after = self._outage.connected(self._connected_at)
        if after is not None:
            self._log("info", f"connected to {self._broker}, MQTT {version}{after}", kind="connected")

    def _on_subscribe(
        self, client: paho.Client, _data: object, mid: int, reasons: Any, properties: Any
    ) -> None:
        for name, reason in zip(self._asked.pop(mid, ()), reasons):  # noqa: B905 (a broker may answer fewer)
            if reason.is_failure:
                self._counters["refused"] += 1
                self._log(
                    "error",
                    f"broker {self._broker} refuses the subscription to {name}: {reason}",
                    kind="subscription refused",
                )

    def _on_disconnect(
        self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any
    ) -> None:
        # Where a broker answers no ping, paho tells it twice in one look at the time.
        if client is not self.client or self.shared is None:
            return
        fault = self.shared.fault if self.shared is not None else ""
        from_broker = flags.is_disconnect_packet_from_server
        why = lost_because(reason, from_broker, fault, self._options.keepalive_s)
        before = self._enter(Event.LOST)
        if before in (State.CONNECTED, State.LEAVING):
            self._down()
        if before is State.CONNECTED:
            self._counters["disconnects"] += 1
            lasted = time.monotonic() - self._connected_at
            self._dialing.lost(lasted)
            self._outage.lost(lasted)
            taken_over = from_broker and reason.value == TAKEN_OVER
            if taken_over:
                self._log(
                    "error",
                    f"another client at {self._broker} uses the name {self._client_id}",
                    kind="name in use",
                )
            if taken_over or self._contested:
                self._dialing.wait_long()
                self._contested = False
            self._later(f"connection to {self._broker} lost: {why}", kind="connection lost")
        elif before is State.REFUSED:
            unsupported = "protocol version" in self._refusal.lower()
            if not (unsupported and self._fall_back(Failure.UNSUPPORTED, self._refusal)):
                wait = self._dialing.put_off()
                self._outage.tried(time.monotonic())
                if line := self._refusals.line(self._refusal, time.monotonic()):
                    self._log("error", f"{line}; next try in {wait:.1f} s", kind="connection refused")
        elif before is State.GREETING:
            if alert := alert_hint(self._broker, fault):
                self._later(f"broker {self._broker} ended TLS: {fault} ({alert})")
                return
            # Some brokers that know 3.1.1 only answer CONNECT that way.
            self._hangups += 1
            unread = not from_broker and reason.value == PROTOCOL_ERROR and bool(self._fed)
            does = "its answer is not MQTT 5" if unread else "it hangs up"
            if self._hangups >= HANGUPS and self._fall_back(Failure.HANGS_UP, does):
                return
            if unread:
                version, packet = "5" if self.v5 else "3.1.1", self._fed[:MOST_SHOWN].hex()
                self._later(
                    f"broker {self._broker}: what it answers to CONNECT is not MQTT {version}: {packet}"
                )
            else:
                hint = hang_up_hint(self._broker)
                self._later(f"broker {self._broker} hung up before it let this node in: {why}{hint}")
