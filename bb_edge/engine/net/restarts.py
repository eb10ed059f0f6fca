"""Peers that are started anew again and again: they crash, or two machines run under one name.

Each process has an epoch of its own. One that comes back after another one is that of a process which has run
all the time: two machines take the place from each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.backoff import S
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.presence import Presence

OFTEN = 5
"""Starts without a rest from which on it is told: an update, a reboot and a second try are three."""
BACK = 2
"""Epochs that came back from which on it is told: a broker of a cluster may tell one presence late."""
REST_NS = 600 * S
"""A peer that has not been started anew for so long has had a rest."""
FIRST_NS, LONGEST_NS = 10 * S, 600 * S
"""Between two steps about one peer: the first wait, doubling up to the longest."""
EPOCHS = 4
"""Epochs of a peer that are remembered: three machines of one name are told as well as two."""


@dataclass(slots=True)
class _Row:
    epochs: tuple[int, ...] = ()
    times: int = 0
    back: int = 0
    last_ns: int = 0
    next_ns: int = 0
    wait_ns: int = FIRST_NS


class Restarts:
    """The starts of each peer that was started anew. Nothing of it is saved: a restart tells it again."""

    __slots__ = ("_parted", "_rows", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rows: dict[PeerId, _Row] = {}
        self._parted: dict[PeerId, None] = {}

    def parted(self, peer: PeerId, before: int | None, said: Presence) -> None:
        """Notes a goodbye, as of one that sleeps between reports: its next start is behind no crash.

        It has a number, which what the broker says in a peer's place has not.
        """
        if said.seq and said.epoch == before and peer not in self._parted:
            forget_oldest(self._parted, self._runtime.config.max_peers)
            self._parted[peer] = None

    def started(self, peer: PeerId, before: int, epoch: int) -> None:
        """The peer is up in another epoch than before."""
        now_ns, in_order = self._runtime.now_ns, peer in self._parted
        self._parted.pop(peer, None)
        self._runtime.count("peers.restarted")
        row = self._rows.pop(peer, None)
        if row is None or now_ns - row.last_ns > REST_NS:
            forget_oldest(self._rows, self._runtime.config.max_peers)
            row = _Row()
        self._rows[peer] = row
        row.times, row.last_ns = row.times + (not in_order), now_ns
        row.back += epoch in row.epochs
        row.epochs = (*(known for known in row.epochs if known != before), before)[-EPOCHS:]
        if (row.times >= OFTEN or row.back >= BACK) and now_ns >= row.next_ns:
            self._runtime.emit(steps.PeerRestarts(peer, row.times, WHY[row.back >= BACK]))
            row.next_ns = now_ns + row.wait_ns
            row.wait_ns = min(2 * row.wait_ns, LONGEST_NS)


WHY = (
    "it is started anew again and again, or two machines run under its name",
    "two machines run under its name: stop one of them, or give it a name of its own (peer)",
)
"""What the step says: where no epoch has come back, and where some have."""
