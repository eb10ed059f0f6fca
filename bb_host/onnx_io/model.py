"""An ordinary ONNX model → one function of the light form, or a typed refusal.

1. The model must pass ONNX's own checker, hold its data inside, and speak opset 7 to 28. An older one is read
as opset 7 where none of its operators has changed since. 2. Model-local functions are inlined; so are
operators that the backend has not, where ONNX defines them by others. 3. Initializers become `Constant` ops
at the front, whether or not an input of the same name stands beside them (opset 8 and before); sparse ones
are written out, as are sparse constants. 4. Inputs and outputs are tensors; all element types are those that
the runtime has arrays for. 5. What is declared of outputs does not contradict the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference

from bb_edge.ir import keys, types
from bb_edge.ir.onnx_pb2 import TensorProto
from bb_edge.ir.tensors import TensorError
from bb_edge.ir.type_protos import TypeProtoError
from bb_edge.ir.types import ValueType
from bb_host.errors import (
    InvalidModelError,
    ModelTooLargeError,
    ProgramProtoError,
    Refusal,
    SparseTensorError,
    TrainingModeError,
    UnsupportedOperatorError,
    UnsupportedValueError,
)
from bb_host.ir import artifact_size
from bb_host.ir.program import Function, Op, RawTensor, Subgraph, walk_ops
from bb_host.ir.proto import array_of, read_graph, write_attribute
from bb_host.ir.queries import ONNX_DOMAINS
from bb_host.ir.sparse_tensors import densified
from bb_host.onnx_io.declared_outputs import fault_of_outputs

OLDEST_OPSET = 7
NEWEST_OPSET = 28

Supports = Callable[[str, int], bool]
"""Whether a backend has an operator of ONNX's own domain at an opset version."""

_FLOATS = "convert the model to float32 or float16"
_STRINGS = (
    "make numbers of the strings before the model, and cut what reads them off with onnx.utils.extract_model"
)
_STEPS = (
    "no backend runs a Scan: export the model with LSTM, GRU or RNN, or for sequences of a fixed length with"
    " their steps written out"
)


# --- reading --------------------------------------------------------------------------------------


def read_model(model: onnx.ModelProto, supports: Supports, name: str = "") -> Function:
    """The model as a function called `name` (the graph's own where empty), its opset in `opsets`.

    Raises InvalidModelError, UnsupportedValueError, UnsupportedOperatorError.
    """
    where = f"model {model.graph.name!r}"
    version = _opset(model, where)
    _check(model)
    refuse_classical(model)
    try:
        model = densified(model)
        refuse_outputs(model)
        model = _inlined(model, version, supports)
    except SparseTensorError as error:
        raise InvalidModelError(error.what, f"{where}, {error.where}", error.hint) from error
    graph = model.graph
    initialized = {tensor.name for tensor in graph.initializer}
    for info in (*graph.input, *graph.output):
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type" and info.type.tensor_type.elem_type == TensorProto.STRING:
            raise UnsupportedValueError(
                "strings, only numbers are taken", f"{where}, value {info.name!r}", _STRINGS
            )
        if kind not in (None, "tensor_type") and info.name not in initialized:
            raise UnsupportedValueError(
                f"a {kind}, only tensors are taken",
                f"{where}, value {info.name!r}",
                "cut the model with onnx.utils.extract_model, so that its inputs and outputs are tensors",
            )
    try:
        body = read_graph(graph)
    except TensorError as error:
        raise InvalidModelError(error.what, f"{where}, {error.where}", "export it again") from error
    except (ProgramProtoError, TypeProtoError) as error:
        raise UnsupportedValueError(error.what, f"{where}, {error.where}", error.hint or _FLOATS) from error
    constants = tuple(
        Op("Constant", "", (), (key,), {"value": value}) for key, value in body.initializers.items()
    )
    function = Function(
        name or graph.name or "main",
        keys.PROGRAM_DOMAIN,
        tuple(i for i in body.inputs if i not in initialized),
        body.outputs,
        constants + body.ops,
        {key: value for key, value in body.types.items() if key not in initialized},
        opsets={keys.ONNX_DOMAIN: version},
    )
    _check_elements(function, where)
    return function


def refuse_outputs(model: onnx.ModelProto) -> None:
    """InvalidModelError for a model without outputs, and for one that declares other types than it gives."""
    if fault := fault_of_outputs(model):
        where = ", ".join(filter(None, (f"model {model.graph.name!r}", fault.where)))
        raise InvalidModelError(fault.what, where, fault.hint)


