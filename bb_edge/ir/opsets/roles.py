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
    "Returns the k nearest, nearest first: two [k] or [n, k] tensors.",
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
    "Returns the output; keeps the activations of the execution for Backward.",
    effect=_R,
    may_suspend=True,
)
_m.op(
    "Backward",
    "grad:Tensor",
    "cmd:CommandId",
    "",
    "Adds dL/dparameters to the gradient, given dL/doutput of the last Forward.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "Train",
    "input:Tensor, target:Tensor",
    "loss:Tensor<F32>",
    "",
    "Adds dL/dparameters of the batch to the gradient, and returns its mean loss L, 0-D.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_m.op(
    "ForwardKeyed",
    "input:Tensor, key:Any",
    "output:Tensor",
    "",
    "Returns the output; keeps the activations under a key, beyond the execution.",
    effect=_R,
    may_suspend=True,
    since=2,
)
_m.op(
    "BackwardKeyed",
    "grad:Tensor, key:Any",
    "cmd:CommandId",
    "",
    "Adds dL/dparameters to the gradient, given dL/doutput of the ForwardKeyed of its key, used up by it.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_m.op(
    "BackwardInput",
    "grad:Tensor, key:Any?",
    "input_grad:Tensor",
    "",
    "Does what Backward does, with a key what BackwardKeyed does, and returns dL/dinput.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_m.op(
    "Gradient",
    "",
    "gradient:Tensor<F32>",
    "",
    "Takes the gradient out, 1-D: the sum since the last Step, zeros without one; the next sum begins anew.",
    kind=_SOURCE,
    effect=_W,
    may_suspend=True,
    since=2,
)
_m.op(
    "Step",
    "grads:Tensor?",
    "cmd:CommandId",
    "",
    "Applies the model's own gradient and clears it, or a 1-D one that is given, and leaves its own.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "SetRound",
    "round:Tensor<I64>",
    "cmd:CommandId",
    "",
    "Says which round it is, from 1: learning rates that change by round go by it.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_m.op(
    "Evaluate",
    "input:Tensor, target:Tensor",
    "loss:Tensor<F32>",
    "",
    "Returns the mean loss, 0-D.",
    effect=_R,
    may_suspend=True,
)
_m.op(
    "ApplyDelta",
    "delta:Tensor<F32>",
    "cmd:CommandId",
    "",
    "Adds a 1-D vector to the parameters; an empty one leaves them.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "LoadParameters",
    "params:Tensor<F32>",
    "cmd:CommandId",
    "",
    "Sets the parameters from a 1-D vector; an empty one leaves them.",
    effect=_W,
    may_suspend=True,
)
_m.op(
    "Params",
    "",
    "params:Tensor<F32>",
    "",
    "Returns all parameters, 1-D, in the order of the initializers.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)

_a = Table(keys.ROLE_AGGREGATOR_DOMAIN)
_a.op(
    "Contribute",
    "contribution:Tensor, weight:Tensor?, peer:PeerIdVec?, round:Tensor<I64>?, sent:Tensor?",
    "cmd:CommandId",
    "",
    "Adds a contribution of the shape of `sent`; of those with the same (round, peer) the first counts.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_a.op(
    "Aggregate",
    "stack:Any?, round:Tensor<I64>?",
    "result:Tensor, total:Tensor<F32>",
    "",
    "Returns the aggregate and the total weight of a sum, over nothing an empty tensor and 0; rows of `stack`"
    " count first. What one round has asked for is one sum; `round` tells sums apart that several executions"
    " fill, where Contribute has it too.",
    effect=_W,
    may_suspend=True,
    since=2,
)
_a.op(
    "CurrentTensor",
    "trigger:Trigger?",
    "tensor:Tensor",
    "",
    "Returns the last aggregate, empty before the first.",
    effect=_R,
    may_suspend=True,
)

_c = Table(keys.ROLE_COMPRESSOR_DOMAIN)
_c.op(
    "TrainCodebook",
    "training:Tensor",
    "cmd:CommandId",
    "",
    "Fits the codec to a sample.",
    effect=_W,
    may_suspend=True,
)
_c.op("Compress", "t:Tensor", "code:Tensor", "", "Returns the code of a tensor.", effect=_R, may_suspend=True)
_c.op(
    "Decompress", "code:Tensor", "t:Tensor", "", "Returns the tensor of a code.", effect=_R, may_suspend=True
)

_d = Table(keys.ROLE_DATA_LOADER_DOMAIN)
_d.op(
    "NextBatch",
    "",
    "batch:Tensor, labels:Tensor?",
    "",
    "Returns the next batch; labels are absent where the source has none.",
    kind=_SOURCE,
    effect=_W,
    may_suspend=True,
)
_d.op(
    "NumSamples",
    "",
    "n:Tensor<I64>",
    "",
    "Returns the number of samples in the shard, 0-D.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)
_d.op(
    "Reset",
    "trigger:Trigger",
    "trigger:Trigger",
    "",
    "Goes back to the first batch.",
    effect=_W,
    may_suspend=True,
)
_d.op(
    "OnDataLoaded",
    "",
    "trigger:Trigger",
    "",
    "Fires once the data is there.",
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
    "Returns n peers at random; none where fewer than min are up.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)
_p.op(
    "SampleShare",
    "",
    "peers:PeerIdVec",
    "n:int, share:int, min:int=0",
    "Returns a share of the peers in view at random, in billionths, rounded up: min at least, n at most; none"
    " where fewer than min are up.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
    since=2,
)
_p.op(
    "CurrentView",
    "",
    "view:PeerIdVec",
    "",
    "Returns all peers in view.",
    kind=_SOURCE,
    effect=_R,
    may_suspend=True,
)
_p.op(
    "NearKey",
    "key:Bytes",
    "peers:PeerIdVec",
    "n:int",
    'Returns the n peers in view that are nearest to a key (`g.constant("name")`), nearest first.',
    effect=_R,
    may_suspend=True,
)

OPSETS = {t.domain: t for t in (x.opset() for x in (_i, _m, _a, _c, _d, _p))}

OUTPUT_SHAPES: dict[tuple[str, str], tuple[None, ...]] = {
    ("Params", "params"): (None,),
    ("Gradient", "gradient"): (None,),
    ("Evaluate", "loss"): (),
    ("Train", "loss"): (),
    ("Aggregate", "total"): (),
    ("NumSamples", "n"): (),
}
"""Of outputs (op, port) whose number of dimensions the Contract fixes. Artifacts do not repeat it."""
