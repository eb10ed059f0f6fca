"""Generators that rest give the numbers of generators that do not."""

from __future__ import annotations

import gc
import random

import pytest

from bb_edge.engine.drawing import WORDS, Drawing


def holds_a_generator(drawing: Drawing) -> bool:
    """Whether it keeps the 2.5 kB of one in memory."""
    return any(isinstance(part, random.Random) for part in gc.get_referents(drawing))


BITS = (63, 64, 1, 32, 33, 64, 8, 128)


@pytest.mark.parametrize("seed", [0, 7, 1 << 127, b"entropy"])
def test_a_rest_changes_no_number(seed):
    drawing, generator = Drawing(seed), random.Random(seed)
    for turn in range(200):
        for bits in BITS[turn % 5 :]:
            assert drawing.getrandbits(bits) == generator.getrandbits(bits)
        drawing.rest()
        assert not holds_a_generator(drawing)


def test_looking_ahead_draws_nothing():
    drawing = Drawing(3)
    assert drawing.ahead(62) == drawing.ahead(62) == drawing.getrandbits(62)


def test_a_generator_that_has_gone_far_stays():
    drawing, generator = Drawing(3), random.Random(3)
    for _ in range(WORDS + 1):
        drawing.getrandbits(32), generator.getrandbits(32)
    drawing.rest()
    assert holds_a_generator(drawing) and drawing.getrandbits(64) == generator.getrandbits(64)


def test_what_was_restored_rests_without_loss():
    before = Drawing(3)
    before.getrandbits(64)
    after = Drawing(4)
    after.restore(before.save())
    after.rest()
    assert after.getrandbits(64) == before.getrandbits(64)
