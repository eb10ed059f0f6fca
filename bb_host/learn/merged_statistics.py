"""Statistics of normalizations that an exporter has merged with other initializers, as they were before.

Fresh running means are zeros, as biases are, and variances ones, as scales: exporters keep equal initializers
once, and read the same twice, or by an Identity. Scale and shift learn; statistics do not go with them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from bb_host.ir.program import Array, Op, RawTensor, Subgraph
from bb_host.ir.queries import is_onnx, uses
from bb_host.ir.rename import fresh_name

if TYPE_CHECKING:
    import onnx

_STATISTICS = ((3, "running_mean"), (4, "running_var"))
Tensors = Mapping[str, "Array | RawTensor"]


def part_in_file(graph: onnx.GraphProto) -> None:
    """Does in a file what `parted_statistics` does, with the same names: before its parameters are replaced.

    Else a running mean that is read from a bias, or by an Identity of one, would become the trained bias. The
    model computes what it did.
    """
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    scales = Counter(node.input[1] for node in graph.node if node.op_type == "BatchNormalization")
    identities = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    taken = {*initializers, *(v.name for v in graph.input), *(v for node in graph.node for v in node.output)}
    replaced: set[str] = set()
    for node in graph.node:
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        for position, kind in _STATISTICS:
            source = _merged_into(node.input[position], initializers, readers, identities)
            if source is not None:
                name = node.input[position]
                if _is_its_own(name, readers, identities):
                    replaced.add(name)
                else:
                    layer = _layer(node.input[1], scales) or node.name or node.output[0]
                    name = node.input[position] = fresh_name(f"{layer}.{kind}", taken)
                graph.initializer.add().CopyFrom(initializers[source])
                graph.initializer[-1].name = name
    kept = [node for node in graph.node if node.op_type != "Identity" or node.output[0] not in replaced]
    if replaced:
        del graph.node[:]
        graph.node.extend(kept)


def _merged_into(
    name: str, initializers: Collection[str], readers: Mapping[str, int], identities: Mapping[str, str]
) -> str | None:
    """The initializer that a statistic is, where that is read by something else, too; else None."""
    source = name
    while source not in initializers and source in identities:
        source = identities[source]
    return source if source in initializers and (source != name or readers[source] > 1) else None


def _is_its_own(name: str, readers: Mapping[str, int], identities: Mapping[str, str]) -> bool:
    """Whether a statistic is an Identity that nothing else reads: its name is the exporter's for it."""
    return name in identities and readers[name] == 1


def _layer(scale: str, scales: Mapping[str, int]) -> str:
    """The layer of a normalization, as PyTorch names its scale (`LAYER.weight`); empty where it says none.

    Patterns such as `norm.*` then mean all of a layer. A scale that several layers read is of none of them.
    """
    layer, _, part = scale.rpartition(".")
    return layer if part == "weight" and scales[scale] == 1 else ""


def parted_statistics(graph: Subgraph, initializers: Tensors) -> tuple[Subgraph, Tensors]:
    """The graph with a copy of each mean or variance that something else reads.

    It is named as the Identity that it was, else after its layer where the scale's name says that, else after
    its operator.
    """
    readers = Counter(name for op in graph.ops for name in uses(op))
    scales = Counter(op.inputs[1] for op in graph.ops if is_onnx(op, "BatchNormalization"))
    identities = {op.outputs[0]: op.inputs[0] for op in graph.ops if is_onnx(op, "Identity")}
    taken = {*graph.inputs, *initializers, *(v for op in graph.ops for v in op.outputs)}
    parted = dict(initializers)
    ops: list[Op] = []
    replaced: set[str] = set()
    for op in graph.ops:
        if is_onnx(op, "BatchNormalization"):
            names = list(op.inputs)
            for position, kind in _STATISTICS:
                old = _merged_into(names[position], initializers, readers, identities)
                if old is not None:
                    if _is_its_own(names[position], readers, identities):
                        replaced.add(names[position])
                    else:
                        layer = _layer(names[1], scales) or op.name or op.outputs[0]
                        names[position] = fresh_name(f"{layer}.{kind}", taken)
                    parted[names[position]] = initializers[old]
            op = dataclasses.replace(op, inputs=tuple(names))
        ops.append(op)
    ops = [op for op in ops if not (is_onnx(op, "Identity") and op.outputs[0] in replaced)]
    own = {name: tensor for name, tensor in parted.items() if name not in initializers}
    return dataclasses.replace(graph, ops=tuple(ops), initializers={**graph.initializers, **own}), parted
