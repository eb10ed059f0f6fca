"""Loops of a model whose number of steps is known are trained step by step; others are told."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from bb_host.learn import trainable, unrolled_loops
from bb_host.learn.onnx_import import import_onnx

EMPTY = '""'
W = np.array([[0.3, -0.2], [0.1, 0.4]], np.float32)

LOOP = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 4, 2] x) => (float[N, 2] y) {
  xt = Transpose <perm = [1, 0, 2]> (x)
  start = Constant <value = int64 {0}> ()
  size = Shape <start = 0, end = 1> (x)
  width = Constant <value = int64[1] {2}> ()
  shape = Concat <axis = 0> (size, width)
  zero = Constant <value = float {0.0}> ()
  zeros = Expand (zero, shape)
  CONSTANTS
  time, last, all = Loop <body = step (int64 i, bool c, int64 t, float[a, b] h)
    => (bool c2, int64 t2, float[d, e] h2, float[f, g] out) {
      one = Constant <value = int64 {1}> ()
      t2 = Add (t, one)
      xi = Gather (xt, t)
      hw = MatMul (h, w)
      total = Add (xi, hw)
      h2 = Tanh (total)
      out = Identity (h2)
      end = Constant <value = int64 {END}> ()
      c2 = Less (t2, end)
    }> (GIVEN, start, zeros)
  axis = Constant <value = int64[1] {0}> ()
  mean = ReduceMean <axes = [0], keepdims = 0> (all)
  y = Add (mean, last)
}"""


def loop(most=None, go=None, end=4):
    """A loop of at most `most` steps that goes on while its counter is below `end`."""
    lines = []
    if most is not None:
        lines.append(f"  most = Constant <value = int64 {{{most}}}> ()")
    if go is not None:
        lines.append(f"  go = Constant <value = bool {{{int(go)}}}> ()")
    given = f"{'most' if most is not None else EMPTY}, {'go' if go is not None else EMPTY}"
    return weighted(
        LOOP.replace("GIVEN", given).replace("  CONSTANTS", "\n".join(lines)).replace("END", str(end))
    )


def weighted(text, *names):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(W, name) for name in names or ("w",))
    onnx.checker.check_model(model)
    return model


def states(x, w=W):
    """The state after each step, [S,N,H]."""
    h, found = np.zeros((len(x), 2), w.dtype), []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] + h @ w)
        found.append(h)
    return np.array(found)


def expected(x, w=W):
    return states(x, w).mean(axis=0) + states(x, w)[-1]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"most": 3, "go": True}, 3),
        ({"most": 4}, 4),
        ({"go": True, "end": 2}, 2),
        ({"most": 100, "go": True, "end": 4}, 4),
    ],
)
def test_a_loop_becomes_its_steps(settings, steps, runtime):
    model = trainable(loop(**settings), loss="mse")
    assert [i.name for i in model.initializers if i.learned] == ["w"]
    assert not model.warnings()
    assert not any(op.op_type == "Loop" for op in model.gradient.forward.ops)
    x = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    results = runtime(model.gradient.forward, {model.model.inputs[0]: x, **model.model.parameters})
    np.testing.assert_allclose(results["y"], expected(x[:, :steps]), rtol=1e-5)


def test_the_gradient_goes_through_all_steps(runtime):
    gradient = trainable(loop(most=4, go=True), loss="mse").gradient
    x = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    inputs = {"x": x, "w": W}
    results = runtime(gradient.forward, inputs)
    seed = np.ones((3, 2), np.float32)
    (found,) = runtime(gradient.backward, {**inputs, **results, gradient.backward.inputs[-1]: seed}).values()
    wanted = np.zeros(W.shape)
    for index in np.ndindex(W.shape):
        step = np.zeros(W.shape)
        step[index] = 1e-6
        wanted[index] = (expected(x, W + step).sum() - expected(x, W - step).sum()) / 2e-6
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


SCAN = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 4, 2] x) => (float[2, 2] last, float[2, 4, 2] all) {
  zeros = Constant <value = float[2, 2] {0.0, 0.0, 0.0, 0.0}> ()
  last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
    scan_input_directions = [TURN], scan_output_directions = [TURN],
    body = step (float[2, 2] h, float[2, 2] xi) => (float[2, 2] h2, float[2, 2] out) {
      hw = MatMul (h, w)
      total = Add (xi, hw)
      h2 = Tanh (total)
      out = Identity (h2)
    }> (zeros, x)
}"""


@pytest.mark.parametrize("turned", [0, 1])
def test_a_scan_becomes_its_steps_in_either_direction(turned, runtime):
    proto = weighted(SCAN.replace("TURN", str(turned)))
    model = import_onnx(proto)
    assert "w" in model.parameters
    x = np.random.default_rng(0).standard_normal((2, 4, 2)).astype(np.float32)
    results = runtime(model.function, {"x": x, "w": W})
    found = states(x[:, ::-1])[::-1] if turned else states(x)
    np.testing.assert_allclose(results["last"], found[0 if turned else -1], rtol=1e-5)
    np.testing.assert_allclose(results["all"], found.swapaxes(0, 1), rtol=1e-5)


HEAD = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 2] x) => (float[N, 2] y) {
  size = Shape <start = 0, end = 1> (x)
  most = Squeeze (size)
  go = Constant <value = bool {1}> ()
  zeros = Constant <value = float[1, 2] {0.0, 0.0}> ()
  last = Loop <body = step (int64 i, bool c, float[a, b] h) => (bool c2, float[d, e] h2) {
      c2 = Identity (c)
      h2 = MatMul (h, w)
    }> (most, go, zeros)
  xv = MatMul (x, v)
  y = Add (xv, last)
}"""


def test_weights_of_a_loop_of_unknown_steps_are_a_warning():
    model = weighted(HEAD, "w", "v")
    (warning,) = trainable(model, loss="mse").warnings()
    assert warning.code == "weights-in-loop"
    assert "'w'" in str(warning) and "fixed length" in warning.hint
    assert trainable(model, loss="mse", frozen=["w"]).warnings() == ()


def test_a_loop_of_too_many_steps_stays_a_loop(monkeypatch):
    monkeypatch.setattr(unrolled_loops, "MAX_OPS", 10)
    ops = [op.op_type for op in import_onnx(loop(most=4, go=True)).function.ops]
    assert "Loop" in ops
