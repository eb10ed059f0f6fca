"""The backend on the NumPy kernels of `bb_kernels`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bb_edge.backends.arena import Arena
from bb_edge.backends.control import CONTROL_OPS
from bb_edge.backends.fitting import failed
from bb_edge.backends.flat_graph import FlatGraph
from bb_edge.backends.lowering import lower
from bb_edge.backends.plan import PlanLimits
from bb_edge.backends.program import NumPyProgram
from bb_edge.backends.stored_plan import StoredPlan, decode
from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.primitives import ONNX_VERSION
from bb_edge.ir.quiet import hush, unhush
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.types import dtype_of_elem
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import BackendRunError, TensorBytesError, UnsupportedOpsError
from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions, Spec
from bb_edge.roles.settings import Setting
from bb_edge.roles.wire_tensors import tensor_from_wire
from bb_kernels import KernelError, Prepared, TensorSpec, evaluate, prepare, supported, supported_ops

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

__all__ = ["NumPyBackend"]

_KEPT_PROGRAMS = 8
"""Programs of graphs given to `execute` that are kept; hot paths use `prepare` instead."""
_KEPT_KERNELS = 256
"""Kernels of typed primitives that are kept, of a few hundred bytes each."""


class NumPyBackend(Backend):
    """Runs ONNX operators on NumPy arrays.

    Configuration: `arena_limit`, the bytes that one plan may take (0: no limit). `tensor_bytes` is what one
    run may allocate for shapes that are not known when a program is compiled (0: no limit); a node has one
    limit for all (`NodeConfig`).

    With `shared_arena` all programs use one block of memory and run one after the other, as on a node, whose
    engine runs one op at a time; other threads wait. Without it each program has a block of its own.
    """

    TYPE_NAME: ClassVar[str] = "bb.NumPyBackend"
    CONFIG: ClassVar[Mapping[str, Setting]] = {"arena_limit": Setting.integer(0)}

    def __init__(self, arena_limit: int = 0, *, shared_arena: bool = False, tensor_bytes: int = 0) -> None:
        self._limits = PlanLimits(arena_limit, tensor_bytes)
        self.arena = Arena(shared=True) if shared_arena else None
        self._programs: OrderedDict[bytes, NumPyProgram] = OrderedDict()
        self._kernels: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()

    def take_tuning(self, path: str) -> None:
        """Does nothing: tuning files are about flatbuffers, which this backend does not run."""

    enter = staticmethod(hush)
    """Turns NumPy's floating point warnings off for the ops of a poll: ONNX has no such warnings."""
    leave = staticmethod(unhush)  # type: ignore[assignment]  # its parameter has no name

    @classmethod
    def construct(cls, env: ComponentEnv) -> NumPyBackend:
        limit = env.settings(cls)["arena_limit"]
        return cls(limit, shared_arena=True, tensor_bytes=env.tensor_bytes)

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        return frozenset(supported_ops()) | CONTROL_OPS

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        if domain not in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS):
            return False
        return op_type in CONTROL_OPS or supported(op_type, version)

    def prepare(
        self,
        function: onnx_pb2.FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Prepares a function, with its memory plan if the artifact holds one.

        Raises UnsupportedOpsError, which names all operators without a kernel, BackendWalkError for a
        malformed graph, and MemoryPlanError for a memory plan that cannot be used.
        """
        text = _plan_text(function, functions)
        stored = decode(text, f"graph {function.name!r}") if text is not None else None
        declared = _declared(function, resident or {})
        return self._program(lower(function, functions), resident, stored, declared)

    def _program(
        self,
        graph: FlatGraph,
        resident: Mapping[str, Array] | None = None,
        stored: StoredPlan | None = None,
        declared: tuple[Spec, ...] | None = None,
    ) -> NumPyProgram:
        self._check(graph)
        known = dict(resident or {})
        by_name = dict(zip(graph.input_names, graph.inputs, strict=True))
        unknown = sorted(set(known) - set(by_name))
        if unknown:
            raise BackendRunError(
                f"resident {unknown[0]!r} is not an input of the graph", f"graph {graph.name!r}"
            )
        return NumPyProgram(
            graph,
            {by_name[name]: array for name, array in known.items()},
            self._limits,
            arena=self.arena,
            stored=stored,
            declared=declared,
        )

    def _check(self, graph: FlatGraph) -> None:
        missing: dict[str, str] = {}
        pending = [graph]
        while pending:
            for node in pending.pop().nodes:
                pending.extend(body.graph for body in node.bodies.values())
                if not self.supports(node.op_type, node.version):
                    missing.setdefault(node.op_type, node.where)
        if missing:
            raise UnsupportedOpsError(missing, next(iter(missing.values())))

    def execute(
        self,
        graph: onnx_pb2.FunctionProto | onnx_pb2.GraphProto,
        inputs: Mapping[str, Array],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, Array]:
        """Runs a graph; the programs of the last few graphs are kept. Hot paths use `prepare`.

        Raises what `prepare` raises, and BackendRunError where the inputs do not fit.
        """
        key = type(graph).__name__.encode() + graph.SerializeToString(deterministic=True)
        program = self._programs.get(key)
        if program is None:
            program = self._program(lower(graph))
            while len(self._programs) >= _KEPT_PROGRAMS:
                self._programs.popitem(last=False)
            self._programs[key] = program
        self._programs.move_to_end(key)
        missing = [name for name in program.input_names if name not in inputs]
        if missing:
            raise BackendRunError(f"the input {missing[0]!r} is missing", f"graph {graph.name!r}")
        results = program.run([inputs[name] for name in program.input_names])
        return dict(zip(program.output_names, results, strict=True))

    def primitive(
        self,
        op_type: str,
        inputs: Sequence[Array],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, Array] | None = None,
        n_outputs: int = 1,
    ) -> tuple[Array, ...]:
        attributes = attributes or {}
        parameters = parameters or {}
        if op_type == "Constant" and isinstance(attributes.get("value"), onnx_pb2.TensorProto):
            value: Any = attributes["value"]
            return (from_tensor_proto(value),)
        handles = iter(inputs)
        arrays = [parameters.get(i) for i in range(len(inputs) + len(parameters))]
        arrays = [next(handles) if array is None else array for array in arrays]
        key = (
            op_type,
            n_outputs,
            tuple((a.shape, a.dtype) for a in arrays if a is not None),
            tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items()),
            tuple((i, a.tobytes()) for i, a in parameters.items()),
        )
        token = hush()
        try:
            kernel = self._kernels.get(key)
            if kernel is None:
                while len(self._kernels) >= _KEPT_KERNELS:
                    self._kernels.popitem(last=False)
                specs = [None if a is None else TensorSpec(a.dtype, a.shape) for a in arrays]
                constants = [parameters.get(i) for i in range(len(arrays))]
                most = self._limits.tensor_bytes
                kernel = prepare(op_type, ONNX_VERSION, attributes, specs, constants, n_outputs, most=most)
                if most and kernel.nbytes > most:
                    raise TensorBytesError(kernel.nbytes, most, f"primitive {op_type}")
                self._kernels[key] = kernel
            return evaluate(kernel, arrays, self._limits.tensor_bytes)
        except KernelError as error:
            raise failed(error, f"primitive {op_type}") from error
        finally:
            unhush(token)

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> Array:
        """A read-only array; it shares the payload's memory where the payload is aligned."""
        return tensor_from_wire(type_hash, payload)


def _declared(function: onnx_pb2.FunctionProto, resident: Mapping[str, Array]) -> tuple[Spec, ...] | None:
    """The shapes and dtypes of the inputs that are passed, where the function states them all as numbers."""
    stated = {info.name: info.type.tensor_type for info in function.value_info}
    specs: list[Spec] = []
    for name in function.input:
        if name in resident:
            continue
        tensor = stated.get(name)
        dtype = None if tensor is None else dtype_of_elem(tensor.elem_type)
        if tensor is None or dtype is None or not tensor.HasField("shape"):
            return None
        dims = list(tensor.shape.dim)
        if not all(dim.WhichOneof("value") == "dim_value" for dim in dims):
            return None
        specs.append((tuple(dim.dim_value for dim in dims), dtype))
    return tuple(specs)


def _plan_text(function: onnx_pb2.FunctionProto, functions: Functions | None) -> str | None:
    """The memory plan of a function, or of the function that is called if its body is one call."""
    for entry in function.metadata_props:
        if entry.key == keys.MEMORY_PLAN_KEY:
            return entry.value
    if len(function.node) != 1 or functions is None:
        return None
    (call,) = function.node
    callee = functions.get((call.domain, call.op_type))
    if callee is None or (call.input, call.output) != (function.input, function.output):
        return None
    if (len(callee.input), len(callee.output)) != (len(call.input), len(call.output)):
        return None
    return next((e.value for e in callee.metadata_props if e.key == keys.MEMORY_PLAN_KEY), None)
