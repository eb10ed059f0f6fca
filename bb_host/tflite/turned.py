"""What is computed turned: the same numbers with rows and columns exchanged, because that is quicker.

1. XNNPACK copies the right operand of a product into an order of its own, at each run where it is not a
   constant. So a product of few rows with a large turned matrix is computed as that of the matrix with the
   rows, which are copied then, and the result is turned.
2. It works along the last axis: a sum over ten classes, or what is broadcast along them, is a call per row of
   a batch. Where many rows have few numbers, as in losses, a group of such operators works on columns.
   Products around it turn what they read and make; what else it reads or gives is turned by TRANSPOSE.

Only for gradients, whose weights are not constants and whose batch is a number (docs/experiments.md,
"A training step on a TFLite interpreter").
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bb_host.tflite.graph import Operator, TfliteGraph

FEWEST_ROWS = 16
"""Rows from which on it pays: products of fewer columns than that leave vector units empty."""

_PACKED = 8192
"""Numbers that have to be spared at least by exchanging the operands of a product."""

_PLAIN = frozenset(
    (
        "ABS", "ADD", "DIV", "EXP", "LOG", "LOGISTIC", "MAXIMUM", "MINIMUM", "MUL", "NEG", "RELU", "RELU6",
        "RSQRT", "SQRT", "SUB", "TANH",
    )
)  # fmt: skip
"""Operators that do the same with each number; those of two operands broadcast them."""

_SUMS = frozenset(("MEAN", "REDUCE_MAX", "REDUCE_MIN", "SUM"))


def pack_less(graph: TfliteGraph) -> None:
    """In place: the first of the two."""
    ops = []
    for op in graph.operators:
        ops.append(op)
        if op.kind != "BATCH_MATMUL" or op.options["adj_x"] or not op.options["adj_y"]:
            continue
        rows, depth = graph.shape(op.inputs[0])[-2:]
        shape = graph.shape(op.outputs[0])
        if len(shape) != 2 or rows < FEWEST_ROWS or depth * (shape[1] - rows) < _PACKED:
            continue
        if any(graph.tensors[i].data is not None for i in op.inputs):
            continue
        turned = graph.tensor(f"t{len(graph.tensors)}", shape[::-1])
        ops[-1] = Operator(op.kind, op.inputs[::-1], (turned,), dict(op.options))
        ops.append(Operator("TRANSPOSE", (turned, _ints(graph, (1, 0))), op.outputs))
    graph.operators = ops


def turn_rows(graph: TfliteGraph) -> None:
    """In place: the second of the two."""
    widths: dict[tuple[int, int], None] = {}
    for op in graph.operators:
        shape = graph.shape(op.inputs[0])
        if op.kind in _SUMS and len(shape) == 2 and _axes(graph, op) == [1]:
            rows, columns = shape
            if rows >= max(FEWEST_ROWS, 2 * columns) and columns > 1:
                widths[rows, columns] = None
    for rows, columns in widths:
        for members in _groups(graph, rows, columns):
            turn = _Turn(graph, members, rows, columns)
            if turn.pays():
                turn.run()


def _ints(graph: TfliteGraph, values: Iterable[int]) -> int:
    return graph.constant(np.array([*values], np.int32))


def _axes(graph: TfliteGraph, op: Operator) -> list[int]:
    """The axes that an operator sums over, in order."""
    data = graph.tensors[op.inputs[1]].data
    rank = len(graph.shape(op.inputs[0]))
    return [] if data is None else sorted(int(axis) % rank for axis in data.reshape(-1))


def _groups(graph: TfliteGraph, rows: int, columns: int) -> list[list[Operator]]:
    """Operators on tensors [rows, columns] and [rows, 1] that hang together, each group in order."""
    own = ((rows, columns), (rows, 1))

    def fits(index: int) -> bool:
        tensor = graph.tensors[index]
        if tensor.dtype != "float32" or tensor.quantization is not None:
            return False
        return tensor.shape in (*own, (columns,), (1,), ())

    def is_one(op: Operator) -> bool:
        shapes = [graph.shape(i) for i in (*op.inputs, *op.outputs)]
        if op.kind in _SUMS:
            return shapes[0] == own[0] and fits(op.inputs[0]) and bool(_axes(graph, op))
        if op.kind == "RESHAPE":
            return {shapes[0], shapes[-1]} == {(rows,), (rows, 1)}
        return op.kind in _PLAIN and shapes[-1] in own and all(map(fits, op.inputs))

    group_of: dict[int, list[Operator]] = {}  # by tensor
    groups: list[list[Operator]] = []
    for op in filter(is_one, graph.operators):
        shared = [i for i in (*op.inputs, *op.outputs) if graph.shape(i) in own]
        found = [group for group in groups if any(group_of.get(i) is group for i in shared)]
        whole = [op] if not found else [*found[0], op]
        for other in found[1:]:
            whole += other
        groups = [group for group in groups if not any(group is other for other in found)]
        groups.append(whole)
        for member in whole:
            for i in (*member.inputs, *member.outputs):
                if graph.shape(i) in own:
                    group_of[i] = whole
    order = {id(op): n for n, op in enumerate(graph.operators)}
    return [sorted(group, key=lambda op: order[id(op)]) for group in groups]


class _Turn:
    """A group of operators that is turned."""

    def __init__(self, graph: TfliteGraph, members: list[Operator], rows: int, columns: int) -> None:
        self.ops: list[Operator] = []
        self.graph = graph
        self.members = {id(op): op for op in members}
        self.rows, self.columns = rows, columns
        self.producers, self.readers = graph.producers(), graph.readers()
        self.of: dict[int, int] = {}  # by tensor: the turned one

    def _is_own(self, index: int) -> bool:
        return self.graph.shape(index) in ((self.rows, self.columns), (self.rows, 1))

    def _is_inside(self, op: Operator | None) -> bool:
        return op is not None and id(op) in self.members

    def _is_product(self, op: Operator) -> bool:
        """Whether an operator is a product of matrices, which can turn what it reads and what it makes."""
        return op.kind == "BATCH_MATMUL" and all(len(self.graph.shape(i)) == 2 for i in op.inputs)

    def _turns_itself(self, index: int) -> bool:
        """Whether a tensor comes from a product that only the group reads."""
        maker = self.producers.get(index)
        if maker is None or not self._is_product(maker) or index in self.graph.outputs:
            return False
        return all(self._is_inside(op) for op in self.readers[index])

    def pays(self) -> bool:
        """Whether it has more operators that go row by row than tensors that have to be turned for it."""
        graph, long, wide = self.graph, 0, (self.rows, self.columns)
        turned: set[int] = set()
        for op in self.members.values():
            if op.kind in _SUMS:
                long += _axes(graph, op) == [1]
            else:
                long += {graph.shape(i) for i in op.inputs} == {wide, (self.rows, 1)}
            for i in op.inputs:
                if graph.shape(i) == wide and not self._is_inside(self.producers.get(i)):
                    turned.update(() if self._turns_itself(i) else (i,))
            for i in op.outputs:
                readers = [reader for reader in self.readers.get(i, ()) if not self._is_inside(reader)]
                if graph.shape(i) == wide and (i in graph.outputs or not all(map(self._is_product, readers))):
                    turned.add(i)
        return long > 2 * len(turned)

    def run(self) -> None:
        """Writes the operators anew, in their order."""
        for op in self.graph.operators:
            if self._is_inside(op):
                self.ops.append(self._turned(op))
                self._give_back(op.outputs[0])
            elif self._is_product(op):
                self.ops.append(self._product(op))
            else:
                self.ops.append(op)
        self.graph.operators = self.ops

    def _new(self, index: int) -> int:
        """A turned tensor in place of one."""
        if index not in self.of:
            shape = self.graph.shape(index)[::-1]
            self.of[index] = self.graph.tensor(f"t{len(self.graph.tensors)}", shape)
        return self.of[index]

    def _read(self, index: int) -> int:
        """What a turned operator reads in place of a tensor."""
        graph, shape = self.graph, self.graph.shape(index)
        if index in self.of or not (self._is_own(index) or shape == (self.columns,)):
            return self.of.get(index, index)
        turned = shape[::-1] if len(shape) == 2 else (self.columns, 1)
        data = graph.tensors[index].data
        if data is not None:
            self.of[index] = graph.constant(data.T if len(shape) == 2 else data[:, None])
            return self.of[index]
        self.of[index] = graph.tensor(f"t{len(graph.tensors)}", turned)
        kind, values = ("TRANSPOSE", (1, 0)) if shape == (self.rows, self.columns) else ("RESHAPE", turned)
        self.ops.append(Operator(kind, (index, _ints(graph, values)), (self.of[index],)))
        return self.of[index]

    def _turned(self, op: Operator) -> Operator:
        graph, result = self.graph, op.outputs[0]
        given = (self._new(result),) if self._is_own(result) else (result,)
        if op.kind in _SUMS:
            axes = _ints(graph, (1 - axis for axis in _axes(graph, op)))
            return Operator(op.kind, (self._read(op.inputs[0]), axes), given, dict(op.options))
        if op.kind == "RESHAPE":
            source = op.inputs[0]
            source = self._read(source) if self._is_own(source) else source
            return Operator(op.kind, (source, _ints(graph, graph.shape(given[0]))), given, dict(op.options))
        return Operator(op.kind, tuple(map(self._read, op.inputs)), given, dict(op.options))

    def _give_back(self, index: int) -> None:
        """Turns a result back for those who cannot read it turned."""
        graph = self.graph
        if not self._is_own(index):
            return
        readers = self.readers.get(index, ())
        if index in graph.outputs or not all(self._is_inside(op) or self._is_product(op) for op in readers):
            is_wide = graph.shape(index) == (self.rows, self.columns)
            kind, values = ("TRANSPOSE", (1, 0)) if is_wide else ("RESHAPE", graph.shape(index))
            self.ops.append(Operator(kind, (self.of[index], _ints(graph, values)), (index,)))

    def _product(self, op: Operator) -> Operator:
        """A product that reads turned operands, or whose result the group reads turned."""
        inputs, options = list(op.inputs), dict(op.options)
        for position, option in enumerate(("adj_x", "adj_y")):
            if self._is_inside(self.producers.get(inputs[position])) and inputs[position] in self.of:
                inputs[position] = self.of[inputs[position]]
                options[option] = not options[option]
        (result,) = op.outputs
        if self._is_own(result) and self.readers.get(result) and self._turns_itself(result):
            inputs.reverse()
            options["adj_x"], options["adj_y"] = not options["adj_y"], not options["adj_x"]
            result = self._new(result)
        return Operator(op.kind, tuple(inputs), (result,), options)
