"""Arguments of `Compiler`: wrong names, targets and budgets, refused where they are given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from bb_edge.components import FedAvg
from bb_edge.ir.errors import BBError
from bb_host import AggregatorSlot, Compiler, Graph, Module
from bb_host.errors import BindingError, CallError, InfeasibleDeadline, UnboundSlot
from tests.aids.refusals import refused, warned

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


# --- results that are dropped -----------------------------------------------------------------------------


class Means(Module):
    """The current tensor of an aggregator, which a binding may replace."""

    def __init__(self, slot: AggregatorSlot) -> None:
        super().__init__()
        self._slot = slot

    def body(self, g: Graph) -> None:
        g.output("mean", self._slot.current_tensor(g))


CLIPPED = {"clip_norm": 1.0}


def dropped(compiler: Compiler) -> list[str]:
    """The lines of the calls whose results nothing uses, by number in this file."""
    found = compiler.run(Means(AggregatorSlot("average", FedAvg))).warnings
    return [w.where for w in found if w.code == "unused-compiler"]


def test_a_binding_whose_result_is_dropped() -> None:
    compiler = Compiler()
    compiler.bind_aggregator("average", FedAvg, CLIPPED)  # <-
    words = "nothing uses what bind_aggregator('average', …) returns", "compiler = compiler.bind_aggregator("
    warned("unused-compiler", *words, program=Means(AggregatorSlot("average", FedAvg)), compiler=compiler)


def test_the_error_about_a_slot_names_the_binding_of_it_that_was_dropped() -> None:
    compiler = Compiler().with_strict_types(True)
    compiler.bind_aggregator("average", FedAvg, CLIPPED)
    compiler.bind_aggregator("other", FedAvg)
    slot = AggregatorSlot("average")
    words = "nothing is bound to slot 'average'", "bind_aggregator('average', …) returns at test_compiler_arg"
    with refused(UnboundSlot, *words, "keep what it returns", marked=False):
        compiler.run(Means(slot))


def test_every_method_whose_result_is_dropped_is_told_of() -> None:
    compiler = Compiler().bind_aggregator("average", FedAvg, CLIPPED)
    compiler.with_strict_types(False)
    compiler.with_per_hop_budget_ns(1_000_000_000)
    compiler.without_binding("average")
    compiler.without_stage("validate")
    compiler.without_binding("average").bind_aggregator("average", FedAvg)
    last = compiler.with_strict_types(True)
    assert len(dropped(last)) == len(dropped(last)) == 5
    assert dropped(pickle.loads(pickle.dumps(last))) == []


def test_results_that_are_used_or_kept_are_quiet() -> None:
    base = Compiler().with_strict_types(True)
    chained = base.with_per_hop_budget_ns(1_000_000_000).bind_aggregator("average", FedAvg, CLIPPED)
    for norm in (1.0, 2.0):
        compiled = base.bind_aggregator("average", FedAvg, {"clip_norm": norm})
        assert dropped(compiled) == []
        del compiled  # it was compiled with

    def program() -> Compiler:
        return base.bind_aggregator("average", FedAvg)

    assert dropped(program()) == []
    program()  # what the same line gave before was compiled with
    kept = base.with_per_hop_budget_ns(2_000_000_000)
    assert dropped(base) == dropped(chained) == []
    assert kept.per_hop_budget_ns == 2 * chained.per_hop_budget_ns
