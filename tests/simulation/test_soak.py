"""One federation for long: memory that does not grow, and no more on flash than was said."""

from __future__ import annotations

from dataclasses import replace

from simulated.network import MS
from simulated.soak import DISK_BYTES, PLAN, Soak

SHORT = replace(PLAN, report_ms=30)
"""With faults as often as in these lives, there are enough reports beside the snapshots that they cost."""


def test_a_long_life_needs_no_more_memory_and_writes_no_more_than_its_budget():
    soak = Soak(12, every_ns=700 * MS, plan=SHORT).soak(4_000, checkpoints=4)
    assert soak.faults["full disk"] and soak.faults["clock jumps"]
    assert soak.ledger.seen["restored"] >= 2
    assert soak.ledger.seen["StorageFailed"]
    last = soak.checkpoints[-1]
    assert last.rounds > 5
    assert last.disk_bytes < DISK_BYTES // 4


def test_a_snapshot_between_a_restart_and_what_ran_before_it_forgets_no_number():
    soak = Soak(9, every_ns=700 * MS, plan=SHORT).soak(2_400, checkpoints=2)
    assert soak.ledger.seen["restored"]
    assert sum(m.node.counters.get("outbound.reused", 0) for m in soak.machines if m.node is not None)
