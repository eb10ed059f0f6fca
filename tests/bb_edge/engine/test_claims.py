"""Who may touch an unshared component, and when."""

from __future__ import annotations

from bb_edge.engine.run.claims import Claims
from bb_edge.engine.run.frames import Execution, FreeFrames


def execution(*wants: int) -> Execution:
    execution = Execution(FreeFrames())
    execution.claim_set = tuple(wants)
    return execution


def test_a_claim_takes_all_or_nothing():
    claims = Claims(3)
    first, second = execution(0, 1), execution(1, 2)
    assert claims.acquire(first)
    assert not claims.acquire(second)
    assert claims.owners[2] is None
    assert claims.release(first) == [second]
    assert claims.owners[1] is second and claims.owners[2] is second


def test_waiters_are_served_in_order_and_disjoint_ones_pass():
    claims = Claims(3)
    holder, waits, passes, behind = execution(0), execution(0, 1), execution(2), execution(1)
    assert claims.acquire(holder)
    assert not claims.acquire(waits)
    assert claims.acquire(passes)
    assert not claims.acquire(behind), "it wants what somebody before it waits for"
    assert claims.release(holder) == [waits]
    assert claims.release(waits) == [behind]
    assert not claims.waiters


def test_asking_twice_takes_one_place():
    claims = Claims(1)
    holder, waits = execution(0), execution(0)
    claims.acquire(holder)
    assert not claims.acquire(waits)
    assert not claims.acquire(waits)
    assert len(claims.waiters) == 1


def test_leaving_the_queue_gives_the_place_up():
    claims = Claims(1)
    holder, leaves, stays = execution(0), execution(0), execution(0)
    for one in (holder, leaves, stays):
        claims.acquire(one)
    assert claims.release(leaves) == []
    assert claims.release(holder) == [stays]
