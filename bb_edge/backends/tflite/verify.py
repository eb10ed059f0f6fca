"""Whether a flatbuffer is one that an interpreter may be given: some of them crash on others.

A model's digest says that nothing was damaged, not that whoever wrote it meant well. `verify` takes what the
lowering writes and nothing else: one subgraph, operators of `operators.py` in an order that computes, their
options within bounds, tensors whose contents have the size of their shape.
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
MAX_ELEMENTS = (1 << 31) - 1
"""Of one tensor: kernels count in 32 bits."""
MAX_BYTES = 1 << 32
"""Of all tensors that are computed, at one row: what a small constant can ask for has an end."""

_OPEN = 1_000_003
"""What an open first dimension is in a second look at the graph: constants must fit any number of rows."""

MAX_SCALE, MIN_SCALE = 1e30, 1e-30
MAX_STEPS = 1 << 18
"""Of a result's grid, for one step of what it is computed from: kernels shift by that, or end there."""
MAX_PRODUCT_STEPS = 256
"""The same for one step of an input times one of a weight, as packed weights have it."""
MIN_SOFTMAX = 2.0**-25

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
"""By the letters of `operators.Known`."""


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
    """Where its contents are; 0 where it has none."""
    scales: tuple[int | float, ...]
    open: bool


def verify(data: bytes) -> int:
    """The bytes of all tensors that it computes at one row.

    FlatbufferError for anything that the lowering does not write.
    """
    reader = Reader(data)
    model = reader.root()
    reader.expect_slots(model, _MODEL, "the model")
    if reader.integer(model, 0, "I") != _SCHEMA_VERSION:
        raise FlatbufferError("it is of another schema")
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
            raise FlatbufferError(f"tensor {index} is no input")
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
        raise FlatbufferError("an output is made by nothing")
    return total


def _code(reader: Reader, table: Table) -> Known:
    reader.expect_slots(table, _CODE, "an operator's code")
    code = reader.integer(table, 3, "i")
    known = OPERATORS.get(code)
    if known is None:
        raise FlatbufferError(f"it has an operator that is not known here ({code})")
    # Readers of the old field take the larger of the two.
    if reader.integer(table, 0, "b") != min(code, _PLACEHOLDER):
        raise FlatbufferError(f"two codes for one operator ({known.name})")
    if not 1 <= reader.integer(table, 2, "i", 1) <= _MAX_VERSION:
        raise FlatbufferError(f"a version of {known.name} that does not exist")
    return known


def _contents(reader: Reader, table: Table) -> tuple[int, int]:
    reader.expect_slots(table, _BUFFER, "a buffer")
    return reader.span(table, 0, 1, 16)


def _signatures(reader: Reader, model: Table, n_tensors: int) -> None:
    for table in reader.children(model, 7):
        reader.expect_slots(table, _SIGNATURE, "a signature")
        reader.text(table, 2)
        if reader.integer(table, 4, "I"):
            raise FlatbufferError("a signature of another subgraph")
        for slot in (0, 1):
            for pair in reader.children(table, slot):
                reader.expect_slots(pair, _PAIR, "a signature")
                reader.text(pair, 0)
                if reader.integer(pair, 1, "I") >= n_tensors:
                    raise FlatbufferError("a signature of tensors that are not there")


