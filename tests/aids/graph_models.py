"""A two-layer network as a device builds it, and its gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bb_edge.components import GraphModel
from bb_host.learn import TrainableModel, mlp, trainable
from tests.aids.learners import component

N, D, H, C = 6, 5, 4, 3
"""Rows of a batch, inputs, hidden units, outputs."""


def network() -> TrainableModel:
    return trainable(mlp([D, H, C], seed=1))


def parameters() -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in network().model.parameters.items()}


def built(model: TrainableModel, *ops: str, **config: object) -> GraphModel:
    """The component with the graphs that these ops need, and further configuration."""
    return component(model, config=config, ops=ops)


def forward_of(p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


def flat(p: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in p.values()])


def parameter_gradient(x: np.ndarray, dz: np.ndarray) -> np.ndarray:
    """d sum(dz * z) / d parameters, 1-D f64."""
    p = {name: array.astype(np.float64) for name, array in parameters().items()}
    x64, dz64 = x.astype(np.float64), dz.astype(np.float64)
    return np.concatenate(
        [
            _differences(array, lambda: float((dz64 * forward_of(p, x64)).sum())).ravel()
            for array in p.values()
        ]
    )


def input_gradient(x: np.ndarray, dz: np.ndarray) -> np.ndarray:
    """d sum(dz * z) / dx, f64, as x in shape."""
    p = {name: array.astype(np.float64) for name, array in parameters().items()}
    x64, dz64 = x.astype(np.float64), dz.astype(np.float64)
    return _differences(x64, lambda: float((dz64 * forward_of(p, x64)).sum()))


def _differences(array: np.ndarray, value: Callable[[], float]) -> np.ndarray:
    """d value / d array by central differences; the array is moved in place and put back."""
    found = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept, ends = array[index], []
        for sign in (1, -1):
            array[index] = kept + sign * 1e-5
            ends.append(value())
        array[index] = kept
        found[index] = (ends[0] - ends[1]) / 2e-5
    return found
