"""Random models, cleaned up, against onnxruntime on what they were; cleaning twice changes nothing more."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from bb_host.ir.program import Function
from bb_host.passes.tensor.cleaning import clean_up

PERMS = ([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 2, 3], [0, 1, 3, 2])


class Builder:
    """Values of rank 4 with their shapes, and text that makes more of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}
        self.values: list[tuple[str, tuple[int, ...]]] = [("x", (1, 4, 5, 6))]

    def weight(self, *shape: int, positive: bool = False) -> str:
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape).astype(np.float32) * 0.5
        self.weights[name] = np.abs(array) + 0.5 if positive else array
        return name

    def add(self, text: str, shape: tuple[int, ...]) -> None:
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {text}")
        self.values.append((name, shape))

    def step(self) -> None:
        name, shape = self.random.choice(self.values[-3:])
        kind = self.random.randrange(11)
        if kind < 3:
            perm = self.random.choice(PERMS)
            self.add(f"Transpose <perm = {perm}> ({name})", tuple(shape[axis] for axis in perm))
        elif kind == 3:
            self.add(f"{self.random.choice(['Identity', 'Relu', 'Sigmoid', 'Dropout'])} ({name})", shape)
        elif kind == 4:
            other = next((v for v, s in reversed(self.values) if s == shape), name)
            self.add(f"{self.random.choice(['Add', 'Mul', 'Max'])} ({name}, {other})", shape)
        elif kind == 5:
            dims = shape[self.random.randrange(4) :]
            self.add(f"Add ({name}, {self.weight(*dims)})", shape)
        elif kind == 6:
            maps = self.random.choice([2, 4])
            w = self.weight(maps, shape[1], 1, 1)
            self.add(f"Conv ({name}, {w})", (shape[0], maps, *shape[2:]))
        elif kind == 7:
            c = shape[1]
            parts = [self.weight(c) for _ in range(3)] + [self.weight(c, positive=True)]
            self.add(f"BatchNormalization ({name}, {', '.join(parts)})", shape)
        elif kind == 8:
            axis = self.random.randrange(-3, 4)
            axis = axis if axis % 4 else 1
            longer = [d * 2 if i == axis % 4 else d for i, d in enumerate(shape)]
            if np.prod(longer) < 20_000:
                self.add(f"Concat <axis = {axis}> ({name}, {name})", tuple(longer))
        elif kind == 9:
            axes = sorted(self.random.sample([1, 2, 3], 2))
            kept = tuple(1 if i in axes else d for i, d in enumerate(shape))
            self.add(f"ReduceMean <axes = {axes}> ({name})", kept)
        else:
            self.add(f"Cast <to = 1> ({name})", shape)

    def text(self) -> str:
        for _ in range(14):
            self.step()
        ends = [self.values[-1], self.random.choice(self.values[1:])]
        names = list(dict.fromkeys(name for name, _ in ends))
        shapes = dict(self.values)
        outputs = ", ".join(f"float[{', '.join(map(str, shapes[name]))}] {name}" for name in names)
        return f"g (float[1, 4, 5, 6] x) => ({outputs}) {{ {'  '.join(self.lines)} }}"


@pytest.mark.parametrize("seed", range(60))
def test_cleaning_keeps_the_results(
    seed: int, function: Callable[..., Function], same_results: Callable[..., None]
) -> None:
    builder = Builder(seed)
    before = function(builder.text(), 13, **builder.weights)
    after = clean_up(before)
    x = builder.rng.standard_normal((1, 4, 5, 6)).astype(np.float32)
    same_results(before, after, {"x": x}, rtol=1e-4)
    assert clean_up(after) is after
    n_before = sum(op.op_type == "Transpose" for op in before.ops)
    assert sum(op.op_type == "Transpose" for op in after.ops) <= n_before
