"""scikit-learn's networks as skl2onnx writes them: gradients against scikit-learn's own backpropagation.

`sklearn_models/make_fixtures.py` made the files; the gradients there are those of the mean loss, in float64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bb_host.errors import LearnError
from bb_host.learn import trainable

FOLDER = Path(__file__).with_name("sklearn_models")


@pytest.mark.parametrize("name", ["classifier", "two_classes", "regressor"])
def test_gradients_are_those_of_scikit_learn(name, runtime):
    arrays = np.load(FOLDER / f"{name}.npz")
    # Labels come with probabilities; learning needs what lies before both.
    output = None if name == "regressor" else str(arrays["at"])
    model = trainable(FOLDER / f"{name}.onnx", output=output)
    gradient = model.gradient
    assert gradient is not None
    inputs = {"X": arrays["x"], **model.model.parameters}
    results = runtime(gradient.forward, inputs)
    np.testing.assert_allclose(results[gradient.forward.outputs[0]], arrays["y"], rtol=1e-5, atol=1e-6)
    seed = {gradient.backward.inputs[-1]: arrays["seed"].astype(np.float32)}
    found = runtime(gradient.backward, {**inputs, **results, **seed})
    assert {f"d:{name}" for name in gradient.wrt} == {key for key in arrays if key.startswith("d:")}
    for parameter, output in zip(gradient.wrt, gradient.backward.outputs, strict=True):
        np.testing.assert_allclose(found[output], arrays[f"d:{parameter}"], rtol=1e-4, atol=1e-7)


def test_a_classifier_with_its_labels_says_what_to_name():
    with pytest.raises(LearnError, match=r"2 outputs .* output='probabilities'"):
        trainable(FOLDER / "classifier.onnx")
    (warning,) = trainable(FOLDER / "classifier.onnx", output="probabilities").warnings()
    assert f"output={str(np.load(FOLDER / 'classifier.npz')['at'])!r}" in warning.hint
