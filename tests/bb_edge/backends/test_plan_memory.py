"""The layout of an arena: nothing alive overlaps, and little is wasted."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.backends.plan_memory import (
    ALIGNMENT,
    THOROUGH,
    Layout,
    Lifetime,
    _by_time,
    first_overlap,
    live_bytes,
    plan_memory,
)


def overlaps(lives: list[Lifetime], offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    found = []
    for i, a in enumerate(lives):
        for j, b in enumerate(lives[:i]):
            alive_together = a.first <= b.last and b.first <= a.last
            apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            if alive_together and not apart and a.nbytes and b.nbytes:
                found.append((i, j))
    return found


@given(raw=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20), st.integers(0, 5)), max_size=30))
@pytest.mark.parametrize("lay_out", [plan_memory, _by_time])
def test_buffers_alive_together_never_overlap(
    lay_out: Callable[[list[Lifetime]], Layout], raw: list[tuple[int, int, int]]
) -> None:
    lives = [Lifetime(size, first, first + length) for size, first, length in raw]
    layout = lay_out(lives)
    assert overlaps(lives, layout.offsets) == []
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets)
    assert layout.total >= live_bytes(lives)
    assert all(
        offset + life.nbytes <= layout.total for offset, life in zip(layout.offsets, lives, strict=True)
    )


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(640, step, step + 1) for step in range(10)]
    assert plan_memory(chain).total == live_bytes(chain) == 2 * 640


def test_nothing_needs_nothing() -> None:
    assert plan_memory([]).total == 0
    assert plan_memory([Lifetime(0, 0, 3)]).total == 0


@pytest.mark.parametrize("seed", range(5))
def test_layered_networks_stay_near_the_lower_bound(seed: int) -> None:
    """Layers of shrinking sizes with a skip connection now and then, as convolutional networks have them."""
    rng = random.Random(seed)
    lives = []
    size = 64 * 1024
    for step in range(60):
        skip = rng.choice((1, 1, 1, 3))
        lives.append(Lifetime(size, step, step + skip))
        if step % 10 == 9:
            size //= 2
    assert plan_memory(lives).total <= 1.05 * live_bytes(lives)


def test_a_layout_that_greed_alone_misses() -> None:
    """Taken largest first, the long-lived small buffer lies between two large ones and one must go on top."""
    lives = [Lifetime(64 * 3, 0, 1), Lifetime(64, 1, 3), Lifetime(64 * 3, 2, 3), Lifetime(64 * 2, 0, 0)]
    assert plan_memory(lives).total == live_bytes(lives)


def test_the_same_lifetimes_give_the_same_layout() -> None:
    rng = random.Random(1)
    lives = [Lifetime(rng.randrange(1, 9999), s, s + rng.randrange(4)) for s in range(40)]
    assert plan_memory(lives) == plan_memory(list(lives))


def test_very_many_buffers_are_laid_out_in_one_pass() -> None:
    """A graph from the network must not cost its number of nodes squared."""
    lives = [Lifetime(640, step, step + 1) for step in range(50_000)]
    assert plan_memory(lives).total == live_bytes(lives)


@given(
    raw=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 9), st.integers(0, 4), st.integers(0, 400)), max_size=14
    )
)
def test_an_overlap_is_found_where_there_is_one(raw: list[tuple[int, int, int, int]]) -> None:
    lives = [Lifetime(size, first, first + length) for size, first, length, _ in raw]
    offsets = tuple(offset for *_, offset in raw)
    every = {frozenset(pair) for pair in overlaps(lives, offsets)}
    found = first_overlap(lives, offsets)
    assert (found is None) == (not every)
    assert found is None or frozenset(found) in every


def hard(seed: int) -> list[Lifetime]:
    """Lifetimes without any order to them."""
    rng = random.Random(seed)
    count = rng.choice((10, 20, 40, 60))
    lives = []
    for number in range(count):
        first = rng.choice((number, rng.randrange(count)))
        length = rng.choice((1, 1, 2, count // 2, rng.randrange(1, count)))
        lives.append(Lifetime(int(2 ** rng.uniform(6, 18)), first, first + length))
    return lives


@pytest.mark.parametrize("seed", range(12))
def test_with_time_even_hard_cases_stay_near_the_lower_bound(seed: int) -> None:
    lives = hard(seed)
    layout = plan_memory(lives, THOROUGH)
    assert first_overlap(lives, layout.offsets) is None
    assert layout.total <= 1.05 * live_bytes(lives)
    assert layout.total <= plan_memory(lives).total
    assert layout == plan_memory(lives, THOROUGH)
