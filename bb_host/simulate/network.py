"""The network of one worker: what its nodes are given, and what becomes of it between their turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.transport.base import DrivenNode
from bb_edge.transport.in_process import Arrival, Presence, Seen, Simulation
from bb_host.simulate.busy import Busy
from bb_host.simulate.resting import Resting
from bb_host.simulate.scenario import Scenario


class Members(Protocol):
    """Who runs in this worker, and what is asked of it as envelopes come."""

    def runs(self, peer: PeerId) -> bool:
        """Whether what is sent to the peer comes here."""

    def take(self, seen: Seen) -> None:
        """Takes a step that a node has returned."""

    def wake(self, arrival: Arrival) -> bool:
        """Makes a node of who has an envelope; whether there is one now."""

    def drops_out(self, arrival: Arrival) -> bool:
        """Whether somebody loses its connection instead of taking this envelope."""


class Network(Simulation):
    """A simulated network whose nodes rest between their turns; slow ones' envelopes take longer."""

    def __init__(
        self,
        scenario: Scenario,
        members: Members,
        nodes: Mapping[PeerId, Node],
        slow: Mapping[PeerId, int],
        elsewhere: Callable[[Arrival], None],
        resting: Resting,
        busy: Busy,
    ) -> None:
        """`nodes` and `slow` are read as they are by then; `slow` is in nanoseconds."""
        super().__init__(
            scenario.seed,
            scenario.latency_ns,
            scenario.jitter_ns,
            presence=False,
            report=members.take,
            elsewhere=elsewhere,
            wake=members.wake,
        )
        self._nodes, self._slow, self._busy, self._resting = nodes, slow, busy, resting
        self._drops_out = members.drops_out if scenario.conditions.dropout_chance > 0 else None
        # As they are, where a method of this class would only call them: each is called for each envelope.
        self.is_here = members.runs  # type: ignore[method-assign]
        self.joined = resting.joined  # type: ignore[method-assign]
        self.carried = resting.carried  # type: ignore[method-assign]

    def deliver(self, arrival: Arrival) -> None:
        if isinstance(arrival.content, Presence):  # nobody asks for anything, and nothing lies aside
            super().deliver(arrival)
            return
        if self._drops_out is not None and self._drops_out(arrival):
            self.lost += 1
        else:
            super().deliver(arrival)
        self._resting.read(arrival)

    def polled(self, node: DrivenNode) -> None:
        peer = node.peer_id
        self._busy.polled(self._nodes[peer], self.now_ns)
        self._resting.rest(peer)

    def delay_ns(self, source: PeerId, target: PeerId, number: int) -> int:
        delay = super().delay_ns(source, target, number)
        return delay + self._slow.get(source, 0) if self._slow else delay
