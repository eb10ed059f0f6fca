"""Makes the fixtures of this folder: scikit-learn's networks as skl2onnx writes them, and their gradients.

Run with scikit-learn 1.8, skl2onnx 1.20, onnx and NumPy. Each `NAME.onnx` is what skl2onnx wrote, whole; each
`.npz` holds the input `x`, the output `at` (the value to cut the model at: what the last layer gives, before
its softmax or logistic), its gradient `seed` and value `y`, and under `d:` before the initializer's name the
gradient of the mean loss that scikit-learn's own backpropagation computes in float64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier, MLPRegressor

HERE = Path(__file__).parent


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 5)).astype(np.float32)
    three = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 0.5)
    same = {"max_iter": 30, "random_state": 0, "alpha": 0.0}
    make("classifier", MLPClassifier((4,), activation="tanh", **same), x, three)
    make("two_classes", MLPClassifier((4, 3), activation="relu", **same), x, (three > 0).astype(int))
    make("regressor", MLPRegressor(hidden_layer_sizes=(4,), activation="logistic", **same), x, x[:, 0] * 2)


def make(name: str, model: MLPClassifier | MLPRegressor, x: np.ndarray, target: np.ndarray) -> None:
    model.fit(x.astype(np.float64), target)
    options = {"zipmap": False} if isinstance(model, MLPClassifier) else None
    # A batch of open size, as users declare it.
    proto = to_onnx(model, x[:1], options=options)
    onnx.save(proto, HERE / f"{name}.onnx")
    at = [n.output[0] for n in proto.graph.node if n.op_type == "Add"][-1]
    if isinstance(model, MLPClassifier):
        encoded = model._label_binarizer.transform(target)
    else:
        encoded = target.reshape(-1, 1)
    # Parameters as the file holds them, in float32; the gradient in float64.
    weights = [w.astype(np.float32).astype(np.float64) for w in model.coefs_]
    biases = [b.astype(np.float32).astype(np.float64) for b in model.intercepts_]
    model.coefs_, model.intercepts_ = weights, biases
    layers = [x.astype(np.float64), *(np.empty((len(x), w.shape[1])) for w in weights)]
    deltas = [np.empty_like(a) for a in layers[1:]]
    grads = [np.empty_like(w) for w in weights], [np.empty_like(b) for b in biases]
    _, d_weights, d_biases = model._backprop(layers[0], encoded, None, layers, deltas, *grads)
    arrays = {
        "x": x,
        "at": np.array(at),
        "seed": deltas[-1] / len(x),
        "y": layers[-2] @ weights[-1] + biases[-1],
    }
    for place, (d_weight, d_bias) in enumerate(zip(d_weights, d_biases, strict=True)):
        suffix = str(place) if place else ""
        arrays[f"d:coefficient{suffix}"] = d_weight
        arrays[f"d:intercepts{suffix}"] = d_bias.reshape(1, -1)
    np.savez_compressed(HERE / f"{name}.npz", **arrays)
    print(name, at, [n.op_type for n in proto.graph.node])


if __name__ == "__main__":
    main()
