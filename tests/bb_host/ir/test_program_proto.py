"""Between records and protos: nothing of a model is lost, and what cannot be held is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from program_text import parse

from bb_edge.ir import keys, onnx_pb2, types
from bb_edge.ir.types import ValueType
from bb_host.errors import ProgramProtoError
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Function, Op, Program, RawAttribute, RawTensor, Slot, Subgraph, walk_ops
from bb_host.ir.proto import (
    array_of,
    from_proto,
    read_attribute,
    read_graph,
    to_bytes,
    to_proto,
    write_attribute,
)
from bb_host.ir.spelling import written
from bb_host.ir.text import print_program

CONFIGURATIONS = "device_configurations" in onnx.NodeProto.DESCRIPTOR.fields_by_name
"""Of several devices: the onnx package has them from 1.18 on."""


def full_model() -> onnx.ModelProto:
    """A model with everything that the schema can hang on it."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "state",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")],
        doc_string="about the graph",
        value_info=[helper.make_tensor_value_info("z", TensorProto.INT64, [])],
    )
    annotation = graph.quantization_annotation.add(tensor_name="w")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w_scale")
    graph.metadata_props.add(key="lr", value="0.1")
    node = helper.make_node("Sum", ["a", "", "b"], ["c", ""], name="n1", domain="user", doc_string="about it")
    node.attribute.extend(
        [
            helper.make_attribute("i", 3),
            helper.make_attribute("f", 0.1),
            helper.make_attribute("s", "text"),
            helper.make_attribute("is", [1, 2]),
            helper.make_attribute("fs", [0.5]),
            helper.make_attribute("ss", ["a", "b"]),
            helper.make_attribute("none", [], attr_type=onnx.AttributeProto.FLOATS),
            helper.make_attribute("t", numpy_helper.from_array(np.float64(2.5))),
            helper.make_attribute("bf", helper.make_tensor("", TensorProto.BFLOAT16, [2], [1.0, 2.0])),
            helper.make_attribute("named", numpy_helper.from_array(np.ones(2, np.float32), "name")),
            helper.make_attribute("g", graph),
            helper.make_attribute("gs", [graph, graph]),
            helper.make_attribute("tp", helper.make_tensor_type_proto(TensorProto.FLOAT, [1])),
        ]
    )
    node.attribute.add(name="ref", ref_attr_name="outer", type=onnx.AttributeProto.INT)
    node.metadata_props.add(key=keys.SLOT_KEY, value="model")
    if CONFIGURATIONS:
        sharding = node.device_configurations.add(configuration_id="two", pipeline_stage=1)
        sharding.sharding_spec.add(tensor_name="a", device=[0, 1])
    function = onnx.FunctionProto(
        name="F", domain="user", input=["a", "b"], output=["c"], attribute=["model"], doc_string="about F"
    )
    function.node.append(node)
    function.attribute_proto.append(helper.make_attribute("codec", b"\xa0"))
    function.metadata_props.add(key=keys.SLOT_ROLE_PREFIX + "model", value="model")
    function.metadata_props.add(key=keys.SLOT_ROLE_PREFIX + "codec", value="codec")
    function.metadata_props.add(key=keys.CONCRETE_TYPE_PREFIX + "codec", value="test.Codec")
    function.metadata_props.add(key=keys.HOME_KEY, value="Server")
    function.opset_import.append(helper.make_opsetid("", 21))
    info = helper.make_tensor_value_info("a", TensorProto.FLOAT, ["batch"], doc_string="about a")
    info.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    function.value_info.append(info)
    model = onnx.ModelProto(ir_version=10, producer_name="somebody", producer_version="2", domain="user")
    model.model_version = 7
    model.doc_string = "about the model"
    model.graph.name = "Other"
    model.functions.append(function)
    model.metadata_props.add(key=keys.MODULE_KEY, value="F")
    model.opset_import.append(helper.make_opsetid("", 21))
    model.training_info.add().algorithm.name = "algorithm"
    if CONFIGURATIONS:
        model.configuration.add(name="two", num_devices=2)
    return model


def test_everything_comes_back() -> None:
    model = full_model()
    again = to_proto(from_proto(model))
    assert again == model
    assert to_bytes(from_proto(again)) == to_bytes(from_proto(model))


def test_everything_comes_back_through_text() -> None:
    program = from_proto(full_model())
    text = print_program(program)
    again = parse(text)
    assert print_program(again) == text
    assert to_proto(again) == full_model()


