"""Runs several nodes in one process under a simulated clock, without threads and sockets.

The nodes are the same as on devices. The seed decides everything: the same seed gives the same bytes. Time
jumps to whatever is due next.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from bb_edge.engine import steps
from bb_edge.engine.ledger import IngressFull
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import DrivenNode
from bb_edge.transport.driver import Keeps, next_due_ns

POLLS_PER_INSTANT = 100_000
"""Rounds of polls at one instant of simulated time, before a loop is suspected.

A node that works through its queues needs a poll per thousand ops, so ten or so.
"""


class SimulationError(BBError):
    """The simulation cannot go on: a peer is unknown, or there were more events than `max_events`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One step that a node returned, and when; `at_ns` is simulated time."""

    at_ns: int
    peer: PeerId
    step: steps.EngineStep


def classes_heard(listener: DrivenNode, about: DrivenNode) -> tuple[str, ...]:
    """The classes in which one node is told of another's presence, as over a broker; empty for in none."""
    hears = listener.hears
    return about.classes if hears is None else tuple(name for name in about.classes if name in hears)


class Simulation:
    """A simulated network that nodes can be added to and removed from.

    Every envelope takes `latency_ns` plus up to `jitter_ns`; between two nodes the order is kept. With
    `presence`, nodes are told of each other when one is added or removed.

    `seen` lists every step of the nodes that is not an envelope, in order. `delivered` and `lost` count
    envelopes; `now_ns` is the simulated time.
    """

    def __init__(
        self, seed: int = 0, latency_ns: int = 1_000_000, jitter_ns: int = 0, presence: bool = True
    ) -> None:
        self._presence = presence
        self._random = random.Random(seed)
        self._latency_ns = latency_ns
        self._jitter_ns = jitter_ns
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._next = 0
        self._nodes: dict[PeerId, DrivenNode] = {}
        self._keepers: dict[PeerId, Keeps] = {}
        self._sessions: dict[PeerId, int] = {}  # how often each node was added
        self._cut_off: dict[PeerId, list[tuple[int, steps.SendEnvelope]]] = {}  # what waits, and until when
        self._arrival: dict[tuple[PeerId, PeerId], int] = {}
        self._trace = hashlib.sha256()
        self.now_ns = 0
        self.seen: list[Seen] = []
        self.delivered = 0
        self.lost = 0

    @property
    def nodes(self) -> tuple[DrivenNode, ...]:
        return tuple(self._nodes.values())

    def trace_hash(self) -> str:
        """A SHA-256 in hex over every envelope that was sent: time, sender, receiver and bytes."""
        return self._trace.hexdigest()

    def add(self, node: DrivenNode, keeper: Keeps | None = None) -> None:
        """Adds a node, and the keeper of its state if it has one.

        As over a broker, a node is told of those in the classes that it hears, and they of it in theirs.
        """
        self._nodes[node.peer_id] = node
        self._sessions[node.peer_id] = self._sessions.get(node.peer_id, 0) + 1
        self._keepers.pop(node.peer_id, None)
        if keeper is not None:
            self._keepers[node.peer_id] = keeper
        if self._presence:
            node.presences_come()
        for other in tuple(self._nodes.values()):
            if other is not node:
                self._tell(other, node, True)
                self._tell(node, other, True)
        self.at(self.now_ns, lambda: None)

    def remove(self, peer: PeerId) -> None:
        """Removes a node as if it had died: envelopes on their way to it are lost, the others are told.

        Raises SimulationError where there is no such node.
        """
        gone = self._nodes.pop(peer, None)
        self._keepers.pop(peer, None)
        self._cut_off.pop(peer, None)
        if gone is None:
            raise SimulationError(f"there is no node {peer.short()}", "simulation")
        for other in self._nodes.values():
            self._tell(other, gone, False)

    def connect(self, peer: PeerId, up: bool) -> None:
        """Takes a node's connection away, or gives it back, as if its broker were gone.

        Nobody is told that it goes; when it is back, it and the others are told of each other again. What it
        sends meanwhile waits for its connection or its own deadline, what is sent to it is lost. Raises
        SimulationError where there is no such node.
        """
        node = self._nodes.get(peer)
        if node is None:
            raise SimulationError(f"there is no node {peer.short()}", "simulation")
        node.connected(up)
        if not up:
            self._cut_off.setdefault(peer, [])
            return
        if (waits := self._cut_off.pop(peer, None)) is None:
            return
        self._sessions[peer] += 1
        for other in self._nodes.values():
            if other is not node and other.peer_id not in self._cut_off:
                self._tell(other, node, True)
                self._tell(node, other, True)
        for until_ns, step in waits:
            if not until_ns or until_ns > self.now_ns:
                self._send(peer, step)

    def _tell(self, listener: DrivenNode, about: DrivenNode, up: bool) -> None:
        if not self._presence:
            return
        classes = classes_heard(listener, about)
        if not classes:
            return
        peer, epoch, session = about.peer_id, about.epoch, self._sessions[about.peer_id]
        address, meta = Address.empty().with_peer(peer).to_bytes(), about.presence_meta

        def tell() -> None:
            listener.peer_presence(peer, up, (address,), meta, epoch=epoch, classes=classes, session=session)

        self.at(self.now_ns + self._latency_ns, tell)

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Calls `act()` at the simulated time `when_ns`."""
        heapq.heappush(self._events, (when_ns, self._next, act))
        self._next += 1

    def run(
        self, until: Callable[[], bool] | None = None, for_ns: int | None = None, max_events: int = 1_000_000
    ) -> None:
        """Runs until `until()` is true, `for_ns` have passed, or nothing is due any more.

        Raises SimulationError after `max_events` instants at which something happened.
        """
        end = None if for_ns is None else self.now_ns + for_ns
        for _ in range(max_events):
            when = self._poll_all()
            if until is not None and until():
                return
            if self._events and (when is None or self._events[0][0] <= when):
                when = self._events[0][0]
            if when is None:
                return
            if end is not None and when > end:
                self.now_ns = end
                return
            self.now_ns = max(self.now_ns, when)
            while self._events and self._events[0][0] <= self.now_ns:
                heapq.heappop(self._events)[2]()
        raise SimulationError(
            f"it has not ended after {max_events} events",
            "simulation",
            "raise max_events, or look for a loop",
        )

    def _poll_all(self) -> int | None:
        """Polls all nodes until none has work now; returns when the next one has, None for never."""
        for _ in range(POLLS_PER_INSTANT):
            earliest: int | None = None
            busy = False
            for node in tuple(self._nodes.values()):
                keeper = self._keepers.get(node.peer_id)
                due = next_due_ns(node, keeper)
                if due is not None and due <= self.now_ns:
                    busy = True
                    polled = node.poll(self.now_ns)
                    if keeper is not None:
                        keeper.take(polled, self.now_ns)
                    for step in polled:
                        self._handle(node, step)
                    due = next_due_ns(node, keeper)
                if due is not None:
                    earliest = due if earliest is None else min(earliest, due)
            if not busy:
                return earliest
            if earliest is None or earliest > self.now_ns:
                return earliest
        raise SimulationError(
            f"nodes still have work after {POLLS_PER_INSTANT} polls at one instant",
            f"simulation at {self.now_ns} ns",
            "look for a loop, such as an EventSource that publishes its own event",
        )

    def _handle(self, node: DrivenNode, step: steps.EngineStep) -> None:
        if isinstance(step, steps.SendEnvelope):
            self._send(node.peer_id, step)
        else:
            self.seen.append(Seen(self.now_ns, node.peer_id, step))

    def _send(self, source: PeerId, step: steps.SendEnvelope) -> None:
        waiting = self._cut_off.get(source)
        if waiting is not None:
            waiting.append((self.now_ns + step.expires_in_ns if step.expires_in_ns else 0, step))
            return
        target, body, rest = step.peer, step.body, step.rest
        self._trace.update(self.now_ns.to_bytes(8, "big") + source.to_bytes() + target.to_bytes())
        self._trace.update(body)
        self._trace.update(rest)
        delay = self._latency_ns + (self._random.randrange(self._jitter_ns) if self._jitter_ns else 0)
        when = max(self.now_ns + delay, self._arrival.get((source, target), 0))
        self._arrival[source, target] = when
        observed = Address.empty().with_peer(source).to_bytes()

        def arrive() -> None:
            node = self._nodes.get(target)
            if node is None or target in self._cut_off:
                self.lost += 1
                return
            try:
                # Joined here and not before: copies for all peers at once would be many.
                node.deliver_inbound(body + rest, source, observed)
                self.delivered += 1
            except IngressFull:
                self.lost += 1

        self.at(when, arrive)

    def events(self, topic: str | None = None) -> list[steps.AppEvent]:
        """The app events seen so far, of one topic or of all."""
        events = [s.step for s in self.seen if isinstance(s.step, steps.AppEvent)]
        return [event for event in events if topic is None or event.topic == topic]
