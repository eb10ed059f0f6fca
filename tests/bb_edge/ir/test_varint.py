from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir import varint
from bb_edge.ir.varint import VarintError


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (421, "a503"), (0xE2, "e201"), (2**64 - 1, "ff" * 9 + "01")],
)
def test_known_forms(number, data):
    assert varint.encode(number) == bytes.fromhex(data)
    assert varint.decode(bytes.fromhex(data)) == (number, len(data) // 2)


@pytest.mark.parametrize("bits", range(1, 80))
def test_a_number_of_any_length_has_seven_bits_in_each_byte(bits):
    for number in (1 << bits - 1, (1 << bits) - 1, 0x5A5A5A5A5A5A5A5A5A5A & (1 << bits) - 1 | 1 << bits - 1):
        data = varint.encode(number)
        assert len(data) == -(-bits // 7)
        assert [byte >= 0x80 for byte in data] == [True] * (len(data) - 1) + [False]
        assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) == number


@given(st.integers(0, 2**64 - 1), st.binary(max_size=4), st.binary(max_size=4))
def test_round_trip_at_an_offset(number, before, behind):
    data = before + varint.encode(number) + behind
    assert varint.decode(memoryview(data), len(before)) == (number, len(data) - len(behind))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("", "truncated"),
        ("80", "truncated"),
        ("8000", "overlong"),
        ("ff80808000", "overlong"),
        ("ff" * 9 + "02", "more than 64 bits"),
        ("ff" * 10 + "01", "more than 64 bits"),
        ("ff" * 1000, "more than 64 bits"),
    ],
)
def test_refusals(data, what):
    with pytest.raises(VarintError, match=what):
        varint.decode(bytes.fromhex(data))


def test_the_bound_on_bits_is_exact():
    assert varint.decode(varint.encode(2**64 - 1)) == (2**64 - 1, 10)
    with pytest.raises(VarintError, match="more than 64 bits"):
        varint.decode(bytes.fromhex("80" * 9 + "02"))


def test_negative_numbers_have_no_form():
    with pytest.raises(VarintError, match="negative"):
        varint.encode(-1)


@given(st.binary(max_size=12))
def test_any_bytes_give_a_number_in_its_shortest_form_or_the_typed_error(data):
    try:
        number, end = varint.decode(data)
    except VarintError:
        return
    assert varint.encode(number) == data[:end]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 1023, 1024, 1 << 40, (1 << 64) - 1])
def test_what_is_kept_is_what_would_be_encoded(value):
    assert varint.encoded(value) == varint.encode(value)


def test_a_number_that_has_no_form_is_not_kept_either():
    with pytest.raises(varint.VarintError):
        varint.encoded(-1)
