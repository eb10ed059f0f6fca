"""JSON and CBOR of others: a plain value of bounded depth, or ValueError."""

from __future__ import annotations

import cbor2
import pytest

from bb_edge.ir.plain_values import MAX_DEPTH, NestedTooDeep, from_cbor, from_json, shallow


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_plain_values_come_back() -> None:
    value = {"a": [1, 2.5, None, {"b": "c"}], "d": True}
    assert from_json('{"a": [1, 2.5, null, {"b": "c"}], "d": true}') == value
    assert from_cbor(cbor2.dumps(value)) == value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 990, 3_000, 100_000])
def test_what_nests_too_deep_is_refused(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(NestedTooDeep, match="64 levels"):
            from_json(text)
    with pytest.raises(ValueError, match=r"."):
        from_cbor(b"\x81" * depth + b"\x00")
    with pytest.raises(ValueError, match=r"."):
        from_json("[" * depth)


def test_the_deepest_value_is_taken() -> None:
    deepest = nested(MAX_DEPTH)
    assert shallow(deepest) is deepest
    assert from_cbor(cbor2.dumps(deepest)) == deepest
    with pytest.raises(NestedTooDeep):
        shallow(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x5b" + b"\xff" * 8,  # 2^64 - 1 bytes are announced
        b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff",  # and as many items
        cbor2.dumps(cbor2.CBORTag(0, "not a time")),
        cbor2.dumps(cbor2.CBORTag(4, [1, "x"])),
        cbor2.dumps(cbor2.CBORTag(35, "(")),
        b"\xa1\x80\x00",  # a list as a key
    ],
)
def test_damaged_cbor_is_one_kind_of_error(data: bytes) -> None:
    try:
        from_cbor(data)
    except ValueError as error:
        assert str(error)
