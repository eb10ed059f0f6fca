"""The 46 ONNX operators that every program may use (docs/reference/ops.md lists them).

Attributes are the union over the operator's versions from opset 7 on, each with its newest default; the
operators' own documentation is ONNX's. Programs may hold other ONNX operators where the backend has them.
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import OpKind, Table
from bb_edge.ir.primitives import ONNX_VERSION, PRIMITIVES

__all__ = ["OPSETS", "PRIMITIVES", "VERSION"]

VERSION = ONNX_VERSION

_t = Table(keys.ONNX_DOMAIN, VERSION)

for _name in ("Add", "Sub", "Mul", "Div", "Pow"):
    _t.op(_name, "A:Tensor, B:Tensor", "C:Tensor", relation="broadcast")
for _name in ("Neg", "Abs", "Sqrt", "Exp", "Log", "Relu", "Sigmoid", "Tanh", "Identity"):
    _t.op(_name, "X:T", "Y:T", relation="elementwise")
_t.op("MatMul", "A:Tensor, B:Tensor", "Y:Tensor", relation="matmul")
_t.op(
    "Gemm",
    "A:Tensor, B:Tensor, C:Tensor?",
    "Y:Tensor",
    "alpha:float=1.0, beta:float=1.0, transA:int=0, transB:int=0",
    relation="gemm",
)
_t.op("Softmax", "input:Tensor", "output:Tensor", "axis:int=-1", relation="elementwise")
_t.op("LeakyRelu", "X:Tensor", "Y:Tensor", "alpha:float=0.01", relation="elementwise")
_t.op("Gelu", "X:Tensor", "Y:Tensor", "approximate:string=none", relation="elementwise")
_t.op("Reshape", "data:Tensor, shape:Tensor<I64>", "reshaped:Tensor", "allowzero:int=0", relation="reshape")
_t.op("Transpose", "data:Tensor", "transposed:Tensor", "perm:ints?", relation="transpose")
_t.op("Concat", "inputs:Tensor*", "concat_result:Tensor", "axis:int", relation="concat")
_t.op(
    "Split",
    "input:Tensor, split:Tensor<I64>?",
    "outputs:Tensor*",
    "axis:int=0, num_outputs:int?, split:ints?",
    relation="split",
)
_t.op(
    "Slice",
    "data:Tensor, starts:Tensor?, ends:Tensor?, axes:Tensor?, steps:Tensor?",
    "output:Tensor",
    "starts:ints?, ends:ints?, axes:ints?",
    relation="same_element",
)
_t.op("Squeeze", "data:Tensor, axes:Tensor<I64>?", "squeezed:Tensor", "axes:ints?", relation="squeeze")
_t.op("Unsqueeze", "data:Tensor, axes:Tensor<I64>?", "expanded:Tensor", "axes:ints?", relation="unsqueeze")
_t.op(
    "Cast", "input:Tensor", "output:Tensor", "to:int, saturate:int=1, round_mode:string=up", relation="cast"
)
for _name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
    _t.op(
        _name,
        "data:Tensor, axes:Tensor<I64>?",
        "reduced:Tensor",
        "axes:ints?, keepdims:int=1, noop_with_empty_axes:int=0",
        relation="reduce",
    )
for _name in ("Equal", "Greater", "Less"):
    _t.op(_name, "A:Tensor, B:Tensor", "C:Tensor<BOOL>", relation="compare")
_t.op("Where", "condition:Tensor<BOOL>, X:Tensor, Y:Tensor", "output:Tensor", relation="where")
_t.op(
    "BatchNormalization",
    "X:Tensor, scale:Tensor, B:Tensor, input_mean:Tensor, input_var:Tensor",
    "Y:Tensor, running_mean:Tensor?, running_var:Tensor?",
    "epsilon:float=1e-05, momentum:float=0.9, training_mode:int=0, spatial:int=1",
    relation="elementwise",
)
_t.op(
    "LayerNormalization",
    "X:Tensor, Scale:Tensor, B:Tensor?",
    "Y:Tensor, Mean:Tensor?, InvStdDev:Tensor?",
    "axis:int=-1, epsilon:float=1e-05, stash_type:int=1",
    relation="elementwise",
)
_WINDOW = "auto_pad:string=NOTSET, dilations:ints?, kernel_shape:ints?, pads:ints?, strides:ints?"
_t.op("Conv", "X:Tensor, W:Tensor, B:Tensor?", "Y:Tensor", f"{_WINDOW}, group:int=1", relation="same_element")
_t.op(
    "MaxPool",
    "X:Tensor",
    "Y:Tensor, Indices:Tensor<I64>?",
    f"{_WINDOW}, ceil_mode:int=0, storage_order:int=0",
    relation="same_element",
)
_t.op(
    "AveragePool",
    "X:Tensor",
    "Y:Tensor",
    f"{_WINDOW}, ceil_mode:int=0, count_include_pad:int=0",
    relation="same_element",
)
_t.op("GlobalAveragePool", "X:Tensor", "Y:Tensor", relation="same_element")
_t.op(
    "Constant",
    "",
    "output:T",
    "value:tensor?, value_float:float?, value_floats:floats?, value_int:int?, value_ints:ints?, "
    "value_string:string?, value_strings:strings?, sparse_value:any?",
    kind=OpKind.SOURCE,
    relation="constant",
)
_t.op("Gather", "data:Tensor, indices:Tensor", "output:Tensor", "axis:int=0", relation="gather")
_t.op(
    "Scatter",
    "data:Tensor, indices:Tensor, updates:Tensor",
    "output:Tensor",
    "axis:int=0",
    relation="elementwise",
)
_t.op("If", "cond:Tensor<BOOL>", "outputs:Any*", "then_branch:graph, else_branch:graph", relation="subgraph")
_t.op(
    "Loop",
    "M:Tensor<I64>?, cond:Tensor<BOOL>?, v_initial:Any*?",
    "v_final_and_scan_outputs:Any*",
    "body:graph",
    relation="subgraph",
)

OPSETS = {keys.ONNX_DOMAIN: _t.opset()}
