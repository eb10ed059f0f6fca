"""What Python's operators record where ONNX has no operator that means the same for all element types.

The element type decides, as it does in NumPy. Where an operator has no meaning for it, or the type that
would tell is not known, ValueTypeError names the ONNX operators to choose from.

Rule P27 of the specification.
"""

from __future__ import annotations

import numpy as np

from bb_edge.ir import types
from bb_edge.ir.types import TypeNode
from bb_host.author_lines import authoring_error
from bb_host.dsl.literals import lift
from bb_host.dsl.onnx_ops import record_one
from bb_host.dsl.output import Output, Value
from bb_host.dsl.recorder import Recorder
from bb_host.errors import ValueTypeError


def by_element(graph: Recorder, symbol: str, left: Value, right: Value) -> Output:
    """Records `left symbol right` for `/ // % ** & | ^`, and `~left`. ValueTypeError at the author's line."""
    if symbol == "~":
        assert isinstance(left, Output)
        return _invert(graph, left)
    a, b, kind = _pair(graph, symbol, left, right)
    if symbol == "/":
        return _divide(graph, a, b, kind)
    if symbol == "**":
        return _power(graph, a, b, kind)
    if symbol == "//":
        return _floor_divide(graph, a, b, kind)
    return _remainder(graph, a, b, kind) if symbol == "%" else _bits(graph, symbol, a, b, kind)


def _invert(graph: Recorder, value: Output) -> Output:
    """`~value`: Not on BOOL, BitwiseNot on integers. ValueTypeError for anything else."""
    kind = _kind(_tensor("~", value))
    if kind == "b":
        return record_one(graph, "Not", (value,))
    if kind in ("i", "u"):
        return record_one(graph, "BitwiseNot", (value,))
    raise _no_bits("~", value, kind)


_LOGICAL = {"&": "And", "|": "Or", "^": "Xor"}
_BITWISE = {"&": "BitwiseAnd", "|": "BitwiseOr", "^": "BitwiseXor"}


def _divide(graph: Recorder, a: Output, b: Output, kind: str) -> Output:
    """Div on floats."""
    if kind in ("b", "i", "u"):
        whole = "x // y, which is exact" if kind == "u" else "g.onnx.div(x, y), which rounds toward zero"
        raise _undefined("/", a, f"cast both sides for true division: g.onnx.cast(x, to='F32'); or {whole}")
    return record_one(graph, "Div", (a, b))


def _power(graph: Recorder, a: Output, b: Output, kind: str) -> Output:
    """Pow of two operands of one element type: the result has that of the base, and rounds to it."""
    if a.node is not b.node and a.node.elem_type is not None and b.node.elem_type is not None:
        raise authoring_error(
            ValueTypeError,
            f"** wants one element type, not {a.node} and {b.node}",
            "cast one side with g.onnx.cast(x, to=…); a plain number takes the value's element type",
        )
    if kind in ("b", "u"):
        raise _undefined(
            "**", a, "ONNX has powers of I32, I64 and floats: cast it first, g.onnx.cast(x, to='I64')"
        )
    exponent = b._array if kind == "i" else None
    if exponent is not None and (exponent < 0).any():
        raise _undefined(
            f"** {exponent.tolist()}",
            a,
            "an integer has no such power: cast it first, g.onnx.cast(x, to='F32')",
        )
    return record_one(graph, "Pow", (a, b))


def _floor_divide(graph: Recorder, a: Output, b: Output, kind: str) -> Output:
    """Div on unsigned integers, which is exact. On floats what NumPy computes from the remainder: the
    quotient of rounded numbers may be a whole number that their own is not, as 1.5 / 0.3 in F32.
    """
    if kind == "b":
        raise _undefined("//", a, "cast it first: g.onnx.cast(x, to='F32')")
    if kind == "i":
        raise _undefined(
            "//", a, "g.onnx.div(x, y) rounds toward zero; to round down, cast x to F64 and divide that"
        )
    if kind == "u":
        return record_one(graph, "Div", (a, b))
    half = a.node == types.TENSOR_F16 and b.node == types.TENSOR_F16
    if half:  # a multiple of b has up to 22 bits
        a, b = (record_one(graph, "Cast", (v,), to="F32") for v in (a, b))
    rest, away = _truncated(graph, a, b)
    multiple = record_one(graph, "Sub", (a, rest))
    quotient = record_one(graph, "Round", (record_one(graph, "Div", (multiple, b)),))
    quotient = record_one(
        graph, "Where", (away, record_one(graph, "Sub", (quotient, _like(graph, 1, a))), quotient)
    )
    if b._array is None or not b._array.all():  # NumPy's is infinite there, or nan
        none = record_one(graph, "Equal", (b, _like(graph, 0, b)))
        quotient = record_one(graph, "Where", (none, record_one(graph, "Div", (a, b)), quotient))
    return record_one(graph, "Cast", (quotient,), to="F16") if half else quotient


