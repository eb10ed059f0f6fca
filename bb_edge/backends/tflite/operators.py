"""The TFLite operators that artifacts may hold, and what the verifier requires of each."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BOOL", "FLOAT16", "FLOAT32", "INT8", "INT32", "INT64", "OPERATORS", "UINT8", "WIDTHS", "Known",
]  # fmt: skip

FLOAT32, FLOAT16, INT32, UINT8, INT64, BOOL, INT16, INT8 = 0, 1, 2, 3, 4, 6, 7, 9

WIDTHS = {FLOAT32: 4, FLOAT16: 2, INT32: 4, UINT8: 1, INT64: 8, BOOL: 1, INT16: 2, INT8: 1}
"""Bytes of one element, by the schema's type number."""


class Known(NamedTuple):
    """One operator: the tag of its options (0: none), the options, and the types of its tensors.

    `options` are (slot, kind, default, low, high), with the kinds of `struct`. `inputs` and `result` have a
    letter per tensor:

    d  data: float32 or int8, one of them for all of an operator's
    m  any element type, one for all of an operator's
    f  float32      b  bool        l  int32 or int64     a  any type
    i  constant of int32
    s  values that are stored small and read as float32: float16, int8 or uint8
    q  int8 or uint8               r  float32, int8 or uint8
    w  weights: of the type of the data, or constants of int8 for data of float32
    C  bias: float32, or constants of int32 for data of int8
    c  as C, but may be left out (-1)

    A last letter followed by `+` stands for one or more, by `?` for one or none.
    """

    name: str
    tag: int
    inputs: str
    result: str
    options: tuple[tuple[int, str, float, float, float], ...] = ()


_MANY = 1 << 15


def _byte(slot: int, low: int, high: int) -> tuple[int, str, float, float, float]:
    return slot, "b", 0, low, high


def _count(
    slot: int, low: int = 1, high: int = _MANY, default: int = 0
) -> tuple[int, str, float, float, float]:
    return slot, "i", default, low, high


_ACT = 3  # none, relu, relu_n1_to_1, relu6
_BINARY = (_byte(0, 0, _ACT),)
_POOL = (_byte(0, 0, 1), _count(1), _count(2), _count(3), _count(4), _byte(5, 0, _ACT))
_CONV = (_byte(0, 0, 1), _count(1), _count(2), _byte(3, 0, _ACT), _count(4, default=1), _count(5, default=1))
_DEPTHWISE = (
    _byte(0, 0, 1), _count(1), _count(2), _count(3, 0), _byte(4, 0, _ACT), _count(5, default=1),
    _count(6, default=1),
)  # fmt: skip
_KEEP = (_byte(0, 0, 1),)
_AXIS = _count(0, -8, 7)
_MASKS = tuple(_count(slot, 0, 255) for slot in range(5))

