"""Durable envelopes on their way in: written down before they count (docs/design/durability.md).

    NEW ──marked, no ack──► HELD ──persisted──► ACCEPTED (ack owed) ──next poll──► delivered
                              └──not persisted──► withdrawn: never received, its sender repeats it

A node that comes back is given the journal; what its snapshot does not know yet is delivered as on the first
day, in the same order, and before anything new is let in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bb_edge.engine import steps
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.net.arrivals import Arrival, Data, Kind, Raw
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.wire import cbor, envelope
from bb_edge.wire.delivery import Links
from bb_edge.wire.envelope import Envelope

KindOf: TypeAlias = Callable[[Envelope], Kind]

RECORD_VERSION = 1


class JournalRecordError(BBError):
    """Bytes that are no journal record: damaged, or written by a newer version."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One envelope as it came. `wall_ns` is when, because monotonic time does not outlive a restart."""

    peer: PeerId
    data: Data
    wall_ns: int
    observed: bytes | None = None

    def to_bytes(self) -> bytes:
        """Canonical CBOR; `from_bytes` gives the record back."""
        return cbor.dumps([RECORD_VERSION, self.peer.to_bytes(), self.data, self.wall_ns, self.observed])

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> JournalRecord:
        """Reads what `to_bytes` wrote. JournalRecordError for anything else."""
        try:
            row = cbor.loads(data, max_items=8, max_depth=1)
            if not isinstance(row, list) or len(row) != 5 or row[0] != RECORD_VERSION:
                raise JournalRecordError("no record of this version", "journal", "drop the file")
            version, peer, encoded, wall_ns, observed = row
            typed = type(peer) is bytes and type(encoded) is bytes and type(version) is type(wall_ns) is int
            if not typed or not (observed is None or type(observed) is bytes):
                raise JournalRecordError("fields of other types", "journal", "drop the file")
            return cls(PeerId.from_bytes(peer), encoded, wall_ns, observed)
        except (cbor.CborError, PeerIdError) as error:
            raise JournalRecordError(f"damaged: {error}", "journal", "drop the file") from error


@dataclass(slots=True, eq=False)
class Journal:
    """What waits to be written, and what is written and waits for the next poll; bounded by the ingress.

    Unless the driver has `kept` it, nothing is written: durable envelopes are like any other.
    """

    _runtime: Runtime
    _links: Links
    _kept: bool = True
    held: dict[int, Arrival] = field(default_factory=dict)
    accepted: deque[Arrival] = field(default_factory=deque)
    replaying: deque[JournalRecord] = field(default_factory=deque)
    _next_token: int = -1  # below 0: the outbox has the numbers above

    def hold(self, arrival: Arrival, now_ns: int) -> bool:
        """Takes the envelope's number, and asks the driver to write it down; True: it is delivered later."""
        if not self._kept:
            return False
        raw = arrival.raw
        self._links.mark(raw.peer, arrival.message, now_ns, hold_ack=True)
        token = self._next_token
        self._next_token -= 1
        self.held[token] = arrival
        self._runtime.count("ingress.journaled")
        wall_ns = now_ns + self._runtime.clock_offset_ns
        record = JournalRecord(raw.peer, raw.data, wall_ns, raw.observed)
        self._runtime.emit(steps.Journal(token, raw.peer, record.to_bytes()))
        return True

    def persisted(self, token: int) -> bool:
        """It is on disk: it is owed its acknowledgement, and delivered. False where the token is not ours."""
        arrival = self.held.pop(token, None)
        if arrival is None:
            return False
        message = arrival.message
        self._links.journaled(arrival.raw.peer, message.epoch, message.seq, self._runtime.now_ns)
        self.accepted.append(arrival)
        return True

    def persist_failed(self, token: int, error: BaseException) -> Arrival | None:
        """It could not be written, and counts as never received; None where the token is not ours."""
        arrival = self.held.pop(token, None)
        if arrival is None:
            return None
        self._links.not_journaled(arrival.raw.peer, arrival.message.epoch, arrival.message.seq)
        self._runtime.count("storage.failed")
        self._runtime.emit(steps.StorageFailed("journal", error))
        return arrival

    def replay(self, records: Iterable[bytes]) -> None:
        """Queues the records of a journal, in their order. JournalRecordError, queueing none."""
        if self._kept:
            self.replaying.extend([JournalRecord.from_bytes(data) for data in records])

    def save(self) -> dict[str, list[Any]]:
        """Plain values for a snapshot; it keeps what is held, whatever becomes of the journal's record."""
        arrivals = (*self.accepted, *self.held.values())
        return {
            "accepted": [[*arrival.raw.save(), arrival.deadline_ns] for arrival in arrivals],
            "replaying": [record.to_bytes() for record in self.replaying],
        }

    def restore(self, data: Any, shift: Shift, ledger: Ledger, kind_of: KindOf) -> None:
        """Takes what `save` gave, and charges its bytes. EnvelopeError for what the caps do not let in."""
        if not self._kept:
            return  # what a durable node had written down comes again with its journal
        for *row, deadline_ns in data["accepted"]:
            raw = Raw.restored(row)
            ledger.recharge(raw.peer, len(raw.data))
            message = envelope.decode(raw.data, self._runtime.config.caps)
            self.accepted.append(Arrival(raw, message, kind_of(message), shift.time(deadline_ns)))
        self.replay(data["replaying"])
