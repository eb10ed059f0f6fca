"""What a node says of itself on a broker, and whose presence it believes. No IO.

The node says the same in each of its classes: up with its epoch, the number of its connection (`session`) and
what it accepts. MQTT has one will per connection: it lies on the first class by name, the other presences
name that class, and whoever believes one of them listens to the will's topic as well.

What comes under the node's own name is put right: what an earlier life left behind at once, what a second
machine of that name says at most every 10 s, doubling to 10 min. The second machine is known by an epoch that
is neither this node's nor was there before it: brokers do not reliably say who took a connection over.

Rule W17 of the specification.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import NamedTuple

from bb_edge.ir.address import Address, AddressError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode, Link, Log
from bb_edge.transport.rollcall import ANSWER_S, RollCall, decode_call
from bb_edge.transport.seldom import Seldom
from bb_edge.transport.topics import Topics
from bb_edge.wire.presence import (
    FAR_SESSIONS,
    MAX_ADDRESSES,
    MAX_SESSION,
    Presence,
    PresenceError,
    decode_presence,
    encode_presence,
)

NAME_META, SINCE_META = "name", "since"
"""Where a presence says what people call the node, and when its process began: a will says that, too."""
MAX_BEFORE = 64
"""Earlier epochs of the node that are told from a second machine's: a node has one or two at a broker."""
MAX_WILLS = 4096
"""Peers of several classes whose wills are listened to: as many topics as the names of topics are kept."""

ECHO_S = (10.0, 600.0)
"""Seconds until a presence that the broker does not tell is said again, doubling up to the longest. A queue
that overflowed may have lost it, and whatever was said in the node's name meanwhile with it.
"""
ENDS_S = 1.0
"""Seconds within which a connection ends of which the broker says that it is over, if it is the broker."""
WILLS_AT_ONCE = 100
"""Wills that one SUBSCRIBE names: some 10 KB, which every broker takes."""


class Acts(NamedTuple):
    """What a membership asks of its transport. All are called on the driver's thread."""

    say: Callable[[str, bytes], object]  # (topic, payload), retained
    call: Callable[[str, bytes], object]  # (topic, payload) of a roll call
    log: Log


