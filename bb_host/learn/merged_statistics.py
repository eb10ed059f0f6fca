"""Statistics of normalizations that an exporter has merged with other initializers, as they were before.

Fresh running means are zeros, as biases are, and variances ones, as scales: exporters keep equal initializers
once. Who learns statistics has to learn each by itself.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from bb_host.ir.program import Array, Op, RawTensor, Subgraph
from bb_host.ir.queries import is_onnx, uses
from bb_host.ir.rename import fresh_name

Tensors = Mapping[str, "Array | RawTensor"]


def parted_statistics(graph: Subgraph, initializers: Tensors) -> tuple[Subgraph, Tensors]:
    """The graph with a copy, named after its operator, of each mean or variance that something else reads."""
    readers = Counter(name for op in graph.ops for name in uses(op))
    taken = {*graph.inputs, *initializers, *(v for op in graph.ops for v in op.outputs)}
    parted = dict(initializers)
    ops: list[Op] = []
    for op in graph.ops:
        if is_onnx(op, "BatchNormalization"):
            names = list(op.inputs)
            for position, kind in ((3, "running_mean"), (4, "running_var")):
                old = names[position]
                if old in initializers and readers[old] > 1:
                    names[position] = fresh_name(f"{op.name or op.outputs[0]}.{kind}", taken)
                    parted[names[position]] = initializers[old]
            op = dataclasses.replace(op, inputs=tuple(names))
        ops.append(op)
    own = {name: tensor for name, tensor in parted.items() if name not in initializers}
    return dataclasses.replace(graph, ops=tuple(ops), initializers={**graph.initializers, **own}), parted
