"""A body and what follows it are the envelope's bytes; bodies that are shared count once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.wire.bodies import SHARED_FROM, HeldBodies
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, Fill, decode, encode, shared_body

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
    body = shared_body(fills)
    assert bool(body) == (sum(map(len, payloads)) >= SHARED_FROM)
    assert [bytes(fill.payload) for fill in fills] == payloads
    if body:
        assert body + encode(message, with_fills=False) == whole
        assert all(fill.payload.obj is body for fill in fills if isinstance(fill.payload, memoryview))
        assert encode(message) == whole, "the payloads are views of the body"


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
