"""What an interpreter will take for a graph, as far as it can be told from the graph alone."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from bb_host.tflite.graph import DYNAMIC, TfliteGraph

_PACKED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def has_open_batch(graph: TfliteGraph) -> bool:
    """Whether the device resizes it."""
    return any(DYNAMIC in graph.shape(index) for index in graph.inputs)


def activation_bytes(graph: TfliteGraph, batch: int = 1) -> int:
    """The largest sum of simultaneously live tensors that are not constants: what its arena must hold."""
    last: dict[int, int] = {index: len(graph.operators) for index in graph.outputs}
    first: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    for step, op in enumerate(graph.operators):
        for index in op.outputs:
            first.setdefault(index, step)
            last.setdefault(index, step)
        for index in op.inputs:
            if index >= 0:
                last[index] = max(last.get(index, step), step)
    changes: dict[int, int] = {}
    for index, begins in first.items():
        tensor = graph.tensors[index]
        size = prod(batch if d == DYNAMIC else d for d in tensor.shape) * np.dtype(tensor.dtype).itemsize
        changes[begins] = changes.get(begins, 0) + size
        end = last.get(index, begins) + 1
        changes[end] = changes.get(end, 0) - size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def repeated_bytes(graph: TfliteGraph) -> int:
    """Bytes of weights that several operators read, once for each but the first: each packs its own."""
    readers = Counter(op.inputs[1] for op in graph.operators if op.kind in _PACKED)
    constants = ((graph.tensors[index].data, n) for index, n in readers.items())
    return sum(data.nbytes * (n - 1) for data, n in constants if data is not None)


def written_bytes(graph: TfliteGraph) -> int:
    """Bytes that its operators write in one run, at a batch of one where that is open."""
    made = (graph.tensors[index] for op in graph.operators for index in op.outputs)
    return sum(abs(prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize for tensor in made)
