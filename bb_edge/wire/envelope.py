"""The envelope and its codec, written by hand for the messages of `bb_core.proto`.

An envelope is decoded before anybody trusts it, so sizes are checked before anything is stored, and the
payload stays in the bytes that arrived. Where protobuf is pure Python, this is some twenty times faster.
`encode` writes the bytes that a protobuf serializer writes; `decode` takes fields in any order, packed or
not, repeated (the last one counts) or unknown (skipped, and counted).
"""

from __future__ import annotations

from functools import lru_cache

from bb_edge.ir.address import Route, route_of
from bb_edge.ir.varint import encoded as _v
from bb_edge.wire.caps import EnvelopeCaps
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

# One byte: field << 3 | wire type. Two bytes from field 16 on, as varints: 101 << 3 | 0 = 808 = A8 06, …
_EPOCH, _SEQ, _ACK, _BASE, _FAILURE = b"\xa8\x06", b"\xb0\x06", b"\xba\x06", b"\xc0\x06", b"\xca\x06"


@lru_cache(maxsize=256)
def _epoch_field(epoch: int) -> bytes:
    """Cached: a node has two epochs, and their varints are long."""
    return _EPOCH + _v(epoch)


@lru_cache(maxsize=256)
def _hash_field(type_hash: int) -> bytes:
    return b"\x20" + _v(type_hash)


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
            tail += _hash_field(fill.type_hash)
        parts += (b"\x12" + _v(len(head) + size + len(tail)) + head, fill.payload, tail)
    if envelope.kind or envelope.wire_req_id:
        body = b"\x08" + _v(envelope.kind) if envelope.kind else b""
        if envelope.wire_req_id:
            body += b"\x10" + _v(envelope.wire_req_id)
        add(b"\x1a" + _v(len(body)) + body)
    if envelope.remaining_deadline_ns:
        add(b"\x20" + _v(envelope.remaining_deadline_ns))
    for report in envelope.rtt_reports:
        body = _report(report)
        add(b"\x2a" + _v(len(body)) + body)
    if envelope.src_peer:
        add(b"\x32" + _v(len(envelope.src_peer)) + envelope.src_peer)
    if envelope.schema_version:
        add(b"\x38" + _v(envelope.schema_version))
    for address in envelope.src_addresses:
        add(b"\x42" + _v(len(address)) + address)
    if envelope.epoch:
        add(_epoch_field(envelope.epoch))
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


def _report(report: RttReport) -> bytes:
    values = (
        report.next_hop_site_id,
        report.chain_id,
        report.hop_index,
        report.srtt_ns,
        report.rttvar_ns,
        report.sample_count,
    )
    return b"".join(_v(number << 3) + _v(value) for number, value in enumerate(values, 1) if value)


@lru_cache(maxsize=256)
def _ack_epoch(epoch: int) -> bytes:
    """Cached as `_epoch_field` is: most peers have one."""
    return b"\x08" + _v(epoch) if epoch else b""


def _ack(ack: Ack) -> bytes:
    body = _ack_epoch(ack.epoch)
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
_U64 = 0xFFFFFFFFFFFFFFFF


def _varint(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
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


def _span(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """Reads a length at `pos`; returns the range of the field that follows as (first byte, byte after it)."""
    if pos < end and data[pos] < 0x80:
        size = data[pos]
        pos += 1
    else:
        size, pos = _varint(data, pos, end)
    stop = pos + size
    if stop > end:
        raise EnvelopeError(
            EnvelopeErrorKind.TRUNCATED, f"{size} bytes announced at byte {pos}, {end - pos} are there"
        )
    return pos, stop


def _skip(data: bytes | memoryview, pos: int, end: int, tag: int) -> int:
    """Returns the byte after an unknown field. Groups are refused: proto3 writes none."""
    wire_type = tag & 7
    if tag < 8 or tag > 0xFFFFFFFF:
        raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"field number {tag >> 3} before byte {pos}")
    if wire_type == 0:
        return _varint(data, pos, end)[1]
    if wire_type == 2:
        return _span(data, pos, end)[1]
    if wire_type not in (1, 5):
        raise EnvelopeError(EnvelopeErrorKind.MALFORMED, f"wire type {wire_type} before byte {pos}")
    pos += 8 if wire_type == 1 else 4
    if pos > end:
        raise EnvelopeError(EnvelopeErrorKind.TRUNCATED, f"inside a fixed number at byte {end}")
    return pos


class _Strays:
    """Counts fields that only cost time: unknown ones, and scalars beyond their first occurrence."""

    __slots__ = ("left",)

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def one(self) -> None:
        """Counts one; EnvelopeError where there are too many."""
        self.left -= 1
        if self.left < 0:
            raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS)


