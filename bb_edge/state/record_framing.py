"""How records stand in a file, so that torn and damaged ones are recognised.

    file   = record 0 (the header), record 1, record 2, …
    record = length of the body (4 bytes), sequence (4), CRC-32 (4), body; integers are big-endian

The checksum covers the file's kind and number, the record's sequence and its body, so bytes that an older
file left in a reused block of flash never pass for a record of this one. A power cut may tear the records
that were not synced yet: `parse` ends before the first one that is not whole.

The header says whose file it is, and how long the file before it was on the medium when this one was begun.
Files of version 1, which say neither, are read. Snapshots that enclose rows of the outbox are of version 3,
and so are journals: each of their records begins with a byte that tells of which kind it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from bb_edge.state.errors import StateVersionError
from bb_edge.wire.cbor import LARGE, Buffer

Body: TypeAlias = bytes | Sequence[Buffer]
"""The body of a record, or its pieces."""

VERSION: Final = 2
ENCLOSING: Final = 3
"""The version of snapshots that have rows of the outbox behind them, and of journals, which may have some
between their records; other files are of `VERSION`."""
BEFORE_OWNERS: Final = 1
"""The version whose files name neither an owner nor the file before them."""
MAGIC: Final = b"bbstate"
SNAPSHOT: Final = 1
JOURNAL: Final = 2
OUTBOX: Final = 3

OVERHEAD_BYTES: Final = 12
"""What a record takes on disk beyond its body."""
LOOKED_AHEAD: Final = 16
"""How many sequence numbers beyond a broken record are looked for, to tell damage from a torn end.

A flipped bit breaks one record, a bad block of flash (a few KiB) a handful: a whole record follows soon."""
MAX_FINDS: Final = 1024
"""Places per number at which a look-ahead tries the checksum.

It bounds the work on a file that holds a pattern everywhere (zeros, say)."""

_RECORD = struct.Struct(">III")
_PLACE = struct.Struct(">BQI")
_OLD_HEADER = struct.Struct(">7sBBQQ")
_HEADER = struct.Struct(">7sBBQQQQBB")
HEADER_BYTES: Final = OVERHEAD_BYTES + _HEADER.size
"""Of a file that names no owner."""


class Owner(NamedTuple):
    """Whose files these are: the node's peer id and a digest of its program, 255 bytes at most each."""

    peer: bytes
    program: bytes


NOBODY: Final = Owner(b"", b"")


class Link(NamedTuple):
    """A file of the same kind, and how many of its bytes were on the medium for sure."""

    number: int
    length: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. Files of its kind whose number is below `floor` are obsolete.

    `before` is the file that it follows, or itself where it replaces all others. `owner` is None where the
    file is of version 1.
    """

    version: int
    floor: int
    owner: Owner | None
    before: Link | None


class Elsewhere(NamedTuple):
    """Whose file a whole header says that this is, where it is that of another kind or number."""

    kind: int
    number: int
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What `parse` found in a file.

    `bodies` are those of the whole records. `length` is the number of bytes up to the end of the last of
    them, 0 where not even the header is whole, and `header` is None then. `lost` are the bytes beyond
    `length`. `damaged` says that whole records follow there, which no power cut leaves behind. `elsewhere`
    is told of a file whose header is whole, and that of another kind or number: somebody put it there.
    """

    bodies: tuple[bytes, ...]
    length: int
    header: Header | None
    lost: int
    damaged: bool
    elsewhere: Elsewhere | None = None


def header(
    kind: int,
    number: int,
    floor: int = 0,
    owner: Owner = NOBODY,
    before: Link | None = None,
    version: int = VERSION,
) -> bytes:
    """Returns the first record of a file; `Header` says what the arguments mean."""
    # A number is below 10**18, so the one after it fits as well, and 0 is free for none.
    link = (0, 0) if before is None else (before.number + 1, before.length)
    peer, program = owner
    fixed = _HEADER.pack(MAGIC, version, kind, number, floor, *link, len(peer), len(program))
    return framed(kind, number, 0, [fixed + peer + program])


def header_bytes(owner: Owner) -> int:
    """Returns how many bytes `header` makes for that owner."""
    return HEADER_BYTES + len(owner.peer) + len(owner.program)


def framed(kind: int, number: int, first: int, bodies: Iterable[bytes]) -> bytes:
    """Returns the bytes of records with the sequence numbers from `first` on."""
    pieces: list[bytes] = []
    for sequence, body in enumerate(bodies, first):
        pieces += (_head(kind, number, sequence, body), body)
    return b"".join(pieces)


def framed_pieces(kind: int, number: int, sequence: int, body: Sequence[Buffer]) -> list[Buffer]:
    """Returns the bytes of one record whose body comes in pieces, which are not copied."""
    checksum = crc32(_PLACE.pack(kind, number, sequence))
    for piece in body:
        checksum = crc32(piece, checksum)
    return [_RECORD.pack(sum(map(len, body)), sequence, checksum), *body]


