"""Unsigned LEB128 varints as in multiformats, strict in both directions."""

from __future__ import annotations

from bb_edge.ir.errors import BBError


class VarintError(BBError):
    """A varint that is truncated, overlong or too large, or a negative number."""


_ONE_BYTE = tuple(bytes((n,)) for n in range(0x80))
_MORE = tuple(int.from_bytes(b"\x80" * (size - 1), "little") for size in range(11))
"""The bits that say that bytes follow, of a varint of so many."""


def encode(value: int) -> bytes:
    """Returns the shortest form of a number from 0 on. VarintError for a negative one."""
    if value < 0x80:
        if value < 0:
            raise VarintError(f"{value} is negative", "varint")
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    size = (value.bit_length() + 6) // 7
    if size <= 10:
        # Groups of 7 bits move to lanes of 8, all at once: halves of 56 bits, of 28, of 14.
        value = value & 0xFFFFFFFFFFFFFF | value >> 56 << 64
        value = value & 0x3FFF000000000FFFFFFF | (value & 0xFFFFFFF0000000) << 4
        value = value & 0x3FFF00003FFF00003FFF | (value & 0xFFFC0000FFFC000) << 2
        value = value & 0x7F007F007F007F007F | (value & 0x3F803F803F803F803F80) << 1
        return (value | _MORE[size]).to_bytes(size, "little")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Known(dict[int, bytes]):
    """Encoded numbers; those that are not kept are encoded anew each time."""

    __slots__ = ()

    def __missing__(self, value: int) -> bytes:
        return encode(value)


encoded = _Known({n: encode(n) for n in range(1 << 10)}).__getitem__
"""`encode` without a call of Python code for the numbers below 1,024: tags, lengths, dimensions."""


def decode(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int]:
    """Returns the number at `offset` and the offset after it.

    Raises VarintError where the varint is truncated, overlong (a last byte of zero) or has more than
    64 bits.
    """
    value = shift = 0
    start, end = offset, len(data)
    while True:
        if offset >= end:
            raise VarintError("truncated", f"varint at byte {start}")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise VarintError("overlong", f"varint at byte {start}")
            if value >> 64:
                raise VarintError("more than 64 bits", f"varint at byte {start}")
            return value, offset
        shift += 7
        if shift >= 64:
            raise VarintError("more than 64 bits", f"varint at byte {start}")
