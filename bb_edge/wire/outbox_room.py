"""How much room the records of an outbox have: in number and in bytes, a quarter of these for one peer."""

from __future__ import annotations

from bb_edge.ir.ids import PeerId
from bb_edge.wire.bodies import HeldBodies
from bb_edge.wire.outbox import OutboxFullError, OutboxRecord


class OutboxRoom:
    """Places and bytes of records. A body that several share counts once, and for each peer that it is for.

    A record that is settled keeps its place until a snapshot, and leaves its peer's share at once.
    """

    __slots__ = (
        "_bodies",
        "_of_peers",
        "_open_bodies",
        "_settled",
        "_settled_bytes",
        "bytes_in_use",
        "max_bytes",
        "max_records",
        "open_bytes",
        "records",
    )

    def __init__(self, max_records: int = 4096, max_bytes: int = 64 << 20) -> None:
        """At most `max_records` records with `max_bytes` bytes of envelopes, a quarter of these for one peer.

        4096 is enough for 64 peers with 64 unacknowledged durable envelopes each; 64 MiB is also the limit of
        these records on disk.
        """
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.records = 0
        self.bytes_in_use = 0
        self.open_bytes = 0
        """Of what is not settled."""
        self._bodies = HeldBodies()
        self._open_bodies = HeldBodies()
        self._of_peers: dict[PeerId, int] = {}
        self._settled = 0
        self._settled_bytes = 0

    @property
    def share(self) -> int:
        """The bytes that the records for one peer may have."""
        return self.max_bytes // 4

    def bytes_for(self, peer: PeerId) -> int:
        """The bytes of what is for a peer, and not settled."""
        return self._of_peers.get(peer, 0)

    @property
    def any_settled(self) -> bool:
        """Whether a snapshot would free anything."""
        return self._settled > 0

    @property
    def wants_snapshot(self) -> bool:
        """Whether it is three quarters full, and a snapshot would free an eighth of it or more.

        A quarter is left for what is sent while the snapshot is written; freeing less than an eighth would
        not be worth the wear of writing a snapshot.
        """
        records, size = self.max_records, self.max_bytes
        full = 4 * self.records >= 3 * records or 4 * self.bytes_in_use >= 3 * size
        return full and (8 * self._settled >= records or 8 * self._settled_bytes >= size)

    def has_room(self, size: int, body: bytes = b"") -> bool:
        """Whether one more record with `size` bytes behind its body would find room, whoever it is for."""
        size += self._bodies.adds(body)
        return self.records < self.max_records and self.bytes_in_use + size <= self.max_bytes

    def has_share(self, peer: PeerId, size: int) -> bool:
        """Whether `size` bytes more, body and all, are within the share of a peer; one alone always is."""
        waiting = self.bytes_for(peer)
        return not waiting or waiting + size <= self.share

    def take(self, record: OutboxRecord) -> None:
        """Charges a record. OutboxFullError, charging nothing, where it does not fit."""
        peer, size = record.key.peer, len(record.encoded) + len(record.body)
        if not self.has_share(peer, size):
            raise OutboxFullError(
                f"{size} bytes for peer {peer}, for which {self.bytes_for(peer)} wait already",
                "outbox",
                f"at most {self.share} for one peer, a quarter of limits.outbox_bytes",
            )
        if not self.has_room(len(record.encoded), record.body):
            raise OutboxFullError(
                f"{self.records} records with {self.bytes_in_use} bytes, {size} bytes requested",
                "outbox",
                f"at most {self.max_records} records (limits.outbox_records) and {self.max_bytes} bytes "
                f"(limits.outbox_bytes)",
            )
        self.adopt(record)

    def adopt(self, record: OutboxRecord) -> None:
        """Charges a record that is on disk already, whether it fits or not."""
        peer = record.key.peer
        self.records += 1
        self.bytes_in_use += len(record.encoded) + self._bodies.hold(record.body)
        self.open_bytes += len(record.encoded) + self._open_bodies.hold(record.body)
        self._of_peers[peer] = self.bytes_for(peer) + len(record.encoded) + len(record.body)

    def settle(self, record: OutboxRecord) -> None:
        """A record is settled: it is for nobody any more."""
        peer = record.key.peer
        left = self.bytes_for(peer) - len(record.encoded) - len(record.body)
        if left:
            self._of_peers[peer] = left
        else:
            del self._of_peers[peer]
        self.open_bytes -= len(record.encoded) + self._open_bodies.drop(record.body)
        self._settled += 1
        self._settled_bytes += len(record.encoded)

    def release(self, record: OutboxRecord) -> None:
        """A settled record is gone."""
        self.records -= 1
        self.bytes_in_use -= len(record.encoded) + self._bodies.drop(record.body)
        self._settled -= 1
        self._settled_bytes -= len(record.encoded)
