"""The memory of gradients that models take by turns."""

from __future__ import annotations

import numpy as np

from bb_edge.components.gradient_sum import SPARES, GradientSum
from bb_edge.components.vector_layout import cut


def sums(count: int) -> list[GradientSum]:
    spares: list = []
    return [GradientSum(7, lambda flat: cut(flat, [(2, 3), (1,)]), spares) for _ in range(count)]


def test_memory_that_one_gives_back_is_the_next_ones_with_zeros():
    one, other = sums(2)
    given = one.take()
    given[:] = np.nan
    one.release()
    other.release()
    taken = other.take()
    assert not np.shares_memory(taken, one.take())
    one.release()
    assert not taken.any() and not one.take().any()


def test_what_is_filled_stays_where_it_is():
    one, other = sums(2)
    one.restore(np.arange(7, dtype=np.float32))
    one.release()
    other.release()
    other.take()[:] = 9
    assert one.take().tolist() == list(range(7))


def test_as_much_is_kept_as_is_needed_by_turns():
    several = sums(SPARES + 3)
    memory = [each.take() for each in several]
    for each in several:
        each.release()
    again = [each.take() for each in several]
    shared = sum(any(np.shares_memory(old, new) for old in memory) for new in again)
    assert shared == SPARES
