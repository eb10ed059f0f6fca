"""Parameters that were trained, in and out of models: into the ONNX file that they came from, into programs.

Everything is by name. What does not fit is one error that lists all of it, and nothing is written then.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.checker
from onnx import numpy_helper

from bb_edge.components.parameter_file import ParameterFile, ParameterFileError, unpack
from bb_edge.input_files import FileRefused, read_artifact
from bb_edge.ir import keys
from bb_edge.ir.suggestions import suggestion
from bb_host.errors import LearnError, ParameterMismatchError
from bb_host.ir.program import Array, Function, Program, Subgraph
from bb_host.ir.proto import from_proto, write_attribute
from bb_host.ir.queries import is_onnx, live
from bb_host.ir.rename import shortened_op
from bb_host.learn.merged_statistics import part_in_file
from bb_host.onnx_io.files import read_onnx

if TYPE_CHECKING:
    from bb_host.compiler.driver import Compiler


_LISTED = 8
_MAX_PROTO = 2**31 - 1
_EXTERNAL_FROM = 1024
"""Bytes from which a tensor lies in the file of weights, as onnx does it."""


def read_parameters(path: str | Path) -> ParameterFile:
    """The parameters in a file of `bb-edge export`, `--save-model` or `np.savez`. ParameterFileError."""
    try:
        data = read_artifact(path)
    except FileRefused as error:
        raise ParameterFileError(error.what, error.where, error.hint) from error
    except OSError as error:
        hint = "give the .npz of bb-edge export or --save-model"
        raise ParameterFileError(error.strerror or str(error), str(path), hint) from error
    return unpack(data, str(path))


# --- into an ONNX file ----------------------------------------------------------------------------


def export_model(model: onnx.ModelProto, parameters: Mapping[str, Array], where: str = "model") -> int:
    """Replaces initializers of an ordinary model by parameters of their names; how many were replaced.

    Every parameter must be an initializer of the model, in its shape and dtype; other initializers stay.
    Statistics that an exporter has merged with other initializers become initializers of their own, as they
    are in training. Raises ParameterMismatchError, changing nothing.
    """
    graph = model.graph
    if any(node.op_type == "BatchNormalization" for node in graph.node):  # others may be large: no copy
        graph = onnx.GraphProto()
        graph.CopyFrom(model.graph)
        part_in_file(graph)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    known = {
        name: (tuple(tensor.dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        for name, tensor in tensors.items()
        if name in parameters
    }
    hint = (
        "it is another model, or another export of it, in which names or shapes differ; give the file that"
        " trainable() or bb-host compile read"
    )
    _refuse(_misfits(known, parameters, tensors), where, hint)
    norms = (node for node in graph.node if node.op_type == "BatchNormalization")
    _refuse_values(parameters, {name for node in norms for name in node.input[4:5]}, where)
    for name, array in parameters.items():
        tensor = tensors[name]
        doc = tensor.doc_string
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        tensor.doc_string = doc
    if graph is not model.graph:
        model.graph.CopyFrom(graph)
    return len(parameters)


def has_external_data(path: str | Path) -> bool:
    """Whether the weights of a model lie in a file of their own."""
    model = read_onnx(path)
    return any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)


def write_model(model: onnx.ModelProto, path: str | Path, external: bool = False) -> list[Path]:
    """Writes a model, whole or not at all; the files written, the model's own last.

    `external`: weights in a file of their own beside it, `<name>.data`; so is every model above 2 GiB, and
    the proto is used up then: onnx takes its weights out. Raises OSError.
    """
    path = Path(path)
    external = external or model.ByteSize() > _MAX_PROTO
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        weights = f"{path.name}.data"
        if external:
            onnx.save_model(
                model,
                str(temporary),
                save_as_external_data=True,
                all_tensors_to_one_file=True,
                location=weights,
                size_threshold=_EXTERNAL_FROM,
            )
            onnx.checker.check_model(str(temporary))
        else:
            onnx.checker.check_model(model)
            onnx.save_model(model, str(temporary))
        made = [Path(folder) / name for name in (weights, path.name)]
        written = []
        for file in made:
            if file.exists():
                file.chmod(0o644)  # onnx writes weights for their owner alone
                os.replace(file, path.parent / file.name)
                written.append(path.parent / file.name)
    return written


def slot_model(
    model: onnx.ModelProto, slot: str | None = None, where: str = "artifact", target: str = ""
) -> onnx.ModelProto:
    """The model in a slot of a compiled program, as an ordinary ONNX model with the initial parameters.

    For when the original is not at hand: inputs, outputs and inner values are called what the artifact calls
    them, the opset is that of programs, batches are as they were. `target` says of which class it is, where
    each is bound to one of its own. Raises LearnError.
    """
    program = from_proto(model)
    found = _slots_of(program, target)
    if not found:
        raise LearnError("it holds no model with parameters", where, "give the ONNX file of the model")
    if slot is None and len(found) > 1:
        raise LearnError(
            f"it holds {len(found)} models", where, f"--slot {' or --slot '.join(sorted(found))}"
        )
    name = next(iter(found)) if slot is None else slot
    if name not in found:
        raise LearnError(f"no slot {name!r} holds a model", where, suggestion(name, found, "models: "))
    state = found[name]
    graphs = {f.name: f for f in program.functions if f.domain == keys.COMPONENT_DOMAIN}
    own = f"{name}.forward"
    of_all = (f for n, f in graphs.items() if n.partition("#")[0] == own)
    forward = graphs.get(f"{own}#{target}") or next(of_all)
    return _inference(forward, state, name)


def _inference(forward: Function, state: Subgraph, name: str) -> onnx.ModelProto:
    n_inputs = len(forward.inputs) - len(state.initializers)
    inputs, outputs = forward.inputs[:n_inputs], forward.outputs[:1]
    rename = dict(zip(forward.inputs[n_inputs:], state.initializers, strict=True))
    used = {v for op in forward.ops for v in (*op.inputs, *op.outputs)}.union(inputs) - set(rename)
    taken = used & set(rename.values())  # an inner value that is called as a parameter is
    rename.update({value: f"{value}_value" for value in taken})
    ops = tuple(shortened_op(op, rename) for op in live(forward.ops, outputs))
    types = {rename.get(v, v): forward.types[v] for v in (*inputs, *outputs) if v in forward.types}
    inputs, outputs = (tuple(rename.get(v, v) for v in names) for names in (inputs, outputs))
    graph = Subgraph(name, inputs, outputs, ops, types, dict(state.initializers))
    result = onnx.ModelProto(ir_version=10, producer_name="bytesandbrains-edge")
    result.graph.ParseFromString(write_attribute("g", graph).g.SerializeToString(deterministic=True))
    for domain, version in forward.opsets.items():
        result.opset_import.add(domain=domain, version=version)
    return result


# --- into a program -------------------------------------------------------------------------------


def model_slot(program: Program, compiler: Compiler | None, slot: str | None, where: str) -> str:
    """The slot that holds a model: the one that is named, or the only one. LearnError where there is none."""
    bindings = () if compiler is None else compiler.bindings
    models = _slots_of(program)
    models.update({b.slot: b.state for b in bindings if _is_model(b.state)})
    if slot is None and len(models) != 1:
        if not models:
            raise LearnError("no slot of the program is bound to a model with parameters", where, "bind one")
        hint = " or ".join(f"--params {name}={Path(where).name}" for name in sorted(models))
        raise LearnError(f"the program has {len(models)} models", where, hint)
    name = next(iter(models)) if slot is None else slot
    if name not in models:
        raise LearnError(f"no slot {name!r} is bound to a model", where, suggestion(name, models, "models: "))
    return name


def with_parameters(
    program: Program, compiler: Compiler | None, slot: str | None, given: Mapping[str, Array], where: str
) -> tuple[Program, Compiler | None]:
    """The program and its bindings with other initial parameters in a slot.

    `slot` may be None where one slot holds a model. Names, shapes and dtypes are exactly the model's. Raises
    ParameterMismatchError, and LearnError for a slot without a model.
    """
    name = model_slot(program, compiler, slot, where)
    bound = () if compiler is None else compiler.bindings
    functions = (*program.functions, *(f for binding in bound for f in binding.functions))

    def refilled(holder: Any) -> Any:
        """A binding or slot; with the parameters where it holds that model."""
        if not _is_model(holder.state):
            return holder
        expected = {n: (a.shape, a.dtype) for n, a in holder.state.initializers.items()}
        hint = "they are of another model: other layers, or other parts of it frozen"
        _refuse(_misfits(expected, given, expected, complete=True), f"{where}, slot {name!r}", hint)
        _refuse_values(given, _variances(functions, name, tuple(expected)), f"{where}, slot {name!r}")
        state = dataclasses.replace(holder.state, initializers={n: given[n] for n in expected})
        return dataclasses.replace(holder, state=state)

    if compiler is not None:
        bindings = tuple(refilled(b) if b.slot == name else b for b in compiler.bindings)
        compiler = dataclasses.replace(compiler, bindings=bindings)
    refilled_functions = (
        dataclasses.replace(f, slots={**f.slots, name: refilled(f.slots[name])}) if name in f.slots else f
        for f in program.functions
    )
    return program.with_functions(refilled_functions), compiler


def _variances(functions: Iterable[Function], slot: str, parameters: Sequence[str]) -> set[str]:
    """Which parameters of a slot's model are running variances."""
    found = set()
    for function in functions:
        if function.domain == keys.COMPONENT_DOMAIN and function.name.partition("#")[0] == f"{slot}.forward":
            names = dict(zip(function.inputs[-len(parameters) :], parameters, strict=True))
            norms = (op for op in function.ops if is_onnx(op, "BatchNormalization"))
            found |= {names[op.inputs[4]] for op in norms if op.inputs[4] in names}
    return found


