"""Recurrent layers RNN, GRU, LSTM: a product for all inputs, then a product per step for the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .errors import KernelAttributeError, KernelShapeError
from .registry import Call, kernel
from .spec import FLOAT, Array, Bound, Prepared, TensorSpec, run_bound
from .ufuncs import clip

_InPlace = Callable[[Array], object]


def _activation(name: str, alpha: float | None, beta: float | None) -> _InPlace:
    """Return an activation that overwrites its argument, with ONNX's defaults for alpha and beta.

    Sigmoid, Tanh and Relu allocate nothing; the others allocate arrays like the argument.
    """
    a = {
        "leakyrelu": 0.01,
        "thresholdedrelu": 1.0,
        "hardsigmoid": 0.2,
        "elu": 1.0,
        "scaledtanh": 1.0,
        "affine": 1.0,
    }
    b = {"hardsigmoid": 0.5, "scaledtanh": 1.0, "affine": 0.0}
    key = name.lower()
    p = a.get(key, 0.0) if alpha is None else alpha
    q = b.get(key, 0.0) if beta is None else beta

    def sigmoid(x: Array) -> None:
        np.negative(x, x)
        np.exp(x, x)
        np.add(x, 1.0, x)
        np.reciprocal(x, x)

    table: dict[str, _InPlace] = {
        "sigmoid": sigmoid,
        "tanh": lambda x: np.tanh(x, x),
        "relu": lambda x: np.maximum(x, 0.0, out=x),
        "leakyrelu": lambda x: np.multiply(x, np.where(x < 0, p, 1.0), x, casting="unsafe"),
        "thresholdedrelu": lambda x: np.multiply(x, x > p, x),
        "scaledtanh": lambda x: np.multiply(np.tanh(x * q), p, x, casting="unsafe"),
        "hardsigmoid": lambda x: np.clip(x * p + q, 0.0, 1.0, x),
        "elu": lambda x: np.copyto(x, np.where(x < 0, p * np.expm1(x), x), casting="unsafe"),
        "softsign": lambda x: np.divide(x, 1.0 + np.abs(x), x),
        "softplus": lambda x: np.copyto(x, np.logaddexp(0.0, x), casting="unsafe"),
        "affine": lambda x: np.copyto(x, p * x + q, casting="unsafe"),
    }
    if key not in table:
        raise KernelAttributeError(f"activation {name!r} of a recurrent layer is not implemented")
    return table[key]


class _Layer(NamedTuple):
    """Shapes and attributes that the three layers have in common."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    gates: int
    reverse: tuple[bool, ...]
    batch_first: bool
    activations: tuple[tuple[_InPlace, ...], ...]
    clip: float

    def clipped(self, x: Array) -> None:
        """Limit ``x`` to [-clip, clip] in place where the layer clips."""
        if self.clip > 0.0:
            clip(x, np.array(-self.clip, x.dtype), np.array(self.clip, x.dtype), x)