class Membership:
    """One node in its federation, as the broker tells it. `link` is set before it connects."""

    link: Link

    def __init__(
        self,
        node: DrivenNode,
        topics: Topics,
        facts: Mapping[str, object],
        where: str,
        counters: MutableMapping[str, int],
        acts: Acts,
        jitter: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`facts` are the presence's metadata; `where` names federation and broker in messages.

        `clock` gives monotonic seconds.
        """
        self._clock = clock
        self._node = node
        self._topics = topics
        self._where = where
        self._counters = counters
        self._acts = acts
        self._classes = tuple(sorted(node.classes))
        self._hears = None if node.hears is None else frozenset(node.hears)
        address = (Address.empty().with_peer(node.peer_id).to_bytes(),)
        node.presences_come()
        self._up = Presence(True, node.epoch, (), address, {**node.presence_meta, **facts})
        self._down = Presence(
            False, node.epoch, meta={k: v for k, v in facts.items() if k in (NAME_META, SINCE_META)}
        )
        self._told: set[str] = set()  # facts that came while the node ran: what failed last
        self._session = 0
        self._seq = 0
        self._connections = 0
        self._echoed = False  # whether the broker has told what the node said in this connection
        self._unsaid = False  # whether no packet of the broker's holds it
        self._echo_at = self._echo_wait_s = 0.0  # until it has: when that is said again
        self._before: dict[int, int] = {}  # epochs that were there before this one, and their last sessions
        self._watched: dict[PeerId, str] = {}  # the class of each will that is listened to by itself
        self._jitter = jitter
        self._said_at = 0.0
        self._roll = RollCall(lambda name, call: acts.call(topics.roll_call(name), call), self._hears or ())
        self._answers = Seldom()
        self._facts = Seldom()  # facts that change while the node runs
        self._again_at: float | None = None  # when the presence is to be said again
        self._redial_at: float | None = None  # when a later session is to begin
        self._ended_at: float | None = None  # until then the connection may end of which a will has come
        self._leaving = False

    @property
    def filters(self) -> tuple[str, ...]:
        """What presence is subscribed to: the classes that the node deals with, and its own name."""
        topics = self._topics
        if self._hears is None:
            return (topics.presence("+"),)
        return (*(topics.presence(name) for name in sorted(self._hears)), topics.own_presences)

    @property
    def called_at(self) -> tuple[str, ...]:
        """The topics of calls that the node answers. What they bring late is worth nothing."""
        return tuple(map(self._topics.roll_call, self._classes))

    # --- what the node says -----------------------------------------------------------------------------

    def will(self) -> tuple[str, bytes]:
        """Begins a session; returns topic and payload of its will."""
        self._session, self._seq = min(self._session + 1, MAX_SESSION), 0
        payload = encode_presence(self._down._replace(session=self._session))
        return self._topics.presence(self._classes[0], self._node.peer_id), payload

    def connected(self) -> None:
        """Says that the node is up; what was there before is read behind it."""
        self._connections += 1
        self._echoed = self._unsaid = False
        self._echo_wait_s = ECHO_S[0]
        self._echo_at = self._clock() + self._echo_wait_s
        watched = [self._topics.presence(will, peer) for peer, will in self._watched.items()]
        for at in range(0, len(watched), WILLS_AT_ONCE):  # the broker may have forgotten the session
            self.link.subscribe(watched[at : at + WILLS_AT_ONCE])
        self._say(self._up)
        self._roll.connected()

    def unsaid(self) -> None:
        """The presence is not sent: no packet that the broker takes holds it, and it does not come back."""
        self._unsaid = True

    def lost(self) -> None:
        """The connection has ended: a will of it that came before was the broker's own."""
        self._ended_at = None

    def leave(self) -> None:
        """Says goodbye, in every class; nothing is said behind it."""
        self._leaving = True
        facts = {key: value for key, value in self._up.meta.items() if key in self._told}
        self._say(self._down._replace(meta={**self._down.meta, **facts}))

    def tick(self, now: float) -> None:
        """Says again what is due, and calls the roll where it is; once a second or so."""
        if self._leaving:
            return
        self._roll.tick(now)
        if self._ended_at is not None and now >= self._ended_at:
            self._ended_at = None
            self._spoken_for(self._session, now)
        if self._redial_at is not None and now >= self._redial_at:
            self._redial_at = None
            self.link.redial("somebody else spoke in the node's name")
        elif not self._echoed and now >= self._echo_at:
            again = self._echo_wait_s == 2 * ECHO_S[0]  # once per connection: it was said again, in vain
            if again and not self._unsaid:
                self._unheard()
            self._echo_wait_s = min(2 * self._echo_wait_s, ECHO_S[1])
            self._echo_at = now + self._echo_wait_s
            self._say(self._up)
        elif self._again_at is not None and now >= self._again_at:
            self._say(self._up)

    def tell(self, fact: str, value: object) -> None:
        """Adds a fact to what the node says of itself; said soon, but seldom where facts change often."""
        if self._up.meta.get(fact) == value:
            return
        self._up = self._up._replace(meta={**self._up.meta, fact: value})
        self._told.add(fact)
        now = self._clock()
        if self._facts.passes(now):
            self._again(now, 1.0)
        else:
            self._again(now, self._facts.next_at - now)

    def _say(self, what: Presence) -> None:
        self._again_at = None
        self._said_at = self._clock()
        self._seq += 1
        for topic, said in self._in_classes(what):
            self._acts.say(topic, said)

    def _in_classes(self, what: Presence) -> Iterator[tuple[str, bytes]]:
        """The topic and payload of a presence in each class."""
        first = self._classes[0]
        for name in self._classes:
            said = what._replace(session=self._session, seq=self._seq, will="" if name == first else first)
            yield self._topics.presence(name, self._node.peer_id), encode_presence(said)

    @property
    def says(self) -> Iterator[tuple[str, bytes]]:
        """The topic and payload of each presence that says that the node is up."""
        return self._in_classes(self._up)

    # --- what comes -------------------------------------------------------------------------------------

    def take(self, peer: PeerId, peer_class: str, payload: bytes) -> bool:
        """Takes a presence. False for one of a class that this node did not subscribe to.

        Raises PresenceError for bytes that are not a presence, and IngressFull where the node has no space
        left for it.
        """
        if peer == self._node.peer_id:
            if not self._leaving:
                self._own(peer_class, payload)
            return True
        heard = self._hears is None or peer_class in self._hears
        if not heard and self._watched.get(peer) != peer_class:
            return False
        if not payload:
            if heard:
                self._node.presence_cleared(peer, peer_class)
                will = self._watched.pop(peer, None)  # another class of the peer names it again
                if will is not None:
                    self.link.unsubscribe((self._topics.presence(will, peer),))
            return True
        news = decode_presence(payload)
        if news.epoch is None:  # a down of no run would be one of any
            raise PresenceError("it names no epoch", "presence")
        # Whatever else it names: who publishes under its id reads what is sent to its id.
        own = self._topics.names(peer).address
        self._node.peer_presence(
            peer,
            news.up,
            _with(news.addresses, own) if news.up else (),
            news.meta,
            epoch=news.epoch,
            classes=(peer_class,) if heard else (),
            session=news.session,
            seq=news.seq,
        )
        if heard and news.up:
            self._topics.meet(peer)
            self._roll.told(peer, peer_class, self._clock())
            if news.will not in ("", peer_class):
                self._watch(peer, news.will)
        return True

    def called(self, peer_class: str, payload: bytes) -> bool:
        """Answers a roll call, at a moment of the node's own. False for a class that is not the node's.

        Raises RollCallError for bytes that are not a call.
        """
        if peer_class not in self._classes:
            return False
        now = self._clock()
        at = max(now + self._jitter.random() * decode_call(payload), self._said_at + ANSWER_S)
        self._again(now, at - now)
        return True

    def _watch(self, peer: PeerId, will: str) -> None:
        """Listens to the topic of a will; the broker tells what is there already."""
        known = self._watched.get(peer)
        if known == will or (known is None and len(self._watched) >= MAX_WILLS):
            return
        if known is not None:
            self.link.unsubscribe((self._topics.presence(known, peer),))
        self._watched[peer] = will
        self.link.subscribe((self._topics.presence(will, peer),))

    # --- what is said under the node's own name -----------------------------------------------------------

    def _own(self, peer_class: str, payload: bytes) -> None:
        """What comes before the node hears itself was said before: by an earlier life, or behind its back."""
        now = self._clock()
        if not payload:
            if peer_class in self._classes:  # an operator removed it, and the node is here
                self._again(now, 1.0)
            return
        try:
            news = decode_presence(payload)
        except PresenceError as error:
            self._counters["malformed"] += 1
            self._forged(f"what it said is not a presence ({error.what}), and is put right")
            self._stale(peer_class, now)
            return
        if news.epoch == self._node.epoch:
            if news.session - self._session > FAR_SESSIONS:  # nobody believes it
                self._counters["twins"] += 1
                self._forged("what it said is put right")
                self._again(now, 1.0)
            elif news.session > self._session:
                self._spoken_for(news.session, now)
            elif news.session == self._session and not news.up:  # a broker that ends says it, too
                self._ended_at = self._ended_at or now + ENDS_S
            elif not news.up:  # the will of an earlier connection
                self._stale(peer_class, now)
            elif news.session == self._session:
                self._echoed = True
                self._roll.echoed(now)
            return
        epoch = news.epoch or 0
        known = self._before.get(epoch)
        if known is None and (not news.up if self._echoed else self._connections == 1):
            known = news.session  # of the process before this one
            if len(self._before) < MAX_BEFORE:
                self._before[epoch] = known
        if known is not None and news.session <= known:
            self._stale(peer_class, now)
            return
        self._twin(now)

    def _stale(self, peer_class: str, now: float) -> None:
        """Puts right what an earlier life of the node left behind."""
        if peer_class not in self._classes:
            self._acts.say(self._topics.presence(peer_class, self._node.peer_id), b"")
        elif self._echoed:  # what was there before was replaced when this connection began
            self._again(now, 1.0)

    def _again(self, now: float, wait_s: float) -> None:
        if self._again_at is None or now + wait_s < self._again_at:
            self._again_at = now + wait_s

    def _spoken_for(self, session: int, now: float) -> None:
        """Somebody spoke of this session, or of one to come: the node's next one must be later than that."""
        self._counters["twins"] += 1
        self._session = min(session, MAX_SESSION - 1)
        if self._answers.passes(now):
            self._forged("the node connects anew")
            self._redial_at = now
        elif self._redial_at is None:
            self._redial_at = self._answers.next_at

    def _forged(self, what_is_done: str) -> None:
        self._acts.log(
            "error",
            f"somebody else speaks in the name of {self._name}, {self._where}: {what_is_done};"
            " let nobody else publish its presence (the broker's access rules)",
            kind="forged presence",
        )

    def _unheard(self) -> None:
        """The broker does not tell the node what it says of itself."""
        own = self._topics.own_presences
        self._acts.log(
            "warning",
            f"the broker does not tell this node its own presence, {self._where}: nobody notices another"
            f" machine of its name; do its access rules let it read {own} (mosquitto: pattern read"
            f" {own.rpartition('/')[0]}/%u), or does its queue overflow (max_queued_messages)?",
            kind="own presence unheard",
        )

    def _twin(self, now: float) -> None:
        """Another machine runs under this name."""
        self._counters["twins"] += 1
        if not self._echoed:  # it was here while this node was not: it took the connection over
            self.link.contested()
        if self._answers.passes(now):
            self._acts.log(
                "error",
                f"another machine runs as {self._name}, {self._where}: each takes the other's place;"
                " stop one of them, or give it a name of its own (peer)",
                kind="name in use",
            )
            if self._echoed:
                self._say(self._up)
        elif self._echoed:
            self._again(now, self._answers.next_at - now)

    @property
    def _name(self) -> str:
        name = self._up.meta.get(NAME_META)
        return f"{name} ({self._node.peer_id})" if name else str(self._node.peer_id)


def _with(addresses: tuple[bytes, ...], own: bytes) -> tuple[bytes, ...]:
    """The addresses of a presence, its topic's among them. PresenceError for a malformed address."""
    for address in addresses:
        if address != own:
            try:
                Address.from_bytes(address)
            except AddressError as error:
                raise PresenceError(f"one of its addresses is malformed: {error.what}", "presence") from error
    return addresses if own in addresses else (*addresses[: MAX_ADDRESSES - 1], own)
