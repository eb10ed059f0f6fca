"""Presence: its CBOR, what one says against another, and its bounds."""

from __future__ import annotations

import contextlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.wire import cbor
from bb_edge.wire.presence import (
    FAR_SESSIONS,
    MAX_ADDRESSES,
    MAX_CLASSES,
    MAX_META,
    MAX_PRESENCE_BYTES,
    MAX_SESSION,
    MAX_TEXT,
    Presence,
    PresenceError,
    decode_presence,
    encode_presence,
    presence_bytes,
)

SAID = Presence(True, 1, (), (b"x",), {"ram": 512}, session=3, seq=2, will="Client")


def test_the_bytes_are_the_map_of_the_specification() -> None:
    data = encode_presence(SAID)
    assert cbor2.loads(data) == {
        "up": True,
        "epoch": 1,
        "session": 3,
        "seq": 2,
        "will": "Client",
        "addresses": [b"x"],
        "version": 1,
        "meta": {"ram": 512},
    }
    assert decode_presence(data) == SAID
    assert decode_presence(cbor2.dumps({"up": False})) == Presence(False)
    assert decode_presence(cbor2.dumps({"up": True, "something": "new"})) == Presence(True)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"up": 1},
        {"up": True, "epoch": -1},
        {"up": True, "epoch": True},
        {"up": True, "version": "1"},
        {"up": True, "session": -1},
        {"up": True, "session": MAX_SESSION + 1},
        {"up": True, "session": "1"},
        {"up": True, "seq": -1},
        {"up": True, "seq": MAX_SESSION + 1},
        {"up": True, "will": 1},
        {"up": True, "will": "a/b"},
        {"up": True, "will": "+"},
        {"up": True, "classes": "Client"},
        {"up": True, "classes": ["c"] * (MAX_CLASSES + 1)},
        {"up": True, "classes": ["c" * (MAX_TEXT + 1)]},
        {"up": True, "classes": [b"c"]},
        {"up": True, "addresses": [b"a"] * (MAX_ADDRESSES + 1)},
        {"up": True, "addresses": ["a"]},
        {"up": True, "meta": []},
        {"up": True, "meta": {1: 2}},
        {"up": True, "meta": {str(n): n for n in range(MAX_META + 1)}},
        {"up": True, "meta": {"much": "x" * MAX_PRESENCE_BYTES}},
    ],
)
def test_what_is_no_presence(value: object) -> None:
    with pytest.raises(PresenceError):
        decode_presence(cbor2.dumps(value))


def test_presences_at_their_limits() -> None:
    full = Presence(
        True,
        2**64 - 1,
        ("c" * 64,) * MAX_CLASSES,
        (bytes(MAX_TEXT),) * MAX_ADDRESSES,
        {str(n): n for n in range(MAX_META)},
        session=MAX_SESSION,
        seq=MAX_SESSION,
        will="c" * 64,
    )
    assert decode_presence(encode_presence(full)) == full


NUMBERS = st.sampled_from([n + more for n in (0, 24, 1 << 8, 1 << 16, 1 << 32) for more in (-1, 0, 1)])
TEXTS = st.text("aü", max_size=300)


@given(
    st.builds(
        Presence,
        st.booleans(),
        st.none() | st.integers(1, 2**64 - 1) | NUMBERS,
        st.lists(TEXTS, max_size=30).map(tuple),
        st.lists(st.binary(max_size=300), max_size=30).map(tuple),
        st.dictionaries(TEXTS, st.integers(0, 300), max_size=30),
        NUMBERS,
        NUMBERS,
        NUMBERS,
        TEXTS,
    )
)
def test_how_long_a_presence_is_without_writing_it(presence: Presence) -> None:
    assert presence_bytes(presence, len(cbor.dumps(presence.meta))) == len(encode_presence(presence))


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 255))
def test_noise_gives_a_presence_or_a_typed_error(noise: bytes, place: int, byte: int) -> None:
    damaged = bytearray(encode_presence(SAID))
    damaged[place % len(damaged)] = byte
    for data in (noise, bytes(damaged)):
        with contextlib.suppress(PresenceError):
            decode_presence(data)


UP = Presence(True, 7, session=2, seq=5)
DOWN = Presence(False, 7, session=2)


@pytest.mark.parametrize(
    ("news", "known"),
    [
        (Presence(False, 6, session=9), UP),  # the will of another epoch
        (Presence(True, 7, session=1, seq=9), UP),
        (Presence(False, 7, session=1), UP),
        (UP, DOWN),  # a goodbye is final for its session
        (Presence(True, 7, session=2, seq=9), DOWN),
    ],
)
def test_what_says_nothing_any_more(news: Presence, known: Presence) -> None:
    assert news.is_older_than(known)


@pytest.mark.parametrize(
    ("news", "known"),
    [
        (Presence(True, 6, session=1), UP),  # another process: there is no order of epochs
        (Presence(True, 6, session=1), DOWN),
        (Presence(True, 7, session=3), DOWN),  # it is connected again
        (Presence(False, 7, session=3), UP),
        (Presence(False, 7, session=2), UP),  # a will has no number in its session
        (Presence(False, 7, session=2), DOWN),
        (Presence(True, 7, session=2, seq=1), UP),
        (Presence(True), DOWN),  # the transport counts nothing
        (Presence(True, 7), DOWN),
        (Presence(False), UP),
    ],
)
def test_what_still_counts(news: Presence, known: Presence) -> None:
    assert not news.is_older_than(known)


def test_a_session_far_beyond_what_is_known_is_nobody_s():
    """One forged goodbye would otherwise be the last word of an epoch."""
    known = Presence(True, 7, session=3, seq=1)
    far = 3 + FAR_SESSIONS
    assert not Presence(False, 7, session=far, seq=1).is_older_than(known)
    assert Presence(False, 7, session=far + 1, seq=1).is_older_than(known)
    assert Presence(True, 7, session=MAX_SESSION, seq=1).is_older_than(known)
