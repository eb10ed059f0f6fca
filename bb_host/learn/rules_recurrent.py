"""Gradients of RNN, GRU and LSTM: back through time, unrolled over a fixed number of steps.

The forward op stays whole and hands out its states. All that does not depend on the gradient of a later step
is computed for all steps at once: gates (from the states that are known), their slopes, and at the end the
gradients of the weights. What is left per step is one product with the recurrent weights and a few
elementwise ops. Shapes: S steps, N batch, I inputs, H hidden, G gates; per direction X [S,N,I], states
[S,N,H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bb_host.errors import NotDifferentiableError
from bb_host.ir.program import Op
from bb_host.learn.gradient_builder import GradientBuilder
from bb_host.learn.gradient_rules import Gradients, Wants, rule
from bb_host.learn.recurrent_run import ACTIVATIONS, Activation, Run

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


@dataclass(frozen=True, slots=True)
class _Found:
    """What a cell finds: the gradient [S,N,G·H] of x·wᵀ + wb and, where it differs, of states·rᵀ + rb; that
    of `r`; those of the first states [1,N,H]; that of the peepholes [3·H]."""

    of_input: str
    of_state: str
    r: str
    h0: str
    c0: str | None = None
    peepholes: str | None = None


def _rnn(run: Run) -> _Found:
    g, states = run.g, run.states
    if run.clip:  # whether they were clipped, states do not say
        before = run.gates(run.before(states, run.h0), run.r, run.rb)
        states = run.act(0, g.op("Add", run.gates(run.x, run.w, run.wb), before))
    slopes = run.parts(run.masked(run.slope(0, states)))
    carry, found = run.dh, {}
    for t, dy in run.backwards():
        dh = run.total(dy, carry)
        assert dh is not None
        found[t] = run.times(dh, slopes[t])
        carry = run.total(g.op("MatMul", found[t], run.r), run.kept(t, dh))
    assert carry is not None
    gates = run.joined([found[t] for t in range(run.steps)])
    return _Found(gates, gates, run.product(gates, 1, run.before(run.states, run.h0)), carry)


def _gru(run: Run, after_reset: bool) -> _Found:
    """z, r = act(x·wᵀ + h·rᵀ), n = act(xₙ + r·hₙ) or act(xₙ + (r·h)ₙ), then h ← n + z·(h − n)."""
    g, before = run.g, run.before(run.states, run.h0)
    xz, xr, xn = run.split(run.gates(run.x, run.w, run.wb), 2, 3)
    if after_reset:
        hz, hr, inner = run.split(run.gates(before, run.r, run.rb), 2, 3)
        z, r = run.act(0, g.op("Add", xz, hz)), run.act(0, g.op("Add", xr, hr))
        n = run.act(1, g.op("Add", xn, run.times(r, inner)))
    else:
        rows = run.split(run.r, 0, 3)
        biases = (None, None, None) if run.rb is None else run.split(run.rb, 0, 3)
        z = run.act(0, g.op("Add", xz, run.gates(before, rows[0], biases[0])))
        r = run.act(0, g.op("Add", xr, run.gates(before, rows[1], biases[1])))
        inner = run.times(r, before)
        n = run.act(1, g.op("Add", xn, run.gates(inner, rows[2], biases[2])))
    of_n = run.masked(run.times(run.rest(z), run.slope(1, n)))
    of_z = run.masked(run.times(g.op("Sub", before, n), run.slope(0, z)))
    through = run.parts(run.passing(z))
    if after_reset:
        return _gru_after_reset(
            run, before, (of_z, run.times(of_n, inner, run.slope(0, r)), of_n, r), through
        )
    return _gru_before_reset(run, before, (of_z, run.times(before, run.slope(0, r)), of_n, r, inner), through)


def _gru_after_reset(run: Run, before: str, slopes: Sequence[str], through: Sequence[str]) -> _Found:
    """All gates are dh times what is known: one product with the recurrent weights per step."""
    g = run.g
    of_z, of_r, of_n, r = slopes
    factors = run.parts(g.op("Concat", of_z, of_r, run.times(of_n, r), axis=2))
    carry, states, found = run.dh, {}, {}
    for t, dy in run.backwards():
        dh = run.total(dy, carry)
        assert dh is not None
        states[t], found[t] = dh, run.times(g.op("Concat", dh, dh, dh, axis=2), factors[t])
        carry = g.op("Add", g.op("MatMul", found[t], run.r), run.times(dh, through[t]))
    assert carry is not None
    of_state = run.joined([found[t] for t in range(run.steps)])
    of_hidden = run.times(run.joined([states[t] for t in range(run.steps)]), of_n)
    dz, dr, _ = run.split(of_state, 2, 3)
    of_input = g.op("Concat", dz, dr, of_hidden, axis=2)
    return _Found(of_input, of_state, run.product(of_state, 3, before), carry)


def _gru_before_reset(run: Run, before: str, slopes: Sequence[str], through: Sequence[str]) -> _Found:
    """The reset gate lies behind a product of its own."""
    g = run.g
    of_z, of_r, of_n, r = map(run.parts, slopes[:4])
    r_zr, r_n = g.op_n("Split", 2, run.r, g.ints(2 * run.hidden, run.hidden), axis=0)
    carry, found_zr, found_n = run.dh, {}, {}
    for t, dy in run.backwards():
        dh = run.total(dy, carry)
        assert dh is not None
        found_n[t] = run.times(dh, of_n[t])
        back = g.op("MatMul", found_n[t], r_n)
        found_zr[t] = g.op("Concat", run.times(dh, of_z[t]), run.times(back, of_r[t]), axis=2)
        own = g.op("Add", run.times(dh, through[t]), run.times(back, r[t]))
        carry = g.op("Add", own, g.op("MatMul", found_zr[t], r_zr))
    assert carry is not None
    zr = run.joined([found_zr[t] for t in range(run.steps)])
    n = run.joined([found_n[t] for t in range(run.steps)])
    weights = g.op("Concat", run.product(zr, 2, before), run.product(n, 1, slopes[4]), axis=0)
    gates = g.op("Concat", zr, n, axis=2)
    return _Found(gates, gates, weights, carry)


def _lstm(run: Run, coupled: bool) -> _Found:
    """i, o, f = act(…), g = act(…), c ← f·c + i·g, h = o·act(c). Cells are not handed out: they are computed
    again, elementwise. `coupled`: f = 1 − i."""
    g, before = run.g, run.before(run.states, run.h0)
    total = g.op("Add", run.gates(run.x, run.w, run.wb), run.gates(before, run.r, run.rb))
    gates = run.split(total, 2, 4)
    i, o = (run.act(0, gate) for gate in gates[:2])
    f = run.rest(i) if coupled else run.act(0, gates[2])
    new = run.act(1, gates[3])
    keeps, adds = run.parts(run.passing(f)), run.parts(run.masked(run.times(i, new)))
    cells, starts = {}, {}
    cell = run.c0
    for t in run.order:
        starts[t] = g.op("Sub", adds[t], adds[t]) if cell is None else cell
        cell = adds[t] if cell is None else g.op("Add", run.times(keeps[t], cell), adds[t])
        cells[t] = cell
    started = run.joined([starts[t] for t in range(run.steps)])
    shown = run.act(2, gate=False, value=run.joined([cells[t] for t in range(run.steps)]))
    to_cell = run.parts(run.masked(run.times(o, run.slope(2, shown))))
    slopes = (
        run.times(g.op("Sub", new, started) if coupled else new, run.slope(0, i)),
        run.times(shown, run.slope(0, o)),
        g.op("Sub", f, f) if coupled else run.times(started, run.slope(0, f)),
        run.times(i, run.slope(1, new)),
    )
    factors = run.parts(run.masked(g.op("Concat", *slopes, axis=2)))
    carry_h, carry_c, found = run.dh, run.dc, {}
    for t, dy in run.backwards():
        dh = run.total(dy, carry_h)
        if dh is None:  # the last cell alone is read
            assert carry_c is not None
            dh = g.op("Sub", carry_c, carry_c)
        dc = run.total(carry_c, run.times(dh, to_cell[t]))
        assert dc is not None
        found[t] = run.times(g.op("Concat", dc, dh, dc, dc, axis=2), factors[t])
        carry_h = run.total(g.op("MatMul", found[t], run.r), run.kept(t, dh))
        carry_c = run.times(dc, keeps[t])
    assert carry_h is not None
    of_all = run.joined([found[t] for t in range(run.steps)])
    return _Found(of_all, of_all, run.product(of_all, 4, before), carry_h, carry_c)


def _lstm_with_peepholes(run: Run, weights: str, coupled: bool) -> _Found:
    """i and f see the cell before, o the one after: gates follow from cells, so they come step by step."""
    g, before = run.g, run.before(run.states, run.h0)
    totals = run.parts(g.op("Add", run.gates(run.x, run.w, run.wb), run.gates(before, run.r, run.rb)))
    to_i, to_o, to_f = run.split(weights, 0, 3)
    lives: list[str | None] = [None] * run.steps if run.live is None else list(run.parts(run.live))

    def masked(value: str, t: int) -> str:
        live = lives[t]
        return value if live is None else run.times(value, live)

    starts, cells, keeps, gates = {}, {}, {}, {}
    cell = run.c0
    for t in run.order:
        of_i, of_o, of_f, of_n = run.split(totals[t], 2, 4)
        start = g.op("Sub", of_i, of_i) if cell is None else cell
        i = run.act(0, g.op("Add", of_i, run.times(start, to_i)))
        f = run.rest(i) if coupled else run.act(0, g.op("Add", of_f, run.times(start, to_f)))
        new, live = run.act(1, of_n), lives[t]
        keeps[t] = f if live is None else g.op("Add", run.times(f, live), run.rest(live))
        cell = g.op("Add", run.times(keeps[t], start), masked(run.times(i, new), t))
        o = run.act(0, g.op("Add", of_o, run.times(cell, to_o)))
        starts[t], cells[t], gates[t] = start, cell, (i, o, f, new, run.act(2, cell, gate=False))
    carry_h, carry_c, found = run.dh, run.dc, {}
    for t, dy in run.backwards():
        i, o, f, new, shown = gates[t]
        dh = run.total(dy, carry_h)
        if dh is None:  # the last cell alone is read
            assert carry_c is not None
            dh = g.op("Sub", carry_c, carry_c)
        do = masked(run.times(dh, shown, run.slope(0, o)), t)
        dc = run.total(carry_c, masked(run.times(dh, o, run.slope(2, shown)), t), run.times(do, to_o))
        assert dc is not None
        gained = g.op("Sub", new, starts[t]) if coupled else new
        di = masked(run.times(dc, gained, run.slope(0, i)), t)
        df = g.op("Sub", f, f) if coupled else masked(run.times(dc, starts[t], run.slope(0, f)), t)
        dn = masked(run.times(dc, i, run.slope(1, new)), t)
        found[t] = g.op("Concat", di, do, df, dn, axis=2)
        carry_h = run.total(g.op("MatMul", found[t], run.r), run.kept(t, dh))
        carry_c = run.total(run.times(dc, keeps[t]), run.times(di, to_i), run.times(df, to_f))
    assert carry_h is not None
    of_all, started, ended = (
        run.joined([values[t] for t in range(run.steps)]) for values in (found, starts, cells)
    )
    di, do, df, _ = run.split(of_all, 2, 4)
    seen = [
        g.op("ReduceSum", run.times(gate, cell), g.ints(0, 1), keepdims=0)
        for gate, cell in ((di, started), (do, ended), (df, started))
    ]
    peepholes = g.op("Concat", *seen, axis=0)
    return _Found(of_all, of_all, run.product(of_all, 4, before), carry_h, carry_c, peepholes)


# --- the layer ------------------------------------------------------------------------------------


def _activations(op: Op, directions: int) -> list[tuple[Activation, ...]]:
    """Per direction; NotDifferentiableError for what has no rule."""
    defaults = _DEFAULTS[op.op_type]
    given = op.attrs.get("activations")
    names = [v.decode().lower() for v in given if isinstance(v, bytes)] if isinstance(given, list) else []
    names = names or list(defaults) * directions
    if set(names) - ACTIVATIONS.keys() or len(names) != len(defaults) * directions:
        what = f"its activations are {', '.join(names)}"
        known = ", ".join(sorted(spelt for spelt, _, _ in ACTIVATIONS.values()))
        raise NotDifferentiableError(op, what, f"known are {known}")
    alphas, betas = (iter(_numbers(op, f"activation_{name}")) for name in ("alpha", "beta"))
    found = []
    for name in names:  # alpha and beta are listed for those that take one, in order
        _, alpha, beta = ACTIVATIONS[name]
        alpha = 0.0 if alpha is None else next(alphas, alpha)
        found.append(Activation(name, alpha, 0.0 if beta is None else next(betas, beta)))
        if name == "scaledtanh" and not alpha:
            raise NotDifferentiableError(op, "its ScaledTanh has an alpha of 0", "give it another one")
    per = len(defaults)
    return [tuple(found[d * per : (d + 1) * per]) for d in range(directions)]


def _numbers(op: Op, attribute: str) -> list[float]:
    values = op.attrs.get(attribute)
    return [float(v) for v in values if isinstance(v, (int, float))] if isinstance(values, list) else []


def _live(g: GradientBuilder, op: Op, steps: int, like: str) -> str | None:
    """[S,N,1]: 1 while a sequence lasts; None where all last to the end."""
    lengths = op.inputs[4] if len(op.inputs) > 4 else ""
    known = g.constant(lengths) if lengths else None
    if not lengths or (known is not None and (known >= steps).all()):
        return None
    places = g.const(np.arange(steps, dtype=g.dtype(lengths)).reshape(steps, 1))
    lasts = g.op("Less", places, g.op("Unsqueeze", lengths, g.ints(0)))
    return g.op("Unsqueeze", g.cast(lasts, g.dtype(like)), g.ints(2))


def _refuse_projection(g: GradientBuilder, op: Op, hidden: int) -> None:
    """NotDifferentiableError for a cell state that is wider than the hidden one, which ONNX does not have.

    PyTorch's exporter writes nn.LSTM(…, proj_size=…) so, without the projection and with parts of the gates.
    """
    known = g.shape(op.inputs[6]) if op.op_type == "LSTM" and len(op.inputs) > 6 and op.inputs[6] else None
    if known and isinstance(known[-1], int) and known[-1] != hidden:
        raise NotDifferentiableError(
            op,
            f"its cell has {known[-1]} numbers and its hidden state {hidden}: ONNX's LSTM has no projection,"
            " and the exporter wrote another layer",
            "leave proj_size out of nn.LSTM, and project its output with an nn.Linear behind it",
        )


@rule("RNN", "GRU", "LSTM")
def _recurrent(g: GradientBuilder, op: Op, dys: Gradients, wants: Wants) -> Gradients:
    """Through time: both directions, first states, lengths of sequences, either layout, a GRU's reset gate
    before or after its product, an LSTM's peepholes and coupled gates, clip; all activations.
    """
    kind, (x, w, r) = op.op_type, op.inputs[:3]
    batch_first = bool(op.integer("layout", 0))
    (steps,) = g.static_dims(op, x, [1 if batch_first else 0])
    directions, _, hidden = g.static_dims(op, r, range(3))
    (inputs,) = g.static_dims(op, w, [2])
    gates = _GATES[kind] * hidden
    _refuse_projection(g, op, hidden)
    if not steps:
        raise NotDifferentiableError(op, "it runs no step", "give its sequences a length of 1 or more")
    single = directions == 1

    def turned(value: str | None, perm: list[int]) -> str | None:
        return g.op("Transpose", value, perm=perm) if value and batch_first else value

    def optional(position: int) -> str | None:
        return op.inputs[position] or None if position < len(op.inputs) else None

    def of(value: str | None, axis: int, d: int) -> str | None:
        """A direction's own part, without its axis."""
        if value is None:
            return None
        if single:
            return g.op("Squeeze", value, g.ints(axis))
        return g.op("Gather", value, g.const(np.array(d, np.int64)), axis=axis)

    def state(value: str | None, d: int) -> str | None:
        """A direction's own part [1,N,H] of [D,N,H]."""
        return value if value is None or single else g.op("Slice", value, g.ints(d), g.ints(d + 1), g.ints(0))

    gradients = [*dys, None, None, None]
    states = turned(g.extra_output(op, 0, f"{next(filter(None, op.outputs))}_states"), [1, 2, 0, 3])
    dy = turned(gradients[0], [1, 2, 0, 3])
    dh, dc = (turned(d, [1, 0, 2]) for d in gradients[1:3])
    h0, c0 = (turned(optional(p), [1, 0, 2]) for p in (5, 6))
    xs, bias, live = turned(x, [1, 0, 2]), optional(3), _live(g, op, steps, x)
    names = _activations(op, directions)
    backward = op.text("direction", "forward") == "reverse"
    found: list[_Found] = []
    runs: list[Run] = []
    for d in range(directions):
        own_bias = of(bias, 0, d)
        wb, rb = (None, None) if own_bias is None else g.op_n(
            "Split", 2, own_bias, g.ints(gates, gates), axis=0
        )  # fmt: skip
        parts = (xs, of(w, 0, d), of(r, 0, d), of(states, 1, d))
        run_x, run_w, run_r, run_states = (str(v) for v in parts)
        run = Run(
            g, steps, hidden, backward or d == 1, names[d], x, run_x, run_w, run_r, wb, rb, state(h0, d),
            state(c0, d), run_states, of(dy, 1, d), state(dh, d), state(dc, d), live,
            max(0.0, op.number("clip", 0.0)),
        )  # fmt: skip
        runs.append(run)
        peepholes, coupled = of(optional(7), 0, d), bool(op.integer("input_forget", 0))
        if kind == "GRU":
            found.append(_gru(run, bool(op.integer("linear_before_reset", 0))))
        elif kind == "RNN":
            found.append(_rnn(run))
        elif peepholes is not None:
            found.append(_lstm_with_peepholes(run, peepholes, coupled))
        else:
            found.append(_lstm(run, coupled))
    return _gathered(g, runs, found, inputs, gates, turned)[: len(op.inputs)]


