"""Writes a node's state after each poll: the records that the poll asked for, then a snapshot if one is due.

The order is what makes it safe. The records of a poll are on the medium before the node is told so, and the
node publishes and acknowledges only what it was told of, at the earliest in the next poll. A snapshot is
taken last, between two polls, when everything that was handed out is written down. Rows that nothing leaves
for before a snapshot are written in its file, with its sync, and stay there while the node needs them. What
the node runs before its row of the journal is written comes before all rows of the outbox, or in one write
with them. Other large rows of the journal may be written beside the polls (journaling.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from bb_edge.engine import steps
from bb_edge.ir.errors import BBError
from bb_edge.state.errors import StateError, StateFullError
from bb_edge.state.journaling import Journaling
from bb_edge.state.refusals import Refusals
from bb_edge.state.store import Recovered, StateStore
from bb_edge.state.writer import Writer
from bb_edge.wire.bodies import BodyName
from bb_edge.wire.cbor import Buffer
from bb_edge.wire.durable_rows import OutboxName, RowName
from bb_edge.wire.outbox import body_record

RETRY_NS = 1_000_000_000
MAX_RETRY_NS = 60_000_000_000
"""A snapshot that failed is tried again after RETRY_NS, then after twice as long, up to MAX_RETRY_NS.

A disk that was busy is free within a second; on one that is full, an attempt per minute wears nothing."""
ROUNDS_GAP_NS = 1_000_000_000
"""Between two snapshots for rounds: rounds of milliseconds would wear out a card in weeks."""
ANNOUNCED_NS = 5_000_000_000
"""So long at most a snapshot waits for the ops that it starts in the program."""
ENCLOSED_BYTES = 128 << 10
"""So many bytes of the outbox come with snapshots and the journal at most, and are written with each snapshot
that follows while the node needs them: a disk syncs about as fast as it writes these."""


class KeptNode(Protocol):
    """What of `bb_edge.Node` its keeper calls."""

    @property
    def counters(self) -> Mapping[str, int]:
        """The node's counters by name."""

    def snapshot_pieces(self, now_ns: int) -> Sequence[Buffer]:
        """Returns the node's state between two polls, in pieces that stand until the next one."""

    def snapshot_written(self) -> Iterable[OutboxName]:
        """Tells the node that its snapshot is on the medium; returns the outbox records that may go."""

    def needs_row(self, name: int | BodyName) -> bool:
        """Whether an open envelope needs the outbox record of that name, a record's id or a body's."""

    def persisted(self, token: int) -> None:
        """Tells the node that the record of a token is on the medium."""

    def persist_failed(self, token: int, error: BaseException) -> None:
        """Tells the node that the record of a token is not."""


class RestoredNode(KeptNode, Protocol):
    """A node that is being restarted from its files."""

    def adopt_outbox(self, records: Iterable[bytes], now_ns: int, wall_ns: int) -> None:
        """Hands over the records of the outbox on disk; both times are nanoseconds."""

    def replay(self, records: Iterable[bytes]) -> None:
        """Hands over the records of the journal, in their order."""


Node = TypeVar("Node", bound=RestoredNode)
Report = Callable[[steps.EngineStep], None]


@dataclass(frozen=True, slots=True)
class Restored:
    """What a node was restored from: sizes, counts of records, and notes about damage.

    `losses` are those of the notes that say that something is lost for good. `discarded` are records that an
    operator dropped while the node was stopped. `counters` are those that the snapshot had.
    """

    generation: int
    snapshot_bytes: int
    journal: int
    outbox: int
    notes: tuple[str, ...]
    losses: tuple[str, ...]
    discarded: tuple[bytes, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)


