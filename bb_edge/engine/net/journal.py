"""Durable envelopes on their way in: written down before they count (docs/design/durability.md).

    NEW ──marked, no ack──► HELD ──persisted, or in a snapshot──► ACCEPTED (ack owed) ──next poll──► delivered
      │                       └──not persisted──► withdrawn: never received, its sender repeats it
      └──request──► HELD, delivered ──persisted, or in a snapshot──► ack owed (`Ahead`)

`DurableReceiver` says which numbers are taken.

A node that comes back is given the journal; what its snapshot does not know yet is delivered as on the first
day, in the same order, and before anything new is let in.

Rules D1 and W13 of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bb_edge.engine import steps
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.net.ahead import AHEAD_BYTES, Ahead
from bb_edge.engine.net.arrivals import Arrival, Data, Kind, Raw, Refusal
from bb_edge.engine.net.marks import Marks
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId, PeerIdError
from bb_edge.wire import cbor, envelope
from bb_edge.wire.dedup import Verdict
from bb_edge.wire.delivery import Links
from bb_edge.wire.durable_receiver import DurableReceiver
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope
from bb_edge.wire.marks import Ask, Open

KindOf: TypeAlias = Callable[[Envelope], Kind]

RECORD_VERSION = 1


class JournalRecordError(BBError):
    """Bytes that are not a journal record: damaged, or written by a newer version."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One envelope as it came. `wall_ns` is when, because monotonic time does not outlive a restart."""

    peer: PeerId
    data: Data
    wall_ns: int
    observed: bytes | None = None

    def to_bytes(self) -> bytes:
        """Canonical CBOR; `from_bytes` gives the record back."""
        return b"".join(self.pieces())

    def pieces(self) -> list[cbor.Buffer]:
        """The same in pieces, of which a large envelope is one that is not copied."""
        return cbor.pieces([RECORD_VERSION, self.peer.to_bytes(), self.data, self.wall_ns, self.observed])

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


def empty_one(peer: PeerId, message: Envelope) -> Arrival:
    """An envelope under the same durable number that says nothing: written down, it has the number taken."""
    empty = Envelope(kind=RESPONSE, epoch=message.epoch, seq=message.seq, base=message.base)
    return Arrival(Raw(envelope.encode(empty), peer, None), empty, Kind.ANSWER, 0)


