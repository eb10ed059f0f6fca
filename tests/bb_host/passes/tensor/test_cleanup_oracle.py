"""Clean-up leaves no more than onnxscript's optimizer does, on the random models of test_random_models.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bb_host.ir.program import Function
from bb_host.passes.tensor.cleaning import clean_up
from tests.bb_host.passes.tensor.test_random_models import Builder

optimizer = pytest.importorskip("onnxscript.optimizer")


def kept(ops: Any) -> int:
    """How many ops compute something. A transpose may be worth two where they are of smaller tensors."""
    return sum(op.op_type not in ("Constant", "Transpose") for op in ops)


def repeated(function: Function) -> int:
    """Ops that compute what another one does: they are left to whoever runs the model."""
    same = Counter((op.op_type, op.inputs, str(sorted(op.attrs.items()))) for op in function.ops)
    return sum(count - 1 for count in same.values())


@pytest.mark.parametrize("seed", range(100, 140))
def test_no_more_is_left_than_another_optimizer_leaves(
    seed: int, model: Callable[..., Any], function: Callable[..., Function]
) -> None:
    builder = Builder(seed)
    text = builder.text()
    theirs = optimizer.optimize(model(text, 13, **builder.weights))
    ours = clean_up(function(text, 13, **builder.weights))
    assert kept(ours.ops) - repeated(ours) <= kept(theirs.graph.node)


def test_the_other_optimizer_does_something(model: Callable[..., Any]) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Identity (x)  b = Dropout (a)  y = Relu (b) }"
    assert kept(optimizer.optimize(model(text, 13)).graph.node) == 1