def decode(data: bytes | bytearray | memoryview, caps: EnvelopeCaps) -> Envelope:
    """Parses an envelope; large payloads are views of `data`, or of a copy where it may be written to.

    Raises EnvelopeError and nothing else, whatever the bytes are, in time linear in their number.
    """
    end = len(data) if not isinstance(data, memoryview) else data.nbytes
    if end > caps.total_bytes:
        raise EnvelopeError(EnvelopeErrorKind.TOO_LARGE, f"{end} bytes, {caps.total_bytes} at most")
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
    strays = _Strays(caps.stray_fields)
    # The eight fields that count once may be repeated, as far as stray fields go.
    single = 8 + caps.stray_fields
    pos = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            if pos < end and data[pos] < 0x80:  # fields from 16 on, four in most envelopes
                tag += data[pos] - 1 << 7
                pos += 1
            else:
                tag, pos = _varint(data, pos - 1, end)
        if tag == 0x12:
            pos, stop = _span(data, pos, end)
            if len(fills) >= caps.fills:
                raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_FILLS, f"{caps.fills} at most")
            fills.append(_fill(data, pos, stop, caps, strays))
            pos = stop
        elif tag in _SCALARS:
            single -= 1
            if pos < end and data[pos] < 0x80:
                value = data[pos]
                pos += 1
            else:
                value, pos = _varint(data, pos, end)
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
                raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_ACKS, f"{caps.acks} at most")
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
                raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_ADDRESSES, f"{caps.addresses} at most")
            if stop - pos > caps.address_bytes:
                raise EnvelopeError(
                    EnvelopeErrorKind.ADDRESS_TOO_LARGE, f"{stop - pos} bytes, {caps.address_bytes} at most"
                )
            addresses.append(bytes(data[pos:stop]))
            pos = stop
        elif tag == 0x32:
            pos, stop = _span(data, pos, end)
            single -= 1
            if stop - pos > caps.src_peer_bytes:
                raise EnvelopeError(
                    EnvelopeErrorKind.SRC_PEER_TOO_LARGE, f"{stop - pos} bytes, {caps.src_peer_bytes} at most"
                )
            src_peer = bytes(data[pos:stop])
            pos = stop
        elif tag == 0x2A:
            pos, stop = _span(data, pos, end)
            if len(reports) >= caps.rtt_reports:
                raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_RTT_REPORTS, f"{caps.rtt_reports} at most")
            reports.append(_decode_report(data, pos, stop, strays))
            pos = stop
        elif tag == 842:
            single -= 1
            failure, pos = _decode_failure(data, *_span(data, pos, end), strays, failure)
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
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


def _is_fixed(view: memoryview) -> bool:
    """Whether bytes are taken as they are, and nobody writes to them."""
    return view.readonly and view.format == "B" and view.c_contiguous


_SCALARS = frozenset({0x20, 0x38, 808, 816, 832})


def _fill(data: bytes | memoryview, pos: int, end: int, caps: EnvelopeCaps, strays: _Strays) -> Fill:
    suffix: bytes = b""
    type_hash = start = stop = fields = 0
    trigger_only = False
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = _varint(data, pos - 1, end)
        fields += 1
        if fields > 4:
            strays.one()
        if tag == 0x12:
            start, stop = _span(data, pos, end)
            pos = stop
        elif tag == 0x0A:
            pos, after = _span(data, pos, end)
            if after - pos > caps.suffix_bytes:
                raise EnvelopeError(
                    EnvelopeErrorKind.SUFFIX_TOO_LARGE, f"{after - pos} bytes, {caps.suffix_bytes} at most"
                )
            suffix = bytes(data[pos:after])
            pos = after
        elif tag == 0x20:
            if pos + 1 < end and data[pos] >= 0x80 > data[pos + 1]:  # tensors' have two bytes
                type_hash = data[pos] + (data[pos + 1] - 1 << 7)
                pos += 2
            else:
                type_hash, pos = _varint(data, pos, end)
        elif tag == 0x18:
            value, pos = _varint(data, pos, end)
            trigger_only = value != 0
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
    size = stop - start
    route = route_of(suffix)
    if size <= _COPY_BELOW and size <= caps.fill_bytes:
        return Fill(suffix, bytes(data[start:stop]), trigger_only, type_hash, route)
    if size > caps.fill_bytes:
        _check_site_cap(route, size, caps)
    return Fill(suffix, memoryview(data)[start:stop], trigger_only, type_hash, route)


