"""LSTM, GRU and RNN over a number of steps that is known: the inputs of all steps in one product, then
each step as operators of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple, cast

import numpy as np

from bb_host.ir.program import Array, Op
from bb_host.tflite.errors import NotLowered
from bb_host.tflite.facts import Fact
from bb_host.tflite.graph import DYNAMIC
from bb_host.tflite.linear import OMITTED, dense
from bb_host.tflite.lowering import Region, Rule

MAX_OPERATORS = 3000
"""Each is some 125 bytes of the artifact, and 20 µs of the device's verification."""

MAX_PACKED = 8 * 1024 * 1024
"""Bytes of the state's weights times steps: XNNPACK packs them anew for each operator that reads them."""


class _Kind(NamedTuple):
    """`activations` per direction; `operators` per step, and what the NumPy kernel takes for a step beside
    its products (measured where the rates of `regions.py` were).
    """

    gates: int
    activations: tuple[str, ...]
    operators: int
    numpy_us: float


_KINDS = {
    "LSTM": _Kind(4, ("sigmoid", "tanh", "tanh"), 15, 8.5),
    "GRU": _Kind(3, ("sigmoid", "tanh"), 15, 7.5),
    "RNN": _Kind(1, ("tanh",), 4, 2.8),
}


class Cost(NamedTuple):
    """Operators that a layer becomes, its multiplications at a batch of one, and what NumPy takes beside."""

    operators: int
    macs: int
    numpy_us: float


class _Layer(NamedTuple):
    """`reverse` per direction; `first`: the batch is the first axis (ONNX's layout 1)."""

    steps: int
    inputs: int
    hidden: int
    reverse: tuple[bool, ...]
    first: bool


def _layer(op: Op, facts: Mapping[str, Fact]) -> _Layer:
    shape, first = facts[op.inputs[0]].shape, bool(op.attrs.get("layout", 0))
    direction = op.text("direction", "forward")
    reverse = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
    return _Layer(shape[first], shape[2], facts[op.inputs[2]].shape[2], reverse, first)


def cost(op: Op, facts: Mapping[str, Fact]) -> Cost:
    """What `auto` estimates with."""
    layer, kind = _layer(op, facts), _KINDS[op.op_type]
    steps = layer.steps * len(layer.reverse)
    macs = steps * kind.gates * layer.hidden * (layer.inputs + layer.hidden)
    return Cost(steps * kind.operators, macs, steps * kind.numpy_us)


_Step = Callable[[int, Sequence[int]], list[int]]
"""(number of the step, hidden state and cell before it) → those after it."""


class _Direction:
    """One direction of a layer: its weights, and operators on (batch, 1, size)."""

    def __init__(
        self, region: Region, op: Op, layer: _Layer, number: int, activations: tuple[str, ...], x: int
    ) -> None:
        self.region, self.layer, self.activations, self.x = region, layer, activations, x
        w, r, bias = (region.constant(op, position) for position in (1, 2, 3))
        assert w is not None and r is not None
        self.w, self.r = w[number], r[number]
        both = np.zeros(2 * len(self.w), np.float32) if bias is None else bias[number]
        self.wb, self.rb = both[: len(self.w)], both[len(self.w) :]
        self._ints: dict[tuple[int, ...], int] = {}

    def inputs(self, bias: Array) -> int:
        """What the inputs of all steps add to the gates."""
        batch = self.region.graph.shape(self.x)[0]
        given = self.region.floats(bias) if bias.any() else OMITTED
        shape = (batch, self.layer.steps, len(self.w))
        return dense(self.region, self.x, self.region.floats(self.w), shape, given)

    def product(self, x: int, weight: int, bias: int = OMITTED) -> int:
        graph = self.region.graph
        return dense(self.region, x, weight, (graph.shape(x)[0], 1, graph.shape(weight)[0]), bias)

    def part(self, x: int, gate: int, gates: int = 1, step: int = 0) -> int:
        """So many gates from one on, at a step.

        A SLICE that leaves the batch open is none of XNNPACK's operators, and makes the whole twice as slow.
        """
        begin, end = gate * self.layer.hidden, (gate + gates) * self.layer.hidden
        given = self._known(0, step, begin), self._known(1, step + 1, end), self._known(1, 1, 1)
        shape = (self.region.graph.shape(x)[0], 1, end - begin)
        return self.region.op("STRIDED_SLICE", [x, *given], shape, begin_mask=1, end_mask=1)

    def _known(self, *values: int) -> int:
        if values not in self._ints:
            self._ints[values] = self.region.ints(values)
        return self._ints[values]

    def op(self, kind: str, *inputs: int) -> int:
        """Element by element; a constant state may have a batch of one, which is broadcast."""
        shapes = [self.region.graph.shape(x) for x in inputs]
        batches = [shape[0] for shape in shapes]
        batch = DYNAMIC if DYNAMIC in batches else max(batches)
        return self.region.op(kind, inputs, (batch, 1, shapes[0][2]))


