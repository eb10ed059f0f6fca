"""A TFLite graph in memory: tensors by index, operators in order, one subgraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bb_host.ir.program import Array
from bb_host.tflite.schema import NONE, OPERATORS

Option: TypeAlias = "int | float | bool"

DYNAMIC = -1
"""A dimension that a device resizes; the first one alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """real = scale · (stored - zero_point); one entry per tensor, or one per index of `axis`."""

    scale: Array
    zero_point: Array
    axis: int = 0


@dataclass(slots=True, eq=False)
class Tensor:
    """`data` is a constant's contents; `dtype` is NumPy's name of the stored type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    data: Array | None = None
    quantization: Quantization | None = None


@dataclass(slots=True, eq=False)
class Operator:
    """`kind` is the schema's name (`CONV_2D`); an input of -1 is left out."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Option] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TfliteGraph:
    """Grows by `input`, `constant` and `op`; each gives the index of a tensor."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        data: Array | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        """A new tensor, not yet produced by anything."""
        self.tensors.append(Tensor(name, tuple(int(d) for d in shape), dtype, data, quantization))
        return len(self.tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> int:
        """The next input of the subgraph."""
        index = self.tensor(name, shape, dtype)
        self.inputs.append(index)
        return index

    def constant(self, data: Array, name: str = "", quantization: Quantization | None = None) -> int:
        """A constant, stored in C order."""
        data = np.asarray(data, order="C")
        return self.tensor(name or f"c{len(self.tensors)}", data.shape, str(data.dtype), data, quantization)

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        dtype: str = "float32",
        options: Mapping[str, Option] | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        """An operator with one result, whose index is returned. It has no activation where none is named."""
        result = self.tensor(f"t{len(self.tensors)}", shape, dtype, None, quantization)
        said = dict(options or {})
        if kind in OPERATORS and "act" in OPERATORS[kind].slots:  # the writer refuses others
            said.setdefault("act", NONE)
        self.operators.append(Operator(kind, tuple(inputs), (result,), said))
        return result

    def shape(self, index: int) -> tuple[int, ...]:
        return self.tensors[index].shape

    def producers(self) -> dict[int, Operator]:
        """The operator that makes each tensor."""
        return {result: op for op in self.operators for result in op.outputs}

    def readers(self) -> dict[int, list[Operator]]:
        """The operators that read each tensor, in order; who reads the graph's outputs is not among them."""
        found: dict[int, list[Operator]] = {}
        for op in self.operators:
            for index in op.inputs:
                if index >= 0:
                    found.setdefault(index, []).append(op)
        return found