def framed_whole(
    kind: int, number: int, first: int, bodies: Iterable[Body], before: bytes = b""
) -> list[Buffer]:
    """Returns the bytes of records whose bodies may come in pieces, behind those of `before`.

    Large pieces are not copied, and all between two of them are one.
    """
    found: list[Buffer] = []
    small = bytearray(before)
    for sequence, body in enumerate(bodies, first):
        pieces = (body,) if isinstance(body, bytes) else body
        for piece in framed_pieces(kind, number, sequence, pieces):
            if len(piece) < LARGE:
                small += piece
            else:
                found += (small, piece)  # there is some: each record begins with its head
                small = bytearray()
    if small:
        found.append(small)
    return found


def framed_bytes(bodies: Sequence[Body]) -> int:
    """Returns how many bytes `framed_whole` makes of these bodies."""
    sizes = (len(body) if isinstance(body, bytes) else sum(map(len, body)) for body in bodies)
    return sum(sizes) + OVERHEAD_BYTES * len(bodies)


def parse(data: bytes, kind: int, number: int, where: str) -> Parsed:
    """Reads the records of a file, up to the first that is not whole.

    `where` is the file as errors call it. Raises StateVersionError for a newer format, and nothing else.
    """
    bodies: list[bytes] = []
    at = 0
    first = _whole(data, 0, kind, number, 0)
    found = None if first is None else _header(first, where)
    if first is not None and found is not None:
        at = OVERHEAD_BYTES + len(first)
        while (body := _whole(data, at, kind, number, len(bodies) + 1)) is not None:
            bodies.append(body)
            at += OVERHEAD_BYTES + len(body)
    lost = len(data) - at
    elsewhere = None if at else _elsewhere(data, kind, number, where)
    damaged = (
        lost > 0 and elsewhere is None and _more_follows(data, at, kind, number, len(bodies) + 1 if at else 0)
    )
    return Parsed(tuple(bodies), at, found, lost, damaged, elsewhere)


def _elsewhere(data: bytes, kind: int, number: int, where: str) -> Elsewhere | None:
    """Reads the header of a file of another kind or number; None where there is none that is whole."""
    if len(data) < OVERHEAD_BYTES + _OLD_HEADER.size:
        return None
    _, _, kind_there, number_there, _ = _OLD_HEADER.unpack_from(data, OVERHEAD_BYTES)
    body = _whole(data, 0, kind_there, number_there, 0)
    found = None if body is None or (kind_there, number_there) == (kind, number) else _header(body, where)
    return None if found is None else Elsewhere(kind_there, number_there, found.owner)


def owner_at(data: bytes, kind: int, number: int) -> Owner | None:
    """Returns whose file begins with these bytes; None where that is not said. StateVersionError."""
    first = _whole(data, 0, kind, number, 0)
    found = None if first is None else _header(first, "journal")
    return None if found is None else found.owner


def _header(body: bytes, where: str) -> Header | None:
    """Reads the first record of a file; None where it is not a header. StateVersionError for a newer one."""
    if not body.startswith(MAGIC) or len(body) == len(MAGIC):
        return None
    version = body[len(MAGIC)]
    if version > ENCLOSING:
        raise StateVersionError(
            f"written in version {version} of the format, this is version {ENCLOSING}",
            where,
            "update this node, or give it another state folder",
        )
    if version == BEFORE_OWNERS and len(body) == _OLD_HEADER.size:
        return Header(version, _OLD_HEADER.unpack(body)[-1], None, None)
    if version not in (VERSION, ENCLOSING) or len(body) < _HEADER.size:
        return None
    *_, floor, before, length, peer_size, program_size = _HEADER.unpack_from(body)
    peer_end = _HEADER.size + peer_size
    if len(body) != peer_end + program_size:
        return None
    owner = Owner(body[_HEADER.size : peer_end], body[peer_end:])
    return Header(version, floor, owner, Link(before - 1, length) if before else None)


def _head(kind: int, number: int, sequence: int, body: bytes) -> bytes:
    return _RECORD.pack(len(body), sequence, _checksum(kind, number, sequence, body))


def _checksum(kind: int, number: int, sequence: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_PLACE.pack(kind, number, sequence)))


def _whole(data: bytes, at: int, kind: int, number: int, sequence: int) -> bytes | None:
    """Returns the body of the record at `at`; None where no whole record of that number is there."""
    if at + OVERHEAD_BYTES > len(data):
        return None
    length, number_there, checksum = _RECORD.unpack_from(data, at)
    end = at + OVERHEAD_BYTES + length
    if number_there != sequence or end > len(data):
        return None
    body = memoryview(data)[at + OVERHEAD_BYTES : end]
    return bytes(body) if _checksum(kind, number, sequence, body) == checksum else None


def _more_follows(data: bytes, start: int, kind: int, number: int, sequence: int) -> bool:
    # A file that was grown ends with zeros, gigabytes of them perhaps, and no record begins in those.
    end = len(data.rstrip(b"\0")) + OVERHEAD_BYTES
    for later in range(sequence + 1, sequence + 1 + LOOKED_AHEAD):
        pattern, at = later.to_bytes(4, "big"), start + 4
        for _ in range(MAX_FINDS):
            at = data.find(pattern, at + 1, end)
            if at < 0:
                break
            if _whole(data, at - 4, kind, number, later) is not None:
                return True
    return False
