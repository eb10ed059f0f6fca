"""One node of a small world: the shipped sender and receiver, and a disk that holds what was written."""

from __future__ import annotations

import copy
import copyreg
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bb_edge import PeerId
from bb_edge.wire import cbor, durable_receiver, durable_sender, envelope, marks
from bb_edge.wire.caps import UNBOUNDED_CAPS as CAPS
from bb_edge.wire.dedup import Verdict
from bb_edge.wire.durable_flows import NoWindow, Publish, RolledBack, Say, Write
from bb_edge.wire.envelope import Envelope, Fill
from bb_edge.wire.outbox import OutboxRecord
from bb_edge.wire.resend import EnvelopeKey

PEERS = tuple(PeerId.from_name(f"node {number}") for number in range(4))
PLACES = {peer: place for place, peer in enumerate(PEERS)}


class Message(NamedTuple):
    """Bytes on their way; `kind` is "durable", "acks" or "marks"."""

    src: int
    dst: int
    kind: str
    data: bytes


class Report(NamedTuple):
    """A node says that a state is older than the world, or that a peer has begun anew."""

    peer: int
    kind: str
    again: frozenset[bytes] = frozenset()
    """What may come twice, as it is named where the sender is old, or either of the two."""


class Disk(NamedTuple):
    """What survives: rows, the last snapshot, the journal since; and, to check by, what was promised.

    In which order rows were written makes no difference (tests/bb_edge/wire/test_durable_restarts.py).
    """

    rows: tuple[tuple[Any, bytes], ...] = ()
    flows: bytes = b"\x80"
    windows: bytes = b"\x80"
    applied: tuple[tuple[int, bytes], ...] = ()
    journal: tuple[tuple[int, int, int, int, bytes], ...] = ()
    promised: tuple[tuple[int, bytes], ...] = ()

    def with_row(self, name: Any, row: bytes, promise: tuple[int, bytes] | None) -> Disk:
        """The disk after one row."""
        promised = self.promised if promise is None else tuple(sorted({*self.promised, promise}))
        return self._replace(rows=tuple(sorted([*self.rows, (name, row)], key=repr)), promised=promised)


class Draws:
    """Random numbers of one node, each a power of two that comes once: sums of them never meet.

    Every second one is smaller than the one before it, so epochs of two histories come in either order; with
    `falling` every one is, so of two histories the later one draws the lower epoch.
    """

    def __init__(self, falling: bool = False) -> None:
        self.count = 0
        self.falling = falling

    def __call__(self) -> int:
        self.count += 1
        assert not self.falling or self.count < 32
        return 1 << (32 - self.count if self.falling else self.count ^ 1)


_RECORDS: dict[tuple[Any, ...], OutboxRecord] = {}


def _same_record(record: OutboxRecord) -> tuple[Any, tuple[Any, ...]]:
    key = (record.key, record.encoded)
    _RECORDS[key] = record
    return _record, (key,)


def _record(key: tuple[Any, ...]) -> OutboxRecord:
    return _RECORDS[key]


copyreg.pickle(OutboxRecord, _same_record)  # they never change: worlds share them


