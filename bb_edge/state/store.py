"""What a node has on disk, and how it finds that again.

    snapshot-<G>   the node as it was when generation G began, and maybe rows of the outbox that came with it
    journal-<G>    the inputs that it took since then, and maybe rows of the outbox that came of them;
                   journal-0 begins with an empty folder
    outbox-<n>     what it sends and must not lose, whatever the generation (segments.py)

The last two generations stay; older files may go several at a time, because a disk takes nearly as long to
remove one as to remove many. Where snapshot G cannot be read, the node comes back from snapshot G-1, the
journal of G-1 and that of G. A generation begins when its snapshot is *attempted*: where a failed attempt
leaves open whether the file is there, both answers are right, because the journal of the older generation
then ends where the snapshot was taken.

Every file says whose it is, and names what was there before it (inventory.py): what is missing, emptied, cut
short or another node's is told by name.

One store belongs to one thread, and one folder to one store.

Rules D7 and D9 of the specification.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bb_edge.state import record_framing
from bb_edge.state.errors import (
    StateDamagedError,
    StateDeniedError,
    StateError,
    StateFullError,
    StateReadError,
    StateWriteError,
)
from bb_edge.state.files import Files, Log, Storage, log_name, numbers
from bb_edge.state.inventory import Inventory, Listed, instead_of, nothing_to_restore, pack, unpack
from bb_edge.state.limits import StoreLimits
from bb_edge.state.record_framing import NOBODY, Link, Owner
from bb_edge.state.segment_rows import add_rows, input_rows, read_row, split
from bb_edge.state.segments import Segments
from bb_edge.wire.cbor import Buffer

OLD_BYTES = 1 << 20
"""Of files that no recovery needs: with so many they are removed, however few generations they are of."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was on disk: the snapshot, the journal's records since, and the outbox's, each in their order.

    `generation` is that of the snapshot, 0 where there is none. `notes` say what was damaged or torn;
    `losses` are those of them about what is lost for good, `discarded` records that were discarded since.
    """

    snapshot: bytes | None
    journal: tuple[bytes, ...]
    outbox: tuple[bytes, ...]
    generation: int
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()
    discarded: tuple[bytes, ...] = ()


class StateStore:
    """The files of one node; `failures` are the exceptions that the storage raises for faults of the disk.

    Without `limits` those of `StoreLimits` hold for what is written, and files of any length are read.
    `owner` is whose files they are; without one any owner's are read, as long as it is one and the same.
    Files of up to `old_generations` that no recovery needs may wait to be removed together. `open` reads and
    changes nothing on disk; it comes before every other call.
    """

    # What `open` reads.
    _journals: dict[int, Log]  # those that a recovery from `_base` reads
    _present: set[str]  # snapshots and journals on disk
    _unreadable: dict[int, str]  # snapshots that were refused, and why
    _generation: int
    _base: int
    _base_bytes: int
    _previous: int
    _losses: int
    _old: int  # generations before the last two whose files are there still
    _old_bytes: int  # of these, about: as many as the generation had that ended then
    enclosed: Mapping[bytes, bytes]
    """The rows of the outbox, by their keys, that are in no segment: the last snapshot's file has them behind
    the snapshot, or the journals since then between their records. Whoever knows that some are not needed any
    more leaves them out."""

    def __init__(
        self,
        storage: Storage,
        failures: tuple[type[Exception], ...],
        limits: StoreLimits | None = None,
        owner: Owner | None = None,
        old_generations: int = 0,
    ) -> None:
        self.limits = limits or StoreLimits()
        self._owner = owner
        self._files = Files(storage, failures, None if limits is None else _longest(limits))
        self._segments = Segments(self._files, self.limits.outbox_bytes)
        self._kept_bytes = 0  # of the outbox, by the last snapshot
        self._old_generations = old_generations

    # --- reading ------------------------------------------------------------------------------------------

    def open(self) -> Recovered:
        """Reads everything.

        Raises StateReadError, StateVersionError, StateDamagedError and StateForeignError. Snapshots that are
        gone or damaged, all of them, with nothing in the journals that would stand for them, are an error:
        the node would begin anew without a word.
        """
        self._unreadable = {}
        recovered = self._recover()
        begun = self._unreadable or self._generation > 1
        if begun and recovered.snapshot is None and not recovered.journal:
            raise nothing_to_restore(recovered.notes, self._files.names())
        return recovered

    def fall_back(self, reason: str) -> Recovered:
        """Reads everything again from the snapshot before, because the node cannot use the last one.

        `reason` says why, for the notes. Raises the errors of `open`.
        """
        if self._base == 0:
            raise StateDamagedError("there is no snapshot to fall back from", "state", "start anew")
        self._unreadable[self._base] = reason
        return self._recover()

    def _recover(self) -> Recovered:
        names = self._files.names()
        snapshots = [n for n in numbers(names, record_framing.SNAPSHOT) if n]
        journals = numbers(names, record_framing.JOURNAL)
        self._present = {log_name(record_framing.SNAPSHOT, n) for n in snapshots}
        self._present |= {log_name(record_framing.JOURNAL, n) for n in journals}
        self._files.damaged.clear()
        notes: list[str] = []
        inventory = Inventory(self._owner)
        base, snapshot, listed = self._last_readable(snapshots, notes, inventory)
        if snapshot is None and 0 not in journals and (snapshots or journals):
            raise nothing_to_restore(notes, names)
        self._base = base
        older = [n for n in snapshots if n < base]
        self._previous = older[-1] if older else 0 if 0 in journals else base
        # Whatever is older still was left by an earlier run; its lengths are not known.
        self._old = self._old_generations if any(n < self._previous for n in (*snapshots, *journals)) else 0
        self._old_bytes = 0
        replayed = self._read_journals(journals, snapshots, listed is None, inventory)
        records = tuple(record for bodies in replayed.values() for record in bodies)
        # The journal of a first snapshot that a power cut prevented begins nothing: that one is tried again.
        first = [1] if snapshot is None and replayed.keys() == {0, 1} and not replayed[1] else []
        self._generation = max([base, *snapshots, *(n for n in journals if n not in first)])
        segments = numbers(names, record_framing.OUTBOX)
        outbox = self._segments.load(segments, base, listed, inventory, self.enclosed)
        if not self._present and self._segments.compacted:
            raise nothing_to_restore(notes, names)
        began = self._segments.stale | {number for number, bodies in replayed.items() if number and bodies}
        for gone in sorted(began - set(snapshots)):
            notes.append(f"{log_name(record_framing.SNAPSHOT, gone)} is missing: {instead_of(base)}")
        more, losses = inventory.report()
        self._losses = len(losses)
        self._files.owner = inventory.owner or NOBODY
        discarded = tuple(self._segments.discarded)
        return Recovered(snapshot, records, outbox, base, (*notes, *more), tuple(losses), discarded)

    def _read_journals(
        self, journals: Sequence[int], snapshots: Sequence[int], old: bool, inventory: Inventory
    ) -> dict[int, Sequence[bytes]]:
        """What each journal holds. One that holds something was written behind the snapshot of its number."""
        self._journals = {}
        replayed: dict[int, Sequence[bytes]] = {}
        for number in snapshots:
            if number >= self._base:
                name = log_name(record_framing.SNAPSHOT, number)
                inventory.claim(record_framing.JOURNAL, Link(number, 0), name)
        for number in journals:
            if number >= self._base:
                log = self._journals[number] = Log(self._files, record_framing.JOURNAL, number)
                parsed = log.load()
                inputs = parsed.bodies
                if log.version == record_framing.ENCLOSING:
                    inputs, outbox = split(inputs, log.name)
                    self.enclosed = {**self.enclosed, **outbox}
                inventory.check(log.name, parsed, old=old)
                inventory.took(log, parsed)
                if log.before is not None and log.before.number >= self._base:
                    inventory.claim(record_framing.JOURNAL, log.before, log.name)
                replayed[number] = inputs
        return replayed

    def _last_readable(
        self, snapshots: Sequence[int], notes: list[str], inventory: Inventory
    ) -> tuple[int, bytes | None, tuple[Listed, ...] | None]:
        """The last snapshot that can be read: its number, its bytes, and the segments that it lists.

        The rows that it encloses are `enclosed`.
        """
        self.enclosed = {}
        useless, last = list[str](), ""  # those before this one that cannot be used for one reason
        for number in reversed(snapshots):
            name = log_name(record_framing.SNAPSHOT, number)
            if number not in self._unreadable:
                try:
                    data = self._files.read(name)
                except StateDeniedError:
                    raise  # a mistake that is mended by hand; the node would begin anew, and write over it
                except (StateReadError, StateDamagedError) as error:
                    self._unreadable[number] = error.what
                else:
                    parsed = record_framing.parse(data, record_framing.SNAPSHOT, number, name)
                    header = parsed.header
                    inventory.check(name, parsed, old=True)
                    if header is not None and not parsed.lost and _is_whole(header, parsed.bodies):
                        self._base_bytes = len(data)
                        if number == snapshots[-1]:
                            self._note_reserve(header.before, name, notes)
                        body, *listed = parsed.bodies
                        self.enclosed = _enclosed(listed[1:], name)
                        return number, body, unpack(listed[0], name) if listed else None
                    self._unreadable[number] = "it is empty" if not data else "its checksum is wrong"
            self._files.damaged.add(name)
            why = self._unreadable[number]
            if useless and why == last:
                del notes[-1]
            else:
                useless.clear()
            useless.append(name)
            last = why
            notes.append(f"{', '.join(useless)} cannot be used: {why}")
        return 0, None, None

    def _note_reserve(self, before: Link | None, name: str, notes: list[str]) -> None:
        """Notes which files of the generation before are missing, which are there for a damaged snapshot."""
        for kind in (record_framing.SNAPSHOT, record_framing.JOURNAL) if before is not None else ():
            assert before is not None
            file = log_name(kind, before.number)
            if file not in self._present:
                notes.append(f"{file} is missing: nothing is lost as long as {name} can be read")

    # --- writing ------------------------------------------------------------------------------------------

    def append_journal(
        self, records: Sequence[record_framing.Body], outbox: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Adds records, which may come in pieces, all or none; they are on the medium when it returns.

        Rows of the `outbox`, (key, record) pairs, come behind them, in the same write: none of them is there
        without all of the records, and the next snapshot has to enclose those that it needs. Raises
        StateFullError, StateWriteError and StateReadError.
        """
        if not records:
            return
        log = self._journals.get(self._generation)
        if log is None:
            log = Log(self._files, record_framing.JOURNAL, self._generation)
        encloses = log.version == record_framing.ENCLOSING
        assert encloses or not outbox
        rows = [*input_rows(records), *add_rows(outbox)] if encloses else records
        size, held = record_framing.framed_bytes(rows), self.journal_bytes
        if held + size > 2 * self.limits.journal_bytes:
            raise StateFullError(
                f"the journal holds {held} bytes, {size} more are requested, "
                f"{2 * self.limits.journal_bytes} allowed",
                "journal",
                "a snapshot frees space",
            )
        self._journals[self._generation] = log
        try:
            log.append(rows)
        except StateWriteError:
            self._make_room()
            raise
        self._present.add(log.name)
        if outbox:
            self.enclosed = {**self.enclosed, **dict(outbox)}

    def append_outbox(self, records: Sequence[tuple[bytes, bytes]], bounded: bool = True) -> None:
        """Adds (key, record) pairs, all or none; they are on the medium when it returns.

        Without `bounded` a full outbox takes them, too. Raises StateFullError, StateWriteError and
        StateReadError.
        """
        if records:
            try:
                self._segments.append(records, bounded)
            except StateWriteError:
                self._make_room()
                raise

    def discard(self, keys: Iterable[bytes], instead: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Drops outbox records for good, from whichever snapshot a recovery begins, and adds others for them.

        None of them is left, or all, and the medium has it when it returns; a power cut may leave both. A
        full outbox takes it. Raises StateWriteError and StateReadError.
        """
        self._segments.discard(keys, instead, self.enclosed, self._base)

    def has_outbox(self, key: bytes) -> bool:
        """Whether a record of that key is in a segment, and no snapshot has dropped it."""
        return self._segments.has(key)

    def write_snapshot(
        self, data: bytes | Sequence[Buffer], enclosed: Mapping[bytes, bytes] | None = None
    ) -> None:
        """Begins a generation with this snapshot; the journal before it is not replayed any more.

        It may come in pieces, which are written one after the other. `enclosed` are rows of the outbox, by
        their keys, that are on the medium with it and go with its file; no limit is asked for them. Raises
        StateFullError, StateWriteError and StateReadError; the state on disk is then as before.
        """
        pieces = (data,) if isinstance(data, bytes) else data
        size = sum(map(len, pieces))
        if size > self.limits.snapshot_bytes:
            raise StateFullError(
                f"the snapshot has {size} bytes, {self.limits.snapshot_bytes} are allowed", "snapshot"
            )
        try:
            self._begin_generation(pieces, enclosed or {})
        except StateWriteError:
            if not self._make_room():
                raise
            self._begin_generation(pieces, enclosed or {})  # it may be the last call of this run

    def _begin_generation(self, pieces: Sequence[Buffer], enclosed: Mapping[bytes, bytes]) -> None:
        if self._segments.stale:
            self._remove_old()  # the oldest snapshots may list what is joined
            self._segments.compact()
        if not self._present:
            # journal-0 is the proof that nothing is missing before generation 1.
            log = self._journals.setdefault(0, Log(self._files, record_framing.JOURNAL, 0))
            log.append(())
            self._present.add(log.name)
        ended = self.journal_bytes
        number = self._generation + 1
        name = log_name(record_framing.SNAPSHOT, number)
        # The files of the generation come before its snapshot: one sync of the folder covers all names.
        last = self._journals.get(self._generation)
        link = None if last is None else Link(last.number, last.synced)
        begun = Log(self._files, record_framing.JOURNAL, number, before=link)
        journal = self._journals.setdefault(number, begun)
        if not journal.length:
            journal.append((), sync=False)
            self._present.add(journal.name)
        self._segments.prepare()
        listed = self._segments.listed()
        before = Link(self._base, self._base_bytes) if self._base else None
        kind, owner = record_framing.SNAPSHOT, self._files.owner
        version = record_framing.ENCLOSING if enclosed else record_framing.VERSION
        content = [
            record_framing.header(kind, number, owner=owner, before=before, version=version),
            *record_framing.framed_pieces(kind, number, 1, pieces),
            record_framing.framed(kind, number, 2, [pack(listed), *add_rows(list(enclosed.items()))]),
        ]
        try:
            self._files.write(name, content)
        except StateWriteError:
            if self._may_be_there(name):
                self._present.add(name)
                self._generation = number
            raise
        self._present.add(name)
        if self._previous != self._base:  # a generation that nobody comes back to
            self._old += 1
            self._old_bytes += self._base_bytes + ended
        self._previous, self._base, self._generation = self._base, number, number
        self._base_bytes = sum(map(len, content))
        self.enclosed = enclosed
        self._journals = {number: journal}
        self._segments.seal(listed, enclosed)

    def drop(self, keys: Iterable[bytes]) -> None:
        """Drops outbox records that the latest snapshot does not need; they go with the next generation.

        Also removes the files that no recovery needs any more, once they are many or large. Raises StateError
        where the disk refuses; the call after the next snapshot tries again.
        """
        segments = self._segments
        segments.let_go(keys, self._base, self._previous)  # this is the only call that names these keys
        self._kept_bytes = segments.bytes_needed
        removable, crowded = segments.left_over()
        large = self._old_bytes + removable >= OLD_BYTES
        if not (self._old >= self._old_generations or large or crowded):
            segments.write_down()
            return
        try:
            self._remove_old()
        finally:
            segments.tidy()

    def _make_room(self) -> bool:
        """The disk has taken no more: what waits to be removed goes now, for when the call is made again.

        Returns whether anything went.
        """
        present = len(self._present)
        if self._old:
            with contextlib.suppress(StateError):
                self._remove_old()
        return len(self._present) < present

    def _remove_old(self) -> None:
        for number in numbers(self._present, record_framing.SNAPSHOT):
            if number < self._base and number != self._previous:
                self._remove(log_name(record_framing.SNAPSHOT, number))
        # Journals after their snapshots: every snapshot that is there has its journals.
        for number in numbers(self._present, record_framing.JOURNAL):
            if number < self._previous:
                self._remove(log_name(record_framing.JOURNAL, number))
        self._old = self._old_bytes = 0

    def _remove(self, name: str) -> None:
        self._files.remove(name)
        self._present.discard(name)

    def _may_be_there(self, name: str) -> bool:
        try:
            return name in self._files.names()
        except StateReadError:
            return True

    def removed(self) -> Iterator[tuple[str, list[bytes]]]:
        """What somebody else has removed or cut of what the next start reads; see `Segments.removed`."""
        return self._segments.removed(self._journals.values())

    # --- accounts -----------------------------------------------------------------------------------------

    @property
    def journal_encloses(self) -> bool:
        """Whether the journal takes rows of the outbox: not one that an older version began."""
        log = self._journals.get(self._generation)
        return log is None or log.version == record_framing.ENCLOSING

    @property
    def generation(self) -> int:
        """The generation of the last snapshot that is surely on disk; 0 where there is none."""
        return self._base

    @property
    def journal_bytes(self) -> int:
        """How many bytes a recovery would replay; may be asked for while another thread appends."""
        return sum(log.length for log in tuple(self._journals.values()))

    @property
    def wants_snapshot(self) -> bool:
        """Whether the journal has reached its length, or the outbox is nearly full and a snapshot would help.

        Nearly full is three quarters, which leaves a quarter for what is sent meanwhile. A snapshot helps
        where an eighth of the outbox is newer than the last one: records that the last snapshot had to keep,
        the next one will keep as well.
        """
        limits, needed = self.limits, self._segments.bytes_needed
        full = 4 * needed >= 3 * limits.outbox_bytes
        newer = 8 * (needed - self._kept_bytes) >= limits.outbox_bytes
        return self.journal_bytes >= limits.journal_bytes or (full and newer)

    @property
    def counters(self) -> Mapping[str, int]:
        """`bytes_written`, `syncs` and `failed_writes` since the store was made; lengths are of now."""
        files = self._files
        return {
            **self._segments.counters,
            "state.outbox_records": len(self._segments) + len(self.enclosed),
            "state.bytes_written": files.bytes_written,
            "state.syncs": files.syncs,
            "state.failed_writes": files.failed_writes,
            "state.journal_bytes": self.journal_bytes,
            "state.generation": self._base,
            "state.losses": self._losses,
        }


def _is_whole(header: record_framing.Header, bodies: Sequence[bytes]) -> bool:
    """Whether a snapshot's file has all its records: itself, its list of segments, and enclosed rows."""
    if header.version == record_framing.BEFORE_OWNERS:
        return len(bodies) == 1
    return len(bodies) > 2 if header.version == record_framing.ENCLOSING else len(bodies) == 2


def _enclosed(rows: Iterable[bytes], name: str) -> dict[bytes, bytes]:
    """The rows that a snapshot encloses, by their keys. StateDamagedError for other bytes."""
    read = [read_row(row, name) for row in rows]
    return {key: record for _, _, (key,), record in read}


def _longest(limits: StoreLimits) -> dict[int, int]:
    """The bytes of the longest file of each kind that is read.

    An outbox's segment holds four times its limit at most (what is needed, what the last two snapshots
    dropped, and as much garbage). Twice that, for all kinds, lets limits be lowered between two starts.
    """
    sizes = {
        record_framing.SNAPSHOT: limits.snapshot_bytes,
        record_framing.JOURNAL: limits.journal_bytes,
        record_framing.OUTBOX: limits.outbox_bytes,
    }
    return {kind: 8 * size + (1 << 20) for kind, size in sizes.items()}