OPERATORS: dict[int, Known] = {
    0: Known("ADD", 11, "dd", "d", _BINARY),
    1: Known("AVERAGE_POOL_2D", 5, "d", "d", _POOL),
    2: Known("CONCATENATION", 10, "m+", "m", (_AXIS, _byte(1, 0, _ACT))),
    3: Known("CONV_2D", 1, "dwC", "d", _CONV),
    4: Known("DEPTHWISE_CONV_2D", 2, "dwC", "d", _DEPTHWISE),
    5: Known("DEPTH_TO_SPACE", 94, "d", "d", (_count(0),)),
    6: Known("DEQUANTIZE", 38, "s", "f"),
    8: Known("FLOOR", 0, "f", "f"),
    9: Known("FULLY_CONNECTED", 8, "dwc", "d", (_byte(0, 0, _ACT), _byte(1, 0, 0), _byte(2, 0, 1))),
    14: Known("LOGISTIC", 0, "d", "d"),
    17: Known("MAX_POOL_2D", 5, "d", "d", _POOL),
    18: Known("MUL", 21, "dd", "d", _BINARY),
    19: Known("RELU", 0, "d", "d"),
    21: Known("RELU6", 0, "d", "d"),
    22: Known("RESHAPE", 17, "mi", "m"),
    23: Known("RESIZE_BILINEAR", 15, "di", "d", (_byte(2, 0, 1), _byte(3, 0, 1))),
    25: Known("SOFTMAX", 9, "d", "d", ((0, "f", 0.0, 1e-6, 1e6),)),
    28: Known("TANH", 0, "d", "d"),
    34: Known("PAD", 22, "mi", "m"),
    36: Known("GATHER", 23, "mi", "m", (_AXIS, _count(1, 0, 0))),
    39: Known("TRANSPOSE", 26, "mi", "m"),
    40: Known("MEAN", 27, "di", "d", _KEEP),
    41: Known("SUB", 28, "dd", "d", _BINARY),
    42: Known("DIV", 29, "ff", "f", _BINARY),
    45: Known("STRIDED_SLICE", 32, "miii", "m", _MASKS),
    47: Known("EXP", 33, "f", "f"),
    53: Known("CAST", 37, "a", "a", (_byte(0, 0, 17), _byte(1, 0, 17))),
    54: Known("PRELU", 0, "dd", "d"),
    55: Known("MAXIMUM", 39, "dd", "d"),
    56: Known("ARG_MAX", 40, "di", "l", (_byte(0, 0, 17),)),
    57: Known("MINIMUM", 39, "dd", "d"),
    58: Known("LESS", 41, "dd", "b"),
    59: Known("NEG", 42, "f", "f"),
    60: Known("PADV2", 43, "mim", "m"),
    61: Known("GREATER", 44, "dd", "b"),
    62: Known("GREATER_EQUAL", 45, "dd", "b"),
    63: Known("LESS_EQUAL", 46, "dd", "b"),
    65: Known("SLICE", 48, "mii", "m"),
    66: Known("SIN", 0, "f", "f"),
    67: Known("TRANSPOSE_CONV", 49, "iwdC?", "d", (_byte(0, 0, 1), _count(1), _count(2), _byte(3, 0, _ACT))),
    69: Known("TILE", 51, "mi", "m"),
    71: Known("EQUAL", 53, "dd", "b"),
    72: Known("NOT_EQUAL", 54, "dd", "b"),
    73: Known("LOG", 0, "f", "f"),
    74: Known("SUM", 27, "di", "d", _KEEP),
    75: Known("SQRT", 0, "f", "f"),
    76: Known("RSQRT", 0, "f", "f"),
    78: Known("POW", 56, "ff", "f"),
    82: Known("REDUCE_MAX", 27, "di", "d", _KEEP),
    84: Known("LOGICAL_OR", 60, "bb", "b"),
    86: Known("LOGICAL_AND", 62, "bb", "b"),
    87: Known("LOGICAL_NOT", 63, "b", "b"),
    89: Known("REDUCE_MIN", 27, "di", "d", _KEEP),
    92: Known("SQUARE", 66, "f", "f"),
    95: Known("FLOOR_MOD", 72, "ff", "f"),
    97: Known("RESIZE_NEAREST_NEIGHBOR", 74, "di", "d", (_byte(0, 0, 1), _byte(1, 0, 1))),
    98: Known("LEAKY_RELU", 75, "d", "d", ((0, "f", 0.0, -1e6, 1e6),)),
    101: Known("ABS", 78, "f", "f"),
    104: Known("CEIL", 0, "f", "f"),
    108: Known("COS", 84, "f", "f"),
    111: Known("ELU", 0, "d", "d"),
    114: Known("QUANTIZE", 89, "r", "q"),
    116: Known("ROUND", 0, "f", "f"),
    117: Known("HARD_SWISH", 91, "d", "d"),
    123: Known("SELECT_V2", 98, "bdd", "d"),
    126: Known("BATCH_MATMUL", 101, "dd", "d", (_byte(0, 0, 1), _byte(1, 0, 1))),
    150: Known("GELU", 116, "d", "d", (_byte(0, 0, 1),)),
    158: Known("SIGN", 123, "f", "f"),
}  # fmt: skip
"""BuiltinOperator number → operator."""
