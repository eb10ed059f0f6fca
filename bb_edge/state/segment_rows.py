"""The rows of the outbox's segments: one of kind ADD adds a record, one of kind DROP names dropped keys."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from bb_edge.state.errors import StateDamagedError

ADD: Final = 1
DROP: Final = 2
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
