"""From float operators between DEQUANTIZE and QUANTIZE to operators on int8.

1. QUANTIZE goes up through what moves or clamps numbers towards what computes them; DEQUANTIZE goes down
through what moves them. Where the two meet on one grid both vanish, on two grids they are one QUANTIZE.
2. What computes becomes its int8 form where all it reads is dequantized and what it gives is quantized alone.
3. What has no such form, or whose grids do not suit it, stays in float between the two: the same values,
slower. It is told, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bb_edge.backends.tflite.verify import in_step
from bb_host.ir.program import Array
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.forms import CLAMPS, FORMS, MOVES, SAME, Form
from bb_host.tflite.graph import Operator, Option, Quantization, TfliteGraph
from bb_host.tflite.quantized import same_grid
from bb_host.tflite.schema import NONE, VALID

_COMMUTES = (MOVES, CLAMPS)

_PIXEL: dict[str, Option] = {
    "padding": VALID, "stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1, "multiplier": 1,
}  # fmt: skip

_FINER = 0.5
"""A result whose form fixes the grid is requantized to one at least this part as coarse: two steps."""


def to_integers(graph: TfliteGraph) -> list[tuple[str, str]]:
    """Changes the graph in place; gives the operators that stay in float among integers, and why."""
    found: list[tuple[str, str]] = []
    if any(op.kind in ("QUANTIZE", "DEQUANTIZE") for op in graph.operators):
        work = _Work(graph)
        work.shift()
        work.merge()
        work.pull_up()
        work.join_norms()
        found = work.convert()
    for tensor in graph.tensors:
        if tensor.dtype == "float32":
            tensor.quantization = None  # what rules noted of constants
    return found


class _Work:
    def __init__(self, graph: TfliteGraph) -> None:
        self.graph = graph
        self.tensors = graph.tensors
        self.asked = set(graph.outputs)
        self.stored: dict[int, int] = {}  # float tensor → the integers it is dequantized from
        self.same: dict[int, int] = {}  # integers → those they equal
        self.done: list[Operator] = []

    def _tensor(self, shape: Sequence[int], grid: Quantization | None) -> int:
        return self.graph.tensor(f"q{len(self.tensors)}", shape, "int8", None, grid)

    # --- before

    def shift(self) -> None:
        """uint8 as int8: the numbers are less by 128. At the borders of the graph they stay uint8."""
        twins: dict[int, int] = {}
        readers = self.graph.readers()
        ops: list[Operator] = []
        for op in self.graph.operators:
            if op.kind == "QUANTIZE" and self.tensors[op.outputs[0]].dtype == "uint8":
                wide = op.outputs[0]
                twins[wide] = self._twin(wide)
                ops.append(Operator(op.kind, op.inputs, (twins[wide],)))
                outside = wide in self.asked or any(r.kind != "DEQUANTIZE" for r in readers.get(wide, []))
                if outside:
                    ops.append(Operator("QUANTIZE", (twins[wide],), (wide,)))
                continue
            if op.kind == "DEQUANTIZE" and self.tensors[op.inputs[0]].dtype == "uint8":
                wide = op.inputs[0]
                if wide not in twins:
                    twins[wide] = self._twin(wide)
                    ops.append(Operator("QUANTIZE", (wide,), (twins[wide],)))
                op.inputs = (twins[wide],)
            ops.append(op)
        self.graph.operators = ops

    def _twin(self, wide: int) -> int:
        known = self.tensors[wide].quantization
        assert known is not None
        return self._tensor(self.tensors[wide].shape, Quantization(known.scale, known.zero_point - 128))

    def merge(self) -> None:
        """One QUANTIZE per value and grid."""
        first: dict[tuple[int, float, int], int] = {}
        same: dict[int, int] = {}
        ops = []
        for op in self.graph.operators:
            op.inputs = tuple(same.get(i, i) for i in op.inputs)
            grid = self.tensors[op.outputs[0]].quantization
            if op.kind == "QUANTIZE" and grid is not None and self.tensors[op.outputs[0]].dtype == "int8":
                key = (op.inputs[0], float(grid.scale[0]), int(grid.zero_point[0]))
                known = first.setdefault(key, op.outputs[0])
                if known != op.outputs[0] and op.outputs[0] not in self.asked:
                    same[op.outputs[0]] = known
                    continue
            ops.append(op)
        self.graph.operators = ops

    def pull_up(self) -> None:
        """QUANTIZE(moves(x)) → moves(QUANTIZE(x)), wherever x does not come from DEQUANTIZE."""
        producers, readers = self.graph.producers(), self.graph.readers()
        pending = [op for op in self.graph.operators if op.kind == "QUANTIZE"]
        made: dict[int, list[Operator]] = {}  # before which operator
        gone: set[int] = set()
        while pending:
            op = pending.pop()
            x = op.inputs[0]
            before = producers.get(x)
            if before is None or x in self.asked or len(readers[x]) > 1:
                continue
            form = FORMS.get(before.kind)
            if form is None or form.grid not in _COMMUTES or self.tensors[x].dtype != "float32":
                continue
            if len(_data(form, before)) == 1 and self._stems(before, producers):
                continue
            gone.add(id(op))
            new = self._pull(op, before, form)
            producers[op.outputs[0]] = before
            for quantize in new:
                source, stored = quantize.inputs[0], quantize.outputs[0]
                readers[source] = [r for r in readers[source] if r is not before] + [quantize]
                producers[stored], readers[stored] = quantize, [before]
            made.setdefault(id(before), []).extend(new)
            pending += new
        ops = []
        for op in self.graph.operators:
            ops += [q for q in (*made.get(id(op), ()), op) if id(q) not in gone]
        self.graph.operators = ops

    def _stems(self, op: Operator, producers: dict[int, Operator]) -> bool:
        """Whether what an operator moves was dequantized."""
        while (form := FORMS.get(op.kind)) is not None and form.grid in _COMMUTES:
            source = producers.get(op.inputs[_data(form, op)[0]])
            if source is None or len(_data(form, op)) > 1:
                return False
            op = source
        return op.kind == "DEQUANTIZE"

    def _pull(self, op: Operator, before: Operator, form: Form) -> list[Operator]:
        """`before` on the integers of `op`; gives what quantizes its inputs."""
        grid = self.tensors[op.outputs[0]].quantization
        assert grid is not None
        inputs = list(before.inputs)
        made: dict[int, Operator] = {}
        for position in _data(form, before):
            source = inputs[position]
            tensor = self.tensors[source]
            if tensor.data is not None:
                inputs[position] = self.graph.constant(_rounded(tensor.data, grid), "", grid)
                continue
            if source not in made:
                made[source] = Operator("QUANTIZE", (source,), (self._tensor(tensor.shape, grid),))
            inputs[position] = made[source].outputs[0]
        before.inputs, before.outputs = tuple(inputs), op.outputs
        return list(made.values())

    def join_norms(self) -> None:
        """A gain and an offset per channel of an image (a normalization that nobody folded) as a depthwise
        convolution of one pixel: its filter is 127 or -127 on a grid per channel, the gain.
        """
        producers, readers = self.graph.producers(), self.graph.readers()
        gone: set[int] = set()
        for op in self.graph.operators:
            before = producers.get(op.inputs[0]) if op.kind == "ADD" else None
            if before is None or before.kind != "MUL" or before.options.get("act") != NONE:
                continue
            x, after = before.inputs[0], readers.get(op.outputs[0], [])
            source = producers.get(x)
            if source is None or not self._stems(source, producers) or len(self.graph.shape(x)) != 4:
                continue
            if len(after) != 1 or after[0].kind != "QUANTIZE" or len(readers[op.inputs[0]]) > 1:
                continue
            if op.inputs[0] in self.asked or op.outputs[0] in self.asked:
                continue
            gain, offset = self.tensors[before.inputs[1]].data, self.tensors[op.inputs[1]].data
            channels = self.graph.shape(x)[-1:]
            if gain is None or offset is None or gain.shape != channels or offset.shape != channels:
                continue
            scales = np.where(gain == 0, 1, np.abs(gain) / 127).astype(np.float32)
            grid = Quantization(scales, np.zeros(len(scales), np.int64), 3)
            op.kind = "DEPTHWISE_CONV_2D"
            op.inputs = (x, self.graph.constant(gain.reshape(1, 1, 1, -1), "", grid), op.inputs[1])
            op.options = {**_PIXEL, "act": op.options["act"]}
            gone.add(id(before))
        self.graph.operators = [op for op in self.graph.operators if id(op) not in gone]

    # --- the change

    def convert(self) -> list[tuple[str, str]]:
        left: list[tuple[str, str]] = []
        self.readers = self.graph.readers()
        for op in self.graph.operators:
            op.inputs = tuple(self.same.get(i, i) for i in op.inputs)
            x = op.inputs[0]
            if op.kind == "DEQUANTIZE":
                self.stored[op.outputs[0]] = x
                self.done.append(op)
            elif op.kind == "QUANTIZE":
                self._quantize(op)
            elif any(i in self.stored for i in op.inputs):
                try:
                    self._converted(op)
                except NotLowered as error:
                    left.append((op.kind, str(error)))
                    self.done.append(op)
            else:
                self.done.append(op)
        self.graph.operators = self.done
        return left

    def _quantize(self, op: Operator) -> None:
        result = op.outputs[0]
        if op.inputs[0] in self.stored:
            x = self.stored[op.inputs[0]]
            known, wanted = self.tensors[x], self.tensors[result]
            if same_grid(known.quantization, wanted.quantization) and result not in self.asked:
                self.same[result] = x
                return
            if self._in_step(op.kind, (x,), wanted.quantization):
                op.inputs = (x,)
        self.done.append(op)

    def _converted(self, op: Operator) -> None:
        divisor = self.tensors[op.inputs[1]].data if op.kind == "DIV" else None
        if divisor is not None and divisor.size == 1 and op.inputs[0] in self.stored and np.all(divisor):
            factor = self.graph.constant(np.float32(1) / divisor)
            op = Operator("MUL", (op.inputs[0], factor), op.outputs, op.options)
        form = FORMS.get(op.kind)
        if form is None:
            raise NotLowered("there is no int8 form of it")
        data = _data(form, op)
        stored = [i for i in (op.inputs[p] for p in data) if i in self.stored]
        if not stored:
            raise NotLowered("what it reads is quantized elsewhere than its int8 form has it")
        own = self.tensors[self.stored[stored[0]]].quantization
        assert own is not None
        inputs = list(op.inputs)
        for position in data:
            inputs[position] = self._input(op.inputs[position], own if form.grid in (MOVES, SAME) else None)
        if form.grid == MOVES:
            result = self._tensor(self.graph.shape(op.outputs[0]), own)
            self.done.append(Operator(op.kind, tuple(inputs), (result,), op.options))
            self.done.append(Operator("DEQUANTIZE", (result,), op.outputs))
            self.stored[op.outputs[0]] = result
            return
        readers = self.readers.get(op.outputs[0], [])
        if op.outputs[0] in self.asked or len(readers) != 1 or readers[0].kind != "QUANTIZE":
            raise NotLowered("its result is read in float")
        wanted = self.tensors[readers[0].outputs[0]].quantization
        assert wanted is not None
        if form.grid == SAME and not same_grid(own, wanted):
            op = self._averaging(op, inputs[0])
            form, inputs = FORMS[op.kind], list(op.inputs)
        if form.fixed is not None:
            fixed = Quantization(np.array([form.fixed[0]], np.float32), np.array([form.fixed[1]]))
            if wanted.scale[0] < _FINER * fixed.scale[0]:
                raise NotLowered("its result has a finer grid than its int8 form gives")
            wanted = fixed
        if form.filter is not None:
            inputs = self._with_weights(form, inputs, own)
        if not self._in_step(op.kind, inputs, wanted):
            raise NotLowered("its grids are too far apart for the kernels")
        result = self._tensor(self.graph.shape(op.outputs[0]), wanted)
        self.done.append(Operator(op.kind, tuple(inputs), (result,), op.options))
        self.stored[op.outputs[0]] = result

    def _averaging(self, op: Operator, x: int) -> Operator:
        """An average whose result has a grid of its own: of one window the mean of what it sees, of several a
        depthwise convolution, whose filter is 127 on a grid that makes it one over the window's size. There
        is none where padding is not counted.
        """
        if op.kind != "AVERAGE_POOL_2D" or op.options["padding"] != VALID:
            raise NotLowered("its result has another grid than what it reads")
        h, w = (int(op.options[f"filter_{side}"]) for side in "hw")
        if self.graph.shape(op.outputs[0])[1:3] == (1, 1) and op.options["act"] == NONE:
            axes = self.graph.constant(np.array([1, 2], np.int32))
            return Operator("MEAN", (self._corner(x, h, w), axes), op.outputs, {"keep_dims": True})
        each = np.float32(1 / (h * w))
        channels = self.graph.shape(x)[-1]
        grid = Quantization(np.full(channels, each / 127, np.float32), np.zeros(channels, np.int64), 3)
        filters = self.graph.constant(np.full((1, h, w, channels), each), "", grid)
        options = {name: op.options[name] for name in ("stride_h", "stride_w", "act")}
        return Operator("DEPTHWISE_CONV_2D", (x, filters), op.outputs, {**_PIXEL, **options})

    def _corner(self, x: int, height: int, width: int) -> int:
        """The part of an image that a first window sees; a SLICE of an open batch is none of XNNPACK's."""
        n, *size, channels = self.graph.shape(x)
        if size == [height, width]:
            return x
        ends = [0, height, width, channels], [1, 1, 1, 1]
        begin, end, step = (self.graph.constant(np.array(v, np.int32)) for v in ([0, 0, 0, 0], *ends))
        part = self._tensor((n, height, width, channels), self.tensors[x].quantization)
        masks: dict[str, Option] = {"begin_mask": 1, "end_mask": 1}
        self.done.append(Operator("STRIDED_SLICE", (x, begin, end, step), (part,), masks))
        return part

    def _in_step(self, kind: str, inputs: Sequence[int], wanted: Quantization | None) -> bool:
        """What the device asks of an operator's grids before an interpreter sees them."""
        grids = [self.tensors[i].quantization for i in inputs if i >= 0 and self.tensors[i].dtype == "int8"]
        steps = [float(grid.scale.max()) for grid in grids if grid is not None]
        return wanted is None or in_step(kind, steps, float(wanted.scale.min()))

    def _input(self, index: int, grid: Quantization | None) -> int:
        """The integers of an activation or a constant; on `grid` where one is given."""
        tensor = self.tensors[index]
        if index in self.stored:
            stored = self.stored[index]
            if grid is not None and not same_grid(self.tensors[stored].quantization, grid):
                raise NotLowered("what it reads has several grids")
            return stored
        if tensor.data is None or tensor.dtype != "float32":
            raise NotLowered("not all it reads is quantized")
        if grid is not None:
            numbers = _rounded(tensor.data, grid)
            exact = _real(numbers, grid) == tensor.data
            if not np.all(exact | (tensor.data < _real(np.array(-128), grid))):
                raise NotLowered("a constant is off the grid of what it reads")
            return self.graph.constant(numbers, "", grid)
        own = tensor.quantization
        if own is None and tensor.data.size == 1:
            value = float(tensor.data.reshape(()))
            own = Quantization(np.array([abs(value) / 127 or 1.0], np.float32), np.array([0]))
        if own is None or own.scale.size != 1:
            raise NotLowered("a constant is not quantized, or per channel")
        return self.graph.constant(_rounded(tensor.data, own), "", own)

    def _with_weights(self, form: Form, inputs: list[int], own: Quantization) -> list[int]:
        assert form.filter is not None
        weight = self.tensors[inputs[form.filter]]
        grid = weight.quantization
        if grid is None or weight.data is None:
            raise NotLowered("its weights are not int8 around zero with a scale per output channel")
        shape = [-1 if axis == form.axis else 1 for axis in range(weight.data.ndim)]
        numbers = np.round(weight.data / grid.scale.astype(np.float64).reshape(shape))
        if np.abs(numbers).max() > 128:
            raise NotLowered("its weights were changed after they were quantized")
        both = (grid.scale * own.scale[0]).astype(np.float32)
        bias = np.zeros(len(both))
        if len(inputs) > form.bias and inputs[form.bias] >= 0:
            data = self.tensors[inputs[form.bias]].data
            if data is None:
                raise NotLowered("its bias is not a constant")
            bias = np.round(data / both.astype(np.float64))
        if np.abs(bias).max() >= 2.0**31:
            raise NotLowered("its bias does not fit into 32 bits")
        filters = self.graph.constant(
            np.clip(numbers, -128, 127).astype(np.int8),
            "",
            Quantization(grid.scale, np.zeros(len(both), np.int64), form.axis),
        )
        added = self.graph.constant(
            bias.astype(np.int32), "", Quantization(both, np.zeros(len(both), np.int64))
        )
        inputs[form.filter] = filters
        return [*inputs[: form.bias], added]


def _data(form: Form, op: Operator) -> tuple[int, ...]:
    return form.data or tuple(range(len(op.inputs)))


def _rounded(values: Array, grid: Quantization) -> Array:
    numbers = np.round(values / np.float64(grid.scale[0])) + int(grid.zero_point[0])
    return np.asarray(np.clip(numbers, -128, 127).astype(np.int8))


def _real(numbers: Array, grid: Quantization) -> Array:
    return np.asarray((numbers.astype(np.int64) - int(grid.zero_point[0])).astype(np.float32) * grid.scale[0])
