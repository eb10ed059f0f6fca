"""Bodies with `Model` nodes: cut into runs of plain operators and models, one program each, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bb_edge.backends.tflite.errors import TFLiteModelError
from bb_edge.ir import keys
from bb_edge.roles.backend import BackendProgram, Functions
from bb_edge.roles.errors import BackendRunError, BackendWalkError

if TYPE_CHECKING:
    from bb_edge.backends.tflite.backend import TFLiteBackend
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType

__all__ = ["MAX_DEPTH", "MAX_PROGRAMS", "Preparation"]

MAX_DEPTH = 16
"""Functions that call functions with models in them."""

MAX_PROGRAMS = 1024
"""Of one body, those of the functions that it calls included: calls of calls would be any number."""

_GRAPH = 5

Types = Mapping[str, "ValueType"]


class Preparation:
    """Makes a body's program. `BackendWalkError` for what is no sound body."""

    def __init__(self, backend: TFLiteBackend, functions: Functions) -> None:
        self._backend, self._functions = backend, functions
        self._with_models: dict[tuple[str, str], bool] = {}
        self._made = 0

    def prepare(
        self, function: Any, resident: Mapping[str, Array], declared: Types, depth: int
    ) -> BackendProgram:
        """`declared` are types that the function's caller knows of its ports."""
        where = f"graph {function.name!r}"
        if depth > MAX_DEPTH:
            raise BackendWalkError(f"functions nest deeper than {MAX_DEPTH}", where)
        if not self._has_model(function, 0):
            self._count(where)
            return self._backend.numpy.prepare(function, self._functions, resident)
        types = {**declared, **_declared(function)}
        nodes = list(function.node)
        if len(nodes) == 1 and not resident and _same_ports(nodes[0], function):
            return self._call(nodes[0], types, depth)
        unknown = sorted(set(resident) - set(function.input))
        if unknown:
            raise BackendRunError(f"resident input {unknown[0]!r} is no input of it", where)
        segments = [_Segment(function, run) for run in self._runs(nodes)]
        wanted = set(function.output)
        for segment in reversed(segments):
            segment.output = [name for name in segment.made if name in wanted]
            wanted |= set(segment.reads)
        known = set(function.input)
        steps: list[tuple[BackendProgram, tuple[str, ...], tuple[str, ...]]] = []
        for segment in segments:
            first = segment.node[0]
            if self._is_special(first, 0):
                program = self._call(first, types, depth)
                given, made = tuple(first.input), tuple(first.output)
            else:
                self._count(where)
                segment.input = [name for name in segment.reads if name in known]
                own = {name: resident[name] for name in segment.input if name in resident}
                program = self._backend.numpy.prepare(segment, self._functions, own)  # type: ignore[arg-type]
                given, made = tuple(n for n in segment.input if n not in own), tuple(segment.output)
            missing = [name for name in given if name not in known]
            if missing:
                raise BackendWalkError(f"nothing produces {missing[0]!r}", where)
            twice = [name for i, name in enumerate(made) if name in known or name in made[:i]]
            if twice:
                raise BackendWalkError(f"{twice[0]!r} is produced twice", where)
            known.update(made)
            steps.append((program, given, made))
        return _Chain(function, steps, resident)

    def _count(self, where: str) -> None:
        self._made += 1
        if self._made > MAX_PROGRAMS:
            raise BackendWalkError(f"more than {MAX_PROGRAMS} models and runs of operators", where)

    def _call(self, node: Any, types: Types, depth: int) -> BackendProgram:
        inputs = [types.get(name) for name in node.input]
        outputs = [types.get(name) for name in node.output]
        if node.domain == keys.TFLITE_DOMAIN:
            self._count(f"node {node.name!r} (Model)")
            found = self._backend.model(node, self._functions, inputs, outputs)
            if isinstance(found, BackendProgram):
                return found
            callee: Any = found
        else:
            callee = self._functions[(node.domain, node.op_type)]
            if (len(callee.input), len(callee.output)) != (len(node.input), len(node.output)):
                raise BackendWalkError("a call does not fit its function", f"graph {callee.name!r}")
        names = (*callee.input, *callee.output)
        known = {n: t for n, t in zip(names, (*inputs, *outputs), strict=True) if t is not None}
        return self.prepare(callee, {}, known, depth + 1)

    def _has_model(self, function: Any, depth: int) -> bool:
        if depth > MAX_DEPTH:
            raise BackendWalkError(f"functions nest deeper than {MAX_DEPTH}", f"graph {function.name!r}")
        return any(self._is_special(node, depth) for node in function.node)

    def _is_special(self, node: Any, depth: int) -> bool:
        if node.domain == keys.TFLITE_DOMAIN:
            return True
        name = (node.domain, node.op_type)
        if name not in self._with_models:
            callee = self._functions.get(name)
            self._with_models[name] = callee is not None and self._has_model(callee, depth + 1)
        return self._with_models[name]

    def _runs(self, nodes: Sequence[Any]) -> Iterator[list[Any]]:
        run: list[Any] = []
        for node in nodes:
            if self._is_special(node, 0):
                if run:
                    yield run
                yield [node]
                run = []
            else:
                run.append(node)
        if run:
            yield run


def _declared(function: Any) -> dict[str, ValueType]:
    """The types that a function states of its values."""
    if not function.value_info:
        return {}
    from bb_edge.ir.type_protos import TypeProtoError, from_type_proto

    try:
        return {info.name: from_type_proto(info.type) for info in function.value_info}
    except TypeProtoError as error:
        raise TFLiteModelError(error.what, f"graph {function.name!r}", "compile the program again") from error


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
            if attribute.type == _GRAPH:
                yield from _reads(attribute.g.node, depth + 1)
                yield from (info.name for info in attribute.g.output)


def _same_ports(node: Any, function: Any) -> bool:
    return list(node.input) == list(function.input) and list(node.output) == list(function.output)
