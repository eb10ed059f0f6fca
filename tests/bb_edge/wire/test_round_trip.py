"""When what a peer has not acknowledged goes again: after what its acknowledgements take, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from link_ends import B, links, send
from times import MS, S

from bb_edge.wire.delivery import Links
from bb_edge.wire.envelope import REQUEST, Ack
from bb_edge.wire.round_trip import RoundTrip


def test_the_interval_follows_rfc_6298() -> None:
    trip = RoundTrip()
    assert (trip.srtt_ns, trip.interval_ns(1 * S, 64 * S)) == (0, 1 * S)
    trip.measured(4 * S)  # 2.2: srtt = R, rttvar = R / 2
    assert (trip.srtt_ns, trip.variation_ns, trip.interval_ns(1 * S, 64 * S)) == (4 * S, 2 * S, 12 * S)
    trip.measured(8 * S)  # 2.3: rttvar = 3/4 · 2 + 1/4 · 4, srtt = 7/8 · 4 + 1/8 · 8
    assert (trip.srtt_ns, trip.variation_ns) == (4500 * MS, 2500 * MS)
    assert trip.interval_ns(1 * S, 64 * S) == 14500 * MS


@given(st.lists(st.integers(0, 200 * S), max_size=30), st.integers(0, 300 * S))
def test_the_interval_stays_within_its_bounds(times: list[int], remaining: int) -> None:
    trip = RoundTrip()
    for each in times:
        trip.measured(each)
    most = max(1 * S, min(64 * S, remaining // 4 or 64 * S))
    assert 1 * S <= trip.interval_ns(1 * S, 64 * S, remaining) <= most
    for _ in range(100):
        trip.measured(5 * MS)
    assert trip.interval_ns(1 * S, 64 * S) == 1 * S, "a network that became fast is believed"


def once(node: Links, now_ns: int, took_ns: int) -> None:
    """Sends a request, whose acknowledgement comes before it is repeated."""
    _, key = send(node, REQUEST, now=now_ns)
    node.acknowledged(B, [Ack(key.epoch, key.seq)], now_ns + took_ns)


def wait_of(node: Links, now_ns: int, deadline_ns: int = 0) -> int:
    """How long a request that is sent now waits before it goes again."""
    _, key = send(node, REQUEST, now=now_ns, deadline=deadline_ns)
    due = node.next_deadline_ns()
    node.cancel(key)
    assert due is not None
    return due - now_ns


def test_a_loaded_broker_is_not_loaded_again() -> None:
    node = links()
    assert wait_of(node, 0) == 1 * S
    once(node, 0, 900 * MS)
    assert wait_of(node, 10 * S) == 2700 * MS
    assert wait_of(node, 10 * S, 18 * S) == 2 * S, "a quarter of its deadline"
    assert wait_of(node, 10 * S, 11 * S) == 1 * S, "but no less than the least"
    assert node.inspect()[str(B)]["round_trip_ns"] == 900 * MS
    once(node, 20 * S, 5 * MS)
    for _ in range(40):
        once(node, 20 * S, 5 * MS)
    assert wait_of(node, 30 * S) == 1 * S


def test_what_was_repeated_measures_nothing_and_its_interval_holds_until_something_does() -> None:
    node = links()
    _, key = send(node, REQUEST)
    assert len(node.due(1 * S)) == 1 and len(node.due(3 * S)) == 1
    node.acknowledged(B, [Ack(key.epoch, key.seq)], 3 * S + 1)
    assert node.inspect()[str(B)]["round_trip_ns"] == 0, "nobody knows which copy it was"
    assert wait_of(node, 4 * S) == 4 * S
    once(node, 5 * S, 10 * MS)
    assert wait_of(node, 6 * S) == 1 * S


def test_what_is_lost_beside_others_that_are_acknowledged_makes_nobody_wait() -> None:
    """A window of which two are lost, again and again: each would double what the next one waits."""
    node, now = links(), 0
    for _ in range(10):
        keys = [send(node, REQUEST, now=now)[1] for _ in range(8)]
        node.acknowledged(
            B, [Ack(keys[0].epoch, keys[0].seq - 1, tuple(k.seq for k in keys[2:]))], now + 5 * MS
        )
        now += 2 * S
        assert len(node.due(now)) == 2, "they go again after a second, not after what the last ones came to"
        node.acknowledged(B, [Ack(keys[-1].epoch, keys[-1].seq)], now + 5 * MS)
    assert wait_of(node, now + S) == 1 * S


def test_a_sleep_of_this_machine_is_no_round_trip() -> None:
    trip = RoundTrip()
    trip.measured(5 * MS)
    trip.measured(3600 * S)
    assert trip.srtt_ns < 10 * S
    for _ in range(20):
        trip.measured(5 * MS)
    assert trip.interval_ns(1 * S, 64 * S) < 5 * S


def test_a_peer_that_comes_up_anew_is_a_new_one() -> None:
    node = links()
    _, key = send(node, REQUEST)
    node.due(1 * S)
    node.due(3 * S)
    assert node.peer_up(B, 7, 4 * S) == 1
    node.acknowledged(B, [Ack(key.epoch, key.seq)], 4 * S + 1)
    assert node.inspect()[str(B)]["round_trip_ns"] == 0, "it was hurried, so it measures nothing"
    assert wait_of(node, 5 * S) == 1 * S
