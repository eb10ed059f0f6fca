"""What peers have said of round-trip times, hop by hop; bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire.bounds import forget_oldest
from bb_edge.wire.envelope import RttReport


class RoundTrips:
    """The last report of each hop, `max_peers` at most: the oldest goes."""

    __slots__ = ("_runtime", "table")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # (peer, chain, hop, site) -> what that peer last said of that hop
        self.table: dict[tuple[PeerId, int, int, int], RttReport] = {}

    def take(self, peer: PeerId, reports: Sequence[RttReport]) -> None:
        """Keeps what an envelope says."""
        table = self.table
        for report in reports:
            key = (peer, report.chain_id, report.hop_index, report.next_hop_site_id)
            table.pop(key, None)
            if forget_oldest(table, self._runtime.config.max_peers):
                self._runtime.count("rtt.forgotten")
            table[key] = report

    @property
    def by_peer(self) -> dict[PeerId, tuple[RttReport, ...]]:
        """The reports of each peer."""
        reports: dict[PeerId, tuple[RttReport, ...]] = {}
        for (peer, *_), report in self.table.items():
            reports[peer] = (*reports.get(peer, ()), report)
        return reports

    def save(self) -> list[Any]:
        """All reports as plain values; `restore` takes them."""
        return [
            [peer.to_bytes(), site, chain, hop, rtt.srtt_ns, rtt.rttvar_ns, rtt.sample_count]
            for (peer, chain, hop, site), rtt in self.table.items()
        ]

    def restore(self, rows: Any) -> None:
        """Takes what `save` gave."""
        for peer, site, chain, hop, *times in rows:
            self.table[PeerId.from_bytes(peer), chain, hop, site] = RttReport(site, chain, hop, *times)
