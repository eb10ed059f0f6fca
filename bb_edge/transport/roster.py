"""Reads who is in a federation from the presences that its broker keeps, and clears those of peers that left.

A presence is retained: it stays at the broker, up or down, until its peer says something else. That of a
device which is gone for good stays for ever, unless somebody clears it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from bb_edge.ir.class_names import is_class_name
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.transport.broker import Broker
from bb_edge.transport.rollcall import ANSWER_S, encode_call, spread_of
from bb_edge.transport.too_large import SMALL_PACKETS, SMALL_WORDS
from bb_edge.transport.topics import check_federation
from bb_edge.transport.visitor import VisitError, Visitor, visit
from bb_edge.wire.presence import Presence, PresenceError, decode_presence

QUIET_S = 0.3
"""Seconds without a presence after which the roster is complete; a broker sends all at once."""
READ_S = 30.0
"""Seconds that reading takes at most; where presences keep coming, there are too many or they never end."""
MANY = 900
"""Presences from which on some may be missing: mosquitto queues 1,000 messages for a client and drops others.
What is retained comes all at once; what the peers of a class say when they are called comes spread.
"""
CALLS = 4
"""Roll calls at most: each is wide enough for twice as many peers as are known, so for 16,000."""
CLEARED_AT_ONCE = 100
"""Presences that are cleared before their answers are waited for: no more than a broker queues."""
FAILURE = 0x80
"""The lowest reason code of a refused publish."""
DROPPED, UPTIME = "$SYS/broker/publish/messages/dropped", "$SYS/broker/uptime"
"""Where mosquitto tells how many messages it has dropped, and how long it runs whenever it tells anything."""
TELLS_S = 12.0
"""Seconds until a broker must have told them anew: mosquitto does every 10 s, unless it is set otherwise."""
NOBODY = "nobody"
"""The class of a message that nobody listens to but a reader of all classes."""


class RosterError(BBError):
    """Presences cannot be read, or one cannot be cleared; the message says why."""


@dataclass(slots=True)
class Member:
    """What a broker keeps of one peer.

    `presences` are by class; a presence under a topic without a class, of older runtimes, has the key "".
    """

    peer: PeerId
    presences: dict[str, Presence] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    silent: bool = False
    """The roll was called, and nothing of the peer has come: the broker keeps what it said before."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the peer, sorted."""
        named = {name for presence in self.presences.values() for name in presence.classes}
        return tuple(sorted(named | {name for name in self.presences if name}))

    @property
    def up(self) -> bool:
        """Whether a presence says up, in a connection that has not ended.

        A broker tells the end of a connection under one class alone, which the others name as their `will`.
        """
        return any(presence.up and not self._ended(presence) for presence in self.presences.values())

    def _ended(self, presence: Presence) -> bool:
        last = self.presences.get(presence.will)
        if last is None or last.up or last.epoch != presence.epoch:
            return False
        return last.session >= presence.session

    @property
    def meta(self) -> Mapping[str, object]:
        """What the peer says of itself: the entries of all its presences; those that are up win."""
        merged: dict[str, object] = {}
        for presence in sorted(self.presences.values(), key=lambda one: one.up):
            merged.update(presence.meta)
        return merged


@dataclass(frozen=True, slots=True)
class Roster:
    """All members, by id; `unreadable` are topics whose message is not a presence.

    `doubt` says why others may be missing; empty where all are there that the broker keeps.
    """

    members: Mapping[PeerId, Member]
    unreadable: tuple[str, ...]
    doubt: str = ""


def read_roster(
    broker: Broker,
    federation: str,
    version: str = "auto",
    calling: Callable[[int], None] = lambda kept: None,
) -> Roster:
    """Reads the presences of a federation: those that the broker keeps and, where these are many, those that
    its peers say when they are called (`rollcall.py`), which takes long: `calling(kept)` is called before.

    Raises VisitError where the broker refuses, RosterError where nothing comes and this client hears not even
    itself, BrokerFileError.
    """
    check_federation(federation)
    prefix = f"bb/{federation}/presence/"
    found: dict[str, bytes] = {}
    last = [time.monotonic()]
    answered: set[str] | None = None  # topics since the roll was called
    own = f"{prefix}{NOBODY}/{PeerId.from_name(f'bb-edge peers {secrets.token_hex(8)}')}"
    heard: set[str] = set()
    told: dict[str, bytes] = {}

    def take(topic: str, payload: bytes) -> None:
        if topic == own:
            heard.add(topic)
            return
        if topic in (DROPPED, UPTIME):
            told[topic] = payload
            return
        last[0] = time.monotonic()
        if answered is not None:
            answered.add(topic)
        if payload:
            found[topic] = payload
        else:
            found.pop(topic, None)

    with visit(broker, version, take) as visitor:
        losses = _Losses(visitor, told)
        visitor.subscribe(f"{prefix}+", f"{prefix}+/+", qos=0)
        # What was retained stands in the queue before the answer to this one.
        visitor.settle(f"bb/{federation}/roster")
        visitor.until(lambda: time.monotonic() - last[0] > QUIET_S, READ_S)
        doubt = uncalled = ""
        if (limit := visitor.packet_limit) is not None and limit < SMALL_PACKETS:
            doubt = (
                f"the broker takes packets of {limit} bytes at most, and a node whose presence is larger is"
                f" not here: {SMALL_WORDS}"
            )
        if not found:
            _hears_itself(visitor, own, heard)
        elif len(found) >= MANY:
            kept, answered = len(found), set()
            calling(kept)
            uncalled = _call(visitor, federation, found, last)
            doubt = uncalled or doubt
            if not doubt and losses.may_be():
                doubt = (
                    f"the broker sent {kept} presences at once, and has dropped messages or does not tell"
                    " whether: those of peers that are down may be missing (raise its max_queued_messages)"
                )
    members: dict[PeerId, Member] = {}
    unreadable = []
    for topic, payload in sorted(found.items()):
        peer_class, _, text = topic.removeprefix(prefix).rpartition("/")
        try:
            peer, presence = PeerId.from_text(text), decode_presence(payload)
        except (PeerIdError, PresenceError):
            unreadable.append(topic)
            continue
        member = members.setdefault(peer, Member(peer))
        member.presences[peer_class] = presence
        member.topics.append(topic)
    if answered is not None and not uncalled:
        for member in members.values():
            # Older runtimes, without a class in their topic, are called by nobody.
            member.silent = "" not in member.presences and answered.isdisjoint(member.topics)
    return Roster(members, tuple(unreadable), doubt)


