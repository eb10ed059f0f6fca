"""Durable delivery in small worlds: a share of what tests/exploration/run.py goes through by hand."""

from __future__ import annotations

import multiprocessing

import pytest
from explored.guards import GUARDS, Guard, take_out
from explored.plans import PLANS, SMALL, Plan
from explored.searches import explore, wander

from bb_edge.wire.cbor import CborError


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_no_promise_is_broken(plan: Plan) -> None:
    assert explore(plan, 200).worlds > 150
    assert wander(plan, walks=8).worlds > 100


@pytest.mark.parametrize("plan", SMALL, ids=lambda plan: plan.name)
def test_no_promise_is_broken_in_any_world_of(plan: Plan) -> None:
    assert explore(plan, 40_000).whole


NOTHING_TAKEN_OUT = Guard("nothing", "marks", "class Took:", "class Took:", "both are restored")


def _breaks(guard: Guard) -> bool:
    take_out(guard)
    from explored.plans import LARGE
    from explored.searches import explore, wander
    from explored.worlds import Broken

    plans = PLANS if guard.walks else (*SMALL, *LARGE)
    plan = next(plan for plan in plans if plan.name == guard.plan)
    try:
        if guard.walks:
            wander(plan, guard.walks, guard.seed, guard.events_each)
        else:
            explore(plan, 40_000)
    except (Broken, CborError):  # numbers without end do not fit in 64 bits any more
        return True
    return False


@pytest.mark.timeout(600)  # some 40 s of processor time
def test_without_any_one_check_a_promise_is_broken() -> None:
    guards = [*GUARDS, NOTHING_TAKEN_OUT]
    # In processes of their own, because each loads the protocol anew.
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        broken = pool.map(_breaks, guards, chunksize=1)
    assert [guard for guard, breaks in zip(guards, broken, strict=True) if not breaks] == [NOTHING_TAKEN_OUT]
