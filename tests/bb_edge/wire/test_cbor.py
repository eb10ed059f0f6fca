"""The bounded CBOR against cbor2, in both directions, and against hostile bytes."""

from __future__ import annotations

import contextlib
import math

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