def _hears_itself(visitor: Visitor, topic: str, heard: Collection[str]) -> None:
    """Says something where presences are said, and listens: a broker need not tell that it lets nobody read.

    Mosquitto grants each subscription and passes on nothing. Raises RosterError where nothing comes back.
    """
    mid = visitor.publish(topic, b"")
    visitor.until(lambda: bool(heard) and visitor.reason_of(mid) is not None, QUIET_S)
    visitor.settle(f"{topic}/settled")
    if not heard:
        raise RosterError(
            "the broker passes on no presence to this client, not even what it says itself: its rules let it"
            " read none, or, where it may read and not write, the federation is empty",
            str(visitor.broker),
            OPERATOR,
        )


class _Losses:
    """Whether the broker has dropped messages since the beginning, as mosquitto counts it under `$SYS`."""

    def __init__(self, visitor: Visitor, told: MutableMapping[str, bytes]) -> None:
        self._visitor, self._told = visitor, told
        try:
            visitor.subscribe(DROPPED, UPTIME, qos=0)
            visitor.settle(f"{DROPPED}/settled")
        except VisitError:
            told.clear()
        self._before = told.get(DROPPED)

    def may_be(self) -> bool:
        """Waits until the broker has counted anew; True where it dropped something, or tells nothing."""
        if self._before is None or self._told.pop(UPTIME, None) is None:
            return True
        if not self._visitor.until(lambda: UPTIME in self._told, TELLS_S):
            return True
        self._visitor.until(lambda: False, QUIET_S)  # the counts come in no promised order
        return self._told.get(DROPPED) != self._before


def _call(visitor: Visitor, federation: str, found: Mapping[str, bytes], last: Sequence[float]) -> str:
    """Calls the peers of all classes that have any, until a call brings no more than it was wide enough for.

    `found` grows and `last` is the time of the last presence, while the visitor is served. Returns why peers
    that are up may be missing all the same; empty where nothing speaks for that.
    """
    for _ in range(CALLS):
        before = len(found)
        spread_s = spread_of(before)
        classes = {topic.split("/")[3] for topic in found if topic.count("/") == 4}
        calls = [
            visitor.publish(f"bb/{federation}/rollcall/{name}", encode_call(spread_s))
            for name in sorted(filter(is_class_name, classes))
        ]
        if not visitor.until(lambda calls=calls: all(visitor.reason_of(mid) is not None for mid in calls)):  # type: ignore[misc]
            return "the broker does not answer a roll call; raise its max_queued_messages to see all"
        if any(visitor.reason_of(mid).value >= FAILURE for mid in calls):
            return "the broker lets this client call no roll; raise its max_queued_messages to see all"
        end = time.monotonic() + max(spread_s, ANSWER_S)
        visitor.until(lambda end=end: time.monotonic() > max(end, last[0] + QUIET_S), spread_s + READ_S)  # type: ignore[misc]
        if len(found) <= 2 * before:
            return ""
    return f"after {CALLS} roll calls still more peers answer"


def clear(broker: Broker, topics: Iterable[str], version: str = "auto") -> None:
    """Removes retained messages. Raises RosterError where the broker refuses, and VisitError."""
    topics = list(topics)
    kept: set[str] = set()
    with visit(broker, version, lambda topic, _: kept.add(topic)) as visitor:
        for at in range(0, len(topics), CLEARED_AT_ONCE):
            some = topics[at : at + CLEARED_AT_ONCE]
            _clear_some(visitor, some)
            # Over MQTT 3.1.1 a denied publish is acknowledged, so what is still there is asked for.
            visitor.subscribe(*some, qos=0)
            visitor.settle(f"{some[0]}/cleared")
            if kept:
                break
        visitor.until(lambda: bool(kept), QUIET_S)
    if kept:
        raise _denied(broker, sorted(kept)[0])


def _clear_some(visitor: Visitor, topics: Sequence[str]) -> None:
    sent = {visitor.publish(topic, b"", retain=True): topic for topic in topics}
    if not visitor.until(lambda: all(visitor.reason_of(mid) is not None for mid in sent)):
        raise RosterError(f"no answer to the clearing of {topics[0]}", str(visitor.broker), "try again")
    for mid, topic in sent.items():
        if visitor.reason_of(mid).value >= FAILURE:
            raise _denied(visitor.broker, topic)


def _denied(broker: Broker, topic: str) -> RosterError:
    return RosterError(
        f"the broker does not let this client clear {topic}",
        str(broker),
        OPERATOR,
    )


OPERATOR = "log in as the user operator, whom the rules of bb-host acl let read and write there"