def _lstm(d: _Direction, op: Op) -> _Step:
    """Gates in ONNX's order: input, output, forget, cell. One product for all of them and cuts take two
    thirds of the time that a product per gate takes, on either interpreter.
    """
    x, back = d.inputs(d.wb + d.rb), d.region.floats(d.r)

    def step(t: int, state: Sequence[int]) -> list[int]:
        hidden, cell = state
        gates = d.op("ADD", d.product(hidden, back), d.part(x, 0, 4, t))
        bent, new = d.op("LOGISTIC", d.part(gates, 0, 3)), d.op("TANH", d.part(gates, 3))
        taken, shown, kept = (d.part(bent, gate) for gate in range(3))
        cell = d.op("ADD", d.op("MUL", kept, cell), d.op("MUL", taken, new))
        return [d.op("MUL", shown, d.op("TANH", cell)), cell]

    return step


def _gru(d: _Direction, op: Op) -> _Step:
    """Gates in ONNX's order: update, reset, hidden."""
    two, after = 2 * d.layer.hidden, bool(op.attrs.get("linear_before_reset", 0))
    bias, own = d.wb + d.rb, np.zeros_like(d.rb)
    if after:
        bias[two:], own[two:] = d.wb[two:], d.rb[two:]
    x = d.inputs(bias)
    back = d.region.floats(d.r if after else d.r[:two])
    own_bias = d.region.floats(own) if own.any() else OMITTED
    new_back = OMITTED if after else d.region.floats(d.r[two:])

    def step(t: int, state: Sequence[int]) -> list[int]:
        (hidden,) = state
        sums = d.product(hidden, back, own_bias)
        both = d.op("ADD", d.part(sums, 0, 2) if after else sums, d.part(x, 0, 2, t))
        bent = d.op("LOGISTIC", both)
        kept, reset = d.part(bent, 0), d.part(bent, 1)
        if after:
            back_there = d.op("MUL", reset, d.part(sums, 2))
        else:
            back_there = d.product(d.op("MUL", reset, hidden), new_back)
        new = d.op("TANH", d.op("ADD", back_there, d.part(x, 2, 1, t)))
        return [d.op("ADD", new, d.op("MUL", kept, d.op("SUB", hidden, new)))]

    return step


def _rnn(d: _Direction, op: Op) -> _Step:
    x, back = d.inputs(d.wb + d.rb), d.region.floats(d.r)
    (bend,) = d.activations

    def step(t: int, state: Sequence[int]) -> list[int]:
        return [d.op(bend.upper(), d.op("ADD", d.product(state[0], back), d.part(x, 0, 1, t)))]

    return step


