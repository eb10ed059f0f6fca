"""The envelope and its codec, written by hand for the messages of `bb_core.proto`.

An envelope is decoded before anybody trusts it, so sizes are checked before anything is stored, and the
payload stays in the bytes that arrived. Where protobuf is pure Python, this is some twenty times faster.
`encode` writes the bytes that a protobuf serializer writes; `decode` takes fields in any order, packed or
not, repeated (the last one counts) or unknown (skipped, and counted).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from bb_edge.ir.varint import encoded as _v
from bb_edge.wire.caps import EnvelopeCaps, beyond
from bb_edge.wire.envelope_fields import (
    Strays,
    ack_epoch,
    epoch_field,
    hash_field,
    one_stray,
    read_failure,
    read_report,
    recurring,
    skip,
    span,
    varint,
    write_report,
)
from bb_edge.wire.envelope_fills import SITE_ENDS, Said, check_site_cap, form_of, parse_fill
from bb_edge.wire.envelope_records import (
    NONE,
    REQUEST,
    RESPONSE,
    SCHEMA_VERSION,
    Ack,
    Envelope,
    EnvelopeError,
    EnvelopeErrorKind,
    Failure,
    Fill,
    RttReport,
)

__all__ = [
    "NONE",
    "REQUEST",
    "RESPONSE",
    "SCHEMA_VERSION",
    "Ack",
    "Envelope",
    "EnvelopeError",
    "EnvelopeErrorKind",
    "Fill",
    "RttReport",
    "encode",
    "decode",
    "repeated",
]

# One byte: field << 3 | wire type. Two bytes from field 16 on, as varints: 102 << 3 | 0 = 816 = B0 06, …
_SEQ, _ACK, _BASE, _FAILURE = b"\xb0\x06", b"\xba\x06", b"\xc0\x06", b"\xca\x06"


# --- out ----------------------------------------------------------------------------------------------------


def encode(envelope: Envelope, with_fills: bool = True) -> bytes:
    """Returns the envelope's protobuf bytes, with the fields in the order of their numbers.

    Without the fills, it is what follows a body (`body_bytes.shared_body`).
    """
    parts: list[bytes | memoryview] = []
    add = parts.append
    for address in envelope.dest_addresses:
        add(b"\x0a" + _v(len(address)) + address)
    for fill in envelope.fills if with_fills else ():
        suffix, size = fill.dest_suffix, len(fill.payload)
        head = b"\x0a" + _v(len(suffix)) + suffix if suffix else b""
        if size:
            head += b"\x12" + _v(size)
        tail = b"\x18\x01" if fill.trigger_only else b""
        if fill.type_hash:
            tail += hash_field(fill.type_hash)
        parts += (b"\x12" + _v(len(head) + size + len(tail)) + head, fill.payload, tail)
    if envelope.kind or envelope.wire_req_id:
        body = b"\x08" + _v(envelope.kind) if envelope.kind else b""
        if envelope.wire_req_id:
            body += b"\x10" + _v(envelope.wire_req_id)
        add(b"\x1a" + _v(len(body)) + body)
    if envelope.remaining_deadline_ns:
        add(b"\x20" + _v(envelope.remaining_deadline_ns))
    for report in envelope.rtt_reports:
        body = write_report(report)
        add(b"\x2a" + _v(len(body)) + body)
    if envelope.src_peer:
        add(b"\x32" + _v(len(envelope.src_peer)) + envelope.src_peer)
    if envelope.schema_version:
        add(b"\x38" + _v(envelope.schema_version))
    for address in envelope.src_addresses:
        add(b"\x42" + _v(len(address)) + address)
    if envelope.epoch:
        add(epoch_field(envelope.epoch))
    if envelope.seq:
        add(_SEQ + _v(envelope.seq))
    for ack in envelope.acks:
        body = _ack(ack)
        add(_ACK + _v(len(body)) + body)
    if envelope.base:
        add(_BASE + _v(envelope.base))
    if envelope.failure is not None:
        body = envelope.failure.encoded()
        add(_FAILURE + _v(len(body)) + body)
    return b"".join(parts)


def repeated(encoded: bytes, remaining_deadline_ns: int) -> bytes:
    """Returns the bytes of an envelope that is sent again, with what now remains of its deadline.

    A remaining deadline of 0 leaves the bytes as they are. Of a repeated scalar the last one counts, so the
    new value is appended instead of encoding anew.
    """
    return encoded + b"\x20" + _v(remaining_deadline_ns) if remaining_deadline_ns else encoded


def _ack(ack: Ack) -> bytes:
    body = ack_epoch(ack.epoch)
    if ack.up_to:
        body += b"\x10" + _v(ack.up_to)
    if ack.also:
        numbers = b"".join([_v(number) for number in ack.also])
        body += b"\x1a" + _v(len(numbers)) + numbers
    return body


# --- in: bytes that nobody trusts yet -----------------------------------------------------------------------

# Payloads up to this size are copied out of the envelope: a view would cost more than the copy, and keep the
# whole envelope in memory.
_COPY_BELOW = 512


def _span(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """Reads a length as `span` does; those of one and two bytes by itself."""
    if pos < end and data[pos] < 0x80:
        stop = pos + 1 + data[pos]
        if stop <= end:
            return pos + 1, stop
    elif pos + 1 < end and data[pos + 1] < 0x80:
        stop = pos + 2 + data[pos] + (data[pos + 1] - 1 << 7)
        if stop <= end:
            return pos + 2, stop
    return span(data, pos, end)


_V: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}[\x00\x01])"
"""A varint of 64 bits at most."""
_usual_rest: Final = re.compile(
    rb"(?:\x1a([\x00-\x7f])(\x08([\x01\x02])\x10%b))?(?:\x20%b)?\x38\x01\xa8\x06%b\xb0\x06%b"
    rb"(?:\xba\x06([\x00-\x7f])(\x08%b\x10%b))?\Z" % ((_V,) * 6)
).match
"""What stands behind the fills of most envelopes, found in C: correlation, deadline, version, epoch, seq, and
one ack, in the order in which `encode` writes them.

