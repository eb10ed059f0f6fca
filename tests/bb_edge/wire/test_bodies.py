"""A body and what follows it are the envelope's bytes; bodies that are shared count once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.bb_core_pb2 import WireEnvelope
from bb_edge.wire.bodies import SHARED_FROM, HeldBodies
from bb_edge.wire.body_bytes import shared_body
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.codecs import decode_value, encode_pieces, encode_value
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, Fill, decode, encode

FILLS = st.lists(
    st.builds(
        Fill,
        dest_suffix=st.binary(max_size=40),
        payload=st.sampled_from([b"", b"x", bytes(130), b"y" * 5000, bytes(70_000)]),
        trigger_only=st.booleans(),
        type_hash=st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=4,
)


@given(FILLS)
def test_a_body_and_the_rest_are_the_bytes_of_the_envelope(fills):
    message = Envelope(fills, REQUEST, 7, 10**10, epoch=9, seq=3, acks=(Ack(4, 5),), base=2)
    whole = encode(message)
    payloads = [bytes(fill.payload) for fill in fills]
    body = shared_body(fills, [(len(data), [data[:100], memoryview(data)[100:]]) for data in payloads])
    assert [bytes(fill.payload) for fill in fills] == payloads
    assert body + encode(message, with_fills=False) == whole
    assert all(fill.payload.obj is body for fill in fills)
    assert encode(message) == whole, "the payloads are views of the body"


@pytest.mark.parametrize("before", [0, 1, 5, 8])
@pytest.mark.parametrize("shape", [(2000,), (40, 50), (2, 2, 3000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_numbers_in_a_body_begin_at_a_multiple_of_8_bytes_and_any_reader_takes_them(dtype, shape, before):
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    type_hash, in_pieces = encode_pieces(array)
    whole = encode_value(array[::-1])[1]  # as a fill has it that is joined with another one
    fills = [Fill(bytes(before), type_hash=type_hash), Fill(b"", whole, type_hash=type_hash)]
    large = array.nbytes >= SHARED_FROM
    body = shared_body(fills, [in_pieces, (len(whole), [whole])])
    rest = encode(Envelope((), REQUEST, 7, epoch=9, seq=3))
    read = decode(memoryview(body + rest), HOST_CAPS)
    assert (read.kind, read.seq, len(read.fills)) == (REQUEST, 3, 2)
    plain = WireEnvelope.FromString(body + rest)
    for fill, kept, want in zip(read.fills, plain.fills, (array, array[::-1]), strict=True):
        assert kept.payload == fill.payload and not kept.trigger_only
        value = decode_value(fill.type_hash, fill.payload)
        assert np.array_equal(value, want) and value.dtype == dtype
        if large:
            place = value.ctypes.data - np.frombuffer(fill.payload.obj, np.uint8).ctypes.data
            assert 0 <= place < len(body) and place % 8 == 0, "in the body itself, and aligned"


def test_a_view_that_nobody_writes_to_is_read_in_place_and_any_other_is_copied():
    message = encode(Envelope([Fill(b"s", bytes(SHARED_FROM))], src_peer=b"me"))
    own = bytearray(message)
    for data, in_place in ((memoryview(own).toreadonly(), True), (memoryview(own), False), (own, False)):
        read = decode(data, HOST_CAPS)
        assert read == decode(message, HOST_CAPS) and type(read.src_peer) is bytes
        assert (read.fills[0].payload.obj is own) == in_place


def test_what_follows_a_body_can_be_read_without_it():
    message = Envelope([Fill(b"s", bytes(SHARED_FROM))], REQUEST, 7, epoch=9, seq=3)
    rest = decode(encode(message, with_fills=False), HOST_CAPS)
    assert (rest.fills, rest.kind, rest.wire_req_id, rest.epoch, rest.seq) == ([], REQUEST, 7, 9, 3)


def test_a_body_counts_once_while_somebody_holds_it():
    held, body, other = HeldBodies(), bytes(100), bytes(bytearray(100))
    assert (held.adds(body), held.hold(body), held.adds(body), held.hold(body)) == (100, 100, 0, 0)
    assert held.hold(other) == 100, "equal bytes in another place are other bytes"
    assert (held.drop(body), held.drop(body), held.adds(body)) == (0, 100, 100)
    with pytest.raises(KeyError):
        held.drop(body)
