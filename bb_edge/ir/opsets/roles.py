"""The six role opsets, version 1: the ops by which programs use components.

The inputs and outputs of an op are those of its Contract method (bb_edge/roles/contracts.py).
"""

from __future__ import annotations

from bb_edge.ir import keys
from bb_edge.ir.opsets.records import Effect, OpKind, Table

_SOURCE = OpKind.SOURCE
_R, _W = Effect.READ, Effect.WRITE

_i = Table(keys.ROLE_INDEX_DOMAIN)
_i.op("Add", "vec:Tensor", "cmd:CommandId", "", "Adds vectors, [n, d] or [d].", effect=_W, may_suspend=True)
_i.op(
    "Search",
    "query:Tensor",
    "ids:Tensor<I64>, distances:Tensor<F32>",
    "k:int",
    "The k nearest, nearest first: two [k] or [n, k] tensors.",
    effect=_R,
    may_suspend=True,
)
_i.op("Remove", "id:Tensor", "cmd:CommandId", "", "Removes vectors by id.", effect=_W, may_suspend=True)

_m = Table(keys.ROLE_MODEL_DOMAIN)
_m.op(
    "Forward",
    "input:Tensor",
    "output:Tensor",
    "",
    "Keeps its activations per execution.",
    effect=_R,
    may_suspend=True,
)
_m.op(
    "Backward",
    "grad:Tensor",
    "cmd:CommandId",
    "",
    "Adds dL/dparameters for dL/doutput.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "Step",
    "grads:Tensor?",
    "cmd:CommandId",
    "",
    "Applies the gradient, its own or a 1-D one.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "Evaluate",
    "input:Tensor, target:Tensor",
    "loss:Tensor<F32>",
    "",
    "Mean loss, 0-D.",
    effect=_R,
    may_suspend=True,
)
_m.op(
    "ApplyDelta",
    "delta:Tensor<F32>",
    "cmd:CommandId",
    "",
    "Adds to the parameters.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "LoadParameters",
    "params:Tensor<F32>",
    "cmd:CommandId",
    "",
    "Sets them; empty leaves them.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "Params", "", "params:Tensor<F32>", "", "All parameters, 1-D.", kind=_SOURCE, effect=_R, may_suspend=True
)

_a = Table(keys.ROLE_AGGREGATOR_DOMAIN)
_a.op(
    "Contribute",
    "contribution:Tensor, weight:Tensor?, peer:PeerIdVec?, round:Tensor<I64>?",
    "cmd:CommandId",
    "",
    "Counts once per (round, peer), first wins.",
    effect=_W,
    may_suspend=True,
)
_a.op(
    "Aggregate",
    "stack:Any?",
    "result:Tensor, total:Tensor<F32>",
    "",
    "The aggregate and the total weight; a tensor input contributes its rows first.",
    effect=_W,
    may_suspend=True,
)
_a.op(
    "CurrentTensor",
    "trigger:Trigger?",
    "tensor:Tensor",
    "",
    "The last aggregate.",
    effect=_R,
    may_suspend=True,
)

_c = Table(keys.ROLE_COMPRESSOR_DOMAIN)
_c.op("TrainCodebook", "training:Tensor", "cmd:CommandId", "", "Fits the codec.", effect=_W, may_suspend=True)
_c.op("Compress", "t:Tensor", "code:Tensor", "", "Encodes.", effect=_R, may_suspend=True)
_c.op("Decompress", "code:Tensor", "t:Tensor", "", "Decodes.", effect=_R, may_suspend=True)

_d = Table(keys.ROLE_DATA_LOADER_DOMAIN)
_d.op(
    "NextBatch",
    "",
    "batch:Tensor, labels:Tensor?",
    "",
    "The next batch.",
    kind=_SOURCE,
    effect=_W,
    may_suspend=True,
)
_d.op(
    "NumSamples",
    "",
    "n:Tensor<I64>",
    "",
    "Samples in the shard, 0-D.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)
_d.op(
    "Reset", "trigger:Trigger", "trigger:Trigger", "", "Back to the first batch.", effect=_W, may_suspend=True
)
_d.op(
    "OnDataLoaded",
    "",
    "trigger:Trigger",
    "",
    "Once the data is there.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)

_p = Table(keys.ROLE_PEER_SELECTOR_DOMAIN)
_p.op(
    "Sample",
    "",
    "peers:PeerIdVec",
    "n:int, min:int=0",
    "n peers at random, none where fewer than min are up.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)
_p.op(
    "CurrentView", "", "view:PeerIdVec", "", "All peers in view.", kind=_SOURCE, effect=_R, may_suspend=True
)
_p.op(
    "NearKey",
    "key:Bytes",
    "peers:PeerIdVec",
    "n:int",
    "The n peers in view that are nearest to a key, nearest first.",
    effect=_R,
    may_suspend=True,
)

OPSETS = {t.domain: t for t in (x.opset() for x in (_i, _m, _a, _c, _d, _p))}
