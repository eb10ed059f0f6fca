"""The default program of a backend, which calls the backend's own `execute` or `dispatch` at each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from bb_edge.ir.errors import BBError
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.errors import BackendError, BackendRunError
from bb_edge.roles.programs import BackendAttrs, BackendProgram, Tensor

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import CompletionHandle, Later

__all__ = ["ExecutedProgram"]


class GraphRunner(Protocol):
    """What the program needs of its backend; `bb_edge.roles.Backend` is one."""

    TYPE_NAME: ClassVar[str]
    own_dispatch: ClassVar[bool]

    def from_array(self, array: Array) -> Tensor:
        """Returns a handle of an array."""

    def to_array(self, tensor: Tensor) -> Array:
        """Returns the array of a handle."""


class ExecutedProgram(BackendProgram):
    """The default program: the backend's own handles inside, arrays outside.

    `run` calls `execute`, for callers that wait (a model's graphs, `open_model`); the engine calls
    `dispatch`, which may answer later. Results are checked against what the graph declares.
    """

    def __init__(self, backend: GraphRunner, function: FunctionProto, resident: Mapping[str, Array]) -> None:
        self.input_names = tuple(name for name in function.input if name not in resident)
        self.output_names = tuple(function.output)
        self._backend = backend
        self._function = function
        self._resident = resident
        self._expected = _expected(function, self.output_names)

    def declare(self, caller: FunctionProto) -> None:
        """Adds the types of the graph's outputs that `caller` declares, the function that it was cut from."""
        self._expected.update(_expected(caller, self.output_names))

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self.arrays(self._called("execute", self._function, self._handles(inputs)))

    def _called(self, name: str, *arguments: object) -> object:
        """Calls a method of the backend; BackendRunError with backend and line for what its code raises."""
        try:
            return getattr(self._backend, name)(*arguments)
        except BBError:
            raise
        # Users' backends may raise anything.
        except Exception as error:
            from bb_edge.ir.fault_lines import fault_line  # only errors need it

            line = fault_line(error)
            if not self._backend.own_dispatch:
                name = "execute"  # the default of dispatch calls it
            what = f"{name} raises {type(error).__name__}: {error}" + (f", at {line}" if line else "")
            raise BackendRunError(what, f"backend {self._backend.TYPE_NAME}", "mend the backend") from error

    def dispatch(
        self, inputs: Sequence[Array], attrs: BackendAttrs, completion: CompletionHandle | None
    ) -> tuple[Array, ...] | Later:
        """Runs the graph for an op of the engine; returns its results, or the backend's `Later`."""
        from bb_edge.roles.completion import Later

        results = self._called("dispatch", self._function, self._handles(inputs), attrs, completion)
        return results if isinstance(results, Later) else self.arrays(results)

    def arrays(self, results: object) -> tuple[Array, ...]:
        """Returns the arrays of a dict of handles, in the order of the graph's outputs.

        Raises BackendRunError where `results` is not a dict, lacks an output, or holds one of another type
        than the graph declares.
        """
        where = f"backend {self._backend.TYPE_NAME}"
        if not isinstance(results, Mapping):
            raise BackendRunError(
                f"its result is a {type(results).__name__}, not a dict of {', '.join(self.output_names)}",
                where,
                "return the graph's outputs by name",
            )
        missing = [name for name in self.output_names if name not in results]
        if missing:
            raise BackendRunError(
                f"its result has no {', '.join(missing)}, but {', '.join(map(str, results)) or 'nothing'}",
                where,
                "return every output of the graph, by name",
            )
        arrays = tuple([self._backend.to_array(results[name]) for name in self.output_names])
        for name, array in zip(self.output_names, arrays, strict=True):
            self._check(name, results[name], array, where)
        return arrays

    def _check(self, name: str, handle: object, array: object, where: str) -> None:
        """Raises BackendRunError where an output is not what the graph declares."""
        dtype, rank = self._expected.get(name, (None, -1))
        if isinstance(handle, list | tuple | int | float) or not isinstance(array, np.ndarray):
            what = f"its output {name!r} is a {type(handle).__name__}, expected an array"
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
                f"expected {len(self.input_names)} inputs, got {len(inputs)}",
                f"graph {self._function.name!r}",
            )
        handles = {name: self._backend.from_array(array) for name, array in self._resident.items()}
        for name, array in zip(self.input_names, inputs, strict=True):
            handles[name] = self._backend.from_array(array)
        return handles


def _expected(function: FunctionProto, names: Sequence[str]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Returns dtype and number of dimensions (-1: unknown) of the values that a function declares."""
    declared = {}
    for info in function.value_info:
        tensor = info.type.tensor_type
        dtype = dtype_of_elem(tensor.elem_type) if info.type.HasField("tensor_type") else None
        if dtype is not None and info.name in names:
            declared[info.name] = (dtype, len(tensor.shape.dim) if tensor.HasField("shape") else -1)
    return declared
