"""Durable envelopes on their way out, per destination: records, numbers, and the marks that come before them.

A record is written down without a number while the peer's marks have not been heard in this run, or its
window is full. It gets (epoch, seq) when it enters the window, on disk before it is published. Every exchange
of marks begins a new epoch of that flow, above all that either end knows: what the marks cover is settled,
the rest is numbered anew, in one row. So open records are of one epoch, and an envelope or an acknowledgement
of an earlier one says nothing any more.

Pure: no I/O, no clock, no randomness of its own. Calls leave effects in `out`; the owner does them, in order.
Repetitions are the owner's: `payload` gives the bytes. docs/design/durable-protocol.md has the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from bb_edge.ir.ids import PeerId
from bb_edge.ir.varint import encoded as varint
from bb_edge.wire import durable_rows, durable_saved, marks
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.dedup import DURABLE_UNACKNOWLEDGED
from bb_edge.wire.durable_flows import (
    FLOW,
    Destination,
    Effect,
    FlowEvent,
    FlowState,
    Held,
    NoWindow,
    Publish,
    RolledBack,
    Say,
    Settled,
    Write,
)
from bb_edge.wire.durable_rows import Flow, Numbers, OutboxName, RowName
from bb_edge.wire.envelope_records import Ack
from bb_edge.wire.marks import NOTHING, Ask, Heard, Open, Taken, Took
from bb_edge.wire.outbox import OutboxRecord
from bb_edge.wire.outbox_room import OutboxRoom
from bb_edge.wire.resend import EnvelopeKey

RANDOM_EPOCH: Final = 1 << 56
"""Epochs that older runtimes drew are below this."""
FAR_EPOCHS: Final = 1 << 48
"""No epoch counts that is so far beyond what is known: it rises by 2^32 at most, and has 64 bits."""

_ASKING, _MOVING, _PLAIN = FlowState.ASKING, FlowState.MOVING, FlowState.PLAIN
_UNASKED = (FlowState.SILENT, FlowState.PLAIN)
_NUMBERING = (FlowState.OPEN, FlowState.PLAIN)


class DurableSender:
    """All flows of a node. `draw` gives random numbers of 63 bits; all times are monotonic nanoseconds."""

    def __init__(self, draw: Callable[[], int], room: OutboxRoom | None = None) -> None:
        """`room` bounds the records."""
        self._draw = draw
        self.room = room or OutboxRoom()
        self._flows: dict[PeerId, Destination] = {}
        self._up: dict[PeerId, tuple[int | None, bool]] = {}
        self._records: dict[int, Held] = {}
        self._numbers: dict[RowName, Numbers] = {}  # rows on disk, or on their way there
        self._older: list[int | EnvelopeKey] = []  # rows on disk that say nothing any more
        self._tokens: dict[int, tuple[Held, ...]] = {}
        self._beginning: dict[int, tuple[Destination, Flow]] = {}  # by the token of its first row
        self._next_id = 1
        self._next_token = 1
        self.out: list[Effect] = []
        self.missing: tuple[int, ...] = ()
        """The ids of records that a restart did not find, or not whole; see `Rows.missing`."""

    # --- records -----------------------------------------------------------------------------------------

    def send(self, record: OutboxRecord, now_ns: int) -> int:
        """Takes a record whose key has the peer and no number; gives its id. It counts once it is on disk.

        OutboxFullError where its bytes do not fit; nothing has changed then.
        """
        self.room.take(record)
        peer = record.key.peer
        if (flow := self._flows.get(peer)) is None:
            flow = self._flows[peer] = Destination(peer)
            self._meet(flow, now_ns)
        held = self._records[self._next_id] = Held(self._next_id, record)
        self._next_id += 1
        if flow.state in _NUMBERING and not flow.waiting and flow.free > 0:
            self._number(flow, held)
            held.record = replace(record, key=EnvelopeKey(peer, flow.epoch, held.seq))
        else:
            flow.waiting.append(held)
        self._write_record(held)
        self._fill(flow)
        return held.id

    def write_down(self, name: RowName, row: bytes) -> None:
        """Has a row written that no record waits for."""
        self._write(name, row, ())

    def persisted(self, token: int) -> None:
        """A row is on disk. Rows may get there in any order; a token that is none of ours is fine."""
        for held in (records := self._tokens.pop(token, ())):
            held.writing = 0 if held.writing == token else held.writing
            held.numbering = 0 if held.numbering == token else held.numbering
        begun = self._beginning.pop(token, None)
        if begun is not None:
            self._begun(*begun, token)
        for held in records:
            self._publish(held)

    def acknowledged(self, peer: PeerId, acks: Iterable[Ack]) -> int:
        """The peer acknowledges numbers; those of another epoch, and such as were not given, say nothing.

        Returns how many of the acknowledgements are of the flow's epoch.
        """
        flow = self._flows.get(peer)
        if flow is None:
            return 0
        known = 0
        for ack in acks:
            if ack.epoch != flow.epoch:
                continue
            known += 1
            for seq in [seq for seq in flow.open if seq <= ack.up_to or seq in ack.also]:
                flow.heard = flow.heard.with_number(flow.epoch, seq)
                self._settle(flow, flow.open[seq])
        self._fill(flow)
        return known

    def drop(self, number: int) -> bool:
        """Gives a record up: it has expired, or an operator wants it gone. False where it is settled."""
        held = self._records.get(number)
        if held is None or held.settled:
            return False
        flow = self._flows[held.record.key.peer]
        if not held.seq:
            flow.waiting.remove(held)
        self._settle(flow, held)
        self._fill(flow)
        return True

    def record(self, number: int) -> OutboxRecord | None:
        """A record that is held, settled or not."""
        held = self._records.get(number)
        return held.record if held is not None else None

    def goes_at_once(self, name: OutboxName) -> bool:
        """Whether a record's own row has its number, and the peer knows marks.

        Should that row be lost with a snapshot, the number that it gave is not known any more: marks tell.
        """
        held = self._records.get(name) if isinstance(name, int) else None
        if held is None or not held.seq or held.numbering:
            return False
        return self._flows[held.record.key.peer].state is FlowState.OPEN

    def is_being_written(self, number: int) -> bool:
        """Whether a row of a record that is held is not on disk yet."""
        return not self._records[number].on_disk

    def is_numbered(self, number: int) -> bool:
        """Whether a record that is held has a number in a flow whose peer has said what it took."""
        held = self._records[number]
        return bool(held.seq) and self._flows[held.record.key.peer].state in _NUMBERING

    def payload(self, number: int) -> tuple[PeerId, bytes, bytes] | None:
        """What goes out: (peer, body, the rest of the bytes). None while it must not, or need not."""
        held = self._records.get(number)
        if held is None or held.settled or not held.seq or not held.on_disk:
            return None
        flow = self._flows[held.record.key.peer]
        if flow.state not in _NUMBERING:
            return None
        # Of a scalar that comes twice the last one counts: so the numbers follow what was written down.
        numbers = b"\xa8\x06" + varint(flow.epoch) + b"\xb0\x06" + varint(held.seq)
        return flow.peer, held.record.body, held.record.encoded + numbers + b"\xc0\x06" + varint(flow.base)

    # --- peers and marks ---------------------------------------------------------------------------------

    def peer_up(self, peer: PeerId, run: int | None, knows_marks: bool, now_ns: int) -> bool:
        """The peer is up; `run` names its process, and its presence says whether it knows marks.

        Returns whether it has not been known to be up in that run.
        """
        before = self._up.get(peer)
        self._up[peer] = run, knows_marks
        flow = self._flows.get(peer)
        if flow is not None:
            self._meet(flow, now_ns)
        return before is None or run is None or before[0] != run

    def open_of(self, peer: PeerId) -> tuple[int, ...]:
        """The ids of the peer's records that have a number and no acknowledgement."""
        flow = self._flows.get(peer)
        return () if flow is None else tuple([held.id for held in flow.open.values()])

    def is_up(self, peer: PeerId) -> bool:
        """Whether the peer is known to be up."""
        return peer in self._up

    def peer_down(self, peer: PeerId) -> None:
        """The peer is down: it is asked nothing."""
        self._up.pop(peer, None)
        flow = self._flows.get(peer)
        if flow is not None and flow.state is _ASKING:
            self._turn(flow, FlowEvent.DOWN)

    def _meet(self, flow: Destination, now_ns: int) -> None:
        if flow.peer not in self._up:
            return
        run, knows_marks = self._up[flow.peer]
        if knows_marks:
            if flow.state in _UNASKED or run != flow.run:
                self._ask(flow, FlowEvent.UP, now_ns)
            elif flow.state is _ASKING:  # it answers again
                self._soon(flow, now_ns)
        elif flow.state is not _PLAIN:
            self._turn(flow, FlowEvent.UP_PLAIN)
            self._fill(flow)
            for held in flow.open.values():
                self._publish(held)
        flow.run = run

    def _ask(self, flow: Destination, event: FlowEvent, now_ns: int) -> None:
        self._turn(flow, event)
        flow.question.token = self._draw()
        self._soon(flow, now_ns)

    def _soon(self, flow: Destination, now_ns: int) -> None:
        flow.question.soon(now_ns)
        self._repeat(flow, now_ns)

    def due(self, now_ns: int) -> None:
        """Repeats the questions whose time has come."""
        for flow in self._flows.values():
            self._repeat(flow, now_ns)

    def _repeat(self, flow: Destination, now_ns: int) -> None:
        if flow.state is _ASKING and flow.question.is_due(now_ns):
            self._say(flow, Ask(flow.question.token, flow.heard))

    def next_deadline_ns(self) -> int | None:
        """When `due` has something; None while nothing is asked."""
        asking = [flow for flow in self._flows.values() if flow.state is _ASKING]
        return min([flow.question.next_ns for flow in asking], default=None)

    def took(self, peer: PeerId, took: Took, now_ns: int) -> None:
        """The peer says what it has, and that it takes nothing until it is asked or told to."""
        flow = self._flows.get(peer)
        if flow is None:
            return
        if flow.state is _ASKING:
            if took.echo == flow.question.token:
                self._heard(flow, took, now_ns)
        elif flow.state in _UNASKED or (took.echo, took.token) != (flow.question.token, flow.answer):
            self._ask(flow, FlowEvent.ASTRAY, now_ns)
        elif flow.state is FlowState.OPEN:  # the one that opens it was lost
            self._say_open(flow)

    def _heard(self, flow: Destination, took: Took, now_ns: int) -> None:
        """Compares what either end knows, and settles what the peer has."""
        highest = max(took.windows, default=Taken(0))
        if highest.epoch > max(flow.epoch, RANDOM_EPOCH) + FAR_EPOCHS:
            return
        self._turn(flow, FlowEvent.TOOK)
        flow.answer, flow.above = took.token, highest.epoch
        flow.sender_is_old = (highest.epoch, highest.highest) > (flow.epoch, flow.last)
        # What the peer had when this epoch began was heard then, and it takes nothing but this epoch since.
        never_given = flow.heard.epoch < highest.epoch < flow.epoch
        lost = flow.heard.lost(took.windows)
        if lost:
            first = flow.heard.first_lost(lost, took.windows)
            self.out.append(RolledBack(flow.peer, False, flow.heard.epoch, lost, first))
        if flow.heard.epoch and not took.windows:
            self.out.append(NoWindow(flow.peer, flow.heard.epoch, flow.heard.high))
        flow.heard = Heard.of(highest)
        for window in took.windows:
            if window.epoch == flow.epoch:
                for seq in [seq for seq in flow.open if seq in window]:
                    self._settle(flow, flow.open[seq])
        if flow.sender_is_old or never_given:
            again = [held.id for held in (*flow.open.values(), *flow.waiting)]
            own = flow.sender_is_old or None
            self.out.append(RolledBack(flow.peer, own, highest.epoch, again=tuple(again)))
        if flow.sender_is_old:
            flow.question.told_old(now_ns)
        self._fill(flow)

    # --- numbers -----------------------------------------------------------------------------------------

    def _fill(self, flow: Destination) -> None:
        """Numbers what waits, as far as the window has room; begins an epoch for it where none is begun."""
        if flow.state is FlowState.HEARD and (flow.open or flow.waiting):
            self._turn(flow, FlowEvent.BEGIN)
            self._begin(flow, max(flow.epoch, flow.above) + 1 + self._draw() % (1 << 32))
        elif flow.state is _PLAIN and not flow.epoch and flow.waiting:
            self._begin(flow, 1 + self._draw() % RANDOM_EPOCH)
        elif flow.state in _NUMBERING and flow.waiting and flow.free > 0:
            self._give(flow, [flow.waiting.popleft() for _ in range(min(flow.free, len(flow.waiting)))])

    def _begin(self, flow: Destination, epoch: int) -> None:
        """Numbers in a new epoch what is open and what waits. Other rows of it wait until that is on disk."""
        flow.saved = flow.save()
        flow.epoch, flow.last = epoch, 0
        records, flow.open = list(flow.open.values()), {}
        while flow.waiting and len(records) < DURABLE_UNACKNOWLEDGED:
            records.append(flow.waiting.popleft())
        flow.beginning = self._give(flow, records, flow.heard)
        self._beginning[flow.beginning] = flow, Flow(epoch, flow.last, flow.heard)

    def _begun(self, flow: Destination, saved: Flow, token: int) -> None:
        """The first row of an epoch is on disk, maybe after another was begun."""
        if saved.epoch > flow.saved.epoch:
            flow.saved = saved
        if token == flow.beginning:
            if flow.state is _MOVING:
                self._turn(flow, FlowEvent.MOVED)
                self._say_open(flow)
            self._fill(flow)

    def _give(self, flow: Destination, records: list[Held], heard: Heard = NOTHING) -> int:
        """Gives records the next numbers, in one row; returns the token of its write."""
        row = Numbers(flow.peer, flow.epoch, flow.last + 1, tuple([held.id for held in records]), heard)
        self._numbers[row.name] = row
        for held in records:
            self._number(flow, held)
        return self._write_numbers(row, records)

    def _write_numbers(self, row: Numbers, records: Sequence[Held]) -> int:
        token = self._write(row.name, row.to_bytes(), tuple(records))
        for held in records:
            held.numbering = token
        return token

    def _number(self, flow: Destination, held: Held) -> None:
        flow.last += 1
        held.seq = flow.last
        flow.open[held.seq] = held

    # --- parts -------------------------------------------------------------------------------------------

    def _publish(self, held: Held) -> None:
        if self.payload(held.id) is not None:
            self.out.append(Publish(held.id))

    def _settle(self, flow: Destination, held: Held) -> None:
        held.settled = True
        if held.seq:
            del flow.open[held.seq]
        self.room.settle(held.record)
        self.out.append(Settled(held.id))

    def _write_record(self, held: Held) -> None:
        row = durable_rows.record_row(held.id, held.record)
        held.writing = self._write(held.id, row, (held,), held.record)

    def _write(
        self, name: int | RowName, row: bytes, records: tuple[Held, ...], record: OutboxRecord | None = None
    ) -> int:
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = records
        self.out.append(Write(token, name, row, record))
        return token

    def _say(self, flow: Destination, said: Ask | Open) -> None:
        self.out.append(Say(flow.peer, marks.encoded(said)))

    def _say_open(self, flow: Destination) -> None:
        self._say(flow, Open(flow.question.token, flow.answer, flow.epoch, flow.sender_is_old))

    def _turn(self, flow: Destination, event: FlowEvent) -> None:
        flow.state = FLOW.next(flow.state, event)

    # --- snapshots and restarts --------------------------------------------------------------------------

    def save(self, keeps: Callable[[int], bool] = lambda _: False) -> list[Any]:
        """Plain values for a snapshot: the next id, what is known of each flow, which records it needs, and
        the rows of numbers that are being written.

        The rest is rows. Of the settled records it needs those that it `keeps`.
        """
        live = [number for number, held in self._records.items() if not held.settled or keeps(number)]
        return [self._next_id, durable_saved.plain(self._flows.values()), live, self._giving()]

    def _giving(self) -> list[bytes]:
        """Rows of numbers that a flow counts as given and that are on no disk: who is put back to just this
        snapshot may have published them since, and has to know whose they are.
        """
        writing = {number for number, held in self._records.items() if held.numbering}
        return [
            row.to_bytes()
            for row in self._numbers.values()
            if row.epoch == self._flows[row.peer].saved.epoch and not writing.isdisjoint(row.ids)
        ]

    def snapshot_taken(self, may_go: Container[int] | None = None) -> list[int | RowName | EnvelopeKey]:
        """What `save` gave is on disk: names the rows that may go, those of records by their ids.

        Of the records that are settled only those in `may_go`; None: all.
        """
        gone: list[int | RowName | EnvelopeKey] = [*self._older]
        self._older.clear()
        for number, held in tuple(self._records.items()):
            if held.settled and not held.writing and (may_go is None or number in may_go):
                del self._records[number]
                self.room.release(held.record)
                gone.append(number)
        # A settled record that stays needs its number of an earlier epoch: without any it would be a new one.
        staying = {number for number, held in self._records.items() if held.settled}
        for name, row in tuple(self._numbers.items()):
            known = self._flows[row.peer].saved.epoch
            needed = self._records.keys() if row.epoch == known else staying
            if row.epoch <= known and needed.isdisjoint(row.ids):
                del self._numbers[name]
                gone.append(name)
        return gone

    def restore(
        self, saved: Sequence[Any], rows: Iterable[bytes], unwritten: Iterable[tuple[int, OutboxRecord]] = ()
    ) -> set[BodyName]:
        """Takes up what is on disk: what `save` gave last, and the rows. Call it on a new object only.

        What has a number keeps it until marks are exchanged, and is published to nobody before. Records of
        earlier versions are written down anew, and so is what a snapshot alone has (`unwritten`: their rows
        were not on disk). Returns the bodies that no record names. OutboxRecordError for other bytes.
        """
        found = durable_saved.read(saved, rows, unwritten)
        self._next_id, self._flows, self._older = found.next_id, found.flows, found.older
        self.missing = found.missing
        self._numbers = {row.name: row for row in found.numbers}
        for held in found.records:
            self._records[held.id] = held
            self.room.adopt(held.record)
            if held.settled:
                self.room.settle(held.record)
        for held in found.anew:
            self._write_record(held)
        for row in found.giving:
            self._write_numbers(row, [self._records[n] for n in row.ids if n in self._records])
        return found.orphans

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Whom there is a flow to."""
        return tuple(self._flows)

    def __iter__(self) -> Iterator[Held]:
        """All records that are held, settled or not, in the order of their ids."""
        return iter(self._records.values())

    def inspect(self) -> dict[str, dict[str, Any]]:
        """Every flow by its peer, as plain data for people and tests."""
        return {str(peer): flow.inspect() for peer, flow in self._flows.items()}
