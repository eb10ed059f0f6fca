"""The outbox on disk, as records under keys in segments, until two snapshots no longer need them.

A row adds a record, or names the keys that the snapshot of a generation dropped (segment_rows.py). A dropped
record stays until the snapshot *before* that one is gone too, because a node that falls back on that one
needs the record again. When more than half of the bytes are garbage, the records that are left are written
into a new segment, whose header says that it replaces the older ones.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bb_edge.state import record_framing
from bb_edge.state.errors import StateFullError
from bb_edge.state.files import Files, Log
from bb_edge.state.inventory import Inventory, Listed, lost_with
from bb_edge.state.record_framing import Link
from bb_edge.state.segment_rows import ADD, DISCARDED, add_rows, drop_row, read_row

COMPACTED_FROM_BYTES: Final = 64 * 1024
"""Garbage below this is not worth the writing: it is one erase block of common flash."""
MAX_SEGMENTS: Final = 16
"""More segments than this are joined into one, so that a start need not open and list many files."""


@dataclass(slots=True)
class _Entry:
    """Where a record is, and the generation whose snapshot dropped it (None: it is needed)."""

    segment: int
    size: int
    dropped: int | None = None


class Segments:
    """The outbox files of one node; `max_bytes` bounds the records that are needed."""

    __slots__ = (
        "_ahead",
        "_entries",
        "_files",
        "_growing",
        "_listed_from",
        "_logs",
        "_max_bytes",
        "_needed",
        "_next",
        "_obsolete",
        "_passed_over",
        "_unwritten",
        "discarded",
        "stale",
    )

    # What `load` reads.
    _logs: list[Log]  # ascending
    _obsolete: list[str]  # files that do not count, and may not even be there
    _growing: Log | None
    _ahead: Log | None  # begun, and nothing in it yet
    _needed: int
    _next: int
    _listed_from: tuple[int, int]  # the first segment that the last two snapshots list
    stale: set[int]
    """Generations that DROP rows name though they were not recovered; their numbers may be used again."""
    discarded: list[bytes]
    """Records that were discarded since the snapshot from which the others were recovered."""

    def __init__(self, files: Files, max_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._entries: dict[bytes, _Entry] = {}
        self._unwritten: list[bytes] = []  # DROP rows that the disk has not taken yet
        self._passed_over: dict[bytes, int] = {}  # discarded, and in which snapshot they may be enclosed

    @property
    def bytes_on_disk(self) -> int:
        """The length of all segments, garbage included."""
        return sum(log.length for log in self._logs)

    @property
    def bytes_needed(self) -> int:
        """The length of the rows of records that no snapshot has dropped yet."""
        return self._needed

    @property
    def compacted(self) -> bool:
        """Whether a segment replaces older ones, which none does before there is a snapshot."""
        return any(log.floor for log in self._logs)

    def has(self, key: bytes) -> bool:
        """Whether a record of that key is there that no snapshot has dropped."""
        entry = self._entries.get(key)
        return entry is not None and entry.dropped is None

    @property
    def counters(self) -> dict[str, int]:
        """Those of the outbox; what was discarded is that of the last recovery."""
        return {
            "state.outbox_bytes": self.bytes_on_disk,
            "state.outbox_records": len(self),
            "state.discarded": len(self.discarded),
        }

    def __len__(self) -> int:
        return sum(entry.dropped is None for entry in self._entries.values())

    # --- reading ------------------------------------------------------------------------------------------

    def load(
        self,
        numbers: Sequence[int],
        base: int,
        listed: Sequence[Listed] | None,
        inventory: Inventory,
        enclosed: Mapping[bytes, bytes],
    ) -> tuple[bytes, ...]:
        """Reads the segments of these numbers.

        Returns the records that the snapshot `base` needs: those that are `enclosed` in it, and then those of
        the segments in the order in which they were added. `listed` is that snapshot's list, None where it
        has none; `inventory` is told of every file.
        Raises StateReadError, StateVersionError, StateDamagedError and StateForeignError.
        """
        self._entries.clear()
        self._unwritten.clear()
        self._passed_over.clear()
        self._ahead = None
        self._needed, self.stale, self.discarded = 0, set(), []
        records: dict[bytes, bytes] = {}
        around = dict(enclosed)
        read: list[tuple[Log, record_framing.Parsed]] = []
        for number in numbers:
            log = Log(self._files, record_framing.OUTBOX, number)
            read.append((log, log.load()))
        floor = max((log.floor for log, _ in read), default=0)
        self._obsolete = [log.name for log, _ in read if log.number < floor]
        self._logs = [log for log, _ in read if log.number >= floor]
        self._growing = self._logs[-1] if self._logs else None
        self._next = max([-1, *numbers, *(row.number for row in listed or ())]) + 1
        first = listed[0].number if listed else 0
        self._listed_from = (first, first)
        told = defaultdict(int, {row.number: row.length for row in listed or ()})
        old = {row.number for row in listed or () if row.version == record_framing.BEFORE_OWNERS}
        for row in listed or ():
            if row.number >= floor:
                inventory.claim(record_framing.OUTBOX, Link(row.number, row.length), f"snapshot-{base}")
        for log, parsed in read:
            may_be_old = log.number < max(first, floor) or log.number in old or listed is None
            inventory.check(log.name, parsed, old=may_be_old)
            if log.number < floor:
                continue
            inventory.took(log, parsed)
            before = log.before
            # What a list leaves out may have gone; before the first snapshot nothing goes.
            kept = floor if not base else max(floor, first) if listed else log.number
            if before is not None and before.number >= kept:
                inventory.claim(record_framing.OUTBOX, before, log.name)
            at = parsed.length - record_framing.framed_bytes(parsed.bodies)
            log.synced = 0  # it may have its header alone, or DROP rows, which are not synced
            for row_bytes in parsed.bodies:
                at += record_framing.OVERHEAD_BYTES + len(row_bytes)
                since = not base or (listed is not None and log.number >= first and at > told[log.number])
                if self._take(row_bytes, log, base, records, around if since else {}, since) == ADD:
                    log.synced = at
        return (*(record for key, record in around.items() if key not in records), *records.values())

    def _take(
        self,
        row: bytes,
        log: Log,
        base: int,
        records: dict[bytes, bytes],
        enclosed: dict[bytes, bytes],
        since: bool,
    ) -> int:
        kind, generation, keys, record = read_row(row, log.name)
        if kind == ADD:
            self._add(keys[0], len(row), log.number)
            records[keys[0]] = record
        elif generation > base:
            self.stale.add(generation)
        else:
            for key in keys:
                if key in self._entries:
                    self._let_go(key, generation)
                    if since and generation == DISCARDED and key in records:
                        self.discarded.append(records[key])
                    records.pop(key, None)
                elif generation == DISCARDED:
                    self._passed_over[key] = base
                    if key in enclosed:
                        self.discarded.append(enclosed.pop(key))
        return kind

    def _add(self, key: bytes, size: int, segment: int) -> None:
        old = self._entries.pop(key, None)
        if old is not None and old.dropped is None:
            self._needed -= old.size
        self._entries[key] = _Entry(segment, size)
        self._needed += size

    def _let_go(self, key: bytes, generation: int) -> None:
        entry = self._entries[key]
        if entry.dropped is None:
            self._needed -= entry.size
            entry.dropped = generation

    # --- writing ------------------------------------------------------------------------------------------

    def append(self, records: Sequence[tuple[bytes, bytes]], bounded: bool = True) -> None:
        """Adds records under their keys, all or none; they are on the medium when it returns.

        Without `bounded` they find room in any case. Raises StateFullError, StateWriteError and
        StateReadError.
        """
        rows = add_rows(records)
        size = sum(map(len, rows))
        if self._needed + size > self._max_bytes and bounded:
            raise StateFullError(
                f"the outbox holds {self._needed} of {self._max_bytes} bytes, {size} more are requested",
                "outbox",
                "acknowledgements and a snapshot free space",
            )
        log = self._write(rows, sync=True)
        for (key, _), row in zip(records, rows, strict=True):
            self._add(key, len(row), log.number)

    def let_go(self, keys: Iterable[bytes], generation: int, previous: int) -> None:
        """Drops the records of `keys`, which the snapshot of `generation` does not need.

        Records that snapshots up to `previous` dropped are garbage now. `tidy` or `write_down` comes next.
        """
        known = [key for key in keys if key in self._entries]
        for key in known:
            self._let_go(key, generation)
        if known:
            self._unwritten.append(drop_row(generation, known))
        for key in [k for k, e in self._entries.items() if e.dropped is not None and e.dropped <= previous]:
            del self._entries[key]
        self._passed_over = {key: at for key, at in self._passed_over.items() if at >= previous}

    def discard(
        self,
        keys: Iterable[bytes],
        instead: Sequence[tuple[bytes, bytes]],
        enclosed: Container[bytes],
        base: int,
    ) -> None:
        """Drops the records of `keys` for every generation, and adds those that stand for them, all or none.

        Those that the snapshot `base` has `enclosed` stay there, and are passed over. The medium has it when
        it returns; a power cut may leave both. No bound is asked for `instead`: who drops makes room. Raises
        StateWriteError, and StateReadError where a ragged end has to be cut.
        """
        known = [key for key in keys if self.has(key) or key in enclosed]
        rows = add_rows(instead)
        if known or rows:
            log = self._write([*rows, *([drop_row(DISCARDED, known)] if known else ())], sync=True)
            for (key, _), row in zip(instead, rows, strict=True):
                self._add(key, len(row), log.number)
        for key in known:
            if key in enclosed:
                self._passed_over[key] = base
            if self.has(key):
                self._needed -= self._entries.pop(key).size

    def write_down(self) -> None:
        """Writes what was dropped; it is on the medium with the next record. A StateError: the next write
        tries again.
        """
        if self._unwritten:
            self._write((), sync=False)

    def left_over(self) -> tuple[int, bool]:
        """The length of the segments that `tidy` would remove, and whether it has something else to do."""
        used = self._used
        removable = sum(log.length for log in itertools.takewhile(self._removable(used), self._logs))
        return removable, self._is_crowded(used) or len(self._obsolete) > (self._ahead is not None)

    @property
    def _used(self) -> int:
        """The first segment with a record that is not garbage."""
        return min((entry.segment for entry in self._entries.values()), default=self._next)

    def _removable(self, used: int) -> Callable[[Log], bool]:
        """Tells of the segments, the oldest first, whether nobody reads them; not of those behind another."""
        first, growing = min(used, *self._listed_from), self._growing
        return lambda log: log is not growing and log.number < first

    def _is_crowded(self, used: int) -> bool:
        kept = sum(entry.size for entry in self._entries.values())
        # Those that only wait for the older snapshot to go need no writing to be rid of.
        staying = [log for log in self._logs if log.number >= used or log is self._growing]
        garbage = sum(log.length for log in staying) - kept
        return len(staying) > MAX_SEGMENTS or garbage > max(kept, COMPACTED_FROM_BYTES)

    def tidy(self) -> None:
        """Removes segments that nobody reads, and joins the others where many are, or much is garbage.

        The snapshots before the last two have gone. Raises StateError where the files could not be brought
        up to date; the next call tries again.
        """
        self._remove_obsolete()
        used = self._used
        removable = self._removable(used)
        while self._logs and removable(self._logs[0]):
            # The oldest first: the records that its DROP rows name were in older ones. And before anything is
            # written, so that a full disk has space for it.
            self._files.remove(self._logs[0].name)
            del self._logs[0]
        if self._is_crowded(used):
            self.compact()
        else:
            self.write_down()

    def prepare(self) -> None:
        """Begins the segment of the next generation, unless the present one is still empty. StateError.

        What is dropped from then on goes into another file. So that no record comes back without what was
        dropped after it, the DROP rows so far are on the medium first.
        """
        if self._ahead is None and (self._growing is None or not self._growing.empty):
            if self._growing is not None and self._growing.synced < self._growing.length:
                self._growing.append((), sync=True)
            log = self._begin()
            log.append((), sync=False)
            self._ahead = log

    def listed(self) -> tuple[Listed, ...]:
        """What a recovery from the snapshot that is about to be written needs, and how long it surely is."""
        live = [entry.segment for entry in self._entries.values() if entry.dropped is None]
        ahead = [] if self._ahead is None else [self._ahead]
        logs = [*self._logs, *ahead]
        first = min(live, default=logs[-1].number)
        return tuple(Listed(log.number, log.synced, log.version) for log in logs if log.number >= first)

    def removed(self, journals: Iterable[Log]) -> Iterator[tuple[str, list[bytes]]]:
        """Yields what is lost of each of these journals, and of the segments that are needed, which somebody
        else has removed or cut; with a segment that is gone, the keys of its records that no snapshot has
        dropped. StateReadError.
        """
        keys: dict[int, list[bytes]] = {}
        for key, entry in self._entries.items():
            if entry.dropped is None:
                keys.setdefault(entry.segment, []).append(key)
        for log in journals:
            if not log.empty and (text := lost_with(log, self._files.length(log.name))):
                yield text, []
        for log in self._logs:
            if log.number in keys and (text := lost_with(log, there := self._files.length(log.name))):
                yield text, keys[log.number] if there is None else []

    def seal(self, listed: Sequence[Listed], enclosed: Iterable[bytes]) -> None:
        """Directs further rows into the segment that was prepared, so that older ones become removable.

        `listed` is what the snapshot lists that was written since, `enclosed` the keys that it encloses.
        """
        for key in enclosed:
            self._passed_over.pop(key, None)
        self._listed_from = (self._listed_from[1], listed[0].number)
        if self._ahead is not None:
            self._obsolete.remove(self._ahead.name)
            self._logs.append(self._ahead)
            self._growing, self._ahead = self._ahead, None

    def compact(self) -> None:
        """Writes all records that are not garbage into one new segment and removes the others.

        A StateError leaves everything as it was.
        """
        log = self._begin(compacted=True)
        log.create(self._kept_rows())
        self._obsolete.remove(log.name)
        self._obsolete += [old.name for old in self._logs]
        self._logs = [log]
        self._growing, self._ahead = log, None
        self._unwritten.clear()
        self.stale = set()
        for entry in self._entries.values():
            entry.segment = log.number
        self._remove_obsolete()

    def _kept_rows(self) -> Iterator[bytes]:
        dropped: dict[int, list[bytes]] = {}
        for log in self._logs:
            last: dict[bytes, bytes] = {}  # a key may have been added several times
            for row in log.bodies():
                kind, _, keys, _ = read_row(row, log.name)
                if kind == ADD:
                    last[keys[0]] = row
            for key, row in last.items():
                entry = self._entries.get(key)
                if entry is not None and entry.segment == log.number:
                    yield row
                    if entry.dropped is not None:
                        dropped.setdefault(entry.dropped, []).append(key)
        if self._passed_over:
            dropped[DISCARDED] = list(self._passed_over)
        for generation, names in dropped.items():
            yield drop_row(generation, names)

    def _begin(self, compacted: bool = False) -> Log:
        """Returns a segment that is about to be written.

        Until it is, nobody knows whether its file is there: it counts among the obsolete ones.
        """
        number = self._next
        self._next += 1
        last = self._logs[-1] if self._logs else None
        before = None if last is None else Link(last.number, last.synced)
        log = Log(self._files, record_framing.OUTBOX, number, number if compacted else 0, before)
        self._obsolete.append(log.name)
        return log

    def _remove_obsolete(self) -> None:
        ahead = None if self._ahead is None else self._ahead.name
        for name in [name for name in self._obsolete if name != ahead]:
            self._files.remove(name)
            self._obsolete.remove(name)

    def _write(self, rows: Sequence[bytes], sync: bool) -> Log:
        rows = [*self._unwritten, *rows]
        log = self._growing
        if log is None:
            log = self._ahead or self._begin()
            log.append(rows, sync)
            self._obsolete.remove(log.name)
            self._growing, self._ahead = log, None
            self._logs.append(log)
        else:
            log.append(rows, sync)
        self._unwritten.clear()
        return log
