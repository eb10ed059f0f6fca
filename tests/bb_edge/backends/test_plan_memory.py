"""The layout of an arena: nothing alive overlaps, and little is wasted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.backends.plan_memory import ALIGNMENT, Lifetime, live_bytes, plan_memory


def overlaps(lives: list[Lifetime], offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    found = []
    for i, a in enumerate(lives):
        for j, b in enumerate(lives[:i]):
            alive_together = a.first <= b.last and b.first <= a.last
            apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            if alive_together and not apart and a.nbytes and b.nbytes:
                found.append((i, j))
    return found


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20), st.integers(0, 5)), max_size=30))
def test_buffers_alive_together_never_overlap(raw: list[tuple[int, int, int]]) -> None:
    lives = [Lifetime(size, first, first + length) for size, first, length in raw]
    layout = plan_memory(lives)
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
