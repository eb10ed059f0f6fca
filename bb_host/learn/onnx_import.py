"""Ordinary inference models: an ONNX graph with initializers becomes a function with parameters as inputs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.version_converter
from google.protobuf.message import DecodeError

from bb_edge.components.parameter_file import METADATA
from bb_edge.ir import keys
from bb_edge.ir.errors import BBError
from bb_edge.ir.opsets import onnx as onnx_opset
from bb_edge.ir.types import REGISTRY, TENSOR_BF16, ValueType, tensor_type
from bb_host.errors import ModelImportError, SparseTensorError, TrainingModeError, UnsupportedOperatorError
from bb_host.ir.program import Array, AttrValue, Function, Op, RawTensor, Subgraph
from bb_host.ir.proto import array_of, read_graph
from bb_host.ir.queries import ONNX_DOMAINS
from bb_host.ir.sparse_tensors import densified
from bb_host.learn.chosen_output import cut_to, refuse_several
from bb_host.learn.exporter_names import exporter_kinds
from bb_host.learn.merged_statistics import Tensors, parted_statistics
from bb_host.learn.parameters import Initializer, choose, layers_of, matching, unsendable
from bb_host.learn.sharing import make_personal, make_sent, train_last_layers
from bb_host.learn.split_sequences import without_sequences
from bb_host.learn.unrolled_loops import unrolled
from bb_host.onnx_io.declared_outputs import fault_of_outputs
from bb_host.onnx_io.files import load_weights, read_onnx
from bb_host.onnx_io.model import refuse_classical, refuse_training
from bb_host.onnx_io.newer_operators import opset_of, without_newer

_NO_OPERATOR = re.compile(r"No Op registered for (\w+)")
_OTHERWISE = "the exporter's log names the layer: write that layer in others, and export the model again"
_INSTEAD = {
    "Erfc": "Keras's gelu comes as Erfc: write keras.activations.gelu(x, approximate=True)",
    "StatefulPartitionedCall": "Keras's convolutions with groups come so: write one convolution per group,"
    " or DepthwiseConv2D",
}
"""What to write instead of operators that tf2onnx leaves as TensorFlow calls them."""

_ARRAY_TYPES = frozenset(t.elem_type for t in REGISTRY if t.elem_type is not None and t != TENSOR_BF16)


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """`function`: inputs are the model's inputs and then `parameters`.

    They come in the order of the initializers, those that are personal before the others, those that are sent
    and not learned behind them.

    What is neither learned nor sent (shapes, axes, statistics, constants of the exporter) is a Constant in
    it. `initializers` says of each initializer whether it is learned, and why.
    """

    function: Function
    parameters: dict[str, Array]
    initializers: tuple[Initializer, ...] = ()

    @property
    def personal(self) -> tuple[str, ...]:
        """Parameters that are learned and not sent, in order."""
        own = {i.name for i in self.initializers if i.personal and i.learned}
        return tuple(name for name in self.parameters if name in own)

    @property
    def untrained(self) -> tuple[str, ...]:
        """Parameters that are not learned, in order: sent alone, or statistics, personal ones among them."""
        given = {i.name for i in self.initializers if i.untrained}
        return tuple(name for name in self.parameters if name in given)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's own inputs."""
        return self.function.inputs[: len(self.function.inputs) - len(self.parameters)]