def at_least_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The model in that opset of ONNX at least, by ONNX's own converter; itself where it is no older.

    What the converter cannot bring there stays as it is, for whatever needs it to refuse.
    """
    known = next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 0)
    if known >= version:
        return model
    try:
        return onnx.version_converter.convert_version(densified(model), version)
    except (SparseTensorError, onnx.version_converter.ConvertError, RuntimeError, ValueError):
        return model


def _check(model: onnx.ModelProto) -> None:
    where = f"model {model.graph.name!r}"
    sizes = {t.name: len(t.raw_data) for t in model.graph.initializer}
    if sum(sizes.values()) > artifact_size.MAX_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        total, most = sum(sizes.values()), artifact_size.MAX_BYTES
        raise ModelTooLargeError(
            f"its weights take {total:,} bytes, and an artifact holds {most:,} at most;"
            f" the largest: {largest!r}, {sizes[largest]:,} bytes",
            where,
            "quantize it before (float16 halves it), or take a smaller model",
        )
    external = [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise InvalidModelError(
            f"the data of {external[0]!r} lies outside of it",
            where,
            "load it with onnx.load(path), which reads external data",
        )
    try:
        onnx.checker.check_model(_with_declared_outputs(model))
    except (
        onnx.checker.ValidationError,
        ValueError,
        RuntimeError,
    ) as error:  # hostile bytes leak ValueErrors
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "export it again, or ask onnx.checker.check_model what is wrong"
        raise InvalidModelError(f"not a valid ONNX model: {text}", where, hint) from error


def _with_declared_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the checker wants it: outputs with a shape, which some leave to be inferred."""
    open_ended = [
        number
        for number, info in enumerate(model.graph.output)
        if info.type.WhichOneof("value") is None
        or (info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"))
    ]
    if not open_ended:
        return model
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    for number in open_ended:
        declared = checked.graph.output[number].type.tensor_type
        declared.elem_type = declared.elem_type or onnx.TensorProto.FLOAT
        declared.shape.SetInParent()
    return checked


def _opset(model: onnx.ModelProto, where: str) -> int:
    """The opset version to read it as; UnsupportedOperatorError outside of what the runtime knows."""
    version = next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 0)
    if version > NEWEST_OPSET:
        raise InvalidModelError(
            f"opset {version}, {NEWEST_OPSET} at most", where, "convert it with onnx.version_converter"
        )
    if version >= OLDEST_OPSET or not version:
        return int(version or OLDEST_OPSET)
    changed = [
        Refusal(_proto_name(node), node.op_type, version, f"changed before opset {OLDEST_OPSET}")
        for node in _protos(model.graph)
        if not _unchanged(node.op_type, version)
    ]
    if changed:
        raise UnsupportedOperatorError(
            changed,
            where,
            "export it again with opset 13 or later; onnx.version_converter needs a batch that is a number",
        )
    return OLDEST_OPSET


def _unchanged(op_type: str, version: int) -> bool:
    if not onnx.defs.has(op_type, OLDEST_OPSET):
        return False
    since: int = onnx.defs.get_schema(op_type, OLDEST_OPSET).since_version
    return since <= version


