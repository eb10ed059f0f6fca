"""Makes the fixtures of this folder: small Keras models as tf2onnx writes them, and their gradients.

With TensorFlow 2.21, Keras 3.15, tf-keras 2.21, tf2onnx 1.17 and NumPy, `python make_fixtures.py [NAME …]`
gives `NAME.onnx` by Keras's own `model.export(format="onnx")`, and with `TF_USE_LEGACY_KERAS=1` before it
`NAME.keras2.onnx` by `tf2onnx.convert.from_keras`, of a model of Keras 2. For each there is a `.npz`: the
inputs `x0`, `x1`, the output's gradient `seed`, the output `y`, and per initializer that holds a variable of
the model, under its name with `d:` before it, the gradient that TensorFlow computes in float32.

Entries of an initializer are told by their values, which are all different: exporters transpose and pack
them. What an exporter has computed of several variables (a scale divided by a deviation) has no gradient in
TensorFlow; such initializers are listed as `computed`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import onnx
import onnx.numpy_helper
import tensorflow as tf
import tf2onnx

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
if LEGACY:
    import tf_keras as keras
else:
    import keras

HERE = Path(__file__).parent
L = keras.layers


def chain(shape: tuple[int, ...], *layers: Any) -> Any:
    return keras.Sequential([keras.Input(shape) if not LEGACY else L.InputLayer(shape), *layers])


def residual() -> Any:
    x = keras.Input((8, 8, 3))
    h = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, strides=2)(L.ZeroPadding2D(1)(x))))
    a = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(h)))
    h = L.ReLU()(L.Add()([h, L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(a))]))
    short = L.BatchNormalization()(L.Conv2D(6, 1, strides=2)(h))
    long = L.BatchNormalization()(L.Conv2D(6, 3, strides=2, padding="same")(h))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling2D()(L.ReLU()(L.Add()([short, long])))))


def mobile() -> Any:
    """Depthwise convolutions, squeeze and excitation, hard activations, whose `x + 3` is not a bias."""
    x = keras.Input((8, 8, 3))
    h = L.Conv2D(4, 3, strides=2, padding="same", use_bias=False)(L.Rescaling(1 / 127.5, offset=-1)(x))
    h = L.ReLU(6.0)(L.BatchNormalization()(h))
    a = L.BatchNormalization()(L.Conv2D(8, 1, use_bias=False)(h))
    a = L.Multiply()([a, L.Activation("hard_sigmoid")(a)])
    a = L.DepthwiseConv2D(3, padding="same", use_bias=False)(a)
    a = L.ReLU(6.0)(L.BatchNormalization()(a))
    squeezed = L.Conv2D(2, 1, activation="relu")(L.GlobalAveragePooling2D(keepdims=True)(a))
    a = L.Multiply()([a, L.Conv2D(8, 1, activation="hard_sigmoid")(squeezed)])
    h = L.Add()([h, L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(a))])
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling2D()(h)))


def unet(mode: str) -> Any:
    x = keras.Input((8, 8, 1))
    a = L.Conv2D(3, 3, padding="same", activation="relu")(x)
    b = L.Conv2D(4, 3, padding="same", activation="elu")(L.MaxPooling2D()(a))
    if mode == "transposed":
        up = L.Conv2DTranspose(4, 3, strides=2, padding="same")(b)
    else:
        up = L.UpSampling2D(2, interpolation=mode)(b)
    return keras.Model(x, L.Conv2D(2, 1)(L.Concatenate()([a, up])))


def patches() -> Any:
    """Attention over the patches of an image."""
    x = keras.Input((8, 8, 1))
    h = L.Reshape((4, 8))(L.Conv2D(8, 4, strides=4)(x))
    n = L.LayerNormalization()(h)
    h = L.Add()([h, L.MultiHeadAttention(2, 4)(n, n)])
    h = L.Add()([h, L.Dense(8)(L.Dense(12, activation=tanh_gelu)(L.LayerNormalization()(h)))])
    return keras.Model(x, L.Dense(2)(L.Flatten()(h)))


def tanh_gelu(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=True)


def causal() -> Any:
    x = keras.Input((5, 8))
    h = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)]))
    return keras.Model(x, L.Dense(3)(h))


def scaled_attention() -> Any:
    """The scale of this attention is a variable, a single number."""
    x = keras.Input((3, 4))
    return keras.Model(x, L.Dense(2)(L.Attention(use_scale=True)([x, L.Dense(4)(x)])))


def masked() -> Any:
    x = keras.Input((6,), dtype="int32")
    return keras.Model(x, L.Dense(2)(L.LSTM(3)(L.Embedding(7, 4, mask_zero=True)(x))))


def two_inputs() -> Any:
    sensors, kind = keras.Input((4,), name="sensors"), keras.Input((), dtype="int32", name="kind")
    both = L.Concatenate()([sensors, L.Embedding(5, 3)(kind)])
    return keras.Model([sensors, kind], L.Dense(2)(L.Dense(4, activation="tanh")(both)))


def autoencoder() -> Any:
    return chain(
        (8, 8, 1),
        L.Conv2D(3, 3, strides=2, padding="same", activation="relu"),
        L.Flatten(),
        L.Dense(4),
        L.Dense(48, activation="relu"),
        L.Reshape((4, 4, 3)),
        L.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid"),
        L.Cropping2D(1),
    )


def images() -> Any:
    return chain(
        (8, 8, 2),
        L.Conv2D(4, 3, padding="same", use_bias=False),
        L.BatchNormalization(),
        L.ReLU(),
        L.MaxPooling2D(),
        L.SeparableConv2D(6, 3, padding="same"),
        L.BatchNormalization(),
        L.Activation("relu"),
        L.Conv2D(4, 3, strides=2, padding="same", activation="swish"),
        L.GlobalAveragePooling2D(),
        L.Dropout(0.3),
        L.Dense(3),
    )


def signals() -> Any:
    return chain(
        (12, 3),
        L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu"),
        L.MaxPooling1D(2),
        L.SeparableConv1D(4, 3, padding="same", activation="softplus"),
        L.Cropping1D(1),
        L.UpSampling1D(2),
        L.GlobalMaxPooling1D(),
        L.Dense(2),
    )


def table() -> Any:
    layers = [L.Dense(8, use_bias=False), L.BatchNormalization(), L.LeakyReLU(), L.Dense(5), L.PReLU()]
    return chain((6,), *layers, L.Dropout(0.5), L.Dense(3, activation="softmax"))


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "table": (table, (2, 6)),
    "images": (images, (2, 8, 8, 2)),
    "residual": (residual, (2, 8, 8, 3)),
    "mobile": (mobile, (2, 8, 8, 3)),
    "unet_bilinear": (lambda: unet("bilinear"), (2, 8, 8, 1)),
    "unet_transposed": (lambda: unet("transposed"), (2, 8, 8, 1)),
    "autoencoder": (autoencoder, (2, 8, 8, 1)),
    "signals": (signals, (2, 12, 3)),
    "lstm": (lambda: chain((4, 3), L.LSTM(4, return_sequences=True), L.LSTM(3), L.Dense(2)), (2, 4, 3)),
    "lstm_both_ways": (lambda: chain((4, 3), L.Bidirectional(L.LSTM(3)), L.Dense(2)), (2, 4, 3)),
    "gru": (lambda: chain((4, 3), L.GRU(4, return_sequences=True), L.GRU(3), L.Dense(2)), (2, 4, 3)),
    "gru_both_ways": (
        lambda: chain(
            (3, 3), L.Bidirectional(L.GRU(3, return_sequences=True)), L.TimeDistributed(L.Dense(2))
        ),
        (2, 3, 3),
    ),
    "gru_reset_before": (lambda: chain((4, 3), L.GRU(4, reset_after=False), L.Dense(2)), (2, 4, 3)),
    "rnn": (lambda: chain((4, 3), L.SimpleRNN(4), L.Dense(2)), (2, 4, 3)),
    "masked": (masked, (2, 6)),
    "conv_lstm": (
        lambda: chain((3, 4, 4, 1), L.ConvLSTM2D(2, 3, padding="same"), L.Flatten(), L.Dense(2)),
        (2, 3, 4, 4, 1),
    ),
    "patches": (patches, (2, 8, 8, 1)),
    "causal": (causal, (2, 5, 8)),
    "scaled_attention": (scaled_attention, (2, 3, 4)),
    "two_inputs": (two_inputs, (2, 4)),
}
KERAS2 = ("images", "residual", "lstm", "gru", "gru_reset_before", "rnn", "masked")
"""Models that Keras 2 writes in another way."""


def main(names: list[str]) -> None:
    for name in names or (KERAS2 if LEGACY else MODELS):
        make, shape = MODELS[name]
        keras.utils.set_random_seed(sum(map(ord, name)))
        keras.backend.clear_session()
        model = make()
        rng = np.random.default_rng(1)
        scramble(model, rng)
        inputs = inputs_of(name, shape, rng)
        arrays = {f"x{k}": x for k, x in enumerate(inputs)}
        arrays |= gradients(model, inputs)
        proto = exported(model)
        path = HERE / f"{name}{'.keras2' if LEGACY else ''}.onnx"
        path.write_bytes(proto.SerializeToString(deterministic=True))
        found = {k: v for k, v in arrays.items() if not k.startswith(("v:", "g:"))} | matched(proto, arrays)
        np.savez_compressed(path.with_suffix(".npz"), **found)
        count = sum(key.startswith("d:") for key in found)
        print(f"{path.stem}: {path.stat().st_size} bytes, {count} gradients, computed: {found['computed']}")


def scramble(model: Any, rng: np.random.Generator) -> None:
    """Gives each variable numbers of its own: those of a fresh model are zeros and ones, which tf2onnx merges
    and leaves out."""
    for weight in model.weights:
        if "float" not in str(weight.dtype):
            continue
        values = rng.standard_normal(tuple(weight.shape)) * 0.4 + 0.1
        named = getattr(weight, "path", weight.name)
        weight.assign(np.abs(values) + 0.5 if "variance" in named else values)


def inputs_of(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    if name == "masked":
        ids = rng.integers(1, 7, shape).astype(np.int32)
        ids[0, -2:] = 0
        return [ids]
    first = rng.standard_normal(shape).astype(np.float32)
    return [first, rng.integers(0, 5, shape[0]).astype(np.int32)] if name == "two_inputs" else [first]


def gradients(model: Any, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """`y`, `seed`, and of each trained variable its value (`v:`) and gradient (`g:`)."""
    with tf.GradientTape() as tape:
        y = model(inputs if len(inputs) > 1 else inputs[0], training=False)
        seed = np.random.default_rng(5).standard_normal(y.shape).astype(np.float32)
        loss = tf.reduce_sum(y * seed)
    arrays = {"y": y.numpy(), "seed": seed}
    for k, (variable, gradient) in enumerate(
        zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True)
    ):
        arrays[f"v:{k}"] = variable.numpy()
        arrays[f"g:{k}"] = tf.convert_to_tensor(gradient).numpy()
    return arrays


def exported(model: Any) -> onnx.ModelProto:
    """The model's file without the traces of where it was exported."""
    if LEGACY:
        return tf2onnx.convert.from_keras(model, opset=17)[0]
    with tempfile.TemporaryDirectory() as folder:
        model.export(f"{folder}/net.onnx", format="onnx", verbose=False)
        return onnx.load(f"{folder}/net.onnx")


def matched(proto: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of each initializer that holds a variable; NaN where it holds a zero of the exporter's.

    An LSTM of ONNX has two biases, and one of Keras has one.
    """
    table = {
        float(value): gradient
        for key in arrays
        if key.startswith("v:")
        for value, gradient in zip(arrays[key].flat, arrays[f"g:{key[2:]}"].flat, strict=True)
    }
    found, computed = {}, []
    for initializer in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(initializer)
        if values.dtype != np.float32 or values.size == 0:
            continue
        entries = [table.get(float(value), np.nan) for value in values.flat]
        of_exporter = [value == 0 and values.size > 1 for value in values.flat]
        if not all(np.isnan(entries)) and (np.isnan(entries) <= of_exporter).all():
            found[f"d:{initializer.name}"] = np.reshape(np.array(entries, np.float32), values.shape)
        elif values.size > 1:
            computed.append(initializer.name)
    return {**found, "computed": np.array(computed)}


if __name__ == "__main__":
    main(sys.argv[1:])
