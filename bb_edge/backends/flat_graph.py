"""A flat graph: what lowering makes of a function, and what plans are made of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bb_edge.ir.tensors import Array

OMITTED = -1
"""The number of an input or output that is left out."""


class Body:
    """The graph of an `If` branch or a `Loop`.

    `captures` are the outer values that are appended to its inputs. `output_types` holds (ONNX element type,
    rank) per output, 0 and -1 if not declared. `program` is set by the backend at the first run.
    """

    __slots__ = ("captures", "graph", "output_types", "program")

    def __init__(
        self, graph: FlatGraph, captures: tuple[int, ...], output_types: tuple[tuple[int, int], ...]
    ) -> None:
        self.graph = graph
        self.captures = captures
        self.output_types = output_types
        self.program: object = None


class FlatNode(NamedTuple):
    """One operator.

    `inputs` and `outputs` are value numbers or OMITTED; the captures of its bodies follow its inputs.
    """

    op_type: str
    version: int
    attrs: Mapping[str, object]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str
    bodies: Mapping[str, Body] = MappingProxyType({})
    n_formal: int = 0  # inputs before the captures


class FlatGraph(NamedTuple):
    """Nodes in topological order; `constants` are the values known from the start."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[FlatNode, ...]
    constants: Mapping[int, Array]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    n_values: int
