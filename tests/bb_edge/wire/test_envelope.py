"""The envelope codec against protobuf's own, in both directions, and against hostile bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_edge.ir import bb_core_pb2
from bb_edge.ir.address import site_suffix
from bb_edge.wire.caps import EDGE_CAPS, HOST_CAPS, KIB, EnvelopeCaps
from bb_edge.wire.envelope import (
    NONE,
    REQUEST,
    RESPONSE,
    Ack,
    Envelope,
    EnvelopeError,
    EnvelopeErrorKind,
    Fill,
    RttReport,
    decode,
    encode,
    repeated,
)
from bb_edge.wire.envelope_records import Failure, FailureCode

u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
u32 = st.integers(0, 2**32 - 1)
fills = st.builds(
    Fill,
    dest_suffix=st.binary(max_size=20),
    payload=st.one_of(st.binary(max_size=40), st.binary(min_size=500, max_size=600)),
    trigger_only=st.booleans(),
    type_hash=u64,
)
envelopes = st.builds(
    Envelope,
    fills=st.lists(fills, max_size=4),
    kind=st.sampled_from((NONE, REQUEST, RESPONSE)),
    wire_req_id=u64,
    remaining_deadline_ns=u64,
    src_peer=st.binary(max_size=40),
    src_addresses=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    dest_addresses=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    epoch=u64,
    seq=u64,
    acks=st.lists(st.builds(Ack, u64, u64, st.lists(u64, max_size=5).map(tuple)), max_size=3).map(tuple),
    base=st.just(0),
    schema_version=st.sampled_from((0, 1)),
    rtt_reports=st.lists(st.builds(RttReport, u64, u64, u32, u64, u64, u64), max_size=2).map(tuple),
    failure=st.none() | st.builds(Failure, u32, st.text(max_size=50)),
).flatmap(lambda e: st.integers(0, e.seq).map(lambda base: dataclasses.replace(e, base=base)))


def to_pb2(envelope: Envelope) -> bb_core_pb2.WireEnvelope:
    message = bb_core_pb2.WireEnvelope(
        dest_peer_addresses=envelope.dest_addresses,
        remaining_deadline_ns=envelope.remaining_deadline_ns,
        src_peer_bytes=envelope.src_peer,
        schema_version=envelope.schema_version,
        src_peer_addresses=envelope.src_addresses,
        epoch=envelope.epoch,
        seq=envelope.seq,
        base=envelope.base,
    )
    for fill in envelope.fills:
        message.fills.add(
            dest_suffix=fill.dest_suffix,
            payload=bytes(fill.payload),
            trigger_only=fill.trigger_only,
            type_hash=fill.type_hash,
        )
    if envelope.kind or envelope.wire_req_id:
        message.correlation.kind = envelope.kind  # type: ignore[assignment]
        message.correlation.wire_req_id = envelope.wire_req_id
    for ack in envelope.acks:
        message.acks.add(epoch=ack.epoch, up_to=ack.up_to, also=ack.also)
    for report in envelope.rtt_reports:
        message.edge_rtt_reports.add(**dataclasses.asdict(report))
    if envelope.failure is not None:
        message.failure.SetInParent()
        message.failure.code, message.failure.detail = envelope.failure.code, envelope.failure.detail
    return message


def from_pb2(message: bb_core_pb2.WireEnvelope) -> Envelope:
    return Envelope(
        fills=[Fill(f.dest_suffix, f.payload, f.trigger_only, f.type_hash) for f in message.fills],
        kind=message.correlation.kind,
        wire_req_id=message.correlation.wire_req_id,
        remaining_deadline_ns=message.remaining_deadline_ns,
        src_peer=message.src_peer_bytes,
        src_addresses=tuple(message.src_peer_addresses),
        dest_addresses=tuple(message.dest_peer_addresses),
        epoch=message.epoch,
        seq=message.seq,
        acks=tuple(Ack(a.epoch, a.up_to, tuple(a.also)) for a in message.acks),
        base=message.base,
        schema_version=message.schema_version,
        rtt_reports=tuple(
            RttReport(r.next_hop_site_id, r.chain_id, r.hop_index, r.srtt_ns, r.rttvar_ns, r.sample_count)
            for r in message.edge_rtt_reports
        ),
        failure=Failure(message.failure.code, message.failure.detail)
        if message.HasField("failure")
        else None,
    )


def sample() -> Envelope:
    """Every field set."""
    return Envelope(
        fills=[Fill(site_suffix(7), b"p" * 700, False, 0x0101), Fill(site_suffix(8), b"", True, 0x0A)],
        kind=REQUEST,
        wire_req_id=2**64 - 1,
        remaining_deadline_ns=30_000_000_000,
        src_peer=b"\x00\x08" + bytes(8),
        src_addresses=(b"abc",),
        dest_addresses=(b"def",),
        epoch=2**56 - 1,
        seq=300,
        acks=(Ack(2**55, 17, (19, 400)),),
        base=290,
        rtt_reports=(RttReport(1, 2, 3, 4, 5, 6),),
        failure=Failure(2, "Contribute_3, Äpfel"),
    )


@given(envelopes)
def test_our_bytes_are_those_of_protobuf(envelope: Envelope) -> None:
    assert encode(envelope) == to_pb2(envelope).SerializeToString()


@given(envelopes)
def test_what_protobuf_writes_we_read(envelope: Envelope) -> None:
    assert decode(to_pb2(envelope).SerializeToString(), HOST_CAPS) == envelope


@given(envelopes)
def test_what_we_write_protobuf_reads(envelope: Envelope) -> None:
    assert bb_core_pb2.WireEnvelope.FromString(encode(envelope)) == to_pb2(envelope)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(wrap: Callable[[bytes], bytes]) -> None:
    assert decode(wrap(encode(sample())), HOST_CAPS) == sample()


def test_a_large_payload_is_a_view_of_the_bytes_that_came() -> None:
    data = encode(sample())
    payload = decode(data, HOST_CAPS).fills[0].payload
    assert isinstance(payload, memoryview)
    assert payload.obj is data


def test_a_bytearray_may_be_reused_after_decoding() -> None:
    data = bytearray(encode(sample()))
    found = decode(data, HOST_CAPS)
    data[:] = bytes(len(data))
    assert found == sample()


def check_like_protobuf(data: bytes) -> None:
    """Either an EnvelopeError, or protobuf reads the same from these bytes."""
    try:
        found = decode(data, HOST_CAPS)
    except EnvelopeError:
        return
    assert found == from_pb2(bb_core_pb2.WireEnvelope.FromString(data))


def test_truncated_anywhere() -> None:
    data = encode(sample())
    for end in range(len(data)):
        check_like_protobuf(data[:end])


def test_every_single_byte_changed_in_each_bit() -> None:
    data = encode(dataclasses.replace(sample(), fills=[Fill(site_suffix(7), b"pay", False, 0x0101)]))
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            check_like_protobuf(bytes(changed))


@settings(max_examples=300)
@given(envelopes, st.data())
def test_mutations(envelope: Envelope, data: st.DataObject) -> None:
    raw = bytearray(encode(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            place = data.draw(st.integers(0, len(raw) - 1))
            if data.draw(st.booleans()):
                raw[place] = data.draw(st.integers(0, 255))
            else:
                raw[place:place] = data.draw(st.binary(max_size=4))
    check_like_protobuf(bytes(raw))


USUAL = (
    Envelope([Fill(site_suffix(7), b"p" * 600)], REQUEST, 2**64 - 1, 30 * 10**9, epoch=2**56, seq=1),
    Envelope([], RESPONSE, 300, epoch=2**50 + 5, seq=2**63 + 9, acks=(Ack(2**55 + 3, 2**40 + 1),)),
    Envelope([Fill(b"", b"xy")], remaining_deadline_ns=2**64 - 1, epoch=127, seq=128),
    Envelope(epoch=5, seq=2, acks=(Ack(1, 1),)),
)
"""What most envelopes hold: their fields are found all at once."""

EXPLICIT_ZERO = b"\x38\x00"
"""A version that counts only where no other follows. Behind it each field is read by itself."""


def outcome(data: bytes) -> Envelope | EnvelopeErrorKind:
    try:
        return decode(data, HOST_CAPS)
    except EnvelopeError as error:
        return error.kind


@pytest.mark.parametrize("envelope", USUAL)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_usual_envelopes_read_as_their_fields_one_by_one_do(
    envelope: Envelope, wrap: Callable[[bytes], bytes]
) -> None:
    whole = encode(envelope)
    assert outcome(wrap(whole)) == envelope == outcome(EXPLICIT_ZERO + whole)
    assert outcome(wrap(repeated(whole, 77))) == dataclasses.replace(envelope, remaining_deadline_ns=77)
    around = range(min(len(whole), 30)), range(max(len(whole) - 60, 0), len(whole))
    for at in sorted({*around[0], *around[1]}):
        assert outcome(wrap(whole[:at])) == outcome(EXPLICIT_ZERO + whole[:at])
        for byte in {0, 1, 2, 3, 0x7F, 0x80, 0xFF, *(whole[at] ^ 1 << bit for bit in range(8))}:
            changed = whole[:at] + bytes((byte,)) + whole[at + 1 :]
            assert outcome(wrap(changed)) == outcome(EXPLICIT_ZERO + changed)
            longer = whole[:at] + bytes((byte,)) + whole[at:]
            assert outcome(wrap(longer)) == outcome(EXPLICIT_ZERO + longer)


@given(u64, u64, u64, st.integers(0, 9))
def test_numbers_of_every_length_are_read(number: int, epoch: int, acked: int, more: int) -> None:
    acks = (Ack(epoch | 1, acked | 1),)
    envelope = Envelope([], REQUEST, number, number >> more, epoch=epoch or 1, seq=number | 1, acks=acks)
    assert decode(encode(envelope), HOST_CAPS) == envelope


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_noise(data: bytes) -> None:
    check_like_protobuf(data)


def kind_of(data: bytes, caps: EnvelopeCaps = EDGE_CAPS) -> EnvelopeErrorKind | None:
    try:
        decode(data, caps)
    except EnvelopeError as error:
        return error.kind
    return None


SMALL = EnvelopeCaps(
    total_bytes=10_000, fills=3, fill_bytes=700, suffix_bytes=20, stray_fields=5, rtt_reports=2
)


@pytest.mark.parametrize(
    ("make", "limit", "kind"),
    [
        (lambda n: Envelope(fills=[Fill()] * n), SMALL.fills, EnvelopeErrorKind.TOO_MANY_FILLS),
        (
            lambda n: Envelope(fills=[Fill(payload=bytes(n))]),
            SMALL.fill_bytes,
            EnvelopeErrorKind.FILL_TOO_LARGE,
        ),
        (lambda n: Envelope(fills=[Fill(bytes(n))]), SMALL.suffix_bytes, EnvelopeErrorKind.SUFFIX_TOO_LARGE),
        (lambda n: Envelope(src_addresses=(b"a",) * n), 8, EnvelopeErrorKind.TOO_MANY_ADDRESSES),
        (lambda n: Envelope(dest_addresses=(b"a",) * n), 8, EnvelopeErrorKind.TOO_MANY_ADDRESSES),
        (lambda n: Envelope(src_addresses=(bytes(n),)), 256, EnvelopeErrorKind.ADDRESS_TOO_LARGE),
        (lambda n: Envelope(dest_addresses=(bytes(n),)), 256, EnvelopeErrorKind.ADDRESS_TOO_LARGE),
        (lambda n: Envelope(src_peer=bytes(n)), 84, EnvelopeErrorKind.SRC_PEER_TOO_LARGE),
        (lambda n: Envelope(acks=(Ack(1, 1),) * n), 10, EnvelopeErrorKind.TOO_MANY_ACKS),
        (
            lambda n: Envelope(acks=(Ack(1, 0, tuple(range(n))),)),
            64,
            EnvelopeErrorKind.TOO_MANY_ACK_NUMBERS,
        ),
        (lambda n: Envelope(rtt_reports=(RttReport(1),) * n), 2, EnvelopeErrorKind.TOO_MANY_RTT_REPORTS),
    ],
)
def test_each_cap_below_at_and_above(
    make: Callable[[int], Envelope], limit: int, kind: EnvelopeErrorKind
) -> None:
    for count, expected in ((limit - 1, None), (limit, None), (limit + 1, kind)):
        assert kind_of(encode(make(count)), SMALL) is expected


def test_the_total_is_compared_before_the_first_byte_is_read() -> None:
    caps = dataclasses.replace(SMALL, total_bytes=100)
    assert kind_of(b"\x00" * 99, caps) is EnvelopeErrorKind.MALFORMED
    assert kind_of(b"\x00" * 100, caps) is EnvelopeErrorKind.MALFORMED
    assert kind_of(b"\x00" * 101, caps) is EnvelopeErrorKind.TOO_LARGE


@pytest.mark.parametrize("caps", [EDGE_CAPS, HOST_CAPS])
def test_the_two_budgets_at_their_fills_limit(caps: EnvelopeCaps) -> None:
    fill = Fill(site_suffix(1), bytes(10))
    for count, expected in (
        (caps.fills - 1, None),
        (caps.fills, None),
        (caps.fills + 1, EnvelopeErrorKind.TOO_MANY_FILLS),
    ):
        assert kind_of(encode(Envelope(fills=[fill] * count)), caps) is expected


def test_a_planned_site_has_a_cap_of_its_own() -> None:
    caps, raised = SMALL.with_sites({7: 2_000, 8: 500, 9: SMALL.ceiling_bytes + 1})
    assert [(r.site, r.granted) for r in raised] == [(7, 2_000), (9, SMALL.ceiling_bytes)]
    for site, size, expected in (
        (7, 1_999, None),
        (7, 2_000, None),
        (7, 2_001, EnvelopeErrorKind.FILL_TOO_LARGE),
        (8, 700, None),
        (8, 701, EnvelopeErrorKind.FILL_TOO_LARGE),
    ):
        data = encode(Envelope(fills=[Fill(site_suffix(site), bytes(size))]))
        assert kind_of(data, caps) is expected


def test_a_large_planned_site_raises_the_total_up_to_the_ceiling() -> None:
    size = 512 * KIB
    caps, _ = EDGE_CAPS.with_sites({7: size})
    assert kind_of(encode(Envelope(fills=[Fill(site_suffix(7), bytes(size))])), caps) is None
    assert kind_of(encode(Envelope(fills=[Fill(site_suffix(7), bytes(size + 1))])), caps) is not None
    unlimited, _ = EDGE_CAPS.with_sites({7: 1 << 40})
    assert unlimited.total_bytes == EDGE_CAPS.ceiling_bytes
    assert EDGE_CAPS.with_sites({7: 10}) == (EDGE_CAPS, ())


def test_unknown_fields_are_skipped_up_to_their_cap() -> None:
    unknown = (
        b"\xf2\x3f\x03abc",
        b"\xf0\x3f\x96\x01",
        b"\xf1\x3f" + bytes(8),
        b"\xf5\x3f" + bytes(4),
    )  # field 1022
    data = encode(sample())
    for field in unknown:
        assert decode(data + field, HOST_CAPS) == sample()
        assert kind_of(b"x"[:0] + field * SMALL.stray_fields, SMALL) is None
        assert kind_of(field * (SMALL.stray_fields + 1), SMALL) is EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS


@pytest.mark.parametrize(
    "field", [b"\x20\x01", b"\x1a\x00", b"\x1a\x02\x10\x01", b"\x32\x00", b"\xa8\x06\x01", b"\xd0\x06\x01"]
)
def test_repetition_is_bounded(field: bytes) -> None:
    assert kind_of(field * 5, SMALL) is None
    assert kind_of(field * 1000, SMALL) is EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (b"\x12", b"\x20\x01"),  # a fill's type hash
        (b"\x12", b"\x28\x01"),  # an unknown field of a fill
        (b"\x1a", b"\x10\x01"),  # a correlation's request id
        (b"\xba\x06", b"\x08\x01"),  # an ack's epoch
        (b"\x2a", b"\x08\x01"),  # a report's site
        (b"\x2a", b"\x38\x01"),  # an unknown field of a report
    ],
)
def test_repetition_inside_is_bounded(outer: bytes, inner: bytes) -> None:
    assert kind_of(outer + b"\x06" + inner * 3, SMALL) is None
    assert kind_of(outer + b"\xc8\x01" + inner * 100, SMALL) is EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS


def test_repeated_and_reordered_fields_read_as_protobuf_reads_them() -> None:
    a, b = encode(sample()), encode(Envelope(seq=301, kind=NONE, wire_req_id=5, remaining_deadline_ns=9))
    check_like_protobuf(a + b)
    assert decode(a + b, HOST_CAPS).seq == 301
    check_like_protobuf(b + a)


def test_numbers_of_an_ack_unpacked() -> None:
    data = b"\xba\x06\x08\x08\x01\x18\x02\x18\xac\x02\x18"[:-1]
    assert decode(data[:2] + b"\x07" + data[3:], HOST_CAPS).acks == (Ack(1, 0, (2, 300)),)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x12", EnvelopeErrorKind.TRUNCATED),
        (b"\x12\x05ab", EnvelopeErrorKind.TRUNCATED),
        (b"\xa8\x06", EnvelopeErrorKind.TRUNCATED),
        (b"\x20\xff", EnvelopeErrorKind.TRUNCATED),
        (b"\x20" + b"\xff" * 10, EnvelopeErrorKind.MALFORMED),
        (b"\x20" + b"\xff" * 9 + b"\x02", EnvelopeErrorKind.MALFORMED),
        (b"\x02\x01a", EnvelopeErrorKind.MALFORMED),
        (b"\x0b\x0c", EnvelopeErrorKind.MALFORMED),
        (b"\x0f", EnvelopeErrorKind.MALFORMED),
        (b"\xf1\x3f" + bytes(7), EnvelopeErrorKind.TRUNCATED),
        (b"\x1a\x02\x08\x03", EnvelopeErrorKind.UNKNOWN_CORRELATION),
        (b"\x38\x02", EnvelopeErrorKind.UNSUPPORTED_VERSION),
        (b"\xc0\x06\x02\xb0\x06\x01", EnvelopeErrorKind.MALFORMED),  # base above seq
        (b"\x12\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01", EnvelopeErrorKind.TRUNCATED),  # 2^63 + 1 bytes
        (b"\xca\x06\x03\x12\x01\xff", EnvelopeErrorKind.MALFORMED),  # a detail that is not UTF-8
        (b"\xca\x06\xcc\x01\x12\xc9\x01" + b"a" * 201, EnvelopeErrorKind.FAILURE_TOO_LONG),
    ],
)
def test_refusals_name_their_kind(data: bytes, kind: EnvelopeErrorKind) -> None:
    assert kind_of(data) is kind


@pytest.mark.parametrize("detail", ["short", "x" * 500, "Ä" * 150, "x" + "Ä" * 150, "\ud800" * 300])
def test_a_failure_is_as_long_as_it_may_be(detail: str) -> None:
    made = Failure.of(FailureCode.TOO_LARGE, detail)
    envelope = Envelope(kind=RESPONSE, wire_req_id=7, failure=made)
    assert decode(encode(envelope), EDGE_CAPS).failure == made
    assert 199 <= len(made.detail.encode()) <= 200 or made.detail == detail
    assert made.name == "TOO_LARGE"
    assert Failure(77).name == "77"


def test_a_resent_envelope_carries_what_remains_of_its_deadline() -> None:
    data = repeated(encode(sample()), 123)
    assert decode(data, HOST_CAPS) == dataclasses.replace(sample(), remaining_deadline_ns=123)
    assert bb_core_pb2.WireEnvelope.FromString(data).remaining_deadline_ns == 123
    assert repeated(data, 0) is data


def test_a_best_effort_envelope_costs_at_most_64_bytes_beyond_its_payload() -> None:
    envelope = Envelope(
        fills=[Fill(site_suffix(0xFEDCBA9876543210), bytes(60_000), False, 0x010D)],
        epoch=2**56 - 1,
        seq=1_000_000,
        acks=(Ack(2**56 - 2, 1_000_000),),
    )
    assert len(encode(envelope)) - 60_000 == 56
    request = dataclasses.replace(envelope, kind=REQUEST, wire_req_id=2**64 - 1, acks=())
    assert len(encode(request)) - 60_000 == 55


def test_no_bytes_are_an_empty_envelope() -> None:
    assert decode(b"", EDGE_CAPS) == Envelope(schema_version=0)


def test_protobuf_refuses_what_we_call_truncated() -> None:
    with pytest.raises(DecodeError):
        bb_core_pb2.WireEnvelope.FromString(b"\x12\x05ab")
