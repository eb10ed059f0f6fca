"""A trainable model as ONNX's own training format says it: `ModelProto.training_info` (opt-in).

Programs record training as plain ops; this is for tools that read TrainingInfoProto instead. The main graph
is inference, its initializers are the parameters; the training graph takes a batch and its targets, yields
the loss, and `update_binding` says which of its outputs a trainer stores into which initializer after a step.
"""

from __future__ import annotations

import numpy as np
import onnx

from bb_edge.ir import keys
from bb_edge.ir.types import TENSOR_F32, ValueType
from bb_host.errors import LearnError
from bb_host.ir.program import Array, Function, Op, Subgraph
from bb_host.ir.proto import write_attribute
from bb_host.ir.rename import rename_op
from bb_host.learn.autodiff import differentiate
from bb_host.learn.fit_graph import joined
from bb_host.learn.losses import loss_function, target_type
from bb_host.learn.trainable import TrainableModel

TARGET = "target"
LOSS = "loss"


def export_training(trainable: TrainableModel) -> onnx.ModelProto:
    """The model with one TrainingInfoProto: a step of gradient descent on the mean loss of a batch.

    Training graph: inputs are the model's input and `target` (of the output's shape), outputs `loss` and
    `<parameter>__next`, with momentum also `<parameter>__velocity__next`, whose initializers start at 0.
    Raises LearnError for a model without a gradient, or with values called as the export calls its own.
    """
    if trainable.gradient is None:
        raise LearnError("it has no gradient", "export_training", "make it with learning=True")
    other = {*trainable.config} & {"nesterov", "weight_decay", "clip_norm", "schedule", "warm_up"}
    if trainable.statistics:
        other.add("batch_norm")
    if trainable.optimizer != "sgd" or other:
        what = "the format's step is gradient descent with momentum, without "
        what += ", ".join(sorted(other)) or trainable.optimizer
        raise LearnError(what, "export_training", "leave it out; a program of ours trains with it")
    parameters = dict(trainable.model.parameters)
    whole = _with_loss(trainable)
    learned = [name for name in parameters if name not in trainable.model.untrained]
    gradient = differentiate(whole, learned)
    one = np.array(1.0, np.float32)
    seed = Op("Constant", keys.ONNX_DOMAIN, (), (gradient.backward.inputs[-1],), {"value": one})
    ops = [seed, *joined(gradient)]
    gradients = gradient.backward.outputs
    update = _Update(trainable, ops)
    for name, found in zip(learned, gradients, strict=True):
        update.step(name, found, parameters[name])
    return _model(trainable, whole, tuple(ops), update, parameters)


def _with_loss(trainable: TrainableModel) -> Function:
    """Forward and loss in one function: (input, parameters, target) → loss."""
    forward = trainable.model.function
    output = forward.outputs[0]
    loss = loss_function(trainable.loss, forward.types.get(output), trainable.loss_settings)
    rename = {name: f"{name}__of_loss" for op in loss.ops for name in op.outputs if name != LOSS}
    rename["output"] = output
    taken = {*forward.inputs, *(name for op in forward.ops for name in op.outputs)}
    for name in (TARGET, LOSS, *rename.values()):
        if name in taken and name != output:
            raise LearnError(f"a value of the model is called {name!r}", "export_training", "rename it")
    types = dict(forward.types)
    types[TARGET] = target_type(trainable.loss, types.get(output, ValueType(TENSOR_F32)))
    return Function(
        "training",
        forward.domain,
        (*forward.inputs, TARGET),
        (LOSS,),
        (*forward.ops, *(rename_op(op, rename) for op in loss.ops)),
        types,
        opsets=dict(forward.opsets),
    )


class _Update:
    """The ops that make new parameters, the initializers that they need, and the bindings."""

    def __init__(self, trainable: TrainableModel, ops: list[Op]) -> None:
        self.ops = ops
        self.momentum = trainable.momentum
        self.initializers: dict[str, Array] = {}
        self.bindings: list[tuple[str, str]] = []
        self._constant("learning_rate", trainable.learning_rate)
        if self.momentum:
            self._constant("momentum", self.momentum)

    def _constant(self, name: str, value: float) -> None:
        made = {"value": np.array(value, np.float32)}
        self.ops.append(Op("Constant", keys.ONNX_DOMAIN, (), (f"{name}__of_step",), dict(made)))

    def step(self, name: str, gradient: str, value: Array) -> None:
        """`p - learning_rate * g`; with momentum `g` is the new velocity, `momentum * velocity + g`."""
        if self.momentum:
            velocity = f"{name}__velocity"
            self.initializers[velocity] = np.zeros_like(value)
            self._op("Mul", (velocity, "momentum__of_step"), f"{velocity}__kept")
            self._op("Add", (f"{velocity}__kept", gradient), f"{velocity}__next")
            self.bindings.append((velocity, f"{velocity}__next"))
            gradient = f"{velocity}__next"
        self._op("Mul", (gradient, "learning_rate__of_step"), f"{name}__change")
        self._op("Sub", (name, f"{name}__change"), f"{name}__next")
        self.bindings.append((name, f"{name}__next"))

    def _op(self, op_type: str, inputs: tuple[str, ...], output: str) -> None:
        self.ops.append(Op(op_type, keys.ONNX_DOMAIN, inputs, (output,)))


def _model(
    trainable: TrainableModel,
    whole: Function,
    ops: tuple[Op, ...],
    update: _Update,
    parameters: dict[str, Array],
) -> onnx.ModelProto:
    forward = trainable.model.function
    types = whole.types
    kept = (*trainable.model.inputs, *forward.outputs)
    main = Subgraph(
        forward.name,
        trainable.model.inputs,
        forward.outputs,
        forward.ops,
        {name: types[name] for name in kept if name in types},
        {**parameters, **update.initializers},
    )
    algorithm = Subgraph(
        "step",
        (*trainable.model.inputs, TARGET),
        (LOSS, *(value for _, value in update.bindings)),
        ops,
        {
            **{name: types[name] for name in (*trainable.model.inputs, TARGET) if name in types},
            LOSS: ValueType(TENSOR_F32, ()),
            **{v: ValueType(TENSOR_F32, _shape(p, parameters)) for p, v in update.bindings},
        },
    )
    model = onnx.ModelProto(ir_version=10, producer_name="bytesandbrains-edge")
    model.graph.ParseFromString(_bytes(main))
    for domain, version in forward.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    info = model.training_info.add()
    info.algorithm.ParseFromString(_bytes(algorithm))
    for initializer, value in update.bindings:
        info.update_binding.add(key=initializer, value=value)
    return model


def _shape(name: str, parameters: dict[str, Array]) -> tuple[int, ...]:
    return tuple(int(d) for d in parameters[name.removesuffix("__velocity")].shape)


def _bytes(graph: Subgraph) -> bytes:
    data: bytes = write_attribute("graph", graph).g.SerializeToString(deterministic=True)
    return data
