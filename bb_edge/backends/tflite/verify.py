"""Checks that a flatbuffer is safe to give to an interpreter; some interpreters crash on others.

A model's digest says that it is not damaged, not that its writer meant well. `verify` accepts what the
lowering writes and nothing else: one subgraph, operators of `operators.py` in an order that can be computed,
options within bounds, and tensors whose contents have the size of their shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from bb_edge.backends.tflite.flatbuffer import FlatbufferError, Reader, Table
from bb_edge.backends.tflite.operators import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    OPERATORS,
    UINT8,
    WIDTHS,
    Known,
)
from bb_edge.backends.tflite.shapes import result_shape

__all__ = ["MAX_RANK", "in_step", "verify"]

MAX_RANK = 6
"""Dimensions of a tensor; the lowering writes five at most."""
MAX_ELEMENTS = (1 << 31) - 1
"""Elements and bytes of one tensor: kernels count in 32 bits."""
MAX_BYTES = 1 << 32
"""Bytes of all computed tensors for one row: a small constant can ask for any size."""

_OPEN = 1_000_003
"""Rows in the second check of a graph with an open first dimension; a prime, so that no constant fits."""

MAX_SCALE, MIN_SCALE = 1e30, 1e-30
"""Bounds of a quantization scale, well within float32."""
MAX_STEPS = 1 << 18
"""Steps of a result's grid per step of an input's; kernels shift by this factor, and some abort above."""
MAX_PRODUCT_STEPS = 256
"""The same per step of an input times a step of a weight, for kernels with packed weights."""
MIN_SOFTMAX = 2.0**-25
"""The least scale of a softmax's int8 input that kernels can compute with."""

_MODEL = frozenset((0, 1, 2, 4, 7))
_CODE = frozenset((0, 2, 3))
_SUBGRAPH = frozenset((0, 1, 2, 3, 4))
_TENSOR = frozenset((0, 1, 2, 3, 4, 7, 8))
_QUANTIZATION = frozenset((2, 3, 6))
_OPERATOR = frozenset((0, 1, 2, 3, 4))
_BUFFER = frozenset((0,))
_SIGNATURE = frozenset((0, 1, 2, 4))
_PAIR = frozenset((0, 1))
_SCHEMA_VERSION = 3
_PLACEHOLDER = 127
_MAX_VERSION = 32


_TYPES = {
    "d": (FLOAT32, INT8),
    "f": (FLOAT32,),
    "c": (FLOAT32,),
    "C": (FLOAT32,),
    "b": (BOOL,),
    "l": (INT32, INT64),
    "s": (FLOAT16, INT8, UINT8),
    "q": (INT8, UINT8),
    "r": (FLOAT32, INT8, UINT8),
}
"""The element types that a letter of `operators.Known` stands for."""


_PRODUCTS = (
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "TRANSPOSE_CONV",
    "FULLY_CONNECTED",
    "BATCH_MATMUL",
    "MUL",
    "PRELU",
)


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    type: int
    start: int
    """The position of its contents; 0 if it has none."""
    scales: tuple[int | float, ...]
    open: bool


def verify(data: bytes) -> int:
    """Checks a flatbuffer, and returns the bytes of all tensors that it computes for one row.

    Raises FlatbufferError for anything that the lowering does not write.
    """
    reader = Reader(data)
    model = reader.root()
    reader.expect_slots(model, _MODEL, "the model")
    if reader.integer(model, 0, "I") != _SCHEMA_VERSION:
        raise FlatbufferError("it has another version of the schema")
    codes = [_code(reader, table) for table in reader.children(model, 1)]
    buffers = [_contents(reader, table) for table in reader.children(model, 4)]
    graphs = reader.children(model, 2)
    if len(graphs) != 1:
        raise FlatbufferError(f"it has {len(graphs)} subgraphs")
    (graph,) = graphs
    reader.expect_slots(graph, _SUBGRAPH, "the subgraph")
    reader.text(graph, 4)
    if not buffers or buffers[0][1]:
        raise FlatbufferError("its first buffer is not empty")
    tensors = [_tensor(reader, table, buffers) for table in reader.children(graph, 0)]
    _signatures(reader, model, len(tensors))
    inputs, outputs = reader.numbers(graph, 1, "i"), reader.numbers(graph, 2, "i")
    there = [bool(tensor.start) for tensor in tensors]
    for index in inputs:
        if not 0 <= index < len(tensors) or there[index]:
            raise FlatbufferError(f"tensor {index} cannot be an input")
        there[index] = True
    looks = [[tensor.shape for tensor in tensors]]
    if any(tensors[index].open for index in inputs):
        looks.append([(_OPEN, *tensor.shape[1:]) if tensor.open else tensor.shape for tensor in tensors])
    total = 0
    for table in reader.children(graph, 3):
        total += _operator(reader, table, codes, tensors, there, looks)
        if total > MAX_BYTES:
            raise FlatbufferError(f"it computes more than {MAX_BYTES} bytes from one row")
    if not outputs or any(not 0 <= index < len(tensors) or not there[index] for index in outputs):
        raise FlatbufferError("nothing computes an output")
    return total


