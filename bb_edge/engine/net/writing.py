"""A row of the outbox that the driver was asked to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bb_edge.wire.durable_flows import Write

RETRY_NS: Final = 1_000_000_000
RETRY_LONGEST_NS: Final = 64_000_000_000


@dataclass(slots=True)
class Writing:
    """It is asked for again where it could not be written: after a second, doubling."""

    row: Write
    retry_ns: int = RETRY_NS
    due_ns: int = 0  # when it is tried again; 0: the disk has been asked

    def put_off(self, now_ns: int) -> int:
        """The disk has refused it: when it is tried again."""
        self.due_ns = now_ns + self.retry_ns
        self.retry_ns = min(2 * self.retry_ns, RETRY_LONGEST_NS)
        return self.due_ns

    def due(self, now_ns: int) -> bool:
        """A timer is over: whether the disk is to be asked again. It may be that of an earlier run, whose
        tokens were the same, and of another row.
        """
        if not 0 < self.due_ns <= now_ns:
            return False
        self.due_ns = 0
        return True
