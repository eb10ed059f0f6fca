"""What the nodes of one worker tell the run: after each window, and at the end."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bb_edge.transport.in_process import Arrival


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
    delivered: int = 0
    lost: int = 0
    stuck: str = ""
    """Why rounds will not go on by themselves; empty as long as they may."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a shard tells at the end: a digest of the messages of each pair, counters, trouble by kind."""

    digests: Mapping[tuple[bytes, bytes], bytes]
    counters: Mapping[str, int]
    trouble: Mapping[str, tuple[int, str]]
    sent_bytes: int
    peak_rss: int


def peak_rss_bytes() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