def _code(reader: Reader, table: Table) -> Known:
    reader.expect_slots(table, _CODE, "an operator's code")
    code = reader.integer(table, 3, "i")
    known = OPERATORS.get(code)
    if known is None:
        raise FlatbufferError(f"operator {code} is not known")
    # Readers of the old field use the larger of the two.
    if reader.integer(table, 0, "b") != min(code, _PLACEHOLDER):
        raise FlatbufferError(f"{known.name} has two different codes")
    if not 1 <= reader.integer(table, 2, "i", 1) <= _MAX_VERSION:
        raise FlatbufferError(f"{known.name} has a version that does not exist")
    return known


def _contents(reader: Reader, table: Table) -> tuple[int, int]:
    reader.expect_slots(table, _BUFFER, "a buffer")
    return reader.span(table, 0, 1, 16)


def _signatures(reader: Reader, model: Table, n_tensors: int) -> None:
    for table in reader.children(model, 7):
        reader.expect_slots(table, _SIGNATURE, "a signature")
        reader.text(table, 2)
        if reader.integer(table, 4, "I"):
            raise FlatbufferError("a signature is of another subgraph")
        for slot in (0, 1):
            for pair in reader.children(table, slot):
                reader.expect_slots(pair, _PAIR, "a signature")
                reader.text(pair, 0)
                if reader.integer(pair, 1, "I") >= n_tensors:
                    raise FlatbufferError("a signature names a tensor that does not exist")


def _tensor(reader: Reader, table: Table, buffers: list[tuple[int, int]]) -> _Tensor:
    reader.expect_slots(table, _TENSOR, "a tensor")
    shape = reader.numbers(table, 0, "i")
    kind, number = reader.integer(table, 1, "b"), reader.integer(table, 2, "I")
    reader.text(table, 3)
    width = WIDTHS.get(kind)
    if width is None:
        raise FlatbufferError(f"a tensor has element type {kind}, which is not known")
    if number >= len(buffers):
        raise FlatbufferError("the buffer of a tensor does not exist")
    count = 1
    for dim in shape:
        if dim < 1:
            raise FlatbufferError(f"a tensor has the impossible shape {list(shape)}")
        count *= dim
        if count > MAX_ELEMENTS:
            raise FlatbufferError(f"a tensor has the impossible shape {list(shape)}")
    if len(shape) > MAX_RANK or count * width > MAX_ELEMENTS:
        raise FlatbufferError(f"a tensor has the impossible shape {list(shape)}")
    start, size = buffers[number]
    if size and size != count * width:
        raise FlatbufferError(f"a tensor of shape {list(shape)} has {size} bytes of contents")
    signature = reader.numbers(table, 7, "i")
    if signature and signature != shape:
        opened = (-1, *shape[1:]) if shape[:1] == (1,) else ()
        if size or signature != opened:
            raise FlatbufferError(f"a tensor has the shapes {list(shape)} and {list(signature)}")
    quantization = reader.child(table, 4)
    scales: tuple[int | float, ...] = ()
    if quantization is not None:
        scales = _scales(reader, quantization, shape, 128 if kind == UINT8 else 0)
    elif kind in (INT8, UINT8):
        raise FlatbufferError("a tensor of eight bits has no scale")
    return _Tensor(shape, kind, start if size else 0, scales, bool(signature))


def _scales(reader: Reader, table: Table, shape: tuple[int, ...], middle: int) -> tuple[int | float, ...]:
    reader.expect_slots(table, _QUANTIZATION, "a quantization")
    scales, zeros = reader.numbers(table, 2, "f"), reader.numbers(table, 3, "q")
    axis = reader.integer(table, 6, "i")
    if len(scales) != len(zeros) or not scales:
        raise FlatbufferError(f"{len(scales)} scales and {len(zeros)} zero points")
    if len(scales) > 1 and (not 0 <= axis < len(shape) or shape[axis] != len(scales)):
        raise FlatbufferError(f"{len(scales)} scales along axis {axis} of shape {list(shape)}")
    if axis < 0 or (axis and axis >= len(shape)):
        raise FlatbufferError(f"scales along axis {axis} of shape {list(shape)}")
    if not all(MIN_SCALE <= scale <= MAX_SCALE for scale in scales):  # false for NaN too
        raise FlatbufferError("a scale is not a number above zero")
    if not all(-128 <= zero - middle <= 127 for zero in zeros):
        raise FlatbufferError("a zero point does not fit eight bits")
    return scales


