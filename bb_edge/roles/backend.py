"""The Contract of a tensor backend: 30 typed primitives, `execute`, `dispatch`, `materialize_from_wire`.

A backend overrides the primitives (a library of ops) or `execute` (a graph compiler); each default is built
from the other. A class that overrides neither is refused when it is created. One that overrides only some
primitives and not `execute` is a small backend: the ones that it leaves out are `UnsupportedOpsError`.

On the hot path the runtime calls neither, but the `BackendProgram` that `prepare` made at install.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.primitives import PRIMITIVES
from bb_edge.roles.component import Component
from bb_edge.roles.errors import BackendError, ContractError, MaterializeError

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        StringStringEntryProto,
        TensorProto,
    )
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import CompletionHandle, Later

__all__ = [
    "PRIMITIVE_METHODS",
    "Backend",
    "BackendAttrs",
    "BackendProgram",
    "Functions",
    "Tensor",
]

Tensor = Any
"""A backend's own handle of a tensor; `np.ndarray` for the NumPy backend."""

Functions = Mapping[tuple[str, str], "FunctionProto"]
"""Functions that a graph may call, by (domain, name)."""

PRIMITIVE_METHODS: Mapping[str, str] = {
    op: {
        "MatMul": "matmul",
        "ReduceSum": "reduce_sum",
        "ReduceMean": "reduce_mean",
        "ReduceMax": "reduce_max",
        "ReduceMin": "reduce_min",
        "Where": "where",
    }.get(op, op.lower())
    for op in PRIMITIVES
}
"""Operator → name of its typed method."""


class BackendAttrs(NamedTuple):
    """Attributes and metadata of the node that calls a graph."""

    attributes: Sequence[AttributeProto] = ()
    metadata: Sequence[StringStringEntryProto] = ()


class BackendProgram:
    """A graph that a backend has made ready. Not thread-safe: a program's memory serves one run at a time.

    `resident` inputs, given to `prepare`, are read in place at each run and not passed to it.
    `call(ctx, *arrays) -> array`, where a program has it, is `run` for one result without tuples; it is to be
    called between the backend's `enter` and `leave`.
    """

    call: Callable[..., Array] | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Runs the graph. The results are fresh arrays that the caller owns. BackendRunError on a misfit."""
        raise NotImplementedError

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Runs the graph into given arrays of exactly the results' shapes and dtypes, C-contiguous.

        No output may share memory with an input.
        """
        for target, value in zip(outputs, self.run(inputs), strict=True):
            if target.shape != value.shape or target.dtype != value.dtype:
                raise BackendError(
                    f"result is {value.dtype}{list(value.shape)}, the array given for it "
                    f"{target.dtype}{list(target.shape)}"
                )
            np.copyto(target, value)