There is nothing else, and of what a cap counts only the one ack that every cap allows.
"""


def decode(data: bytes | bytearray | memoryview, caps: EnvelopeCaps) -> Envelope:
    """Parses an envelope; large payloads are views of `data`, or of a copy where it may be written to.

    Raises EnvelopeError and nothing else, whatever the bytes are, in time linear in their number.
    """
    end = len(data) if not isinstance(data, memoryview) else data.nbytes
    if end > caps.total_bytes:
        raise beyond(caps, "total_bytes", EnvelopeErrorKind.TOO_LARGE, end)
    if not isinstance(data, bytes) and (isinstance(data, bytearray) or not _is_fixed(data)):
        data = bytes(data)
    fills: list[Fill] = []
    kind = wire_req_id = deadline = epoch = seq = base = version = 0
    src_peer = b""
    sources: list[bytes] = []
    destinations: list[bytes] = []
    acks: list[Ack] = []
    reports: list[RttReport] = []
    failure: Failure | None = None
    strays = [caps.stray_fields]
    # The eight fields that count once may be repeated, as far as stray fields go.
    single = 8 + caps.stray_fields
    pos = 0
    while pos < end and data[pos] == 0x12:  # fills, which come first as a rule
        pos, stop = _span(data, pos + 1, end)
        if len(fills) >= caps.fills:
            raise beyond(caps, "fills", EnvelopeErrorKind.TOO_MANY_FILLS)
        fills.append(_fill(data, pos, stop, caps, strays))
        pos = stop
    usual = _usual_rest(data, pos)
    if usual is not None:
        found = _usual(usual.groups(), fills)
        if found is not None:
            return found
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            if pos < end and data[pos] < 0x80:  # fields from 16 on, four in most envelopes
                tag += data[pos] - 1 << 7
                pos += 1
            else:
                tag, pos = varint(data, pos - 1, end)
        if tag == 0x12:
            pos, stop = _span(data, pos, end)
            if len(fills) >= caps.fills:
                raise beyond(caps, "fills", EnvelopeErrorKind.TOO_MANY_FILLS)
            fills.append(_fill(data, pos, stop, caps, strays))
            pos = stop
        elif tag in _SCALARS:
            single -= 1
            if pos < end and data[pos] < 0x80:
                value = data[pos]
                pos += 1
            elif tag == 808:
                value, pos = recurring(data, pos, end)
            else:
                value, pos = varint(data, pos, end)
            if tag == 816:
                seq = value
            elif tag == 808:
                epoch = value
            elif tag == 0x38:
                version = value & 0xFFFFFFFF
            elif tag == 0x20:
                deadline = value
            else:
                base = value
        elif tag == 826:
            pos, stop = _span(data, pos, end)
            if len(acks) >= caps.acks:
                raise beyond(caps, "acks", EnvelopeErrorKind.TOO_MANY_ACKS)
            acks.append(_decode_ack(data, pos, stop, caps, strays))
            pos = stop
        elif tag == 0x1A:
            pos, stop = _span(data, pos, end)
            single -= 1
            kind, wire_req_id = _correlation(data, pos, stop, strays, kind, wire_req_id)
            pos = stop
        elif tag in (0x42, 0x0A):
            pos, stop = _span(data, pos, end)
            addresses = sources if tag == 0x42 else destinations
            if len(addresses) >= caps.addresses:
                raise beyond(caps, "addresses", EnvelopeErrorKind.TOO_MANY_ADDRESSES)
            if stop - pos > caps.address_bytes:
                raise beyond(caps, "address_bytes", EnvelopeErrorKind.ADDRESS_TOO_LARGE, stop - pos)
            addresses.append(bytes(data[pos:stop]))
            pos = stop
        elif tag == 0x32:
            pos, stop = _span(data, pos, end)
            single -= 1
            if stop - pos > caps.src_peer_bytes:
                raise beyond(caps, "src_peer_bytes", EnvelopeErrorKind.SRC_PEER_TOO_LARGE, stop - pos)
            src_peer = bytes(data[pos:stop])
            pos = stop
        elif tag == 0x2A:
            pos, stop = _span(data, pos, end)
            if len(reports) >= caps.rtt_reports:
                raise beyond(caps, "rtt_reports", EnvelopeErrorKind.TOO_MANY_RTT_REPORTS)
            reports.append(read_report(data, pos, stop, strays))
            pos = stop
        elif tag == 842:
            single -= 1
            failure, pos = read_failure(data, *_span(data, pos, end), strays, failure)
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
        if single < 0:
            raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS, "repeated")
    if version > SCHEMA_VERSION:
        raise EnvelopeError(
            EnvelopeErrorKind.UNSUPPORTED_VERSION, f"{version}, this node reads {SCHEMA_VERSION}"
        )
    if base > seq:
        raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"base {base} above seq {seq}")
    return Envelope(
        fills,
        kind,
        wire_req_id,
        deadline,
        src_peer,
        tuple(sources),
        tuple(destinations),
        epoch,
        seq,
        tuple(acks),
        base,
        version,
        tuple(reports),
        failure,
    )


def _usual(groups: tuple[Any, ...], fills: list[Fill]) -> Envelope | None:
    """Returns the envelope of what `_usual_rest` has found; None where a length does not fit its message."""
    size, asked, said_kind, said_id, left, said_epoch, said_seq, ack_size, said_ack, acked, up_to = groups
    kind = wire_req_id = 0
    if asked is not None:
        if size[0] != len(asked):
            return None
        kind, wire_req_id = said_kind[0], _number(said_id)
    acks: tuple[Ack, ...] = ()
    if said_ack is not None:
        if ack_size[0] != len(said_ack):
            return None
        acks = (Ack(_epoch(acked), up_to[0] if len(up_to) == 1 else _number(up_to)),)
    return Envelope(
        fills,
        kind,
        wire_req_id,
        0 if left is None else _number(left),
        b"",
        (),
        (),
        _epoch(said_epoch),
        said_seq[0] if len(said_seq) == 1 else _number(said_seq),
        acks,
    )


def _number(encoded: bytes) -> int:
    """Returns the number of a varint of ten bytes at most, in a few steps for all of them."""
    size = len(encoded)
    if size == 1:
        return encoded[0]
    bits = int.from_bytes(encoded, "little")
    # Of lanes of 8 bits the lower 7, of two lanes 14, of four 28, of eight 56.
    bits = bits & 0x7F007F007F007F007F | (bits & 0x7F007F007F007F007F00) >> 1
    bits = bits & 0x3FFF00003FFF00003FFF | (bits & 0x3FFF00003FFF0000) >> 2
    bits = bits & 0xFFFFFFF000000000FFFFFFF | (bits & 0xFFFFFFF00000000) >> 4
    return bits if size <= 8 else bits & 0xFFFFFFFFFFFFFF | bits >> 64 << 56


_epoch: Final = lru_cache(maxsize=256)(_number)
"""`_number` for those that come again."""


def _is_fixed(view: memoryview) -> bool:
    """Whether bytes are taken as they are, and nobody writes to them."""
    return view.readonly and view.format == "B" and view.c_contiguous


_SCALARS = frozenset({0x20, 0x38, 808, 816, 832})


def _fill(data: bytes | memoryview, pos: int, end: int, caps: EnvelopeCaps, strays: Strays) -> Fill:
    """Reads a fill; what stands around its payload is compared with what a known one has there."""
    said: Said | None = None
    known = form_of(end - pos << 8 | data[pos + SITE_ENDS]) if end - pos > SITE_ENDS else None
    if known is not None:
        head, tail, around = known
        start, stop = pos + len(head), end - len(tail)
        if data[pos:start] == head and data[stop:end] == tail and len(around[0]) <= caps.suffix_bytes:
            said = around
    if said is None:
        start, stop, said = parse_fill(data, pos, end, caps, strays)
    suffix, trigger_only, type_hash, route = said
    size = stop - start
    if size <= _COPY_BELOW and size <= caps.fill_bytes:
        return Fill(suffix, bytes(data[start:stop]), trigger_only, type_hash, route)
    if size > caps.fill_bytes:
        check_site_cap(route, size, caps)
    return Fill(suffix, memoryview(data)[start:stop], trigger_only, type_hash, route)


def _correlation(
    data: bytes | memoryview, pos: int, end: int, strays: Strays, kind: int, wire_req_id: int
) -> tuple[int, int]:
    """Reads a correlation, merged into what an earlier occurrence said, as protobuf does."""
    fields = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = varint(data, pos - 1, end)
        fields += 1
        if fields > 2:
            one_stray(strays)
        if tag == 0x10:
            if pos < end and data[pos] < 0x80:
                wire_req_id = data[pos]
                pos += 1
            else:
                wire_req_id, pos = varint(data, pos, end)
        elif tag == 0x08:
            if pos < end and data[pos] < 0x80:
                kind = data[pos]
                pos += 1
            else:
                kind, pos = varint(data, pos, end)
            if kind > RESPONSE:
                raise EnvelopeError(EnvelopeErrorKind.UNKNOWN_CORRELATION, f"{kind}")
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
    return kind, wire_req_id


def _decode_ack(data: bytes | memoryview, pos: int, end: int, caps: EnvelopeCaps, strays: Strays) -> Ack:
    epoch = up_to = 0
    also: list[int] = []
    fields = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = varint(data, pos - 1, end)
        fields += 1
        if fields > 3 and tag != 0x18:
            one_stray(strays)
        if tag == 0x08:
            epoch, pos = recurring(data, pos, end)
        elif tag == 0x10:
            if pos < end and data[pos] < 0x80:
                up_to = data[pos]
                pos += 1
            else:
                up_to, pos = varint(data, pos, end)
        elif tag in (0x18, 0x1A):
            pos, stop = _span(data, pos, end) if tag == 0x1A else (pos, pos + 1)
            while pos < stop:
                number, pos = varint(data, pos, stop if tag == 0x1A else end)
                if len(also) >= caps.ack_numbers:
                    raise beyond(caps, "ack_numbers", EnvelopeErrorKind.TOO_MANY_ACK_NUMBERS)
                also.append(number)
        else:
            one_stray(strays)
            pos = skip(data, pos, end, tag)
    return Ack(epoch, up_to, tuple(also))
