"""Answers that nobody waits for, by peer: some come late, but none answers more than it was asked."""

from __future__ import annotations

from bb_edge.engine import steps
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.bounds import forget_oldest

SLACK = 64
"""Late answers that are borne beyond the requests made meanwhile: to earlier ones, and repetitions."""


class LateAnswers:
    """Names a peer that answers more often than anything was asked. Nothing of it is saved."""

    __slots__ = ("_late", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._late: dict[PeerId, tuple[int, int]] = {}  # (late answers, requests opened before the first)

    def came(self, peer: PeerId) -> None:
        """An answer of the peer has come that nobody waits for."""
        opened = self._runtime.counters.get("requests.opened", 0)
        count, before = self._late.get(peer, (0, opened))
        count += 1
        if count > opened - before + SLACK:
            self._runtime.emit(steps.IngressDropped(peer, f"{count} answers that nobody waits for"))
            count, before = 0, opened
        if peer not in self._late:
            forget_oldest(self._late, self._runtime.config.max_peers)
        self._late[peer] = count, before
