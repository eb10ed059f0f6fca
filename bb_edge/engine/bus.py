"""The node's event bus: the framework's own events by kind, delivered to `EventSource` ops once per poll."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Bus:
    """Events published since the last poll, bounded; the oldest goes, counted.

    The kinds are what `EventSource(kind=…)` names; programs and components may publish kinds from USER on.
    """

    OP_FAILURE = 1
    PEER_UP = 2
    PEER_DOWN = 3
    WIRE_RECEIVE_ERROR = 4
    BOOTSTRAP_COMPLETE = 5
    STATE_ROLLED_BACK = 6
    PEER_ROLLED_BACK = 7
    PEER_BEGAN_ANEW = 8
    USER = 1000

    CAPACITY = 256
    """Events between two polls: one per entry that a node holds by default."""

    events: list[int] = field(default_factory=list)
    dropped: int = 0
    subscribed: set[int] = field(default_factory=set)

    def publish(self, kind: int) -> None:
        """Queues an event for the next bus phase; kinds that nobody subscribed to cost nothing."""
        if kind not in self.subscribed:
            return
        if len(self.events) >= self.CAPACITY:
            self.events.pop(0)
            self.dropped += 1
        self.events.append(kind)

    def take(self) -> list[int]:
        events = list(self.events)
        self.events.clear()
        return events


KINDS = {
    "op_failure": Bus.OP_FAILURE,
    "peer_up": Bus.PEER_UP,
    "peer_down": Bus.PEER_DOWN,
    "wire_receive_error": Bus.WIRE_RECEIVE_ERROR,
    "bootstrap_complete": Bus.BOOTSTRAP_COMPLETE,
    "state_rolled_back": Bus.STATE_ROLLED_BACK,
    "peer_rolled_back": Bus.PEER_ROLLED_BACK,
    "peer_began_anew": Bus.PEER_BEGAN_ANEW,
}
"""The names by which programs know the framework's own events."""
