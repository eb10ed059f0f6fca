"""The tables behind the health and back-off gates."""

from __future__ import annotations

import pytest

from bb_edge.wire import cbor
from bb_edge.wire.backoff import BACKOFF, MS, Backoff, S
from bb_edge.wire.health import HEALTH, HealthError, PeerHealth
from tests.aids.peers import numbered
from tests.aids.transitions import assert_decides_by

A, B, C = (numbered(n) for n in range(3))


def test_a_peer_goes_down_at_the_threshold_and_up_by_one_success() -> None:
    health = PeerHealth(threshold=5)
    assert [health.failure(A) for _ in range(4)] == [False] * 4
    assert health.is_up(A)
    assert health.failure(A)
    assert not health.is_up(A)
    assert not health.failure(A)  # it is down already
    assert health.success(A)
    assert health.is_up(A) and not health.success(A)


def test_failures_count_in_a_row_only() -> None:
    health = PeerHealth(threshold=2)
    for _ in range(5):
        assert not health.failure(A)
        assert not health.success(A)
    assert health.is_up(A)


def test_down_at_once() -> None:
    health = PeerHealth()
    assert health.down(A)
    assert not health.down(A)
    assert not health.is_up(A) and health.is_up(B)


def test_the_threshold_may_change_and_is_at_least_one() -> None:
    health = PeerHealth(threshold=5)
    health.failure(A)
    health.threshold = 2
    assert health.failure(A)
    health.threshold = 1
    assert health.failure(B)
    with pytest.raises(HealthError):
        health.threshold = 0
    with pytest.raises(HealthError):
        PeerHealth(threshold=0)


def test_health_is_bounded_and_forgets_the_least() -> None:
    health = PeerHealth(threshold=2, capacity=2)
    health.down(A)
    health.failure(B)
    health.failure(C)  # B's single failure goes, A stays down
    assert not health.is_up(A) and health.forgotten == 1
    assert not health.failure(B) or health.is_up(B)
    assert health.forgotten == 2


def test_health_snapshot() -> None:
    health = PeerHealth(threshold=3)
    health.down(A)
    health.failure(B)
    health.failure(B)
    restored = PeerHealth()
    restored.restore(cbor.loads(cbor.dumps(health.snapshot())))  # type: ignore[arg-type]
    assert restored.threshold == 3 and not restored.is_up(A)
    assert restored.failure(B)


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff()
    now = 0
    waits = []
    for _ in range(16):
        backoff.failed(A, now)
        waits.append(backoff.next(A) - now)
        now = backoff.next(A)
    assert waits[:4] == [10 * MS, 20 * MS, 40 * MS, 80 * MS]
    assert waits[12:] == [40_960 * MS, 60 * S, 60 * S, 60 * S]


def test_ready_just_before_at_and_after() -> None:
    backoff = Backoff()
    assert backoff.ready(A, 0) and backoff.next(A) == 0
    backoff.failed(A, 100)
    due = 100 + 10 * MS
    assert not backoff.ready(A, due - 1)
    assert backoff.ready(A, due) and backoff.ready(A, due + 1)
    assert backoff.ready(B, 100)


def test_one_probe_per_interval() -> None:
    backoff = Backoff()
    backoff.failed(A, 0)
    backoff.probed(A, 10 * MS)
    assert not backoff.ready(A, 20 * MS - 1)
    assert backoff.ready(A, 20 * MS)
    backoff.probed(B, 0)  # nobody waits for B
    assert backoff.next(B) == 0


def test_success_ends_the_wait_and_the_doubling() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(A, 0)
    backoff.succeeded(A)
    assert backoff.ready(A, 0)
    backoff.failed(A, 0)
    assert backoff.next(A) == 10 * MS


def test_a_peer_may_ask_for_patience_within_bounds() -> None:
    backoff = Backoff()
    backoff.impose(A, 0, S)
    assert backoff.next(A) == S
    backoff.impose(A, 0, MS)  # asks for less: what was asked before holds
    assert backoff.next(A) == S
    backoff.impose(B, 0, 2**63)
    assert backoff.next(B) == 60 * S
    backoff.impose(C, 0, 0)
    assert backoff.next(C) == 10 * MS


def test_backoff_is_bounded() -> None:
    backoff = Backoff(capacity=2)
    backoff.failed(A, 0)
    backoff.impose(B, 0, S)
    backoff.failed(C, 0)
    assert backoff.next(A) == 0 and backoff.next(B) == S and backoff.next(C) == 10 * MS
    assert backoff.forgotten == 1


def test_backoff_snapshot_keeps_what_remains() -> None:
    backoff = Backoff()
    backoff.impose(A, 0, S)
    backoff.failed(B, 0)
    data = cbor.loads(cbor.dumps(backoff.snapshot(400 * MS)))
    restored = Backoff()
    restored.restore(data, 5 * S)  # type: ignore[arg-type]
    assert restored.next(A) == 5 * S + 600 * MS
    assert restored.ready(B, 5 * S)
    restored.failed(B, 5 * S)
    assert restored.next(B) == 5 * S + 20 * MS


def test_health_is_decided_by_its_table() -> None:
    def walk() -> None:
        health = PeerHealth(threshold=2)
        assert not health.failure(A) and health.is_up(A)  # up: failed
        assert not health.success(A) and health.is_up(A)  # up: heard
        assert [health.failure(A), health.failure(A)] == [False, True]  # up: failed_out
        assert not health.failure(A) and not health.is_up(A)  # down: failed
        assert not health.down(A) and not health.is_up(A)  # down: left
        assert health.success(A) and health.is_up(A)  # down: heard
        assert health.down(A) and not health.is_up(A)  # up: left

    assert_decides_by(HEALTH, walk)


def test_back_off_is_decided_by_its_table() -> None:
    def walk() -> None:
        backoff = Backoff()
        backoff.failed(A, 0)  # ready: failed
        assert backoff.next(A) == 10 * MS
        backoff.probed(A, 10 * MS)  # waiting: probed
        assert backoff.next(A) == 20 * MS
        backoff.failed(A, 20 * MS)  # waiting: failed
        assert backoff.next(A) == 40 * MS
        backoff.impose(A, 20 * MS, 1 * S)  # waiting: imposed
        assert backoff.next(A) == 20 * MS + 1 * S
        backoff.succeeded(A)  # waiting: succeeded
        assert backoff.next(A) == 0 and backoff.ready(A, 0)
        backoff.impose(A, 0, 1 * S)  # ready: imposed
        assert backoff.next(A) == 1 * S

    assert_decides_by(BACKOFF, walk)
