"""The envelope and its codec, written by hand for the messages of `bb_core.proto`.

An envelope is decoded before anybody trusts it, so sizes are checked before anything is stored, and the
payload stays in the bytes that arrived. Where protobuf is pure Python, this is some twenty times faster.
`encode` writes the bytes that a protobuf serializer writes; `decode` takes fields in any order, packed or
not, repeated (the last one counts) or unknown (skipped, and counted).
"""

from __future__ import annotations

from functools import lru_cache

from bb_edge.ir.varint import encoded as _v
from bb_edge.wire.envelope_decode import decode
from bb_edge.wire.envelope_records import (
    NONE,
    REQUEST,
    RESPONSE,
    SCHEMA_VERSION,
    Ack,
    Envelope,
    EnvelopeError,
    EnvelopeErrorKind,
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
_EPOCH, _SEQ, _ACK, _BASE = b"\xa8\x06", b"\xb0\x06", b"\xba\x06", b"\xc0\x06"


@lru_cache(maxsize=256)
def _epoch_field(epoch: int) -> bytes:
    """Cached: a node has two epochs, and their varints are long."""
    return _EPOCH + _v(epoch)


@lru_cache(maxsize=256)
def _hash_field(type_hash: int) -> bytes:
    return b"\x20" + _v(type_hash)


def encode(envelope: Envelope) -> bytes:
    """Returns the envelope's protobuf bytes, with the fields in the order of their numbers."""
    parts: list[bytes | memoryview] = []
    add = parts.append
    for address in envelope.dest_addresses:
        add(b"\x0a" + _v(len(address)) + address)
    for fill in envelope.fills:
        suffix, payload = fill.dest_suffix, fill.payload
        size = len(payload)
        head = b"\x0a" + _v(len(suffix)) + suffix if suffix else b""
        if size:
            head += b"\x12" + _v(size)
        tail = b"\x18\x01" if fill.trigger_only else b""
        if fill.type_hash:
            tail += _hash_field(fill.type_hash)
        add(b"\x12" + _v(len(head) + size + len(tail)) + head)
        add(payload)
        add(tail)
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


def _ack(ack: Ack) -> bytes:
    body = b"\x08" + _v(ack.epoch) if ack.epoch else b""
    if ack.up_to:
        body += b"\x10" + _v(ack.up_to)
    if ack.also:
        numbers = b"".join([_v(number) for number in ack.also])
        body += b"\x1a" + _v(len(numbers)) + numbers
    return body
