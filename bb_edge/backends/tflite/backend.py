"""The backend of functions with `Model` nodes: TFLite for these, NumPy for everything between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bb_edge.backends.tflite.bodies import MAX_DEPTH, Preparation
from bb_edge.backends.tflite.errors import TFLiteInterpreterError, TFLiteModelError
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.backends.tflite.program import TFLiteProgram
from bb_edge.ir import keys
from bb_edge.roles.backend import Backend, BackendAttrs, BackendProgram, Functions
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.settings import Setting

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.tuning import Choice
    from bb_edge.ir.onnx_pb2 import FunctionProto, GraphProto
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType

__all__ = ["MAX_DEPTH", "TFLiteBackend"]

MAX_THREADS = 64


class TFLiteBackend(Backend):
    """Configuration: `threads` of an interpreter (default 1), `tuning` (the path of what `bb-edge bench
    --tune` wrote), and what the NumPy backend takes.

    `fallbacks` counts the models that run on NumPy for want of an interpreter; `notes` say, model by model,
    what runs it and why. The kernels are loaded where something runs on NumPy, and not before: most devices
    start many more models than they mix.
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
    ) -> None:
        self._arena = (arena_limit, shared_arena)
        self._numpy: NumPyBackend | None = None
        self.threads = threads
        self.tuning = dict(tuning or {})
        self.fallbacks = 0
        self.notes: list[str] = []

    @classmethod
    def construct(cls, env: ComponentEnv) -> TFLiteBackend:
        read = env.settings(cls)
        made = cls(read["arena_limit"], shared_arena=True, threads=read["threads"])
        if path := read["tuning"]:
            made.take_tuning(path)
        return made

    @property
    def numpy(self) -> NumPyBackend:
        """What runs everything but models."""
        if self._numpy is None:
            from bb_edge.backends.numpy_backend import NumPyBackend

            self._numpy = NumPyBackend(self._arena[0], shared_arena=self._arena[1])
        return self._numpy

    def take_tuning(self, path: str) -> None:
        """Takes what was measured on this device; a file that is none, or of another, is left aside."""
        from pathlib import Path

        from bb_edge.backends.tflite.tuning import TuningError, load_tuning

        try:
            self.tuning = load_tuning(Path(path), interpreter())
        except TuningError as error:
            self.notes.append(f"tuning is left aside: {error}")

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
        """A read-only array over the payload itself, where it is aligned."""
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
        """Besides what the NumPy backend raises: TFLiteModelError, TFLiteInterpreterError."""
        return Preparation(self, functions or {}).prepare(function, resident or {}, {}, 0)

    def model(
        self, node: Any, functions: Functions, inputs: Sequence[ValueType | None], outputs: Sequence[Any]
    ) -> BackendProgram | FunctionProto:
        """What runs a `Model` node: its flatbuffer's program, or the function that it falls back on.

        `inputs` and `outputs` are the types that are declared for its ports, None where none is.
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
            made = TFLiteProgram(
                chosen.make,
                bytes(model),
                bytes(digest),
                len(node.input),
                len(node.output),
                threads,
                where,
            )
            made.expect(inputs, outputs)
            self.notes.append(f"{where}: {chosen.package}, threads {threads}")
            return made
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
            raise TFLiteModelError(f"its fallback {name!r} is missing or does not fit", where)
        if on_numpy:
            self.notes.append(f"{where}: NumPy, which was measured to be faster here")
        else:
            self.fallbacks += 1
            self.notes.append(f"{where}: NumPy, for there is {chosen}")
        return fallback
