"""An ordinary ONNX model → a compiled program with one inference partition (docs/design/artifact.md).

1. The partition is named after the graph, made an identifier, or `main`; its ports are the model's inputs and
outputs, with their types. 2. Its main calls one function of the backend domain, which holds the whole model,
weights as constants. Outputs keep their names; one that is an input does not pass through the function, one
listed twice comes once. 3. Clean-up passes run first, unless told otherwise (`bb_host.passes.tensor`);
shapes may be fixed. 4. What the device could not run of what they leave is refused here, with node, operator
and opset version, before anything is written. 5. The result is an edge
artifact already: nothing in it speaks of its source.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Mapping, Sequence

import cbor2
import numpy as np
import onnx

from bb_edge.backends import NumPyBackend
from bb_edge.backends.fitting import fit
from bb_edge.backends.program import NumPyProgram
from bb_edge.ir import keys
from bb_edge.ir.class_names import SELF_CLASS
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.errors import BackendError
from bb_host.errors import Refusal, UnsupportedOperatorError
from bb_host.ir.facts import NO_FACTS, Bound, FunctionFacts, Heard, ProgramFacts
from bb_host.ir.hashing import content_digest
from bb_host.ir.program import Function, Op, Program, Slot
from bb_host.ir.proto import function_to_proto, to_proto
from bb_host.onnx_io.model import contradicts, infer_types, read_model, refuse_training, refuse_unsupported
from bb_host.passes.one_pass import Observer, PassReport
from bb_host.passes.tensor.cleaning import clean_up
from bb_host.passes.tensor.shapes import fix_shapes
from bb_kernels import KernelAttributeError, TensorSpec, UnsupportedDtypeError, UnsupportedOpError

_BACKEND = NumPyBackend()
_EMPTY_CONFIG = cbor2.dumps({}, canonical=True)


def is_plain(model: onnx.ModelProto) -> bool:
    """Whether a model is an ordinary one: nodes in its graph, and none of our metadata."""
    ours = any(entry.key.startswith(keys.PREFIX) for entry in model.metadata_props)
    return bool(model.graph.node) and not ours


def target_name(name: str) -> str:
    """A graph's name as an identifier; `main` where nothing is left of it."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if not text:
        return "main"
    return f"m_{text}" if text[0].isdigit() or keyword.iskeyword(text) else text


def compile_plain_model(
    model: onnx.ModelProto,
    name: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimize: bool = True,
) -> onnx.ModelProto:
    """`compile_plain` as a ModelProto: the artifact."""
    return to_proto(compile_plain(model, name, shapes, optimize))


def compile_plain(
    model: onnx.ModelProto,
    name: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimize: bool = True,
    observe: Observer | None = None,
    reports: list[PassReport] | None = None,
) -> Program:
    """The compiled program of an ordinary ONNX model, opset 7 to 28.

    `name` replaces the target's name, `shapes` fixes inputs (`{"x": (1, 3, 224, 224)}`), `optimize` runs the
    clean-up passes; `observe` sees what each gets and gives, and `reports` gets what they did.

    Raises OnnxModelError: InvalidModelError, UnsupportedValueError, UnsupportedOperatorError
    (TrainingModeError where it is the operator's mode), and ShapeArgumentError for shapes that do not fit.
    """
    target = target_name(name or model.graph.name)
    function = infer_types(read_model(model, _BACKEND.supports, target))
    refuse_training(function)
    if shapes:
        function = fix_shapes(function, shapes)
    if optimize:
        function = clean_up(function, observe, reports)
    refuse_unsupported(function, _BACKEND.supports)
    function = dataclasses.replace(function, outputs=tuple(dict.fromkeys(function.outputs)))
    _refuse_misfits(function)
    return _program(function, target)


# --- assembly -------------------------------------------------------------------------------------


