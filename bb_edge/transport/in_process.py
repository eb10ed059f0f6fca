"""Runs several nodes in one process under a simulated clock, without threads and sockets.

The nodes are the same as on devices. The seed decides everything: the same seed gives the same bytes. Time
jumps to whatever is due next, and only nodes that have something to do are polled.

What a node is given, and in which order, depends on the seed and on the peers alone, never on who else shares
the process: events are ordered by time, receiver, sender and number in the pair, and a delay is drawn from
seed, pair and number. So nodes can be spread over processes that exchange `Arrival`s between windows of
simulated time, and every node computes the same bits (`bb_host.simulate` does that).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.ir.address import peer_address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode
from bb_edge.transport.driver import Keeps, next_due_ns
from bb_edge.transport.trace import BodyDigests, combined_trace
from bb_edge.wire.bodies import Body

AT_ONCE = 1 << 20
"""Bytes of bodies that come to nodes at one instant before these have their turns."""

POLLS_PER_INSTANT = 100_000
"""Rounds of polls at one instant of simulated time, before a loop is suspected.

A node that works through its queues needs a poll per thousand ops, so ten or so.
"""

_FIRST = b""
"""The receiver of what `Simulation.at` is told to do: before everything else of the same instant."""


class SimulationError(BBError):
    """The simulation cannot go on: a peer is unknown, or there were more events than `max_events`."""


class Seen(NamedTuple):
    """One step that a node returned, and when; `at_ns` is simulated time."""

    at_ns: int
    peer: PeerId
    step: steps.EngineStep


class Presence(NamedTuple):
    """What a node is told of another one, as over a broker."""

    up: bool
    epoch: int
    session: int
    classes: tuple[str, ...]
    meta: Mapping[str, object]


class Arrival(NamedTuple):
    """What comes to a node, from whom, and when. `number` counts what went from the one to the other.

    An envelope is two pieces, of which the first may be shared by those of many peers.
    """

    at_ns: int
    target: PeerId
    source: PeerId
    number: int
    content: tuple[Body, bytes] | Presence

    @property
    def order(self) -> tuple[int, bytes, bytes, int]:
        """Time, receiver, sender, number: no two are alike, and who computed them does not matter."""
        return self.at_ns, self.target.to_bytes(), self.source.to_bytes(), self.number


def keyed_number(seed: int, purpose: str, *key: bytes | int) -> int:
    """Returns 64 bits that depend on these alone; a stream of numbers would depend on who draws first."""
    mixed = _begun(seed, purpose).copy()
    for part in key:
        mixed.update((part if isinstance(part, bytes) else part.to_bytes(16, "big", signed=True)) + b"/")
    return int.from_bytes(mixed.digest(), "big")


@lru_cache(maxsize=64)
def _begun(seed: int, purpose: str) -> hashlib.blake2b:
    """A hash that has taken these; to be copied, as one that goes on is another purpose's."""
    return hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8)


def classes_heard(listener: DrivenNode, about: DrivenNode) -> tuple[str, ...]:
    """The classes in which one node is told of another's presence, as over a broker; empty for in none."""
    hears = listener.hears
    return about.classes if hears is None else tuple(name for name in about.classes if name in hears)


@dataclass(slots=True)
class _Pair:
    """What went from one node to another: how much, when the last of it arrives, and a digest of it all."""

    number: int = 0
    arrives_ns: int = 0
    trace: hashlib._Hash = field(default_factory=hashlib.sha256)


@dataclass(frozen=True, slots=True)
class _Polled:
    """What is to be done, and may give any node something to do."""

    act: Callable[[], None]


class _Member:
    """A node that takes part, with what the simulation knows of it."""

    __slots__ = ("due_ns", "keeper", "node", "place")

    def __init__(self, node: DrivenNode, keeper: Keeps | None, place: int) -> None:
        self.node, self.keeper, self.place = node, keeper, place
        self.due_ns: int | None = None
        """As its last entry among the dues says; None where it has none."""


