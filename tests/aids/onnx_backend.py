"""ONNX's own backend interface (`onnx.backend.base`) over the NumPy backend.

ONNX's own tests and its test runner take it.

A model that cannot run is refused by `prepare` with an `OnnxModelError`; `is_compatible` only asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.base
import onnx.helper
import onnx.shape_inference

from bb_edge.backends import NumPyBackend
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.errors import BackendRunError
from bb_edge.roles.programs import BackendProgram
from bb_host.errors import OnnxModelError
from bb_host.ir.proto import function_to_proto
from bb_host.onnx_io.model import NEWEST_OPSET, read_model, refuse_unsupported

_BACKEND = NumPyBackend()

Inputs = Any
"""A sequence of arrays in the order of the model's inputs, a mapping by name, or a lone array."""


class PreparedModel(onnx.backend.base.BackendRep):  # type: ignore[misc]
    """A model ready to run on inputs of any shapes that fit it."""

    def __init__(self, program: BackendProgram, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.input_names = program.input_names
        self.output_names = program.output_names
        self._program = program
        self._dtypes = dtypes

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """The outputs, in order; fresh arrays. BackendRunError where the inputs do not fit the model."""
        return self._program.run(self._ordered(inputs))

    def _ordered(self, inputs: Inputs) -> list[np.ndarray[Any, Any]]:
        names = self.input_names
        if isinstance(inputs, Mapping):
            missing = [name for name in names if name not in inputs]
            if missing:
                raise BackendRunError(f"the input {missing[0]!r} is missing", f"inputs: {', '.join(names)}")
            given: Sequence[object] = [inputs[name] for name in names]
        elif isinstance(inputs, (list, tuple)):
            given = inputs
        else:
            given = [inputs]
        if len(given) != len(names):
            raise BackendRunError(
                f"{len(given)} inputs given, the model has {len(names)}: {', '.join(names)}", "model"
            )
        # Numbers and lists take the declared dtype; an array keeps its own, and is refused where it misfits.
        return [
            value if isinstance(value, np.ndarray) else np.asarray(value, self._dtypes.get(name))
            for name, value in zip(names, given, strict=True)
        ]


class NumPyOnnxBackend(onnx.backend.base.Backend):  # type: ignore[misc]
    """ONNX's `Backend` over `bb_edge.backends.NumPyBackend`; runs on the CPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `prepare` would take the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except OnnxModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Makes a model ready. OnnxModelError (InvalidModelError, UnsupportedOperatorError, …) otherwise."""
        if not cls.supports_device(device):
            raise OnnxModelError(f"no device {device!r}", "prepare", "this backend runs on the CPU")
        function = read_model(model, _BACKEND.supports)
        refuse_unsupported(function, _BACKEND.supports)
        dtypes = {}
        for name in function.inputs:
            declared = function.types.get(name)
            dtype = dtype_of_elem(declared.node.elem_type or 0) if declared is not None else None
            if dtype is not None:
                dtypes[name] = dtype
        return PreparedModel(_BACKEND.prepare(function_to_proto(function)), dtypes)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Inputs, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """`prepare` and one `run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """One node at `opset_version` (keyword; the newest of onnx and the runtime otherwise).

        `inputs` are the values of the inputs that are not omitted, in order, or a mapping by name.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if isinstance(inputs, Mapping):
            arrays = [np.asarray(inputs[name]) for name in names if name in inputs]
        elif isinstance(inputs, (list, tuple)):
            arrays = [np.asarray(value) for value in inputs if value is not None]
        else:
            arrays = [np.asarray(inputs)]
        if len(arrays) != len(names):
            raise BackendRunError(f"{len(arrays)} inputs given, the node reads {len(names)}", node.op_type)
        graph = onnx.helper.make_graph(
            [node],
            node.name or node.op_type,
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in zip(names, arrays, strict=True)
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        version = int(kwargs.get("opset_version") or _newest_opset())
        opset = onnx.helper.make_opsetid(node.domain, version)
        model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
        return cls.run_model(_with_output_types(model), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """`CPU`, and no other."""
        return device.split(":", maxsplit=1)[0].upper() == "CPU"


def _with_output_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model's outputs must say their types; where inference knows none, any will do: nothing reads it."""
    # Where inference fails, the checker or the kernel says better what is wrong.
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        model = onnx.shape_inference.infer_shapes(model)
    for info in model.graph.output:
        if not info.type.tensor_type.elem_type:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


def _newest_opset() -> int:
    known: int = onnx.defs.onnx_opset_version()
    return min(NEWEST_OPSET, known)


is_compatible = NumPyOnnxBackend.is_compatible
prepare = NumPyOnnxBackend.prepare
run_model = NumPyOnnxBackend.run_model
run_node = NumPyOnnxBackend.run_node
supports_device = NumPyOnnxBackend.supports_device
