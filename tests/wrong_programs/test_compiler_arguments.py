"""Arguments of `Compiler`: wrong names, targets and budgets, refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.ir.errors import BBError
from bb_host import AggregatorSlot, Compiler
from bb_host.errors import BindingError, CallError, InfeasibleDeadline
from tests.aids.refusals import refused

AVERAGE = "bb.FedAvg"

Case = tuple[type[BBError], str, Callable[[Compiler], Any]]
# fmt: off
REFUSED: list[Case] = [
    (BindingError, "3 is not a valid name for a slot", lambda c: c.bind_aggregator(3, AVERAGE)),  # <-
    (BindingError, "'' is not a valid name for a slot", lambda c: c.bind_aggregator("", AVERAGE)),  # <-
    (BindingError, "'a b' is not a valid name", lambda c: c.bind_model("a b", "bb.Model")),  # <-
    (BindingError, "bind_aggregator('a'", lambda c: c.bind_aggregator(AggregatorSlot("a"), AVERAGE)),  # <-
    (BindingError, "3 is not a valid name for", lambda c: c.bind_aggregator("a", AVERAGE, target=3)),  # <-
    (BindingError, "'' is not a valid name for", lambda c: c.bind_aggregator("a", AVERAGE, target="")),  # <-
    (InfeasibleDeadline, "a budget of -1 ns", lambda c: c.with_per_hop_budget_ns(-1)),  # <-
    (InfeasibleDeadline, "a budget of 'x' ns", lambda c: c.with_per_hop_budget_ns("x")),  # <-
    (InfeasibleDeadline, "a budget of 1.5 ns", lambda c: c.with_per_hop_budget_ns(1.5)),  # <-
    (InfeasibleDeadline, "a budget of True ns", lambda c: c.with_per_hop_budget_ns(True)),  # <-
    (CallError, "did you mean 'strict_types'?", lambda c: type(c)(strict=True)),  # <-
]
# fmt: on


@pytest.mark.parametrize(("kind", "words", "use"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_a_compiler_does_not_take_is_refused(kind: Any, words: str, use: Callable[..., Any]) -> None:
    with refused(kind, words):
        use(Compiler())


def test_a_target_that_the_program_does_not_have_is_named_at_the_binding(module: Callable[..., Any]) -> None:
    slot = AggregatorSlot("average", at="Server")
    compiler = Compiler().bind_aggregator("average", AVERAGE, target="Servr")  # <-
    program = module(lambda g: slot.contribute(g, g.input("x", "F32", (2,))), home="Server", average=slot)
    with refused(BindingError, "no partition 'Servr'", "did you mean 'Server'?"):
        compiler.run(program)
