"""Handles, operators, literals, and what ONNX calls record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bb_host
from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host import Graph, Output
from bb_host.errors import ArityError, AttributeValueError, ForeignValueError, UnknownOp, ValueTypeError
from bb_host.ir.program import Program
from bb_host.ir.proto import to_proto

Record = Callable[..., Program]


def ops_of(program: Program) -> list[str]:
    return [op.op_type for op in program.functions[0].ops]


def test_operators_record_onnx(record: Record) -> None:
    def body(g: Graph) -> None:
        x, y = g.input("x", "F32", (2, 3)), g.input("y", "F32", (2, 3))
        for value in (x + y, x - y, x * y, x / y, x**y, -x, abs(x), x > y, x < y, x >= y, x <= y, x.equal(y)):
            assert value.shape == (2, 3)
        assert (x @ g.onnx.transpose(y)).shape == (2, 2)

    assert ops_of(record(body)) == (
        [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "Neg",
            "Abs",
            "Greater",
            "Less",
            "GreaterOrEqual",
            "LessOrEqual",
            "Equal",
            "Transpose",
            "MatMul",
        ]
    )


def test_numbers_on_either_side_become_constants_of_the_same_type(record: Record) -> None:
    def body(g: Graph) -> None:
        for dtype in (np.float32, np.float64, np.int32, np.uint8):
            x = g.input(f"x_{np.dtype(dtype).name}", dtype, (2,))
            assert (x + 1).node is (2 * x).node is types.tensor_type(dtype)

    constants = [op.attrs["value"] for op in record(body).functions[0].ops if op.op_type == "Constant"]
    assert [(c.dtype.name, c.tolist()) for c in constants if isinstance(c, np.ndarray)] == [
        (name, number) for name in ("float32", "float64", "int32", "uint8") for number in (1, 2)
    ]


def test_a_number_beside_an_unknown_element_type_is_f32(record: Record) -> None:
    def body(g: Graph) -> None:
        g.output("y", g.input("x", "Tensor") / 32)

    constant = record(body).functions[0].ops[0].attrs["value"]
    assert isinstance(constant, np.ndarray)
    assert constant.dtype == np.float32


def test_equal_constants_of_a_scope_are_one_op(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32")
        g.output("y", (x + 1) * 1 + 2)

    assert ops_of(record(body)) == ["Constant", "Add", "Mul", "Constant", "Add"]


def test_arrays_to_the_left_of_a_value_are_constants(record: Record) -> None:
    def body(g: Graph) -> None:
        y = np.ones((2, 3), np.float32) - g.input("x", "F32", (3,))
        assert isinstance(y, Output)
        assert y.shape == (2, 3)

    assert ops_of(record(body)) == ["Constant", "Sub"]


def test_slicing_follows_numpy(record: Record) -> None:
    reference = pytest.importorskip("onnx.reference")
    data = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    cases: list[Any] = [
        0,
        -1,
        slice(1, 3),
        (slice(None), 2),
        (slice(None, None, -1), slice(0, 2)),
        (1, -1, 3),
    ]

    def body(g: Graph) -> None:
        x = g.input("x", "F32", data.shape)
        for i, case in enumerate(cases):
            g.output(f"y{i}", x[case])

    model = to_proto(record(body))
    function = model.functions[0]
    results = reference.ReferenceEvaluator(function).run(None, {"x": data}, attributes={})
    for case, result in zip(cases, results, strict=True):
        np.testing.assert_array_equal(result, data[case])


def test_elementwise_operators_keep_open_sizes(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", ("n", 4))
        for y in (g.onnx.leaky_relu(x), g.onnx.thresholded_relu(x, alpha=0.5)):
            assert y.shape == ("n", 4)

    record(body)


def test_inputs_may_be_named_or_listed(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2, 3, 1))
        assert g.onnx.squeeze(x, axes=[2]).shape == (2, 3)
        assert g.onnx.unsqueeze(x, [0]).shape == (1, 2, 3, 1)
        assert g.onnx.reshape(x, [-1]).shape == (6,)
        assert g.onnx.reduce_sum(x, axes=[0, 2], keepdims=False).shape == (3,)
        assert g.onnx.concat(x, x, axis=1).shape == (2, 6, 1)
        assert g.onnx.concat([x, x, x], axis=0).shape == (6, 3, 1)
        assert len(g.onnx.split(x, num_outputs=3, axis=1)) == 3
        assert len(g.onnx.split(x, [1, 2], axis=1)) == 2
        assert g.onnx.gather(x, [0, 1, 1], axis=1).shape == (2, 3, 1)
        assert g.onnx.cast(x, np.int32).node is types.TENSOR_I32
        assert g.onnx.where(x > 0, x, 0.0).node is types.TENSOR_F32

    program = record(body)
    shapes = [op.attrs["value"].dtype.name for op in program.functions[0].ops if op.op_type == "Constant"]
    assert set(shapes) == {"int64", "float32"}


def test_operators_outside_the_catalog_are_found_by_name(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2, 3))
        values, indices = g.onnx.top_k(x, [2], axis=1)
        assert (values.node, indices.node) == (types.TENSOR_F32, types.TENSOR_I64)
        assert g.onnx.ArgMax(x, axis=1, keepdims=0).type == ValueType(types.TENSOR_I64, (2,))
        assert g.onnx.and_(x > 0, x < 1).node is types.TENSOR_BOOL
        assert g.onnx.op("Einsum", [x, x], equation="ij,ij->i").node is types.TENSOR_F32

    assert {"TopK", "ArgMax", "And", "Einsum"} <= set(ops_of(record(body)))


def test_aliases_are_recorded_as_other_operators(record: Record) -> None:
    def body(g: Graph) -> None:
        a, b = g.onnx.zeros((2, 3)), g.onnx.ones([3, 2], "F32")
        g.output("y", g.onnx.dot(a, b))
        g.output("z", g.onnx.scatter(a, [[0, 0, 0]], [[1, 2, 3]]))

    assert ops_of(record(body)) == [
        "Constant",
        "Constant",
        "MatMul",
        "Constant",
        "Constant",
        "ScatterElements",
    ]


def test_every_onnx_operator_of_the_recorded_opset_has_a_name() -> None:
    from bb_host.dsl.onnx_names import onnx_name

    for schema in onnx.defs.get_all_schemas():
        if schema.domain == "" and not schema.deprecated:
            assert onnx_name(schema.name) == schema.name


CASES: list[tuple[type[Exception], str, Callable[[Graph, Output], Any]]] = [
    (ValueTypeError, "has no truth value", lambda g, x: bool(x > 0)),
    (ValueTypeError, "cannot be unpacked", lambda g, x: [*x]),
    (ValueTypeError, "values do not change", lambda g, x: x.__setitem__(0, 1)),
    (ValueTypeError, "an index is a number or a slice", lambda g, x: x[[1, 2]]),
    (ValueTypeError, "'text' is neither a recorded value nor a number", lambda g, x: x + "text"),
    (ArityError, "Add wants an input B", lambda g, x: g.onnx.add(x, None)),
    (ValueTypeError, "wants one element type", lambda g, x: x + g.input("i", "I64")),
    (ValueTypeError, "0.5 does not fit Tensor<I64>", lambda g, x: g.input("i", "I64") * 0.5),
    (ValueTypeError, "300 does not fit Tensor<U8>", lambda g, x: g.input("i", "U8") + 300),
    (ValueTypeError, "do not broadcast", lambda g, x: x + np.zeros(4, np.float32)),
    (ValueTypeError, "inner dimensions 3 and 2 differ", lambda g, x: x @ x),
    (ValueTypeError, "Relu: input X expects a Tensor", lambda g, x: g.onnx.relu(g.pulse())),
    (ValueTypeError, "names no type", lambda g, x: g.onnx.cast(x, "F31")),
    (ArityError, "Relu takes at most 1 inputs, not 2", lambda g, x: g.onnx.op("Relu", x, x)),
    (ArityError, "MatMul wants an input B", lambda g, x: g.onnx.op("MatMul", x)),
    (ArityError, "input A is given twice", lambda g, x: g.onnx.op("MatMul", x, A=x, B=x)),
    (ArityError, "Concat wants at least one value", lambda g, x: g.onnx.concat([], axis=0)),
    (ArityError, "Split wants num_outputs", lambda g, x: g.onnx.split(x, g.input("i", "I64"))),
    (ArityError, "Relu has at most 1 outputs", lambda g, x: g.onnx.op("Relu", x, outputs=2)),
    (AttributeValueError, "Relu has no attribute or input 'axis'", lambda g, x: g.onnx.op("Relu", x, axis=1)),
    (
        AttributeValueError,
        "attribute axis is int, not 'one'",
        lambda g, x: g.onnx.op("Softmax", x, axis="one"),
    ),
    (AttributeValueError, "Concat wants an attribute axis", lambda g, x: g.onnx.op("Concat", x, x)),
    (AttributeValueError, "perm is ints", lambda g, x: g.onnx.transpose(x, "ab")),
    (UnknownOp, "no operator 'frobnicate'", lambda g, x: g.onnx.frobnicate(x)),
    (UnknownOp, "it came with ONNX 24; write x * g.onnx.sigmoid(x)", lambda g, x: g.onnx.swish(x)),
    (UnknownOp, "it came with ONNX 26; write it with the operators", lambda g, x: g.onnx.cum_prod(x)),
    (UnknownOp, "syscall has no op 'frobnicate'", lambda g, x: g.syscall.frobnicate()),
]


@pytest.mark.parametrize(("kind", "what", "call"), CASES, ids=[what for _, what, _ in CASES])
def test_refusals(
    module: Callable[..., Any], kind: type[Exception], what: str, call: Callable[[Graph, Output], Any]
) -> None:
    def body(g: Graph) -> None:
        call(g, g.input("x", "F32", (2, 3)))

    with pytest.raises(kind, match=None) as caught:
        module(body).record()
    assert what in str(caught.value)
    assert str(caught.value).startswith("test_values.py:")


def test_values_of_another_graph_are_refused(module: Callable[..., Any]) -> None:
    kept: list[Output] = []
    module(lambda g: kept.append(g.input("x", "F32"))).record()

    def body(g: Graph) -> None:
        g.onnx.relu(kept[0])

    with pytest.raises(ForeignValueError, match="unknown here"):
        module(body).record()


def test_types_are_named_in_many_ways(record: Record) -> None:
    def body(g: Graph) -> None:
        for i, (like, node) in enumerate(
            (
                (np.float16, types.TENSOR_F16),
                ("float32", types.TENSOR_F32),
                ("Tensor<U8>", types.TENSOR_U8),
                (types.TRIGGER, types.TRIGGER),
                ("PeerIdVec", types.PEER_ID_VEC),
                (ValueType(types.TENSOR_I8, (1,)), types.TENSOR_I8),
                (None, types.ANY),
            )
        ):
            assert g.input(f"i{i}", like).node is node

    record(body)


def test_recorded_shapes_agree_with_onnx(record: Record) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", "F32", (2, 3, 4))
        w = g.input("w", "F32", (4, 5))
        o = g.onnx
        for value in (
            *(o.matmul(x, w), o.gemm(w, w, trans_a=True), o.transpose(x, [2, 0, 1]), o.reshape(x, [0, -1])),
            *(o.reduce_mean(x, [1]), o.reduce_max(x, [-1], keepdims=False), o.softmax(x), x + w[:, 0]),
            *(o.gather(x, [[0, 1]], axis=2), o.unsqueeze(x, [0, 4]), o.concat(x, x, axis=-1), x > 1.0),
            *(o.arg_max(x, axis=1, keepdims=0), o.shape(x), o.cast(x, "I8"), o.where(x > 0, x, w[:3, :4])),
            *(o.squeeze(o.unsqueeze(x, [1]), [1]), o.layer_normalization(x, o.ones((4,))), x**2),
        ):
            g.onnx.identity(value)

    program = record(body)
    function = program.functions[0]
    graph = onnx.helper.make_graph(
        list(to_proto(program).functions[0].node),
        "g",
        [
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 4]),
            onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 5]),
        ],
        [],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    compared = 0
    for info in inferred.graph.value_info:
        known = function.types[info.name]
        assert known.node.elem_type == info.type.tensor_type.elem_type, info.name
        if known.shape is not None:
            dims = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
            assert known.shape == dims, info.name
            compared += 1
    assert compared > 30


def test_constants_of_text_are_bytes(record: Record) -> None:
    def body(g: Graph) -> None:
        value = g.constant("hello")
        assert value.node is types.BYTES
        g.app_emit("greeting", value)
        assert g.constant([1, 2]).type == ValueType(types.TENSOR_I64, (2,))
        assert g.constant(1.5).type == ValueType(types.TENSOR_F32, ())
        assert g.constant(np.float64(1.5)).node is types.TENSOR_F64

    op = record(body).functions[0].ops[0]
    assert (op.domain, op.op_type, op.attrs) == (keys.SYSCALL_DOMAIN, "Constant", {"value": b"hello"})


def test_our_own_comparison_of_handles_is_noticed(record: Record) -> None:
    """The guard of these tests (tests/aids/handles.py) sees every way to ask for `==` on handles."""
    ours = str(Path(bb_host.__file__).parent / "dsl" / "imagined.py")
    for text in (
        "x == y",
        "x != y",
        "x in [y]",
        "[y].index(x)",
        "[y].remove(x)",
        "[y].count(x)",
        "x in (y, x)",
    ):

        def body(g: Graph, text: str = text) -> None:
            eval(compile(text, ours, "eval"), {"x": g.input("x", "F32"), "y": g.input("y", "F32")})

        with pytest.raises(AssertionError, match="use `is`"):
            record(body)
