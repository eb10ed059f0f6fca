from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir import types
from bb_edge.ir.onnx_pb2 import TensorProto, TypeProto, ValueInfoProto
from bb_edge.ir.type_protos import TypeProtoError, from_type_proto, to_type_proto, value_info
from bb_edge.ir.types import ValueType

BUILT_IN = tuple(types.REGISTRY)
TENSORS = [n for n in BUILT_IN if types.is_subtype(n, types.TENSOR)]
OTHERS = [n for n in BUILT_IN if n not in TENSORS]
dims = st.none() | st.integers(0, 2**63 - 1) | st.text(min_size=1, max_size=5)
shapes = st.none() | st.lists(dims, max_size=9).map(tuple)
values = st.builds(ValueType, st.sampled_from(TENSORS), shapes) | st.builds(
    ValueType, st.sampled_from(OTHERS), st.none()
)


@given(values)
def test_round_trip(value):
    proto = to_type_proto(value)
    assert proto.denotation == value.node.denotation
    assert from_type_proto(TypeProto.FromString(proto.SerializeToString())) == value


@given(values)
def test_the_structure_tells_the_type_where_the_denotation_was_dropped(value):
    proto = to_type_proto(value)
    proto.ClearField("denotation")
    assert from_type_proto(proto) == value


def test_structure_is_that_of_the_intermediate_representation():
    tensor = to_type_proto(ValueType(types.TENSOR_F32, ("n", 3, None)))
    assert tensor.tensor_type.elem_type == TensorProto.FLOAT
    assert [d.WhichOneof("value") for d in tensor.tensor_type.shape.dim] == ["dim_param", "dim_value", None]
    opaque = to_type_proto(ValueType(types.TRIGGER)).opaque_type
    assert (opaque.domain, opaque.name) == ("ai.bytesandbrains", "Trigger")
    element = to_type_proto(ValueType(types.PEER_ID_VEC)).sequence_type.elem_type
    assert (element.opaque_type.name, element.denotation) == ("PeerId", "bb.peer_id")


def test_a_registered_type_travels_as_opaque():
    node = types.register_type("tests.Gradient", types.BYTES)
    assert from_type_proto(to_type_proto(ValueType(node))) == ValueType(node)


def test_the_element_type_outweighs_a_denotation_that_contradicts_it():
    proto = to_type_proto(ValueType(types.TENSOR_F32, ()))
    proto.tensor_type.elem_type = TensorProto.INT64
    assert from_type_proto(proto) == ValueType(types.TENSOR_I64, ())


def test_foreign_types_are_any():
    assert from_type_proto(TypeProto()) == ValueType(types.ANY)
    foreign = TypeProto()
    foreign.opaque_type.domain, foreign.opaque_type.name = "org.example", "Trigger"
    assert from_type_proto(foreign) == ValueType(types.ANY)


def test_a_negative_dimension_is_unknown():
    proto = to_type_proto(ValueType(types.TENSOR_F32, (1, 2)))
    proto.tensor_type.shape.dim[0].dim_value = -1
    assert from_type_proto(proto).shape == (None, 2)


def test_element_types_without_a_tensor_type_are_refused():
    proto = TypeProto()
    proto.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(TypeProtoError, match="element type 8"):
        from_type_proto(proto)


@pytest.mark.parametrize("node", BUILT_IN, ids=str)
def test_onnx_takes_our_value_infos_in_functions(onnx, node):
    made = value_info("x", ValueType(node))
    assert isinstance(made, ValueInfoProto)
    function = onnx.helper.make_function(
        "org.example",
        "F",
        ["x"],
        ["y"],
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        [onnx.helper.make_opsetid("", 21)],
        value_info=[onnx.ValueInfoProto.FromString(made.SerializeToString())],
    )
    graph = onnx.helper.make_graph([], "g", [], [])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("org.example", 1)]
    onnx.checker.check_model(
        onnx.helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    )
