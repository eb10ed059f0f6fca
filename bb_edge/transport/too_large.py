"""Tells what does not fit the packets that a broker takes: nothing else would, for nothing of it is sent.

A presence goes in one packet. Where it does not fit no peer sees the node, which sees all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from bb_edge.transport.base import Log
from bb_edge.transport.broker import Broker
from bb_edge.transport.outgoing import Item, least_packet

BROKERS_LIMIT = "raise its limit (mosquitto: max_packet_size)"
SMALL_PACKETS = 512
"""Bytes of packets below which a presence, with its topic, or a chunk may find no room."""
SMALL_WORDS = f"with its topic, one takes some 400, and a chunk as many; {BROKERS_LIMIT}"


class _What(Enum):
    """What is told once per connection, and what follows."""

    PRESENCE = "no peer sees this node"
    ENVELOPE = "such envelopes are dropped"
    OTHER = "it is not sent"


class TooLarge:
    """What did not fit in the connection that is up."""

    def __init__(self, broker: Broker, own_limit: int, log: Log, unsaid: Callable[[], object]) -> None:
        """`own_limit` is `broker.max_packet_bytes`; `unsaid()` is called where it is a presence."""
        self._broker = broker
        self._own_limit = own_limit
        self._log = log
        self._unsaid = unsaid
        self._limit = own_limit
        self._told: set[_What] = set()

    def connected(self, packet_bytes: int) -> None:
        """A connection is up that takes packets of `packet_bytes` at most."""
        self._limit = packet_bytes
        self._told.clear()

    def tell(self, item: Item) -> None:
        """An item is dropped because no packet holds it."""
        least = least_packet(item)
        if item.retain:
            kind, what = _What.PRESENCE, f"its presence is one of {least}"
            self._unsaid()
        elif item.chunk_topic:
            kind, what = _What.ENVELOPE, f"an envelope to a peer takes packets of {least}"
        else:
            kind, what = _What.OTHER, f"what it says on {item.topic.decode()} is one of {least}"
        if kind in self._told:
            return
        self._told.add(kind)
        whose, remedy = f"broker {self._broker} takes packets of", BROKERS_LIMIT
        if self._limit == self._own_limit:
            whose, remedy = "this node sends packets of", "raise broker.max_packet_bytes"
        self._log(
            "error",
            f"{whose} {self._limit} bytes at most, and {what}: {kind.value}; {remedy}",
            kind="packet too large",
        )
