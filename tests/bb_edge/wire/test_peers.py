"""What a node believes of its peers: by class, by session, by who spoke, within bounds."""

from __future__ import annotations

import pytest

from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor
from bb_edge.wire.peers import PRESENCE, PeerTable, PresenceChange
from bb_edge.wire.places import PeersFullError
from bb_edge.wire.presence import MAX_CLASSES, Presence, encode_presence
from tests.aids.peers import numbered
from tests.aids.transitions import assert_decides_by

A, B, C = sorted(PeerId.from_name(name) for name in "abc")
CLIENT = Presence(True, 1, ("Client",), (b"x",), {"ram": 512})


def size_of(presence: Presence) -> int:
    """What a presence is charged with: the bytes of its CBOR form."""
    return len(encode_presence(presence))


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


def test_all_that_are_known_of_a_class_up_or_not() -> None:
    table = PeerTable(capacity=3)
    for peer in (C, A):
        table.update(peer, CLIENT)
    assert table.known_peers("Client") == (A, C)
    table.update(B, Presence(False, 1, ("Client",)))  # first heard of as down
    table.update(A, Presence(False, 1))
    table.set_reachable(C, False)
    assert (table.up_peers("Client"), table.known_peers("Client")) == ((), (A, B, C))
    table.update(C, Presence(True, 1, ("Server",)))
    assert table.known_peers("Server") == (C,)
    kept = PeerTable()
    kept.known_peers("Client")
    kept.restore(table.snapshot())
    assert kept.known_peers("Client") == (A, B, C)
    table.clear(C, "Client")
    assert table.known_peers("Client") == (A, B)
    table.clear(A, None)
    assert table.known_peers("Client") == (B,)
    other = PeerId.from_name("d")
    table.update(A, CLIENT)
    table.update(other, CLIENT)  # B never spoke and is down: it makes room
    assert table.known_peers("Client") == tuple(sorted((A, other)))
    assert table.known_peers("Other") == ()


def test_transitions() -> None:
    table = PeerTable()
    assert table.update(A, Presence(False, 1)) is PresenceChange.NONE  # never seen: nothing to keep
    assert len(table) == 0
    assert table.update(A, CLIENT) is PresenceChange.UP
    assert table.update(A, CLIENT) is PresenceChange.NONE
    assert table.update(A, CLIENT._replace(meta={})) is PresenceChange.CHANGED
    assert table.update(A, Presence(True, 1, ("Server",))) is PresenceChange.NEW_CLASS
    assert table.up_peers("Client") == table.up_peers("Server") == (A,)
    assert table.update(A, Presence(True, 2, ("Server",))) is PresenceChange.NEW_EPOCH
    assert table.up_peers("Client") == ()
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


def test_a_session_is_over_once_it_was_said_to_be() -> None:
    table = PeerTable()
    up = Presence(True, 1, ("Client",), session=1, seq=1)
    table.update(A, up)
    assert table.update(A, Presence(False, 1, session=1)) is PresenceChange.DOWN
    assert table.update(A, up._replace(seq=9)) is PresenceChange.STALE
    assert table.is_down(A)
    assert table.update(A, up._replace(session=2)) is PresenceChange.UP  # it is connected again
    assert table.update(A, Presence(False, 1, session=1)) is PresenceChange.STALE  # the will of before
    assert table.update(A, up._replace(session=3)) is PresenceChange.NONE  # no restart
    assert table.up_peers("Client") == (A,)


def test_the_later_facts_of_a_session_stay() -> None:
    table = PeerTable()
    table.update(A, Presence(True, 1, ("Client",), meta={"v": 2}, session=1, seq=2))
    late = Presence(True, 1, ("Server",), meta={"v": 1}, session=1, seq=1)
    assert table.update(A, late) is PresenceChange.NEW_CLASS  # what it says of its class is true all the same
    known = table.get(A)
    assert known is not None and known.meta == {"v": 2} and known.classes == ("Client", "Server")


