"""The graph `<slot>.fit`: forward pass, loss and gradient of a batch of weighted rows, in one function.

The device weighs each row with 1/batch, and rows that only fill a chunk up with 0 (docs/design/artifact.md,
"Component graphs"). So the weighted sum of the rows' losses is the mean over the batch, however it is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import TENSOR_F32, ValueType
from bb_host.ir.facts import FunctionFacts
from bb_host.ir.program import Function, Op
from bb_host.ir.rename import fresh_name, rename_op
from bb_host.learn.autodiff import Gradient, differentiate
from bb_host.learn.batch_norm import in_training
from bb_host.learn.losses import OUTPUT, ROWS, TARGET, USUAL, LossSettings, has_rows, row_losses, target_type
from bb_host.learn.shapes import with_types


@dataclasses.dataclass(frozen=True, slots=True)
class WithLoss:
    """A model with its loss behind it: (input, target, parameters…) → the rows' losses.

    `target` and `rows` are what these two values are called: the model may have others of those names.
    """

    function: Function
    target: str
    rows: str


def with_row_losses(model: Function, loss: str, settings: LossSettings = USUAL) -> WithLoss | None:
    """The model, whose first input is its own, with a loss; None where its output has no rows."""
    output = model.outputs[0]
    known = model.types.get(output) or ValueType(TENSOR_F32)
    if not has_rows(loss, known):
        return None
    own = row_losses(loss, known, settings)
    taken = {*model.inputs, *(v for op in model.ops for v in (*op.inputs, *op.outputs))}
    names = {v: fresh_name(v, taken) for v in (TARGET, *(v for op in own.ops for v in op.outputs))}
    names[OUTPUT] = output
    types = {**model.types, names[TARGET]: target_type(loss, known)}
    whole = Function(
        f"{model.name}_with_loss",
        model.domain,
        (model.inputs[0], names[TARGET], *model.inputs[1:]),
        (names[ROWS],),
        (*model.ops, *(rename_op(op, names) for op in own.ops)),
        types,
        opsets=dict(model.opsets),
    )
    return WithLoss(with_types(whole), names[TARGET], names[ROWS])


def joined(gradient: Gradient, names: Mapping[str, str] | None = None) -> tuple[Op, ...]:
    """Forward and backward of a gradient as one run of ops; `names` renames values of the backward one.

    What the backward graph does again to keep less is not done twice here.
    """
    forward = gradient.forward.ops
    there = {v for op in forward for v in op.outputs if v}
    new = (op for op in gradient.backward.ops if not there.issuperset(v for v in op.outputs if v))
    return (*forward, *(rename_op(op, names or {}) for op in new))


def fit_function(
    model: Function,
    loss: str,
    statistics: Sequence[str] = (),
    untrained: Sequence[str] = (),
    settings: LossSettings = USUAL,
) -> Function | None:
    """(input, target, row_weights, parameters…) → (loss, gradients…, statistics…); None without rows.

    `row_weights` is f32 [n]; `loss` is Σ row_weights·row's loss, 0-D. There is one gradient per parameter but
    for `untrained` ones and for `statistics`, the last of them: of the latter the new values follow. Raises
    NotDifferentiableError.
    """
    trained = in_training(model, statistics)
    whole = with_row_losses(with_types(trained.function), loss, settings)
    if whole is None:
        return None
    learned = [name for name in model.inputs[1:] if name not in (*statistics, *untrained)]
    gradient = differentiate(whole.function, learned)
    own = (*gradient.forward.ops, *gradient.backward.ops, *trained.ops)
    taken = {v for op in own for v in (*op.inputs, *op.outputs)}
    seed = gradient.backward.inputs[-1]
    weights = trained.weights or fresh_name("row_weights", taken)
    weighted, first, total = (fresh_name(name, taken) for name in ("weighted", "first", "loss"))
    ops = [
        *joined(gradient, {seed: weights}),
        Op("Mul", keys.ONNX_DOMAIN, (whole.rows, weights), (weighted,)),
        Op("Constant", keys.ONNX_DOMAIN, (), (first,), {"value": np.zeros(1, np.int64)}),
        Op("ReduceSum", keys.ONNX_DOMAIN, (weighted, first), (total,), {"keepdims": 0}),
        *trained.ops,
    ]
    x, target, *parameters = (v for v in whole.function.inputs if v != weights)
    known = gradient.forward.types
    types = {v: known[v] for v in (x, target, *parameters) if v in known}
    types[weights] = known.get(whole.rows, ValueType(TENSOR_F32, (None,)))
    function = Function(
        "fit",
        model.domain,
        (x, target, weights, *parameters),
        (total, *gradient.backward.outputs, *(trained.updated[name] for name in statistics)),
        tuple(ops),
        types,
        opsets=dict(model.opsets),
        facts=FunctionFacts(fewest_rows=trained.fewest_rows) if trained.fewest_rows > 1 else FunctionFacts(),
    )
    return with_types(function)
