"""Whole PyTorch models, as both of its exporters write them: output and gradients against PyTorch's own.

`torch_models/make_fixtures.py` made the files; the gradients there are PyTorch's, in float64. Here the models
run in float32 on the device's kernels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_host.learn import trainable

FOLDER = Path(__file__).with_name("torch_models")
TRAIN = {"products.script": ["gain"]}
"""Names without a path before the first layer, which would be taken for a normalisation of the input."""
RENAMED = {
    "group_norm.dynamo": ("val_21", "val_23", "val_44", "val_46"),
    "group_norm.script": ("onnx::Mul_50", "onnx::Add_51", "onnx::Mul_52", "onnx::Add_53"),
}
"""What an exporter has unsqueezed and called anew; `group_norm.raw` has their names, and gradients."""
MODELS = sorted(p.stem for p in FOLDER.glob("*.onnx"))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_pytorch(name, runtime, as_model):
    arrays = np.load(FOLDER / f"{name}.npz")
    output = str(arrays["output"]) if "output" in arrays else None
    model = trainable(FOLDER / f"{name}.onnx", train=TRAIN.get(name, ()), output=output)
    gradient = model.gradient
    assert gradient is not None
    assert gradient.unreached == ()
    inputs = {model.model.inputs[0]: arrays["x"], **model.model.parameters}
    as_model(gradient.forward)  # which checks them by ONNX's own checker
    as_model(gradient.backward)
    results = runtime(gradient.forward, inputs)
    np.testing.assert_allclose(results[gradient.forward.outputs[0]], arrays["y"], rtol=1e-4, atol=1e-5)
    seed = {gradient.backward.inputs[-1]: arrays["seed"].astype(np.float32)}
    found = runtime(gradient.backward, {**inputs, **results, **seed})
    expected = {key[2:]: arrays[key] for key in arrays if key.startswith("d:")}
    if name in RENAMED:
        raw = np.load(FOLDER / "group_norm.raw.npz")
        own = (f"d:norm{layer}.{part}" for layer in (1, 2) for part in ("weight", "bias"))
        expected |= {new: raw[old].reshape(-1, 1, 1) for new, old in zip(RENAMED[name], own, strict=True)}
    assert set(gradient.wrt) == set(expected)
    largest = max(np.abs(want).max() for want in expected.values())
    for parameter, output in zip(gradient.wrt, gradient.backward.outputs, strict=True):
        np.testing.assert_allclose(
            found[output], expected[parameter], rtol=1e-4, atol=2e-6 * largest, err_msg=parameter
        )


@pytest.mark.parametrize(
    "name", ["gru.raw", "lstm.raw", "gru_stacked.raw", "decoder.dynamo", "decoder.script"]
)
def test_gates_that_are_cut_out_of_one_weight_are_no_shared_parameters(name):
    assert trainable(FOLDER / f"{name}.onnx", loss="mse").warnings() == ()


@pytest.mark.parametrize("name", [name for name in MODELS if ".script" in name])
def test_the_loss_joins_the_graph(name, as_model):
    """What `train` steps by: loss and gradients of a batch in one graph, by ONNX's own checker."""
    arrays = np.load(FOLDER / f"{name}.npz")
    output = str(arrays["output"]) if "output" in arrays else None
    model = trainable(FOLDER / f"{name}.onnx", loss="mse", output=output)
    functions = {f.name: f for f in model.construct("m").functions}
    as_model(functions["m.fit"])
    # The older exporter gives the batch of the output a name of its own: it is that of the input.
    asks = any(op.op_type == "NonZero" for op in functions["m.fit"].ops)
    assert asks is (name in ("products.script", "sized.script"))  # which compute their own sizes