def _remainder(graph: Recorder, a: Output, b: Output, kind: str) -> Output:
    """With the sign of the divisor: Mod on integers; on floats the rest, b added where its sign differs."""
    if kind == "b":
        raise _undefined("%", a, "cast it first: g.onnx.cast(x, to='I64')")
    if kind in ("i", "u"):
        return record_one(graph, "Mod", (a, b))
    rest, away = _truncated(graph, a, b)
    return record_one(graph, "Where", (away, record_one(graph, "Add", (rest, b)), rest))


def _truncated(graph: Recorder, a: Output, b: Output) -> tuple[Output, Output]:
    """The exact rest of floats, of the sign of `a`, and where it is not 0 and has not the sign of `b`."""
    rest = record_one(graph, "Mod", (a, b), fmod=1)
    zero = _like(graph, 0, a)
    if b._array is not None and (b._array > 0).all():
        return rest, record_one(graph, "Less", (rest, zero))
    if b._array is not None and (b._array < 0).all():
        return rest, record_one(graph, "Greater", (rest, zero))
    signs = record_one(graph, "Mul", (record_one(graph, "Sign", (rest,)), record_one(graph, "Sign", (b,))))
    return rest, record_one(graph, "Less", (signs, zero))


def _like(graph: Recorder, number: int, value: Output) -> Output:
    """A number in the element type of a value, F32 where that is not known."""
    return _lifted(graph, number, types.TENSOR_F32 if value.node.elem_type is None else value.node)


def _bits(graph: Recorder, symbol: str, a: Output, b: Output, kind: str) -> Output:
    """Logical on BOOL, bitwise on integers."""
    if kind == "b":
        return record_one(graph, _LOGICAL[symbol], (a, b))
    if kind in ("i", "u"):
        return record_one(graph, _BITWISE[symbol], (a, b))
    raise _no_bits(symbol, a, kind)


def _pair(graph: Recorder, symbol: str, left: Value, right: Value) -> tuple[Output, Output, str]:
    """Both operands as values of one element type, and NumPy's kind of it; "" where it is not known."""
    handles = [_tensor(symbol, v) for v in (left, right) if isinstance(v, Output)]
    like = next((v for v in handles if v.node.elem_type is not None), handles[0])
    wanted = types.TENSOR_F32 if like.node.elem_type is None else like.node
    a, b = (_lifted(graph, v, wanted) for v in (left, right))
    return a, b, _kind(like)


def _lifted(graph: Recorder, value: Value, wanted: TypeNode) -> Output:
    """Numbers and lists take the wanted type; an array has its own, and the operator compares the two."""
    return lift(graph, value, None if isinstance(value, (np.ndarray, np.generic)) else wanted)


def _tensor(symbol: str, value: Output) -> Output:
    if not types.compatible(value.node, types.TENSOR):
        raise authoring_error(
            ValueTypeError, f"{symbol} expects a Tensor, got {value!r}", "operators work on tensors"
        )
    return value


def _kind(value: Output) -> str:
    dtype = None if value.node.elem_type is None else types.dtype_of_elem(value.node.elem_type)
    return "" if dtype is None else dtype.kind


def _no_bits(symbol: str, value: Output, kind: str) -> ValueTypeError:
    if kind:
        return _undefined(
            symbol, value, "it is logical on BOOL and bitwise on integers; compare or cast first"
        )
    logical, bitwise = _SPELLED[symbol]
    return authoring_error(
        ValueTypeError,
        f"{symbol} is logical or bitwise by the element type, and that of {value!r} is not known",
        f"say g.onnx.{logical}(…) or g.onnx.{bitwise}(…), or declare the type",
    )


_SPELLED = {
    "&": ("and_", "bitwise_and"),
    "|": ("or_", "bitwise_or"),
    "^": ("xor", "bitwise_xor"),
    "~": ("not_", "bitwise_not"),
}


def _undefined(symbol: str, value: Output, hint: str) -> ValueTypeError:
    return authoring_error(ValueTypeError, f"{symbol} is not defined on {value!r}", hint)
