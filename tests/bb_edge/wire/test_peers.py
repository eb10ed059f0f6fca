"""Presence: its CBOR, its transitions, wills of other epochs, bounds."""

from __future__ import annotations

import contextlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor
from bb_edge.wire.peers import (
    MAX_ADDRESSES,
    MAX_CLASSES,
    MAX_META,
    MAX_TEXT,
    PRESENCE,
    PeersFullError,
    PeerTable,
    Presence,
    PresenceChange,
    PresenceError,
    decode_presence,
    encode_presence,
)
from tests.aids.transitions import assert_decides_by

A, B, C = sorted(PeerId.from_name(name) for name in "abc")
CLIENT = Presence(True, 1, ("Client",), (b"x",), {"ram": 512})


def test_the_bytes_are_the_map_of_the_specification() -> None:
    data = encode_presence(CLIENT)
    assert cbor2.loads(data) == {
        "up": True,
        "epoch": 1,
        "classes": ["Client"],
        "addresses": [b"x"],
        "version": 1,
        "meta": {"ram": 512},
    }
    assert decode_presence(data) == CLIENT
    assert decode_presence(cbor2.dumps({"up": False})) == Presence(False)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"up": 1},
        {"up": True, "epoch": -1},
        {"up": True, "epoch": True},
        {"up": True, "version": "1"},
        {"up": True, "classes": "Client"},
        {"up": True, "classes": ["c"] * (MAX_CLASSES + 1)},
        {"up": True, "classes": ["c" * (MAX_TEXT + 1)]},
        {"up": True, "classes": [b"c"]},
        {"up": True, "addresses": [b"a"] * (MAX_ADDRESSES + 1)},
        {"up": True, "addresses": ["a"]},
        {"up": True, "meta": []},
        {"up": True, "meta": {1: 2}},
        {"up": True, "meta": {str(n): n for n in range(MAX_META + 1)}},
    ],
)
def test_what_is_no_presence(value: object) -> None:
    with pytest.raises(PresenceError):
        decode_presence(cbor2.dumps(value))


def test_presences_at_their_limits() -> None:
    full = Presence(
        True,
        2**64 - 1,
        ("c" * MAX_TEXT,) * MAX_CLASSES,
        (bytes(MAX_TEXT),) * MAX_ADDRESSES,
        {str(n): n for n in range(MAX_META)},
    )
    assert decode_presence(encode_presence(full)) == full


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 255))
def test_noise_gives_a_presence_or_a_typed_error(noise: bytes, place: int, byte: int) -> None:
    damaged = bytearray(encode_presence(CLIENT))
    damaged[place % len(damaged)] = byte
    for data in (noise, bytes(damaged)):
        with contextlib.suppress(PresenceError):
            decode_presence(data)


def test_peers_by_class_sorted() -> None:
    table = PeerTable()
    for peer in (C, A, B):
        assert table.update(peer, CLIENT) is PresenceChange.UP
    table.update(B, Presence(True, 1, ("Server", "Client")))
    assert table.up_peers("Client") == (A, B, C)
    assert table.up_peers("Server") == (B,)
    assert table.up_peers("Other") == ()
    table.update(A, Presence(False, 1))
    assert table.up_peers("Client") == (B, C)


def test_transitions() -> None:
    table = PeerTable()
    assert table.update(A, Presence(False, 1)) is PresenceChange.NONE  # never seen: nothing to keep
    assert len(table) == 0
    assert table.update(A, CLIENT) is PresenceChange.UP
    assert table.update(A, CLIENT) is PresenceChange.NONE
    assert table.update(A, Presence(True, 1, ("Server",))) is PresenceChange.CHANGED
    assert table.update(A, Presence(True, 2, ("Server",))) is PresenceChange.NEW_EPOCH
    assert table.update(A, Presence(False, 2)) is PresenceChange.DOWN
    assert table.update(A, Presence(False, 2)) is PresenceChange.NONE
    assert not table.is_up(A)
    assert table.update(A, Presence(True, 2)) is PresenceChange.UP
    assert table.epoch(A) == 2


