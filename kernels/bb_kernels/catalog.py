"""Which topic module holds the kernels of which operators.

A device imports the topics that its model needs and no others: an import of all of them costs as much time as
NumPy's own. The test suite checks this table against what the modules register.
"""

from __future__ import annotations

from importlib import import_module

TOPICS: dict[str, str] = {
    "activations": (
        "Celu Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus "
        "Softsign SwiGLU Swish ThresholdedRelu"
    ),
    "attention": "Attention RotaryEmbedding TensorScatter",
    "conv": "Conv",
    "conv_transpose": "Col2Im ConvTranspose",
    "deform_conv": "DeformConv",
    "elementwise": (
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
        "LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor"
    ),
    "generate": "BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow Range",
    "indexing": "Gather GatherElements GatherND OneHot",
    "linalg": "Det Einsum Gemm MatMul",
    "losses": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "norm": (
        "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization"
    ),
    "pad": "CenterCropPad Pad",
    "pool": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
    "quant": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "quant_linear": "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
    "rearrange": "Concat DepthToSpace ReverseSequence Slice SpaceToDepth Split Tile Trilu",
    "reductions": (
        "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare"
    ),
    "resize": "Resize Upsample",
    "rnn": "GRU LSTM RNN",
    "scatter": "Scatter ScatterElements ScatterND",
    "search": "Compress CumProd CumSum NonZero TopK Unique",
    "shape": "Expand Flatten Reshape Shape Size Squeeze Transpose Unsqueeze",
    "softmax": "Hardmax LogSoftmax Softmax",
    "unary": (
        "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Clip Cos Cosh "
        "Dropout Exp Floor Identity IsInf IsNaN Log Neg Not Reciprocal Round Sign Sin Sinh Sqrt Tan "
        "Tanh"
    ),
    "vision": "AffineGrid GridSample NonMaxSuppression",
}

_TOPIC_OF: dict[str, str] = {op: topic for topic, ops in TOPICS.items() for op in ops.split()}


def load(op_type: str) -> None:
    """Import the topic of an operator, so that its kernels register; do nothing for an unknown operator."""
    topic = _TOPIC_OF.get(op_type)
    if topic is not None:
        import_module(f"{__package__}.{topic}")


def load_all() -> None:
    """Import every topic."""
    for topic in TOPICS:
        import_module(f"{__package__}.{topic}")