def test_classes_are_taken_away_one_by_one() -> None:
    table = PeerTable()
    for name in ("Client", "Server"):
        table.update(A, Presence(True, 1, (name,)))
    assert table.clear(A, "Other") is PresenceChange.NONE
    assert table.clear(A, "Client") is PresenceChange.CHANGED
    assert (table.up_peers("Client"), table.up_peers("Server")) == ((), (A,))
    assert table.clear(A, "Server") is PresenceChange.DOWN
    assert len(table) == table.bytes_held == 0
    assert table.clear(A, None) is PresenceChange.NONE


def test_a_topic_that_is_read_for_its_will_alone_takes_no_class_away() -> None:
    table = PeerTable()
    table.update(A, Presence(True, 1, ("Client",)))
    assert table.update(A, Presence(True, 2, ())) is PresenceChange.NEW_EPOCH
    assert table.up_peers("Client") == (A,)
    table.update(A, Presence(True, 3, ("Server",)))
    assert (table.up_peers("Client"), table.up_peers("Server")) == ((), (A,))


def test_the_classes_of_a_peer_are_bounded() -> None:
    table = PeerTable()
    for number in range(MAX_CLASSES + 1):
        table.update(A, Presence(True, 1, (f"C{number}",)))
    known = table.get(A)
    assert known is not None and len(known.classes) == MAX_CLASSES


def test_who_speaks_keeps_its_place_against_those_that_are_only_announced() -> None:
    spoke = {A, B}
    table = PeerTable(capacity=3, spoke=lambda peer: peer in spoke)
    for peer in (A, B, C):
        table.update(peer, CLIENT)
    table.update(A, Presence(False, 1))  # a device that is off for a while
    strangers = [numbered(number) for number in range(20)]
    for stranger in strangers:
        with pytest.raises(PeersFullError, match="max_peers"):
            table.update(stranger, CLIENT)
    table.set_reachable(C, False)  # it never spoke, and does not answer
    table.update(strangers[0], CLIENT)
    assert set(table) == {A, B, strangers[0]}
    table.update(B, Presence(False, 1))  # most of the places are those of devices that are gone
    table.update(strangers[1], CLIENT)
    assert set(table) == {B, *strangers[:2]}


def test_who_is_first_heard_of_as_down_is_known_by_its_class() -> None:
    """A node that starts takes what the broker has kept for it of peers that have gone since."""
    table = PeerTable(capacity=2, spoke=lambda peer: False)
    gone = Presence(False, 1, ("Client",), session=3)
    assert table.update(A, gone) is PresenceChange.NONE
    known = table.get(A)
    assert known is not None and known.classes == ("Client",) and not table.up_peers("Client")
    assert table.update(A, CLIENT._replace(session=3)) is PresenceChange.STALE
    assert table.update(A, CLIENT._replace(session=4)) is PresenceChange.UP
    assert table.update(B, Presence(False, 1)) is PresenceChange.NONE and table.get(B) is None
    table.update(B, gone)
    table.update(C, gone)  # there is no room for it, and nobody makes any
    assert set(table) == {A, B}
    table.update(C, CLIENT)
    assert set(table) == {A, C}


def test_bytes_are_bounded_too() -> None:
    table = PeerTable(capacity=10, most_bytes=3 * size_of(CLIENT))
    for peer in (A, B):
        table.update(peer, CLIENT)
    assert table.bytes_held == 2 * size_of(CLIENT)
    much = CLIENT._replace(meta={"much": "x" * 200})
    for peer in (A, C):
        with pytest.raises(PeersFullError, match="peer_bytes"):
            table.update(peer, much)
    assert table.get(A) == CLIENT and table.get(C) is None
    table.update(A, Presence(False, 1))
    assert table.bytes_held == 2 * size_of(CLIENT)


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


