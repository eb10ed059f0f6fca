"""The default program of a backend: its own `execute` or `dispatch`, whose results the graph declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bb_edge.ir.errors import BBError
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.backend import Backend, BackendAttrs, BackendProgram, Tensor
from bb_edge.roles.errors import BackendError, BackendRunError

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import CompletionHandle, Later

__all__ = ["ExecutedProgram"]


class ExecutedProgram(BackendProgram):
    """The default program: the backend's own handles inside, arrays outside.

    `run` is `execute`, for callers that wait (a model's graphs, `open_model`); the engine calls `dispatch`,
    which may answer later.
    """

    def __init__(self, backend: Backend, function: FunctionProto, resident: Mapping[str, Array]) -> None:
        self.input_names = tuple(name for name in function.input if name not in resident)
        self.output_names = tuple(function.output)
        self._backend = backend
        self._function = function
        self._resident = resident
        self._expected = _expected(function, self.output_names)

    def declare(self, caller: FunctionProto) -> None:
        """Takes what the function that the graph was cut from says of the graph's outputs."""
        self._expected.update(_expected(caller, self.output_names))

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self.arrays(self._called("execute", self._function, self._handles(inputs)))

    def _called(self, name: str, *arguments: object) -> object:
        """BackendRunError, with the backend and the line, for what its own code raises."""
        try:
            return getattr(self._backend, name)(*arguments)
        except BBError:
            raise
        # The border to users' backends.
        except Exception as error:
            from bb_edge.user_modules import fault_line  # only errors need it

            line = fault_line(error)
            if type(self._backend).dispatch is Backend.dispatch:
                name = "execute"  # which the default of dispatch is
            said = f"{name} raises {type(error).__name__}: {error}" + (f", at {line}" if line else "")
            raise BackendRunError(said, f"backend {self._backend.TYPE_NAME}", "mend the backend") from error

    def dispatch(
        self, inputs: Sequence[Array], attrs: BackendAttrs, completion: CompletionHandle | None
    ) -> tuple[Array, ...] | Later:
        """Runs the graph for an op of the engine: its results, or the `Later` that the backend answers."""
        from bb_edge.roles.completion import Later

        found = self._called("dispatch", self._function, self._handles(inputs), attrs, completion)
        return found if isinstance(found, Later) else self.arrays(found)

    def arrays(self, found: object) -> tuple[Array, ...]:
        """The arrays of a dict of handles, in the graph's order.

        BackendRunError where the backend gave something else, or left an output out.
        """
        where = f"backend {self._backend.TYPE_NAME}"
        if not isinstance(found, Mapping):
            raise BackendRunError(
                f"its result is a {type(found).__name__}, not a dict of {', '.join(self.output_names)}",
                where,
                "return the graph's outputs by name",
            )
        missing = [name for name in self.output_names if name not in found]
        if missing:
            raise BackendRunError(
                f"its result has no {', '.join(missing)}, but {', '.join(map(str, found)) or 'nothing'}",
                where,
                "return every output of the graph, by name",
            )
        arrays = tuple([self._backend.to_array(found[name]) for name in self.output_names])
        for name, array in zip(self.output_names, arrays, strict=True):
            self._hold(name, found[name], array, where)
        return arrays

    def _hold(self, name: str, handle: object, array: object, where: str) -> None:
        """BackendRunError where an output is not what the graph declares."""
        dtype, rank = self._expected.get(name, (None, -1))
        if isinstance(handle, list | tuple | int | float) or not isinstance(array, np.ndarray):
            what = f"its output {name!r} is a {type(handle).__name__}, an array is expected"
            raise BackendRunError(what, where, f"give np.asarray(value, np.{dtype or 'float32'})")
        if dtype is not None and array.dtype != dtype:
            what = f"its output {name!r} is {array.dtype}, the graph declares {dtype}"
            raise BackendRunError(what, where, f"give array.astype('{dtype}')")
        if rank >= 0 and array.ndim != rank:
            what = f"its output {name!r} has {array.ndim} dimensions, the graph declares {rank}"
            raise BackendRunError(what, where, "give an array of as many dimensions")

    def _handles(self, inputs: Sequence[Array]) -> dict[str, Tensor]:
        if len(inputs) != len(self.input_names):
            raise BackendError(
                f"expected {len(self.input_names)} inputs, got {len(inputs)}", self._function.name
            )
        given = {name: self._backend.from_array(array) for name, array in self._resident.items()}
        for name, array in zip(self.input_names, inputs, strict=True):
            given[name] = self._backend.from_array(array)
        return given


def _expected(function: FunctionProto, names: Sequence[str]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Dtype, and number of dimensions (-1: unknown), of the values that a function declares."""
    found = {}
    for info in function.value_info:
        tensor = info.type.tensor_type
        dtype = dtype_of_elem(tensor.elem_type) if info.type.HasField("tensor_type") else None
        if dtype is not None and info.name in names:
            found[info.name] = (dtype, len(tensor.shape.dim) if tensor.HasField("shape") else -1)
    return found
