"""The backend of functions with `Model` nodes: TFLite runs these, NumPy what lies between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bb_edge.backends.tflite.bodies import MAX_DEPTH, Preparation
from bb_edge.backends.tflite.errors import TFLiteInterpreterError, TFLiteModelError
from bb_edge.backends.tflite.probe import MAX_THREADS, interpreter
from bb_edge.backends.tflite.program import TFLiteProgram
from bb_edge.ir import keys
from bb_edge.roles.backend import Backend
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.programs import BackendAttrs, BackendProgram, Functions
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.tuning import Choice
    from bb_edge.ir.onnx_pb2 import FunctionProto, GraphProto
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType

__all__ = ["MAX_DEPTH", "TFLiteBackend"]


class TFLiteBackend(Backend):
    """Runs `Model` nodes on a TFLite interpreter and all other ops on the NumPy backend.

    Configuration: `threads` of an interpreter (default 1), `tuning` (path of the file that `bb-edge bench
    --tune` wrote), and `arena_limit` of the NumPy backend. `tensor_bytes` is that of the NumPy backend, and
    what an interpreter may allocate for a batch of another size than one.

    `fallbacks` counts the models that run on NumPy because no interpreter runs here, which `notes` say;
    `chosen` says, model by model, what runs the others. The kernels are imported when something first runs on
    NumPy: a program that is one model never needs them, and starts faster without.
    """

    TYPE_NAME: ClassVar[str] = "bb.TFLiteBackend"
    CONFIG: ClassVar[Mapping[str, Setting]] = {
        "arena_limit": Setting.integer(0),
        "threads": Setting.integer(1, 1, MAX_THREADS),
        "tuning": Setting.text(""),
    }

    def __init__(
        self,
        arena_limit: int = 0,
        *,
        shared_arena: bool = False,
        threads: int = 1,
        tuning: Mapping[str, Choice] | None = None,
        tensor_bytes: int = 0,
    ) -> None:
        self._arena = (arena_limit, shared_arena)
        self._tensor_bytes = tensor_bytes
        self._numpy: NumPyBackend | None = None
        self.threads = threads
        self.tuning = dict(tuning or {})
        self.fallbacks = 0
        self.notes: list[str] = []
        self.chosen: list[str] = []

    @classmethod
    def construct(cls, env: ComponentEnv) -> TFLiteBackend:
        settings = env.settings(cls)
        backend = cls(
            settings["arena_limit"],
            shared_arena=True,
            threads=settings["threads"],
            tensor_bytes=env.tensor_bytes,
        )
        if path := settings["tuning"]:
            backend.take_tuning(path)
        return backend

    @property
    def numpy(self) -> NumPyBackend:
        """The NumPy backend that runs everything but models; made at its first use."""
        if self._numpy is None:
            from bb_edge.backends.numpy_backend import NumPyBackend

            limit, shared = self._arena
            self._numpy = NumPyBackend(limit, shared_arena=shared, tensor_bytes=self._tensor_bytes)
        return self._numpy

    def take_tuning(self, path: str) -> None:
        """Reads what was measured on this device.

        A file that is damaged, or was measured on another device, is ignored; `notes` say why.
        """
        from pathlib import Path

        from bb_edge.backends.tflite.tuning import TuningError, load_tuning

        try:
            self.tuning = load_tuning(Path(path), interpreter())
        except TuningError as error:
            self.notes.append(f"tuning ignored: {error}")

    def enter(self) -> object:
        return None if self._numpy is None else self._numpy.enter()

    def leave(self, token: object) -> None:
        if token is not None and self._numpy is not None:
            self._numpy.leave(token)

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        from bb_edge.backends.numpy_backend import NumPyBackend

        return NumPyBackend.supported_ops()

    def execute(
        self,
        graph: FunctionProto | GraphProto,
        inputs: Mapping[str, Array],
        attrs: BackendAttrs | None = None,
    ) -> dict[str, Array]:
        """Runs a graph on NumPy."""
        return self.numpy.execute(graph, inputs, attrs)

    def primitive(
        self,
        op_type: str,
        inputs: Sequence[Array],
        attributes: Mapping[str, object] | None = None,
        parameters: Mapping[int, Array] | None = None,
        n_outputs: int = 1,
    ) -> tuple[Array, ...]:
        return self.numpy.primitive(op_type, inputs, attributes, parameters, n_outputs)

    def materialize_from_wire(self, type_hash: int, payload: bytes | memoryview) -> Array:
        """A read-only array; it shares the payload's memory where the payload is aligned."""
        from bb_edge.roles.wire_tensors import tensor_from_wire

        return tensor_from_wire(type_hash, payload)

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        if domain == keys.TFLITE_DOMAIN:
            return op_type == "Model"
        from bb_edge.backends.numpy_backend import NumPyBackend

        return NumPyBackend.supports(op_type, version, domain)

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Prepares a function whose body may hold `Model` nodes.

        Raises TFLiteModelError, TFLiteInterpreterError, and what `NumPyBackend.prepare` raises.
        """
        preparation = Preparation(self.model, self._prepare_operators, functions or {})
        return preparation.prepare(function, resident or {}, {}, 0)

    def _prepare_operators(
        self, function: FunctionProto, functions: Functions, resident: Mapping[str, Array]
    ) -> BackendProgram:
        return self.numpy.prepare(function, functions, resident)

    @staticmethod
    def _note(text: str, told: list[str]) -> None:
        """What is the same of several models is said once: they have no names on a device."""
        if text not in told:
            told.append(text)

    def model(
        self, node: Any, functions: Functions, inputs: Sequence[ValueType | None], outputs: Sequence[Any]
    ) -> BackendProgram | FunctionProto:
        """What runs a `Model` node: its flatbuffer's program, or the function that it falls back on.

        `inputs` and `outputs` are the types declared for its ports, None where a type is not declared.
        Raises TFLiteModelError for a node or flatbuffer that is not sound, TFLiteInterpreterError where no
        interpreter runs here and the node has no fallback.
        """
        where = f"node {node.name!r} (Model)" if node.name else "a TFLite model of the artifact"
        if node.op_type != "Model":
            raise TFLiteModelError(f"unknown operator {node.op_type!r}", where)
        attributes = {attribute.name: attribute.s for attribute in node.attribute}
        model, digest = attributes.get("model", b""), attributes.get("sha256", b"")
        chosen = interpreter()
        measured = self.tuning.get(digest.decode("ascii", "replace"))
        on_numpy = measured is not None and not measured.threads and attributes.get("fallback")
        if chosen.make is not None and not on_numpy:
            threads = measured.threads if measured is not None and measured.threads else self.threads
            program = TFLiteProgram(
                chosen.make,
                bytes(model),
                bytes(digest),
                len(node.input),
                len(node.output),
                threads,
                where,
                self._tensor_bytes,
            )
            program.expect(inputs, outputs)
            self._note(f"{where}: {chosen.package}, threads {threads}", self.chosen)
            return program
        if not attributes.get("fallback"):
            raise TFLiteInterpreterError(
                f"no TFLite interpreter runs here: {chosen.why_not}",
                where,
                "install bytesandbrains-edge[litert] or [tflite], or compile with --backend auto",
            )
        name = attributes["fallback"].decode("utf-8", "replace")
        fallback = functions.get((keys.BACKEND_DOMAIN, name))
        if fallback is None or (len(fallback.input), len(fallback.output)) != (
            len(node.input),
            len(node.output),
        ):
            raise TFLiteModelError(f"its fallback {name!r} is missing, or has other inputs or outputs", where)
        if on_numpy:
            self._note(f"{where}: NumPy, which measured faster on this device", self.chosen)
        else:
            self.fallbacks += 1
            self._note(f"{where}: NumPy, because there is {chosen}", self.notes)
        return fallback