def _is_model(state: object) -> bool:
    return isinstance(state, Subgraph) and bool(state.initializers)


def _slots_of(program: Program, target: str = "") -> dict[str, Any]:
    """Models whose construction state stands in the program itself: compiled ones, and concrete slots."""
    functions = [f for f in program.functions if not target or f.name == target]
    return {name: slot.state for f in functions for name, slot in f.slots.items() if _is_model(slot.state)}


# --- what does not fit ----------------------------------------------------------------------------


def _misfits(
    expected: Mapping[str, tuple[tuple[int, ...], Any]],
    given: Mapping[str, Array],
    names: Iterable[str],
    complete: bool = False,
) -> list[str]:
    known = list(names)
    found = []
    for name, array in given.items():
        if name not in expected:
            found.append(f"unknown {name!r} ({suggestion(name, known, 'it has ') or 'it has none'})")
            continue
        shape, dtype = expected[name]
        if array.shape != shape:
            found.append(f"{name!r} is {list(array.shape)}, the model's is {list(shape)}")
        elif array.dtype != dtype:
            found.append(f"{name!r} is {array.dtype}, the model's is {dtype}{_as_dtype(array, dtype)}")
    if complete:
        found.extend(f"{name!r} is missing" for name in expected if name not in given)
    return found


def _refuse_values(given: Mapping[str, Array], variances: Collection[str], where: str) -> None:
    """ParameterMismatchError for numbers with which no model works: NaN, and variances below 0."""
    found = []
    for name, array in given.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            found.append(f"{name!r} holds values that are not numbers (NaN)")
        elif name in variances and (array < 0).any():
            found.append(f"{name!r} is a running variance and holds {array.min():g}, below 0")
    if found:
        more = f"; … ({len(found)} in all)" if len(found) > _LISTED else ""
        raise ParameterMismatchError(
            f"the parameters are broken: {'; '.join(found[:_LISTED])}{more}",
            where,
            "what made them has diverged, or changed them by hand: take those of an earlier round (a copy of"
            " the state folder or of --save-model), and train on with a lower learning rate",
        )


def _as_dtype(array: Array, dtype: Any) -> str:
    """How to make it fit, where only the dtype is another."""
    wanted = np.dtype(dtype)
    return f": save it as array.astype('{wanted}')" if array.dtype.kind == wanted.kind == "f" else ""


def _refuse(misfits: list[str], where: str, hint: str) -> None:
    if misfits:
        more = f"; … ({len(misfits)} in all)" if len(misfits) > _LISTED else ""
        what = f"the parameters do not fit: {'; '.join(misfits[:_LISTED])}{more}"
        raise ParameterMismatchError(what, where, hint)