class Simulation:
    """A simulated network that nodes can be added to and removed from.

    Every envelope takes `latency_ns` plus up to `jitter_ns`; between two nodes the order is kept. With
    `presence`, nodes are told of each other when one is added or removed.

    `seen` lists every step of the nodes that is not an envelope, in order; `report` gets them instead where
    it is given. `elsewhere` gets what is sent to peers that `is_here` denies; without it all is kept here.
    `wake` is asked when an envelope comes to somebody who is not a node, and may add it; what still comes to
    nobody is lost. `delivered` and `lost` count envelopes, `sent_bytes` their bytes;
    `now_ns` is the simulated time.
    """

    def __init__(
        self,
        seed: int = 0,
        latency_ns: int = 1_000_000,
        jitter_ns: int = 0,
        presence: bool = True,
        *,
        report: Callable[[Seen], None] | None = None,
        elsewhere: Callable[[Arrival], None] | None = None,
        wake: Callable[[Arrival], bool] | None = None,
    ) -> None:
        self._presence = presence
        self._seed = seed
        self._latency_ns = latency_ns
        self._jitter_ns = jitter_ns
        self._events: list[tuple[int, bytes, bytes, int, Arrival | _Polled | Callable[[], None]]] = []
        self._acts = 0
        self._members: dict[PeerId, _Member] = {}
        self._places = 0
        self._due: list[tuple[int, int, _Member]] = []  # entries that are not a member's last are void
        self._touched: set[PeerId] = set()
        self._sessions: dict[PeerId, int] = {}  # how often each node was added
        self._cut_off: dict[PeerId, list[tuple[int, steps.SendEnvelope]]] = {}  # what waits, and until when
        self._pairs: dict[tuple[PeerId, PeerId], _Pair] = {}
        self._told: dict[tuple[PeerId, PeerId], int] = {}  # presences, listener first
        self._elsewhere = elsewhere
        self._wake = wake
        self._bodies = BodyDigests()
        self.now_ns = 0
        self.seen: list[Seen] = []
        self._report = self.seen.append if report is None else report
        self.delivered = 0
        self.lost = 0
        self.sent_bytes = 0

    @property
    def nodes(self) -> tuple[DrivenNode, ...]:
        return tuple(member.node for member in self._members.values())

    def trace_hash(self) -> str:
        """A SHA-256 in hex over every envelope that was sent: times and bytes, pair by pair.

        A body stands in it by its own SHA-256, as many envelopes of a round have the same.
        """
        return combined_trace(self.trace_digests())

    def trace_digests(self) -> dict[tuple[bytes, bytes], bytes]:
        """The digest of what went from each node to each other one, by their ids as bytes."""
        return {
            (source.to_bytes(), target.to_bytes()): pair.trace.digest()
            for (source, target), pair in self._pairs.items()
        }

    # --- who takes part -------------------------------------------------------------------------------

    def add(self, node: DrivenNode, keeper: Keeps | None = None) -> None:
        """Adds a node, and the keeper of its state if it has one.

        As over a broker, a node is told of those in the classes that it hears, and they of it in theirs.
        """
        peer = node.peer_id
        before = self._members.pop(peer, None)
        if before is not None:
            before.due_ns = None
        self._places += 1
        self._members[peer] = _Member(node, keeper, self._places)
        self._sessions[peer] = self._sessions.get(peer, 0) + 1
        node.set_waker(lambda: self._touched.add(peer))
        if self._presence:
            node.presences_come()
        for other in self._others_of(node):
            self._tell(other, node, True)
            self._tell(node, other, True)
        self._touched.add(peer)

    def remove(self, peer: PeerId) -> None:
        """Removes a node as if it had died: envelopes on their way to it are lost, the others are told.

        Raises SimulationError where there is no such node.
        """
        gone = self._members.pop(peer, None)
        self._cut_off.pop(peer, None)
        if gone is None:
            raise SimulationError(f"there is no node {peer.short()}", "simulation")
        gone.due_ns = None
        gone.node.set_waker(None)
        for other in self._others_of(gone.node):
            self._tell(other, gone.node, False)

    def connect(self, peer: PeerId, up: bool) -> None:
        """Takes a node's connection away, or gives it back, as if its broker were gone.

        Nobody is told that it goes; when it is back, it and the others are told of each other again. What it
        sends meanwhile waits for its connection or its own deadline, what is sent to it is lost. Raises
        SimulationError where there is no such node.
        """
        member = self._members.get(peer)
        if member is None:
            raise SimulationError(f"there is no node {peer.short()}", "simulation")
        node = member.node
        node.connected(up)
        self._touched.add(peer)
        if not up:
            self._cut_off.setdefault(peer, [])
            return
        if (waits := self._cut_off.pop(peer, None)) is None:
            return
        self._sessions[peer] += 1
        for other in self._others_of(node):
            if other.peer_id not in self._cut_off:
                self._tell(other, node, True)
                self._tell(node, other, True)
        for until_ns, step in waits:
            if not until_ns or until_ns > self.now_ns:
                self._send(peer, step)

    def _others_of(self, node: DrivenNode) -> list[DrivenNode]:
        """Who is told of the node here, and it of them; nobody where presences come from elsewhere."""
        return [m.node for m in self._members.values() if m.node is not node] if self._presence else []

    def _tell(self, listener: DrivenNode, about: DrivenNode, up: bool) -> None:
        classes = classes_heard(listener, about)
        if not classes:
            return
        peer = about.peer_id
        content = Presence(up, about.epoch, self._sessions[peer], classes, about.presence_meta)
        pair = listener.peer_id, peer
        number = self._told[pair] = self._told.get(pair, 0) + 1
        # Below zero: what is told of a peer comes before what that peer sends at the same time.
        self.arrive(
            [Arrival(self.now_ns + self._latency_ns, listener.peer_id, peer, number - (1 << 62), content)]
        )

    # --- time -----------------------------------------------------------------------------------------

    def at(self, when_ns: int, act: Callable[[], None], *, polled: bool = True) -> None:
        """Calls `act()` at the simulated time `when_ns`, before whatever comes to nodes at that time.

        Then all nodes are looked at, since it may have done anything with them; not so without `polled`,
        for what only calls this simulation.
        """
        heapq.heappush(
            self._events, (when_ns, _FIRST, _FIRST, self._acts, act if not polled else _Polled(act))
        )
        self._acts += 1

    def arrive(self, arrivals: Iterable[Arrival]) -> None:
        """Takes what is to come to nodes here, from wherever it was sent."""
        for arrival in arrivals:
            heapq.heappush(self._events, (*arrival.order, arrival))

    def run(
        self, until: Callable[[], bool] | None = None, for_ns: int | None = None, max_events: int = 1_000_000
    ) -> None:
        """Runs until `until()` is true, `for_ns` have passed, or nothing is due any more.

        Raises SimulationError after `max_events` instants at which something happened.
        """
        end = None if for_ns is None else self.now_ns + for_ns
        self._touched.update(self._members)  # whoever calls may have given nodes something to do
        for _ in range(max_events):
            self._poll_instant()
            if until is not None and until():
                return
            when = self.next_ns
            if when is None:
                return
            if end is not None and when > end:
                self.now_ns = end
                return
            self.now_ns = max(self.now_ns, when)
            while self._happen():
                pass
        raise SimulationError(
            f"it has not ended after {max_events} events",
            "simulation",
            "raise max_events, or look for a loop",
        )

    def run_window(self, end_ns: int) -> None:
        """Runs all that is due before `end_ns`; the time is then that of the last event."""
        while (when := self.next_ns) is not None and when < end_ns:
            self.now_ns = max(self.now_ns, when)
            while self._happen():
                pass
            self._poll_instant()

    @property
    def next_ns(self) -> int | None:
        """When the next event or poll is due, in simulated time; None where nothing is."""
        self._look_at_touched()
        due = self._due
        while due and due[0][2].due_ns != due[0][0]:
            heapq.heappop(due)
        when = due[0][0] if due else None
        if self._events and (when is None or self._events[0][0] <= when):
            when = self._events[0][0]
        return when

    def _happen(self) -> bool:
        """What comes to nodes at this instant; whether there is more of it.

        Nodes to which much has come have their turns before the others get theirs, so that not all of it is
        in memory together. No node can tell, as none hears of another one at the same instant.
        """
        events, size, got = self._events, 0, list[PeerId]()
        while events and events[0][0] <= self.now_ns:
            _, to, _, _, event = heapq.heappop(events)
            if isinstance(event, Arrival):
                self.deliver(event)
                if not isinstance(event.content, Presence):
                    size += len(event.content[0])
                    got.append(event.target)
                    if size >= AT_ONCE and events and events[0][1] != to:
                        self._poll_these(dict.fromkeys(got))
                        return True
            elif isinstance(event, _Polled):
                event.act()
                self._touched.update(self._members)
            else:
                event()
        return False

    def _poll_these(self, peers: Iterable[PeerId]) -> None:
        """Polls nodes that were given something until they have no work at this instant."""
        for member in filter(None, map(self._members.get, peers)):
            for _ in range(POLLS_PER_INSTANT):
                when = next_due_ns(member.node, member.keeper)
                if when is None or when > self.now_ns:
                    break
                self._poll(member)

    def deliver(self, arrival: Arrival) -> None:
        """What comes to a node comes now."""
        member, content = self._members.get(arrival.target), arrival.content
        if isinstance(content, Presence):
            if member is not None:
                member.node.peer_presence(
                    arrival.source,
                    content.up,
                    (peer_address(arrival.source),),
                    content.meta,
                    epoch=content.epoch,
                    classes=content.classes,
                    session=content.session,
                )
            return
        if member is None and self._wake is not None and self._wake(arrival):
            member = self._members.get(arrival.target)
        if member is None or arrival.target in self._cut_off:
            self.lost += 1
            return
        try:
            observed = peer_address(arrival.source)
            data = self.joined(*content)  # here and not before: copies for all peers at once would be many
            member.node.deliver_inbound(data, arrival.source, observed)
            self.delivered += 1
        except IngressFull:
            self.lost += 1

    def _look_at_touched(self) -> None:
        """Finds out when those are due that were polled, or were given something."""
        while self._touched:
            member = self._members.get(self._touched.pop())
            if member is None:
                continue
            when = next_due_ns(member.node, member.keeper)
            if when != member.due_ns:
                member.due_ns = when
                if when is not None:
                    heapq.heappush(self._due, (when, member.place, member))

    def _poll_instant(self) -> None:
        """Polls until nobody has work at this instant."""
        for _ in range(POLLS_PER_INSTANT):
            self._look_at_touched()
            ready: dict[int, _Member] = {}
            while self._due and self._due[0][0] <= self.now_ns:
                when, place, member = heapq.heappop(self._due)
                if member.due_ns == when:
                    ready[place] = member
            if not ready:
                return
            for _, member in sorted(ready.items()):
                self._poll(member)
        raise SimulationError(
            f"nodes still have work after {POLLS_PER_INSTANT} polls at one instant",
            f"simulation at {self.now_ns} ns",
            "look for a loop, such as an EventSource that publishes its own event",
        )

    def _poll(self, member: _Member) -> None:
        node, keeper = member.node, member.keeper
        member.due_ns = None
        self._touched.add(node.peer_id)
        polled = node.poll(self.now_ns)
        if keeper is not None:
            keeper.take(polled, self.now_ns)
        for step in polled:
            if isinstance(step, steps.SendEnvelope):
                self._send(node.peer_id, step)
            else:
                self._report(Seen(self.now_ns, node.peer_id, step))
        self.polled(node)

    def polled(self, node: DrivenNode) -> None:
        """A node was polled, and what it has sent is under way; for subclasses."""

    def _send(self, source: PeerId, step: steps.SendEnvelope) -> None:
        waiting = self._cut_off.get(source) if self._cut_off else None
        if waiting is not None:
            waiting.append((self.now_ns + step.expires_in_ns if step.expires_in_ns else 0, step))
            return
        target, body, rest, now_ns = step.peer, step.body, step.rest, self.now_ns
        pair = self._pairs.get((source, target))
        if pair is None:
            pair = self._pairs[source, target] = _Pair()
        number = pair.number = pair.number + 1
        self.sent_bytes += len(body) + len(rest)
        pair.trace.update(now_ns.to_bytes(8, "big") + self._bodies.of(body) + rest)
        arrives_ns = pair.arrives_ns = max(now_ns + self.delay_ns(source, target, number), pair.arrives_ns)
        arrival = Arrival(arrives_ns, target, source, number, (self.carried(source, body), rest))
        if self._elsewhere is None or self.is_here(target):
            self.arrive([arrival])
        else:
            self._elsewhere(arrival)

    def carried(self, source: PeerId, body: Body) -> Body:
        """The bytes of a body as they are under way, for subclasses: equal ones, which may lie elsewhere."""
        return body

    def joined(self, body: Body, rest: bytes) -> Body:
        """The bytes of an envelope for its receiver; for subclasses, which may have them elsewhere."""
        return b"".join((body, rest))

    def is_here(self, peer: PeerId) -> bool:
        """Whether what is sent to that peer stays in this process."""
        return peer in self._members

    def delay_ns(self, source: PeerId, target: PeerId, number: int) -> int:
        """How long an envelope of a pair is under way; at least the latency."""
        if not self._jitter_ns:
            return self._latency_ns
        drawn = keyed_number(self._seed, "delay", source.to_bytes(), target.to_bytes(), number)
        return self._latency_ns + drawn % self._jitter_ns

    def events(self, topic: str | None = None) -> list[steps.AppEvent]:
        """The app events seen so far, of one topic or of all."""
        events = [s.step for s in self.seen if isinstance(s.step, steps.AppEvent)]
        return [event for event in events if topic is None or event.topic == topic]
