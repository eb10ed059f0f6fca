"""Fields of envelopes: numbers of any length, what nobody knows, and the messages that few envelopes have.

`envelope.py` reads numbers of one and two bytes by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from bb_edge.ir.varint import encoded as _v
from bb_edge.wire.envelope_records import EnvelopeError, EnvelopeErrorKind, Failure, RttReport

_U64 = 0xFFFFFFFFFFFFFFFF

Strays: TypeAlias = list[int]
"""One number: how many more fields may come that only cost time, unknown ones, and scalars beyond their first
occurrence. A list, because a class of its own would be a call for each envelope.
"""


def one_stray(left: Strays) -> None:
    """Counts one; EnvelopeError where there are too many."""
    left[0] -= 1
    if left[0] < 0:
        raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS)


def varint(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """Reads a varint as protobuf does; returns (value, place of the next byte).

    Overlong forms pass, more than 64 bits do not.
    """
    value = shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        if byte < 0x80:
            value |= byte << shift
            if value > _U64:
                raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"a varint beyond 64 bits before byte {pos}")
            return value, pos
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"a varint beyond 10 bytes before byte {pos}")
    raise EnvelopeError(EnvelopeErrorKind.TRUNCATED, f"inside a varint at byte {pos}")


@lru_cache(maxsize=256)
def _met(encoded: bytes) -> tuple[int, int]:
    """The value and the size of the varint that up to eight bytes begin with; size 0 for a longer one."""
    value = 0
    for place, byte in enumerate(encoded):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, place + 1
    return 0, 0


def recurring(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """`varint` for long numbers that come again: epochs, hashes of types, what aligns a payload."""
    value, size = _met(bytes(data[pos : pos + 8 if pos + 8 < end else end]))
    return (value, pos + size) if size else varint(data, pos, end)


def span(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """Reads a length at `pos`; returns the range of the field that follows as (first byte, byte after it)."""
    size, pos = varint(data, pos, end)
    stop = pos + size
    if stop > end:
        raise EnvelopeError(
            EnvelopeErrorKind.TRUNCATED, f"{size} bytes announced at byte {pos}, {end - pos} are there"
        )
    return pos, stop


def skip(data: bytes | memoryview, pos: int, end: int, tag: int) -> int:
    """Returns the byte after an unknown field. Groups are refused: proto3 writes none."""
    wire_type = tag & 7
    if tag < 8 or tag > 0xFFFFFFFF:
        raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"field number {tag >> 3} before byte {pos}")
    if wire_type == 0:
        return varint(data, pos, end)[1]
    if wire_type == 2:
        return span(data, pos, end)[1]
    if wire_type not in (1, 5):
        raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"wire type {wire_type} before byte {pos}")
    pos += 8 if wire_type == 1 else 4
    if pos > end:
        raise EnvelopeError(EnvelopeErrorKind.TRUNCATED, f"inside a fixed number at byte {end}")
    return pos


@lru_cache(maxsize=256)
def epoch_field(epoch: int) -> bytes:
    """Field 101. Cached: a node has two epochs, and their varints are long."""
    return b"\xa8\x06" + _v(epoch)


@lru_cache(maxsize=256)
def hash_field(type_hash: int) -> bytes:
    """Cached: the types of a program are few."""
    return b"\x20" + _v(type_hash)


@lru_cache(maxsize=256)
def ack_epoch(epoch: int) -> bytes:
    """Cached as `epoch_field` is: most peers have one."""
    return b"\x08" + _v(epoch) if epoch else b""


def write_report(report: RttReport) -> bytes:
    """Returns the fields of the message."""
    values = (
        report.next_hop_site_id,
        report.chain_id,
        report.hop_index,
        report.srtt_ns,
        report.rttvar_ns,
        report.sample_count,
    )
    return b"".join(_v(number << 3) + _v(value) for number, value in enumerate(values, 1) if value)


def read_report(data: bytes | memoryview, pos: int, end: int, strays: Strays) -> RttReport:
    """Reads a report of a round trip."""
    values = [0] * 7
    fields = 0
    while pos < end:
        tag, pos = varint(data, pos, end)
        fields += 1
        if fields > 6:
            one_stray(strays)
        if tag & 7 == 0 and 8 <= tag <= 48:
            values[tag >> 3], pos = varint(data, pos, end)
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
    values[3] &= 0xFFFFFFFF
    return RttReport(*values[1:])


def read_failure(
    data: bytes | memoryview, pos: int, end: int, strays: Strays, before: Failure | None
) -> tuple[Failure, int]:
    """Reads a failure, merged into what an earlier occurrence said, as protobuf does."""
    code, detail = (0, "") if before is None else (before.code, before.detail)
    fields = 0
    while pos < end:
        tag, pos = varint(data, pos, end)
        fields += 1
        if fields > 2:
            one_stray(strays)
        if tag == 0x08:
            code, pos = varint(data, pos, end)
        elif tag == 0x12:
            start, pos = span(data, pos, end)
            detail = Failure.read_detail(bytes(data[start:pos]))
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
    return Failure(code & 0xFFFFFFFF, detail), end
