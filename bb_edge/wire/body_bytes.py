"""The bytes of a body: large fills as the envelopes to all their peers begin with, their numbers aligned.

A receiver that reads an envelope into a buffer of its own takes the numbers of a tensor from there, without a
copy, if they begin at a multiple of their size. An envelope of another sender is copied once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bb_edge.ir.tensors import numbers_at
from bb_edge.ir.types import TENSOR_HASHES
from bb_edge.ir.varint import encoded as varint
from bb_edge.wire.bodies import SHARED_FROM
from bb_edge.wire.envelope_records import Fill

_ALIGNMENT: Final = 8
"""The largest element of a tensor, in bytes."""
_PADDINGS: Final = (b"", *(b"\x18" + b"\x80" * more + b"\x00" for more in range(10)))
"""`trigger_only = false` in 2 to 11 bytes, which every reader of protobuf takes."""


def shared_body(fills: Sequence[Fill]) -> bytes:
    """Returns large fills as the bytes that the envelopes to all their peers begin with; b"" for small ones.

    The payloads become views of it, so that they are in memory once. The numbers of a tensor begin at a
    multiple of 8 bytes.
    """
    if sum([len(fill.payload) for fill in fills]) < SHARED_FROM:
        return b""
    parts: list[bytes | memoryview] = []
    at, places = 0, []
    for fill in fills:
        before, after = _around(fill, at)
        at += len(before)
        places.append(at)
        at += len(fill.payload) + len(after)
        parts += (before, fill.payload, after)
    body = b"".join(parts)
    view = memoryview(body)
    for fill, place in zip(fills, places, strict=True):
        fill.payload = view[place : place + len(fill.payload)]
    return body


def _around(fill: Fill, at: int) -> tuple[bytes, bytes]:
    """What stands before the payload of a fill that begins at `at`, and after it."""
    suffix, size = fill.dest_suffix, len(fill.payload)
    head = b"\x0a" + varint(len(suffix)) + suffix if suffix else b""
    announced = b"\x12" + varint(size) if size else b""
    after = b"\x18\x01" if fill.trigger_only else b""
    if fill.type_hash:
        after += b"\x20" + varint(fill.type_hash)
    aligned = size >= SHARED_FROM and fill.type_hash in TENSOR_HASHES and not fill.trigger_only
    numbers = numbers_at(fill.payload) if aligned else 0
    before = b""
    for padding in _PADDINGS:
        length = len(head) + len(padding) + len(announced) + size + len(after)
        before = b"".join((b"\x12", varint(length), head, padding, announced))
        if not numbers or (at + len(before) + numbers) % _ALIGNMENT == 0:
            break
    return before, after
