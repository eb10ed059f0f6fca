"""The one value of a model that is trained or answered: a model of several outputs is cut to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import onnx
from onnx import TensorProto, helper

from bb_edge.ir.suggestions import suggestion
from bb_host.errors import LearnError

_LISTED = 8


def refuse_several(model: onnx.ModelProto, where: str, *, of_floats: bool = False) -> None:
    """LearnError where a model has several outputs: one has to be named.

    With `of_floats` only where one of them could be: of others, their operators may be the better reason.
    """
    outputs = model.graph.output
    floats = [v.name for v in outputs if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    if len(outputs) > 1 and (floats or not of_floats):
        what = (
            f"it has {len(outputs)} outputs ({_named([v.name for v in outputs])}), and a slot's model has one"
        )
        named = f"output={floats[0]!r} (--output {floats[0]})" if floats else "an inner value, none is F32"
        raise LearnError(what, where, f"name the one that is trained: {named}")


def cut_to(model: onnx.ModelProto, output: str, where: str) -> onnx.ModelProto:
    """The model with `output` as its only output, and without the nodes and inputs that this does not read.

    `output` is an output or any inner value: the logits before a softmax, say. Initializers stay, so that
    patterns still match those that nothing reads now. Raises LearnError for a name that it does not have.
    """
    outputs = [value.name for value in model.graph.output]
    if outputs == [output]:
        return model
    inner = [value for node in model.graph.node for value in node.output if value]
    if output not in outputs and output not in inner:
        close = suggestion(output, (*outputs, *inner))
        hint = close if close.startswith("did you mean") else f"its outputs: {_named(outputs)}"
        raise LearnError(f"it has no output and no inner value {output!r}", where, hint)
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    graph = cut.graph
    kept: list[onnx.NodeProto] = []
    needed = {output}
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            kept.insert(0, node)
            needed.update(_read(node))
    known = {value.name: value for value in chain(graph.value_info, graph.output)}
    result = known.get(output) or helper.make_empty_tensor_value_info(output)
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name in needed or value.name in constants]
    for field, values in ((graph.node, kept), (graph.input, inputs), (graph.output, [result])):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    return cut


def _named(names: list[str]) -> str:
    more = ", …" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, its branches and loop bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (value.name for value in graph.output)