def _layer(call: Call, gates: int, defaults: tuple[str, ...]) -> _Layer:
    """Check the inputs and attributes of a recurrent layer.

    Shapes that do not fit raise KernelShapeError, wrong activations KernelAttributeError.
    """
    op, x, r = call.op_type, call.spec(0), call.spec(2)
    batch_first = call.int_attr("layout", 0) == 1
    direction = call.str_attr("direction", "forward", ("forward", "reverse", "bidirectional"))
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    count = len(reverse)
    if len(x.shape) != 3 or len(r.shape) != 3:
        raise KernelShapeError(f"{op}: X {x.shape} and R {r.shape} must have three axes")
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    hidden = r.shape[2]
    if call.int_attr("hidden_size", hidden) != hidden:
        raise KernelShapeError(f"{op}: hidden_size {call.attrs['hidden_size']} and R {r.shape} differ")
    expected = {
        1: (count, gates * hidden, x.shape[2]),
        2: (count, gates * hidden, hidden),
        3: (count, 2 * gates * hidden),
    }
    state = (batch, count, hidden) if batch_first else (count, batch, hidden)
    expected.update({4: (batch,), 5: state, 6: state, 7: (count, 3 * hidden)})
    for i, shape in expected.items():
        if call.has(i) and call.spec(i).shape != shape:
            raise KernelShapeError(f"{op}: input {i} has shape {call.spec(i).shape}, expected {shape}")
    raw = call.attrs.get("activations")
    names = list(defaults) * count
    if isinstance(raw, (list, tuple)) and raw:
        names = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in raw]
    if len(names) != len(defaults) * count:
        raise KernelAttributeError(f"{op}: expected {len(defaults) * count} activations, got {len(names)}")
    # alpha and beta are listed only for the activations that take one, in order.
    alphas, betas = (
        iter(call.floats_attr("activation_alpha") or ()),
        iter(call.floats_attr("activation_beta") or ()),
    )
    takes_alpha = {"leakyrelu", "thresholdedrelu", "hardsigmoid", "elu", "scaledtanh", "affine"}
    takes_beta = {"hardsigmoid", "scaledtanh", "affine"}
    functions = [
        _activation(
            n,
            next(alphas, None) if n.lower() in takes_alpha else None,
            next(betas, None) if n.lower() in takes_beta else None,
        )
        for n in names
    ]
    per = len(defaults)
    return _Layer(
        steps, batch, x.shape[2], hidden, count, gates, reverse, batch_first,
        tuple(tuple(functions[i * per : (i + 1) * per]) for i in range(count)), call.float_attr("clip", 0.0),
    )  # fmt: skip


#: step(gates of this step [batch, gates·hidden], state, activations) updates the state in place
_Step = Callable[[Array, "list[Array]", "tuple[_InPlace, ...]"], None]
_MakeStep = Callable[..., _Step]


def _recurrent(
    call: Call, layer: _Layer, states: int, make_step: _MakeStep, scratch: tuple[tuple[int, ...], ...]
) -> Prepared:
    """Return the frame of all three layers: projections, the loop over steps, masks for short sequences.

    ``make_step`` returns the step of a direction; ``scratch`` are the shapes that it needs.
    """
    dtype = call.spec(0).dtype
    s, b, h, d = layer.steps, layer.batch, layer.hidden, layer.directions
    n, n_out = len(call.inputs), call.n_outputs
    y_shape = (b, s, d, h) if layer.batch_first else (s, d, b, h)
    last_shape = (b, d, h) if layer.batch_first else (d, b, h)
    outputs = (TensorSpec(dtype, y_shape), *(TensorSpec(dtype, last_shape) for _ in range(states)))
    own = ((s * b, layer.inputs), (s * b, layer.gates * h), *((b, h),) * (2 * states), *scratch)

    def bind(*arrays: Any) -> Bound:
        xs, w, r, biases, lens, h0, c0, peepholes = arrays[:n] + (None,) * (8 - n)
        outs, temps = arrays[n : n + n_out], arrays[n + n_out :]
        flat, gates = temps[:2]
        state, before, rest = (
            list(temps[2 : 2 + states]),
            temps[2 + states : 2 + 2 * states],
            temps[2 + 2 * states :],
        )
        x = xs.swapaxes(0, 1) if layer.batch_first else xs
        y = outs[0]
        if y is not None and layer.batch_first:
            y = y.transpose(1, 2, 0, 3)
        finals = [None if o is None else (o.swapaxes(0, 1) if layer.batch_first else o) for o in outs[1:]]
        starts = [None if o is None else (o.swapaxes(0, 1) if layer.batch_first else o) for o in (h0, c0)]

        def run() -> None:
            np.copyto(flat.reshape(s, b, layer.inputs), x)
            for k in range(d):
                bias, peephole = (None if a is None else a[k] for a in (biases, peepholes))
                np.matmul(flat, w[k].T, gates)
                step = make_step(layer, r[k], bias, peephole, gates, rest)
                for value, start in zip(state, starts, strict=False):
                    np.copyto(value, 0 if start is None else start[k])
                order = range(s - 1, -1, -1) if layer.reverse[k] else range(s)
                for t in order:
                    if lens is not None:
                        for kept, value in zip(before, state, strict=True):
                            np.copyto(kept, value)
                    step(gates[t * b : (t + 1) * b], state, layer.activations[k])
                    if lens is not None:
                        over = (lens <= t)[:, None]
                        for kept, value in zip(before, state, strict=True):
                            np.copyto(value, kept, where=over)
                    if y is not None:
                        np.copyto(y[t, k], state[0])
                        if lens is not None:
                            np.copyto(y[t, k], 0, where=over)
                for target, value in zip(finals, state, strict=False):
                    if target is not None:
                        np.copyto(target[k], value)

        return run

    specs = tuple(TensorSpec(dtype, shape) for shape in own)
    return Prepared(outputs[:n_out], run_bound(bind), specs, binder=bind)


