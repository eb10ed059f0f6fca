from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bb_edge.ir import types, varint
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.tensors import (
    MAX_RANK,
    TensorError,
    decode_tensor,
    encode_tensor,
    from_tensor_proto,
    tensor_metadata,
    tensor_pieces,
    to_tensor_proto,
)
from tests.aids.arrays import tensor_bytes

NUMBERS = [t.elem_type for t in types.REGISTRY if t.elem_type]
ELEMS = [e for e in NUMBERS if e != TensorProto.BFLOAT16]
arrays = st.sampled_from(ELEMS).flatmap(
    lambda elem: npst.arrays(types.dtype_of_elem(elem), npst.array_shapes(min_dims=0, max_dims=4, min_side=0))
)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit by bit, so that NaNs count."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def bfloat16(values) -> np.ndarray:
    """The bits of numbers as bfloat16, cut off: the upper half of those of float32."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@given(arrays)
def test_wire_round_trip(array):
    data = encode_tensor(array)
    for buffer in (data, bytearray(data), memoryview(data)):
        found = decode_tensor(buffer)
        assert same(found, array)
        assert not found.flags.writeable


@given(arrays)
def test_pieces_are_the_wire_bytes_and_share_the_array(array):
    size, (_, numbers, *rest) = tensor_pieces(array, {"key": "value", "long": "x" * 300})
    assert np.shares_memory(np.asarray(numbers), array) or not array.size
    assert size == len(tensor_bytes(array, {"key": "value", "long": "x" * 300}))
    assert encode_tensor(array).endswith(bytes(numbers)) and len(rest) == 2


@given(arrays)
def test_wire_bytes_are_a_tensor_proto_for_onnx(onnx, array):
    proto = onnx.TensorProto.FromString(encode_tensor(array))
    onnx.checker.check_tensor(proto)
    assert same(onnx.numpy_helper.to_array(proto), array)


@given(arrays)
def test_onnx_s_tensors_are_ours(onnx, array):
    proto = onnx.numpy_helper.from_array(array, "weights")
    assert same(decode_tensor(proto.SerializeToString()), array)
    assert same(from_tensor_proto(TensorProto.FromString(proto.SerializeToString())), array)


@given(arrays)
def test_proto_round_trip(array):
    assert same(from_tensor_proto(to_tensor_proto(array)), array)


@given(arrays)
def test_views_that_are_not_contiguous(array):
    turned = array.T[::-1] if array.ndim else array
    assert same(decode_tensor(encode_tensor(turned)), np.array(turned, order="C"))
    assert same(from_tensor_proto(to_tensor_proto(turned)), np.array(turned, order="C"))


@pytest.mark.parametrize("elem", NUMBERS)
def test_typed_data_fields(onnx, elem):
    values = [0, 1, 1, 0, 1, 1]
    proto = onnx.helper.make_tensor("w", elem, [2, 3], values)
    assert not proto.HasField("raw_data")
    found = decode_tensor(proto.SerializeToString())
    dtype = types.dtype_of_elem(elem)
    expected = np.array(values).reshape(2, 3)
    if elem == TensorProto.BFLOAT16:
        expected = bfloat16(expected)
    assert same(found, expected.astype(dtype))
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("elem", "values"),
    [
        (TensorProto.INT8, [-128, 127]),
        (TensorProto.UINT8, [0, 255]),
        (TensorProto.INT16, [-32768, 32767]),
        (TensorProto.UINT16, [0, 65535]),
        (TensorProto.BOOL, [0, 1]),
    ],
)
def test_values_in_a_wider_field_must_fit(elem, values):
    assert from_tensor_proto(TensorProto(dims=[2], data_type=elem, int32_data=values)).tolist() == values
    for beyond in (values[0] - 1, values[1] + 1):
        with pytest.raises(TensorError, match="stored values beyond"):
            from_tensor_proto(TensorProto(dims=[1], data_type=elem, int32_data=[beyond]))
    with pytest.raises(TensorError, match="stored values beyond"):
        from_tensor_proto(TensorProto(dims=[1], data_type=TensorProto.UINT32, uint64_data=[2**32]))


def test_bfloat16_is_held_as_its_bits(onnx):
    bits = bfloat16([1.0, -2.5, 3e38])
    data = tensor_bytes(bits, elem_type=TensorProto.BFLOAT16)
    proto = onnx.TensorProto.FromString(data)
    assert onnx.numpy_helper.to_array(proto).astype(np.float64).tolist()[:2] == [1.0, -2.5]
    assert same(decode_tensor(data), bits)
    with pytest.raises(TensorError, match="not held as float32"):
        tensor_bytes(np.zeros(1, np.float32), elem_type=TensorProto.BFLOAT16)


def padded(array: np.ndarray) -> bytes:
    """The tensor's bytes with its data on a multiple of eight, in an aligned buffer."""
    data = encode_tensor(array)
    head = len(data) - array.nbytes
    store = np.zeros(len(data) + 8, np.uint8)
    start = -(store.ctypes.data + head) % 8
    store[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(store)[start : start + len(data)]


def test_aligned_bytes_are_not_copied_and_others_are():
    array = np.arange(6, dtype=np.float64)
    aligned = padded(array)
    assert np.shares_memory(decode_tensor(aligned), np.frombuffer(aligned, np.uint8))
    moved = memoryview(bytearray(b"\0" + bytes(aligned)))[1:]
    tail = np.frombuffer(moved, np.uint8)[len(moved) - array.nbytes :]
    found = decode_tensor(moved)
    assert np.shares_memory(found, tail) == (tail.ctypes.data % 8 == 0)
    assert found.flags.aligned
    assert same(found, array)


def test_tensors_of_one_size_are_told_apart_however_often_they_come():
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.arange(3, dtype=np.float64).reshape(1, 3),
    ]
    for array in arrays * 3:
        assert same(decode_tensor(encode_tensor(array)), array)


