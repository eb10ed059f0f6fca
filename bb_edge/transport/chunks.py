"""Cuts envelopes above a broker's packet limit into chunks, and joins chunks again. No IO.

Chunks travel on a topic level of their own. A chunk is a header of 21 bytes, big-endian, and its part of
the envelope:

    version u8 = 1 · transfer u64 · total bytes u32 · index u32 · count u32

Every chunk but the last holds ``ceil(total / count)`` bytes, so its header gives the position and length of a
chunk, and a chunk that disagrees with the first one of its transfer is refused. The sender numbers its
transfers, from a random number at each connection. The topic names the sender, and the broker's access rules
keep others off it, so nobody adds to the transfer of another.

Everything is bounded before it is stored: the transfers at a time, their bytes together, the size of one
envelope, half of the bytes for any one sender, and the time that a transfer may make no progress. A chunk
that is refused is counted by reason; the sender's engine repeats an envelope that matters.
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
"""Memory of an empty chunk, in bytes: a `bytes` object and its entry in a dict.

It is charged for each chunk, so that many tiny chunks are bounded too.
"""


class ChunkError(WireError):
    """A chunk is malformed, or above a bound; `reason` is one word, for a counter."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk to be sent."""

    head: bytes
    data: memoryview


def cut(envelope: bytes | memoryview, at_most: int, transfer: int) -> Iterator[Chunk]:
    """Cuts an envelope of at least one byte into chunks that hold at most `at_most` bytes of it each."""
    view = memoryview(envelope)
    total = len(view)
    count = -(-total // at_most)
    stride = -(-total // count)
    # With this stride fewer chunks may be enough; the receiver computes the stride from the count.
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
    parts: dict[int, bytes | memoryview]
    held: int
    touched_ns: int


class Reassembly:
    """Joins chunks to envelopes, within bounds. Sizes are bytes, times monotonic nanoseconds."""

    def __init__(self, at_once: int, max_bytes: int, max_envelope: int, age_ns: int) -> None:
        self._at_once = at_once
        self._max_bytes = max_bytes
        self._max_envelope = max_envelope
        # One sender can always send the largest envelope if its chunks have 512 bytes or more: each then
        # costs at most a quarter of its size in addition.
        self._max_per_peer = max(max_bytes // 2, max_envelope + max_envelope // 4)
        self._age_ns = age_ns
        self._open: OrderedDict[tuple[PeerId, int], _Transfer] = OrderedDict()  # by last use
        self._per_peer: dict[PeerId, int] = {}
        self.bytes_held = 0
        self.expired = 0
        """Transfers that were given up because they made no progress."""

    def __len__(self) -> int:
        return len(self._open)

    def held_by(self, peer: PeerId) -> int:
        """Bytes that the unfinished transfers of one sender take."""
        return self._per_peer.get(peer, 0)

    def add(self, peer: PeerId, data: bytes | memoryview, now_ns: int) -> bytes | None:
        """Takes a chunk, and returns the envelope if this was the last chunk missing, else None.

        A chunk that has come before is ignored. Raises ChunkError with the reason `malformed`, `too_large`
        (the envelope), `inconsistent` (with its transfer, which is given up) or `full`.
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
        mine = self.held_by(peer)
        if self.bytes_held + cost > self._max_bytes or mine + cost > self._max_per_peer:
            self._drop(key)
            raise ChunkError("full", f"{self.bytes_held} bytes of chunks are held, {self._max_bytes} at most")
        if transfer is None:
            if len(self._open) >= self._at_once:
                raise ChunkError(
                    "full", f"{len(self._open)} transfers are under way, {self._at_once} at most"
                )
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
        """Gives up transfers that have made no progress for `age_ns`."""
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
