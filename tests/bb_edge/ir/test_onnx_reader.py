"""The reader that needs no protobuf: the same fields as protobuf's, and one error for whatever else comes."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bb_edge.ir import onnx_pb2, onnx_reader
from bb_edge.ir.onnx_reader import Message, ModelReadError, read_model
from bb_edge.ir.tensors import from_tensor_proto
from bb_edge.ir.type_protos import from_type_proto
from tests.aids.arrays import named_tensor

A = onnx_pb2.AttributeProto


def model() -> Any:
    """A model that sets every field that the reader knows."""
    found = onnx_pb2.ModelProto(ir_version=10, producer_name="other fields are skipped")
    found.opset_import.add(domain="", version=21)
    found.metadata_props.add(key="größe", value="☃")
    found.graph.name = "not read"
    function = found.functions.add(
        name="f", domain="d", overload="o", input=["x", "y"], output=["z"], attribute=["a"]
    )
    function.opset_import.add(domain="ai.onnx", version=7)
    function.metadata_props.add(key="k", value="v")
    for shape in ([1, "N", None], [], None):
        info = function.value_info.add(name=f"v{shape}")
        info.metadata_props.add(key="k", value="v")
        info.type.denotation = "denotation"
        info.type.tensor_type.elem_type = 1
        if shape is not None:
            info.type.tensor_type.shape.SetInParent()
        for dim in shape or ():
            entry = info.type.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            elif dim:
                entry.dim_param = dim
    info = function.value_info.add(name="peers")
    info.type.sequence_type.elem_type.opaque_type.domain = "a"
    info.type.sequence_type.elem_type.opaque_type.name = "b"
    node = function.node.add(
        op_type="Op", domain="d", name="n", overload="o", input=["x", "", "y"], output=["z"]
    )
    node.metadata_props.add(key="k", value="v")
    node.attribute.add(name="f", type=A.FLOAT, f=1.5)
    node.attribute.add(name="i", type=A.INT, i=-(2**63))
    node.attribute.add(name="s", type=A.STRING, s=b"\x00\xff")
    node.attribute.add(name="ref", ref_attr_name="a")
    node.attribute.add(name="fs", type=A.FLOATS, floats=[1.0, -2.5])
    node.attribute.add(name="is", type=A.INTS, ints=[0, -1, 2**62])
    node.attribute.add(name="ss", type=A.STRINGS, strings=[b"a", b""])
    tensor = node.attribute.add(name="t", type=A.TENSOR).t
    tensor.CopyFrom(named_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3)))
    typed = onnx_pb2.TensorProto(
        dims=[2], data_type=1, float_data=[1, 2], int32_data=[-1, 2], int64_data=[-3], double_data=[0.5]
    )
    typed.uint64_data.append(2**64 - 1)
    typed.string_data.append(b"s")
    typed.metadata_props.add(key="k", value="v")
    typed.external_data.add(key="location", value="weights.bin")
    typed.data_location = onnx_pb2.TensorProto.EXTERNAL
    node.attribute.add(name="ts", type=A.TENSORS, tensors=[typed])
    node.attribute.add(name="tp", type=A.TYPE_PROTO).tp.denotation = "d"
    graph = node.attribute.add(name="g", type=A.GRAPH).g
    graph.name = "body"
    graph.node.add(op_type="Neg", input=["x"], output=["y"])
    graph.initializer.add(dims=[0], data_type=1)
    graph.input.add(name="i")
    graph.output.add(name="o")
    graph.value_info.add(name="v")
    graph.metadata_props.add(key="k", value="v")
    node.attribute.add(name="gs", type=A.GRAPHS, graphs=[graph])
    function.attribute_proto.add(name="slot", type=A.STRING, s=b"\xa0")
    return found


def compare(ours: Message, theirs: Any, where: str = "model") -> int:
    """Every field of the reader against protobuf's; the number of fields compared."""
    count = 0
    for number, (name, kind, _) in type(ours).FIELDS.items():
        assert theirs.DESCRIPTOR.fields_by_number[number].name == name, where
        if kind == "message":
            assert ours.HasField(name) == theirs.HasField(name), f"{where}.{name}"
            if ours.HasField(name):
                count += compare(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
        elif kind == "messages":
            found, wanted = list(getattr(ours, name)), list(getattr(theirs, name))
            assert len(found) == len(wanted), f"{where}.{name}"
            for i, pair in enumerate(zip(found, wanted, strict=True)):
                count += compare(*pair, f"{where}.{name}[{i}]")
        elif name in ("segment", "sparse_initializer"):
            continue  # only whether it is there matters
        elif kind in ("texts", "byteses", "ints", "uints", "floats", "doubles"):
            assert list(getattr(ours, name)) == list(getattr(theirs, name)), f"{where}.{name}"
        else:
            assert getattr(ours, name) == getattr(theirs, name), f"{where}.{name}"
            assert theirs.HasField(name) == ours.HasField(name), f"{where}.{name}"
        count += 1
    return count


def test_every_field_is_protobufs() -> None:
    proto = model()
    assert compare(read_model(proto.SerializeToString()), proto) > 300


def test_tensors_and_types_are_taken_from_both_alike() -> None:
    function = read_model(model().SerializeToString()).functions[0]
    theirs = model().functions[0]
    tensor = next(a.t for a in function.node[0].attribute if a.name == "t")
    array = from_tensor_proto(tensor)
    np.testing.assert_array_equal(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    for info, wanted in zip(function.value_info, theirs.value_info, strict=True):
        if info.type.HasField("tensor_type"):
            assert from_type_proto(info.type) == from_type_proto(wanted.type)


def test_defaults_of_fields_that_are_not_there() -> None:
    empty = onnx_reader.AttributeProto()
    assert (empty.name, empty.i, empty.f, empty.s, list(empty.ints)) == ("", 0, 0.0, b"", [])
    assert empty.t.raw_data == b""
    assert not empty.HasField("t")
    with pytest.raises(AttributeError, match="no field"):
        _ = empty.nonsense
    assert not hasattr(onnx_reader.GraphProto(), "opset_import")
    assert hasattr(onnx_reader.FunctionProto(), "opset_import")


def test_numbers_packed_or_one_by_one() -> None:
    """Field 8 (ints) of an attribute: both spellings, and -1 in ten bytes."""
    minus_one = b"\xff" * 9 + b"\x01"
    attribute = b"\x42\x0b\x05" + minus_one + b"\x40\x07" + b"\x40" + minus_one
    function = b"\x5a" + bytes([len(attribute)]) + attribute
    data = b"\xca\x01" + bytes([len(function)]) + function
    found = read_model(data).functions[0].attribute_proto[0]
    assert found.ints == [5, -1, 7, -1]
    assert list(onnx_pb2.ModelProto.FromString(data).functions[0].attribute_proto[0].ints) == [5, -1, 7, -1]


def test_every_truncation_is_refused_or_a_shorter_model() -> None:
    data = model().SerializeToString()
    for end in range(len(data)):
        try:
            read_model(data[:end])
        except ModelReadError:
            continue
        onnx_pb2.ModelProto.FromString(data[:end])  # protobuf takes it as well


def test_damaged_bytes_raise_one_error_and_no_other() -> None:
    rng = random.Random(5)
    data = model().SerializeToString()
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read_model(bytes(damaged))
        except ModelReadError:
            refused += 1
    assert 1_000 < refused < 3_000


def test_nesting_has_a_bound() -> None:
    proto = onnx_pb2.ModelProto()
    graph = proto.functions.add().node.add().attribute.add().g
    for _ in range(60):
        graph = graph.node.add().attribute.add().g
    with pytest.raises(ModelReadError, match="deeper"):
        read_model(proto.SerializeToString())


def test_reading_a_model_loads_no_protobuf() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from bb_edge.ir import onnx_pb2, onnx_reader, tensors, type_protos\n"
        f"onnx_reader.read_model({model().SerializeToString()!r})\n"
        "print([m for m in sys.modules if m.startswith(('google.protobuf.descriptor', 'google._upb'))])\n"
        "print(onnx_pb2.ModelProto.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "ModelProto"]