def test_what_is_read() -> None:
    program = from_proto(full_model())
    assert (program.name, program.graph_name) == ("F", "Other")
    (function,) = program.functions
    assert function.key == ("user", "F")
    assert function.slots["model"].role == "model"
    assert function.slots["codec"].concrete_type == "test.Codec"
    assert function.slots["codec"].state == b"\xa0"
    assert written(function.facts) == {keys.HOME_KEY: "Server"}
    assert function.types["a"] == ValueType(types.TENSOR_F32, ("batch",))
    (op,) = function.ops
    assert (op.inputs, op.outputs, op.name) == (("a", "", "b"), ("c", ""), "n1")
    assert {k: op.attrs[k] for k in ("i", "s", "is", "fs", "ss")} == {
        "i": 3,
        "s": b"text",
        "is": [1, 2],
        "fs": [0.5],
        "ss": [b"a", b"b"],
    }
    assert isinstance(op.attrs["bf"], RawTensor)
    assert (op.attrs["bf"].elem_type, op.attrs["bf"].shape) == (TensorProto.BFLOAT16, (2,))
    np.testing.assert_array_equal(array_of(op.attrs["bf"]), np.array([0x3F80, 0x4000], np.uint16))
    assert isinstance(op.attrs["gs"], RawAttribute)
    assert isinstance(op.attrs["ref"], RawAttribute)
    graph = op.attrs["g"]
    assert isinstance(graph, Subgraph)
    assert (graph.inputs, graph.outputs, graph.config) == (("x",), ("y",), {"lr": "0.1"})
    assert graph.types["z"] == ValueType(types.TENSOR_I64, ())
    np.testing.assert_array_equal(array_of(graph.initializers["w"]), np.arange(6.0).reshape(2, 3))
    assert [o.op_type for o in walk_ops(function.ops)] == ["Sum", "Relu"]


def test_a_type_that_changed_is_written_anew() -> None:
    program = from_proto(full_model())
    (function,) = program.functions
    changed = dataclasses.replace(function, types={"a": ValueType(types.TENSOR_I8)})
    model = to_proto(dataclasses.replace(program, functions=(changed,)))
    (info,) = model.functions[0].value_info
    assert info.type.tensor_type.elem_type == TensorProto.INT8
    assert info.doc_string == ""


def test_the_runtimes_own_classes_are_read_too() -> None:
    model = full_model()
    ours = onnx_pb2.ModelProto.FromString(model.SerializeToString())
    assert to_proto(from_proto(ours)) == model


def test_a_fresh_program_has_our_versions() -> None:
    model = to_proto(Program("P", (Function("P", keys.PROGRAM_DOMAIN, opsets={"": 21}),), opsets={"": 21}))
    assert (model.ir_version, model.graph.name) == (10, "P")
    assert len(model.graph.node) == len(model.graph.input) == 0
    assert from_proto(model).extra == b""


def test_empty_lists_are_integers() -> None:
    assert read_attribute(write_attribute("a", [])) == []
    assert write_attribute("a", []).type == onnx.AttributeProto.INTS


@pytest.mark.parametrize("bad", [None, "text", {}, [1, b"a"], object()])
def test_values_without_a_spelling_are_refused(bad: Any) -> None:
    with pytest.raises(ProgramProtoError, match="attribute x: no ONNX spelling"):
        write_attribute("x", bad)


def test_types_that_we_have_not_are_refused_by_value() -> None:
    model = full_model()
    info = helper.make_tensor_value_info("weird", TensorProto.STRING, [1])
    model.functions[0].value_info.append(info)
    with pytest.raises(ProgramProtoError, match="function F, value weird"):
        from_proto(model)


def test_slots_keep_their_order_within_their_kind() -> None:
    slots = {
        "c": Slot("codec", "t.C", "At", "", b"\xa0"),
        "a": Slot("model", at="Client"),
        "b": Slot("peer_selector", peer_class="Client"),
    }
    program = Program("P", (Function("P", "d", slots=slots, opsets={"": 21}),), opsets={"": 21, "d": 1})
    again = from_proto(to_proto(program))
    assert list(again.functions[0].slots) == ["a", "b", "c"]
    assert to_proto(again) == to_proto(program)


def test_records_are_final_and_copied_with_changes() -> None:
    op = Op("Relu", "", ("x",), ("y",), {}, OpFacts(slot="a"))
    if TYPE_CHECKING:  # the checker holds that ops do not change: it would complain of a needless ignore
        op.name = "n"  # type: ignore[misc]
    copy = op.saying(OpFacts(port="b"))
    assert copy.facts == OpFacts(slot="a", port="b")
    assert copy.saying(OpFacts(slot="a")) is copy
    assert dataclasses.replace(copy, facts=op.facts, name="n") != copy
    for field in dataclasses.fields(Op):
        if field.name != "facts":
            assert getattr(copy, field.name) is getattr(op, field.name)
    assert op.facts == OpFacts(slot="a")
    assert op != Op("Relu", "", ("x",), ("y",), {}, OpFacts(slot="a"))


def test_arrays_are_views_that_cannot_be_written() -> None:
    op = from_proto(full_model()).functions[0].ops[0]
    tensor = op.attrs["t"]
    assert isinstance(tensor, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        tensor[...] = 1


def _light_models() -> list[Path]:
    return sorted((Path(onnx.__file__).parent / "backend/test/data").glob("light/light_*.onnx"))


@pytest.mark.parametrize("path", _light_models(), ids=lambda p: p.stem)
def test_graphs_of_real_models_come_back(path: Path) -> None:
    model = onnx.load(path)
    graph = read_graph(model.graph)
    again = onnx.AttributeProto.FromString(write_attribute("g", graph).SerializeToString()).g
    assert [n.op_type for n in again.node] == [n.op_type for n in model.graph.node]
    for node in model.graph.node:  # numbers may stand in typed fields; we write raw bytes
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t)))
                attribute.t.ClearField("name")
    assert list(again.node) == list(model.graph.node)
    assert list(again.input) == list(model.graph.input)
    assert list(again.output) == list(model.graph.output)
    assert to_proto(from_proto(model)) == model
