"""The records of what a node sends durably: what `DurableSender` decides is carried out here.

A row is written until the disk has it. What may go out is repeated until it is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bb_edge.engine import steps
from bb_edge.engine.net.marks import Marks
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.net.until_snapshot import UntilSnapshot
from bb_edge.engine.net.writing import RETRY_NS, RowWriter
from bb_edge.engine.plain import Shift
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.ids import PeerId
from bb_edge.wire import envelope
from bb_edge.wire.bodies import BodyName, shelved
from bb_edge.wire.delivery import EnvelopeKey, Links, Outgoing
from bb_edge.wire.durable_flows import Publish, Say, Settled, Write
from bb_edge.wire.durable_rows import Met, OutboxName, RowName, met_in
from bb_edge.wire.durable_saved import Saved
from bb_edge.wire.durable_sender import DurableSender
from bb_edge.wire.envelope import Ack, Envelope
from bb_edge.wire.marks import Took
from bb_edge.wire.outbox import Cause, Outbox, OutboxRecord
from bb_edge.wire.presence import Presence, encode_presence
from bb_edge.wire.resend import Pending, PendingEvent, PendingState, ResendQueue


@dataclass(slots=True, eq=False)
class Records:
    """All records, by their ids; `needs_snapshot` holds the requests back whose asker is in no snapshot."""

    _runtime: Runtime
    _links: Links
    _peers: PeerStates
    marks: Marks
    sender: DurableSender
    needs_snapshot: UntilSnapshot[int]
    outbox: Outbox = field(default_factory=Outbox)
    writing: RowWriter = field(init=False)
    _queue: ResendQueue = field(init=False)
    _pending: dict[int, Pending] = field(default_factory=dict)
    _unheld: set[int] = field(default_factory=set)  # requests whose asker is in no snapshot
    _unmet: dict[PeerId, None] = field(default_factory=dict)  # peers with records that are not up
    _saved: Sequence[Any] = ()  # of the flows, by the snapshot that was restored
    _unwritten: list[tuple[int, OutboxRecord]] = field(default_factory=list)  # the same, of records
    _orphans: set[BodyName] = field(default_factory=set)  # bodies on disk that no record names
    _met: dict[RowName, None] = field(default_factory=dict)  # the rows of peers that no snapshot has yet
    _asking_ns: int = 0  # when the next question is due, 0: none is open

    def __post_init__(self) -> None:
        # The records are bounded where they are made; what is on disk is taken in any case.
        self._queue = ResendQueue(1 << 62, 0, self._links.config.resend_longest_ns)
        held, alone, want = self._is_held, self.sender.goes_at_once, self.needs_snapshot.want
        self.writing = RowWriter(self._runtime, self._is_over, self.persisted, held, alone, want)
        self._runtime.callbacks.register("marks.ask", self._ask_again)

    @property
    def pending(self) -> Collection[Pending]:
        """The records that are not settled."""
        return self._pending.values()

    # --- sending --------------------------------------------------------------------------------------

    def add(self, record: OutboxRecord, kind: int, expires_ns: int) -> int:
        """Has a record written down, whether its peer is up or not; gives its id. OutboxFullError."""
        now_ns, peer = self._runtime.now_ns, record.key.peer
        self._meet(peer)
        number = self.sender.send(record, now_ns)
        self.outbox.add(number, record)
        self._watch(number, peer, kind, expires_ns)
        if kind == envelope.REQUEST:
            self._unheld.add(number)
        if self._is_held(number):
            self.needs_snapshot.want()  # it may have the row with it
        self._carry_out()
        return number

    def _watch(self, number: int, peer: PeerId, kind: int, expires_ns: int) -> Pending:
        """What is to become of a record; when it goes again is known once it goes."""
        pending = self._pending[number] = Pending(EnvelopeKey(peer, 0, number), kind, expires_ns, RETRY_NS)
        self._queue.reserve()
        self._queue.watch(pending)
        return pending

    def is_open(self, number: int) -> bool:
        """Whether the record is not settled."""
        return number in self._pending

    def _is_held(self, name: OutboxName) -> bool:  # by a snapshot, and by nothing else
        return name in self._unheld and self.sender.goes_at_once(name)

    def published(self, number: int) -> bool:
        """Whether the record has gone out, or is settled."""
        pending = self._pending.get(number)
        return pending is None or pending.state is PendingState.PUBLISHED

    def _give_up(self, number: int, pending: Pending) -> None:
        if pending.expires_ns and pending.expires_ns <= self._runtime.now_ns:
            self._runtime.count("outbound.expired")
            if pending.kind == envelope.NONE:  # who is missing in a request is told with it
                self._runtime.emit(steps.RecordExpired(pending.key.peer, number))
        self.drop(number)

    def drop(self, number: int) -> None:
        """Gives a record up; one that is settled is fine."""
        self.sender.drop(number)
        self._carry_out()

    def publish(self, number: int, now_ns: int) -> Outgoing | None:
        """What goes out now that nothing holds it back; None where nobody waits for it, or not yet."""
        pending, payload = self._pending.get(number), self.sender.payload(number)
        if pending is None or payload is None:
            return None
        remaining = pending.expires_ns - now_ns if pending.expires_ns else 0
        if pending.expires_ns and remaining <= 0:
            return None  # `due` drops it
        self._unheld.discard(number)
        peer, body, data = payload
        pending.interval_ns = self._links.interval_ns(peer, remaining)
        pending.handed_out = True
        self._queue.arm(pending, now_ns + pending.interval_ns)
        if acks := self._links.take_acks(peer):
            data += envelope.encode(Envelope(acks=acks))
        return Outgoing(peer, envelope.repeated(data, remaining), pending.key, True, remaining, False, body)

    def due(self, now_ns: int) -> Iterator[Outgoing]:
        """What is to be repeated now; gives up what has expired. The caller takes them all."""
        while (pending := self._queue.pop(now_ns)) is not None:
            number = pending.key.seq
            if pending.expires_ns and now_ns >= pending.expires_ns:
                self._give_up(number, pending)
                continue
            payload = self.sender.payload(number)
            again, pending.handed_out = pending.handed_out, True
            interval_ns = pending.repeat(self._queue.longest_ns)
            self._queue.arm(pending, now_ns + interval_ns)
            if payload is None:
                continue  # it is numbered anew, and published then
            peer, body, data = payload
            if (trip := self._links.trip_of(peer)) is not None:
                trip.repeated(interval_ns, now_ns)
            left = pending.expires_ns - now_ns if pending.expires_ns else 0
            self._runtime.count("wire.resent")
            yield Outgoing(peer, envelope.repeated(data, left), pending.key, True, left, again, body)

    def next_ns(self) -> int | None:
        """When `due` has something; None while nothing is planned."""
        return self._queue.next_ns()

    # --- peers ----------------------------------------------------------------------------------------

    def acknowledged(self, peer: PeerId, acks: Sequence[Ack]) -> None:
        """The peer acknowledges durable numbers; counts the acks that are of no flow."""
        links = self._links
        links.count_foreign(len(acks) - self.sender.acknowledged(peer, acks))
        self._carry_out(by_ack=True)
        if (trip := links.trip_of(peer)) is not None and trip.has_fallen(links.config.resend_ns):
            still = filter(None, map(self._pending.get, self.sender.open_of(peer)))
            self._queue.sooner(still, links.interval_ns(peer), self._runtime.now_ns)

    def peer_up(self, peer: PeerId) -> None:
        """A peer has come up: what waits for it goes on, and what was sent to a life before goes again."""
        self._up(peer, self._peers.presences.epoch(peer))

    def peer_down(self, peer: PeerId) -> None:
        """A peer has gone down, or does not answer."""
        self.sender.peer_down(peer)

    def _meet(self, peer: PeerId) -> None:
        """A peer may be up already, or nobody would tell: where no presences come, who has an address is."""
        if self.sender.is_up(peer):
            return
        peers = self._peers
        if peers.presences.is_present(peer) and self.marks.known_by(peer) is not None:
            self._up(peer, peers.presences.epoch(peer))
        elif peer == self._runtime.own_peer or (
            not peers.are_told and peer not in peers.presences and peers.knows(peer)
        ):
            self._up(peer, None)
        else:
            self._unmet[peer] = None

    def note(self, peer: PeerId, presence: Presence) -> None:
        """Writes a peer down that is new to the node, or came in another class.

        Without its row, what is sent to it while it is away would have nobody to go to after a crash.
        """
        met = Met(peer, encode_presence(presence))
        self.writing.leave({met.name})
        self._met[met.name] = None
        self.sender.write_down(met.name, met.to_bytes())
        self._carry_out()

    def meet(self) -> None:
        """Looks again for those that were not there: an address may have become known."""
        for peer in tuple(self._unmet):
            self._meet(peer)

    def _up(self, peer: PeerId, run: int | None) -> None:
        now_ns = self._runtime.now_ns
        self._unmet.pop(peer, None)
        if self.sender.peer_up(peer, run, bool(self.marks.known_by(peer)), now_ns):
            for pending in self._pending.values():
                if pending.key.peer == peer and pending.state is PendingState.PUBLISHED:
                    pending.hurry(self._links.config.resend_ns)
                    self._queue.arm(pending, now_ns)
        self._carry_out()
        self._plan_question()  # it may be put off, and then nothing is said now

    def took(self, peer: PeerId, took: Took) -> None:
        """A peer says what it has taken."""
        self.sender.took(peer, took, self._runtime.now_ns)
        self._carry_out()
        self._plan_question()

    def _ask_again(self, now_ns: int) -> None:
        self._asking_ns = 0
        self.sender.due(now_ns)
        self._carry_out()
        self._plan_question()

    def _plan_question(self) -> None:
        """A question that is not answered is asked again: one timer for all, of the first that is due."""
        when = self.sender.next_deadline_ns()
        if when is not None and (not self._asking_ns or when < self._asking_ns):
            self._asking_ns = when
            self._runtime.timers.at(when, self._ask_again, reserved=True)

    # --- effects --------------------------------------------------------------------------------------

    def _carry_out(self, by_ack: bool = False) -> None:
        effects, self.sender.out = self.sender.out, []
        for effect in effects:
            if isinstance(effect, Write):
                self.writing.write(effect)
            elif isinstance(effect, Publish):
                self._may_go(effect.id)
            elif isinstance(effect, Settled):
                self._settled(effect.id, by_ack)
            else:
                self.marks.carry_out(effect)
                if isinstance(effect, Say):
                    self._plan_question()

    def _may_go(self, number: int) -> None:
        if number in self._unheld:
            self.needs_snapshot.add(number)
        else:
            self.needs_snapshot.pass_by(number)

    def _settled(self, number: int, by_ack: bool) -> None:
        pending = self._pending.pop(number)
        if by_ack:
            self._links.measured(pending, self._runtime.now_ns)
        self._queue.release(pending, PendingEvent.SETTLE)
        self.outbox.settle(number)
        self.needs_snapshot.drop(number)
        self._unheld.discard(number)

    # --- the driver's answers -------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """A row is on disk. A token that is none of ours is fine."""
        if self.writing.written(token):
            self.sender.persisted(token)
            self._carry_out()

    def persist_failed(self, token: int, error: BaseException) -> None:
        """A row could not be written: it is asked for again later."""
        self.writing.failed(token, error)

    def _is_over(self, row: Write) -> bool:
        """Whether a record has expired, and was never written."""
        return isinstance(row.name, int) and row.name not in self._pending

    def snapshot_written(self, may_run: Callable[[Cause], bool]) -> list[OutboxName]:
        """A snapshot is on disk; names the rows that may go, and bodies. `may_run` is as in `Outbox`."""
        settled = self.outbox.snapshot_taken(may_run)
        gone: list[OutboxName] = [*self.sender.snapshot_taken({*settled})]
        for name in gone:
            if isinstance(name, int) and name in self.outbox:
                self.outbox.remove(name)
        gone += self.outbox.take_free_bodies(self._orphans)
        self.writing.leave(self._met)
        gone += self._met
        self._met, self._orphans = {}, set()
        return gone

    # --- restarts -------------------------------------------------------------------------------------

    def adopt(
        self, rows: Iterable[bytes], now_ns: int, wall_ns: int, awaits: Callable[[int], bool]
    ) -> list[tuple[int, int]]:
        """Takes rows over from disk. Each record is due at once, unless it has expired or `awaits` says that
        nobody waits for the answers to its request id. Gives the requests that are repeated, with their ids.
        """
        rows = tuple(rows)
        for met in met_in(rows):
            self._met[met.name] = None
            self._peers.recall([met])
        self._orphans.update(self.sender.restore(self._saved, rows, self._unwritten))
        self._saved, self._unwritten = (), []
        asks: list[tuple[int, int]] = []
        over = []
        for held in self.sender:
            record, number = held.record, held.id
            message = envelope.decode(record.encoded, self._runtime.config.caps)  # the body has fills alone
            self.outbox.add(number, record, ahead=True)
            if held.settled:
                self.outbox.settle(number)
                continue
            expires_ns = (now_ns + record.expires_wall_ns - wall_ns or -1) if record.expires_wall_ns else 0
            pending = self._watch(number, record.key.peer, message.kind, expires_ns)
            pending.brought_back()
            is_request = message.kind == envelope.REQUEST
            has_expired = expires_ns != 0 and expires_ns <= now_ns
            if has_expired or (is_request and not awaits(message.wire_req_id)):
                over.append((number, pending))
            elif is_request:
                asks.append((message.wire_req_id, number))
        for number, pending in over:
            self._give_up(number, pending)
        self._carry_out()
        self._unmet.update(dict.fromkeys(self.sender.peers))  # a poll knows whether presences come
        for peer in filter(self.sender.is_up, self.sender.peers):
            self.peer_up(peer)
        return asks

    def save(self) -> dict[str, Any]:
        """What is known of the flows, and the records whose rows are not on disk; `restore` takes them."""
        unwritten = [
            [row.name, row.record.to_bytes(), shelved(row.record.body), row.record.written_s]
            for row in self.writing
            if row.record is not None
        ]
        return {"flows": self.sender.save(self.outbox.is_ahead), "unwritten": unwritten}

    def restore(self, data: Any, shift: Shift) -> None:
        """Takes what `save` gave; `adopt` completes it with the rows on disk."""
        Saved.of(data["flows"])  # what does not fit is damage
        self._saved = data["flows"]
        for number, row, body, written_s in data["unwritten"]:
            record = replace(OutboxRecord.from_bytes(row), written_s=written_s)
            self._unwritten.append((number, record.with_body(shift.body(body))))