def test_each_snapshot_has_the_presences_of_its_time() -> None:
    table = PeerTable()
    for peer in (A, B, C):
        table.update(peer, CLIENT)
    table.snapshot()
    table.update(A, Presence(True, 2, ("Client",), (), {"ram": 1}))  # began anew
    table.update(B, Presence(False, 1))
    table.set_reachable(C, False)
    restored = PeerTable()
    restored.restore(table.snapshot())
    assert [restored.get(peer) for peer in (A, B, C)] == [table.get(peer) for peer in (A, B, C)]
    table.clear(A, None)
    table.update(A, CLIENT)
    assert [row[0] for row in table.snapshot()] == [peer.to_bytes() for peer in (B, C, A)]
    assert table.snapshot()[2][1] == table.snapshot()[1][1]


def test_presence_is_decided_by_its_table() -> None:
    first = CLIENT._replace(session=1)
    gone, again = Presence(False, 1, session=1), CLIENT._replace(session=2)
    echo = Presence(False, 9)  # of another epoch

    def walk() -> None:
        assert PeerTable().clear(A, None) is PresenceChange.NONE  # unknown: cleared
        for state in ("up", "silent", "down"):
            table = PeerTable()
            table.update(A, first)
            if state == "silent":
                table.set_reachable(A, False)
            elif state == "down":
                table.update(A, gone)
            assert table.update(A, first if state == "down" else echo) is PresenceChange.STALE  # echoed
            assert (table.is_up(A), table.is_down(A)) == (state == "up", state == "down")
            told = PresenceChange.DOWN if state == "up" else PresenceChange.NONE
            assert table.clear(A, None) is told and len(table) == 0  # cleared
        table = PeerTable(capacity=1)
        table.update(A, first)
        table.set_reachable(A, False)
        assert table.update(B, CLIENT) is PresenceChange.UP  # silent: displaced
        assert table.get(A) is None
        table = PeerTable(capacity=1, asked=["Server"])
        table.update(A, first)
        assert table.update(B, CLIENT._replace(classes=("Server",))) is PresenceChange.UP  # up: displaced
        assert table.get(A) is None and table.up_peers("Client") == ()
        table = PeerTable(capacity=1)
        assert table.update(A, gone._replace(classes=("Client",))) is PresenceChange.NONE  # unknown: went
        assert table.is_down(A) and table.clear(A, None) is PresenceChange.NONE
        table.set_reachable(A, False)  # unknown: fell_silent
        table.set_reachable(A, True)  # unknown: answered
        assert len(table) == 0
        assert table.update(A, first) is PresenceChange.UP  # unknown: came
        assert table.update(A, first) is PresenceChange.NONE  # up: came
        assert table.update(A, first._replace(meta={})) is PresenceChange.CHANGED
        table.set_reachable(A, True)  # up: answered
        assert table.up_peers("Client") == (A,) and table.unreachable("Client") == []
        for _ in range(2):
            table.set_reachable(A, False)  # up, then silent: fell_silent
            assert table.up_peers("Client") == () and table.unreachable("Client") == [A]
        table.set_reachable(A, True)  # silent: answered
        assert table.is_up(A)
        table.set_reachable(A, False)
        assert table.update(A, first) is PresenceChange.UP  # silent: came
        assert table.update(A, gone) is PresenceChange.DOWN  # up: went
        assert table.update(A, gone) is PresenceChange.NONE  # down: went
        table.set_reachable(A, False)  # down: fell_silent
        table.set_reachable(A, True)  # down: answered
        assert not table.is_up(A) and table.unreachable("Client") == []
        assert table.update(A, again) is PresenceChange.UP  # down: came
        table.set_reachable(A, False)
        assert table.update(A, gone._replace(session=2)) is PresenceChange.NONE  # silent: went
        assert table.update(B, CLIENT) is PresenceChange.UP  # down: displaced
        assert table.get(A) is None and table.up_peers("Client") == (B,)

    assert_decides_by(PRESENCE, walk)
