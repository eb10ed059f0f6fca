"""What a sender of durable envelopes is made of again: its flows in a snapshot, and the rows on disk.

What has a number keeps it until marks are exchanged. Records of earlier versions, and those that a snapshot
alone has, are to be written down anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bb_edge.ir.ids import PeerId
from bb_edge.wire import durable_rows
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.durable_flows import Destination, Held
from bb_edge.wire.durable_rows import Flow, Numbers
from bb_edge.wire.marks import Heard
from bb_edge.wire.outbox import OutboxRecord
from bb_edge.wire.resend import EnvelopeKey


class Saved(NamedTuple):
    """What `DurableSender.save` gave last; nothing of an empty one.

    `live` are the records that the snapshot needs; `giving` the rows of numbers that were being written, of
    which older runtimes said nothing.
    """

    next_id: int
    flows: dict[PeerId, Flow]
    live: frozenset[int]
    giving: tuple[bytes, ...]

    @classmethod
    def of(cls, saved: Sequence[Any]) -> Saved:
        """Reads it. What does not fit raises as it comes."""
        next_id, flows, live, *giving = saved or (1, (), ())
        known = {
            PeerId.from_bytes(peer): Flow(epoch, last, Heard(*heard)) for peer, epoch, last, heard in flows
        }
        return cls(next_id, known, frozenset(live), tuple(*giving))

    def rows(self, there: Collection[bytes]) -> durable_rows.Rows:
        """What the rows that are `there` say, with those of `giving` that did not get there."""
        return durable_rows.read([*there, *self.lacking(there)], self.flows, self.next_id, self.live)

    def lacking(self, there: Collection[bytes]) -> list[bytes]:
        """The rows of `giving` that are not there."""
        return [row for row in self.giving if row not in there]


@dataclass(slots=True)
class SavedSender:
    """All that a sender had. `anew` are the `records` whose rows are still to be written, `giving` the
    `numbers`.

    `older` names rows that say nothing any more, `orphans` bodies that no record names. `missing` are the
    records that the snapshot or a row names, and of which there is too little to be sent.
    """

    next_id: int
    flows: dict[PeerId, Destination]
    numbers: list[Numbers]
    older: list[int | EnvelopeKey]
    orphans: set[BodyName]
    records: list[Held] = field(default_factory=list)
    anew: list[Held] = field(default_factory=list)
    giving: list[Numbers] = field(default_factory=list)
    missing: tuple[int, ...] = ()

    def add(self, number: int, record: OutboxRecord, seq: int, settled: bool = False) -> Held:
        """Puts a record into its flow; `seq` is its number in the flow's epoch, 0 for none."""
        peer = record.key.peer
        flow = self.flows.get(peer)
        if flow is None:
            flow = self.flows[peer] = Destination(peer)
        held = Held(number, record, settled=settled)
        self.records.append(held)
        if not settled:
            held.seq = seq
            if seq:
                flow.open[seq] = held
            else:
                flow.waiting.append(held)
        return held


def read(
    saved: Sequence[Any], rows: Iterable[bytes], unwritten: Iterable[tuple[int, OutboxRecord]]
) -> SavedSender:
    """Reads what `DurableSender.save` gave last (nothing of an empty one), and the rows in any order.

    `unwritten` are the records whose rows were not on disk, by their ids. OutboxRecordError for other bytes.
    """
    known, there = Saved.of(saved), [*rows]
    next_id, live, found = known.next_id, known.live, known.rows(there)
    ids = [*found.records, *found.bodiless, *(number for row in found.given for number in row.ids)]
    flows = {
        peer: Destination(peer, epoch=known.epoch, last=known.last, heard=known.heard, saved=known)
        for peer, known in found.flows.items()
    }
    older: list[int | EnvelopeKey] = [*found.replaced, *found.stale, *found.bodiless]
    sender = SavedSender(max([next_id - 1, *ids]) + 1, flows, found.given, older, found.orphans)
    for number, record in sorted(found.records.items()):
        sender.add(number, record, found.numbers.get(number, 0), number in found.settled)
    again = [(number, record) for number, record in unwritten if found.lack(number, record)]
    again += enumerate(found.older, sender.next_id)
    sender.next_id += len(found.older)
    for number, record in again:
        sender.anew.append(sender.add(number, record, found.number_of(number, record)))
    lacking = known.lacking(there)
    sender.giving = [row for row in found.given if row.to_bytes() in lacking] if lacking else []
    sender.missing = found.missing(live, [held.id for held in sender.records])
    for flow in flows.values():
        flow.open = dict(sorted(flow.open.items()))
    return sender


def plain(flows: Iterable[Destination]) -> list[list[Any]]:
    """Flows as `Saved` reads them."""
    known = [(flow.peer, flow.save()) for flow in flows]
    return [[peer.to_bytes(), flow.epoch, flow.last, list(flow.heard)] for peer, flow in known]
