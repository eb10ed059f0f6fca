"""How many reports a device can put into its outbox while the hub is away, and what a report costs on disk.

    python benchmarks/reports.py [FOLDER]

A device whose program sends its input durably to a hub that it knows and that is not there. Each report is on
the medium, in FOLDER (a temporary one without), before the next begins; or so many come in one poll, and
share a write and a sync. Reports per second, bytes and milliseconds per sync; medians of REPEATS runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims", "examples"))]

import numpy as np  # noqa: E402

from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.components import PresenceSelector  # noqa: E402
from bb_edge.state import StateStore  # noqa: E402
from bb_edge.state.keeper import Keeper  # noqa: E402
from bb_host import Compiler, Graph, Module, PeerSelectorSlot  # noqa: E402
from bb_host.build import build_edge  # noqa: E402
from bb_shims import StorageError, open_folder  # noqa: E402

REPEATS = 5
MOST = 2048
"""Reports of a run at most: half of what an outbox takes by itself."""
SIZES = (100, 10_000, 200_000)
TOGETHER = (1, 16)


class Reports(Module):
    """A device that tells a hub what it is given."""

    name, home = "Reports", "Device"
    hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Device")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def body(self, g: Graph) -> None:
        reading = g.input("reading", np.uint8, (self.size,))
        told = g.net_out("report", self.hubs.sample(g, n=1, min=1, after=reading), reading, durable=True)
        g.app_emit("report", told)


class Rate(NamedTuple):
    """Of one run: reports, and per second, bytes on disk and synced calls per report, ms of a synced call."""

    reports: int
    per_second: float
    written: float
    syncs: float
    sync_ms: float


def compiled(size: int) -> bytes:
    """The device's artifact."""
    compiler = Compiler().bind_peer_selector("hubs", PresenceSelector, {"known": True})
    artifacts = build_edge(Reports(size), compiler).artifacts
    return next(artifact.data for artifact in artifacts if artifact.target == "Device")


def measure(data: bytes, size: int, together: int, count: int, folder: Path) -> Rate:
    """Puts `count` reports into an outbox in a folder that does not exist yet; so many share a poll."""
    node = install(PeerId.from_name("device"), (), data, ["Device"], NodeConfig.edge(), seed=1, durable=True)
    hub = PeerId.from_name("hub")
    node.presences_come()
    node.peer_presence(hub, True, epoch=1, classes=("Hub",))
    node.peer_presence(hub, False, epoch=1, classes=("Hub",))
    readings = np.zeros((count, size), np.uint8)
    readings[:, :4] = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, 4)
    with open_folder(folder) as storage:
        store = StateStore(storage, (StorageError,))
        store.open()
        keeper = Keeper(node, store)
        keeper.take(node.poll(1), 1)
        before, rows = keeper.counters, node.counters["outbound.persisting"]  # the hub is written down, too
        began = time.perf_counter()
        for turn in range(count // together):
            for number in range(turn * together, (turn + 1) * together):
                node.invoke("Device", {"reading": readings[number]})
            now_ns = 1_000_000 * (turn + 2)
            keeper.take(node.poll(now_ns), now_ns)
        seconds = time.perf_counter() - began
        after = keeper.counters
        kept = node.counters["outbound.persisting"] - rows
        if kept != count or after["state.failures"]:
            raise AssertionError(f"{kept} of {count} reports are in the outbox")
        began = time.perf_counter()
        for _ in range(20):
            storage.append("other", bytes(size * together), sync=True)
        sync_ms = 1e3 * (time.perf_counter() - began) / 20
    written = (after["state.bytes_written"] - before["state.bytes_written"]) / count
    syncs = (after["state.syncs"] - before["state.syncs"]) / count
    return Rate(count, count / seconds, written, syncs, sync_ms)


def main(arguments: Sequence[str]) -> int:
    """Prints a line per size, and per how many share a poll."""
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as folder:
        runs = 0
        for size in SIZES:
            data = compiled(size)
            for together in TOGETHER:
                count = min(MOST, 48_000_000 // size) // 16 // 3 * 16
                found = []
                for _ in range(REPEATS):
                    runs += 1
                    found.append(measure(data, size, together, count, Path(folder) / str(runs)))
                rate, sync_ms = (median(row[i] for row in found) for i in (1, 4))
                print(
                    f"{size:,} bytes, {together} in a poll: {rate:,.0f} reports per second, "
                    f"{found[0].written:,.0f} bytes and {found[0].syncs:.2f} synced calls each; "
                    f"such a write and its sync take {sync_ms:.2f} ms by themselves"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
