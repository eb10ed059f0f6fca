"""Frames: what is read back from a file that is whole, torn, damaged, somebody else's or newer."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.state import StateVersionError, record_framing

RECORDS = [b"one", b"", b"three " * 50, bytes(range(256))]
KIND, NUMBER = record_framing.JOURNAL, 7
HEADER = record_framing.Header(2, 3, record_framing.NOBODY, None)


def content(records: list[bytes]) -> bytes:
    return record_framing.header(KIND, NUMBER, 3) + record_framing.framed(KIND, NUMBER, 1, records)


def parse(data: bytes, kind: int = KIND, number: int = NUMBER) -> record_framing.Parsed:
    return record_framing.parse(data, kind, number, "journal-7")


def sealed(body: bytes, sequence: int = 0) -> bytes:
    """A frame with a right checksum around anything."""
    place = struct.pack(">BQI", KIND, NUMBER, sequence)
    return struct.pack(">III", len(body), sequence, crc32(body, crc32(place))) + body


def test_what_was_written_is_read() -> None:
    data = content(RECORDS)
    assert parse(data) == record_framing.Parsed(tuple(RECORDS), len(data), HEADER, 0, False)
    assert len(data) == record_framing.HEADER_BYTES + record_framing.framed_bytes(RECORDS)


def test_frames_that_are_added_later_belong_to_the_file() -> None:
    data = content(RECORDS[:2]) + record_framing.framed(KIND, NUMBER, 3, RECORDS[2:])
    assert parse(data).bodies == tuple(RECORDS)


def test_cut_anywhere_the_whole_records_before_the_cut_are_there() -> None:
    data = content(RECORDS)
    ends = [record_framing.HEADER_BYTES]
    for record in RECORDS:
        ends.append(ends[-1] + record_framing.OVERHEAD_BYTES + len(record))
    for cut in range(len(data)):
        found = parse(data[:cut])
        count = sum(end <= cut for end in ends[1:])
        assert found.bodies == tuple(RECORDS[:count])
        assert found.length == (ends[count] if cut >= ends[0] else 0)
        assert found.lost == cut - found.length
        assert not found.damaged


def test_a_flipped_bit_anywhere_ends_the_file_there_and_is_told_from_a_torn_end() -> None:
    data = content(RECORDS)
    starts = [0, record_framing.HEADER_BYTES]
    for record in RECORDS:
        starts.append(starts[-1] + record_framing.OVERHEAD_BYTES + len(record))
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        found = parse(bytes(broken))
        frame = max(i for i, start in enumerate(starts) if start <= at)
        assert found.bodies == tuple(RECORDS[: max(frame - 1, 0)])
        assert found.damaged == (frame < len(RECORDS)), "after the last record nothing follows"


def test_zeros_and_noise_after_the_end_are_torn() -> None:
    data = content(RECORDS)
    for tail in (bytes(4096), b"\xff" * 100, b"x"):
        found = parse(data + tail)
        assert (found.bodies, found.lost, found.damaged) == (tuple(RECORDS), len(tail), False)


def test_many_lookalikes_do_not_hold_up_the_reading() -> None:
    data = content([b"one"]) + (3).to_bytes(4, "big") * 20_000
    assert parse(data).bodies == (b"one",)
    assert not parse(data).damaged


@pytest.mark.parametrize(("kind", "number"), [(record_framing.OUTBOX, NUMBER), (KIND, NUMBER + 1)])
def test_another_files_records_are_none(kind: int, number: int) -> None:
    assert parse(content(RECORDS), kind, number).bodies == ()


def test_a_repeated_frame_is_none() -> None:
    data = content([b"one"])
    assert parse(data + record_framing.framed(KIND, NUMBER, 1, [b"one"])).bodies == (b"one",)


def test_a_newer_version_is_refused_by_name() -> None:
    header = sealed(record_framing.MAGIC + bytes([record_framing.ENCLOSING + 1]) + b"whatever it holds")
    with pytest.raises(StateVersionError, match=r"journal-7: written in version 4 .*update this node"):
        parse(header)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"something else",
        record_framing.MAGIC,
        record_framing.MAGIC + b"\0",
        record_framing.MAGIC + bytes([record_framing.VERSION]),
        record_framing.MAGIC + bytes([record_framing.VERSION]) + bytes(34) + b"\1",
    ],
)
def test_a_header_that_is_none(body: bytes) -> None:
    assert parse(sealed(body) + sealed(b"one", 1)).bodies == ()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_a_fault(data: bytes) -> None:
    assert parse(data).length in (0, len(data) - parse(data).lost)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_any_damage_leaves_a_part_of_the_records_in_their_order(
    records: list[bytes], data: st.DataObject
) -> None:
    whole = bytearray(content(records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    found = parse(bytes(whole)).bodies
    assert found == tuple(records[: len(found)])


DECOY = (2).to_bytes(4, "big")
"""The number of the record that follows, where no record is."""


@pytest.mark.parametrize(
    ("before", "sequence", "behind", "damaged"),
    [
        (b"?", 2, b"", True),
        (5 * b"?" + DECOY, 2, b"", True),
        (b"??", 2, b"?" + DECOY, True),
        (b"??" + 2 * DECOY, 18, DECOY, False),
        (b"??", 1, b"", False),
    ],
)
def test_a_whole_record_behind_others_bytes_tells_damage_from_a_torn_end(
    before: bytes, sequence: int, behind: bytes, damaged: bool
) -> None:
    kind = record_framing.JOURNAL
    record = record_framing.framed(kind, 1, sequence, [b"a"])
    data = record_framing.header(kind, 1) + before + record + behind
    assert record_framing.parse(data, kind, 1, "journal-1").damaged is damaged


@pytest.mark.parametrize("size", [record_framing.LARGE - 1, record_framing.LARGE])
def test_records_in_pieces_are_framed_like_whole_ones(size: int) -> None:
    large, small = bytes(size), b"small"
    bodies = [[small, large, small, large], [large], small, [small, small]]
    pieces = record_framing.framed_whole(KIND, NUMBER, 1, bodies, b"before")
    assert b"".join(pieces) == b"before" + record_framing.framed(
        KIND,
        NUMBER,
        1,
        map(
            b"".join,
            [
                *bodies[:2],
                [small],
                bodies[3],
            ],
        ),
    )
    assert any(piece is large for piece in pieces) is (size == record_framing.LARGE), "it is not copied"
    assert b"".join(record_framing.framed_whole(KIND, NUMBER, 1, [])) == b""
