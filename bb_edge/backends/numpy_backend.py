"""The Backend Contract over the NumPy kernels of `bb_kernels`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bb_edge.backends.control import CONTROL_OPS
from bb_edge.backends.fitting import failed
from bb_edge.backends.lowering import FlatGraph, lower
from bb_edge.backends.plan import PlanLimits
from bb_edge.backends.program import NumPyProgram
from bb_edge.backends.quiet import hush, unhush
from bb_edge.ir import keys, onnx_pb2
from bb_edge.ir.opsets import onnx as onnx_opset
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.roles.backend import Backend, BackendAttrs, BackendProgram, Functions
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import BackendRunError, UnsupportedOpsError
from bb_edge.roles.wire_tensors import tensor_from_wire
from bb_kernels import KernelError, Prepared, TensorSpec, evaluate, prepare, supported, supported_ops

__all__ = ["NumPyBackend"]

_KEPT_PROGRAMS = 8  # of graphs given to `execute`
_KEPT_KERNELS = 256  # of typed primitives; a few hundred bytes each


class NumPyBackend(Backend):
    """Tensors are NumPy arrays. Configuration: `arena_limit`, bytes that one plan may take (0 = no limit)."""

    TYPE_NAME: ClassVar[str] = "bb.NumPyBackend"

    def __init__(self, arena_limit: int = 0) -> None:
        self._limits = PlanLimits(arena_limit)
        self._programs: OrderedDict[bytes, NumPyProgram] = OrderedDict()
        self._kernels: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()

    @classmethod
    def construct(cls, env: ComponentEnv) -> NumPyBackend:
        env.expect_keys(("arena_limit",))
        return cls(env.integer("arena_limit", 0))

    def supported_ops(self) -> frozenset[str]:
        return frozenset(supported_ops()) | CONTROL_OPS

    def supports(self, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        if domain not in (keys.ONNX_DOMAIN, keys.ONNX_DOMAIN_ALIAS):
            return False
        return op_type in CONTROL_OPS or supported(op_type, version)

    def prepare(
        self,
        function: onnx_pb2.FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, np.ndarray] | None = None,
    ) -> BackendProgram:
        """UnsupportedOpsError names every operator without a kernel, BackendWalkError a malformed graph."""
        return self._program(lower(function, functions), resident)

    def _program(self, graph: FlatGraph, resident: Mapping[str, np.ndarray] | None = None) -> NumPyProgram:
        self._check(graph)
        known = dict(resident or {})
        by_name = dict(zip(graph.input_names, graph.inputs, strict=True))
        unknown = sorted(set(known) - set(by_name))
        if unknown:
            raise BackendRunError(f"resident input {unknown[0]!r} is no input of it", f"graph {graph.name!r}")
        return NumPyProgram(graph, {by_name[name]: array for name, array in known.items()}, self._limits)

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
        inputs: Mapping[str, np.ndarray],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs a graph; the programs of the last few are kept. Hot paths use `prepare`."""
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
        inputs: Sequence[np.ndarray],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, np.ndarray] | None = None,
        n_outputs: int = 1,
    ) -> tuple[np.ndarray, ...]:
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
                kernel = prepare(op_type, onnx_opset.VERSION, attributes, specs, constants, n_outputs)
                self._kernels[key] = kernel
            return evaluate(kernel, arrays)
        except KernelError as error:
            raise failed(error, f"primitive {op_type}") from error
        finally:
            unhush(token)

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> np.ndarray:
        """A read-only array over the payload itself, where it is aligned."""
        return tensor_from_wire(type_hash, payload)
