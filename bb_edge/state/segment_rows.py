"""The rows of the outbox's segments: one of kind ADD adds a record, one of kind DROP names dropped keys.

A journal has rows of kind ADD between its own records, which begin with INPUT.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from bb_edge.state.errors import StateDamagedError
from bb_edge.state.record_framing import Body

ADD: Final = 1
DROP: Final = 2
INPUT: Final = 3
DISCARDED: Final = 0
"""The generation of what was dropped for every snapshot, not by one of them."""

_ADD = struct.Struct(">BH")
_DROP = struct.Struct(">BQ")
_KEY = struct.Struct(">H")


def add_rows(records: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Rows that add records under keys of at most 65,535 bytes."""
    return [_ADD.pack(ADD, len(key)) + key + record for key, record in records]


def drop_row(generation: int, keys: Iterable[bytes]) -> bytes:
    """A row that says which records the snapshot of a generation has dropped."""
    return _DROP.pack(DROP, generation) + b"".join(_KEY.pack(len(key)) + key for key in keys)


def input_rows(records: Iterable[Body]) -> list[Body]:
    """Rows of a journal, for records that may come in pieces."""
    mark = bytes([INPUT])
    return [mark + body if isinstance(body, bytes) else [mark, *body] for body in records]


def split(rows: Sequence[bytes], where: str) -> tuple[tuple[bytes, ...], dict[bytes, bytes]]:
    """Reads the rows of a journal: its own records, and those of the outbox by their keys, in their order.

    Raises StateDamagedError for a row of neither kind.
    """
    inputs: list[bytes] = []
    outbox: dict[bytes, bytes] = {}
    for row in rows:
        if row[:1] == bytes([INPUT]):
            inputs.append(row[1:])
            continue
        kind, _, keys, record = read_row(row, where)
        if kind != ADD:
            raise StateDamagedError(f"a row of kind {kind}", where, "move the file aside")
        outbox[keys[0]] = record
    return tuple(inputs), outbox


def read_row(row: bytes, where: str) -> tuple[int, int, list[bytes], bytes]:
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
