"""The bounded CBOR against cbor2, in both directions, and against hostile bytes."""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.wire import cbor
from bb_edge.wire.cbor import CborError

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=300),
    st.text(max_size=40),
)
keys = st.one_of(st.integers(0, 1000), st.text(max_size=10))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_we_write_what_a_canonical_encoder_writes(value: object) -> None:
    assert cbor.dumps(value) == cbor2.dumps(value, canonical=True)


@given(values)
def test_we_read_what_others_write(value: object) -> None:
    assert cbor.loads(cbor2.dumps(value), 10_000, 100) == value
    assert cbor2.loads(cbor.dumps(value)) == value


@given(values, st.data())
def test_damage_gives_a_value_or_a_typed_error(value: object, data: st.DataObject) -> None:
    raw = bytearray(cbor.dumps(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for cut in (raw, raw[: data.draw(st.integers(0, len(raw)))]):
        with contextlib.suppress(CborError):
            cbor.loads(cut)


def test_not_a_number_and_infinity() -> None:
    assert cbor.dumps(math.nan) == cbor2.dumps(math.nan, canonical=True)
    assert math.isnan(cbor.loads(b"\xf9\x7e\x00"))  # type: ignore[arg-type]
    assert cbor.loads(cbor.dumps(-math.inf)) == -math.inf


@pytest.mark.parametrize("number", [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1])
def test_heads_at_their_widths(number: int) -> None:
    assert cbor.loads(cbor.dumps(number)) == number
    assert cbor.dumps(number) == cbor2.dumps(number)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x18",  # ends inside a number
        b"\x1f",  # reserved
        b"\x5f\x41a\xff",  # an indefinite length
        b"\xc1\x00",  # a tag
        b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff",  # 2^64 - 1 bytes announced
        b"\x9b\x00\x00\xff\xff\xff\xff\xff\xff",  # as many items
        b"\xbb\x00\x00\xff\xff\xff\xff\xff\xff",
        b"\x00\x00",  # something behind
        b"\x62\xff\xff",  # not utf-8
        b"\xa2\x01\x02\x01\x03",  # a key twice
        b"\xa1\x80\x01",  # a container as key
        b"\xf7",  # undefined
        b"\xf8\x20",
        b"\x81" * 200 + b"\x00",  # deep
    ],
)
def test_hostile(data: bytes) -> None:
    with pytest.raises(CborError):
        cbor.loads(data)


def test_bounds_below_at_and_above() -> None:
    for count, fits in ((4, True), (5, True), (6, False)):
        data = cbor.dumps([0] * (count - 1))
        if fits:
            assert cbor.loads(data, max_items=5) == [0] * (count - 1)
        else:
            with pytest.raises(CborError):
                cbor.loads(data, max_items=5)
    assert cbor.loads(b"\x81\x81\x00", max_depth=2) == [[0]]
    with pytest.raises(CborError):
        cbor.loads(b"\x81\x81\x00", max_depth=1)


@pytest.mark.parametrize("value", [object(), {1: object()}, 2**64, -(2**64) - 1, {1, 2}])
def test_no_plain_form(value: object) -> None:
    with pytest.raises(CborError):
        cbor.dumps(value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "CBOR: ends at byte 0"),
        (b"\x82\x00", "CBOR: 2 items announced, 1 bytes are there"),
        (b"\x82\x00\x19\x01", "CBOR: ends inside an item at byte 3"),
        (b"\x82\x00\x1b" + bytes(7), "CBOR: ends inside an item at byte 3"),
        (b"\x82\x00\x1c", "CBOR: an indefinite length or reserved form at byte 2"),
        (b"\x82\x00\x1f", "CBOR: an indefinite length or reserved form at byte 2"),
        (b"\x82\x00\x43ab", "CBOR: 3 bytes announced at byte 3, 2 are there"),
        (b"\x83\x00\x83\x00", "CBOR: 3 items announced, 1 bytes are there"),
        (b"\x82\x00\xa3\x00\x00", "CBOR: 3 items announced, 2 bytes are there"),
        (b"\x00\x00\x00", "CBOR: 2 bytes after the value"),
        (b"\x62\xff\xff", "CBOR: a text is not UTF-8"),
        (b"\xa2\x01\x02\x01\x03", "CBOR: key 1 comes twice"),
        (b"\xc1\x00", "CBOR: a tag is not plain data (send maps, lists, texts, bytes and numbers only)"),
        (b"\x81" * 9 + b"\x00", "CBOR: nested too deeply"),
        (b"\xf7", "CBOR: simple value 23 is not plain data"),
        (b"\xf8\x20", "CBOR: simple value 32 is not plain data"),
        (b"\x98\x80" + bytes(128), "CBOR: too many items"),
    ],
)
def test_a_refusal_says_what_and_where(data: bytes, said: str) -> None:
    with pytest.raises(CborError) as caught:
        cbor.loads(data, max_items=128)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2**64, "CBOR: 18446744073709551616 has more than 64 bits"),
        (object(), "CBOR: a object has no plain CBOR form"),
    ],
)
def test_what_cannot_be_written_is_named(value: object, said: str) -> None:
    with pytest.raises(CborError) as caught:
        cbor.dumps(value)
    assert str(caught.value) == said


