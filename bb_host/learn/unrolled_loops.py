"""Loops of a model as the steps that they take, where their number is known before the model runs.

Exporters write recurrent layers that ONNX has no operator for as a `Loop` or `Scan` over a sequence: a body
that reads the layer's weights from outside. Such a loop has no gradient; its steps do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bb_edge.ir import keys
from bb_edge.ir.types import ValueType
from bb_host.errors import LearnError
from bb_host.ir.program import Array, Function, Op, RawTensor, Subgraph
from bb_host.ir.queries import DRAWS, is_onnx, live
from bb_host.ir.rename import fresh_name, rename_op
from bb_host.ir.values import constant, constant_array
from bb_host.learn.shapes import infer_types
from bb_host.passes.tensor.constants import computed

MAX_OPS = 20_000
"""Ops that the steps of one loop may come to: a GRU of Keras has some twenty per step, so 1,000 steps. The
gradient has three times as many, and a device holds a plan of each."""

FIXED_LENGTH = (
    "export it for sequences of a fixed length: the steps of a loop are trained where their number is known;"
    " of an nn.EmbeddingBag, write nn.Embedding and .mean(1) or .sum(1)"
)
"""What to do about a loop whose steps are not known."""

_SMALL = 1024
"""Entries up to which an integer, as a counter or a shape, is computed on the host."""


def unrolled(graph: Subgraph, opsets: Mapping[str, int]) -> Subgraph:
    """The graph with each loop replaced by its steps; loops whose steps are not known stay."""
    kept: set[int] = set()
    while True:
        found = next((op for op in graph.ops if id(op) not in kept and is_onnx(op, "Loop", "Scan")), None)
        if found is None:
            return graph
        steps = _Steps(graph, found, opsets).ops()
        if steps is None:
            kept.add(id(found))
            continue
        ops = [new for op in graph.ops for new in (steps if op is found else (op,))]
        graph = dataclasses.replace(graph, ops=tuple(ops))


class _Steps:
    """The steps of one loop of a graph."""

    def __init__(self, graph: Subgraph, loop: Op, opsets: Mapping[str, int]) -> None:
        self._graph, self._loop, self._opsets = graph, loop, opsets
        body = loop.attrs["body"]
        assert isinstance(body, Subgraph)
        self._body = body
        self._names = {*graph.inputs, *graph.initializers, *(v for op in graph.ops for v in op.outputs)}
        self._makers = {v: op for op in graph.ops for v in op.outputs if v}
        self._known: dict[str, Array | None] = {}
        self._ops: list[Op] = []
        self._same: dict[
            tuple[int, tuple[str, ...]], tuple[str, ...]
        ] = {}  # what does not change is made once
        self._parts: dict[tuple[str, int], tuple[str, ...]] = {}
        self._own: dict[str, str] = {}
        self._types: dict[str, ValueType] | None = None

    def ops(self) -> tuple[Op, ...] | None:
        """The ops of all steps, which write the loop's outputs; None where their number is not known."""
        for name, tensor in self._body.initializers.items():
            if isinstance(tensor, RawTensor):
                return None
            self._own[name] = self._constant(name, tensor)
        found = self._of_loop() if self._loop.op_type == "Loop" else self._of_scan()
        return None if found is None else live(self._ops, self._loop.outputs)

    # --- the two kinds --------------------------------------------------------------------------------

    def _of_loop(self) -> bool | None:
        most, condition, *carried = self._loop.inputs
        limit = self._value(most) if most else None
        goes_on = self._value(condition) if condition else np.array(True)
        if goes_on is None or (most and limit is None):
            return None
        end = MAX_OPS if limit is None else int(limit.reshape(-1)[0])
        rows: list[list[str]] = []
        while goes_on.all() and len(rows) < end:
            counter = self._constant("step", np.array(len(rows), np.int64))
            flag = self._constant("goes_on", np.array(True))
            results = self._step([counter, flag, *carried], len(rows))
            if results is None:
                return None
            carried = results[1 : 1 + len(carried)]
            rows.append(results[1 + len(carried) :])
            again = self._value(results[0]) if len(rows) < end else np.array(False)
            if again is None:
                return None
            goes_on = again
        return self._write(carried, rows, [0] * (len(self._loop.outputs) - len(carried)), [])

    def _of_scan(self) -> bool | None:
        scans = self._loop.integer("num_scan_inputs", 0)
        states = len(self._loop.inputs) - scans
        carried, scanned = list(self._loop.inputs[:states]), self._loop.inputs[states:]
        outputs = len(self._body.outputs) - states
        axes = self._loop.integers("scan_input_axes") or [0] * scans
        backward = self._loop.integers("scan_input_directions") or [0] * scans
        parts = [self._split(value, axis) for value, axis in zip(scanned, axes, strict=True)]
        if not all(parts):
            return None
        rows: list[list[str]] = []
        for k in range(len(parts[0])):
            given = [p[-1 - k if turned else k] for p, turned in zip(parts, backward, strict=True)]
            results = self._step([*carried, *given], k)
            if results is None:
                return None
            carried = results[:states]
            rows.append(results[states:])
        into = self._loop.integers("scan_output_axes") or [0] * outputs
        turned_out = self._loop.integers("scan_output_directions") or [0] * outputs
        return self._write(carried, rows, into, [i for i, turned in enumerate(turned_out) if turned])

    def _write(
        self,
        carried: Sequence[str],
        rows: Sequence[Sequence[str]],
        axes: Sequence[int],
        turned: Sequence[int],
    ) -> bool | None:
        """Writes the loop's outputs: its last states, then what each step gave, stacked."""
        if not rows:
            return None
        for output, value in zip(self._loop.outputs, carried, strict=False):
            if output:
                self._ops.append(Op("Identity", keys.ONNX_DOMAIN, (value,), (output,)))
        for place, output in enumerate(self._loop.outputs[len(carried) :]):
            if not output:
                continue
            at = self._constant("axis", np.array([axes[place]], np.int64))
            pieces = [self._op("Unsqueeze", (row[place], at)) for row in rows]
            pieces = pieces[::-1] if place in turned else pieces
            attrs = {"axis": axes[place]}
            self._ops.append(Op("Concat", keys.ONNX_DOMAIN, tuple(pieces), (output,), dict(attrs)))
        return True

    # --- one step -------------------------------------------------------------------------------------

    def _step(self, given: Sequence[str], k: int) -> list[str] | None:
        """Writes the body over these values, and returns its outputs; None where it becomes too much."""
        names = {**self._own, **dict(zip(self._body.inputs, given, strict=True))}
        for place, op in enumerate(self._body.ops):
            inputs = tuple(names.get(v, v) for v in op.inputs)
            key = (place, inputs)
            fixed = op.op_type not in DRAWS and not any(True for _ in op.subgraphs())
            if fixed and key in self._same:
                names.update(zip(op.outputs, self._same[key], strict=True))
                continue
            if part := self._part(op, inputs):
                names[op.outputs[0]] = part
                continue
            outputs = tuple(v and fresh_name(f"{v}/{k}", self._names) for v in op.outputs)
            names.update(zip(op.outputs, outputs, strict=True))
            named = op.name or next(filter(None, op.outputs), "")
            written = dataclasses.replace(rename_op(op, names), name=named)
            self._ops.append(written)
            self._makers.update((v, written) for v in outputs)
            if fixed:
                self._same[key] = outputs
            if len(self._ops) > MAX_OPS:
                return None
        return [names.get(v, v) for v in self._body.outputs]

    def _part(self, op: Op, inputs: tuple[str, ...]) -> str:
        """The step's part of a sequence that the body gathers by its counter; "" for any other op.

        All parts are split at once: the gradient of the sequence is then joined once.
        """
        if not is_onnx(op, "Gather") or inputs[0] in self._graph.initializers:
            return ""
        index = self._value(inputs[1])
        if index is None or index.ndim:
            return ""
        parts = self._split(inputs[0], op.integer("axis", 0))
        return parts[int(index)] if -len(parts) <= int(index) < len(parts) else ""

    def _split(self, value: str, axis: int) -> tuple[str, ...]:
        """The parts of a value from outside along an axis, without it; () where their number is open."""
        if (value, axis) in self._parts:
            return self._parts[value, axis]
        if self._types is None:
            self._types = self._inferred()
        known = self._types.get(value)
        shape = known.shape if known is not None else None
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if not isinstance(size, int) or not 1 <= size <= MAX_OPS:
            self._parts[value, axis] = ()
            return ()
        outputs = tuple(fresh_name(f"{value}/part", self._names) for _ in range(size))
        sizes = self._constant("sizes", np.ones(size, np.int64))
        self._ops.append(Op("Split", keys.ONNX_DOMAIN, (value, sizes), outputs, {"axis": axis}))
        at = self._constant("axis", np.array([axis], np.int64))
        self._parts[value, axis] = tuple(self._op("Squeeze", (part, at)) for part in outputs)
        return self._parts[value, axis]

    def _inferred(self) -> dict[str, ValueType]:
        graph = self._graph
        constants = [constant(name, a) for name, a in graph.initializers.items() if isinstance(a, np.ndarray)]
        inputs = tuple(v for v in graph.inputs if v not in graph.initializers)
        function = Function(
            "loops", "", inputs, graph.outputs, (*constants, *graph.ops), dict(graph.types),
            opsets=dict(self._opsets),
        )  # fmt: skip
        try:
            return infer_types(function)
        except LearnError:
            return dict(graph.types)  # what is wrong with it is said by whoever needs all types

    def _op(self, op_type: str, inputs: tuple[str, ...]) -> str:
        output = fresh_name(f"{inputs[0]}/{op_type.lower()}", self._names)
        self._ops.append(Op(op_type, keys.ONNX_DOMAIN, inputs, (output,)))
        return output

    def _constant(self, wish: str, array: Array) -> str:
        name = fresh_name(f"{self._loop.name or self._loop.outputs[0]}/{wish}", self._names)
        self._ops.append(constant(name, array))
        self._makers[name] = self._ops[-1]
        return name

    # --- numbers --------------------------------------------------------------------------------------

    def _value(self, name: str) -> Array | None:
        """What a value holds, computed where it follows from small constants; None where it is open."""
        if name not in self._known:
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Array | None:
        given = self._graph.initializers.get(name)
        if given is not None:
            return given if isinstance(given, np.ndarray) and given.size <= _SMALL else None
        op = self._makers.get(name)
        if op is None or not is_onnx(op) or op.op_type in DRAWS or any(True for _ in op.subgraphs()):
            return None
        if (array := constant_array(op)) is not None:
            return array
        arrays = {v: self._value(v) for v in op.inputs if v}
        known = {v: array for v, array in arrays.items() if array is not None}
        if len(known) < len(arrays) or not known:
            return None
        results = computed(op, known, self._opsets)
        if results is None:
            return None
        return dict(zip(filter(None, op.outputs), results, strict=True))[name]