def _operator(
    reader: Reader,
    table: Table,
    codes: list[Known],
    tensors: list[_Tensor],
    there: list[bool],
    looks: list[list[tuple[int, ...]]],
) -> int:
    reader.expect_slots(table, _OPERATOR, "an operator")
    number = reader.integer(table, 0, "I")
    if number >= len(codes):
        raise FlatbufferError("an operator has no code")
    known = codes[number]
    inputs, outputs = reader.numbers(table, 1, "i"), reader.numbers(table, 2, "i")
    options = reader.child(table, 4)
    if reader.integer(table, 3, "B") != known.tag or (options is None) != (not known.tag):
        raise FlatbufferError(f"{known.name} has the options of another operator")
    chosen = _options(reader, options, known) if options is not None else ()
    if len(outputs) != 1:
        raise FlatbufferError(f"{known.name} has {len(outputs)} results")
    for index in inputs:
        if index != -1 and (not 0 <= index < len(tensors) or not there[index]):
            raise FlatbufferError(f"{known.name} reads a tensor that is not computed yet")
    (result,) = outputs
    if not 0 <= result < len(tensors) or there[result]:
        raise FlatbufferError(f"{known.name} writes a tensor that has contents already")
    there[result] = True
    operands = [None if index == -1 else tensors[index] for index in inputs]
    if not _fits(known, operands, tensors[result]):
        raise FlatbufferError(f"{known.name} has tensors of wrong types")
    if tensors[result].type == INT8:
        steps = [max(tensor.scales) for tensor in operands if tensor is not None and tensor.type == INT8]
        if not in_step(known.name, steps, min(tensors[result].scales)):
            raise FlatbufferError(f"{known.name} has scales that are too far apart")
    constants = [_constant(reader, tensor) for tensor in operands]
    wanted = tensors[result].shape
    for shapes in looks:
        shape = result_shape(known.name, [shapes[i] if i >= 0 else () for i in inputs], constants, chosen)
        # The first dimension may be another one if it is open.
        if shape is None or (shape != wanted if not tensors[result].open else _rest(shape) != _rest(wanted)):
            raise FlatbufferError(f"{known.name} gives another shape than {list(wanted)}")
        shapes[result] = shape
    return prod(looks[0][result]) * WIDTHS[tensors[result].type]


def in_step(name: str, steps: Sequence[float], finest: float) -> bool:
    """Whether kernels can compute an operator's int8 result from its int8 inputs.

    `steps` is the largest scale of each input, in order; `finest` is the smallest scale of the result.
    """
    if name == "SOFTMAX" and steps and steps[0] < MIN_SOFTMAX:
        return False
    if name in _PRODUCTS and len(steps) > 1:
        return steps[0] * steps[1] < finest * MAX_PRODUCT_STEPS
    return all(step < finest * MAX_STEPS for step in steps)


def _rest(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (len(shape), *shape[1:])


def _constant(reader: Reader, tensor: _Tensor | None) -> tuple[int, ...]:
    if tensor is None or not tensor.start or tensor.type != INT32:
        return ()
    return reader.contents(tensor.start, prod(tensor.shape))


def _options(reader: Reader, table: Table, known: Known) -> list[int | float]:
    values = []
    for slot, kind, default, low, high in known.options:
        value = reader.scalar(table, slot, kind, default)
        if not low <= value <= high:
            raise FlatbufferError(f"{known.name} has an option out of range")
        values.append(value)
    reader.expect_slots(table, frozenset(slot for slot, *_ in known.options), known.name)
    return values


def _fits(known: Known, operands: list[_Tensor | None], result: _Tensor) -> bool:
    letters = known.inputs
    if letters.endswith("+"):
        letters = letters[0] * max(1, len(operands))
    if letters.endswith("?"):
        letters = letters[: max(len(letters) - 2, min(len(operands), len(letters) - 1))]
    if len(operands) != len(letters):
        return False
    pairs = list(zip((*letters, known.result), (*operands, result), strict=True))
    kinds = {tensor.type for letter, tensor in pairs if tensor is not None and letter in "dm"}
    if len(kinds) > 1:
        return False
    data = next(iter(kinds), FLOAT32)
    return all(letter == "c" if tensor is None else _suits(letter, tensor, data) for letter, tensor in pairs)


def _suits(letter: str, tensor: _Tensor, data: int) -> bool:
    kind = tensor.type
    if letter in "ma":
        return True
    if letter == "i":
        return kind == INT32 and bool(tensor.start)
    if letter == "w":
        return kind == data or (kind == INT8 and bool(tensor.start))
    if letter in "cC" and data == INT8:
        return kind == INT32 and bool(tensor.start)
    return kind in _TYPES[letter]
