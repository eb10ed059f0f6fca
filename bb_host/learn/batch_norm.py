"""BatchNormalization that learns: its statistics are parameters without a gradient, updated with each batch.

An inference model holds running means and variances as constants. `with_statistics` makes them parameters,
behind those that are learned; `in_training` is the model as it is trained: each batch is normalized by its
own statistics, the gradient goes through them, and running statistics follow as PyTorch has it, with the
variance that n - 1 entries give. ONNX's `momentum` is what is kept of the old ones (0.9; PyTorch's 0.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import TENSOR_F32, ValueType
from bb_host.errors import LearnError, place_of
from bb_host.ir.program import Array, AttrValue, Function, Op
from bb_host.ir.queries import is_onnx
from bb_host.ir.rename import fresh_name
from bb_host.learn.onnx_import import ImportedModel
from bb_host.learn.shapes import infer_types

BATCH_NORM = ("frozen", "update")
"""What `trainable` does with statistics."""

_UPDATED = "running statistic, updated with each batch"
_HINT = (
    "export it so that its normalizations are not folded into other layers (PyTorch: model.eval(), then"
    " torch.onnx.export(…, dynamo=True, optimize=False), or dynamo=False with"
    " training=torch.onnx.TrainingMode.PRESERVE), or leave batch_norm out"
)


def with_statistics(imported: ImportedModel, where: str) -> tuple[ImportedModel, tuple[str, ...]]:
    """The model with its running statistics as parameters behind the others, and their names.

    Personal ones come last. Those that the author has frozen stay constants. Each is read by one operator
    alone (`parted_statistics`). Raises LearnError where there are none.
    """
    function = imported.function
    constants = {op.outputs[0]: op.attrs.get("value") for op in function.ops if op.op_type == "Constant"}
    frozen = {i.name for i in imported.initializers if i.frozen}
    own = {i.name for i in imported.initializers if i.personal}
    found: dict[str, Array] = {}
    for op in function.ops:
        if is_onnx(op, "BatchNormalization") and frozen.isdisjoint(op.inputs[3:5]):
            for name in op.inputs[3:5]:
                array = constants.get(name)
                if not isinstance(array, np.ndarray) or array.dtype != np.float32:
                    raise LearnError(
                        f"the statistics of {place_of(op)} are not float32 constants", where, _HINT
                    )
                found[name] = array
    if not found and any(is_onnx(op, "BatchNormalization") for op in function.ops):
        hint = "leave batch_norm out, or thaw them: take their names out of frozen"
        raise LearnError("the statistics that it should update are frozen", where, hint)
    if not found:
        raise LearnError("it has no BatchNormalization whose statistics could be updated", where, _HINT)
    found = dict(sorted(found.items(), key=lambda item: item[0] in own))
    ops = tuple(op for op in function.ops if op.outputs[0] not in found)
    types = {**function.types, **{n: ValueType(TENSOR_F32, a.shape) for n, a in found.items()}}
    function = dataclasses.replace(function, inputs=(*function.inputs, *found), ops=ops, types=types)
    initializers = tuple(
        dataclasses.replace(
            i, why=f"{_UPDATED}, {'not sent' if i.personal else 'sent and averaged'}", untrained=True
        )
        if i.name in found
        else i
        for i in imported.initializers
    )
    parameters = {**imported.parameters, **found}
    return dataclasses.replace(
        imported, function=function, parameters=parameters, initializers=initializers
    ), tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class InTraining:
    """A model as it is trained, and the ops that make new running statistics of values of it.

    `weights` is its second input, f32 [n]: what each row weighs, 1/rows, or 0 for one that only fills the
    batch up and has no part in the statistics. It is empty, and no input, where no statistics are taken.
    `updated` names the new value of each statistic, by the statistic. `fewest_rows` is 2 where a
    normalization has one entry per row and channel: those of one row have no variance.
    """

    function: Function
    weights: str
    ops: tuple[Op, ...]
    updated: Mapping[str, str]
    fewest_rows: int = 1


def in_training(model: Function, statistics: Sequence[str]) -> InTraining:
    """The model with these statistics taken of the batch. LearnError where the rank of a batch is open."""
    if not statistics:
        return InTraining(model, "", (), {})
    types = infer_types(model)
    taken = {*model.inputs, *(v for op in model.ops for v in op.outputs)}
    weights = fresh_name("row_weights", taken)
    write = _Writer(taken, weights)
    ops: list[Op] = []
    updates: list[Op] = []
    updated: dict[str, str] = {}
    fewest_rows = 1
    for op in model.ops:
        if is_onnx(op, "BatchNormalization") and op.inputs[3] in statistics:
            known = types.get(op.inputs[0])
            if known is None or known.shape is None:
                raise LearnError(f"the rank of the batch at {place_of(op)} is not known", "batch_norm", _HINT)
            if all(dim == 1 for dim in known.shape[2:]):
                fewest_rows = 2
                if known.shape[0] == 1:
                    raise LearnError(
                        f"{place_of(op)} gets one row, and takes the variance of a batch",
                        "batch_norm",
                        "export the model with an open batch, or leave batch_norm out",
                    )
            ops += write.normalized(op, len(known.shape))
            updates += write.running(op, len(known.shape), updated)
        else:
            ops.append(op)
    x, *parameters = model.inputs
    shape = types[x].shape
    declared = {**model.types, weights: ValueType(TENSOR_F32, shape[:1] if shape else (None,))}
    function = dataclasses.replace(model, inputs=(x, weights, *parameters), ops=tuple(ops), types=declared)
    return InTraining(function, weights, tuple(updates), updated, fewest_rows)


class _Writer:
    """Writes what stands for one normalization."""

    def __init__(self, taken: set[str], weights: str) -> None:
        self._taken = taken
        self._weights = weights
        self._ops: list[Op] = []
        self._of: dict[str, tuple[str, str]] = {}  # by a normalization's output: mean and variance of a batch

    def _op(self, op_type: str, *inputs: str, out: str = "", **attrs: AttrValue) -> str:
        out = out or fresh_name(f"bn_{op_type.lower()}", self._taken)
        self._ops.append(Op(op_type, keys.ONNX_DOMAIN, inputs, (out,), dict(attrs)))
        return out

    def _ints(self, *values: int) -> str:
        return self._op("Constant", value=np.array(values, np.int64))

    def _number(self, value: float) -> str:
        return self._op("Constant", value=np.array(value, np.float32))

    def _taken_ops(self) -> list[Op]:
        found, self._ops = self._ops, []
        return found

    def normalized(self, op: Op, rank: int) -> list[Op]:
        """(x − mean)/√(variance + ε) · scale + bias, with mean and variance of the batch."""
        x, scale, bias = op.inputs[:3]
        mean = self._mean(x, rank)
        centred = self._op("Sub", x, mean)
        variance = self._mean(self._op("Mul", centred, centred), rank)
        epsilon = self._number(op.number("epsilon", 1e-5))
        deviation = self._op("Sqrt", self._op("Add", variance, epsilon))
        normal = self._op("Div", centred, deviation)
        if rank > 2:
            lift = self._ints(*range(1, rank - 1))
            scale, bias = self._op("Unsqueeze", scale, lift), self._op("Unsqueeze", bias, lift)
        self._op("Add", self._op("Mul", normal, scale), bias, out=op.outputs[0])
        self._of[op.outputs[0]] = mean, variance
        return self._taken_ops()

    def _mean(self, x: str, rank: int) -> str:
        """Of each channel: first of each row, then of the rows by what they weigh; [1, channels, 1…]."""
        if rank > 2:
            x = self._op("ReduceMean", x, self._ints(*range(2, rank)), keepdims=1)
        weights = self._op("Unsqueeze", self._weights, self._ints(*range(1, rank)))
        return self._op("ReduceSum", self._op("Mul", x, weights), self._ints(0), keepdims=1)

    def _entries(self, x: str, channels: str) -> str:
        """How many entries a channel has in the rows that count: those weigh 1/rows each."""
        rows_and_channels = self._op("Mul", self._op("Size", self._weights), self._op("Size", channels))
        of_a_row = self._op("Cast", self._op("Div", self._op("Size", x), rows_and_channels), to=1)
        squares = self._op("ReduceSum", self._op("Mul", self._weights, self._weights), keepdims=0)
        return self._op("Div", of_a_row, squares)

    def running(self, op: Op, rank: int, updated: dict[str, str]) -> list[Op]:
        """kept · old + (1 − kept) · of the batch."""
        kept = op.number("momentum", 0.9)
        mean, variance = self._of[op.outputs[0]]
        around = self._ints(*(axis for axis in range(rank) if axis != 1))
        entries = self._entries(op.inputs[0], mean)
        others = self._op("Max", self._op("Sub", entries, self._number(1)), self._number(1))
        for old, new, factor in ((op.inputs[3], mean, ""), (op.inputs[4], variance, "unbiased")):
            value = self._op("Squeeze", new, around)
            if factor:
                value = self._op("Mul", value, self._op("Div", entries, others))
            value = self._op("Mul", value, self._number(1 - kept))
            updated[old] = self._op("Add", self._op("Mul", old, self._number(kept)), value)
        return self._taken_ops()
