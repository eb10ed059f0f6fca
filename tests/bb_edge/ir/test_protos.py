"""The embedded descriptors say what the .proto files say, and what ONNX says."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

import bb_edge.ir
from bb_edge.ir import bb_core_pb2, onnx_pb2

FOLDER = Path(bb_edge.ir.__file__).parent
KINDS = {
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_DOUBLE: "double",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_UINT32: "uint32",
    FieldDescriptorProto.TYPE_UINT64: "uint64",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
}
Fields = dict[str, tuple[int, str, bool, bool]]  # "Message.field" -> number, type, repeated, packed
Values = dict[str, int]  # "Message.Enum.VALUE" -> number


def described(file: FileDescriptorProto) -> tuple[Fields, Values]:
    """What a descriptor declares; message types by their last name, so that packages may differ."""
    fields: Fields = {}
    values: Values = {}

    def enums(prefix: str, found) -> None:
        for enum in found:
            values.update({f"{prefix}{enum.name}.{v.name}": v.number for v in enum.value})

    def walk(prefix: str, message) -> None:
        for field in message.field:
            kind = KINDS.get(field.type) or field.type_name.rpartition(".")[2]
            repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
            fields[f"{prefix}{message.name}.{field.name}"] = (
                field.number,
                kind,
                repeated,
                field.options.packed,
            )
        enums(f"{prefix}{message.name}.", message.enum_type)
        for nested in message.nested_type:
            walk(f"{prefix}{message.name}.", nested)

    enums("", file.enum_type)
    for message in file.message_type:
        walk("", message)
    return fields, values


def declared(text: str) -> tuple[Fields, Values]:
    """The same from the text of a .proto file."""
    fields: Fields = {}
    values: Values = {}
    scope: list[tuple[str, str]] = []
    for line in (raw.partition("//")[0].strip() for raw in text.splitlines()):
        if opened := re.fullmatch(r"(message|enum|oneof) (\w+) \{", line):
            scope.append((opened[1], opened[2]))
        elif line == "}":
            scope.pop()
        elif scope and not line.startswith("reserved") and line:
            path = ".".join(name for kind, name in scope if kind != "oneof")
            if scope[-1][0] == "enum":
                value = re.fullmatch(r"(\w+) = (\d+);", line)
                assert value, line
                values[f"{path}.{value[1]}"] = int(value[2])
            else:
                pattern = r"(optional |repeated )?([\w.]+) (\w+) = (\d+)( \[packed = true\])?;"
                field = re.fullmatch(pattern, line)
                assert field, line
                kind = field[2].rpartition(".")[2]
                fields[f"{path}.{field[3]}"] = (int(field[4]), kind, field[1] == "repeated ", bool(field[5]))
    return fields, values


def proto_of(module) -> FileDescriptorProto:
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


@pytest.mark.parametrize(("module", "name"), [(onnx_pb2, "onnx"), (bb_core_pb2, "bb_core")])
def test_the_embedded_descriptor_is_the_proto_file(module, name):
    assert described(proto_of(module)) == declared((FOLDER / f"{name}.proto").read_text())


def test_every_onnx_field_is_there_with_its_number_and_type(onnx):
    ours, our_values = described(proto_of(onnx_pb2))
    theirs, their_values = described(proto_of(onnx.onnx_ml_pb2))
    assert len(theirs) > 100
    # An onnx package of another version may know fewer fields, or later ones; those that both know agree.
    shared = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    if their_values["Version.IR_VERSION"] == our_values["Version.IR_VERSION"]:
        assert ours == theirs
        assert our_values == their_values


def test_a_file_written_here_is_one_that_onnx_checks(onnx):
    model = onnx_pb2.ModelProto(ir_version=10, opset_import=[onnx_pb2.OperatorSetIdProto(version=21)])
    model.graph.name = "g"
    model.graph.node.add(op_type="Relu", input=["x"], output=["y"]).metadata_props.add(key="k", value="v")
    for name, group in (("x", model.graph.input), ("y", model.graph.output)):
        info = group.add(name=name)
        info.type.tensor_type.elem_type = onnx_pb2.TensorProto.FLOAT
        info.type.tensor_type.shape.dim.add(dim_param="n")
    read = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.checker.check_model(read)
    assert read.graph.node[0].metadata_props[0].value == "v"
    assert onnx_pb2.ModelProto.FromString(read.SerializeToString()) == model


def test_envelope_numbers_are_those_of_semantics_6():
    fields, _ = described(proto_of(bb_core_pb2))
    numbers = {name: number for name, (number, *_rest) in fields.items()}
    assert {name.partition(".")[2]: n for name, n in numbers.items() if name.startswith("WireEnvelope.")} == {
        "dest_peer_addresses": 1,
        "fills": 2,
        "correlation": 3,
        "remaining_deadline_ns": 4,
        "edge_rtt_reports": 5,
        "src_peer_bytes": 6,
        "schema_version": 7,
        "src_peer_addresses": 8,
        "epoch": 101,
        "seq": 102,
        "acks": 103,
        "base": 104,
        "failure": 105,
    }
    assert [numbers[f"SlotFill.{n}"] for n in ("dest_suffix", "payload", "trigger_only", "type_hash")] == [
        1,
        2,
        3,
        4,
    ]


def test_classes_of_nested_messages_are_made_once() -> None:
    kind = weakref.ref(type(onnx_pb2.TypeProto().tensor_type))
    gc.collect()
    assert kind() is type(onnx_pb2.TypeProto().tensor_type)
