"""The numbers of TFLite's public schema (version 3) that we write: operators, options, element types.

The schema is append-only by its own rule. A test holds them against a runtime's generated schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = 0, 1, 2, 3

DTYPES = {
    "float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9,
    "float64": 10,
}  # fmt: skip

Slots = dict[str, tuple[int, str]]


class OperatorSchema(NamedTuple):
    """`code` of BuiltinOperator, `tag` of BuiltinOptions with the slots of its table, and the lowest versions
    whose contract covers what we emit: for float, and for int8 activations.
    """

    code: int
    tag: int = 0
    slots: Mapping[str, tuple[int, str]] = MappingProxyType({})
    version: int = 1
    version_int8: int = 2


def _slots(*fields: str) -> Slots:
    """`name:kind` in the order of the table; an empty field is skipped."""
    found: Slots = {}
    for slot, text in enumerate(fields):
        if text:
            name, _, kind = text.partition(":")
            found[name] = (slot, kind)
    return found


_ACT = _slots("act:Int8")
_POOL = _slots(
    "padding:Int8", "stride_w:Int32", "stride_h:Int32", "filter_w:Int32", "filter_h:Int32", "act:Int8"
)
_KEEP = _slots("keep_dims:Bool")
_RESIZE = _slots("", "", "align_corners:Bool", "half_pixel_centers:Bool")

OPERATORS: dict[str, OperatorSchema] = {
    "ABS": OperatorSchema(101, 78),
    "ADD": OperatorSchema(0, 11, _ACT),
    "ARG_MAX": OperatorSchema(56, 40, _slots("output_type:Int8")),
    "AVERAGE_POOL_2D": OperatorSchema(1, 5, _POOL),
    "BATCH_MATMUL": OperatorSchema(126, 101, _slots("adj_x:Bool", "adj_y:Bool"), 1, 2),
    "CAST": OperatorSchema(53, 37, _slots("in_type:Int8", "out_type:Int8")),
    "CEIL": OperatorSchema(104),
    "CONCATENATION": OperatorSchema(2, 10, _slots("axis:Int32", "act:Int8")),
    "CONV_2D": OperatorSchema(
        3, 1,
        _slots("padding:Int8", "stride_w:Int32", "stride_h:Int32", "act:Int8",
               "dilation_w:Int32", "dilation_h:Int32"),
        1, 3,
    ),
    "COS": OperatorSchema(108, 84),
    "DEPTHWISE_CONV_2D": OperatorSchema(
        4, 2,
        _slots("padding:Int8", "stride_w:Int32", "stride_h:Int32", "multiplier:Int32", "act:Int8",
               "dilation_w:Int32", "dilation_h:Int32"),
        2, 3,
    ),
    "DEPTH_TO_SPACE": OperatorSchema(5, 94, _slots("block:Int32")),
    "DEQUANTIZE": OperatorSchema(6, 38, {}, 3, 2),
    "DIV": OperatorSchema(42, 29, _ACT),
    "ELU": OperatorSchema(111),
    "EQUAL": OperatorSchema(71, 53),
    "EXP": OperatorSchema(47, 33),
    "FLOOR": OperatorSchema(8),
    "FLOOR_MOD": OperatorSchema(95, 72),
    "FULLY_CONNECTED": OperatorSchema(9, 8, _slots("act:Int8", "format:Int8", "keep_num_dims:Bool"), 5, 5),
    "GATHER": OperatorSchema(36, 23, _slots("axis:Int32", "batch_dims:Int32")),
    "GELU": OperatorSchema(150, 116, _slots("approximate:Bool")),
    "GREATER": OperatorSchema(61, 44),
    "GREATER_EQUAL": OperatorSchema(62, 45),
    "HARD_SWISH": OperatorSchema(117, 91, {}, 1, 1),
    "LEAKY_RELU": OperatorSchema(98, 75, _slots("alpha:Float32")),
    "LESS": OperatorSchema(58, 41),
    "LESS_EQUAL": OperatorSchema(63, 46),
    "LOG": OperatorSchema(73),
    "LOGICAL_AND": OperatorSchema(86, 62, {}, 1, 1),
    "LOGICAL_NOT": OperatorSchema(87, 63, {}, 1, 1),
    "LOGICAL_OR": OperatorSchema(84, 60, {}, 1, 1),
    "LOGISTIC": OperatorSchema(14),
    "MAXIMUM": OperatorSchema(55, 39),
    "MAX_POOL_2D": OperatorSchema(17, 5, _POOL),
    "MEAN": OperatorSchema(40, 27, _KEEP),
    "MINIMUM": OperatorSchema(57, 39),
    "MUL": OperatorSchema(18, 21, _ACT),
    "NEG": OperatorSchema(59, 42),
    "NOT_EQUAL": OperatorSchema(72, 54),
    "PAD": OperatorSchema(34, 22),
    "PADV2": OperatorSchema(60, 43),
    "POW": OperatorSchema(78, 56),
    "PRELU": OperatorSchema(54, 0, {}, 1, 1),
    "QUANTIZE": OperatorSchema(114, 89, {}, 1, 1),
    "REDUCE_MAX": OperatorSchema(82, 27, _KEEP),
    "REDUCE_MIN": OperatorSchema(89, 27, _KEEP),
    "RELU": OperatorSchema(19),
    "RELU6": OperatorSchema(21),
    "RESHAPE": OperatorSchema(22, 17, {}, 1, 1),
    "RESIZE_BILINEAR": OperatorSchema(23, 15, _RESIZE, 3, 3),
    "RESIZE_NEAREST_NEIGHBOR": OperatorSchema(
        97, 74, _slots("align_corners:Bool", "half_pixel_centers:Bool"), 3, 3
    ),
    "ROUND": OperatorSchema(116),
    "RSQRT": OperatorSchema(76),
    "SELECT_V2": OperatorSchema(123, 98, {}, 1, 1),
    "SIGN": OperatorSchema(158, 123),
    "SIN": OperatorSchema(66),
    "SLICE": OperatorSchema(65, 48),
    "SOFTMAX": OperatorSchema(25, 9, _slots("beta:Float32")),
    "SQRT": OperatorSchema(75),
    "SQUARE": OperatorSchema(92, 66),
    "STRIDED_SLICE": OperatorSchema(
        45, 32,
        _slots("begin_mask:Int32", "end_mask:Int32", "ellipsis_mask:Int32", "new_axis_mask:Int32",
               "shrink_mask:Int32"),
    ),
    "SUB": OperatorSchema(41, 28, _ACT),
    "SUM": OperatorSchema(74, 27, _KEEP),
    "TANH": OperatorSchema(28),
    "TILE": OperatorSchema(69, 51, {}, 1, 3),
    "TRANSPOSE": OperatorSchema(39, 26),
    "TRANSPOSE_CONV": OperatorSchema(
        67, 49, _slots("padding:Int8", "stride_w:Int32", "stride_h:Int32", "act:Int8"), 3, 3
    ),
}  # fmt: skip
