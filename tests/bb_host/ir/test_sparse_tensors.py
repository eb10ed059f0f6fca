"""Sparse tensors of ONNX models compute: they are written out where a model comes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bb_edge
from bb_host import Module
from bb_host.build import compile_edge
from bb_host.errors import InvalidModelError, ModelImportError, ProgramProtoError, SparseTensorError
from bb_host.ir import sparse_tensors
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.sparse_tensors import densified
from bb_host.learn import import_onnx
from bb_host.onnx_io.model import at_least_opset
from bb_host.plain import compile_plain_model

F = onnx.TensorProto.FLOAT
W = np.array([[1, 0, 0], [0, 0, 2]], np.float32)


def sparse(name: str, dense: Any, coordinates: bool = False) -> onnx.SparseTensorProto:
    """A dense array as ONNX stores it sparsely: by place in row-major order, or by coordinates."""
    at = np.argwhere(dense != 0).astype(np.int64)
    entries = dense[dense != 0]
    if not coordinates:
        at = np.ravel_multi_index(tuple(at.T), dense.shape).astype(np.int64)
    values, indices = numpy_helper.from_array(entries, name), numpy_helper.from_array(at, f"{name}_at")
    return helper.make_sparse_tensor(values, indices, list(dense.shape))


def net(*nodes: onnx.NodeProto, opset: int = 17, **initializers: onnx.SparseTensorProto) -> onnx.ModelProto:
    """`y` of x: F32[N, 2] by way of `nodes`, with sparse initializers."""
    x = helper.make_tensor_value_info("x", F, ["N", 2])
    y = helper.make_tensor_value_info("y", F, ["N", 3])
    graph = helper.make_graph(list(nodes), "net", [x], [y])
    graph.sparse_initializer.extend(initializers.values())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


MATMUL = helper.make_node("MatMul", ["x", "W"], ["y"])
X = np.array([[1, 2], [3, 4]], np.float32)


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_sparse_initializer_computes(coordinates: bool, opset: int) -> None:
    model = net(MATMUL, opset=opset, W=sparse("W", W, coordinates))
    before = model.SerializeToString(deterministic=True)
    artifact = compile_plain_model(model).SerializeToString()
    np.testing.assert_array_equal(bb_edge.open_model(artifact)(X), X @ W)
    assert model.SerializeToString(deterministic=True) == before


def test_a_sparse_constant_computes_in_a_branch_too() -> None:
    bias = np.array([0, 5, 0], np.float32)
    out = [helper.make_tensor_value_info("r", F, None)]
    branches = [
        helper.make_graph(
            [helper.make_node("Constant", [], ["c"], sparse_value=sparse("", bias * sign)),
             helper.make_node("Add", ["z", "c"], ["r"])], name, [], out)
        for name, sign in (("yes", 1), ("no", -1))
    ]  # fmt: skip
    half = numpy_helper.from_array(np.float32(0.5), "half")
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["z"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("Greater", ["m", "half"], ["high"]),
        helper.make_node("If", ["high"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = bb_edge.open_model(compile_plain_model(net(*nodes, W=sparse("W", W))).SerializeToString())
    np.testing.assert_array_equal(model(X), X @ W + bias)
    np.testing.assert_array_equal(model(X * 0), -bias + np.zeros((2, 3), np.float32))


def test_a_model_that_learns_takes_sparse_weights_of_any_opset() -> None:
    for opset in (11, 21):
        found = import_onnx(net(MATMUL, opset=opset, W=sparse("W", W)))
        assert list(found.parameters) == ["W"]
        np.testing.assert_array_equal(found.parameters["W"], W)


def test_an_older_model_is_converted_with_its_sparse_tensors() -> None:
    model = at_least_opset(net(MATMUL, opset=11, W=sparse("W", W)), 13)
    assert model.opset_import[0].version == 13 and not model.graph.sparse_initializer
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), W)


class Doubled(Module):
    """y = x + x + c."""

    def body(self, g: Any) -> None:
        x = g.input("x", np.float32, (3,))
        g.output("y", x + x + g.constant(np.array([0, 5, 0], np.float32)))


def recorded_with_sparse_constant() -> onnx.ModelProto:
    model = to_proto(Doubled().record())
    (constant,) = [n for f in model.functions for n in f.node if n.op_type == "Constant"]
    dense = numpy_helper.to_array(constant.attribute[0].t)
    del constant.attribute[:]
    constant.attribute.add(
        name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR
    ).sparse_tensor.CopyFrom(sparse("", dense))
    return model


def test_a_recorded_program_with_a_sparse_constant_computes_alone_and_in_another() -> None:
    inner = recorded_with_sparse_constant()

    class Outer(Module):
        def body(self, g: Any) -> None:
            x = g.input("x", np.float32, (3,))
            g.output("y", g.call(inner, x=x)["y"])

    want = np.array([2, 7, 2], np.float32)
    for source in (inner, Outer()):
        found = bb_edge.open_model(compile_edge(source).artifacts[0].data)(np.ones(3, np.float32))
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_])
def test_every_type_keeps_its_values(dtype: Any) -> None:
    dense = np.zeros((3, 2, 2), dtype)
    dense[1, 0, 1] = dense[2, 1, 1] = 1
    model = net(MATMUL, W=sparse("W", W), extra=sparse("extra", dense, coordinates=True))
    found = densified(model)
    assert [t.name for t in found.graph.initializer] == ["W", "extra"]
    got = numpy_helper.to_array(found.graph.initializer[1])
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, dense)


def test_an_empty_one_is_all_zeros() -> None:
    zeros = np.zeros((2, 3), np.float32)
    artifact = compile_plain_model(net(MATMUL, W=sparse("W", zeros))).SerializeToString()
    np.testing.assert_array_equal(bb_edge.open_model(artifact)(X), X @ zeros)


def test_a_model_without_sparse_tensors_is_taken_as_it_is() -> None:
    model = to_proto(Doubled().record())
    assert densified(model) is model


def test_what_is_too_large_when_written_out_is_refused_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = net(MATMUL, W=sparse("W", W))
    huge.graph.sparse_initializer[0].dims[0] = 1 << 50
    with pytest.raises(
        InvalidModelError, match=r"'net', sparse tensor 'W': .* bytes written out, 2147483647"
    ):
        compile_edge(huge)
    with pytest.raises(ModelImportError, match="bytes written out"):
        import_onnx(huge)
    with pytest.raises(ProgramProtoError, match="bytes written out"):
        from_proto(huge)
    monkeypatch.setattr(sparse_tensors, "MAX_DENSE_BYTES", 2 * W.nbytes - 1)
    with pytest.raises(SparseTensorError, match=r"'b': .* takes 24 bytes written out, 23 at most"):
        densified(net(MATMUL, a=sparse("W", W), b=sparse("b", W)))


def broken(change: Any) -> onnx.ModelProto:
    model = net(MATMUL, W=sparse("W", W))
    change(model.graph.sparse_initializer[0])
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([0, 99], np.int64))),
        lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([0, -1], np.int64))),
        lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([0], np.int64))),
        lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([[0, 9], [1, 1]], np.int64))),
        lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array([0.5, 1], np.float32))),
        lambda s: s.values.CopyFrom(helper.make_tensor("W", onnx.TensorProto.STRING, [2], ["a", "b"])),
        lambda s: s.dims.append(-3),
        lambda s: setattr(s.values, "raw_data", b"123"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: Any) -> None:
    model = broken(change)
    with pytest.raises(SparseTensorError, match="sparse tensor 'W'") as caught:
        densified(model)
    assert caught.value.hint
    with pytest.raises(InvalidModelError):
        compile_edge(model)
