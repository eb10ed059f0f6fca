"""The states of a connection, and the two versions of MQTT: the tables that connection.py decides by.

docs/design/transport.md draws them.
"""

from __future__ import annotations

import enum

from paho.mqtt.enums import MQTTProtocolVersion

from bb_edge.ir.transitions import Table

VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}


class State(enum.IntEnum):
    """Where a connection stands."""

    WAITING = 0  # no socket; the next dial comes when its time has come
    DIALING = 1  # a thread looks the name up and opens the socket
    GREETING = 2  # CONNECT is sent, CONNACK has not come
    REFUSED = 3  # CONNACK has refused us; the socket is about to be closed
    CONNECTED = 4
    LEAVING = 5  # the node stops; its last packets go out
    CLOSED = 6


class Event(enum.IntEnum):
    """What happens to a connection."""

    DIAL = 0  # the wait before a dial is over
    REACHED = 1  # the dial has given a socket
    UNREACHABLE = 2  # the dial has failed
    ACCEPTED = 3  # CONNACK: success
    TURNED_AWAY = 4  # CONNACK: a failure
    SILENT = 5  # no CONNACK within CONNACK_S
    LOST = 6  # the socket is closed, by either side
    LEAVE = 7  # the node stops


CONNECTION = Table(
    "connection to a broker",
    State.WAITING,
    {
        (State.WAITING, Event.DIAL): State.DIALING,
        (State.DIALING, Event.REACHED): State.GREETING,
        (State.DIALING, Event.UNREACHABLE): State.WAITING,
        (State.GREETING, Event.ACCEPTED): State.CONNECTED,
        (State.GREETING, Event.TURNED_AWAY): State.REFUSED,
        (State.GREETING, Event.SILENT): State.WAITING,
        (State.GREETING, Event.LOST): State.WAITING,
        (State.REFUSED, Event.LOST): State.WAITING,
        (State.CONNECTED, Event.LOST): State.WAITING,
        (State.CONNECTED, Event.LEAVE): State.LEAVING,
        (State.LEAVING, Event.LOST): State.CLOSED,
        (State.WAITING, Event.LEAVE): State.CLOSED,
        (State.DIALING, Event.LEAVE): State.CLOSED,
        (State.GREETING, Event.LEAVE): State.CLOSED,
    },
)


class Failure(enum.IntEnum):
    """How a CONNECT can fail in a way that the other version of MQTT may cure."""

    UNSUPPORTED = 0  # CONNACK says: unsupported protocol version
    HANGS_UP = 1  # the broker closed two connections in a row without a CONNACK
    NO_ANSWER = 2  # no CONNACK within CONNACK_S, nor twice as long after a second CONNECT


VERSION = Table(
    "version of MQTT",
    MQTTProtocolVersion.MQTTv5,
    {
        (MQTTProtocolVersion.MQTTv5, Failure.UNSUPPORTED): MQTTProtocolVersion.MQTTv311,
        (MQTTProtocolVersion.MQTTv5, Failure.HANGS_UP): MQTTProtocolVersion.MQTTv311,
        (MQTTProtocolVersion.MQTTv5, Failure.NO_ANSWER): MQTTProtocolVersion.MQTTv311,
        # The broker may have been overloaded when it did not answer the first CONNECT.
        (MQTTProtocolVersion.MQTTv311, Failure.NO_ANSWER): MQTTProtocolVersion.MQTTv5,
    },
)
HANGUPS = SILENCES = 2
"""One hang-up can be a broker that just died, and one silence a slow link that the next dial gives more time,
so the version is changed after this many in a row."""