def _program(function: Function, target: str) -> Program:
    opsets = {**function.opsets, keys.BACKEND_DOMAIN: 1, keys.PROGRAM_DOMAIN: 1}
    handed_through = set(function.inputs)
    bare = dataclasses.replace(
        function,
        outputs=tuple(v for v in function.outputs if v not in handed_through),
        name="",
        domain=keys.BACKEND_DOMAIN,
        ops=tuple(_stripped(op) for op in function.ops),
        types={},
        opsets=dict(function.opsets),
    )
    body = dataclasses.replace(bare, name=f"subgraph_{content_digest(bare)}")
    ports = (*function.inputs, *function.outputs)
    main = Function(
        target,
        keys.PROGRAM_DOMAIN,
        function.inputs,
        function.outputs,
        (Op(body.name, keys.BACKEND_DOMAIN, body.inputs, body.outputs),),
        {port: function.types[port] for port in ports if port in function.types},
        {keys.ROLE_BACKEND: Slot(keys.ROLE_BACKEND, NumPyBackend.TYPE_NAME, state=_EMPTY_CONFIG)},
        FunctionFacts(entry=True, partition=SELF_CLASS),
        opsets,
    )
    facts = ProgramFacts(
        compiled=keys.COMPILED_VERSION,
        module=target,
        targets=(target,),
        bindings={(target, keys.ROLE_BACKEND): Bound(keys.ROLE_BACKEND, NumPyBackend.TYPE_NAME, 1)},
        heard={target: Heard((), ())},
        stripped=True,
    )
    return Program(target, (main, body), facts, opsets)


def _stripped(op: Op) -> Op:
    return dataclasses.replace(op, extra=b"", facts=NO_FACTS) if op.extra or vars(op.facts) else op


# --- what the device would refuse -----------------------------------------------------------------


_SIZES = (1, 2, 3, 8, 32)
"""What unknown dimensions are tried as."""


def _refuse_misfits(function: Function) -> None:
    """Fits every kernel once: element types, attributes and shapes that it refuses are found here.

    Where an input's shape is not fully known, its unknown dims count as 1. Shapes that do not fit then are
    refused only if they fit with no other size, and ONNX's own inference finds them wrong whatever the size.
    """
    known = _specs(function, _SIZES[0])
    if known is None:
        return
    exact = all(isinstance(d, int) for name in function.inputs for d in function.types[name].shape or ())
    error = _misfit(function, known)
    if error is None:
        return
    hint = ""
    if not isinstance(error.__cause__, (UnsupportedDtypeError, KernelAttributeError, UnsupportedOpError)):
        hint = "its shapes contradict each other: export it again, and look at what this operator reads"
        for size in () if exact else _SIZES[1:]:
            again = _misfit(function, _specs(function, size) or known)
            if again is None or again.where != error.where:
                return
            error = again
        if not exact and not contradicts(function):
            return
    op_type = next(
        (
            op.op_type
            for op in function.ops
            if error.where.endswith(f"({op.op_type})") or error.where.startswith(f"{op.op_type} ")
        ),
        "",
    )
    refusal = Refusal(error.where, op_type, function.opsets[keys.ONNX_DOMAIN], error.what)
    raise UnsupportedOperatorError([refusal], f"model {function.name!r}", hint) from error


def _misfit(function: Function, specs: Sequence[TensorSpec]) -> BackendError | None:
    try:
        program = _BACKEND.prepare(function_to_proto(function))
        assert isinstance(program, NumPyProgram)
        fit(program.graph, specs, {})
    except BackendError as error:
        return error
    return None


def _specs(function: Function, size: int) -> list[TensorSpec] | None:
    """The inputs with that size for what is unknown; None where more than sizes is."""
    found = []
    for name in function.inputs:
        value = function.types.get(name)
        dtype = None if value is None or value.shape is None else dtype_of_elem(value.node.elem_type or 0)
        if value is None or dtype is None:
            return None
        shape = tuple(d if isinstance(d, int) else size for d in value.shape or ())
        found.append(TensorSpec(np.dtype(dtype), shape))
    return found