def test_bools_are_looked_at_however_often_their_form_comes():
    good = encode_tensor(np.array([True, False]))
    for _ in range(3):
        assert decode_tensor(good).tolist() == [True, False]
        with pytest.raises(TensorError, match="beyond"):
            decode_tensor(good[:-1] + b"\x02")


def test_more_forms_than_are_remembered_are_decoded():
    for size in (*range(300), *range(300)):
        assert decode_tensor(encode_tensor(np.zeros(size, np.uint8))).shape == (size,)


def test_what_is_decoded_cannot_be_written():
    data = bytearray(encode_tensor(np.arange(6, dtype=np.uint8)))
    with pytest.raises(ValueError, match="read-only"):
        decode_tensor(data)[0] = 1


def head(dims: list[int], elem: int, size: int) -> bytes:
    parts = b"".join(b"\x08" + varint.encode(d) for d in dims)
    return parts + b"\x10" + varint.encode(elem) + b"\x4a" + varint.encode(size)


F32 = TensorProto.FLOAT


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "element type 0"),
        (head([2], F32, 4) + bytes(4), "4 bytes for 2 elements"),
        (head([1], F32, 8) + bytes(8), "8 bytes for 1 elements"),
        (head([1], F32, 4) + bytes(3), "truncated"),
        (head([1], F32, 2**63) + bytes(4), "truncated"),
        (head([1], 8, 4) + bytes(4), "element type 8"),
        (head([1], 2**40, 4) + bytes(4), "element type"),
        (head([2**62, 4], F32, 0), "multiply to more"),
        (head([0, 2**62, 2**62], F32, 0), "multiply to more"),
        (head([0, 2**64 - 1], F32, 0), "multiply to more"),
        (head([2**64 - 1], F32, 4) + bytes(4), "multiply to more"),
        (head([1] * (MAX_RANK + 1), F32, 4) + bytes(4), "rank beyond 8"),
        (b"\x0a\x09" + b"\x01" * 9 + head([], F32, 4) + bytes(4), "rank beyond 8"),
        (b"\x0a\x05\x01" + head([], F32, 4) + bytes(4), "not a TensorProto"),
        (b"\x0a\x7f\x01", "truncated"),
        (head([1], TensorProto.BOOL, 1) + b"\x02", "beyond 0..1"),
        (b"\x08", "not a TensorProto"),
        (b"\xff" * 30, "not a TensorProto"),
    ],
)
def test_refusals_say_why(data, says):
    with pytest.raises(TensorError, match=says):
        decode_tensor(data)


