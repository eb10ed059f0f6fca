"""Generators by seed and number are those that NumPy makes of the pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.components.generators import generator_of

EDGES = (0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


@pytest.mark.parametrize("seed", EDGES)
@pytest.mark.parametrize("number", EDGES)
def test_a_generator_is_that_of_the_pair(seed: int, number: int) -> None:
    assert (
        generator_of(seed, number).bit_generator.state
        == np.random.default_rng((seed, number)).bit_generator.state
    )


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_a_generator_draws_what_that_of_the_pair_draws(seed: int, number: int) -> None:
    expected = np.random.default_rng((seed, number))
    drawn = generator_of(seed, number)
    assert drawn.permutation(40).tolist() == expected.permutation(40).tolist()
    assert drawn.choice(30, 5, replace=False).tolist() == expected.choice(30, 5, replace=False).tolist()


def test_the_last_64_bits_of_a_seed_count() -> None:
    below_zero, above = generator_of(-1, 3), generator_of(2**64 + 5, 3)
    assert below_zero.bit_generator.state == np.random.default_rng((2**64 - 1, 3)).bit_generator.state
    assert above.bit_generator.state == np.random.default_rng((5, 3)).bit_generator.state
