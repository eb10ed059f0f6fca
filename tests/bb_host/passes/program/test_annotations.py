"""Opt-ins: hints for several devices, annotations of quantization; stages of the user's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bb_edge.components import GraphModel
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_host import Compiler, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.errors import BindingError
from bb_host.ir.proto import from_proto, to_proto
from bb_host.learn import mlp, trainable
from bb_host.passes.annotations import DeviceHints, QuantizationNotes

HINTS = DeviceHints("two", ("gpu:0", "gpu:1"), {"head": 1, "tail": 0})


class Split(Module):
    model = ModelSlot("model")

    def body(self, g):
        x = g.input("x", np.float32, ["n", 4])
        with g.with_module("tail"):
            x = g.onnx.relu(x)
        with g.with_module("head"):
            y = g.onnx.softmax(self.model.forward(g, x), axis=1)
        g.output("y", y)


def compiler() -> Compiler:
    return Compiler().bind_model("model", GraphModel, trainable(mlp([4, 3], seed=1)))


def test_hints_stand_where_onnx_has_them():
    model = compiler().with_stage(HINTS, after="resolve_slots").compile(Split())
    onnx.checker.check_model(model)
    model = ModelProto.FromString(model.SerializeToString())  # an old onnx package has no names for them
    assert [(c.name, c.num_devices, list(c.device)) for c in model.configuration] == [
        ("two", 2, ["gpu:0", "gpu:1"])
    ]
    found = {
        n.op_type: [(d.configuration_id, d.pipeline_stage) for d in n.device_configurations]
        for n in model.functions[0].node
    }
    assert found == {"Relu": [("two", 0)], "Forward": [], "Softmax": [("two", 1)]}


def test_notes_stand_on_the_state_of_the_slot():
    names = list(trainable(mlp([4, 3], seed=1)).model.parameters)
    notes = QuantizationNotes("model", {names[0]: {"SCALE_TENSOR": names[1]}})
    model = compiler().with_stage(notes, after="resolve_slots").compile(Split())
    onnx.checker.check_model(model)
    (state,) = (a.g for a in model.functions[0].attribute_proto if a.name == "model")
    (note,) = state.quantization_annotation
    assert note.tensor_name == names[0]
    assert [(e.key, e.value) for e in note.quant_parameter_tensor_names] == [("SCALE_TENSOR", names[1])]
    assert to_proto(from_proto(model)) == model


@pytest.mark.parametrize("stage", [HINTS, QuantizationNotes("model", {})], ids=lambda s: s.NAME)
def test_stages_are_idempotent_and_leave_their_input(stage):
    from bb_host.compiler import Options, Stats

    program = compiler().compile_program(Split())
    before = to_proto(program)
    once = stage.run(program, Options(), Stats())
    assert to_proto(program) == before
    assert stage.run(once, Options(), Stats()) is once


def test_devices_are_not_told():
    build = compile_edge(Split(), compiler().with_stage(HINTS, after="resolve_slots"))
    (artifact,) = build.artifacts
    model = ModelProto.FromString(artifact.data)
    assert not model.configuration
    assert not any(n.device_configurations for f in model.functions for n in f.node)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (DeviceHints("two", ("a",), {"nowhere": 0}), "no ONNX op stands in scope 'nowhere'"),
        (QuantizationNotes("other", {}), "slot 'other' has no construction state"),
        (QuantizationNotes("model", {"nothing": {}}), "slot 'model' has no tensor 'nothing'"),
    ],
)
def test_what_is_not_there_is_refused(stage, words):
    with pytest.raises(BindingError, match=words):
        compiler().with_stage(stage, after="resolve_slots").compile(Split())
