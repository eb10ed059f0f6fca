from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bb_edge.ir import types
from bb_edge.ir.ids import fnv1a_64
from bb_edge.ir.types import TypeNode, TypeRegistrationError, TypeRegistry, ValueType

BUILT_IN = tuple(types.REGISTRY)
nodes = st.sampled_from(BUILT_IN)


def test_wire_hashes_are_those_of_semantics_1():
    hashes = {node.id: node.wire_hash for node in BUILT_IN if node.wire_hash is not None}
    tensors = ["F32", "F64", "F16", "U8", "I32", "BOOL", "BF16", "I8", "I16", "I64", "U16", "U32", "U64"]
    scalars = ["F32", "F64", "F16", "U8", "I32"]
    assert hashes == {
        "Trigger": 0x0A,
        "Bytes": 0x0B,
        "PeerId": 0x10,
        "WireReqId": 0x11,
        "PeerIdVec": 0x12,
        **{f"Tensor<{name}>": 0x0101 + i for i, name in enumerate(tensors)},
        **{f"Scalar<{name}>": 0x0201 + i for i, name in enumerate(scalars)},
        "Multiaddress": 0x0301,
        "Composite": 0x0302,
        "AddressVec": 0x0303,
    }


def test_what_does_not_travel_has_no_hash():
    for node in (
        types.COMMAND_ID,
        types.CORRELATION_TOKEN,
        types.TIMESTAMP,
        types.REQUEST_ID,
        types.EVENT_KIND,
    ):
        assert node.wire_hash is None
    assert all(node.wire_hash is None for node in BUILT_IN if node.abstract)


def test_element_types_and_dtypes_are_onnx_s(onnx):
    for node in BUILT_IN:
        if node.elem_type is None:
            continue
        dtype = types.dtype_of_elem(node.elem_type)
        if node is types.TENSOR_BF16:
            assert dtype == np.uint16  # its bits: NumPy has no bfloat16
        else:
            assert dtype == onnx.helper.tensor_dtype_to_np_dtype(node.elem_type)
            assert types.tensor_type(dtype) is node
        assert types.tensor_of_elem(node.elem_type) is node
    assert types.tensor_type(np.uint16) is types.TENSOR_U16
    assert types.dtype_of_elem(onnx.TensorProto.STRING) is None


@pytest.mark.parametrize("dtype", ["complex64", "U4", "O", "datetime64[s]"])
def test_dtypes_without_a_tensor_type(dtype):
    with pytest.raises(TypeRegistrationError, match="no tensor type"):
        types.tensor_type(dtype)


def test_every_type_is_found_by_its_id_denotation_and_hash():
    for node in BUILT_IN:
        assert types.by_id(node.id) is node
        assert types.by_denotation(node.denotation) is node
        if node.wire_hash is not None:
            assert types.by_wire_hash(node.wire_hash) is node
    assert types.by_id("nothing") is types.by_denotation("nothing") is types.by_wire_hash(0) is None
    assert types.TENSOR_F32.denotation == "ai.bytesandbrains.tensor.f32"
    assert types.TRIGGER.denotation == "bb.trigger"


@given(nodes, nodes)
def test_join_is_the_least_common_ancestor(a, b):
    joined = types.join(a, b)
    assert joined is types.join(b, a)
    assert types.is_subtype(a, joined)
    assert types.is_subtype(b, joined)
    for other in BUILT_IN:
        if types.is_subtype(a, other) and types.is_subtype(b, other):
            assert types.is_subtype(joined, other)


@given(nodes, nodes)
def test_compatible_is_a_subtype_either_way(a, b):
    assert types.compatible(a, b) == (types.join(a, b) in (a, b)) == types.compatible(b, a)
    assert types.is_subtype(a, a)
    assert not (types.is_subtype(a, b) and types.is_subtype(b, a)) or a is b


def test_the_tree():
    assert types.is_subtype(types.TENSOR_F32, types.TENSOR)
    assert not types.is_subtype(types.TENSOR, types.TENSOR_F32)
    assert types.join(types.TENSOR_F32, types.TENSOR_I64) is types.TENSOR
    assert types.join(types.TENSOR_F32, types.SCALAR_F32) is types.ANY
    assert not types.compatible(types.PEER_ID, types.PEER_ID_VEC)


def registry() -> TypeRegistry:
    made = TypeRegistry()
    for node in BUILT_IN:
        made.add(node)
    return made


def test_a_registered_type_is_hashed_by_name_and_version():
    made = registry()
    node = made.register_type("Gradient", types.BYTES, 3)
    assert node.wire_hash == fnv1a_64(b"Gradient@3") == types.compute_wire_hash("Gradient", 3)
    assert made.by_wire_hash(node.wire_hash) is node
    assert types.is_subtype(node, types.BYTES)
    assert made.register_type("Gradient", types.BYTES, 3) is node


@pytest.mark.parametrize(("name", "version"), [("Gradient", 2), ("Trigger", 1), ("bb.trigger", 1)])
def test_a_name_is_taken_once(name, version):
    made = registry()
    made.register_type("Gradient")
    with pytest.raises(TypeRegistrationError, match="taken"):
        made.register_type(name, version=version)


def test_a_hash_is_taken_once():
    made = registry()
    with pytest.raises(TypeRegistrationError, match="wire hash is Trigger's"):
        made.add(TypeNode("Other", types.ANY, False, "other", 0x0A))
    assert made.by_id("Other") is None


def test_value_types_are_values_and_print():
    value = ValueType(types.TENSOR_F32, (None, "n", 3))
    assert value == ValueType(types.TENSOR_F32, (None, "n", 3))
    assert hash(value) == hash(ValueType(types.TENSOR_F32, (None, "n", 3)))
    assert (str(value), str(ValueType(types.TRIGGER))) == ("Tensor<F32>[?,n,3]", "Trigger")
    assert ValueType(types.TENSOR_F32) != ValueType(types.TENSOR_F32, ())  # unknown rank is not rank 0