_STEPS: dict[str, Callable[[_Direction, Op], _Step]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _activations(op: Op, directions: int) -> list[tuple[str, ...]]:
    """Per direction."""
    usual = _KINDS[op.op_type].activations
    given = [name.decode().lower() for name in cast("list[bytes]", op.attrs.get("activations") or [])]
    n = len(usual)
    found = [tuple(given[k * n : (k + 1) * n]) or usual for k in range(directions)]
    if any(some != usual and (op.op_type, some) != ("RNN", ("relu",)) for some in found):
        raise NotLowered("its activations are others than usual")
    return found


def _check(region: Region, op: Op, layer: _Layer) -> None:
    if layer.steps == DYNAMIC:
        raise NotLowered("its number of steps is open")
    if op.attrs.get("clip", 0.0) or op.attrs.get("input_forget", 0):
        raise NotLowered("it clips, or couples its gates")
    lengths, holes = region.constant(op, 4), region.constant(op, 7)
    if lengths is not None and np.any(lengths != layer.steps):
        raise NotLowered("its sequences have lengths of their own")
    if holes is not None and holes.any():
        raise NotLowered("it has peepholes")
    operators = cost(op, region.facts).operators
    if operators > MAX_OPERATORS:
        raise NotLowered(f"its {layer.steps} steps would be {operators} operators")
    weights = region.fact(op.inputs[2])
    if 4 * layer.steps * prod(weights.shape) > MAX_PACKED:
        raise NotLowered(f"an interpreter would hold its weights {layer.steps} times, once per step")


def _state(region: Region, op: Op, layer: _Layer, position: int, number: int) -> int:
    """What a state begins with, (batch, 1, hidden)."""
    name = op.inputs[position] if position < len(op.inputs) else ""
    if not name:
        return region.floats(np.zeros((1, 1, layer.hidden)))
    value = region.fact(name).value
    if value is not None:
        return region.floats(np.take(value if layer.first else value.swapaxes(0, 1), [number], 1))
    x = region.read(name)
    if not layer.first:
        x = region.transposed(x, (1, 0, 2))
    shape = (region.graph.shape(x)[0], 1, layer.hidden)
    if len(layer.reverse) == 1:
        return x
    return region.op("SLICE", [x, region.ints((0, number, 0)), region.ints((-1, 1, layer.hidden))], shape)


def _joined(region: Region, parts: Sequence[int], axis: int) -> int:
    if len(parts) == 1:
        return parts[0]
    shape = list(region.graph.shape(parts[0]))
    shape[axis] *= len(parts)
    return region.op("CONCATENATION", parts, shape, axis=axis)


def _recurrent(region: Region, op: Op) -> None:
    layer = _layer(op, region.facts)
    _check(region, op, layer)
    x = region.read(op.inputs[0])
    if not layer.first:
        x = region.transposed(x, (1, 0, 2))
    rows: list[int] = []  # of each direction: all steps, (batch, steps, hidden)
    last: list[list[int]] = []
    for number, bends in enumerate(_activations(op, len(layer.reverse))):
        step = _STEPS[op.op_type](_Direction(region, op, layer, number, bends, x), op)
        state = [_state(region, op, layer, 5, number)]
        if op.op_type == "LSTM":
            state.append(_state(region, op, layer, 6, number))
        seen = []
        for t in range(layer.steps):
            state = step(layer.steps - 1 - t if layer.reverse[number] else t, state)
            seen.append(state[0])
        rows.append(_joined(region, seen[::-1] if layer.reverse[number] else seen, 1))
        last.append(state)
    batch, directions = region.graph.shape(x)[0], len(layer.reverse)
    if op.outputs[0]:
        y = _joined(region, rows, 2)
        if not layer.first:
            y = region.reshaped(y, (batch, layer.steps, directions, layer.hidden))
            y = region.transposed(y, (1, 2, 0, 3))
        region.give(op.outputs[0], region.reshaped(y, region.result(op)))
    for position, name in enumerate(op.outputs[1:]):
        if name:
            y = _joined(region, [state[position] for state in last], 1)
            y = y if layer.first else region.transposed(y, (1, 0, 2))
            region.give(name, region.reshaped(y, region.fact(name).shape))


RULES: dict[str, Rule] = dict.fromkeys(_KINDS, _recurrent)