def restore(
    store: StateStore,
    make: Callable[[bytes | None], Node],
    damaged: type[BBError],
    now_ns: int,
    wall_ns: int,
    adopted: Callable[[], Iterable[tuple[OutboxName, bytes]]] = tuple,
) -> tuple[Node, Restored]:
    """Makes a node from its files: `make(snapshot or None)`, then its outbox, then its journal.

    Where `make` raises `damaged`, the snapshot before is tried; with none left, the first of these errors is
    raised, for the files are whole, and a node that began anew would throw away what they hold. Where it was
    given no snapshot, `adopted` names the rows of the outbox that it has taken over from elsewhere: they are
    written before the node has its outbox, so that nothing of them is sent, and no number given, before all
    of them are here. Raises whatever else `make` raises, the errors of `StateStore.open`, and those of
    `StateStore.append_outbox`.
    """
    recovered: Recovered = store.open()
    first: BBError | None = None
    while True:
        try:
            node = make(recovered.snapshot)
            break
        except damaged as error:
            if recovered.snapshot is None:
                raise
            first = first or error
            recovered = store.fall_back(str(error))
            if recovered.snapshot is None:
                raise first from None
    outbox, counters = recovered.outbox, dict(node.counters)
    if recovered.snapshot is None:
        # A start that ended before its first snapshot may have left some of them, or all.
        rows = [(key_bytes(name), row) for name, row in adopted()]
        gone = frozenset(recovered.discarded)  # by an operator, since such a start
        missing = [(key, row) for key, row in rows if not store.has_outbox(key) and row not in gone]
        store.append_outbox(missing)
        outbox += tuple(row for _, row in missing)
    node.adopt_outbox(outbox, now_ns, wall_ns)
    node.replay(recovered.journal)
    return node, Restored(
        recovered.generation,
        len(recovered.snapshot or b""),
        len(recovered.journal),
        len(outbox),
        recovered.notes,
        recovered.losses,
        recovered.discarded,
        counters,
    )


