"""Nodes joined in one process under a simulated clock: the same engine, no threads, no sockets.

Everything is decided by the seed: same seed, same bytes. Time jumps to the earliest thing that is due.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from bb_edge.engine import steps
from bb_edge.engine.net.ingress import IngressFull
from bb_edge.ir.address import Address
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.transport.base import NodeDoors
from bb_edge.transport.driver import Keeps, next_due_ns

POLLS_PER_INSTANT = 100_000
"""Polls of all nodes without simulated time going on."""


class SimulationError(BBError):
    """The simulation cannot go on: unknown peer, or more events than it was given."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One step that a node gave, and when."""

    at_ns: int
    peer: PeerId
    step: steps.EngineStep


class Simulation:
    """A network of nodes with presence.

    Every message takes `latency_ns` plus up to `jitter_ns`, in order per pair. Without `presence` nobody
    tells the nodes of each other.

    `seen` is every step that the nodes gave and that is no envelope, in order: `seen[0].step` with its
    `.peer` and `.at_ns`. `delivered` and `lost` count envelopes, `now_ns` is the time.
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
        self._nodes: dict[PeerId, NodeDoors] = {}
        self._keepers: dict[PeerId, Keeps] = {}
        self._arrival: dict[tuple[PeerId, PeerId], int] = {}
        self._trace = hashlib.sha256()
        self.now_ns = 0
        self.seen: list[Seen] = []
        self.delivered = 0
        self.lost = 0

    @property
    def nodes(self) -> tuple[NodeDoors, ...]:
        return tuple(self._nodes.values())

    def trace_hash(self) -> str:
        """A digest over every envelope that was sent: when, from whom, to whom, which bytes."""
        return self._trace.hexdigest()

    def add(self, node: NodeDoors, keeper: Keeps | None = None) -> None:
        """A node comes up, with who keeps its state, if anybody: it and the others hear of each other."""
        self._nodes[node.peer_id] = node
        self._keepers.pop(node.peer_id, None)
        if keeper is not None:
            self._keepers[node.peer_id] = keeper
        for other in tuple(self._nodes.values()):
            if other is not node:
                self._tell(other, node, True)
                self._tell(node, other, True)
        self.at(self.now_ns, lambda: None)

    def remove(self, peer: PeerId) -> None:
        """A node dies: the others hear that it is down; what is on the way to it is lost."""
        gone = self._nodes.pop(peer, None)
        self._keepers.pop(peer, None)
        if gone is None:
            raise SimulationError(f"no node {peer.short()}", "simulation")
        for other in self._nodes.values():
            self._tell(other, gone, False)

    def _tell(self, listener: NodeDoors, about: NodeDoors, up: bool) -> None:
        if not self._presence:
            return
        address = Address.empty().with_peer(about.peer_id).to_bytes()
        peer, epoch, classes = about.peer_id, about.epoch, about.classes
        meta = about.presence_meta
        self.at(
            self.now_ns + self._latency_ns,
            lambda: listener.peer_presence(peer, up, (address,), meta, epoch=epoch, classes=classes),
        )

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Calls `act()` at a simulated time."""
        heapq.heappush(self._events, (when_ns, self._next, act))
        self._next += 1

    def run(
        self, until: Callable[[], bool] | None = None, for_ns: int | None = None, max_events: int = 1_000_000
    ) -> None:
        """Runs until the condition holds, the time is over, or nothing is due any more.

        Raises SimulationError after `max_events` events: something runs away.
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
            f"{max_events} events and no end", "simulation", "raise max_events, or look for a loop"
        )

    def _poll_all(self) -> int | None:
        """Polls every node that has something to do now; the earliest time at which one has."""
        for _ in range(POLLS_PER_INSTANT):
            earliest: int | None = None
            busy = False
            for node in tuple(self._nodes.values()):
                keeper = self._keepers.get(node.peer_id)
                due = next_due_ns(node, keeper)
                if due is not None and due <= self.now_ns:
                    busy = True
                    found = node.poll(self.now_ns)
                    if keeper is not None:
                        keeper.take(found, self.now_ns)
                    for step in found:
                        self._handle(node, step)
                    due = next_due_ns(node, keeper)
                if due is not None:
                    earliest = due if earliest is None else min(earliest, due)
            if not busy:
                return earliest
            if earliest is None or earliest > self.now_ns:
                return earliest
        raise SimulationError(
            f"{POLLS_PER_INSTANT} polls at one time and no end",
            f"simulation at {self.now_ns} ns",
            "look for a loop: an EventSource that publishes its own event, or the like",
        )

    def _handle(self, node: NodeDoors, step: steps.EngineStep) -> None:
        if isinstance(step, steps.SendEnvelope):
            self._send(node.peer_id, step.peer, step.payload)
        else:
            self.seen.append(Seen(self.now_ns, node.peer_id, step))

    def _send(self, source: PeerId, target: PeerId, data: bytes) -> None:
        self._trace.update(self.now_ns.to_bytes(8, "big") + source.to_bytes() + target.to_bytes() + data)
        delay = self._latency_ns + (self._random.randrange(self._jitter_ns) if self._jitter_ns else 0)
        when = max(self.now_ns + delay, self._arrival.get((source, target), 0))
        self._arrival[source, target] = when
        observed = Address.empty().with_peer(source).to_bytes()

        def arrive() -> None:
            node = self._nodes.get(target)
            if node is None:
                self.lost += 1
                return
            try:
                node.deliver_inbound(data, source, observed)
                self.delivered += 1
            except IngressFull:
                self.lost += 1

        self.at(when, arrive)

    def events(self, topic: str | None = None) -> list[steps.AppEvent]:
        """The app events seen so far, of one topic or all."""
        found = [s.step for s in self.seen if isinstance(s.step, steps.AppEvent)]
        return [e for e in found if topic is None or e.topic == topic]
