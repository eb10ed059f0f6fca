"""Losses as graphs: what a model's output costs, row by row and for a batch.

All are computed from the plain output (logits where a name says cross-entropy): a softmax or sigmoid in front
of the loss would lose what small probabilities say. For `L` of a batch, each row counts alike:

| name | target | loss of a row: the mean over its entries (cross-entropies: over its places) of |
|---|---|---|
| `softmax_cross_entropy` | one-hot or probabilities, in the output's shape, f32 | −Σ target·log softmax(output) over the last axis |
| `sparse_softmax_cross_entropy` | numbers of classes, i64, the output's shape without its last axis | −log softmax(output) of the class; 0 for `ignore_index` (the device refuses other numbers) |
| `binary_cross_entropy` | 0, 1 or probabilities, in the output's shape, f32 | −t·log σ(z) − (1 − t)·log σ(−z), with z the output |
| `mse` | f32 in the output's shape | (output − target)² |
| `huber` | f32 in the output's shape | ½·d² where |d| < δ, else δ·(|d| − ½·δ), with d = output − target; δ is 1 or given |

With numbers of classes the mean is over the places that have one, as in ONNX's SoftmaxCrossEntropyLoss and in
PyTorch; 0 where none has.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bb_edge.components.class_targets import IGNORE_INDEX
from bb_edge.ir import keys
from bb_edge.ir.opsets import onnx as onnx_opset
from bb_edge.ir.types import TENSOR_F32, TENSOR_I64, ValueType
from bb_host.errors import LearnError
from bb_host.ir.program import Array, AttrValue, Function, Op
from bb_host.learn.shapes import with_types

OUTPUT, TARGET, ROWS = "output", "target", "rows"
"""What the values of a loss's function are called."""

_FLOAT = 1
"""How ONNX numbers the element type float32."""


class LossSettings(NamedTuple):
    """`delta` is where Huber's loss bends; `ignored` is the number of a place without a class."""

    delta: float = 1.0
    ignored: int = IGNORE_INDEX


USUAL = LossSettings()


class _Writer:
    """Collects ops with names of their own."""

    def __init__(self, settings: LossSettings) -> None:
        self.ops: list[Op] = []
        self.settings = settings
        self.has_class = ""  # 1 where a place has that class, else 0

    def op(self, op_type: str, *inputs: str, **attrs: AttrValue) -> str:
        name = f"loss_{len(self.ops)}"
        self.ops.append(Op(op_type, keys.ONNX_DOMAIN, inputs, (name,), dict(attrs)))
        return name

    def const(self, array: Array) -> str:
        return self.op("Constant", value=array)

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.const(np.array(value, np.float32))


_Entries = Callable[[_Writer, ValueType], tuple[str, int]]
"""Writes the losses of all entries; gives their value and how many axes fewer it has than the output."""


def _softmax_cross_entropy(g: _Writer, output: ValueType) -> tuple[str, int]:
    picked = g.op("Mul", TARGET, g.op("LogSoftmax", OUTPUT, axis=-1))
    return g.op("Neg", g.op("ReduceSum", picked, g.ints(-1), keepdims=0)), 1


def _sparse_softmax_cross_entropy(g: _Writer, output: ValueType) -> tuple[str, int]:
    classes = np.arange(_classes(output), dtype=np.int64)
    if 0 <= g.settings.ignored < len(classes):
        classes[g.settings.ignored] = np.iinfo(np.int64).min  # which no target is
    hit = g.op("Equal", g.op("Unsqueeze", TARGET, g.ints(-1)), g.const(classes))
    g.has_class = g.op("Cast", hit, to=_FLOAT)
    picked = g.op("Mul", g.has_class, g.op("LogSoftmax", OUTPUT, axis=-1))
    return g.op("Neg", g.op("ReduceSum", picked, g.ints(-1), keepdims=0)), 1


def _binary_cross_entropy(g: _Writer, output: ValueType) -> tuple[str, int]:
    # Two softplus rather than one and a difference: precise at both ends, and smooth at 0.
    yes = g.op("Mul", TARGET, g.op("Softplus", g.op("Neg", OUTPUT)))
    no = g.op("Mul", g.op("Sub", g.scalar(1), TARGET), g.op("Softplus", OUTPUT))
    return g.op("Add", yes, no), 0


def _mse(g: _Writer, output: ValueType) -> tuple[str, int]:
    difference = g.op("Sub", OUTPUT, TARGET)
    return g.op("Mul", difference, difference), 0


def _huber(g: _Writer, output: ValueType) -> tuple[str, int]:
    """With c = clip(d, −δ, δ) it is c·(d − c/2)."""
    difference = g.op("Sub", OUTPUT, TARGET)
    clipped = g.op("Clip", difference, g.scalar(-g.settings.delta), g.scalar(g.settings.delta))
    return g.op("Mul", clipped, g.op("Sub", difference, g.op("Mul", clipped, g.scalar(0.5)))), 0


