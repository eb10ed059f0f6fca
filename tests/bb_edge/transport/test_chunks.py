"""Cutting and joining: every order, every bound, hostile headers; nothing is left behind."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import A, B

from bb_edge.transport.chunks import HEADER_BYTES, ChunkError, Reassembly, cut

AGE = 1_000


def chunks_of(data: bytes, at_most: int, transfer: int = 1) -> list[bytes]:
    return [chunk.head + chunk.data for chunk in cut(data, at_most, transfer)]


def reassembly(at_once: int = 4, max_bytes: int = 100_000, max_envelope: int = 50_000) -> Reassembly:
    return Reassembly(at_once, max_bytes, max_envelope, AGE)


@given(st.integers(1, 700), st.integers(3, 300), st.randoms(use_true_random=False))
def test_what_is_cut_is_joined_in_any_order(size, at_most, shuffle):
    data = random.Random(size).randbytes(size)
    parts = chunks_of(data, at_most)
    assert all(len(part) - HEADER_BYTES <= at_most for part in parts)
    assert len(parts) == 1 or sum(len(p) - HEADER_BYTES for p in parts) == size
    shuffle.shuffle(parts)
    into = reassembly()
    found = [into.add(A, part, 0) for part in parts]
    assert found[-1] == data
    assert all(x is None for x in found[:-1])
    assert (len(into), into.bytes_held, into.held_by(A)) == (0, 0, 0)


def test_a_chunk_that_comes_twice_counts_once():
    data = bytes(range(200))
    first, second = chunks_of(data, 100)
    into = reassembly()
    assert into.add(A, first, 0) is None
    held = into.bytes_held
    assert into.add(A, first, 0) is None
    assert into.bytes_held == held
    assert into.add(A, second, 0) == data


def test_transfers_of_two_senders_under_one_number_stay_apart():
    into = reassembly()
    ones, twos = chunks_of(b"1" * 200, 100, 5), chunks_of(b"2" * 200, 100, 5)
    into.add(A, ones[0], 0)
    assert into.add(B, twos[1], 0) is None
    assert into.add(A, ones[1], 0) == b"1" * 200
    assert into.add(B, twos[0], 0) == b"2" * 200


def head(version=1, transfer=1, total=200, index=0, count=2) -> bytes:
    return struct.pack(">BQIII", version, transfer, total, index, count)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "malformed"),
        (head()[:-1], "malformed"),
        (head(version=2) + bytes(100), "malformed"),
        (head(count=0) + bytes(100), "malformed"),
        (head(index=2) + bytes(100), "malformed"),
        (head(total=3, count=4) + bytes(1), "malformed"),
        (head(total=10, count=7, index=0) + bytes(2), "malformed"),
        (head(total=0xFFFFFFFF, count=0xFFFFFFFF, index=0) + b"x", "too_large"),
        (head(total=50_001) + bytes(25_001), "too_large"),
        (head() + bytes(99), "inconsistent"),
        (head() + bytes(101), "inconsistent"),
    ],
)
def test_a_chunk_that_is_none_is_refused_and_nothing_is_kept(data, reason):
    into = reassembly()
    with pytest.raises(ChunkError) as caught:
        into.add(A, data, 0)
    assert caught.value.reason == reason
    assert (len(into), into.bytes_held, into.held_by(A)) == (0, 0, 0)


def test_a_chunk_that_disagrees_ends_its_transfer():
    into = reassembly()
    into.add(A, head() + bytes(100), 0)
    with pytest.raises(ChunkError, match="chunk 1"):
        into.add(A, head(total=300, index=1, count=3) + bytes(100), 0)
    assert (len(into), into.bytes_held) == (0, 0)


def test_transfers_at_once_are_bounded_and_free_up_by_age():
    into = reassembly(at_once=2)
    for number in range(2):
        into.add(A, head(transfer=number) + bytes(100), 0)
    with pytest.raises(ChunkError) as caught:
        into.add(B, head(transfer=9) + bytes(100), AGE - 1)
    assert caught.value.reason == "full"
    assert into.add(B, head(transfer=9) + bytes(100), AGE) is None
    assert (len(into), into.expired) == (1, 2)


def test_bytes_are_bounded_and_one_sender_leaves_the_others_room():
    into = reassembly(at_once=1000, max_bytes=20_000, max_envelope=5_000)
    with pytest.raises(ChunkError):
        for number in range(1000):
            into.add(A, head(transfer=number, total=2000) + bytes(1000), 0)
    assert into.bytes_held <= 10_000
    assert into.add(B, head(transfer=1) + bytes(100), 0) is None


def test_tiny_chunks_are_charged_for_what_they_cost():
    into = reassembly(at_once=10, max_bytes=20_000, max_envelope=50_000)
    with pytest.raises(ChunkError):
        for index in range(1000):
            into.add(A, head(total=1000, index=index, count=1000) + b"x", 0)
    assert into.bytes_held == 0  # the transfer that does not fit is given up whole


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=60)), max_size=40))
def test_any_bytes_leave_the_bounds_kept(messages):
    into = reassembly(at_once=2, max_bytes=1000, max_envelope=300)
    for now, (who, data) in enumerate(messages):
        try:
            into.add(A if who else B, data, now * 100)
        except ChunkError:
            continue
    assert len(into) <= 2
    assert into.bytes_held <= 1000
