"""What carries envelopes, badly: drops, duplicates, delays, partitions, a broker that forgets."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MS = 1_000_000
TICK_NS = MS


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad it is, while it is bad. Chances are per envelope."""

    drop: float = 0.2
    duplicate: float = 0.1
    slow: float = 0.1
    """Chance of a delay up to `slow_ns` instead of `quick_ns`: others overtake."""
    quick_ns: int = 3 * MS
    slow_ns: int = 400 * MS
    forget: float = 0.5
    """Chance that the broker has forgotten what it kept for a node that was away."""


CALM = Weather(0.0, 0.0, 0.0, MS, MS, 0.0)


class Network:
    """Events in simulated time, and the fate of each envelope. `weather` may change at any time."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.now_ns = 0
        self.weather = weather
        self.faults: Counter[str] = Counter()
        self.delivered = 0
        self._rng = rng
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._next = 0
        self._cut: set[frozenset[str]] = set()
        self._generation = 0  # of the broker: what was on its way when it died is gone

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Calls `act()` at a simulated time."""
        heapq.heappush(self._events, (max(when_ns, self.now_ns), self._next, act))
        self._next += 1

    @property
    def next_ns(self) -> int | None:
        """When the next event is."""
        return self._events[0][0] if self._events else None

    def run_due(self) -> None:
        """Runs what is due now."""
        while self._events and self._events[0][0] <= self.now_ns:
            heapq.heappop(self._events)[2]()

    def send(self, source: str, target: str, deliver: Callable[[], bool]) -> None:
        """Has `deliver()` called never, once, or twice, sooner or later; it says whether anyone is there."""
        weather, rng = self.weather, self._rng
        if frozenset((source, target)) in self._cut:
            self.faults["partitioned"] += 1
            return
        if rng.random() < weather.drop:
            self.faults["dropped"] += 1
            return
        copies = 1
        if rng.random() < weather.duplicate:
            self.faults["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            slow = rng.random() < weather.slow
            if slow:
                self.faults["delayed"] += 1
            delay = rng.randrange(1, weather.slow_ns if slow else weather.quick_ns + 1)
            generation = self._generation

            def arrive(generation: int = generation) -> None:
                if generation != self._generation:
                    self.faults["forgotten"] += 1
                elif deliver():
                    self.delivered += 1

            # Whole ticks: what arrives in the same one may be seen by the same poll.
            self.at(-(-(self.now_ns + delay) // TICK_NS) * TICK_NS, arrive)

    def cut(self, a: str, b: str, for_ns: int) -> None:
        """No envelope passes between two nodes for a while."""
        pair = frozenset((a, b))
        self._cut.add(pair)
        self.faults["partitions"] += 1
        self.at(self.now_ns + for_ns, lambda: self._cut.discard(pair))

    def restart_broker(self) -> None:
        """What it had in its hands is gone."""
        self._generation += 1
        self.faults["broker restarts"] += 1