def import_onnx(
    source: onnx.ModelProto | str | Path | bytes,
    *,
    frozen: Collection[str] = (),
    train: Collection[str] = (),
    train_last: int | None = None,
    personal: Collection[str] = (),
    sent: Collection[str] = (),
    output: str | None = None,
    one_output: bool = False,
    learn_statistics: bool = False,
) -> ImportedModel:
    """Reads an inference model: from a proto, a file (external data beside it), or bytes.

    Which initializers are learned is decided by `bb_host.learn.parameters`. Those whose names match a pattern
    of `frozen` stay as they are, as constants of the graph; those that match one of `train` are learned.
    Patterns are names, or globs (`encoder.*`). `train_last` leaves the last layers as the only ones learned;
    what matches a pattern of `personal` is learned and not sent, and comes first among the parameters; what
    matches one of `sent` and is not learned is a parameter all the same, and comes last.

    With `output` the model is cut to that value, an output or an inner one; with `one_output`, several
    outputs of which none is chosen are a LearnError. Means and variances that an exporter has merged with
    other initializers are initializers of their own; `learn_statistics` says that batches update them.

    The model is converted to the opset that programs are recorded in, its own functions are inlined.
    ModelImportError says what of it cannot be taken.
    """
    where, model = load_source(source)
    if any(entry.key.startswith(keys.PREFIX) for entry in model.metadata_props):
        hint = "give the ONNX file that it binds; bb-host export takes a model out of a compiled program"
        raise ModelImportError("it is a program of ours and not a model", where, hint)
    kinds = exporter_kinds(model)
    named = model.producer_name == "pytorch" and not kinds  # by its older exporter, which marks nothing
    if output is not None:
        model = cut_to(model, output, where)
    elif one_output:
        refuse_several(model, where, of_floats=True)
    if fault := fault_of_outputs(model):
        raise ModelImportError(fault.what, ", ".join(filter(None, (where, fault.where))), fault.hint)
    model = _at_our_opset(model, where)
    try:
        graph = read_graph(model.graph, where)
    except BBError as error:
        hint = error.hint or "export it again"
        raise ModelImportError(error.what, error.where, hint) from error
    if one_output and output is None:
        refuse_several(model, where)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    graph = without_sequences(unrolled(graph, opsets))
    initializers: Tensors = {
        n: _plain_tensor(t) for n, t in {**graph.initializers, **_constants(graph)}.items()
    }
    graph, initializers = parted_statistics(graph, initializers)
    inputs = tuple(v for v in graph.inputs if v not in initializers)
    listed = choose(graph, initializers, kinds, frozen, train, where, named)
    if train_last is not None:
        forced = matching(train, graph.initializers, "train", where)
        layers = layers_of(graph, initializers, kinds)
        listed = train_last_layers(listed, layers, train_last, forced, where)
    updated = _updated(graph, listed) if learn_statistics else {}
    if sent:
        refused = unsendable(graph, initializers, kinds) | updated
        listed = make_sent(listed, sent, tuple(graph.initializers), refused, where)
    listed = make_personal(listed, personal, updated, where)
    ordered = sorted(
        (i for i in listed if i.learned or i.untrained), key=lambda i: (i.untrained, not i.personal)
    )
    parameters = {i.name: array_of(initializers[i.name]) for i in ordered}
    if broken := next((n for n, a in parameters.items() if np.isnan(a).any()), None):
        what = f"parameter {broken!r} holds values that are not numbers (NaN): what made it has diverged"
        raise ModelImportError(what, where, "export the model of an earlier step")
    if METADATA in parameters:
        what = f"a parameter is called {METADATA!r}, as the entry of parameter files that is not a parameter"
        raise ModelImportError(what, where, "rename it in the model, or freeze it")
    ops: list[Op] = []
    for key, tensor in initializers.items():
        if key not in parameters:
            ops.append(Op("Constant", keys.ONNX_DOMAIN, (), (key,), {"value": tensor}))
    ops.extend(op for op in graph.ops if not set(op.outputs) <= set(initializers))
    types = {v: graph.types[v] for v in inputs if v in graph.types}
    types.update({n: ValueType(tensor_type(a.dtype), a.shape) for n, a in parameters.items()})
    types.update({v: graph.types[v] for v in graph.outputs if v in graph.types})
    function = Function(
        "model",
        keys.COMPONENT_DOMAIN,
        (*inputs, *parameters),
        graph.outputs,
        tuple(ops),
        types,
        opsets=opsets,
    )
    _refuse_training(function, where)
    return ImportedModel(_plain(function, where), parameters, listed)


def load_source(source: Any) -> tuple[str, onnx.ModelProto]:
    """Where a model is from, and the model with its weights. ModelImportError for what is not a model."""
    where = str(source) if isinstance(source, (str, Path)) else "model"
    try:
        if isinstance(source, (str, Path)):
            model = read_onnx(source)
            load_weights(model, Path(source).parent)
        elif isinstance(source, bytes):
            model = onnx.ModelProto.FromString(source)
        elif isinstance(source, onnx.ModelProto):
            model = source
        else:
            hint = "give an ONNX file, its bytes or an onnx.ModelProto"
            raise ModelImportError(f"no ONNX model: {source!r}", where, hint)
        if not model.ByteSize():
            raise ModelImportError("no ONNX model: it is empty", where, "copy or export the file again")
        onnx.checker.check_model(model)
    except OSError as error:
        raise ModelImportError(error.strerror or str(error), where, "name an ONNX file") from error
    except (
        onnx.checker.ValidationError,
        DecodeError,
        ValueError,
    ) as error:  # UnicodeDecodeError is a ValueError
        detail = (str(error).strip().splitlines() or ["damaged"])[0]
        if "should be stored in" in detail or "External data" in detail or "should be file inside" in detail:
            hint = "the file of its weights belongs beside it, as it was when it was exported"
            raise ModelImportError(f"its weights cannot be read: {detail}", where, hint) from error
        if unknown := _NO_OPERATOR.search(detail):
            what = f"it has an operator {unknown[1]!r}, which ONNX has not: its exporter could not convert it"
            raise ModelImportError(what, where, _INSTEAD.get(unknown[1], _OTHERWISE)) from error
        hint = "export it again; onnx.checker.check_model says what it is missing"
        raise ModelImportError(f"no valid ONNX model: {detail}", where, hint) from error
    try:
        return where, densified(model)
    except SparseTensorError as error:
        raise ModelImportError(error.what, f"{where}, {error.where}", error.hint) from error