def test_a_will_counts_for_its_own_epoch_only() -> None:
    table = PeerTable()
    table.update(A, Presence(True, 2))
    assert table.update(A, Presence(False, 1)) is PresenceChange.STALE
    assert table.is_up(A)
    assert table.update(A, Presence(False, None)) is PresenceChange.DOWN  # says no epoch: the transport knows


def test_a_present_peer_that_does_not_answer_is_not_up() -> None:
    table = PeerTable()
    table.update(A, CLIENT)
    assert table.up_peers("Client") == (A,)
    table.set_reachable(A, False)
    assert not table.is_up(A) and table.up_peers("Client") == ()
    table.set_reachable(A, True)
    assert table.up_peers("Client") == (A,)
    table.set_reachable(A, False)
    assert table.update(A, CLIENT) is PresenceChange.UP  # its presence is a sign of life
    table.set_reachable(B, False)  # unknown: nothing to remember
    assert len(table) == 1


def test_bound_below_at_and_above() -> None:
    table = PeerTable(capacity=2)
    table.update(A, CLIENT)
    table.update(B, CLIENT)
    with pytest.raises(PeersFullError):
        table.update(C, CLIENT)
    assert len(table) == 2
    table.update(B, Presence(False, 1))
    assert table.update(C, CLIENT) is PresenceChange.UP
    assert table.get(B) is None and table.forgotten == 1


def test_snapshot() -> None:
    table = PeerTable()
    table.update(A, CLIENT)
    table.update(B, CLIENT)
    table.update(B, Presence(False, 1))
    table.update(C, CLIENT)
    table.set_reachable(C, False)
    restored = PeerTable()
    restored.restore(cbor.loads(cbor.dumps(table.snapshot())))  # type: ignore[arg-type]
    assert restored.snapshot() == table.snapshot()
    assert restored.up_peers("Client") == (A,)
    assert restored.update(B, Presence(True, 1)) is PresenceChange.UP


def test_presence_is_decided_by_its_table() -> None:
    gone = Presence(False, 1)

    def walk() -> None:
        table = PeerTable(capacity=1)
        assert table.update(A, gone) is PresenceChange.NONE  # unknown: went
        table.set_reachable(A, False)  # unknown: fell_silent
        table.set_reachable(A, True)  # unknown: answered
        assert len(table) == 0
        assert table.update(A, CLIENT) is PresenceChange.UP  # unknown: came
        assert table.update(A, CLIENT) is PresenceChange.NONE  # up: came
        table.set_reachable(A, True)  # up: answered
        assert table.up_peers("Client") == (A,) and table.unreachable("Client") == []
        for _ in range(2):
            table.set_reachable(A, False)  # up, then silent: fell_silent
            assert table.up_peers("Client") == () and table.unreachable("Client") == [A]
        table.set_reachable(A, True)  # silent: answered
        assert table.is_up(A)
        table.set_reachable(A, False)
        assert table.update(A, CLIENT) is PresenceChange.UP  # silent: came
        assert table.update(A, gone) is PresenceChange.DOWN  # up: went
        assert table.update(A, gone) is PresenceChange.NONE  # down: went
        table.set_reachable(A, False)  # down: fell_silent
        table.set_reachable(A, True)  # down: answered
        assert not table.is_up(A) and table.unreachable("Client") == []
        assert table.update(A, CLIENT) is PresenceChange.UP  # down: came
        table.set_reachable(A, False)
        assert table.update(A, gone) is PresenceChange.NONE  # silent: went
        assert table.update(B, CLIENT) is PresenceChange.UP  # down: displaced
        assert table.get(A) is None and table.up_peers("Client") == (B,)

    assert_decides_by(PRESENCE, walk)
