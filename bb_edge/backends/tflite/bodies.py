"""Prepares functions that mix `Model` nodes with plain operators.

A body is cut into segments: each model is one, and so is each run of operators between two models. Every
segment becomes a program of its own; they run in the order of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bb_edge.backends.tflite.errors import TFLiteModelError
from bb_edge.ir import keys
from bb_edge.roles.errors import BackendRunError, BackendWalkError
from bb_edge.roles.programs import BackendProgram, Functions, Runner, Wiring

if TYPE_CHECKING:
    from bb_edge.ir.onnx_pb2 import FunctionProto
    from bb_edge.ir.tensors import Array
    from bb_edge.ir.types import ValueType

    MakeModel = Callable[
        [Any, Functions, Sequence[ValueType | None], Sequence[ValueType | None]],
        BackendProgram | FunctionProto,
    ]
    PrepareOperators = Callable[[FunctionProto, Functions, Mapping[str, Array]], BackendProgram]

__all__ = ["MAX_DEPTH", "MAX_PROGRAMS", "Preparation"]

MAX_DEPTH = 16
"""How deep functions with models may call one another; the compiler writes two levels."""

MAX_PROGRAMS = 1024
"""Programs that one body may become, those of the functions that it calls included.

Real models become fewer than a hundred. Without a bound, functions that each call another one twice would
make 2^MAX_DEPTH of them.
"""

_GRAPH = 5
"""AttributeProto.GRAPH, without importing the messages."""

Types = Mapping[str, "ValueType"]


class Preparation:
    """Makes the program of a body.

    `make_model` gives what runs a `Model` node: a program, or the function to prepare in its place.
    `prepare_operators` prepares a function without models. Raises BackendWalkError for a body that is not
    sound, and what these two raise.
    """

    def __init__(
        self, make_model: MakeModel, prepare_operators: PrepareOperators, functions: Functions
    ) -> None:
        self._make_model, self._prepare_operators = make_model, prepare_operators
        self._functions = functions
        self._with_models: dict[tuple[str, str], bool] = {}
        self._programs = 0

    def prepare(
        self, function: Any, resident: Mapping[str, Array], declared: Types, depth: int
    ) -> BackendProgram:
        """Gives the program of a function.

        `resident` are inputs that never change, by name; `declared` are types that the function's caller
        knows of its ports; `depth` counts the calls down to this function.
        """
        where = f"graph {function.name!r}"
        if depth > MAX_DEPTH:
            raise BackendWalkError(f"functions nest deeper than {MAX_DEPTH}", where)
        if not self._has_model(function, 0):
            self._count(where)
            return self._prepare_operators(function, self._functions, resident)
        types = {**declared, **_declared(function)}
        nodes = list(function.node)
        if len(nodes) == 1 and not resident and _same_ports(nodes[0], function):
            return self._call(nodes[0], types, depth)
        unknown = sorted(set(resident) - set(function.input))
        if unknown:
            raise BackendRunError(f"resident {unknown[0]!r} is not an input of the graph", where)
        segments = [_Segment(function, run) for run in self._runs(nodes)]
        wanted = set(function.output)
        for segment in reversed(segments):
            segment.output = [name for name in segment.produced if name in wanted]
            wanted |= set(segment.reads)
        known = set(function.input)
        steps: list[tuple[BackendProgram, tuple[str, ...], tuple[str, ...]]] = []
        bound: set[str] = set()  # residents that a program reads by itself
        for segment in segments:
            first = segment.node[0]
            if self._is_special(first, 0):
                program = self._call(first, types, depth)
                reads, produces = tuple(first.input), tuple(first.output)
            else:
                self._count(where)
                segment.input = [name for name in segment.reads if name in known]
                own = {name: resident[name] for name in segment.input if name in resident}
                bound.update(own)
                program = self._prepare_operators(segment, self._functions, own)  # type: ignore[arg-type]
                reads, produces = tuple(n for n in segment.input if n not in own), tuple(segment.output)
            missing = [name for name in reads if name not in known]
            if missing:
                raise BackendWalkError(f"nothing produces {missing[0]!r}", where)
            twice = [name for i, name in enumerate(produces) if name in known or name in produces[:i]]
            if twice:
                raise BackendWalkError(f"{twice[0]!r} is produced twice", where)
            known.update(produces)
            steps.append((program, reads, produces))
        return _Chain(function, steps, resident, bound)

    def _count(self, where: str) -> None:
        self._programs += 1
        if self._programs > MAX_PROGRAMS:
            raise BackendWalkError(f"more than {MAX_PROGRAMS} models and runs of operators", where)

    def _call(self, node: Any, types: Types, depth: int) -> BackendProgram:
        inputs = [types.get(name) for name in node.input]
        outputs = [types.get(name) for name in node.output]
        if node.domain == keys.TFLITE_DOMAIN:
            self._count(f"node {node.name!r} (Model)")
            runner = self._make_model(node, self._functions, inputs, outputs)
            if isinstance(runner, BackendProgram):
                return runner
            callee: Any = runner
        else:
            callee = self._functions[(node.domain, node.op_type)]
            if (len(callee.input), len(callee.output)) != (len(node.input), len(node.output)):
                raise BackendWalkError(
                    "a call has other inputs or outputs than its function", f"graph {callee.name!r}"
                )
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
    """The types that a function declares for its values, by name."""
    if not function.value_info:
        return {}
    from bb_edge.ir.type_protos import TypeProtoError, from_type_proto

    try:
        return {info.name: from_type_proto(info.type) for info in function.value_info}
    except TypeProtoError as error:
        raise TFLiteModelError(error.what, f"graph {function.name!r}", "compile the program again") from error


class _Segment:
    """A run of nodes with the fields of a FunctionProto that lowering reads."""

    def __init__(self, function: Any, nodes: Sequence[Any]) -> None:
        self.name = function.name
        self.domain = function.domain
        self.node = nodes
        self.opset_import = function.opset_import
        self.attribute_proto: tuple[Any, ...] = tuple(function.attribute_proto)
        self.metadata_props: tuple[Any, ...] = ()
        self.value_info: tuple[Any, ...] = tuple(function.value_info)
        self.input: list[str] = []
        self.produced = list(dict.fromkeys(name for node in nodes for name in node.output if name))
        self.output = list(self.produced)
        own = set(self.produced)
        self.reads = list(dict.fromkeys(n for n in _reads(nodes, 0) if n and n not in own))


class _Chain(BackendProgram):
    """Runs programs one after the other; values are kept by position."""

    def __init__(
        self, function: Any, steps: Sequence[Any], resident: Mapping[str, Array], bound: Collection[str]
    ) -> None:
        self.input_names = tuple(name for name in function.input if name not in resident)
        self.output_names = tuple(function.output)
        where = f"graph {function.name!r}"
        numbers: dict[str, int] = {}
        for name in (*self.input_names, *resident):
            numbers[name] = len(numbers)
        self._given = tuple(resident.values())
        self._behind = [self._given]
        self._steps: list[tuple[Callable[..., tuple[Array, ...]], tuple[int, ...]]] = []
        for program, reads, produces in steps:
            inputs = tuple(numbers[name] for name in reads)
            for name in produces:
                numbers[name] = len(numbers)
            self._steps.append((program.run, inputs))
        missing = [name for name in self.output_names if name not in numbers]
        if missing:
            raise BackendWalkError(f"nothing produces the output {missing[0]!r}", where)
        self._outputs = tuple(numbers[name] for name in self.output_names)
        # An output must be fresh and the caller's alone: not an input, not the same array twice.
        n_inputs = len(self.input_names) + len(resident)
        self._copied = tuple(v < n_inputs or v in self._outputs[:i] for i, v in enumerate(self._outputs))
        self._where = where
        # The last program, and which of the outputs are its results, in its order, where it gives them all.
        made = range(len(numbers) - len(steps[-1][2]), len(numbers)) if steps else range(0)
        self._last = steps[-1][0] if steps and sorted(self._outputs) == list(made) else None
        self._order = tuple(self._outputs.index(v) for v in made) if self._last is not None else ()
        self._keeps = False  # whether the last program was seen to leave its inputs as they are
        self._before = self._steps[:-1]
        self._in_order = _picker(self._order)
        self._last_reads = _picker(self._steps[-1][1] if steps else ())
        # By number of a resident that no program has bound: which input of the last program it is.
        reads = self._steps[-1][1] if self._last is not None else ()
        first = len(self.input_names)
        places = {n: first + n for n, name in enumerate(resident) if name not in bound}
        self._movable = {n: reads.index(v) for n, v in places.items() if reads.count(v) == 1}

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The last program writes its results where they are wanted, if it gives all of them."""
        if self._last is None or len(inputs) != len(self.input_names):
            super().run_into(inputs, outputs)
            return
        self._last.run_into(self._last_inputs(inputs), self._in_order(outputs))

    def run_lending(
        self, inputs: Sequence[Array], outputs: Sequence[Array], lendable: Collection[int]
    ) -> Mapping[int, Array]:
        """The last program lends, where it gives all results."""
        if self._last is None or len(inputs) != len(self.input_names):
            return super().run_lending(inputs, outputs, lendable)
        own = frozenset(n for n, i in enumerate(self._order) if i in lendable)
        lent = self._last.run_lending(self._last_inputs(inputs), self._in_order(outputs), own)
        return {self._order[number]: result for number, result in lent.items()} if lent else lent

    def runner(
        self, outputs: Sequence[Array], lendable: Collection[int], wiring: Wiring | None = None
    ) -> Runner:
        """That of the last program where it is the only one."""
        if self._last is None or self._before or wiring is not None:
            return super().runner(outputs, lendable, wiring)
        own = frozenset(n for n, i in enumerate(self._order) if i in lendable)
        within = Wiring(self._last_reads, self._behind, self._order)
        found: Runner = self._last.runner(self._in_order(outputs), own, within)
        return found

    def move_residents(self, numbers: Collection[int]) -> Mapping[int, Array]:
        """Into the memory of the last program, where that keeps what it reads."""
        if self._last is None:
            return {}
        wanted = {n: self._movable[n] for n in numbers if n in self._movable}
        memory = self._last.input_memory(frozenset(wanted.values()))
        found = {n: memory[place] for n, place in wanted.items() if place in memory}
        if not self._keeps:  # the first time it is looked at: an interpreter may work in its inputs
            self._keeps = all(found[n].tobytes() == self._given[n].tobytes() for n in found)
            if not self._keeps:
                self._movable = {}
                return {}
        self._behind[0] = tuple([found.get(n, array) for n, array in enumerate(self._behind[0])])
        return found

    def return_residents(self) -> None:
        self._behind[0] = self._given

    def _last_inputs(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Runs all programs but the last one, and gives what that one reads."""
        values = [*inputs, *self._behind[0]]
        for run, places in self._before:
            values += run([values[i] for i in places])
        return self._last_reads(values)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if len(inputs) != len(self.input_names):
            raise BackendRunError(f"expected {len(self.input_names)} inputs, got {len(inputs)}", self._where)
        values = [*inputs, *self._behind[0]]
        for run, positions in self._steps:
            values += run([values[i] for i in positions])
        pairs = zip(self._outputs, self._copied, strict=True)
        return tuple(values[i].copy() if copied else values[i] for i, copied in pairs)


def _picker(places: Sequence[int]) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """A function that gives the arrays at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda arrays: [arrays[i] for i in places]


def _reads(nodes: Sequence[Any], depth: int) -> Iterator[str]:
    """The names that nodes read, those in bodies of If and Loop included."""
    if depth > MAX_DEPTH * 2:
        raise BackendWalkError(f"bodies of If and Loop nest deeper than {MAX_DEPTH * 2}")
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                yield from _reads(attribute.g.node, depth + 1)
                yield from (info.name for info in attribute.g.output)


def _same_ports(node: Any, function: Any) -> bool:
    return list(node.input) == list(function.input) and list(node.output) == list(function.output)