def _at_our_opset(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    try:
        refuse_classical(model)
    except UnsupportedOperatorError as error:
        raise ModelImportError(error.what, where, error.hint) from error
    foreign = sorted({n.domain for n in model.graph.node if n.domain not in ONNX_DOMAINS})
    if foreign:
        raise ModelImportError(
            f"it has operators of the domain {foreign[0]!r}", where, "export it with ONNX's own operators"
        )
    version = opset_of(model)
    if version != onnx_opset.VERSION:
        try:
            model = without_newer(model, onnx_opset.VERSION)
            model = onnx.version_converter.convert_version(model, onnx_opset.VERSION)
        except (RuntimeError, onnx.version_converter.ConvertError) as error:
            said = str(error).strip()
            reason = "" if "Assertion" in said else f": {said}"  # which is about ONNX's own code
            what = f"it cannot be converted from opset {version} to {onnx_opset.VERSION}{reason}"
            raise ModelImportError(what, where, "export it again with opset 13 or later") from error
    return model


def _updated(graph: Subgraph, listed: Sequence[Initializer]) -> dict[str, str]:
    """Statistics that batches are to update, by name: they are sent anyway."""
    held = {i.name for i in listed if i.frozen}
    return {
        name: 'batch_norm="update" sends it already'
        for op in graph.ops
        if op.op_type == "BatchNormalization"
        for name in op.inputs[3:5]
        if name not in held
    }


def _plain_tensor(tensor: Array | RawTensor) -> Array | RawTensor:
    """A tensor that is more than an array only by its name or doc string, as that array."""
    if isinstance(tensor, RawTensor) and tensor.elem_type in _ARRAY_TYPES:
        return array_of(tensor)
    return tensor


def _constants(graph: Subgraph) -> dict[str, Array | RawTensor]:
    """Weights that an exporter wrote as Constant nodes."""
    found: dict[str, Array | RawTensor] = {}
    for op in graph.ops:
        value: AttrValue | None = op.attrs.get("value") if op.op_type == "Constant" else None
        if isinstance(value, (np.ndarray, RawTensor)):
            found[op.outputs[0]] = value
    return found


def _refuse_training(function: Function, where: str) -> None:
    """Refuses what was exported in training mode: every such operator by name."""
    try:
        refuse_training(function)
    except TrainingModeError as error:
        named = "; ".join(f"{r.op_type} at {r.node}: {r.reason}" for r in error.refusals)
        hint = (
            "export the model for inference: model.eval() before torch.onnx.export; learning is a program's"
        )
        raise ModelImportError(f"it was exported in training mode: {named}", where, hint) from error


def _plain(function: Function, where: str) -> Function:
    """Value types that say less than ONNX's own are dropped; a batch of unknown size gets the symbol N.

    The same holds for sizes of an output that have a name of their own, as exporters give them: the batch of
    the output is that of the input, which inference finds.
    """
    types = dict(function.types)
    for name in function.inputs:
        known = types.get(name)
        if known is None or known.shape is None:
            raise ModelImportError(f"its input {name!r} has no shape", where, "export it with typed inputs")
        if known.shape and known.shape[0] is None:
            types[name] = known._replace(shape=("N", *known.shape[1:]))
    symbols = {d for name in function.inputs for d in types[name].shape or ()}
    for name in function.outputs:
        known = types.get(name)
        if known is not None and known.shape is not None:
            shape = tuple(d if isinstance(d, int) or d in symbols else None for d in known.shape)
            types[name] = known._replace(shape=shape)
    return dataclasses.replace(function, types=types)
