"""Why a connection to a broker has ended, or it refuses something, in words for whoever reads the log.

MQTT 5 has a packet for it, which many brokers leave out; a closed socket says nothing. paho calls both
"Unspecified error".
"""

from __future__ import annotations

from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

NOT_AUTHORIZED = 0x87
TOO_LARGE = 0x95
PROTOCOL_ERROR = 0x82
"""Reason code that paho gives where it cannot read a packet, and ends the connection itself."""
KEEP_ALIVE = 0x8D
"""Reason code: a keep-alive timeout; from paho itself where the broker no longer answers pings."""
_LOOK = {
    NOT_AUTHORIZED: (
        "is this peer in this class in the list of bb-host acl, and federation (in the topic) the name that"
        " its rules are for?"
    ),
    TOO_LARGE: "set broker.max_packet_bytes to what the broker takes, and it goes in chunks",
}


def lost_because(reason: Any, from_broker: bool, fault: str, keepalive_s: int) -> str:
    """Who has ended a connection, and why.

    `reason` is paho's ReasonCode, which `from_broker` says is of the broker's own DISCONNECT; `fault` is what
    the socket said, empty where the other side closed it; `keepalive_s` are the seconds without a word after
    which a ping is sent.
    """
    if from_broker:
        return f"the broker ended it: {reason} (reason {reason.value})"
    if reason.value == KEEP_ALIVE:
        return f"the broker answered no ping, which is sent after {keepalive_s} s without a word: is it gone?"
    if reason.value == PROTOCOL_ERROR:
        return "the broker's bytes are not MQTT"
    if fault:
        return f"the broker, or the network, broke it off: {fault}"
    return (
        "the broker closed it and gave no reason, as one does that dies, restarts, or gives the place to"
        " another client of this name"
    )


def refusal(reason: int, stranger: str) -> str:
    """Why the broker refused a publish, by the reason code of its PUBACK (MQTT 5), and what to look at.

    `stranger` says that the broker knows this client by another name, if so.
    """
    try:
        words = ReasonCode(PacketTypes.PUBACK, identifier=reason).getName()
    except (KeyError, ValueError):  # no code of the standard's, or not one of an acknowledgement's
        words = "packet too large" if reason == TOO_LARGE else "for a reason of its own"
    look = _LOOK.get(reason, "")
    return "; ".join(filter(None, (f"{words.lower()} ({reason:#04x})", stranger or look)))
