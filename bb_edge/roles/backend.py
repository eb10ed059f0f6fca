"""The Contract of a tensor backend: `prepare`, `execute`, `dispatch`, and the typed primitives below them.

A backend overrides the primitives (a library of ops) or `execute` (a graph compiler); each default is built
from the other. A class that overrides neither is refused when it is created. One that overrides only some
primitives and not `execute` is a small backend: the ones that it leaves out are `UnsupportedOpsError`.

On the hot path the runtime calls neither, but the `BackendProgram` that `prepare` made at install.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from bb_edge.ir import keys
from bb_edge.ir.primitives import PRIMITIVES
from bb_edge.roles.component import Component
from bb_edge.roles.errors import ContractError, UnsupportedOpsError
from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions, Tensor
from bb_edge.roles.tensor_primitives import PRIMITIVE_METHODS, TensorPrimitives

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import FunctionProto, GraphProto
    from bb_edge.ir.tensors import Array
    from bb_edge.roles.completion import CompletionHandle, Later

__all__ = ["Backend"]


class Backend(Component, TensorPrimitives):
    """Base of every tensor backend.

    Its methods take no `ctx`: a backend computes, and nothing that it does depends on the op that asks.
    """

    ROLE: ClassVar[str] = keys.ROLE_BACKEND

    _own_primitives: ClassVar[frozenset[str]] = frozenset()
    _own_execute: ClassVar[bool] = False
    own_dispatch: ClassVar[bool] = False
    """Whether the class overrides `dispatch`, so that its answers may come later."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_execute = cls.execute is not Backend.execute
        cls.own_dispatch = cls.dispatch is not Backend.dispatch
        if not inspect.ismethod(cls.supported_ops):
            raise ContractError(
                f"supported_ops of backend class {cls.__name__} is not a class method",
                f"{cls.__module__}.{cls.__qualname__}",
                "put @classmethod above it: the compiler asks the class. What only an instance knows goes "
                "into supports(self, …)",
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
        """Returns the names of the ONNX operators that the backend has in at least one version.

        By default these are the primitives that the class overrides, or all 30 where it overrides `execute`.
        A backend with more operators overrides this, as a class method: the compiler asks the class.
        """
        return frozenset(PRIMITIVES) if cls._own_execute else cls._own_primitives

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        """Returns whether the backend has an operator at an opset version.

        The question comes for every node of a subgraph: the compiler asks the class, the installation of a
        node asks the instance. A backend that knows only at installation which operators it has (a driver
        must be there) overrides `supports` as an ordinary method, which the compiler does not call.
        """
        return domain in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS) and op_type in cls.supported_ops()

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Makes a function ready to run; everything slow or fallible that needs no shapes happens here.

        `functions` are those that it may call. `resident` binds inputs to arrays that stay where they are and
        whose *contents* may change between runs (a model's parameters). The program's inputs are the others.

        The program of the default calls `execute` at each run, and `dispatch` where the engine runs it.
        Raises UnsupportedOpsError with the names of all operators that `supports` denies.
        """
        # Programs of NumPy alone never come here: they start without these modules.
        from bb_edge.roles.backend_walk import check_supported
        from bb_edge.roles.executed import ExecutedProgram

        check_supported(function, self.supports, self.TYPE_NAME)
        return ExecutedProgram(self, function, dict(resident or {}))

    def enter(self) -> object:
        """Sets up what the ops of one poll share; the engine passes the result to `leave`."""
        return None

    def leave(self, token: object) -> None:
        """Undoes `enter` after a poll's ops, whether they failed or not."""

    def dispatch(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Tensor],
        attrs: BackendAttrs | None = None,
        completion: CompletionHandle | None = None,
    ) -> dict[str, Tensor] | Later:
        """Runs a subgraph for the engine now, or returns `Later(completion)` and finishes it afterwards.

        A backend that answers later calls `completion.complete(results)` or `completion.fail(error)`, from
        any thread; `results` maps output names to handles, as `execute` returns them. `inputs` are handles of
        `from_array`, `attrs` the attributes and metadata of the node that calls the graph. An op that nobody
        completes within its deadline (30 s unless the program sets another) fails.
        """
        del completion  # the default answers now
        return self.execute(graph, inputs, attrs)

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> Tensor:
        """Returns a handle of the tensor that arrived as `payload`, a serialized `TensorProto`.

        The engine calls it for a value from the wire that feeds an op of this backend; other readers get the
        handle's `to_array`. The caller has checked the payload against its byte limits and does not touch it
        again, so the handle may be a view of it. `type_hash` is the wire hash of the expected tensor type, 0
        for any.

        Raises MaterializeError where the bytes are not a tensor of that type.
        """
        from bb_edge.roles.wire_tensors import tensor_from_wire

        return self.from_array(tensor_from_wire(type_hash, payload))

    # --- whole graphs -------------------------------------------------------------------------------------

    def execute(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Tensor],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, Tensor]:
        """Runs a graph on named inputs and returns its named outputs.

        The default calls one typed primitive per node, in the graph's order. Raises UnsupportedOpsError,
        before anything runs, where the graph has an operator whose primitive the class does not override.
        """
        from bb_edge.roles.backend_walk import execute_by_primitives

        return execute_by_primitives(self, self._own_primitives, graph, inputs)

    def primitive(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, Array] | None = None,
        n_outputs: int = 1,
    ) -> tuple[Tensor, ...]:
        """Runs one operator as a graph of one node through `execute`.

        Raises UnsupportedOpsError where the class does not override `execute`.
        """
        if not self._own_execute:
            raise UnsupportedOpsError((op_type,), f"backend {self.TYPE_NAME or type(self).__name__}")
        from bb_edge.roles.backend_walk import execute_single

        return execute_single(self.execute, op_type, inputs, attributes or {}, parameters or {}, n_outputs)


def _callable_as_execute(kind: type[Backend]) -> None:
    """Raises ContractError where `execute` cannot take the arguments that the runtime passes."""
    from bb_edge.roles.method_check import not_taking  # not needed for backends that ship

    for what, hint in not_taking(kind, "execute", ("graph", "inputs", "attrs")):
        raise ContractError(what, f"{kind.__module__}.{kind.__qualname__}", hint)
    try:
        inspect.signature(kind.execute).bind(None, "graph", "inputs")
    except TypeError as error:
        what = f"execute{inspect.signature(kind.execute)} cannot be called as execute(graph, inputs): {error}"
        hint = "define it as def execute(self, graph, inputs, attrs=None)"
        raise ContractError(what, f"{kind.__module__}.{kind.__qualname__}", hint) from error
