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
    waits: bool = False  # for its next try; else the disk has been asked

    def put_off(self) -> int:
        """The disk has refused it: how long the next try waits."""
        self.waits = True
        wait_ns, self.retry_ns = self.retry_ns, min(2 * self.retry_ns, RETRY_LONGEST_NS)
        return wait_ns

    def due(self) -> bool:
        """A timer is over: whether the disk is to be asked again. It may be that of an earlier run, whose
        tokens were the same, and of another row.
        """
        waited, self.waits = self.waits, False
        return waited
