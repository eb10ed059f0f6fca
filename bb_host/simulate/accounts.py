"""What the nodes of one worker tell the run: after each window, and at the end."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bb_edge.transport.in_process import Arrival

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array


@dataclass(frozen=True, slots=True)
class Event:
    """An app event of a node: what a host would have read. `at_ns` is simulated time."""

    at_ns: int
    node: str
    topic: str
    value: Any


@dataclass(slots=True)
class Progress:
    """What a shard tells after each window. `next_ns` is when its next event or poll is due, or None."""

    next_ns: int | None = None
    outgoing: list[Arrival] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    awake: int = 0
    open_rounds: int = 0
    rounds_ended: int = 0
    delivered: int = 0
    lost: int = 0
    stuck: str = ""
    """Why rounds will not go on by themselves; empty as long as they may."""
    waits: str = ""
    """What a round has last waited for."""


NAMED = 5
"""How many nodes a line of trouble names."""


@dataclass(slots=True)
class Trouble:
    """A kind of step that a user has to hear of: how often it came, the first of them, and by which nodes.

    Of several at one instant the first node by name has the first, whatever the number of workers.
    `nodes` says how often each was at fault.
    """

    count: int
    at_ns: int
    node: str
    text: str
    nodes: dict[str, int]

    @property
    def first(self) -> str:
        """The first of them: by whom, when, and what it says."""
        return f"{self.node} at {self.at_ns / 1e9:.3f} s: {self.text}"

    def worst(self) -> dict[str, int]:
        """The nodes that were at fault most often, with their numbers."""
        return dict(sorted(self.nodes.items(), key=lambda item: (-item[1], item[0]))[:NAMED])

    def with_more(self, more: Trouble) -> Trouble:
        """This and what another shard tells of the same kind."""
        nodes = {**self.nodes, **more.nodes}
        nodes.update((name, self.nodes[name] + more.nodes[name]) for name in self.nodes.keys() & more.nodes)
        first = min(self, more, key=lambda each: (each.at_ns, each.node))
        return Trouble(self.count + more.count, first.at_ns, first.node, first.text, nodes)

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        named = ", ".join(f"{name} {count:,}" for name, count in self.worst().items())
        rest = f", and {len(self.nodes) - NAMED:,} nodes more" if len(self.nodes) > NAMED else ""
        return f"{times} ({named}{rest}), first: {self.first}"


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a shard tells at the end: a digest of the messages of each pair, counters, trouble by kind.

    `models` are those that the scenario asks for, by class and slot, with their parameters by name.
    """

    digests: Mapping[tuple[bytes, bytes], bytes]
    counters: Mapping[str, int]
    trouble: Mapping[str, Trouble]
    sent_bytes: int
    peak_rss: int
    models: Mapping[tuple[str, str], Mapping[str, Array]] = field(default_factory=dict)


def peak_rss_bytes() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
