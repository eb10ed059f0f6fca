"""Whole Keras models, as tf2onnx writes them: what is learned, output and gradients against TensorFlow's own.

`keras_models/make_fixtures.py` made the files. Recurrent layers that ONNX has no operator for are loops in
them; those are trained step by step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bb_host.learn import join_inputs, trainable

FOLDER = Path(__file__).with_name("keras_models")
MODELS = sorted(p.stem for p in FOLDER.glob("*.onnx"))
CONSTANTS = {
    "unet_bilinear": {"scales of Resize"},
    "images.keras2": {"running mean of", "running variance of"},
}
"""Numbers of several entries that are none of the model's parameters."""
WARNINGS = {"images.keras2": {"frozen-statistics"}, "masked.keras2": {"shared-parameter"}}
"""Keras 2 writes a masked cell once before its loop, for its shape alone, and loses its variables' names."""


def fixture(name, **settings):
    path = FOLDER / f"{name}.onnx"
    arrays = np.load(FOLDER / f"{name}.npz")
    if "x1" not in arrays:
        return trainable(path, **settings), arrays, arrays["x0"]
    given = {"sensors": arrays["x0"], "kind": arrays["x1"]}
    rows = [given[v.name].reshape(2, -1) for v in onnx.load(path).graph.input]
    return trainable(join_inputs(path), **settings), arrays, np.concatenate(rows, axis=1, dtype=np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_tensorflow(name, runtime, as_model):
    model, arrays, x = fixture(name)
    gradient = model.gradient
    assert gradient.unreached == ()
    inputs = {model.model.inputs[0]: x, **model.model.parameters}
    as_model(gradient.forward)  # which checks them by ONNX's own checker
    as_model(gradient.backward)
    results = runtime(gradient.forward, inputs)
    np.testing.assert_allclose(results[gradient.forward.outputs[0]], arrays["y"], rtol=1e-4, atol=1e-5)
    found = runtime(gradient.backward, {**inputs, **results, gradient.backward.inputs[-1]: arrays["seed"]})
    expected = {key[2:]: arrays[key] for key in arrays if key.startswith("d:")}
    largest = max(np.nanmax(np.abs(want)) for want in expected.values())
    for parameter, output in zip(gradient.wrt, gradient.backward.outputs, strict=True):
        if parameter in expected:
            want = expected[parameter]
            got = np.where(np.isnan(want), np.nan, found[output])
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=4e-6 * largest, err_msg=parameter)


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_is_learned_and_nothing_else(name):
    model, arrays, _ = fixture(name, loss="mse")
    variables = {key[2:] for key in arrays if key.startswith("d:")}
    others = {i.name: i.why for i in model.initializers if not i.learned}
    learned = {i.name for i in model.initializers if i.learned}
    assert variables <= learned <= variables | set(arrays["computed"].tolist())
    whys = [others[v] for v in arrays["computed"].tolist() if v in others]
    assert len(whys) == len(CONSTANTS.get(name, ()))
    assert all(any(why.startswith(known) for known in CONSTANTS[name]) for why in whys)


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_read_a_parameter_in_each_step_are_no_shared_ones(name):
    codes = {w.code for w in fixture(name, loss="mse")[0].warnings()}
    assert codes == WARNINGS.get(name, set())


@pytest.mark.parametrize("name", sorted({*MODELS} - {"causal", "patches"}))  # their attention joins axes
def test_nothing_asks_on_the_device_by_which_axes_a_gradient_is_summed(name):
    """TensorFlow's exporter calls the batch of the output otherwise than that of the input: they are one."""
    functions = {f.name: f for f in fixture(name, loss="mse")[0].construct("m").functions}
    assert not [op.name for op in functions["m.fit"].ops if op.op_type == "NonZero"]


def test_steps_of_a_loop_are_of_the_size_of_the_batch(runtime):
    """A loop's state of zeros is made in the size of the batch: shapes of any batch are known by name."""
    model, _, x = fixture("gru")
    gradient = model.gradient
    batch = gradient.forward.types[model.model.inputs[0]].shape[0]
    kept = [gradient.forward.types[v].shape for v in gradient.activations]
    assert all(shape is not None and set(shape) <= {batch} | set(range(100)) for shape in kept)
    three = np.concatenate([x, x[:1]])
    results = runtime(gradient.forward, {model.model.inputs[0]: three, **model.model.parameters})
    y = results[gradient.forward.outputs[0]]
    np.testing.assert_allclose(y[2], y[0], rtol=1e-5)
