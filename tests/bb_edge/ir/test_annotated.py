"""Metadata that an array carries: to the wire and back, and no further."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.ir.annotated import annotate, metadata_of
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.tensors import MAX_METADATA, TensorError, decode_tensor, encode_tensor
from bb_edge.wire.codecs import decode_value, encode_value
from tests.aids.arrays import tensor_bytes

ARRAY = np.arange(6, dtype=np.float32)
METADATA = {"layout": "w:2x3", "hash": "00ff"}


def test_metadata_travel_with_the_value() -> None:
    type_hash, payload = encode_value(annotate(ARRAY, METADATA))
    assert {e.key: e.value for e in TensorProto.FromString(payload).metadata_props} == METADATA
    found = decode_value(type_hash, payload)
    np.testing.assert_array_equal(found, ARRAY)
    assert metadata_of(found) == METADATA


def test_a_tensor_of_another_writer_keeps_them_too() -> None:
    proto = TensorProto(dims=[6], data_type=1, float_data=ARRAY.tolist())
    proto.metadata_props.add(key="layout", value="w:2x3")
    assert metadata_of(decode_tensor(proto.SerializeToString())) == {"layout": "w:2x3"}


def test_a_plain_array_carries_none_and_costs_no_byte() -> None:
    assert encode_value(ARRAY)[1] == encode_tensor(ARRAY)
    found = decode_tensor(encode_tensor(ARRAY))
    assert type(found) is np.ndarray
    assert metadata_of(found) == {}


def test_what_is_computed_of_it_carries_none() -> None:
    array = annotate(ARRAY, METADATA)
    for other in (array + 1, array[2:], array.reshape(2, 3), array.copy()):
        assert metadata_of(other) == {}
    assert metadata_of(array) == METADATA


@pytest.mark.parametrize("n", [MAX_METADATA - 1, MAX_METADATA, MAX_METADATA + 1])
def test_their_number_is_bounded(n: int) -> None:
    payload = tensor_bytes(ARRAY, {f"k{i}": "" for i in range(n)})
    if n > MAX_METADATA:
        with pytest.raises(TensorError, match="more than 64"):
            decode_tensor(payload)
    else:
        assert len(metadata_of(decode_tensor(payload))) == n


def test_damaged_metadata_are_refused() -> None:
    whole = tensor_bytes(ARRAY, {"ab": "cd"})
    place = whole.index(b"ab")
    for damaged in (whole.replace(b"cd", b"\xff\xfe"), whole[: place - 1] + b"\x7f" + whole[place:]):
        with pytest.raises(TensorError):
            decode_tensor(damaged)
