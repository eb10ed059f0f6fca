"""Components that extend ours by `serialize` and `restore` alone, adopted by another program: what its bases
keep of executions and rounds is not taken for that of executions with the same numbers here."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32

from bb_edge.adoption import take_over
from bb_edge.components import FedAvg
from bb_edge.components.state import StateReader, pack_state
from bb_edge.roles import Component


class CountingFedAvg(FedAvg):
    """Something of its own beside the state of its base."""

    TYPE_NAME: ClassVar[str] = "test.CountingFedAvg"
    own = 0

    def serialize(self) -> bytes:
        return pack_state(self, 1, {"base": super().serialize(), "own": self.own})

    def restore(self, state: bytes) -> None:
        read = StateReader(self, 1, state)
        super().restore(read.data("base"))
        self.own = read.integer("own")


@pytest.mark.parametrize(("cohort", "number"), [(7, None), (-1, np.int64(3)), (0, None)])
def test_an_open_sum_does_not_go_on_in_another_program(ctx: Any, cohort: int, number: Any) -> None:
    old, new = CountingFedAvg(), CountingFedAvg()
    ctx.cohort = cohort
    old.contribute(ctx, f32(100, 100), round=number)
    old.own = 5
    adopted = take_over(new, old.serialize())
    assert adopted.left == ("open sums, 1 of them: of executions or rounds of the old program",)
    assert new.own == 5
    new.contribute(ctx, f32(1, 2), round=number)
    mean, total = new.aggregate(ctx, round=number)
    np.testing.assert_array_equal(mean, f32(1, 2))
    assert total == 1


def test_a_round_that_was_closed_there_is_open_here(ctx: Any) -> None:
    old, new = CountingFedAvg(), CountingFedAvg()
    ctx.cohort = -1
    old.contribute(ctx, f32(100, 100), round=np.int64(3))
    old.aggregate(ctx, round=np.int64(3))
    assert take_over(new, old.serialize()).left == ()
    np.testing.assert_array_equal(new.current_tensor(ctx), f32(100, 100))
    new.contribute(ctx, f32(1, 2), round=np.int64(3))
    np.testing.assert_array_equal(new.aggregate(ctx, round=np.int64(3))[0], f32(1, 2))


def test_a_class_that_keeps_nothing_of_the_kind_drops_nothing() -> None:
    assert Component.drop_executions(CountingFedAvg()) == ()
