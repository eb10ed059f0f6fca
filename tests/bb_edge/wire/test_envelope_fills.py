"""Fills whose form was met before are read as any other: by what they say, and within the caps."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest

from bb_edge.ir import bb_core_pb2
from bb_edge.ir.address import site_suffix
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import Envelope, EnvelopeError, EnvelopeErrorKind, Fill, decode, encode

NUMBERS = bytes(range(256)) * 3
KNOWN = Fill(site_suffix(7 << 32 | 9), NUMBERS, False, 0x0101)


def known(fill: Fill = KNOWN) -> bytes:
    """The bytes of an envelope with that fill, whose form has been read."""
    data = encode(Envelope(fills=[fill]))
    assert decode(data, HOST_CAPS).fills == [fill]
    return data


def test_the_form_comes_again_with_other_numbers() -> None:
    data = known()
    place = data.index(NUMBERS)
    other = bytes(reversed(NUMBERS))
    (fill,) = decode(data[:place] + other + data[place + len(other) :], HOST_CAPS).fills
    assert fill == dataclasses.replace(KNOWN, payload=other)
    assert fill.route.site == 7 << 32 | 9


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_in_any_buffer(wrap: type) -> None:
    assert decode(wrap(known()), HOST_CAPS).fills == [KNOWN]


def test_whatever_differs_around_the_numbers_is_read() -> None:
    """Each bit around the payload: what protobuf reads, or a refusal."""
    data = known()
    start = data.index(NUMBERS)
    read = 0
    for place in (*range(start), *range(start + len(NUMBERS), len(data))):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            known()
            try:
                found = decode(bytes(changed), HOST_CAPS).fills
            except EnvelopeError:
                continue
            message = bb_core_pb2.WireEnvelope.FromString(bytes(changed))
            assert found == [
                Fill(f.dest_suffix, f.payload, f.trigger_only, f.type_hash) for f in message.fills
            ]
            read += 1
    assert read > 50


def test_two_ports_whose_fills_are_told_apart_by_their_bytes_alone() -> None:
    """Same size, same last byte of the site."""
    other = dataclasses.replace(KNOWN, dest_suffix=site_suffix(8 << 32 | 9))
    for _ in range(3):
        assert decode(encode(Envelope(fills=[KNOWN, other])), HOST_CAPS).fills == [KNOWN, other]


def test_each_reader_has_its_own_caps() -> None:
    data = known()
    with pytest.raises(EnvelopeError) as told:
        decode(data, dataclasses.replace(HOST_CAPS, suffix_bytes=9))
    assert told.value.kind is EnvelopeErrorKind.SUFFIX_TOO_LARGE
    small = dataclasses.replace(HOST_CAPS, fill_bytes=len(NUMBERS) - 1, site_fill_bytes={})
    with pytest.raises(EnvelopeError) as told:
        decode(data, small)
    assert told.value.kind is EnvelopeErrorKind.FILL_TOO_LARGE


def test_stray_fields_are_counted_each_time() -> None:
    """Of a form that one reader takes, another one refuses the unknown fields."""
    fill = bb_core_pb2.SlotFill(dest_suffix=KNOWN.dest_suffix, payload=NUMBERS).SerializeToString()
    strays = bb_core_pb2.SlotFill.FromString(fill + b"\x78\x01\x78\x02")
    data = bb_core_pb2.WireEnvelope(fills=[strays]).SerializeToString()
    for _ in range(2):
        assert len(decode(data, HOST_CAPS).fills) == 1
    with pytest.raises(EnvelopeError) as told:
        decode(data, dataclasses.replace(HOST_CAPS, stray_fields=1))
    assert told.value.kind is EnvelopeErrorKind.TOO_MANY_STRAY_FIELDS


def test_more_forms_than_are_remembered_are_read() -> None:
    for _ in range(2):
        for size in range(300):
            known(dataclasses.replace(KNOWN, payload=NUMBERS[:size]))


def test_forms_cost_little_memory_whatever_comes() -> None:
    """A payload in front of the last one belongs to what stands around it, and is not kept."""

    def hostile(number: int) -> bytes:
        first = bb_core_pb2.SlotFill(payload=bytes(20_000 + number)).SerializeToString()
        last = bb_core_pb2.SlotFill(dest_suffix=site_suffix(number), payload=b"x").SerializeToString()
        size = len(first) + len(last)
        length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
        return b"\x12" + length + last[: 2 + last[1]] + first + last[2 + last[1] :]

    decode(hostile(0), HOST_CAPS)
    tracemalloc.start()
    try:
        for number in range(1, 300):
            assert decode(hostile(number), HOST_CAPS).fills[0].payload == b"x"
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