@dataclass(slots=True)
class Node:
    """A node between two events. `run` counts its processes."""

    place: int
    older: bool = False  # of a version without marks: it says and hears none, and asks for none
    falling: bool = False
    learns: bool = False  # from its next start on it is of a version with marks
    id: int = -1  # equal for nodes that cannot be told apart
    now_ns: int = 0
    run: int = 1
    disk: Disk = field(default_factory=Disk)
    draws: Draws = field(init=False)
    pending: list[tuple[Any, ...]] = field(default_factory=list)  # writes that are asked for, in order
    applied: list[tuple[int, bytes]] = field(default_factory=list)  # (from whom, what) was delivered
    contents: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # of records, by their ids
    dropped: set[tuple[int, bytes]] = field(default_factory=set)
    knows: dict[int, tuple[int, bool]] = field(default_factory=dict)  # the runs of others, by presence
    sent: list[Message] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    sender: Any = None
    receiver: Any = None

    def __post_init__(self) -> None:
        self.draws = Draws(self.falling)
        self.sender = durable_sender.DurableSender(self.draws)
        self.receiver = durable_receiver.DurableReceiver(self.draws)

    def copy(self) -> Node:
        """Another node that is like this one."""
        other = copy.copy(self)
        machines = pickle.dumps((self.draws, self.sender, self.receiver), 5)
        other.draws, other.sender, other.receiver = pickle.loads(machines)
        other.pending, other.applied = self.pending[:], self.applied[:]
        other.contents, other.dropped = dict(self.contents), set(self.dropped)
        other.knows, other.sent, other.reports = dict(self.knows), [], []
        return other

    # --- life --------------------------------------------------------------------------------------------

    def start(self, disk: Disk) -> None:
        """A new process on a disk; writes that were not there are lost."""
        self.run += 1
        self.older = self.older and not self.learns
        self.disk, self.pending, self.knows = disk, [], {}
        self.sender = durable_sender.DurableSender(self.draws)
        self.receiver = durable_receiver.DurableReceiver(self.draws)
        self.sender.restore(cbor.loads(disk.flows, max_items=500, max_depth=5), [row for _, row in disk.rows])
        self.receiver.restore(cbor.loads(disk.windows, max_items=500, max_depth=5))
        self.applied = list(disk.applied)
        for src, epoch, seq, base, content in disk.journal:
            if self.receiver.replayed(PEERS[src], epoch, seq, base):
                self.applied.append((src, content))
        self.contents = {}
        records = durable_sender.durable_rows.read([row for _, row in disk.rows], {}).records
        for number, record in records.items():
            message = envelope.decode(record.encoded, CAPS)
            self.contents[number] = PLACES[record.key.peer], bytes(message.fills[0].payload)
        self._effects()

    def snapshot(self) -> None:
        """Writes the node down, with what is held: that counts as taken. Its journal records may follow."""
        held = [write for write in self.pending if write[0] == "journal"]
        self.pending = [write for write in self.pending if write[0] == "row"]
        for _, src, epoch, seq, base, content in held:
            self._journaled(src, epoch, seq, content)
            self.pending.append(("late journal", src, epoch, seq, base, content))
        flows, windows = cbor.dumps(self.sender.save()), cbor.dumps(self.receiver.save())
        gone = set(self.sender.snapshot_taken())
        rows = tuple(row for row in self.disk.rows if row[0] not in gone)
        applied = tuple(sorted(self.applied))
        self.disk = Disk(rows, flows, windows, applied, (), self.disk.promised)
        self._effects()

    def persist(self, index: int) -> None:
        """A write is on disk, and the node is told. One that fails is tried again, so any may be the next."""
        write = self.pending.pop(index)
        self._land(write)
        if write[0] == "row":
            self.sender.persisted(write[1])
        elif write[0] == "journal":
            _, src, epoch, seq, _, content = write
            self._journaled(src, epoch, seq, content)
        self._effects()

    def _journaled(self, src: int, epoch: int, seq: int, content: bytes) -> None:
        if self.receiver.journaled(PEERS[src], epoch, seq):
            self.applied.append((src, content))
        self._acknowledge(src)

    def fail(self, index: int) -> None:
        """A write to the journal fails: the envelope counts as never received."""
        _, src, epoch, seq, *_ = self.pending.pop(index)
        self.receiver.not_journaled(PEERS[src], epoch, seq)
        self._effects()

    def crash(self, landed: int) -> None:
        """The process ends; of what was to be written, the writes whose bits are set are on disk."""
        for place, write in enumerate(self.pending):
            if landed >> place & 1:
                self._land(write)
        self.start(self.disk)

    def _land(self, write: tuple[Any, ...]) -> None:
        if write[0] == "row":
            _, _, name, row = write
            promise = self.contents.get(name) if isinstance(name, int) else None
            self.disk = self.disk.with_row(name, row, promise)
        else:
            self.disk = self.disk._replace(journal=(*self.disk.journal, write[1:]))

    # --- what happens ------------------------------------------------------------------------------------

    def send(self, dst: int, content: bytes) -> None:
        """The program sends something durable."""
        message = envelope.encode(Envelope([Fill(b"", content)]))
        number = self.sender.send(OutboxRecord(EnvelopeKey(PEERS[dst], 0, 0), message), self.now_ns)
        self.contents[number] = dst, content
        self._effects()

    def drop(self, number: int) -> None:
        """A record expires."""
        self.dropped.add(self.contents[number])
        self.sender.drop(number)
        self._effects()

    def again(self) -> None:
        """Publishes everything open once more."""
        for number in self.contents:
            self._publish(number)

    def due(self) -> None:
        """Time has passed."""
        self.sender.due(self.now_ns)
        self._effects()

    def see(self, other: int, run: int, knows_marks: bool) -> None:
        """The presence of another node arrives."""
        self.knows[other] = run, knows_marks
        knows_marks = knows_marks and not self.older
        self.sender.peer_up(PEERS[other], run, knows_marks, self.now_ns)
        self.receiver.peer_up(PEERS[other], knows_marks)
        self._effects()

    def hear(self, message: Message) -> None:
        """A message arrives, under the name that the broker knows its sender by."""
        peer = PEERS[message.src]
        arrived = envelope.decode(message.data, CAPS)
        if message.kind == "acks":
            self.sender.acknowledged(peer, arrived.acks)
        elif message.kind == "marks" and not self.older:
            self._marks(peer, marks.decoded(arrived.fills[0].payload))
        elif message.kind == "durable":
            self._durable(message.src, arrived)
        self._effects()

    def _marks(self, peer: PeerId, said: marks.Ask | marks.Took | marks.Open) -> None:
        if isinstance(said, marks.Ask):
            self.receiver.asked(peer, said)
        elif isinstance(said, marks.Took):
            self.sender.took(peer, said, self.now_ns)
        else:
            self.receiver.opened(peer, said)

    def _durable(self, src: int, arrived: Envelope) -> None:
        peer, number = PEERS[src], (arrived.epoch, arrived.seq, arrived.base)
        verdict = self.receiver.receive(peer, *number)
        if verdict is Verdict.NEW:
            self.receiver.hold(peer, *number)
            self.pending.append(("journal", src, *number, bytes(arrived.fills[0].payload)))
        elif verdict is Verdict.DUPLICATE:
            self.receiver.again(peer, arrived.epoch, arrived.seq)
            self._acknowledge(src)
        elif verdict is Verdict.CLOSED:
            self.receiver.refused(peer, self.now_ns)

    # --- effects -----------------------------------------------------------------------------------------

    def _acknowledge(self, src: int) -> None:
        acks = self.receiver.acks(PEERS[src])
        if acks:
            self.sent.append(Message(self.place, src, "acks", envelope.encode(Envelope(acks=acks))))

    def _publish(self, number: int) -> None:
        leaving = self.sender.payload(number)
        if leaving is not None:
            peer, body, rest = leaving
            self.sent.append(Message(self.place, PLACES[peer], "durable", body + rest))

    def _effects(self) -> None:
        for effect in self._taken(self.sender.out):
            if isinstance(effect, Write):
                self.pending.append(("row", effect.token, effect.name, effect.row))
            elif isinstance(effect, Publish):
                self._publish(effect.id)
            elif isinstance(effect, Say):
                self._say(effect)
            elif isinstance(effect, RolledBack):
                again = frozenset(self.contents[number][1] for number in effect.again)
                kind = {True: "sender", False: "receiver", None: "either"}[effect.own]
                self.reports.append(Report(PLACES[effect.peer], kind, again))
            elif isinstance(effect, NoWindow):
                self.reports.append(Report(PLACES[effect.peer], "receiver"))
        for effect in self._taken(self.receiver.out):
            if isinstance(effect, Say):
                self._say(effect)

    @staticmethod
    def _taken(out: list[Any]) -> list[Any]:
        effects = list(out)
        out.clear()
        return effects

    def _say(self, effect: Say) -> None:
        if not self.older:
            self.sent.append(Message(self.place, PLACES[effect.peer], "marks", effect.payload))

    def unsettled(self, dst: int) -> set[bytes]:
        """What is still to be delivered to a node."""
        flow = self.sender.inspect().get(str(PEERS[dst]), {"open": [], "waiting": []})
        ids = [row[1] for row in flow["open"]] + [row[0] for row in flow["waiting"]]
        return {self.contents[number][1] for number in ids}

    # --- to compare by -----------------------------------------------------------------------------------

    @property
    def key(self) -> tuple[Any, ...]:
        """All that can make a difference later."""
        return (
            self.place,
            self.older,
            repr(self.sender.inspect()),
            repr(self.receiver.inspect()),
            self.disk,
            tuple(sorted(_said(write) for write in self.pending)),
            tuple(sorted(self.applied)),
            frozenset(self.dropped),
            frozenset(self.knows.items()),
            self.run,
            self.draws.count,
        )


def _said(write: tuple[Any, ...]) -> str:
    """A write without its token, which is another where other rows were written before."""
    return repr(write[2:] if write[0] == "row" else write)