def _protos(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _protos(attribute.g)


def _proto_name(node: onnx.NodeProto) -> str:
    return f"node {node.name!r}" if node.name else f"{node.op_type} → {', '.join(node.output)}"


def _inlined(model: onnx.ModelProto, version: int, supports: Supports) -> onnx.ModelProto:
    if model.functions:
        model = onnx.inliner.inline_local_functions(model, True)
    missing = {
        n.op_type
        for n in _protos(model.graph)
        if n.domain in ONNX_DOMAINS and not supports(n.op_type, version)
    }
    if not hasattr(onnx.inliner, "inline_selected_functions"):
        return model
    for op in sorted(
        op for op in missing if _has_body(op, version)
    ):  # one by one: one may fail without the rest
        try:
            model = onnx.inliner.inline_selected_functions(model, [("", op)], False, True)
        except (TypeError, RuntimeError):  # an onnx that inlines no operators, or a body that needs types it
            continue  # cannot infer: the operator stays, and is refused by its name
    return model


def _has_body(op_type: str, version: int) -> bool:
    if not onnx.defs.has(op_type, version):
        return False
    schema = onnx.defs.get_schema(op_type, version)
    return bool(schema.has_function or schema.has_context_dependent_function)


# --- models of scikit-learn ------------------------------------------------------------------------

_CLASSICAL = "ai.onnx.ml"
_PLAIN_INSTEAD = frozenset({"LinearClassifier", "LinearRegressor", "Normalizer", "Scaler"})
"""What skl2onnx writes with ONNX's own operators, where `black_op` forbids these."""

_OF_LABELS = frozenset(
    {"ArrayFeatureExtractor", "CategoryMapper", "LabelEncoder", "LinearClassifier", "ZipMap"}
)
"""What only says which class is likeliest, which the device can say itself, or comes with that."""

_WITHOUT_FORM = ("Tree", "SVM")


def refuse_classical(model: onnx.ModelProto) -> None:
    """UnsupportedOperatorError naming all operators of classical machine learning, with the ways out."""
    nodes = [node for node in _protos(model.graph) if node.domain == _CLASSICAL]
    if not nodes:
        return
    there = {node.op_type for node in nodes}
    ways, export = [], []
    if "ZipMap" in there:
        export.append("options={id(model): {'zipmap': False}}")
    if there & _PLAIN_INSTEAD:
        names = ", ".join(repr(op) for op in sorted(there & _PLAIN_INSTEAD))
        export.append(f"black_op={{{names}}}")
    if export:
        ways.append(f"export with {', '.join(export)}")
    if there & _OF_LABELS:
        ways.append(
            f"{'then ' if export else ''}cut the label off, which has no other form: {_cut(model.graph)}"
        )
    rest = there - _PLAIN_INSTEAD - _OF_LABELS
    if rest:
        hopeless = any(op.startswith(_WITHOUT_FORM) for op in rest)
        what = "trees and support vectors have no form in them" if hopeless else "or as far as there is one"
        ways.append(f"train a model of ONNX's own operators instead, an MLPClassifier for one ({what})")
    raise UnsupportedOperatorError(
        [Refusal(_proto_name(node), node.op_type, 0, f"domain {_CLASSICAL!r}") for node in nodes],
        f"model {model.graph.name!r}",
        "; ".join(ways),
    )


def _cut(graph: onnx.GraphProto) -> str:
    """The call that leaves the probabilities of a classifier, once it is exported with its tensors."""
    weights = {weight.name for weight in graph.initializer}
    inputs = [port.name for port in graph.input if port.name not in weights]
    labels: set[str] = set()
    for node in graph.node:
        if node.op_type in _OF_LABELS - {"LinearClassifier"} or labels & set(node.input):
            labels.update(node.output)
    tensors = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
    found = [port for port in graph.output if port.type.tensor_type.elem_type in tensors]
    outputs = [port.name for port in found if port.name not in labels]
    return f"onnx.utils.extract_model('model.onnx', 'cut.onnx', {inputs}, {outputs or ['probabilities']})"


# --- what it may hold -----------------------------------------------------------------------------


def _check_elements(function: Function, where: str) -> None:
    for name in (*function.inputs, *function.outputs):
        _check_element(function.types.get(name), f"{where}, value {name!r}")
    for op in walk_ops(function.ops):
        tensors = [v for v in op.attrs.values() if isinstance(v, RawTensor)]
        for _, graph in op.subgraphs():
            tensors += [v for v in graph.initializers.values() if isinstance(v, RawTensor)]
        for tensor in tensors:
            if tensor.elem_type == TensorProto.BFLOAT16 or types.dtype_of_elem(tensor.elem_type) is None:
                raise UnsupportedValueError(
                    f"a tensor of {_element_name(tensor.elem_type)}",
                    f"{where}, {node_name(op)}",
                    _remedy(tensor.elem_type),
                )
        to = op.attrs.get("to") if op.op_type == "Cast" else None
        if isinstance(to, int) and (to == TensorProto.BFLOAT16 or types.dtype_of_elem(to) is None):
            place = f"{where}, {node_name(op)}"
            raise UnsupportedValueError(f"a cast to {_element_name(to)}", place, _remedy(to))


def _check_element(value: ValueType | None, where: str) -> None:
    elem = value.node.elem_type if value is not None else None
    if elem is not None and (elem == TensorProto.BFLOAT16 or types.dtype_of_elem(elem) is None):
        raise UnsupportedValueError(f"element type {_element_name(elem)}", where, _FLOATS)


def _remedy(elem: int) -> str:
    return _STRINGS if elem == TensorProto.STRING else _FLOATS


def _element_name(elem: int) -> str:
    try:
        return str(onnx.TensorProto.DataType.Name(elem)).lower()
    except ValueError:
        return f"type {elem}"


def node_name(op: Op) -> str:
    """How an error names an op: by its name, else by what it makes."""
    return f"node {op.name!r}" if op.name else f"{op.op_type} → {', '.join(o for o in op.outputs if o)}"


def refuse_unsupported(function: Function, supports: Supports) -> None:
    """UnsupportedOperatorError naming every op, in bodies too, that `supports` denies."""
    version = function.opsets[keys.ONNX_DOMAIN]
    refusals = []
    hint = ""
    for op in walk_ops(function.ops):
        if op.domain not in ONNX_DOMAINS:
            hint = "export the model with ONNX's own operators, before another runtime optimizes it"
            refusals.append(Refusal(node_name(op), op.op_type, 0, f"domain {op.domain!r}"))
        elif not supports(op.op_type, version):
            refusals.append(Refusal(node_name(op), op.op_type, version, "no backend has a kernel for it"))
            hint = hint or (_STEPS if op.op_type == "Scan" else "")
    if refusals:
        raise UnsupportedOperatorError(refusals, f"model {function.name!r}", hint)


def refuse_training(function: Function) -> None:
    """TrainingModeError for BatchNormalization and Dropout that learn or draw."""
    version = function.opsets[keys.ONNX_DOMAIN]
    constants = {
        op.outputs[0]: op.attrs.get("value") for op in walk_ops(function.ops) if op.op_type == "Constant"
    }
    refusals = []
    for op in walk_ops(function.ops):
        reason = ""
        if op.op_type == "BatchNormalization" and (
            op.attrs.get("training_mode") == 1 or len([o for o in op.outputs if o]) > 1
        ):
            reason = "it learns its statistics (training mode)"
        elif op.op_type == "Dropout" and len(op.inputs) > 2 and op.inputs[2]:
            flag: Any = constants.get(op.inputs[2])
            if flag is None:
                reason = "its training mode is an input"
            elif np.any(array_of(flag) if isinstance(flag, RawTensor) else flag):
                reason = "it drops values (training mode)"
        if reason:
            refusals.append(Refusal(node_name(op), op.op_type, version, reason))
    if refusals:
        raise TrainingModeError(refusals, f"model {function.name!r}", "export the model for inference")


# --- types ----------------------------------------------------------------------------------------


def as_model(function: Function) -> onnx.ModelProto:
    """The function as a model of its own again, for ONNX's tools and other runtimes.

    Large constants come as initializers, so that ONNX's tools see what they are.
    """
    initializers = {}
    ops = []
    for op in function.ops:
        value = op.attrs.get("value")
        if op.op_type == "Constant" and not isinstance(value, (int, float, bytes, list, type(None))):
            initializers[op.outputs[0]] = value
        else:
            ops.append(op)
    graph = Subgraph(
        function.name,
        function.inputs,
        function.outputs,
        tuple(ops),
        function.types,
        initializers,  # type: ignore[arg-type]
    )
    written = write_attribute("g", graph).g.SerializeToString(deterministic=True)
    model = onnx.ModelProto(ir_version=10, producer_name="bytesandbrains-edge")
    model.graph.ParseFromString(written)
    for domain, version in function.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    return model


def infer_types(function: Function) -> Function:
    """The function with every type that ONNX's inference finds; what it declares already stays.

    Inference never fails here: a model that it cannot follow keeps the types that it has.
    """
    # A declared type without a shape helps nobody, and where the bounds of a Slice have one, ONNX 1.23 takes
    # the Slice for its whole input.
    shaped = {
        name: known
        for name, known in function.types.items()
        if known.shape is not None or name in function.inputs
    }
    try:
        model = as_model(dataclasses.replace(function, types=shaped))
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        found = read_graph(inferred.graph).types
    except (onnx.shape_inference.InferenceError, ProgramProtoError, TypeProtoError, ValueError, RuntimeError):
        return function
    typed = {key: value for key, value in found.items() if value.node.elem_type}
    return dataclasses.replace(function, types={**function.types, **typed})


def contradicts(function: Function) -> bool:
    """Whether shapes fit with no unknown sizes at all: by ONNX's inference, from the inputs alone."""
    types = {name: value for name, value in function.types.items() if name in function.inputs}
    model = as_model(dataclasses.replace(function, types=types))
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.outputs)
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return True
    return False
