"""The bytes of a body: large fills as the envelopes to all their peers begin with, their numbers aligned.

A receiver that reads an envelope into a buffer of its own takes the numbers of a tensor from there, without a
copy, if they begin at a multiple of their size. An envelope of another sender is copied once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from bb_edge.ir.tensors import Pieces, numbers_at
from bb_edge.ir.types import TENSOR_HASHES
from bb_edge.ir.varint import encoded as varint
from bb_edge.wire.bodies import SHARED_FROM
from bb_edge.wire.envelope_records import Fill

_ALIGNMENT: Final = 8
"""The largest element of a tensor, in bytes."""
_PADDINGS: Final = (b"", *(b"\x18" + b"\x80" * more + b"\x00" for more in range(10)))
"""`trigger_only = false` in 2 to 11 bytes, which every reader of protobuf takes."""
_BY_NEED: Final = tuple((_PADDINGS[(0, 8, *range(1, 7))[need]], *_PADDINGS) for need in range(_ALIGNMENT))
"""Paddings in the order in which they are tried, by the bytes that seem to lack; as a rule the first fits."""


def shared_body(fills: Sequence[Fill], payloads: Sequence[Pieces]) -> bytes:
    """Returns the bytes that the envelopes with these fills begin with, to whatever peer.

    Here the payloads are copied, and here alone: those of the fills become views of what is returned, so that
    they are in memory once. The numbers of a large tensor begin at a multiple of 8 bytes.
    """
    parts: list[bytes | memoryview] = []
    at, places = 0, []
    for fill, payload in zip(fills, payloads, strict=True):
        size, pieces = payload
        before, after = _around(fill, payload, at)
        at += len(before)
        places.append((at, at + size))
        at += size + len(after)
        parts += (before, *pieces, after)
    body = b"".join(parts)
    view = memoryview(body)
    for fill, (start, stop) in zip(fills, places, strict=True):
        fill.payload = view[start:stop]
    return body


def _around(fill: Fill, payload: Pieces, at: int) -> tuple[bytes, bytes]:
    """What stands before the payload of a fill that begins at `at`, and after it."""
    size, pieces = payload
    numbers = 0
    if size >= SHARED_FROM and fill.type_hash in TENSOR_HASHES and not fill.trigger_only:
        numbers = len(pieces[0]) if len(pieces) > 1 else numbers_at(pieces[0])
    return _fields(fill.dest_suffix, fill.trigger_only, fill.type_hash, size, numbers, at % _ALIGNMENT)


@lru_cache(maxsize=256)
def _fields(
    suffix: bytes, trigger_only: bool, type_hash: int, size: int, numbers: int, at: int
) -> tuple[bytes, bytes]:
    """The fields around a payload of `size` bytes, whose numbers begin at its byte `numbers`; 0: anywhere.

    Cached, because those of one op are the same in each round.
    """
    head = b"\x0a" + varint(len(suffix)) + suffix if suffix else b""
    announced = b"\x12" + varint(size) if size else b""
    after = b"\x18\x01" if trigger_only else b""
    if type_hash:
        after += b"\x20" + varint(type_hash)
    rest = len(head) + len(announced) + size + len(after)
    known = at + 1 + len(head) + len(announced) + numbers
    before = b""
    for padding in _BY_NEED[-(known + len(varint(rest))) % _ALIGNMENT] if numbers else _PADDINGS[:1]:
        length = varint(rest + len(padding))
        before = b"".join((b"\x12", length, head, padding, announced))
        if (known + len(length) + len(padding)) % _ALIGNMENT == 0:
            break
    return before, after
