"""The backend of functions with `Model` nodes: TFLite for these, NumPy for everything between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bb_edge.backends.tflite.errors import TFLiteInterpreterError, TFLiteModelError
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.backends.tflite.program import TFLiteProgram
from bb_edge.ir import keys
from bb_edge.roles.backend import Backend, BackendAttrs, BackendProgram, Functions
from bb_edge.roles.component import ComponentEnv
from bb_edge.roles.errors import BackendRunError, BackendWalkError

if TYPE_CHECKING:
    from bb_edge.backends.numpy_backend import NumPyBackend
    from bb_edge.backends.tflite.tuning import Choice
    from bb_edge.ir.onnx_pb2 import FunctionProto, GraphProto
    from bb_edge.ir.tensors import Array

__all__ = ["MAX_DEPTH", "TFLiteBackend"]

MAX_DEPTH = 16
"""Functions that call functions with models in them."""

MAX_THREADS = 64


class TFLiteBackend(Backend):
    """Configuration: `threads` of an interpreter (default 1), `tuning` (the path of what `bb-edge bench
    --tune` wrote), and what the NumPy backend takes.

    `fallbacks` counts the models that run on NumPy for want of an interpreter; `notes` say, model by model,
    what runs it and why. The kernels are loaded where something runs on NumPy, and not before: most devices
    start many more models than they mix.
    """

    TYPE_NAME: ClassVar[str] = "bb.TFLiteBackend"

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
        env.expect_keys(("arena_limit", "threads", "tuning"))
        threads = env.integer("threads", 1, 1, MAX_THREADS)
        made = cls(env.integer("arena_limit", 0), shared_arena=True, threads=threads)
        if path := env.text("tuning", ""):
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

    def supported_ops(self) -> frozenset[str]:
        return self.numpy.supported_ops()

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

    def supports(self, op_type: str, version: int, domain: str = keys.ONNX_DOMAIN) -> bool:
        if domain == keys.TFLITE_DOMAIN:
            return op_type == "Model"
        return self.numpy.supports(op_type, version, domain)

    def prepare(
        self,
        function: FunctionProto,
        functions: Functions | None = None,
        resident: Mapping[str, Array] | None = None,
    ) -> BackendProgram:
        """Besides what the NumPy backend raises: TFLiteModelError, TFLiteInterpreterError."""
        return self._prepare(function, functions or {}, resident or {}, 0)

    def _prepare(
        self, function: Any, functions: Functions, resident: Mapping[str, Array], depth: int
    ) -> BackendProgram:
        if depth > MAX_DEPTH:
            raise BackendWalkError(f"functions nest deeper than {MAX_DEPTH}", f"graph {function.name!r}")
        if not _has_model(function, functions, 0):
            return self.numpy.prepare(function, functions, resident)
        nodes = list(function.node)
        if len(nodes) == 1 and not resident and _same_ports(nodes[0], function):
            return self._call(nodes[0], functions, depth)
        segments: list[_Segment] = []
        for run in _runs(nodes, functions):
            segments.append(_Segment(function, run))
        wanted = set(function.output)
        for segment in reversed(segments):
            segment.output = [name for name in segment.made if name in wanted]
            wanted |= set(segment.reads)
        known = set(function.input)
        steps: list[tuple[BackendProgram, tuple[str, ...], tuple[str, ...]]] = []
        for segment in segments:
            first = segment.node[0]
            if _is_special(first, functions):
                program = self._call(first, functions, depth)
                given, made = tuple(first.input), tuple(first.output)
            else:
                segment.input = [name for name in segment.reads if name in known]
                own = {name: resident[name] for name in segment.input if name in resident}
                program = self.numpy.prepare(segment, functions, own)  # type: ignore[arg-type]
                given, made = tuple(n for n in segment.input if n not in own), tuple(segment.output)
            missing = [name for name in given if name not in known]
            if missing:
                raise BackendWalkError(f"nothing produces {missing[0]!r}", f"graph {function.name!r}")
            known.update(made)
            steps.append((program, given, made))
        return _Chain(function, steps, resident)

    def _call(self, node: Any, functions: Functions, depth: int) -> BackendProgram:
        if node.domain != keys.TFLITE_DOMAIN:
            callee = functions[(node.domain, node.op_type)]
            if (len(callee.input), len(callee.output)) != (len(node.input), len(node.output)):
                raise BackendWalkError("a call does not fit its function", f"graph {callee.name!r}")
            return self._prepare(callee, functions, {}, depth + 1)
        where = f"node {node.name!r} (Model)"
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
        return self._prepare(fallback, functions, {}, depth + 1)


class _Segment:
    """Nodes in a row as a function of their own: what `lower` reads of one."""

    def __init__(self, function: Any, nodes: Sequence[Any]) -> None:
        self.name = function.name
        self.domain = function.domain
        self.node = nodes
        self.opset_import = function.opset_import
        self.attribute_proto: tuple[Any, ...] = tuple(function.attribute_proto)
        self.metadata_props: tuple[Any, ...] = ()
        self.input: list[str] = []
        self.made = list(dict.fromkeys(name for node in nodes for name in node.output if name))
        self.output = list(self.made)
        own = set(self.made)
        self.reads = list(dict.fromkeys(n for n in _reads(nodes, 0) if n and n not in own))


class _Chain(BackendProgram):
    """Programs one after the other, values by position."""

    def __init__(self, function: Any, steps: Sequence[Any], resident: Mapping[str, Array]) -> None:
        self.input_names = tuple(name for name in function.input if name not in resident)
        self.output_names = tuple(function.output)
        where = f"graph {function.name!r}"
        numbers: dict[str, int] = {}
        for name in (*self.input_names, *resident):
            numbers[name] = len(numbers)
        self._resident = list(resident.values())
        self._steps = []
        for program, given, made in steps:
            inputs = tuple(numbers[name] for name in given)
            for name in made:
                numbers[name] = len(numbers)
            self._steps.append((program.run, inputs))
        missing = [name for name in self.output_names if name not in numbers]
        if missing:
            raise BackendWalkError(f"nothing produces the output {missing[0]!r}", where)
        self._outputs = tuple(numbers[name] for name in self.output_names)
        # An output must be fresh and the caller's alone: not an input, not the same array twice.
        n_given = len(self.input_names) + len(self._resident)
        self._copied = tuple(v < n_given or v in self._outputs[:i] for i, v in enumerate(self._outputs))
        self._where = where

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if len(inputs) != len(self.input_names):
            raise BackendRunError(f"{len(inputs)} inputs given, it has {len(self.input_names)}", self._where)
        values = [*inputs, *self._resident]
        for run, given in self._steps:
            values += run([values[i] for i in given])
        pairs = zip(self._outputs, self._copied, strict=True)
        return tuple(values[i].copy() if copied else values[i] for i, copied in pairs)


def _reads(nodes: Sequence[Any], depth: int) -> Iterator[str]:
    """Names that nodes read, bodies of If and Loop included."""
    if depth > MAX_DEPTH * 2:
        raise BackendWalkError("bodies nest too deeply")
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == 5:
                yield from _reads(attribute.g.node, depth + 1)
                yield from (info.name for info in attribute.g.output)


def _same_ports(node: Any, function: Any) -> bool:
    return list(node.input) == list(function.input) and list(node.output) == list(function.output)


def _has_model(function: Any, functions: Functions, depth: int) -> bool:
    if depth > MAX_DEPTH:
        raise BackendWalkError(f"functions nest deeper than {MAX_DEPTH}", f"graph {function.name!r}")
    return any(_is_special(node, functions, depth) for node in function.node)


def _is_special(node: Any, functions: Functions, depth: int = 0) -> bool:
    if node.domain == keys.TFLITE_DOMAIN:
        return True
    callee = functions.get((node.domain, node.op_type))
    return callee is not None and _has_model(callee, functions, depth + 1)


def _runs(nodes: Sequence[Any], functions: Functions) -> Iterator[list[Any]]:
    run: list[Any] = []
    for node in nodes:
        if _is_special(node, functions):
            if run:
                yield run
            yield [node]
            run = []
        else:
            run.append(node)
    if run:
        yield run