def test_protobuf_s_other_spellings_are_read():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = b"\x4a\x18" + array.tobytes()
    packed = b"\x0a\x02\x02\x03"
    for data in (
        packed + b"\x10\x01" + raw,
        raw + b"\x10\x01" + packed,  # any order
        b"\x08\x82\x00\x08\x03" + b"\x10\x01" + raw,  # an overlong varint
        packed + b"\x10\x01" + raw + b"\x42\x01w",  # a name
        packed + b"\x10\x01" + raw + b"\xf8\x07\x01",  # an unknown field
    ):
        assert same(decode_tensor(data), array)
        assert same(from_tensor_proto(TensorProto.FromString(data)), array)


@given(st.data(), arrays)
def test_hostile_bytes_give_the_typed_error_or_a_tensor(data, array):
    encoded = bytearray(tensor_bytes(array, {"k": "v"}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(encoded) - 1, 24)))
        encoded[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(encoded)))
    for buffer in (bytes(encoded), bytes(encoded[:end])):
        for read in (decode_tensor, tensor_metadata):
            try:
                read(buffer)
            except TensorError:
                continue


@given(st.binary(max_size=64))
def test_any_bytes_give_the_typed_error_or_a_tensor(data):
    for read in (decode_tensor, tensor_metadata):
        try:
            read(data)
        except TensorError:
            continue


@given(arrays)
def test_every_truncation_is_refused_or_another_whole_tensor(array):
    data = encode_tensor(array)
    for end in range(len(data)):
        try:
            found = decode_tensor(data[:end])
        except TensorError:
            continue
        assert found.size == 0  # only data that is not missed can be missing


def test_metadata_rides_along(onnx):
    array = np.arange(3, dtype=np.float32)
    metadata = {"codec": "top_k", "n": "3", "größe": "€" * 100}
    data = tensor_bytes(array, metadata)
    assert tensor_metadata(data) == metadata
    assert same(decode_tensor(data), array)
    read = onnx.TensorProto.FromString(data)
    assert {p.key: p.value for p in read.metadata_props} == metadata
    assert tensor_metadata(encode_tensor(array)) == {}


def test_metadata_that_is_no_text_is_refused():
    with pytest.raises(TensorError):
        tensor_metadata(b"\x82\x01\x06\x0a\x02\xff\xfe\x12\x00")


def test_data_outside_the_file_is_refused():
    proto = TensorProto(dims=[1], data_type=F32, data_location=TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="../../etc/passwd")
    for read in (lambda: from_tensor_proto(proto), lambda: decode_tensor(proto.SerializeToString())):
        with pytest.raises(TensorError, match="outside"):
            read()
    segment = TensorProto(dims=[1], data_type=F32, raw_data=bytes(4))
    segment.segment.begin = 0
    with pytest.raises(TensorError, match="outside"):
        from_tensor_proto(segment)


@pytest.mark.parametrize(
    ("proto", "says"),
    [
        (TensorProto(dims=[2], data_type=F32, float_data=[1]), "1 values for 2 elements"),
        (TensorProto(dims=[2], data_type=F32, raw_data=bytes(4)), "4 bytes for 2 elements"),
        (TensorProto(dims=[-1], data_type=F32), "dimension -1 is negative"),
        (TensorProto(dims=[1], data_type=TensorProto.STRING, string_data=[b"x"]), "element type 8"),
        (TensorProto(dims=[1], data_type=TensorProto.BOOL, raw_data=b"\x07"), "beyond 0..1"),
    ],
)
def test_protos_that_contradict_themselves(proto, says):
    proto.name = "weights"
    with pytest.raises(TensorError, match=f"tensor 'weights': .*{says}"):
        from_tensor_proto(proto)


@pytest.mark.parametrize("dtype", ["complex64", "U4", ">f4", "O"])
def test_dtypes_without_a_tensor_type(dtype):
    for encode in (encode_tensor, to_tensor_proto):
        with pytest.raises(TensorError, match="no tensor type"):
            encode(np.zeros(2, dtype))


def test_the_bound_on_rank_is_the_same_in_both_directions():
    assert decode_tensor(encode_tensor(np.zeros((1,) * MAX_RANK))).ndim == MAX_RANK
    with pytest.raises(TensorError, match="rank 9"):
        encode_tensor(np.zeros((1,) * (MAX_RANK + 1)))
