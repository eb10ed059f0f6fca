"""Shares of peers: exact, and the same from every decimal that means it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir.shares import WHOLE, share_of

TENTH = WHOLE // 10


@pytest.mark.parametrize(
    ("count", "share", "most", "least", "taken"),
    [
        (0, TENTH, 9, 0, 0),
        (1, TENTH, 9, 0, 1),
        (10, TENTH, 9, 0, 1),  # f32 says 0.1 is a little more, which would be 2
        (11, TENTH, 9, 0, 2),
        (21, TENTH, 9, 0, 3),
        (21, TENTH, 9, 5, 5),
        (1000, TENTH, 9, 5, 9),
        (3, WHOLE * 2 // 3, 9, 0, 2),
        (7, WHOLE, 9, 0, 7),
    ],
)
def test_a_share_is_rounded_up_and_held_between_two_numbers(
    count: int, share: int, most: int, least: int, taken: int
) -> None:
    assert share_of(count, share, most, least) == taken


@given(st.integers(0, 100_000), st.integers(1, WHOLE))
def test_a_share_is_exact(count: int, share: int) -> None:
    assert share_of(count, share, 10**9) == ceil(Fraction(count * share, WHOLE))
