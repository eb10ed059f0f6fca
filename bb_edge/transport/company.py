"""Whom a broker knows around a node, for `bb-edge doctor`: who else has its name, and its peers.

A federation's name that is wrong by a letter is a federation of its own, in which nobody is: no broker says
so. Where nobody of a class is there, the names of the federations are asked for in which somebody is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.transport.broker import Broker
from bb_edge.transport.roster import MANY, QUIET_S, Member
from bb_edge.transport.topics import Topics
from bb_edge.transport.visitor import VisitError, Visitor, visit
from bb_edge.wire.presence import PresenceError, decode_presence

MOST = 1024
"""Presences that are looked at, and federations: enough to say that somebody is there."""


@dataclass(frozen=True, slots=True)
class Company:
    """What a broker keeps: `own` under the node's own name, None where it tells nothing.

    `up` and `down` count the peers of each class that the node deals with; `elsewhere` names the other
    federations in which there are peers of a class of which nobody is up here. Of `many` a broker's queue may
    have dropped others.
    """

    own: Member | None
    up: Mapping[str, int]
    down: Mapping[str, int]
    elsewhere: Mapping[str, tuple[str, ...]]
    many: bool = False

    @property
    def broke_off(self) -> bool:
        """Whether the node's last word is its will: its connection has ended without a goodbye."""
        if self.own is None or self.own.up:
            return False
        return any(not said.up and not said.seq for said in self.own.presences.values())


def company(
    broker: Broker, peer: PeerId, federation: str, classes: Iterable[str], version: str = "auto"
) -> Company:
    """Reads what the broker keeps; what its rules keep from this login is not there.

    Raises VisitError where the broker cannot be reached or does not answer, BrokerFileError.
    """
    topics, classes = Topics(federation, peer), sorted(set(classes))
    found: dict[str, bytes] = {}

    def take(topic: str, payload: bytes) -> None:
        if topic in found or len(found) < MOST:
            found[topic] = payload

    with visit(broker, version, take) as visitor:
        _read(visitor, federation, topics.own_presences, *map(topics.presence, classes))
        many = len(found) >= MANY
        members = _members(found, f"bb/{federation}/presence/")
        own = members.pop(peer, None)
        up, down = (
            {
                name: sum(name in member.classes and member.up is is_up for member in members.values())
                for name in classes
            }
            for is_up in (True, False)
        )
        lonely = [name for name in classes if not up[name]]
        found.clear()
        if lonely:
            _read(visitor, federation, *(f"bb/+/presence/{name}/+" for name in lonely))
    elsewhere: dict[str, set[str]] = {name: set() for name in lonely}
    for topic, payload in found.items():
        _, other, _, name, _ = topic.split("/")
        if other != federation and name in elsewhere and payload:
            with suppress(PresenceError):
                if decode_presence(payload).up:
                    elsewhere[name].add(other)
    others = {name: tuple(sorted(where)) for name, where in elsewhere.items() if where}
    return Company(own, up, down, others, many)


def _read(visitor: Visitor, federation: str, *filters: str) -> None:
    for one in filters:
        with suppress(VisitError):  # a broker may refuse: what nobody tells is not there
            visitor.subscribe(one, qos=0)
    visitor.settle(f"bb/{federation}/company")
    visitor.until(lambda: False, QUIET_S)


def _members(found: Mapping[str, bytes], prefix: str) -> dict[PeerId, Member]:
    members: dict[PeerId, Member] = {}
    for topic, payload in found.items():
        name, _, text = topic.removeprefix(prefix).rpartition("/")
        with suppress(PeerIdError, PresenceError):
            if payload:
                presence = decode_presence(payload)
                members.setdefault(PeerId.from_text(text), Member(PeerId.from_text(text))).presences[name] = (
                    presence
                )
    return members
