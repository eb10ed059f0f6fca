"""Records in a file: each with its length, its place and a checksum over both and over which file it is in.

    file  = frame 0 (the header), frame 1, frame 2, …
    frame = length of the body (4 bytes), sequence (4), CRC-32 (4), body

The checksum starts from the file's kind and number and the frame's sequence, so what an older file left in a
reused block of flash is no record of this one. A power cut may tear the frames that were not synced yet:
`parse` ends before the first one that is not whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from bb_edge.state.errors import StateVersionError

VERSION: Final = 1
MAGIC: Final = b"bbstate"
SNAPSHOT: Final = 1
JOURNAL: Final = 2
OUTBOX: Final = 3

FRAME_BYTES: Final = 12
"""What a record takes on disk beyond its own bytes."""
LOOKED_AHEAD: Final = 16
"""How many sequence numbers beyond a broken frame are looked for, to tell damage from a torn end."""
MAX_FINDS: Final = 1024
"""Places per number at which a look-ahead tries the checksum."""

_FRAME = struct.Struct(">III")
_PLACE = struct.Struct(">BQI")
_HEADER = struct.Struct(">7sBBQQ")
HEADER_BYTES: Final = FRAME_BYTES + _HEADER.size


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a file holds.

    `length` is how far it is whole (0 where not even the header is), `floor` the header's, `lost` the bytes
    beyond `length`; `damaged` says that whole records follow there: no power cut leaves that behind.
    """

    bodies: tuple[bytes, ...]
    length: int
    floor: int
    lost: int
    damaged: bool


def header(kind: int, number: int, floor: int = 0) -> bytes:
    """The first frame of a file. Files of the same kind whose number is below `floor` are obsolete."""
    return _frame(kind, number, 0, _HEADER.pack(MAGIC, VERSION, kind, number, floor))


def frames(kind: int, number: int, first: int, bodies: Iterable[bytes]) -> bytes:
    """Frames with the sequence numbers from `first` on."""
    return b"".join(_frame(kind, number, first + i, body) for i, body in enumerate(bodies))


def framed_bytes(bodies: Sequence[bytes]) -> int:
    """How long `frames` of these are."""
    return sum(map(len, bodies)) + FRAME_BYTES * len(bodies)


def parse(data: bytes, kind: int, number: int, where: str) -> Parsed:
    """The records of a file, up to the first that is not whole. StateVersionError for a newer format."""
    bodies: list[bytes] = []
    at = floor = 0
    first = _whole(data, 0, kind, number, 0)
    if first is not None and first.startswith(MAGIC):
        version = first[len(MAGIC)] if len(first) > len(MAGIC) else 0
        if version > VERSION:
            raise StateVersionError(
                f"written in version {version} of the format, this is version {VERSION}",
                where,
                "update this node, or give it another state folder",
            )
        if version == VERSION and len(first) == _HEADER.size:
            floor = _HEADER.unpack(first)[-1]
            at = HEADER_BYTES
            while (body := _whole(data, at, kind, number, len(bodies) + 1)) is not None:
                bodies.append(body)
                at += FRAME_BYTES + len(body)
    lost = len(data) - at
    damaged = lost > 0 and _more_follows(data, at, kind, number, len(bodies) + 1 if at else 0)
    return Parsed(tuple(bodies), at, floor, lost, damaged)


def _frame(kind: int, number: int, sequence: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body), sequence, _checksum(kind, number, sequence, body)) + body


def _checksum(kind: int, number: int, sequence: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_PLACE.pack(kind, number, sequence)))


def _whole(data: bytes, at: int, kind: int, number: int, sequence: int) -> bytes | None:
    """The body of the frame that stands there; None where there is none of that number, or not all of it."""
    if at + FRAME_BYTES > len(data):
        return None
    length, found, checksum = _FRAME.unpack_from(data, at)
    end = at + FRAME_BYTES + length
    if found != sequence or end > len(data):
        return None
    body = memoryview(data)[at + FRAME_BYTES : end]
    return bytes(body) if _checksum(kind, number, sequence, body) == checksum else None


def _more_follows(data: bytes, start: int, kind: int, number: int, sequence: int) -> bool:
    for later in range(sequence + 1, sequence + 1 + LOOKED_AHEAD):
        pattern, at = later.to_bytes(4, "big"), start + 4
        for _ in range(MAX_FINDS):
            at = data.find(pattern, at + 1)
            if at < 0:
                break
            if _whole(data, at - 4, kind, number, later) is not None:
                return True
    return False
