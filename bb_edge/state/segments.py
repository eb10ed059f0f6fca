"""The outbox on disk, as records under keys in segments, until two snapshots no longer need them.

A row of kind ADD adds a record; a row of kind DROP names the keys that the snapshot of a generation dropped.
A dropped record stays until the snapshot *before* that one is gone too, because a node that falls back on
that one needs the record again. When more than half of the bytes are garbage, the records that are left are
written into a new segment, whose header says that it replaces the older ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bb_edge.state import record_framing
from bb_edge.state.errors import StateDamagedError, StateFullError
from bb_edge.state.files import Files, Log

ADD: Final = 1
DROP: Final = 2
COMPACTED_FROM_BYTES: Final = 64 * 1024
"""Garbage below this is not worth the writing: it is one erase block of common flash."""
MAX_SEGMENTS: Final = 16
"""More segments than this are joined into one, so that a start need not open and list many files."""
MAX_KEY_BYTES: Final = 0xFFFF

_ADD = struct.Struct(">BH")
_DROP = struct.Struct(">BQ")
_KEY = struct.Struct(">H")


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
        "_logs",
        "_max_bytes",
        "_needed",
        "_next",
        "_obsolete",
        "_unwritten",
        "stale",
    )

    def __init__(self, files: Files, max_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._logs: list[Log] = []  # ascending
        self._obsolete: list[str] = []  # files that do not count, and may not even be there
        self._entries: dict[bytes, _Entry] = {}
        self._growing: Log | None = None
        self._ahead: Log | None = None  # begun, and nothing in it yet
        self._unwritten: list[bytes] = []  # DROP rows that the disk has not taken yet
        self._needed = 0
        self._next = 0
        self.stale = False
        """Whether DROP rows name a generation that was not recovered, whose number will be used again."""

    @property
    def bytes_on_disk(self) -> int:
        """The length of all segments, garbage included."""
        return sum(log.length for log in self._logs)

    @property
    def bytes_needed(self) -> int:
        """The length of the rows of records that no snapshot has dropped yet."""
        return self._needed

    def has(self, key: bytes) -> bool:
        """Whether a record of that key is there that no snapshot has dropped."""
        entry = self._entries.get(key)
        return entry is not None and entry.dropped is None

    def __len__(self) -> int:
        return sum(entry.dropped is None for entry in self._entries.values())

    # --- reading ------------------------------------------------------------------------------------------

    def load(self, numbers: Sequence[int], base: int) -> tuple[tuple[bytes, ...], list[str]]:
        """Reads the segments of these numbers.

        Returns the records that the snapshot `base` needs, in the order in which they were added, and notes
        about damage. Raises StateReadError, StateVersionError and StateDamagedError.
        """
        self._entries.clear()
        self._unwritten.clear()
        self._ahead = None
        self._needed, self.stale = 0, False
        notes: list[str] = []
        records: dict[bytes, bytes] = {}
        read: list[tuple[Log, record_framing.Parsed]] = []
        for number in numbers:
            log = Log(self._files, record_framing.OUTBOX, number)
            read.append((log, log.load()))
        floor = max((log.floor for log, _ in read), default=0)
        self._obsolete = [log.name for log, _ in read if log.number < floor]
        self._logs = [log for log, _ in read if log.number >= floor]
        self._growing = self._logs[-1] if self._logs else None
        self._next = numbers[-1] + 1 if numbers else 0
        for log, parsed in read:
            if log.number < floor:
                continue
            if parsed.lost:
                notes.append(log.complaint(parsed))
            for row in parsed.bodies:
                self._take(row, log, base, records)
        return tuple(records.values()), notes

    def _take(self, row: bytes, log: Log, base: int, records: dict[bytes, bytes]) -> None:
        kind, generation, keys, record = _read(row, log.name)
        if kind == ADD:
            self._add(keys[0], len(row), log.number)
            records[keys[0]] = record
        elif generation > base:
            self.stale = True
        else:
            for key in keys:
                if key in self._entries:
                    self._let_go(key, generation)
                    records.pop(key, None)

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

    def append(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Adds records under their keys, all or none; they are on the medium when it returns.

        Raises StateFullError, StateWriteError and StateReadError.
        """
        rows = [_ADD.pack(ADD, len(key)) + key + record for key, record in records]
        size = sum(map(len, rows))
        if self._needed + size > self._max_bytes:
            raise StateFullError(
                f"the outbox holds {self._needed} of {self._max_bytes} bytes, {size} more are requested",
                "outbox",
                "acknowledgements and a snapshot free space",
            )
        log = self._write(rows, sync=True)
        for (key, _), row in zip(records, rows, strict=True):
            self._add(key, len(row), log.number)

    def drop(self, keys: Iterable[bytes], generation: int, previous: int) -> None:
        """Drops the records of `keys`, which the snapshot of `generation` does not need.

        Records that snapshots up to `previous` dropped are garbage now. Raises StateError where the files
        could not be brought up to date; the next write tries again.
        """
        known = [key for key in keys if key in self._entries]
        for key in known:
            self._let_go(key, generation)
        if known:
            self._unwritten.append(_drop_row(generation, known))
        for key in [k for k, e in self._entries.items() if e.dropped is not None and e.dropped <= previous]:
            del self._entries[key]
        self._tidy()

    def _tidy(self) -> None:
        self._remove_obsolete()
        used = {entry.segment for entry in self._entries.values()}
        while self._logs and self._logs[0] is not self._growing and self._logs[0].number not in used:
            # The oldest first: the records that its DROP rows name were in older ones. And before anything is
            # written, so that a full disk has space for it.
            self._files.remove(self._logs[0].name)
            del self._logs[0]
        kept = sum(entry.size for entry in self._entries.values())
        garbage = self.bytes_on_disk - kept
        if len(self._logs) > MAX_SEGMENTS or garbage > max(kept, COMPACTED_FROM_BYTES):
            self.compact()
        elif self._unwritten:
            self._write((), sync=False)

    def prepare(self) -> None:
        """Begins the segment of the next generation, unless the present one is still empty. StateError."""
        if (
            self._ahead is None
            and self._growing is not None
            and self._growing.length > record_framing.HEADER_BYTES
        ):
            log = self._begin()
            log.append((), sync=False)
            self._ahead = log

    def seal(self) -> None:
        """Directs further rows into the segment that was prepared, so that older ones become removable."""
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
        self.stale = False
        for entry in self._entries.values():
            entry.segment = log.number
        self._remove_obsolete()

    def _kept_rows(self) -> Iterator[bytes]:
        dropped: dict[int, list[bytes]] = {}
        for log in self._logs:
            for row in log.bodies():
                kind, _, keys, _ = _read(row, log.name)
                entry = self._entries.get(keys[0])
                if kind == ADD and entry is not None and entry.segment == log.number:
                    yield row
                    if entry.dropped is not None:
                        dropped.setdefault(entry.dropped, []).append(keys[0])
        for generation, names in dropped.items():
            yield _drop_row(generation, names)

    def _begin(self, compacted: bool = False) -> Log:
        """Returns a segment that is about to be written.

        Until it is, nobody knows whether its file is there: it counts among the obsolete ones.
        """
        number = self._next
        self._next += 1
        log = Log(self._files, record_framing.OUTBOX, number, floor=number if compacted else 0)
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
            log = self._begin()
            log.append(rows, sync)
            self._obsolete.remove(log.name)
            self._growing = log
            self._logs.append(log)
        else:
            log.append(rows, sync)
        self._unwritten.clear()
        return log


def _drop_row(generation: int, keys: Iterable[bytes]) -> bytes:
    return _DROP.pack(DROP, generation) + b"".join(_KEY.pack(len(key)) + key for key in keys)


def _read(row: bytes, where: str) -> tuple[int, int, list[bytes], bytes]:
    """Reads a row; returns (kind, generation, keys, record).

    An ADD row has generation 0 and one key, a DROP row an empty record. Raises StateDamagedError.
    """
    try:
        if row[0] == ADD:
            _, length = _ADD.unpack_from(row)
            start = _ADD.size + length
            return ADD, 0, [row[_ADD.size : start]], row[start:]
        kind, generation = _DROP.unpack_from(row)
        keys, at = [], _DROP.size
        while at < len(row):
            (length,) = _KEY.unpack_from(row, at)
            keys.append(row[at + _KEY.size : at + _KEY.size + length])
            at += _KEY.size + length
        return kind, generation, keys, b""
    except (struct.error, IndexError) as error:
        raise StateDamagedError(f"not a row: {error}", where, "move the file aside") from error
