"""What is said of an envelope that is refused, and where exactly each bound of the decoder lies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bb_edge.ir.address import Address, site_suffix
from bb_edge.wire import marks
from bb_edge.wire.caps import CONTROL_FILL_BYTES, EnvelopeCaps
from bb_edge.wire.envelope import (
    REQUEST,
    Ack,
    Envelope,
    EnvelopeError,
    EnvelopeErrorKind,
    Fill,
    RttReport,
    decode,
    encode,
)
from bb_edge.wire.envelope_records import FURTHEST_NS

SMALLER = EnvelopeCaps(
    total_bytes=10_000, fills=3, fill_bytes=700, suffix_bytes=20, stray_fields=5, rtt_reports=2
)
SMALL, _ = SMALLER.with_sites({7: 2_000})
NOT = "envelope: is not protobuf, or says what cannot be: "
ENDS = "envelope: ends inside a field: "


def refusal(data: bytes, caps: EnvelopeCaps = SMALL) -> str | None:
    """What the decoder says; None where it takes the bytes."""
    try:
        decode(data, caps)
    except EnvelopeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x20\x01\x12", f"{ENDS}inside a varint at byte 3"),
        (b"\x20\x01\x12\x05ab", f"{ENDS}5 bytes announced at byte 4, 2 are there"),
        (b"\x20\x01\xa8", f"{ENDS}inside a varint at byte 3"),
        (b"\x20\x01\x20\xff", f"{ENDS}inside a varint at byte 4"),
        (b"\x20" + b"\xff" * 9 + b"\x01", None),
        (b"\x20" + b"\xff" * 9 + b"\x02", f"{NOT}a varint beyond 64 bits before byte 11"),
        (b"\x20\x01\x20" + b"\x80" * 9 + b"\x01", None),
        (b"\x20\x01\x20" + b"\x80" * 9 + b"\x02", f"{NOT}a varint beyond 64 bits before byte 13"),
        (b"\x20\x01\x20" + b"\xff" * 10, f"{NOT}a varint beyond 10 bytes before byte 13"),
        (b"\x07\x00", f"{NOT}field number 0 before byte 1"),
        (b"\x20\x01\x02\x01a", f"{NOT}field number 0 before byte 3"),
        (b"\x80\x80\x80\x80\x10\x00", f"{NOT}field number 536870912 before byte 5"),
        (b"\xff\xff\xff\xff\x0f", f"{NOT}wire type 7 before byte 5"),
        (b"\xfd\xff\xff\xff\x0f" + bytes(4), None),
        (b"\x0b", f"{NOT}wire type 3 before byte 1"),
        (b"\x20\x01\x0c", f"{NOT}wire type 4 before byte 3"),
        (b"\x0e", f"{NOT}wire type 6 before byte 1"),
        (b"\x08\x01", None),
        (b"\x09" + bytes(8), None),
        (b"\x09" + bytes(7), f"{ENDS}inside a fixed number at byte 8"),
        (b"\x0d" + bytes(4), None),
        (b"\x0d" + bytes(3), f"{ENDS}inside a fixed number at byte 4"),
        (b"\x1a\x02\x08\x02", None),
        (b"\x1a\x02\x08\x03", "envelope: has a correlation of an unknown kind: 3"),
        (b"\x38\x01", None),
        (b"\x38\x02", "envelope: has a newer schema: 2, this node reads 1"),
        (b"\x38\x80\x80\x80\x80\x10", None),  # 2^32: protobuf keeps 32 bits
        (b"\x38\xff\xff\xff\xff\x0f", "envelope: has a newer schema: 4294967295, this node reads 1"),
        (b"\xc0\x06\x02\xb0\x06\x02", None),
        (b"\xc0\x06\x02\xb0\x06\x01", f"{NOT}base 2 above seq 1"),
        (b"\x1a\x01\x08", f"{ENDS}inside a varint at byte 3"),
        (b"\x12\x02\x12\x01\x00\x00", f"{ENDS}1 bytes announced at byte 4, 0 are there"),
        (b"\x12\x01\x20\x00", f"{ENDS}inside a varint at byte 3"),
        (b"\x12\x01\x18\x00", f"{ENDS}inside a varint at byte 3"),
        (b"\x12\x02\x28\x80\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\xba\x06\x01\x08\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\xba\x06\x01\x10\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\xba\x06\x01\x18\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\xba\x06\x02\x1a\x01\x00", f"{ENDS}1 bytes announced at byte 5, 0 are there"),
        (b"\xba\x06\x03\x1a\x01\x80\x00", f"{ENDS}inside a varint at byte 6"),
        (b"\xba\x06\x02\x20\x80\x00", f"{ENDS}inside a varint at byte 5"),
        (b"\x2a\x01\x08\x00", f"{ENDS}inside a varint at byte 3"),
        (b"\x2a\x02\x08\x80\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\x2a\x02\x38\x80\x00", f"{ENDS}inside a varint at byte 4"),
        (b"\x1a\x02\x18\x80\x00", f"{ENDS}inside a varint at byte 4"),
    ],
)
def test_a_refusal_says_what_and_where(data: bytes, said: str | None) -> None:
    assert refusal(data) == said


@pytest.mark.parametrize(
    ("envelope", "said"),
    [
        (Envelope(fills=[Fill()] * 4), "has too many fills: 3 at most (limits.caps.fills)"),
        (
            Envelope(fills=[Fill(b"", bytes(701))]),
            "has too large a fill: 701 bytes, 700 at most (limits.caps.fill_bytes)",
        ),
        (Envelope(fills=[Fill(site_suffix(7), bytes(2000))]), None),
        (
            Envelope(fills=[Fill(site_suffix(7), bytes(2001))]),
            "has too large a fill: 2001 bytes, 2000 at most",
        ),
        (
            Envelope(fills=[Fill(site_suffix(8), bytes(701))]),
            "has too large a fill: 701 bytes, 700 at most (limits.caps.fill_bytes)",
        ),
        # Suffixes that are not a site's, though their end, or their start, is that of the planned one.
        (
            Envelope(fills=[Fill(b"\xe2\x02" + site_suffix(7)[2:], bytes(701))]),
            "has too large a fill: 701 bytes, 700 at most (limits.caps.fill_bytes)",
        ),
        (
            Envelope(fills=[Fill(site_suffix(7)[:2] + b"\x07", bytes(701))]),
            "has too large a fill: 701 bytes, 700 at most (limits.caps.fill_bytes)",
        ),
        (
            Envelope(fills=[Fill(bytes(21))]),
            "has too long a destination suffix: 21 bytes, 20 at most (limits.caps.suffix_bytes)",
        ),
        (Envelope(src_addresses=(b"a",) * 9), "has too many addresses: 8 at most (limits.caps.addresses)"),
        (
            Envelope(dest_addresses=(bytes(257),)),
            "has too long an address: 257 bytes, 256 at most (limits.caps.address_bytes)",
        ),
        (
            Envelope(src_peer=bytes(85)),
            "has too long a source peer id: 85 bytes, 84 at most (limits.caps.src_peer_bytes)",
        ),
        (Envelope(acks=(Ack(1),) * 11), "has too many acks: 10 at most (limits.caps.acks)"),
        (
            Envelope(acks=(Ack(1, 0, (5,) * 65),)),
            "has an ack with too many numbers: 64 at most (limits.caps.ack_numbers)",
        ),
        (
            Envelope(rtt_reports=(RttReport(),) * 3),
            "has too many round-trip reports: 2 at most (limits.caps.rtt_reports)",
        ),
    ],
)
def test_a_refused_size_says_how_much_there_was_and_is_allowed(envelope: Envelope, said: str | None) -> None:
    assert refusal(encode(envelope)) == (said and f"envelope: {said}")


def test_a_planned_site_is_known_by_all_of_its_number() -> None:
    caps, _ = SMALLER.with_sites({0x0102030405060708: 2_000})
    assert refusal(encode(Envelope(fills=[Fill(site_suffix(0x0102030405060708), bytes(2000))])), caps) is None
    for other in (0x0002030405060708, 0x0807060504030201):
        found = refusal(encode(Envelope(fills=[Fill(site_suffix(other), bytes(701))])), caps)
        assert found == "envelope: has too large a fill: 701 bytes, 700 at most (limits.caps.fill_bytes)"


def test_too_many_bytes_are_named() -> None:
    assert (
        refusal(bytes(10_001), SMALLER)
        == "envelope: is too large: 10001 bytes, 10000 at most (limits.caps.total_bytes)"
    )
    wide = memoryview(bytes(16_000)).cast("I")  # 4,000 items
    assert (
        refusal(wide, SMALLER)
        == "envelope: is too large: 16000 bytes, 10000 at most (limits.caps.total_bytes)"
    )  # type: ignore[arg-type]


STRAYS = "envelope: has too many unknown or repeated fields"


@pytest.mark.parametrize(
    "field",
    [b"\x20\x01", b"\x1a\x00", b"\x32\x00", b"\x38\x01", b"\xa8\x06\x01", b"\xb0\x06\x01", b"\xca\x06\x00"],
)
def test_fields_that_count_once_may_come_as_often_as_strays_are_allowed(field: bytes) -> None:
    """Eight, and five more."""
    assert refusal(field * 13) is None
    assert refusal(field * 14) == f"{STRAYS}: repeated"


@pytest.mark.parametrize(
    ("outer", "known", "free", "unknown", "unknown_allowed"),
    [
        (b"\x12", b"\x20\x01", 4, b"\x28\x01", 4),
        (b"\x12", b"\x18\x01", 4, b"\x2a\x00", 4),
        (b"\x12", b"\x18\x01", 4, b"\x80\x01\x00", 4),
        (b"\x12", b"\x18\x01", 4, b"\x82\x80\x01\x01\x20", 4),
        (b"\x1a", b"\x10\x01", 2, b"\x18\x01", 3),
        (b"\xba\x06", b"\x08\x01", 3, b"\x20\x01", 4),
        (b"\xca\x06", b"\x08\x01", 2, b"\x18\x01", 3),
        (b"\x2a", b"\x08\x01", 6, b"\x38\x01", 5),
        (b"\x2a", b"\x30\x01", 6, b"\x0a\x00", 5),
    ],
)
def test_fields_inside_are_free_once_each_and_unknown_ones_are_strays(
    outer: bytes, known: bytes, free: int, unknown: bytes, unknown_allowed: int
) -> None:
    """A field beyond the number of those that there are costs one of five, and an unknown one another."""

    def of(field: bytes, count: int) -> bytes:
        return outer + bytes((len(field) * count,)) + field * count

    assert refusal(of(known, free + 5)) is None
    assert refusal(of(known, free + 6)) == STRAYS
    assert refusal(of(unknown, unknown_allowed)) is None
    assert refusal(of(unknown, unknown_allowed + 1)) == STRAYS


def test_numbers_of_an_ack_are_no_strays_packed_or_not() -> None:
    assert decode(b"\xba\x06\x80\x01" + b"\x18\x05" * 64, SMALL).acks == (Ack(0, 0, (5,) * 64),)
    assert refusal(b"\xba\x06\x82\x01" + b"\x18\x05" * 65) == (
        "envelope: has an ack with too many numbers: 64 at most (limits.caps.ack_numbers)"
    )


def test_every_number_of_a_report_has_its_place() -> None:
    report = b"\x08\x01\x10\x02\x18\x83\x80\x80\x80\x10\x20\x04\x28\x05\x30\x06"
    (found,) = decode(b"\x2a" + bytes((len(report),)) + report, SMALL).rtt_reports
    assert found == RttReport(1, 2, 3, 4, 5, 6)  # the hop has 32 bits


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 700])
def test_a_payload_is_copied_up_to_512_bytes_and_a_view_beyond(size: int) -> None:
    data = encode(Envelope(fills=[Fill(b"x", bytes(size))]))
    (fill,) = decode(data, SMALL).fills
    assert isinstance(fill.payload, bytes if size <= 512 else memoryview)
    assert bytes(fill.payload) == bytes(size)


def test_a_small_payload_is_copied_even_where_no_larger_one_is_allowed() -> None:
    caps = EnvelopeCaps(total_bytes=1_000, fills=3, fill_bytes=100, suffix_bytes=20)
    (fill,) = decode(encode(Envelope(fills=[Fill(b"x", bytes(100))])), caps).fills
    assert isinstance(fill.payload, bytes)


def test_the_second_correlation_is_merged_into_the_first() -> None:
    found = decode(b"\x1a\x02\x08\x01\x1a\x02\x10\x05", SMALL)
    assert (found.kind, found.wire_req_id) == (REQUEST, 5)


def test_the_deadline_of_what_has_arrived() -> None:
    assert Envelope().deadline_after(1000) == 0
    assert Envelope(remaining_deadline_ns=5).deadline_after(1000) == 1005
    assert (
        Envelope(remaining_deadline_ns=2**64 - 1).deadline_after(1000) == 1000 + FURTHEST_NS == 1000 + 2**62
    )


def test_an_error_tells_its_kind_and_its_detail() -> None:
    error = EnvelopeError(EnvelopeErrorKind.TOO_LARGE, "5 bytes")
    assert (error.kind, error.detail, error.where) == (EnvelopeErrorKind.TOO_LARGE, "5 bytes", "envelope")
    assert str(error) == "envelope: is too large: 5 bytes"
    bare = EnvelopeError(EnvelopeErrorKind.TOO_LARGE)
    assert (bare.detail, str(bare)) == ("", "envelope: is too large")


U64 = (1 << 64) - 1
LARGEST_MARKS = marks.encoded(marks.Took(U64, U64, (marks.Taken(U64, U64, U64),) * marks.MAX_WINDOWS))


def test_marks_pass_whatever_the_cap_of_a_fill_is() -> None:
    """A node with a small cap took the program's payloads, which are planned, and no marks: nobody ever sent
    it anything durable, and the reason stood in another node's log."""
    least = replace(SMALLER, fill_bytes=1, site_fill_bytes={}, suffix_bytes=40)
    assert refusal(LARGEST_MARKS, least) is None
    (fill,) = decode(LARGEST_MARKS, SMALLER).fills
    for suffix, size, most in (
        (fill.dest_suffix, CONTROL_FILL_BYTES, CONTROL_FILL_BYTES),
        (fill.dest_suffix, CONTROL_FILL_BYTES + 1, CONTROL_FILL_BYTES),
        (Address.empty().with_component(1, "Marks").to_bytes(), 2, 1),
        (Address.empty().with_component(0).to_bytes(), 2, 1),
    ):
        said = refusal(encode(Envelope(fills=[Fill(suffix, bytes(size))])), least)
        assert (said is None) is (size <= most)
        assert said is None or f"{size} bytes, {most} at most" in said