def _gathered(
    g: GradientBuilder,
    runs: Sequence[Run],
    found: Sequence[_Found],
    inputs: int,
    gates: int,
    turned: Callable[[str | None, list[int]], str | None],
) -> list[str | None]:
    """The layer's gradients from those of its directions."""

    def stacked(values: Sequence[str]) -> str:
        rows = [g.op("Unsqueeze", value, g.ints(0)) for value in values]
        return rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=0)

    def weights(run: Run, one: _Found) -> str:
        rows = g.op("Reshape", one.of_input, g.ints(-1, gates))
        return g.op(
            "MatMul", g.op("Transpose", rows, perm=[1, 0]), g.op("Reshape", run.x, g.ints(-1, inputs))
        )

    def bias(one: _Found) -> str:
        sums = [g.op("ReduceSum", v, g.ints(0, 1), keepdims=0) for v in (one.of_input, one.of_state)]
        return g.op("Concat", *sums, axis=0)

    pairs = list(zip(runs, found, strict=True))
    dx = runs[0].total(*(g.op("MatMul", one.of_input, run.w) for run, one in pairs))
    dh0 = runs[0].joined([one.h0 for one in found])
    dc0 = runs[0].joined([one.c0 for one in found if one.c0 is not None]) if found[0].c0 else None
    return [
        turned(dx, [1, 0, 2]),
        stacked([weights(run, one) for run, one in pairs]),
        stacked([one.r for one in found]),
        stacked([bias(one) for one in found]),
        None,
        turned(dh0, [1, 0, 2]),
        turned(dc0, [1, 0, 2]),
        stacked([one.peepholes for one in found if one.peepholes is not None])
        if found[0].peepholes
        else None,
    ]