_ENTRIES: dict[str, _Entries] = {
    "softmax_cross_entropy": _softmax_cross_entropy,
    "sparse_softmax_cross_entropy": _sparse_softmax_cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
    "mse": _mse,
    "huber": _huber,
}
LOSSES = tuple(_ENTRIES)
"""The names of the losses."""


def _classes(output: ValueType) -> int:
    classes = output.shape[-1] if output.shape else None
    if not isinstance(classes, int):
        raise LearnError(
            f"the number of classes is not known from its output {output}",
            "loss sparse_softmax_cross_entropy",
            "export it with the last dimension of its output as a number, or use softmax_cross_entropy",
        )
    return classes


def target_type(loss: str, output: ValueType) -> ValueType:
    """The type of the targets that go with an output."""
    if loss == "sparse_softmax_cross_entropy":
        _classes(output)
        return ValueType(TENSOR_I64, None if output.shape is None else output.shape[:-1])
    return output


def class_count(loss: str, output: ValueType | None) -> int | None:
    """How many classes the targets of a loss may name; None where they are not numbers of classes."""
    return _classes(output or ValueType(TENSOR_F32)) if loss == "sparse_softmax_cross_entropy" else None


def has_rows(loss: str, output: ValueType) -> bool:
    """Whether the first axis of an output, as far as its rank is known, is one of rows with a loss each."""
    least = 2 if loss.endswith("softmax_cross_entropy") else 1
    return output.shape is None or len(output.shape) >= least


def row_losses(loss: str, output: ValueType | None = None, settings: LossSettings = USUAL) -> Function:
    """(output, target) → the loss of each row, f32 [n]; 0-D for an output without rows (`has_rows`).

    A row's loss is the mean over all its places, those without a class included, whose loss is 0. LearnError
    for a loss whose number of classes is needed and open.
    """
    output = output or ValueType(TENSOR_F32)
    g = _Writer(settings)
    entries, fewer = _ENTRIES[loss](g, output)
    rank = None if output.shape is None else len(output.shape) - fewer
    if rank is None:
        g.op("ReduceMean", g.op("Reshape", entries, g.ints(0, -1)), g.ints(1), keepdims=0)
    elif rank > 1:
        g.op("ReduceMean", entries, g.ints(*range(1, rank)), keepdims=0)
    return _function(loss, g.ops, ROWS, output)


def loss_function(loss: str, output: ValueType | None = None, settings: LossSettings = USUAL) -> Function:
    """(output, target) → the loss of a batch, 0-D f32: the mean of its rows' losses.

    Where targets are numbers of classes, the mean over the places that have one.
    """
    output = output or ValueType(TENSOR_F32)
    g = _Writer(settings)
    entries, _ = _ENTRIES[loss](g, output)
    if g.has_class:
        counted = g.op("Max", g.op("ReduceSum", g.has_class, keepdims=0), g.scalar(1))
        g.op("Div", g.op("ReduceSum", entries, keepdims=0), counted)
        return _function("loss", g.ops, "loss", output, loss)
    rows = row_losses(loss, output, settings)
    mean = Op("ReduceMean", keys.ONNX_DOMAIN, (ROWS,), ("loss",), {"keepdims": 0})
    return _function("loss", [*rows.ops, mean], "loss", output, loss)


def _function(name: str, ops: list[Op], result: str, output: ValueType, loss: str = "") -> Function:
    """The function of these ops, the last of which writes the result."""
    *ops, last = ops
    ops.append(Op(last.op_type, last.domain, last.inputs, (result,), last.attrs))
    function = Function(
        name,
        keys.COMPONENT_DOMAIN,
        (OUTPUT, TARGET),
        (result,),
        tuple(ops),
        {OUTPUT: output, TARGET: target_type(loss or name, output)},
        opsets={keys.ONNX_DOMAIN: onnx_opset.VERSION},
    )
    return with_types(function)


_OWN = {
    "softmax_cross_entropy": "Softmax",
    "sparse_softmax_cross_entropy": "Softmax",
    "binary_cross_entropy": "Sigmoid",
}
"""What a loss does to the output itself."""


def probabilities(model: Function, loss: str) -> Op | None:
    """The op at the end of a model that does what the loss does to its output again; None without one."""
    makers = {v: op for op in model.ops for v in op.outputs}
    op = makers.get(model.outputs[0])
    while op is not None and op.op_type in ("Identity", "Reshape", "Flatten", "Squeeze"):
        op = makers.get(op.inputs[0])
    return op if op is not None and op.op_type == _OWN.get(loss) else None