@dataclass(slots=True, eq=False)
class Journal:
    """What waits to be written, and what is written and waits for the next poll; bounded by the ingress.

    Unless the driver has `kept` it, nothing is written: durable envelopes are like any other.
    """

    _runtime: Runtime
    _links: Links
    _marks: Marks
    ahead: Ahead
    _kept: bool = True
    _sources: DurableReceiver = field(init=False)
    held: dict[int, Arrival] = field(default_factory=dict)
    accepted: list[Arrival] = field(default_factory=list)
    replaying: list[JournalRecord] = field(default_factory=list)
    _asked: dict[PeerId, int | None] = field(default_factory=dict)  # in which run, say presences
    _next_token: int = -1  # below 0: the outbox has the numbers above
    _saved: tuple[int, ...] = ()  # what was held when the last snapshot was taken

    def __post_init__(self) -> None:
        self._sources = self._links.sources

    def verdict(self, peer: PeerId, message: Envelope, now_ns: int) -> Verdict:
        """Judges a durable number; one that was taken is acknowledged again."""
        sources, epoch, seq = self._sources, message.epoch, message.seq
        verdict = sources.receive(peer, epoch, seq, message.base)
        if verdict is Verdict.CLOSED and not self._closed(peer, now_ns):
            verdict = sources.receive(peer, epoch, seq, message.base)
        if verdict is Verdict.DUPLICATE:
            sources.again(peer, epoch, seq)
            self._links.owe_durable(peer, now_ns)
        return verdict

    def refusal(self, peer: PeerId, message: Envelope, now_ns: int) -> Refusal | None:
        """Why a durable envelope is not taken; nothing new is while the disk refuses what has run."""
        verdict = self.verdict(peer, message, now_ns)
        if verdict is Verdict.NEW:
            return Refusal.DISK if self.ahead.failing else None
        return Refusal[verdict.name]

    def hold(
        self, arrival: Arrival, now_ns: int, beside: Callable[[], int] = int, patient: bool = False
    ) -> bool:
        """Takes the envelope's number, and asks the driver to write it down; True: it is delivered later.

        False where it is delivered at once: where nothing is kept, and then it is owed its acknowledgement;
        and where it runs while it is written, as a request may; `beside` tells how many bytes came with it. A
        `patient` one may wait for others that are to come.
        """
        raw, message = arrival.raw, arrival.message
        self._sources.hold(raw.peer, message.epoch, message.seq, message.base)
        if not self._kept:
            self._journaled(arrival, now_ns)
            return False
        token = self._next_token
        self._next_token -= 1
        self.held[token] = arrival
        self._runtime.count("ingress.journaled")
        wall_ns = now_ns + self._runtime.clock_offset_ns
        record = JournalRecord(raw.peer, raw.data, wall_ns, raw.observed)
        runs = arrival.kind is Kind.ENTRY and message.kind == REQUEST
        if runs and self._may_run(raw.peer, len(raw.data) + beside()):
            self.ahead.add(steps.Journal(token, raw.peer, record.pieces(), ahead=True), len(raw.data))
            return False
        self._runtime.emit(steps.Journal(token, raw.peer, record.pieces(), patient=patient))
        return True

    def _may_run(self, peer: PeerId, size: int) -> bool:
        """Whether an envelope is delivered while it is written.

        Not before what came earlier and waits for the disk: rows are replayed in the order in which they have
        run. Nor of a peer that knows no marks, which would not notice where a damaged snapshot takes along
        what it alone has.
        """
        if len(self.held) - 1 != len(self.ahead):  # it is one of those that are held
            return False
        return self.ahead.bytes + size <= AHEAD_BYTES and self._sources.is_open(peer)

    def persisted(self, token: int) -> bool:
        """It is on disk: it is owed its acknowledgement, and delivered. False where the token is not ours."""
        arrival = self.held.pop(token, None)
        if arrival is None:
            return False
        self._journaled(arrival, self._runtime.now_ns)
        if token in self.ahead:
            self.ahead.written(token, len(arrival.raw.data))
        else:
            self.accepted.append(arrival)
        return True

    # --- marks ----------------------------------------------------------------------------------------

    def _closed(self, peer: PeerId, now_ns: int) -> bool:
        """Whether a peer has to ask before anything of it is taken: it knows marks, or will say so."""
        known = self._marks.known_by(peer)
        if known is False and self._asked.get(peer, -1) == self._marks.run_of(peer):
            known = True  # it has asked: its presence is an old one
        if known is False:
            self._sources.peer_up(peer, knows_marks=False)
            return False
        if known:
            self._sources.refused(peer, now_ns)
            self._carry_out()
        return True

    def marked(self, peer: PeerId, said: Ask | Open) -> None:
        """A peer asks what was taken of it, or begins an epoch."""
        if isinstance(said, Ask):
            self._sources.asked(peer, said)
            if peer in self._sources.peers:
                self._asked[peer] = self._marks.run_of(peer)
        else:
            self._sources.opened(peer, said)
        self._carry_out()

    def _carry_out(self) -> None:
        effects, self._sources.out = self._sources.out, []
        for effect in effects:
            self._marks.carry_out(effect)

    # --- the driver's answers -------------------------------------------------------------------------

    def _journaled(self, arrival: Arrival, now_ns: int) -> None:
        peer, message = arrival.raw.peer, arrival.message
        self._sources.journaled(peer, message.epoch, message.seq)
        self._links.owe_durable(peer, now_ns)
        self._carry_out()

    def persist_failed(self, token: int, error: BaseException) -> tuple[PeerId, int] | None:
        """It could not be written: it counts as never received, or, where it has run, is asked for again.

        Returns its peer, and how many bytes it holds no more; None where the token is not ours.
        """
        arrival = self.held.get(token)
        if arrival is None:
            return None
        size = 0
        if token in self.ahead:
            self.ahead.failed()
        else:
            del self.held[token]
            size = len(arrival.raw.data)
            self._sources.not_journaled(arrival.raw.peer, arrival.message.epoch, arrival.message.seq)
            self._carry_out()
        self._runtime.count("storage.failed")
        self._runtime.emit(steps.StorageFailed("journal", error))
        return arrival.raw.peer, size

    def replay(self, records: Iterable[bytes]) -> None:
        """Queues the records of a journal, in their order. JournalRecordError, queueing none."""
        if self._kept:
            self.replaying.extend([JournalRecord.from_bytes(data) for data in records])

    def replayed(self, peer: PeerId, message: Envelope, now_ns: int) -> bool:
        """Takes the number of a record that is replayed. False where the snapshot has it."""
        if not message.seq or not message.base:
            return True
        if not self._sources.replayed(peer, message.epoch, message.seq, message.base):
            return False
        self._sources.again(peer, message.epoch, message.seq)
        self._links.owe_durable(peer, now_ns)
        return True

    def snapshot_written(self) -> None:
        """What was held when the last snapshot was taken is in it, and so on disk. What becomes of its record
        in the journal makes no difference any more.
        """
        for token in self._saved:
            self.persisted(token)
        self._saved = ()

    def save(self) -> dict[str, list[Any]]:
        """Plain values for a snapshot; it keeps what is held, whatever becomes of the journal's record."""
        self._saved = tuple(self.held)
        waiting = [arrival for token, arrival in self.held.items() if token not in self.ahead]
        arrivals = (*self.accepted, *waiting)
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
