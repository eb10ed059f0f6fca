"""The hint for a name that does not exist."""

from __future__ import annotations

import pytest

from bb_edge.ir.suggestions import suggestion

OPERATORS = ["relu", "softmax", "reduce_mean", "top_k"]


@pytest.mark.parametrize(
    ("name", "near"), [("sofmax", "softmax"), ("ReduceMean", "reduce_mean"), ("topk", "top_k")]
)
def test_a_name_that_is_near_is_proposed(name: str, near: str) -> None:
    assert suggestion(name, OPERATORS) == f"did you mean {near!r}?"


def test_where_none_is_near_all_are_listed() -> None:
    assert suggestion("banana", OPERATORS, "it has ") == "it has reduce_mean, relu, softmax, top_k"
    assert suggestion(3, ["a"]) == "known: a"


def test_long_lists_are_cut_and_empty_ones_say_nothing() -> None:
    found = suggestion("zzz", [f"name_{i:03}" for i in range(100)])
    assert found.endswith("name_039, … (100 in all)")
    assert suggestion("x", []) == ""
