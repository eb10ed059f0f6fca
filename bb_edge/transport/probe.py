"""Tests a broker for `bb-edge doctor`: login, limits, and the round trip of a message.

The probe uses a session of its own that leaves nothing behind. Its messages go from the peer to itself, on
topics that access rules allow a node; a node that runs under that name meanwhile finds nothing in them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.broker import Broker
from bb_edge.transport.credentials import dial_fault, dial_hint
from bb_edge.transport.echo import to_itself
from bb_edge.transport.shared_socket import connect
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import STEP_S, VisitError, Visitor, visit

FEDERATION = "doctor"
_READ_RULE = "do its access rules let this login read there? (mosquitto: pattern read bb/{}/%u/from/+)"
_OWN_RULES = "access rules that know a federation's topics alone deny this one: give the node's --config"
ROUND_TRIPS = 10
"""Messages whose median is reported: enough to ignore one that was lost on a radio link and repeated."""


class ProbeError(BBError):
    """The broker cannot be reached, or refuses a step that a node needs; the message names the step."""


class NotBack(ProbeError):
    """What is sent to the peer does not come back: a broker that filters in silence, or refuses."""


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


def dial(broker: Broker) -> float:
    """Connects without logging in, and hangs up. Returns the milliseconds that it takes.

    Raises ProbeError where the broker cannot be reached, BrokerFileError for certificates that are unfit.
    """
    context = broker.tls_context()
    began = time.perf_counter()
    try:
        connect(broker.host, broker.port, STEP_S, context).close()
    except OSError as error:
        fault, hint = dial_fault(error, broker), dial_hint(error, broker)
        raise ProbeError(f"not reachable: {fault}", str(broker), hint) from error
    return (time.perf_counter() - began) * 1e3


def probe(broker: Broker, peer: PeerId, federation: str = FEDERATION, version: str = "auto") -> BrokerReport:
    """Connects, subscribes, and sends messages from the peer to itself.

    Without a `federation` they are in one that no node is in; access rules may know the node's own alone.
    Raises ProbeError where a step fails, NotBack where it is the messages' way back, and BrokerFileError for
    certificates that cannot be used.
    """
    connect_ms = dial(broker)
    got: list[str] = []
    topics = Topics(federation, peer)
    topic = topics.names(peer).envelope.decode()
    try:
        with visit(broker, version, lambda topic, _: got.append(topic)) as visitor:
            visitor.subscribe(topic)
            empty = to_itself(peer)
            times = []
            for number in range(1, ROUND_TRIPS + 1):
                began = time.perf_counter()
                mid = visitor.publish(topic, empty)
                if not visitor.until(lambda wanted=number: len(got) >= wanted):  # type: ignore[misc]
                    what = f"a message to {topic} did not come back"
                    hint = _OWN_RULES if federation == FEDERATION else _READ_RULE.format(federation)
                    raise NotBack(f"{what}: {_answered(visitor, mid)}", str(broker), hint)
                times.append(time.perf_counter() - began)
    except VisitError as error:
        raise ProbeError(error.what, error.where, error.hint) from error
    return BrokerReport(
        str(broker),
        visitor.protocol,
        round(connect_ms, 3),
        round(statistics.median(times) * 1e3, 3),
        visitor.packet_limit,
        getattr(visitor.properties, "ReceiveMaximum", None),
        getattr(visitor.properties, "TopicAliasMaximum", None),
    )


def _answered(visitor: Visitor, mid: int) -> str:
    """What the broker said to a publish that did not come back."""
    reason = visitor.reason_of(mid)
    if visitor.gone:
        return "the broker hung up"
    if reason is None:
        return "it does not acknowledge it either"
    return (
        f"the broker refuses it, {reason}"
        if reason.is_failure
        else "the broker took it, and does not hand it on"
    )