def _check_site_cap(route: Route, size: int, caps: EnvelopeCaps) -> None:
    """Raises EnvelopeError for a payload above the cap of its site, or of a fill where the site has none."""
    allowed = caps.fill_bytes
    if route.site >= 0:
        allowed = max(allowed, caps.site_fill_bytes.get(route.site, 0))
    if size > allowed:
        raise EnvelopeError(EnvelopeErrorKind.FILL_TOO_LARGE, f"{size} bytes, {allowed} at most")


def _correlation(
    data: bytes | memoryview, pos: int, end: int, strays: _Strays, kind: int, wire_req_id: int
) -> tuple[int, int]:
    """Reads a correlation, merged into what an earlier occurrence said, as protobuf does."""
    fields = 0
    while pos < end:
        tag, pos = _varint(data, pos, end)
        fields += 1
        if fields > 2:
            strays.one()
        if tag == 0x10:
            wire_req_id, pos = _varint(data, pos, end)
        elif tag == 0x08:
            kind, pos = _varint(data, pos, end)
            if kind > RESPONSE:
                raise EnvelopeError(EnvelopeErrorKind.UNKNOWN_CORRELATION, f"{kind}")
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
    return kind, wire_req_id


def _decode_failure(
    data: bytes | memoryview, pos: int, end: int, strays: _Strays, before: Failure | None
) -> tuple[Failure, int]:
    """Reads a failure, merged into what an earlier occurrence said, as protobuf does."""
    code, detail = (0, "") if before is None else (before.code, before.detail)
    fields = 0
    while pos < end:
        tag, pos = _varint(data, pos, end)
        fields += 1
        if fields > 2:
            strays.one()
        if tag == 0x08:
            code, pos = _varint(data, pos, end)
        elif tag == 0x12:
            start, pos = _span(data, pos, end)
            detail = Failure.read_detail(bytes(data[start:pos]))
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
    return Failure(code & 0xFFFFFFFF, detail), end


def _decode_ack(data: bytes | memoryview, pos: int, end: int, caps: EnvelopeCaps, strays: _Strays) -> Ack:
    epoch = up_to = 0
    also: list[int] = []
    fields = 0
    while pos < end:
        tag, pos = _varint(data, pos, end)
        fields += 1
        if fields > 3 and tag != 0x18:
            strays.one()
        if tag == 0x08:
            epoch, pos = _varint(data, pos, end)
        elif tag == 0x10:
            up_to, pos = _varint(data, pos, end)
        elif tag in (0x18, 0x1A):
            pos, stop = _span(data, pos, end) if tag == 0x1A else (pos, pos + 1)
            while pos < stop:
                number, pos = _varint(data, pos, stop if tag == 0x1A else end)
                if len(also) >= caps.ack_numbers:
                    raise EnvelopeError(EnvelopeErrorKind.TOO_MANY_ACK_NUMBERS, f"{caps.ack_numbers} at most")
                also.append(number)
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
    return Ack(epoch, up_to, tuple(also))


def _decode_report(data: bytes | memoryview, pos: int, end: int, strays: _Strays) -> RttReport:
    values = [0] * 7
    fields = 0
    while pos < end:
        tag, pos = _varint(data, pos, end)
        fields += 1
        if fields > 6:
            strays.one()
        if tag & 7 == 0 and 8 <= tag <= 48:
            values[tag >> 3], pos = _varint(data, pos, end)
        else:
            strays.one()
            pos = _skip(data, pos, end, tag)
    values[3] &= 0xFFFFFFFF
    return RttReport(*values[1:])