def _simple_step(
    layer: _Layer, r: Array, bias: Array | None, _p: Array | None, gates: Array, rest: Any
) -> _Step:
    """Return the step of an RNN."""
    (temp,) = rest
    back = r.T
    if bias is not None:
        np.add(gates, bias[: layer.hidden] + bias[layer.hidden :], gates)

    def step(g: Array, state: list[Array], f: tuple[_InPlace, ...]) -> None:
        np.matmul(state[0], back, temp)
        np.add(temp, g, temp)
        layer.clipped(temp)
        f[0](temp)
        np.copyto(state[0], temp)

    return step


def _rnn(call: Call) -> Prepared:
    """RNN (opset 7+) runs a simple recurrent layer in one or two directions.

    X[S,N,I], W[D,H,I], R[D,H,H], B[D,2H]?, lengths[N]?, start[D,N,H]? → Y[S,D,N,H]?, last[D,N,H]?; batch
    first with layout=1; floats (float16 via float32). Shapes that do not fit raise KernelShapeError,
    activations that do not exist KernelAttributeError. Run allocates biases per direction, and what rarer
    activations need per step.
    """
    layer = _layer(call, 1, ("Tanh",))
    return _recurrent(call, layer, 1, _simple_step, ((layer.batch, layer.hidden),))


def _lstm_step(coupled: bool) -> _MakeStep:
    """Return the maker of an LSTM's step.

    Gates are in ONNX's order: input, output, forget, cell; peepholes: input, output, forget. ``coupled``: the
    forget gate is what the input gate leaves, and its weights are not read.
    """

    def make(layer: _Layer, r: Array, bias: Array | None, p: Array | None, gates: Array, rest: Any) -> _Step:
        back, h = r.T, layer.hidden
        total, temp = rest
        if bias is not None:
            np.add(gates, bias[: 4 * h] + bias[4 * h :], gates)
        i, o, f, c = (total[:, k * h : (k + 1) * h] for k in range(4))

        def step(g: Array, state: list[Array], act: tuple[_InPlace, ...]) -> None:
            hidden, cell = state
            np.matmul(hidden, back, total)
            np.add(total, g, total)
            if p is not None:
                np.add(i, np.multiply(cell, p[:h], temp), i)
                np.add(f, np.multiply(cell, p[2 * h :], temp), f)
            if p is None:
                layer.clipped(total)
            else:  # the output gate is clipped once, behind its peephole
                layer.clipped(i)
                layer.clipped(total[:, 2 * h :])
            act[0](i)
            if coupled:
                np.subtract(1.0, i, f)
            else:
                act[0](f)
            act[1](c)
            np.multiply(cell, f, cell)
            np.multiply(i, c, temp)
            np.add(cell, temp, cell)
            if p is not None:
                np.add(o, np.multiply(cell, p[h : 2 * h], temp), o)
                layer.clipped(o)
            act[0](o)
            np.copyto(hidden, cell)
            act[2](hidden)
            np.multiply(hidden, o, hidden)

        return step

    return make


