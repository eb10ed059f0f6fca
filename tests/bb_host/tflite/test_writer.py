"""The flatbuffer, read back by a runtime's own schema; the numbers of ours against it."""

from __future__ import annotations

import numpy as np
import pytest

from bb_host.errors import LoweringError
from bb_host.tflite.graph import DYNAMIC, Quantization, TfliteGraph
from bb_host.tflite.schema import DTYPES, NONE, OPERATORS, RELU
from bb_host.tflite.writer import write
from benchmarks import models


def _read(schema, data):
    return schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))


def test_the_numbers_are_the_schemas(schema):
    tags = {v: k for k, v in vars(schema.BuiltinOptions).items() if isinstance(v, int)}
    for kind, known in OPERATORS.items():
        assert getattr(schema.BuiltinOperator, kind) == known.code, kind
        if known.slots:
            fields = list(vars(getattr(schema, f"{tags[known.tag]}T")()))
            assert max(slot for slot, _ in known.slots.values()) < len(fields) + 2, kind
    for dtype, number in DTYPES.items():
        assert getattr(schema.TensorType, dtype.upper()) == number


def test_every_part_reads_back(schema):
    graph = TfliteGraph()
    x = graph.input("x", (DYNAMIC, 4))
    w = graph.constant(
        np.arange(12, dtype=np.int8).reshape(3, 4), "w", Quantization(np.full(3, 0.5), np.zeros(3), 0)
    )
    y = graph.op(
        "FULLY_CONNECTED", [x, w, -1], (DYNAMIC, 3), options={"act": 1, "format": 0, "keep_num_dims": True}
    )
    graph.outputs.append(y)
    model = _read(schema, write(graph))
    (sub,) = model.subgraphs
    assert model.version == 3
    assert model.buffers[0].data is None or len(model.buffers[0].data) == 0
    assert [t.name for t in sub.tensors] == [b"x", b"w", b"t2"]
    assert list(sub.tensors[0].shape) == [1, 4]
    assert list(sub.tensors[0].shapeSignature) == [-1, 4]
    assert bytes(model.buffers[sub.tensors[1].buffer].data) == bytes(range(12))
    assert list(sub.tensors[1].quantization.scale) == [0.5] * 3
    (op,) = sub.operators
    assert list(op.inputs) == [0, 1, -1]
    assert list(op.outputs) == [2]
    assert op.builtinOptions.fusedActivationFunction == 1
    assert op.builtinOptions.keepNumDims
    code = model.operatorCodes[op.opcodeIndex]
    assert (code.builtinCode, code.deprecatedBuiltinCode) == (9, 9)
    assert model.signatureDefs[0].signatureKey == b"serving_default"


def test_constants_are_aligned_and_shared(schema):
    graph = TfliteGraph()
    same = np.arange(5, dtype=np.float32)
    x = graph.input("x", (5,))
    y = graph.op("ADD", [x, graph.constant(same)], (5,), options={"act": 0})
    graph.outputs.append(graph.op("MUL", [y, graph.constant(same.copy())], (5,), options={"act": 0}))
    data = write(graph)
    assert data.count(same.tobytes()) == 1
    assert data.index(same.tobytes()) % 16 == 0
    assert len(_read(schema, data).buffers) == 2


def test_an_operator_has_no_activation_where_none_is_named():
    graph = TfliteGraph()
    x = graph.input("x", (4,))
    graph.op("ADD", [x, x], (4,))
    graph.op("ADD", [x, x], (4,), options={"act": RELU})
    graph.op("TANH", [x], (4,))
    assert [op.options for op in graph.operators] == [{"act": NONE}, {"act": RELU}, {}]


def test_unknown_operators_options_and_dtypes_are_refused():
    for kind, options, dtype in (("NOPE", {}, "float32"), ("ADD", {"axis": 1}, "float32"), ("ADD", {}, "c8")):
        graph = TfliteGraph()
        x = graph.input("x", (2,), dtype)
        graph.outputs.append(graph.op(kind, [x, x], (2,), options=options))
        with pytest.raises(LoweringError):
            write(graph)


@pytest.mark.parametrize("name", [*models.MLPERF_TINY, "transformer", "u_net"])
def test_a_nets_file_reads_back_and_packs_again(name, schema, compiled):
    """Each operator's shapes fit its tensors, and nothing is there that nobody reads."""
    (node,) = compiled(models.ALL[name]()).models
    (sub,) = _read(schema, node.attrs["model"]).subgraphs
    produced = {i for op in sub.operators for i in op.outputs}
    read = {i for op in sub.operators for i in op.inputs if i >= 0}
    everything = set(range(len(sub.tensors)))
    assert read | set(sub.outputs) == everything
    constants = {i for i in everything if sub.tensors[i].buffer}
    assert produced | set(sub.inputs) | constants == everything
    assert not produced & constants
