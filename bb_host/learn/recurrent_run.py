"""One direction of a recurrent layer on its way back: its values, and what its cells compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bb_host.ir.program import AttrValue
from bb_host.learn.gradient_builder import GradientBuilder

ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "tanh": ("Tanh", None, None),
    "sigmoid": ("Sigmoid", None, None),
    "relu": ("Relu", None, None),
    "softsign": ("Softsign", None, None),
    "softplus": ("Softplus", None, None),
    "leakyrelu": ("LeakyRelu", 0.01, None),
    "thresholdedrelu": ("ThresholdedRelu", 1.0, None),
    "elu": ("Elu", 1.0, None),
    "hardsigmoid": ("HardSigmoid", 0.2, 0.5),
    "scaledtanh": ("ScaledTanh", 1.0, 1.0),
    "affine": ("Affine", 1.0, 0.0),
}
"""By ONNX's name in lower case: how it is spelt, and the defaults of alpha and beta; None: it takes none.

The slope of each follows from its result.
"""


class Activation(NamedTuple):
    """An activation of a gate, by its name in lower case."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One direction of a layer, everything by name of value; None where there is none.

    `x` [S,N,I], `w` [G·H,I], `r` [G·H,H], `wb` and `rb` [G·H], `h0` and `c0` [1,N,H], `states` [S,N,H];
    `dys` [S,N,H], `dh` and `dc` [1,N,H] are gradients of all states and of the last; `live` [S,N,1] is 1
    while a sequence lasts. `like` is a forward value of their dtype; `activations` are those of
    this direction.
    """

    g: GradientBuilder
    steps: int
    hidden: int
    reverse: bool
    activations: tuple[Activation, ...]
    like: str
    x: str
    w: str
    r: str
    wb: str | None
    rb: str | None
    h0: str | None
    c0: str | None
    states: str
    dys: str | None
    dh: str | None
    dc: str | None
    live: str | None
    clip: float = 0.0
    _sums: dict[str, str] = field(default_factory=dict)  # what an activation was taken of, by its result

    @property
    def order(self) -> list[int]:
        """Steps in the order in which the layer takes them."""
        return list(range(self.steps))[:: -1 if self.reverse else 1]

    def before(self, states: str, start: str | None) -> str:
        """[S,N,H]: the state that each step starts from, of the states after each."""
        g = self.g
        if self.steps == 1:
            return g.op("Sub", states, states) if start is None else start
        kept = (
            self._later(states) if self.reverse else g.op("Slice", states, g.ints(0), g.ints(-1), g.ints(0))
        )
        if start is None:
            return g.op("Pad", kept, g.ints(0, 0, 0, 1, 0, 0) if self.reverse else g.ints(1, 0, 0, 0, 0, 0))
        if not self.reverse:
            return g.op("Concat", start, kept, axis=0)
        found = g.op("Concat", kept, start, axis=0)
        if self.live is None:
            return found
        # A shorter sequence begins before the last step, whose state the layer writes as zeros.
        begins = g.op("Pad", self._later(self.rest(self.live)), g.ints(0, 0, 0, 1, 0, 0))
        return g.op("Add", found, self.times(begins, start))

    def _later(self, value: str) -> str:
        return self.g.op("Slice", value, self.g.ints(1), self.g.ints(self.steps), self.g.ints(0))

    def parts(self, value: str) -> list[str]:
        """[S,…] as S pieces [1,…], by step."""
        if self.steps == 1:
            return [value]
        return list(self.g.op_n("Split", self.steps, value, self.g.ints(*[1] * self.steps), axis=0))

    def joined(self, pieces: Sequence[str]) -> str:
        return pieces[0] if len(pieces) == 1 else self.g.op("Concat", *pieces, axis=0)

    def gates(self, value: str, weights: str, *biases: str | None) -> str:
        """value·weightsᵀ plus biases, for all steps."""
        g = self.g
        total = g.op("MatMul", value, g.op("Transpose", weights, perm=[1, 0]))
        for bias in biases:
            total = total if bias is None else g.op("Add", total, bias)
        return total

    def split(self, value: str, axis: int, count: int) -> tuple[str, ...]:
        """Into `count` gates of H along an axis."""
        return self.g.op_n("Split", count, value, self.g.ints(*[self.hidden] * count), axis=axis)

    def times(self, *values: str) -> str:
        first, *rest = values
        for value in rest:
            first = self.g.op("Mul", first, value)
        return first

    def rest(self, value: str) -> str:
        """1 − value."""
        return self.g.op("Sub", self.g.scalar(1, self.like), value)

    def act(self, place: int, value: str, gate: bool = True) -> str:
        """An activation; of a `gate`, what it is taken of is clipped where the layer clips."""
        if not (self.clip and gate):
            return self._applied(place, value)
        bounds = (self.g.scalar(bound, self.like) for bound in (-self.clip, self.clip))
        result = self._applied(place, self.g.op("Clip", value, *bounds))
        self._sums[result] = value
        return result

    def _applied(self, place: int, value: str) -> str:
        kind, alpha, beta = self.activations[place]
        g = self.g
        if kind == "affine":
            return g.op("Add", g.op("Mul", value, g.scalar(alpha, self.like)), g.scalar(beta, self.like))
        if kind == "scaledtanh":
            inner = g.op("Tanh", g.op("Mul", value, g.scalar(beta, self.like)))
            return g.op("Mul", inner, g.scalar(alpha, self.like))
        name, takes_alpha, takes_beta = ACTIVATIONS[kind]
        attrs: dict[str, AttrValue] = {}
        if takes_alpha is not None:
            attrs["alpha"] = alpha
        if takes_beta is not None:
            attrs["beta"] = beta
        return g.op(name, value, **attrs)

    def slope(self, place: int, result: str) -> str:
        """The slope of an activation, from its result; none where what it was taken of was clipped."""
        slope, g = self._slope(place, result), self.g
        if result not in self._sums:
            return slope
        within = g.op("Less", g.op("Abs", self._sums[result]), g.scalar(self.clip, self.like))
        return self.times(slope, g.cast(within, g.dtype(self.like)))

    def _slope(self, place: int, result: str) -> str:
        kind, alpha, beta = self.activations[place]
        g = self.g

        def number(value: float) -> str:
            return g.scalar(value, self.like)

        def where(condition: str) -> str:
            return g.cast(condition, g.dtype(self.like))

        if kind == "tanh":
            return self.rest(self.times(result, result))
        if kind == "sigmoid":
            return self.times(result, self.rest(result))
        if kind == "softsign":
            rest = self.rest(g.op("Abs", result))
            return self.times(rest, rest)
        if kind == "softplus":
            return self.rest(g.op("Exp", g.op("Neg", result)))
        if kind == "scaledtanh":
            inner = g.op("Div", result, number(alpha))
            return self.times(self.rest(self.times(inner, inner)), number(alpha * beta))
        if kind == "affine":
            return g.op("Add", self.times(result, number(0)), number(alpha))
        if kind == "thresholdedrelu":
            return where(g.op("Not", g.op("Equal", result, number(0))))
        above = g.op("Greater", result, number(0))
        if kind == "relu":
            return where(above)
        if kind == "leakyrelu":
            return g.op("Where", above, number(1), number(alpha))
        if kind == "elu":
            return g.op("Where", above, number(1), g.op("Add", result, number(alpha)))
        inside = g.op("And", above, g.op("Less", result, number(1)))
        return self.times(where(inside), number(alpha))

    def masked(self, value: str) -> str:
        """Zero behind the end of a sequence."""
        return value if self.live is None else self.times(value, self.live)

    def passing(self, value: str) -> str:
        """A factor of the state's gradient: 1 behind the end of a sequence, where the state is kept."""
        if self.live is None:
            return value
        return self.g.op("Add", self.times(value, self.live), self.rest(self.live))

    def kept(self, step: int, gradient: str) -> str | None:
        """What of a state's gradient goes to the step before, unchanged, behind the end of a sequence."""
        if self.live is None:
            return None
        return self.times(gradient, self.parts(self.rest(self.live))[step])

    def total(self, *gradients: str | None) -> str | None:
        found: str | None = None
        for gradient in filter(None, gradients):
            found = gradient if found is None else self.g.op("Add", found, gradient)
        return found

    def backwards(self) -> list[tuple[int, str | None]]:
        """(step, gradient of its state from the outputs), the last step first."""
        dys = [None] * self.steps if self.dys is None else self.parts(self.masked(self.dys))
        return [(t, dys[t]) for t in reversed(self.order)]

    def product(self, gradients: str, gates: int, value: str) -> str:
        """gradientsᵀ·value over all steps: [gates·H, H], a gradient of recurrent weights."""
        g = self.g
        rows = g.op("Reshape", gradients, g.ints(-1, gates * self.hidden))
        columns = g.op("Reshape", value, g.ints(-1, self.hidden))
        return g.op("MatMul", g.op("Transpose", rows, perm=[1, 0]), columns)