class Backend(Component):
    """Base of every tensor backend. Methods of the Contract take no `ctx` (semantics §8)."""

    ROLE: ClassVar[str] = keys.ROLE_BACKEND

    _own_primitives: ClassVar[frozenset[str]] = frozenset()
    _own_execute: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_execute = cls.execute is not Backend.execute
        if not inspect.ismethod(cls.supported_ops):
            raise ContractError(
                f"supported_ops of backend class {cls.__name__} is no class method, so no class can be asked",
                f"{cls.__module__}.{cls.__qualname__}",
                "put @classmethod above it; what only a backend at work knows goes into supports(self, …)",
            )
        if cls._own_execute and not cls.__module__.startswith("bb_edge."):
            _callable_as_execute(cls)
        cls._own_primitives = frozenset(
            op
            for op, name in PRIMITIVE_METHODS.items()
            if getattr(cls, name) is not getattr(Backend, name) or cls.primitive is not Backend.primitive
        )
        if not cls._own_execute and not cls._own_primitives and not inspect.isabstract(cls):
            raise ContractError(
                f"backend class {cls.__name__} overrides neither execute nor a primitive",
                f"{cls.__module__}.{cls.__qualname__}",
                "override execute(graph, inputs, attrs), or the typed primitives: "
                + ", ".join(PRIMITIVE_METHODS.values()),
            )

    # --- what the runtime asks ----------------------------------------------------------------------------

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        """Names of the ONNX operators that it has in at least one version.

        The default: the primitives that the class overrides, all 30 where it overrides `execute`. A backend
        with more operators overrides this, as a class method: the compiler asks the class.
        """
        return frozenset(PRIMITIVES) if cls._own_execute else cls._own_primitives

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        """Whether it has an operator at an opset version.

        Asked for every node of a subgraph: of the class when a program is compiled, of the backend when a
        node is installed. One that knows only then what it has (a driver that must be there) overrides
        `supports` as an ordinary method, which the compiler leaves alone.
        """
        return domain in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS) and op_type in cls.supported_ops()

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Makes a function ready to run; everything slow or fallible that needs no shapes happens here.

        The default runs `execute` (the engine: `dispatch`) each time; UnsupportedOpsError names every
        operator that `supports` denies.

        `functions` are those that it may call. `resident` binds inputs to arrays that stay where they are and
        whose *contents* may change between runs (a model's parameters). The program's inputs are the others.
        """
        from bb_edge.roles.backend_walk import check_supported
        from bb_edge.roles.executed import ExecutedProgram

        check_supported(self, function)
        return ExecutedProgram(self, function, dict(resident or {}))

    def enter(self) -> object:
        """Called once before a poll's ops; what it returns goes to `leave`. For state that runs share."""
        return None

    def leave(self, token: object) -> None:
        """Called once after a poll's ops, whatever happened."""

    def dispatch(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Tensor],
        attrs: BackendAttrs | None = None,
        completion: CompletionHandle | None = None,
    ) -> dict[str, Tensor] | Later:
        """Runs a subgraph for the engine now, or answers `Later(completion)`.

        Who answers later calls `completion.complete(results)` or `.fail(error)`, from any thread; `results`
        is the dict of output names and handles that `execute` gives. Inputs are handles of `from_array`,
        `attrs` are the attributes and metadata of the node that calls the graph. The op fails where nobody
        completes it within its deadline, 30 s unless the program says otherwise.
        """
        del completion  # only those who answer later keep it
        return self.execute(graph, inputs, attrs)

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> Tensor:
        """The tensor whose wire form is `payload`; charged and capped by the caller, who won't touch it
        again.

        Called where a value that comes over the wire feeds an op of this backend. Other readers see its
        `to_array`.

        MaterializeError where the bytes are no tensor of that type; `type_hash` 0 takes any tensor.
        """
        from bb_edge.roles.wire_tensors import tensor_from_wire

        return self.from_array(tensor_from_wire(type_hash, payload))

    def from_array(self, array: Array) -> Tensor:
        """A handle for an array; the default handle is the array itself."""
        return array

    def to_array(self, tensor: Tensor) -> Array:
        """The array of a handle."""
        array = np.asarray(tensor)
        if array.dtype == object:
            raise MaterializeError(
                f"{type(self).__name__} does not define to_array for {type(tensor).__name__}"
            )
        return array

    # --- whole graphs -------------------------------------------------------------------------------------

    def execute(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Tensor],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, Tensor]:
        """Runs a graph on named inputs and returns its named outputs. The default walks it, primitive by
        primitive.
        """
        from bb_edge.roles.backend_walk import execute_by_primitives

        return execute_by_primitives(self, graph, inputs)

    def primitive(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, Array] | None = None,
        n_outputs: int = 1,
    ) -> tuple[Tensor, ...]:
        """One operator through `execute`; what every typed primitive is by default.

        `parameters` are the inputs that are no handles: position → array (axes, shapes, …).
        """
        from bb_edge.roles.backend_walk import execute_single

        return execute_single(self, op_type, inputs, attributes or {}, parameters or {}, n_outputs)

    # --- the 30 primitives --------------------------------------------------------------------------------
    # Shapes broadcast as NumPy's; results have the inputs' dtype unless said otherwise.

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b."""
        return self.primitive("Add", (a, b))[0]

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """a - b."""
        return self.primitive("Sub", (a, b))[0]

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a * b."""
        return self.primitive("Mul", (a, b))[0]

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """a / b; integers truncate towards zero."""
        return self.primitive("Div", (a, b))[0]

    def neg(self, a: Tensor) -> Tensor:
        """-a."""
        return self.primitive("Neg", (a,))[0]

    def abs(self, a: Tensor) -> Tensor:
        """|a|."""
        return self.primitive("Abs", (a,))[0]

    def sqrt(self, a: Tensor) -> Tensor:
        """Square root."""
        return self.primitive("Sqrt", (a,))[0]

    def pow(self, a: Tensor, b: Tensor) -> Tensor:
        """a ** b."""
        return self.primitive("Pow", (a, b))[0]

    def exp(self, a: Tensor) -> Tensor:
        """e ** a."""
        return self.primitive("Exp", (a,))[0]

    def log(self, a: Tensor) -> Tensor:
        """Natural logarithm."""
        return self.primitive("Log", (a,))[0]

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Matrix product with NumPy's rules for higher ranks."""
        return self.primitive("MatMul", (a, b))[0]

    def reduce_sum(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Sum over `axes`, over all of them where there are none."""
        return self._reduce("ReduceSum", a, axes, keepdims)

    def reduce_mean(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Mean over `axes`."""
        return self._reduce("ReduceMean", a, axes, keepdims)

    def reduce_max(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Maximum over `axes`."""
        return self._reduce("ReduceMax", a, axes, keepdims)

    def reduce_min(self, a: Tensor, axes: Sequence[int] = (), keepdims: bool = True) -> Tensor:
        """Minimum over `axes`."""
        return self._reduce("ReduceMin", a, axes, keepdims)

    def reshape(self, a: Tensor, shape: Sequence[int]) -> Tensor:
        """To the given dims; 0 keeps a dim, one -1 is worked out."""
        return self.primitive("Reshape", (a,), None, {1: _ints(shape)})[0]

    def transpose(self, a: Tensor, perm: Sequence[int] = ()) -> Tensor:
        """Permutes the axes; an empty `perm` reverses them."""
        return self.primitive("Transpose", (a,), {"perm": list(perm)} if perm else None)[0]

    def concat(self, inputs: Sequence[Tensor], axis: int) -> Tensor:
        """Joins along an axis."""
        return self.primitive("Concat", tuple(inputs), {"axis": axis})[0]

    def slice(
        self,
        a: Tensor,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int] = (),
        steps: Sequence[int] = (),
    ) -> Tensor:
        """NumPy's slice; without `axes` the leading ones, without `steps` 1 each."""
        parameters = {1: _ints(starts), 2: _ints(ends), 3: _ints(axes or range(len(starts)))}
        if steps:
            parameters[4] = _ints(steps)
        return self.primitive("Slice", (a,), None, parameters)[0]

    def split(self, a: Tensor, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Parts of the given sizes along an axis."""
        return self.primitive("Split", (a,), {"axis": axis}, {1: _ints(sizes)}, len(sizes))

    def squeeze(self, a: Tensor, axes: Sequence[int] = ()) -> Tensor:
        """Removes axes of length 1, all of them where none is named."""
        return self.primitive("Squeeze", (a,), None, {1: _ints(axes)} if axes else None)[0]

    def unsqueeze(self, a: Tensor, axes: Sequence[int]) -> Tensor:
        """Inserts axes of length 1."""
        return self.primitive("Unsqueeze", (a,), None, {1: _ints(axes)})[0]

    def identity(self, a: Tensor) -> Tensor:
        """The same values."""
        return self.primitive("Identity", (a,))[0]

    def cast(self, a: Tensor, dtype: int) -> Tensor:
        """To an ONNX `TensorProto.DataType`."""
        return self.primitive("Cast", (a,), {"to": int(dtype)})[0]

    def equal(self, a: Tensor, b: Tensor) -> Tensor:
        """a == b, bool."""
        return self.primitive("Equal", (a, b))[0]

    def greater(self, a: Tensor, b: Tensor) -> Tensor:
        """a > b, bool."""
        return self.primitive("Greater", (a, b))[0]

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        """a < b, bool."""
        return self.primitive("Less", (a, b))[0]

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """x where the condition holds, else y."""
        return self.primitive("Where", (condition, x, y))[0]

    def constant(self, value: TensorProto) -> Tensor:
        """A handle for the tensor that a `TensorProto` holds."""
        return self.primitive("Constant", (), {"value": value})[0]

    def gather(self, data: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
        """Entries of `data` along an axis."""
        return self.primitive("Gather", (data, indices), {"axis": axis})[0]

    def _reduce(self, op_type: str, a: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
        parameters = {1: _ints(axes)} if len(axes) else None
        return self.primitive(op_type, (a,), {"keepdims": int(keepdims)}, parameters)[0]


def _callable_as_execute(kind: type[Backend]) -> None:
    """ContractError where `execute` cannot take what it is called with."""
    from bb_edge.roles.method_check import not_taking  # what ships passes its tests without

    for what, hint in not_taking(kind, "execute", ("graph", "inputs", "attrs")):
        raise ContractError(what, f"{kind.__module__}.{kind.__qualname__}", hint)
    try:
        inspect.signature(kind.execute).bind(None, "graph", "inputs")
    except TypeError as error:
        what = f"execute{inspect.signature(kind.execute)} cannot be called as execute(graph, inputs): {error}"
        hint = "define it as def execute(self, graph, inputs, attrs=None)"
        raise ContractError(what, f"{kind.__module__}.{kind.__qualname__}", hint) from error


def _ints(values: Sequence[int] | range) -> Array:
    return np.asarray(list(values), dtype=np.int64)