def _tensor(reader: Reader, table: Table, buffers: list[tuple[int, int]]) -> _Tensor:
    reader.expect_slots(table, _TENSOR, "a tensor")
    shape = reader.numbers(table, 0, "i")
    kind, number = reader.integer(table, 1, "b"), reader.integer(table, 2, "I")
    reader.text(table, 3)
    width = WIDTHS.get(kind)
    if width is None:
        raise FlatbufferError(f"a tensor of an element type that is not known here ({kind})")
    if number >= len(buffers):
        raise FlatbufferError("a tensor's buffer is not there")
    count = 1
    for dim in shape:
        if dim < 1:
            raise FlatbufferError(f"a tensor of shape {list(shape)}")
        count *= dim
        if count > MAX_ELEMENTS:
            raise FlatbufferError(f"a tensor of shape {list(shape)}")
    if len(shape) > MAX_RANK or count * width > MAX_ELEMENTS:
        raise FlatbufferError(f"a tensor of shape {list(shape)}")
    start, size = buffers[number]
    if size and size != count * width:
        raise FlatbufferError(f"{size} bytes for a tensor of shape {list(shape)}")
    signature = reader.numbers(table, 7, "i")
    if signature and signature != shape:
        opened = (-1, *shape[1:]) if shape[:1] == (1,) else ()
        if size or signature != opened:
            raise FlatbufferError(f"a tensor of shape {list(shape)} and {list(signature)}")
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
    if not all(MIN_SCALE <= scale <= MAX_SCALE for scale in scales):  # not true of nan either
        raise FlatbufferError("a scale that is no number above zero")
    if not all(-128 <= zero - middle <= 127 for zero in zeros):
        raise FlatbufferError("a zero point beyond eight bits")
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
        raise FlatbufferError("an operator without a code")
    known = codes[number]
    inputs, outputs = reader.numbers(table, 1, "i"), reader.numbers(table, 2, "i")
    options = reader.child(table, 4)
    if reader.integer(table, 3, "B") != known.tag or (options is None) != (not known.tag):
        raise FlatbufferError(f"{known.name} with other options than its own")
    chosen = _options(reader, options, known) if options is not None else ()
    if len(outputs) != 1:
        raise FlatbufferError(f"{known.name} with {len(outputs)} results")
    for index in inputs:
        if index != -1 and (not 0 <= index < len(tensors) or not there[index]):
            raise FlatbufferError(f"{known.name} reads what is not there")
    (result,) = outputs
    if not 0 <= result < len(tensors) or there[result]:
        raise FlatbufferError(f"{known.name} writes what is there")
    there[result] = True
    given = [None if index == -1 else tensors[index] for index in inputs]
    if not _fits(known, given, tensors[result]):
        raise FlatbufferError(f"{known.name} on tensors that it does not take")
    if tensors[result].type == INT8:
        steps = [max(tensor.scales) for tensor in given if tensor is not None and tensor.type == INT8]
        if not in_step(known.name, steps, min(tensors[result].scales)):
            raise FlatbufferError(f"{known.name} with grids too far apart")
    constants = [_constant(reader, tensor) for tensor in given]
    wanted = tensors[result].shape
    for shapes in looks:
        found = result_shape(known.name, [shapes[i] if i >= 0 else () for i in inputs], constants, chosen)
        # An open first dimension may become another one: it is what comes of it.
        if found is None or (found != wanted if not tensors[result].open else _rest(found) != _rest(wanted)):
            raise FlatbufferError(f"{known.name} with another shape than {list(wanted)}")
        shapes[result] = found
    return prod(looks[0][result]) * WIDTHS[tensors[result].type]


def in_step(name: str, steps: Sequence[float], finest: float) -> bool:
    """Whether an operator's int8 results, the finest grid of which is given, can be computed from its int8
    inputs, the coarsest grid of each of which is given in order.
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
    found = []
    for slot, kind, default, low, high in known.options:
        value = reader.scalar(table, slot, kind, default)
        if not low <= value <= high:
            raise FlatbufferError(f"{known.name} with an option out of range")
        found.append(value)
    reader.expect_slots(table, frozenset(slot for slot, *_ in known.options), known.name)
    return found


def _fits(known: Known, given: list[_Tensor | None], result: _Tensor) -> bool:
    letters = known.inputs
    if letters.endswith("+"):
        letters = letters[0] * max(1, len(given))
    if letters.endswith("?"):
        letters = letters[: max(len(letters) - 2, min(len(given), len(letters) - 1))]
    if len(given) != len(letters):
        return False
    pairs = list(zip((*letters, known.result), (*given, result), strict=True))
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
