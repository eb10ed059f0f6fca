from __future__ import annotations

import copy
import gc
import hashlib
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir import base58
from bb_edge.ir.base58 import Base58Error
from bb_edge.ir.ids import PeerId, PeerIdError, fnv1a_64, site_beside, site_id
from tests.aids.peers import numbered

peers = st.builds(PeerId, st.integers(0, 2**64 - 1), st.binary(max_size=64))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"\0", "1"),
        (b"\0\0\x01", "112"),
        (b"hello world", "StV1DL6CwTryKyV"),  # base58 draft's and the Bitcoin suite's examples
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
        (bytes.fromhex("516b6fcd0f"), "ABnLTmg"),
    ],
)
def test_base58_known_forms(data, text):
    assert base58.encode(data) == text
    assert base58.decode(text) == data


@given(st.binary(max_size=75))
def test_base58_round_trip(data):
    assert base58.decode(base58.encode(data)) == data


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "ab c", "é", "1" * 129])
def test_base58_refusals(text):
    with pytest.raises(Base58Error):
        base58.decode(text)


def test_a_name_is_its_sha2_256_multihash():
    peer = PeerId.from_name("sensor-07")
    digest = hashlib.sha256(b"sensor-07").digest()
    assert peer.to_bytes() == b"\x12\x20" + digest
    assert str(peer).startswith("Qm")  # as every sha2-256 multihash of libp2p
    assert peer.short() == str(peer)[-8:]


def test_a_libp2p_id_is_read_and_written_unchanged():
    text = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"  # from the libp2p peer id specification
    peer = PeerId.from_text(text)
    assert peer.to_bytes()[:2] == b"\x00\x24"  # identity of a 36-byte public key
    assert str(peer) == text
    assert PeerId.from_bytes(peer.to_bytes()) == peer


def test_a_short_digest_may_stand_for_itself():
    assert numbered(258).to_bytes() == bytes.fromhex("0008" + "0000000000000102")


@given(peers)
def test_round_trips(peer):
    assert PeerId.from_bytes(peer.to_bytes()) == peer
    assert PeerId.from_bytes(memoryview(peer.to_bytes())) == peer
    assert PeerId.from_text(peer.to_text()) == peer
    assert copy.deepcopy(peer) == pickle.loads(pickle.dumps(peer)) == peer
    rebuild, _ = peer.__reduce__()
    assert rebuild.__qualname__ == rebuild.__name__, "picklers name it, and do not copy it"


@given(st.lists(peers, max_size=8))
def test_equality_order_and_hash_are_those_of_the_bytes(found):
    assert [p.to_bytes() for p in sorted(found)] == sorted(p.to_bytes() for p in found)
    again = [PeerId.from_bytes(p.to_bytes()) for p in found]
    assert set(found) == set(again)
    assert [hash(p) for p in found] == [hash(p) for p in again]


def test_there_is_one_object_per_id_and_it_goes_with_its_last_user():
    data = b"\x00\x03one"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: PeerId.from_bytes(data), range(2_000)))
    assert len({id(peer) for peer in made}) == 1
    assert made[0] is PeerId(0, b"one") is copy.copy(made[0])
    gone = weakref.ref(made[0])
    del made
    gc.collect()
    assert gone() is None and PeerId.from_bytes(data).to_bytes() == data


def test_a_peer_id_compares_with_peer_ids_only():
    assert numbered(1) != b"\x00\x08" + bytes(7) + b"\x01"
    with pytest.raises(TypeError):
        assert numbered(1) < 2  # type: ignore[operator]


def test_a_peer_id_does_not_change():
    peer = numbered(1)
    for name in PeerId.__slots__:
        with pytest.raises(AttributeError):
            setattr(peer, name, b"")
        with pytest.raises(AttributeError):
            delattr(peer, name)
    with pytest.raises(AttributeError):
        peer.other = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "12",
        "1220",
        "1220" + "00" * 31,
        "1220" + "00" * 33,
        "920020" + "00" * 32,
        "0041" + "00" * 65,
        "00ff" * 9,
    ],
)
def test_bytes_that_are_no_peer_id(data):
    with pytest.raises(PeerIdError):
        PeerId.from_bytes(bytes.fromhex(data))


def test_the_bound_on_digests_is_exact():
    assert PeerId(0x13, bytes(64)).to_bytes()[-64:] == bytes(64)
    with pytest.raises(PeerIdError, match="65 digest bytes, 64 at most"):
        PeerId(0x13, bytes(65))
    for code in (-1, 2**64):
        with pytest.raises(PeerIdError):
            PeerId(code, b"")


@pytest.mark.parametrize("text", ["", "0", "zzz", "1" * 128, "1" * 10_000])
def test_texts_that_are_no_peer_id(text):
    with pytest.raises(PeerIdError):
        PeerId.from_text(text)


@given(st.binary(max_size=80))
def test_hostile_bytes_give_the_typed_error_or_the_same_bytes_again(data):
    try:
        peer = PeerId.from_bytes(data)
    except PeerIdError:
        return
    assert peer.to_bytes() == data


@pytest.mark.parametrize(
    ("data", "value"),
    [  # from the reference test vectors of FNV-1a
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_fnv1a_64(data, value):
    assert fnv1a_64(data) == value


def test_the_sites_of_a_port_follow_from_its_first():
    first = site_id("FederatedDigits", "global", "ask", 0)
    for index in (0, 1, 9, 10, 123):
        assert site_beside(first, index) == site_id("FederatedDigits", "global", "ask", index)


def test_site_ids_name_module_port_direction_and_index():
    assert site_id("FederatedDigits", "global", "ask", 0) == fnv1a_64(b"FederatedDigits/global/ask/0")
    found = {site_id("M", "p", way, index) for way in ("ask", "reply") for index in range(4)}
    assert len(found) == 8


def test_a_number_in_place_of_bytes_is_no_block_of_zeros() -> None:
    """As a damaged file has it: nothing of that size is made."""
    number: Any = 1 << 62
    with pytest.raises(TypeError):
        PeerId.from_bytes(number)
