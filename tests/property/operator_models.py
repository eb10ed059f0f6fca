"""ONNX operators of the required subset, each as authors write it and as NumPy says it.

Each takes two F32 values of one shape, (2, 3), and gives one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

Array = np.ndarray


def _image(g: Any, a: Any) -> Any:
    return g.onnx.reshape(a, [1, 1, 2, 3])


def _back(g: Any, a: Any) -> Any:
    return g.onnx.reshape(a, [2, 3])


def _softmax(a: Array) -> Array:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _norm(a: Array) -> Array:
    return (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-1)


def _erf(a: Array) -> Array:
    return np.vectorize(erf)(a)


def _sig(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


ONE = np.ones(1, np.float32)
EYE = np.eye(3, dtype=np.float32)
ONNX: list[tuple[Callable[..., Any], Callable[[Array, Array], Any]]] = [
    (lambda g, a, b: a + b, lambda a, b: a + b),
    (lambda g, a, b: a - b, lambda a, b: a - b),
    (lambda g, a, b: g.onnx.tanh(a) * b, lambda a, b: np.tanh(a) * b),
    (lambda g, a, b: a / (g.onnx.abs(b) + 1.0), lambda a, b: a / (np.abs(b) + 1)),
    (lambda g, a, b: g.onnx.pow(g.onnx.sigmoid(a), 2.0), lambda a, b: _sig(a) ** 2),
    (lambda g, a, b: -a, lambda a, b: -a),
    (lambda g, a, b: g.onnx.sqrt(g.onnx.abs(a) + 0.1), lambda a, b: np.sqrt(np.abs(a) + 0.1)),
    (lambda g, a, b: g.onnx.log(g.onnx.exp(g.onnx.tanh(a))), lambda a, b: np.tanh(a)),
    (lambda g, a, b: g.onnx.identity(g.onnx.relu(a)), lambda a, b: np.maximum(a, 0)),
    (lambda g, a, b: g.onnx.leaky_relu(a, alpha=0.1), lambda a, b: np.where(a > 0, a, a * 0.1)),
    (lambda g, a, b: g.onnx.gelu(a), lambda a, b: a * 0.5 * (1 + _erf(a / np.sqrt(2)))),
    (lambda g, a, b: a @ g.constant(EYE * 0.5), lambda a, b: a * 0.5),
    (lambda g, a, b: g.onnx.gemm(a, g.constant(EYE), b, alpha=0.5), lambda a, b: a * 0.5 + b),
    (lambda g, a, b: g.onnx.softmax(a, axis=1), lambda a, b: _softmax(a)),
    (lambda g, a, b: g.onnx.transpose(g.onnx.transpose(a, perm=[1, 0]), perm=[1, 0]), lambda a, b: a),
    (lambda g, a, b: g.onnx.concat([a[0:1], b[1:2]], axis=0), lambda a, b: np.stack([a[0], b[1]])),
    (
        lambda g, a, b: g.onnx.concat(g.onnx.split(a, num_outputs=2, axis=0)[::-1], axis=0),
        lambda a, b: a[::-1],
    ),
    (lambda g, a, b: g.onnx.unsqueeze(g.onnx.squeeze(a[0:1], [0]), [0]) + b, lambda a, b: a[0:1] + b),
    (lambda g, a, b: g.onnx.cast(a < b, to=1), lambda a, b: a < b),
    (
        lambda g, a, b: a + g.onnx.reduce_mean(b, keepdims=1) - g.onnx.reduce_min(b, keepdims=1),
        lambda a, b: a + b.mean() - b.min(),
    ),
    (
        lambda g, a, b: a - g.onnx.reduce_max(b, [1], keepdims=1) + g.onnx.reduce_sum(b, [1], keepdims=1),
        lambda a, b: a - b.max(1, keepdims=True) + b.sum(1, keepdims=True),
    ),
    (lambda g, a, b: g.onnx.where(g.onnx.equal(a, a), b, a), lambda a, b: b),
    (lambda g, a, b: g.onnx.where(g.onnx.greater(a, b), a, b), np.maximum),
    (
        lambda g, a, b: _back(
            g, g.onnx.batch_normalization(_image(g, a), ONE, ONE, ONE * 0, ONE * 4, epsilon=0.0)
        ),
        lambda a, b: a / 2 + 1,
    ),
    (
        lambda g, a, b: g.onnx.layer_normalization(a, g.constant(np.ones(3, np.float32)), epsilon=1e-1),
        lambda a, b: _norm(a),
    ),
    (
        lambda g, a, b: _back(g, g.onnx.conv(_image(g, a), np.full((1, 1, 1, 1), 2, np.float32))),
        lambda a, b: a * 2,
    ),
    (
        lambda g, a, b: b + g.onnx.reshape(g.onnx.max_pool(_image(g, a), kernel_shape=[2, 3]), [1, 1]),
        lambda a, b: b + a.max(),
    ),
    (
        lambda g, a, b: b + g.onnx.reshape(g.onnx.average_pool(_image(g, a), kernel_shape=[2, 3]), [1, 1]),
        lambda a, b: b + a.mean(),
    ),
    (
        lambda g, a, b: b + g.onnx.reshape(g.onnx.global_average_pool(_image(g, a)), [1, 1]),
        lambda a, b: b + a.mean(),
    ),
    (lambda g, a, b: g.onnx.gather(a, g.constant(np.array([1, 0])), axis=0), lambda a, b: a[::-1]),
    (
        lambda g, a, b: g.onnx.scatter(a, g.constant(np.array([[0, 1, 0]])), b[1:2], axis=0),
        lambda a, b: np.where(np.array([[1, 0, 1], [0, 1, 0]]), b[1:2], a),
    ),
]
"""Operators with what NumPy says of them; all keep F32 of `SHAPE`."""