def _lstm(call: Call) -> Prepared:
    """LSTM (opset 7+) runs a layer with long short-term memory in one or two directions.

    X[S,N,I], W[D,4H,I], R[D,4H,H], B[D,8H]?, lengths[N]?, start[D,N,H]?, cell[D,N,H]?, peepholes[D,3H]? →
    Y[S,D,N,H]?, last[D,N,H]?, last cell[D,N,H]?; batch first with layout=1; floats (float16 via float32).
    With input_forget=1 the forget gate is 1 less the input gate, and its weights are not read. Shapes that do
    not fit raise KernelShapeError, activations that do not exist KernelAttributeError. Run allocates biases
    per direction, and what rarer activations need per step.
    """
    layer = _layer(call, 4, ("Sigmoid", "Tanh", "Tanh"))
    step = _lstm_step(call.int_attr("input_forget", 0) != 0)
    return _recurrent(call, layer, 2, step, ((layer.batch, 4 * layer.hidden), (layer.batch, layer.hidden)))


def _gru_step(after_reset: bool) -> _MakeStep:
    """Return the maker of a GRU's step.

    Gates are in ONNX's order: update, reset, hidden; ``after_reset``: the reset gate meets the projected
    state.
    """

    def make(layer: _Layer, r: Array, bias: Array | None, _p: Array | None, gates: Array, rest: Any) -> _Step:
        h = layer.hidden
        total, temp = rest
        back_zr, back_h = r[: 2 * h].T, r[2 * h :].T
        hidden_bias = None
        if bias is not None:
            np.add(gates, bias[: 3 * h], gates)
            np.add(gates[:, : 2 * h], bias[3 * h : 5 * h], gates[:, : 2 * h])
            hidden_bias = bias[5 * h :]
        zr, candidate = total[:, : 2 * h], total[:, 2 * h :]
        z, reset = total[:, :h], total[:, h : 2 * h]

        def step(g: Array, state: list[Array], act: tuple[_InPlace, ...]) -> None:
            (hidden,) = state
            np.matmul(hidden, back_zr, zr)
            np.add(zr, g[:, : 2 * h], zr)
            layer.clipped(zr)
            act[0](zr)
            if after_reset:
                np.matmul(hidden, back_h, candidate)
                if hidden_bias is not None:
                    np.add(candidate, hidden_bias, candidate)
                np.multiply(candidate, reset, candidate)
            else:
                np.matmul(np.multiply(hidden, reset, temp), back_h, candidate)
                if hidden_bias is not None:
                    np.add(candidate, hidden_bias, candidate)
            np.add(candidate, g[:, 2 * h :], candidate)
            layer.clipped(candidate)
            act[1](candidate)
            np.subtract(hidden, candidate, hidden)  # (1-z)·c + z·h = c + z·(h-c)
            np.multiply(hidden, z, hidden)
            np.add(hidden, candidate, hidden)

        return step

    return make


def _gru(call: Call) -> Prepared:
    """GRU (opset 7+) runs a layer of gated recurrent units in one or two directions.

    X[S,N,I], W[D,3H,I], R[D,3H,H], B[D,6H]?, lengths[N]?, start[D,N,H]? → Y[S,D,N,H]?, last[D,N,H]?; batch
    first with layout=1; floats (float16 via float32). Shapes that do not fit raise KernelShapeError,
    activations that do not exist KernelAttributeError. Run allocates what rarer activations need per step,
    and nothing else.
    """
    layer = _layer(call, 3, ("Sigmoid", "Tanh"))
    step = _gru_step(call.int_attr("linear_before_reset", 0) != 0)
    return _recurrent(call, layer, 1, step, ((layer.batch, 3 * layer.hidden), (layer.batch, layer.hidden)))


_COMMON = "activation_alpha activation_beta activations clip direction hidden_size layout@14"
kernel(
    "RNN", "T T T T? I? T?", dtypes=FLOAT, half=True, attrs=_COMMON, max_outputs=2
)(_rnn)  # fmt: skip
kernel(
    "GRU", "T T T T? I? T?", dtypes=FLOAT, half=True, attrs=_COMMON + " linear_before_reset", max_outputs=2
)(_gru)  # fmt: skip
kernel(
    "LSTM", "T T T T? I? T? T? T?", dtypes=FLOAT, half=True, attrs=_COMMON + " input_forget", max_outputs=3
)(_lstm)  # fmt: skip
