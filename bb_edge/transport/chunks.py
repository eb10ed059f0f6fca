"""Envelopes above a broker's packet limit travel in chunks, on a topic level of their own. No IO.

A chunk is a header of 21 bytes, big-endian, and its part of the envelope:

    version u8 = 1 · transfer u64 · total bytes u32 · index u32 · count u32

Every chunk but the last holds ``ceil(total / count)`` bytes, so each chunk's place and length follow from its
header, and a chunk that disagrees with the first one of its transfer is refused. Transfer numbers are the
sender's, random at each connection; the sender is the one of the topic, so nobody adds to another's transfer.

What comes is bounded before it is kept: transfers at once, their bytes together, one envelope's size, half of
the bytes for any one sender, and the time that a transfer may stand still. What is refused is counted by
reason and leaves nothing behind; the engine's own repetition brings what matters once more.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from bb_edge.ir.errors import WireError
from bb_edge.ir.ids import PeerId

_HEADER = struct.Struct(">BQIII")
HEADER_BYTES = _HEADER.size
VERSION = 1
PER_CHUNK_COST = 128
"""What an empty chunk costs in memory beside its bytes; charged, so that many tiny ones are bounded too."""


class ChunkError(WireError):
    """A chunk that is none, or one beyond the bounds; `reason` is one word for a counter."""

    def __init__(self, reason: str, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk to be sent."""

    head: bytes
    data: memoryview


def cut(envelope: bytes | memoryview, at_most: int, transfer: int) -> Iterator[Chunk]:
    """The chunks of an envelope of at least one byte; each holds `at_most` bytes of it or fewer."""
    view = memoryview(envelope)
    total = len(view)
    count = -(-total // at_most)
    stride = -(-total // count)
    # With this stride fewer chunks may do: the receiver computes the stride from the count that is said.
    while count > 1 and (count - 1) * stride >= total:
        count -= 1
        stride = -(-total // count)
    for index in range(count):
        part = view[index * stride : (index + 1) * stride]
        yield Chunk(_HEADER.pack(VERSION, transfer, total, index, count), part)


@dataclass(slots=True)
class _Transfer:
    total: int
    count: int
    stride: int
    parts: dict[int, bytes]
    held: int
    touched_ns: int


class Reassembly:
    """Joins chunks; everything is bounded, see above. Sizes are bytes, times monotonic nanoseconds."""

    def __init__(self, at_once: int, max_bytes: int, max_envelope: int, age_ns: int) -> None:
        self._at_once = at_once
        self._max_bytes = max_bytes
        self._max_envelope = max_envelope
        # One sender may always bring the largest envelope, in chunks of some 500 bytes or more.
        self._max_per_peer = max(max_bytes // 2, max_envelope + max_envelope // 4)
        self._age_ns = age_ns
        self._open: OrderedDict[tuple[PeerId, int], _Transfer] = OrderedDict()  # by last use
        self._per_peer: dict[PeerId, int] = {}
        self.bytes_held = 0
        self.expired = 0
        """Transfers that stood still for too long, and were given up."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, peer: PeerId, data: bytes, now_ns: int) -> bytes | None:
        """Takes a chunk; the envelope where it was the last one missing. A chunk that is there is ignored.

        Raises ChunkError: `malformed`, `too_large` (the envelope), `inconsistent` (with its transfer, which
        is given up), `full`.
        """
        self.expire(now_ns)
        if len(data) < HEADER_BYTES:
            raise ChunkError("malformed", f"a chunk of {len(data)} bytes")
        version, number, total, index, count = _HEADER.unpack_from(data)
        if version != VERSION or not 0 < count <= total or index >= count:
            raise ChunkError(
                "malformed", f"chunk {index} of {count}, {total} bytes in all, version {version}"
            )
        if total > self._max_envelope:
            raise ChunkError("too_large", f"{total} bytes in chunks, {self._max_envelope} at most")
        stride = -(-total // count)
        if (count - 1) * stride >= total:
            raise ChunkError("malformed", f"{count} chunks for {total} bytes")
        expected = stride if index < count - 1 else total - stride * (count - 1)
        key = (peer, number)
        transfer = self._open.get(key)
        if len(data) - HEADER_BYTES != expected or (
            transfer is not None and (transfer.total, transfer.count) != (total, count)
        ):
            self._drop(key)
            raise ChunkError(
                "inconsistent", f"chunk {index} of {count} with {len(data) - HEADER_BYTES} bytes"
            )
        if transfer is not None and index in transfer.parts:
            return None
        cost = expected + PER_CHUNK_COST
        mine = self._per_peer.get(peer, 0)
        if self.bytes_held + cost > self._max_bytes or mine + cost > self._max_per_peer:
            self._drop(key)
            raise ChunkError("full", f"{self.bytes_held} bytes of chunks wait already")
        if transfer is None:
            if len(self._open) >= self._at_once:
                raise ChunkError("full", f"{len(self._open)} transfers are under way already")
            transfer = self._open[key] = _Transfer(total, count, stride, {}, 0, now_ns)
        transfer.parts[index] = data[HEADER_BYTES:]
        transfer.held += cost
        transfer.touched_ns = now_ns
        self._open.move_to_end(key)
        self.bytes_held += cost
        self._per_peer[peer] = mine + cost
        if len(transfer.parts) < count:
            return None
        self._drop(key)
        parts = transfer.parts
        return b"".join(parts[i] for i in range(count))

    def expire(self, now_ns: int) -> None:
        """Gives up what stood still for too long."""
        while self._open:
            key, transfer = next(iter(self._open.items()))
            if now_ns - transfer.touched_ns < self._age_ns:
                return
            self._drop(key)
            self.expired += 1

    def _drop(self, key: tuple[PeerId, int]) -> None:
        transfer = self._open.pop(key, None)
        if transfer is None:
            return
        self.bytes_held -= transfer.held
        left = self._per_peer[key[0]] - transfer.held
        if left:
            self._per_peer[key[0]] = left
        else:
            del self._per_peer[key[0]]