def test_members_of_enumerations_are_written_as_their_values() -> None:
    class Word(str, enum.Enum):
        OPEN = "open"

    class Number(enum.IntEnum):
        FEW, MANY, NONE = 2, 70_000, -3

    values = [*Number, Word.OPEN]
    assert cbor.dumps(values) == cbor.dumps([2, 70_000, -3, "open"])


def test_the_bounds_that_hold_where_nobody_says_otherwise() -> None:
    assert cbor.loads(cbor.dumps([0] * 1023)) == [0] * 1023
    assert cbor.loads(b"\x81" * 8 + b"\x00") == [[[[[[[[0]]]]]]]]
    for data in (cbor.dumps([0] * 1024), b"\x81" * 9 + b"\x00"):
        with pytest.raises(CborError):
            cbor.loads(data)
    reader = cbor.Reader(bytes(1025))
    assert [reader.uint() for _ in range(1024)] == [0] * 1024
    with pytest.raises(CborError, match="too many items"):
        reader.uint()


def test_maps_count_towards_the_depth_on_their_way_down_and_not_beside_each_other() -> None:
    assert cbor.loads(b"\xa1\x00\xa1\x00\xa0", max_depth=3) == {0: {0: {}}}
    with pytest.raises(CborError, match="nested too deeply"):
        cbor.loads(b"\xa1\x00\xa1\x00\xa0", max_depth=2)
    assert cbor.loads(b"\xa2\x00\xa0\x01\xa0", max_depth=2) == {0: {}, 1: {}}


@pytest.mark.parametrize("number", [0, 23, 24, 65536, 2**64 - 1])
def test_a_reader_gives_what_is_asked_for(number: int) -> None:
    reader = cbor.Reader(cbor.dumps([number, b"bytes"]))
    assert reader.array() == 2
    assert reader.uint() == number
    assert reader.byte_string() == b"bytes"
    reader.done()
    assert cbor.Reader(b"\x82\x00\x00").array() == 2


@pytest.mark.parametrize(
    ("ask", "data", "said"),
    [
        (cbor.Reader.uint, b"\x20", "CBOR: expected an unsigned integer, got major type 1"),
        (cbor.Reader.byte_string, b"\x61a", "CBOR: expected a byte string, got major type 3"),
        (cbor.Reader.array, b"\xa0", "CBOR: expected an array, got major type 5"),
        (cbor.Reader.array, b"\x82\x00", "CBOR: 2 items announced, 1 bytes are there"),
    ],
)
def test_a_reader_refuses_everything_else(
    ask: Callable[[cbor.Reader], object], data: bytes, said: str
) -> None:
    with pytest.raises(CborError) as caught:
        ask(cbor.Reader(data))
    assert str(caught.value) == said


@pytest.mark.parametrize("value", [1.5, 65505.0, 2.0**100, 2.0**-24, 0.1, -1.0e300])
def test_a_float_takes_the_narrowest_width_that_keeps_it(value: float) -> None:
    assert cbor.dumps(value) == cbor2.dumps(value, canonical=True)
    assert cbor.loads(cbor.dumps(value)) == value


def test_the_largest_half_is_written_as_one() -> None:
    """As a literal: cbor2 5.4 takes the double width for it."""
    assert cbor.dumps(65504.0) == b"\xf9\x7b\xff"
    assert cbor.loads(b"\xf9\x7b\xff") == 65504.0


def test_large_byte_strings_are_pieces_that_nobody_copied() -> None:
    large, larger = bytes(cbor.LARGE), bytearray(b"x" * (cbor.LARGE + 1))
    value = {"b": [large, 1], "a": memoryview(larger), "c": {"deep": [bytes(cbor.LARGE - 1), large]}}
    found = cbor.pieces(value)
    assert b"".join(found) == cbor.dumps(value)
    assert [piece is large for piece in found].count(True) == 2
    assert any(isinstance(piece, memoryview) and piece.obj is larger for piece in found)
    assert len(found) == 6, "what is small is joined"


class Stands:
    """Of no type that CBOR has."""


def test_pieces_take_what_is_encoded_already_and_what_another_type_stands_for() -> None:
    inner = cbor.pieces({"k": {1, 2}}, lambda value: [Stands()] if isinstance(value, set) else 7)
    assert b"".join(cbor.pieces([cbor.Encoded(inner), 3])) == cbor.dumps([{"k": [7]}, 3])
    with pytest.raises(CborError, match="a set has no plain CBOR form"):
        cbor.pieces({"k": {1, 2}})