class Keeper:
    """Writes what one node asks for, from the thread that polls it.

    `interval_ns` is the time between two snapshots that nobody asked for (0: there are none); they are left
    out while the node has nothing to do. `rounds_ended` tells how many rounds of its own the node has ended;
    a snapshot is taken after every `rounds` of them (0: none is), once a second at most, in the poll after
    the round's end: a round that begins there with a durable question wants one too, and one serves both.

    `report` gets a `StorageFailed` for each snapshot that could not be written, and a `StorageRecovered` once
    all is written that the disk had refused; the node itself reports about its records. `announce` is for
    programs with ops that a snapshot starts: it starts them in the next poll, and the snapshot is taken after
    that poll, or a later one while `still_runs()` says that the node had no time for all of it. `writer`
    writes large rows of the journal beside the polls; it has to see to it that another poll comes when it is
    done. It removes large old files, too; small ones are removed by `tidy`. `close` waits for it.
    """

    def __init__(
        self,
        node: KeptNode,
        store: StateStore,
        *,
        interval_ns: int = 0,
        rounds: int = 0,
        rounds_ended: Callable[[], int] = lambda: 0,
        report: Report | None = None,
        announce: Callable[[], None] | None = None,
        still_runs: Callable[[], bool] = lambda: False,
        writer: Writer | None = None,
    ) -> None:
        self._node = node
        self._store = store
        self._journaling = Journaling(store, self._answer, writer)
        self._put_off = False  # the snapshot that is due, by a poll, and not for another time
        self._interval_ns = interval_ns
        self._rounds = rounds
        self._rounds_ended = rounds_ended
        self._rounds_at = rounds_ended()  # as the last snapshot has it
        self._rounds_due_ns = 0  # when the snapshot for rounds that have ended is due; 0: none have
        self._rounds_from_ns = 1  # not before this; 0 is the time of none
        self._report = report
        self._announce = announce
        self._still_runs = still_runs
        self._announced = False
        self._announced_ns = 0
        self._enclosing: dict[bytes, bytes] = {}  # rows that come with the next snapshot
        self._wanted = store.generation == 0  # the first one writes down whose folder this is
        self._due_ns: int | None = None
        self._retry_at_ns = 0
        self._wait_ns = RETRY_NS
        self._idle_counters: Mapping[str, int] = {}
        self._busy = True
        self._refusals = Refusals()
        self._now_ns = 0  # of the last poll
        self.snapshots = 0
        """How many snapshots were written."""
        self.failures = 0
        """How many calls to the store failed, records' included."""

    def settle(self, wait: bool) -> None:
        """Tells the node what was written beside the polls; `wait` waits for the write that is under way."""
        if self._journaling.under_way:
            self._journaling.settle(wait)

    def take(self, emitted: Sequence[steps.EngineStep], now_ns: int) -> None:
        """Takes the steps of a poll: writes records, tells the node, and takes a snapshot if one is due."""
        self._now_ns = now_ns
        outbox: list[steps.PersistOutbox] = []
        enclosed: list[steps.PersistOutbox] = []
        journal: list[steps.Journal] = []
        for step in emitted:
            if isinstance(step, steps.PersistOutbox):
                (enclosed if step.with_snapshot else outbox).append(step)
            elif isinstance(step, steps.Journal):
                journal.append(step)
            elif isinstance(step, steps.SnapshotWanted):
                self._wanted = True
            elif isinstance(step, steps.LifecycleFired) and step.phase == steps.Phase.SNAPSHOT:
                self._announced, self._announced_ns = True, now_ns
        self._busy = self._busy or bool(emitted)
        if enclosed and not self._enclose(enclosed):
            outbox += enclosed
        ahead = [step for step in journal if step.ahead]
        if ahead:
            journal = [step for step in journal if not step.ahead]
            outbox = self._keep_ahead(ahead, outbox)
        if outbox:
            self._keep_outbox(outbox)
        if journal:
            self._journaling.take(journal, now_ns, at_once=self._put_off)
        elif self._journaling.due_ns and now_ns >= self._journaling.due_ns:
            self._journaling.finish()
        if self._wants(now_ns) and now_ns >= self._retry_at_ns:
            if self._journaling.finish():
                # What was written is delivered in the next poll; before that a snapshot would hold it, too.
                self._wanted = self._put_off = True
            elif self._announce is not None and not self._announced:
                self.announce()
            elif not (self._announced and self._still_runs() and now_ns < self._announced_ns + ANNOUNCED_NS):
                self.snapshot(now_ns)
        if (ended := self._refusals.end(now_ns)) is not None and self._report is not None:
            self._report(steps.StorageRecovered(*ended))

    def announce(self) -> None:
        """Starts the ops that a snapshot starts in the program, if any; a snapshot follows the next poll."""
        if self._announce is not None and not self._announced:
            self._announced = self._wanted = True
            self._announced_ns = self._now_ns
            self._announce()

    @property
    def has_chore(self) -> bool:
        """Whether `tidy` has something to do."""
        return self._journaling.has_chore

    def tidy(self) -> None:
        """Removes what the last snapshot made old: what a poll has to send leaves before that."""
        self._journaling.tidy()

    @property
    def next_ns(self) -> int | None:
        """When to call `take` though the node is idle, for a snapshot that is due by itself; or None."""
        if self._put_off:
            return 0
        snapshot_ns = self._retry_at_ns if self._wanted else 0
        times = [when for when in (snapshot_ns or self._rounds_due_ns, self._journaling.due_ns) if when]
        return min(times, default=None)

    @property
    def failing(self) -> bool:
        """Whether the last snapshot failed, so that what happened since the one before is on no disk."""
        return self._retry_at_ns != 0

    def snapshot(self, now_ns: int) -> bool:
        """Takes a snapshot now, whether one is due or not. Returns whether it was written."""
        node, store = self._node, self._store
        self._journaling.finish()
        self._put_off = False
        size = store.journal_bytes
        try:
            pieces = node.snapshot_pieces(now_ns)
            size += sum(map(len, pieces))
            store.write_snapshot(pieces, self._needed({**store.enclosed, **self._enclosing}))
        except BBError as error:
            self._refusals.snapshot_refused(now_ns)
            self._failed("snapshot", error)
            self._retry_at_ns = now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, MAX_RETRY_NS)
            self._wanted = True
            return False
        self._enclosing = {}
        self._refusals.snapshot_written()
        gone = [key_bytes(key) for key in node.snapshot_written()]
        self.snapshots += 1
        self._wanted = self._busy = self._announced = False
        self._retry_at_ns, self._wait_ns = 0, RETRY_NS
        self._due_ns = now_ns + self._interval_ns
        self._rounds_from_ns, self._rounds_due_ns = now_ns + ROUNDS_GAP_NS, 0
        self._rounds_at = self._rounds_ended()
        self._idle_counters = dict(node.counters)
        # To remove a file takes as long as to write it without a sync, and what goes is about as large.
        self._journaling.beside(partial(store.drop, gone), size, partial(self._failed, "tidying up"))
        return True

    def _wants(self, now_ns: int) -> bool:
        # While the last snapshot's records are dropped, the outbox looks as full as before it.
        full = not self._journaling.tidying and self._store.wants_snapshot
        if self._wanted or full or (self._rounds and self._wants_for_rounds(now_ns)):
            return True
        if not self._interval_ns:
            return False
        if self._due_ns is None:
            self._due_ns = now_ns + self._interval_ns
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + self._interval_ns
        return self._busy or self._node.counters != self._idle_counters

    def _wants_for_rounds(self, now_ns: int) -> bool:
        if self._rounds_due_ns:
            return now_ns >= self._rounds_due_ns
        if self._rounds_ended() - self._rounds_at >= self._rounds:
            self._rounds_due_ns = max(now_ns, self._rounds_from_ns)
        return False

    def _enclose(self, requests: Sequence[steps.PersistOutbox]) -> bool:
        """Has rows come with the next snapshot, unless they are too large, and tells the node."""
        rows = {**self._enclosing, **self._rows(requests)}
        if sum(map(len, (*rows.values(), *self._store.enclosed.values()))) > ENCLOSED_BYTES:
            return False
        self._enclosing = rows
        self._wanted = True
        for step in requests:
            self._node.persisted(step.token)
        return True

    def _needed(self, rows: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return {key: row for key, row in rows.items() if self._node.needs_row(name_of_key(key))}

    def _rows(self, requests: Sequence[steps.PersistOutbox]) -> dict[bytes, bytes]:
        """The rows that are asked for, by their keys, each behind the body that it names."""
        rows: dict[bytes, bytes] = {}
        for step in requests:
            name = step.body_name
            if name and name not in rows and not self._store.has_outbox(name):
                rows[name] = body_record(step.body)
            rows[key_bytes(step.name)] = step.record
        return rows

    def _keep_ahead(
        self, ahead: list[steps.Journal], outbox: list[steps.PersistOutbox]
    ) -> list[steps.PersistOutbox]:
        """Writes what has run, and what may go with it in one write; returns the rows that are to follow.

        None of the outbox is written where that fails.
        """
        shared = [step for step in outbox if step.with_journal] if self._store.journal_encloses else []
        rows = self._rows(shared)
        if rows:  # those that are settled by now are in the journal as well, and go with it
            self._store.enclosed = self._needed(self._store.enclosed)
        if sum(map(len, (*rows.values(), *self._store.enclosed.values()))) > ENCLOSED_BYTES:
            shared, rows = [], {}
        error = self._journaling.write(ahead, list(rows.items()))
        more = [step for step in outbox if not step.with_journal] if shared else outbox
        self._answer(ahead, error)
        self._answer(shared, error)
        if error is None:
            return more
        self._answer(more, error)
        return []

    def _keep_outbox(self, requests: Sequence[steps.PersistOutbox]) -> None:
        """Writes rows of the outbox. Where it is full, numbers find room all the same: a window of them at
        most for each peer, and what they are of leaves by them, is acknowledged, and makes room.
        """
        self._journaling.finish()
        try:
            self._store.append_outbox(list(self._rows(requests).items()))
        except StateFullError as error:
            numbers = [step for step in requests if isinstance(step.name, RowName)]
            if records := [step for step in requests if not isinstance(step.name, RowName)]:
                self._answer(records, error)
            try:
                self._store.append_outbox(list(self._rows(numbers).items()), bounded=False)
            except StateError as failure:
                self._answer(numbers, failure)
            else:
                self._answer(numbers, None)
        except StateError as error:
            self._answer(requests, error)
        else:
            self._answer(requests, None)

    def _answer(self, requests: Sequence[steps.RecordStep], error: StateError | None) -> None:
        """Tells the node what became of records."""
        node = self._node
        tokens = [step.token for step in requests]
        if error is None:
            self._refusals.written(tokens)
            for token in tokens:
                node.persisted(token)
            return
        self.failures += 1
        # What of the journal has not run is not asked for again: its sender repeats it.
        again = [s.token for s in requests if not isinstance(s, steps.Journal) or s.ahead]
        self._refusals.refused(again, self._now_ns)
        for step in requests:
            node.persist_failed(step.token, error)

    def close(self) -> None:
        """Waits for what is being written; nothing is taken after that."""
        self._journaling.close()

    def _failed(self, what: str, error: BBError) -> None:
        self.failures += 1
        if self._report is not None:
            self._report(steps.StorageFailed(what, error))

    @property
    def counters(self) -> dict[str, int]:
        """The store's counters, and how many snapshots were written and calls failed."""
        return {
            **self._store.counters,
            "state.snapshots": self.snapshots,
            "state.failures": self.failures,
        }


def key_bytes(name: OutboxName) -> bytes:
    """The key of a row of the outbox in the store: a record's id, a body's name, or peer, epoch and number.

    Rows of numbers have an N before these; records of older versions are known by theirs alone.
    """
    if isinstance(name, BodyName):
        return name
    if isinstance(name, int):
        return name.to_bytes(8, "big")
    peer, epoch, number = name
    kind = b"N" if isinstance(name, RowName) else b""
    return kind + peer.to_bytes() + epoch.to_bytes(8, "big") + number.to_bytes(8, "big")


def name_of_key(key: bytes) -> int | BodyName:
    """The name of a row that a snapshot may enclose: `key_bytes` gave its key."""
    return int.from_bytes(key, "big") if len(key) == 8 else BodyName(key)
