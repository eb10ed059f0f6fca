"""Tensor ops whose sizes, axes, element types or attributes cannot be: refused where they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bb_edge.backends import NumPyBackend
from bb_edge.roles.backend import Backend
from bb_host import Compiler, Graph, Module
from bb_host.errors import (
    AttributeValueError,
    BackendLacksOps,
    MalformedOp,
    TypeConstraintFailed,
    ValueTypeError,
)
from bb_host.ir.program import Program
from tests.aids.refusals import refused

Record = Callable[..., Program]


def inputs(g: Graph) -> dict[str, Any]:
    """Values of the kinds that programs have: sizes known, and a batch of open size."""
    return {
        "v": g.input("v", np.float32, [4]),
        "m": g.input("m", np.float32, [None, 4]),
        "t": g.input("t", np.float32, [2, 3]),
        "image": g.input("image", np.float32, [None, 3, 8, 8]),
        "i": g.input("i", np.int64, [2]),
    }


AT_RECORDING: list[tuple[Callable[..., Any], str]] = [
    (lambda g, v, **_: g.onnx.softmax(v, axis=3), "axis 3 is out of range for rank 1"),  # <-
    (lambda g, m, **_: g.onnx.softmax(m, axis=3), "axis 3 is out of range for rank 2"),  # <-
    (lambda g, m, **_: g.onnx.log_softmax(m, axis=-3), "axis -3 is out of range"),  # <-
    (lambda g, v, **_: g.onnx.reduce_sum(v, [5]), "axis 5 is out of range for rank 1"),  # <-
    (lambda g, m, **_: g.onnx.reduce_mean(m, [2]), "axis 2 is out of range for rank 2"),  # <-
    (lambda g, m, **_: g.onnx.reduce_max(m, [0, 0]), "name an axis twice"),  # <-
    (lambda g, m, **_: g.onnx.reduce_min(m, [1, -1]), "name an axis twice"),  # <-
    (lambda g, v, **_: g.onnx.squeeze(v, [0]), "axis 0 has 4 elements"),  # <-
    (lambda g, m, **_: g.onnx.squeeze(m, [1]), "axis 1 has 4 elements"),  # <-
    (lambda g, m, **_: g.onnx.squeeze(m, [7]), "axis 7 is out of range"),  # <-
    (lambda g, m, **_: g.onnx.unsqueeze(m, [5]), "axis 5 is out of range for rank 3"),  # <-
    (lambda g, v, **_: g.onnx.gather(v, 9), "index 9 is out of range for an axis of 4"),  # <-
    (lambda g, m, **_: g.onnx.gather(m, [0, -5], axis=1), "index -5 is out of range"),  # <-
    (lambda g, m, **_: g.onnx.gather(m, [0], axis=2), "axis 2 is out of range"),  # <-
    (lambda v, **_: v[7], "index 7 is out of range: axis 0 of"),  # <-
    (lambda m, **_: m[:, -5], "index -5 is out of range: axis 1 of"),  # <-
    (lambda g, t, **_: g.onnx.transpose(t, perm=[0, 5]), "perm [0, 5]"),  # <-
    (lambda g, t, **_: g.onnx.transpose(t, perm=[0]), "perm [0]"),  # <-
    (lambda g, t, **_: g.onnx.transpose(t, perm=[1, 1]), "perm [1, 1]"),  # <-
    (lambda g, t, **_: g.onnx.concat(t, t, axis=2), "axis 2 is out of range"),  # <-
    (lambda g, m, t, **_: g.onnx.concat(m, t, axis=0), "sizes 3, 4 differ in axis 1"),  # <-
    (lambda g, v, m, **_: g.onnx.concat(v, m, axis=0), "inputs of rank 1, 2 cannot be joined"),  # <-
    (lambda g, v, **_: g.onnx.reshape(v, [3]), "4 elements do not fill shape [3]"),  # <-
    (lambda g, t, **_: g.onnx.reshape(t, [4, -1]), "6 elements do not fill shape [4, -1]"),  # <-
    (lambda g, v, **_: g.onnx.reshape(v, [-1, -1]), "[-1, -1] is not a shape"),  # <-
    (lambda g, v, **_: g.onnx.reshape(v, [-2]), "[-2] is not a shape"),  # <-
    (lambda g, v, **_: g.onnx.split(v, [3, 3]), "sizes [3, 3] do not add up to the 4 elements"),  # <-
    (lambda g, m, **_: g.onnx.split(m, [3, 3], axis=1), "do not add up to the 4 elements of axis 1"),  # <-
    (lambda g, v, **_: g.onnx.split(v, num_outputs=7), "cannot be split into 7 parts"),  # <-
    (lambda g, v, **_: g.onnx.split(v, num_outputs=2, axis=1), "axis 1 is out of range"),  # <-
    (lambda g, v, **_: g.onnx.slice(v, [0], [2], [3]), "axis 3 is out of range"),  # <-
    (lambda g, m, **_: g.onnx.slice(m, [0], [2], [2]), "axis 2 is out of range for rank 2"),  # <-
    (lambda g, v, **_: g.onnx.slice(v, [0], [2], [0], [0]), "a step of 0"),  # <-
    (lambda g, v, **_: g.onnx.expand(v, [3, 5]), "4 and 5 do not broadcast"),  # <-
    (lambda v, t, **_: v + t, "4 and 3 do not broadcast"),  # <-
    (lambda g, v, t, **_: g.onnx.where(v > 0, t, t), "do not broadcast"),  # <-
    (lambda m, t, **_: m @ t, "inner dimensions 4 and 2 differ"),  # <-
    (lambda g, m, t, **_: g.onnx.gemm(m, t), "inner dimensions 4 and 2 differ"),  # <-
    (lambda g, m, t, **_: g.onnx.gemm(m, t, trans_b=True), "inner dimensions 4 and 3 differ"),  # <-
    (lambda g, image, **_: g.onnx.conv(image, np.zeros((4, 2, 3, 3), np.float32)), "3 channels"),  # <-
    (lambda g, image, **_: g.onnx.max_pool(image, [9, 9]), "window of 9 is larger"),  # <-
    (lambda g, image, **_: g.onnx.depth_to_space(image, blocksize=2), "3 channels do not divide"),  # <-
    (lambda g, i, **_: g.onnx.one_hot(i, 3, [0.0, 1.0], axis=7), "axis 7 is out of range"),  # <-
    (lambda g, v, **_: g.onnx.top_k(v, [9], outputs=2), "k=9 of an axis with 4"),  # <-
    (lambda g, m, **_: g.onnx.top_k(m, [9], outputs=2), "k=9 of an axis with 4 elements"),  # <-
    (lambda g, t, **_: g.onnx.gather_elements(t, [[5, 0]]), "index 5 is out of range"),  # <-
    (lambda g, m, **_: g.onnx.top_k(m, [1], axis=2, outputs=2), "axis 2 is out of range"),  # <-
    (lambda g, v, **_: g.onnx.pad(v, [1, 1, 1]), "1 axes need 2 pads, got 3"),  # <-
    (lambda g, v, **_: g.onnx.tile(v, [1, 2]), "do not fit shape (4,)"),  # <-
    (lambda g, v, **_: g.onnx.cum_sum(v, 3), "axis 3 is out of range"),  # <-
    (lambda g, v, **_: g.onnx.arg_max(v, axis=3), "axis 3 is out of range"),  # <-
    (lambda g, t, **_: g.onnx.flatten(t, axis=3), "axis 3 is out of range"),  # <-
    (lambda g, t, **_: g.onnx.einsum(t, t, equation="ij,jk->ik"), "does not fit"),  # <-
    (lambda g, t, **_: g.onnx.layer_normalization(t, np.ones(4, np.float32)), "do not broadcast"),  # <-
    (lambda g, v, **_: g.onnx.scatter(v, [1], [1.0, 2.0]), "updates (2,)"),  # <-
    (lambda g, **_: g.onnx.range(0, 4, 0), "a delta of 0"),  # <-
]


@pytest.mark.parametrize(("body", "words"), AT_RECORDING, ids=[words for _, words in AT_RECORDING])
def test_sizes_that_are_known_are_refused_at_the_line(record: Record, body: Any, words: str) -> None:
    with refused(ValueTypeError, words):
        record(lambda g: body(g=g, **inputs(g)))


@pytest.mark.parametrize("to", [0, 999, -1])
def test_a_cast_to_a_type_that_onnx_does_not_have(record: Record, to: int) -> None:
    with refused(AttributeValueError, f"ONNX has no element type {to}"):
        record(lambda g: g.onnx.cast(g.input("x", np.float32), to=to))  # <-


def test_an_index_in_a_large_constant_is_looked_at_in_every_op_of_a_kind(record: Record) -> None:
    inside = np.zeros(2000, np.int64)
    outside = inside.copy()
    outside[1500] = 7

    def body(g: Graph) -> None:
        v = g.input("v", np.float32, [4])
        g.output("first", g.onnx.gather(v, inside))
        g.output("second", g.onnx.gather(v, outside))  # <-

    with refused(ValueTypeError, "index 7 is out of range for an axis of 4"):
        record(body)


AT_COMPILING: list[tuple[Callable[..., Any], type[Any], str]] = [
    (lambda g, v, **_: g.onnx.cast(v, to=8), TypeConstraintFailed, "data type 8 is not supported"),  # <-
    (lambda g, v, **_: g.onnx.gelu(v, approximate="exact"), MalformedOp, "approximate='exact'"),  # <-
    (lambda g, v, **_: g.onnx.pad(v, [1, 1], mode="mirror"), MalformedOp, "mode='mirror'"),  # <-
    (
        lambda g, image, **_: g.onnx.conv(image, np.zeros((4, 3, 3, 3), np.float32), auto_pad="FOO"),  # <-
        MalformedOp,
        "auto_pad='FOO'",
    ),
    (
        lambda g, image, **_: g.onnx.conv(image, np.zeros((4, 3, 3, 3), np.float32), pads=[1, 1]),  # <-
        MalformedOp,
        "pads [1, 1] do not fit",
    ),
    (lambda g, i, **_: g.onnx.leaky_relu(i), TypeConstraintFailed, "element type int64"),  # <-
    (lambda g, i, **_: g.onnx.sqrt(i), TypeConstraintFailed, "int64"),  # <-
]


@pytest.mark.parametrize(("body", "kind", "words"), AT_COMPILING, ids=[words for *_, words in AT_COMPILING])
def test_what_the_bound_backend_cannot_run_is_refused(
    module: Callable[..., Module], body: Any, kind: type[Any], words: str
) -> None:
    with refused(kind, words):
        Compiler().compile(module(lambda g: g.output("y", body(g=g, **inputs(g)))))


class Everything(Backend):
    """A backend that says it runs whatever comes."""

    TYPE_NAME = "test.Everything"

    @classmethod
    def construct(cls, env: Any) -> Everything:
        return cls()

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = "") -> bool:
        return True

    def execute(self, graph: Any, inputs: Any, attrs: Any = None) -> dict[str, Any]:
        raise NotImplementedError


class OnlyAdd(NumPyBackend):
    """A small backend."""

    TYPE_NAME = "test.OnlyAdd"

    @classmethod
    def supported_ops(cls) -> frozenset[str]:
        return frozenset({"Add", "Constant"})

    @classmethod
    def supports(cls, op_type: str, version: int, domain: str = "") -> bool:
        return op_type in cls.supported_ops()


def test_what_only_the_kernels_refuse_another_backend_may_run(module: Callable[..., Module]) -> None:
    def roots(g: Graph) -> None:
        g.output("y", g.onnx.sqrt(g.input("x", np.int64, [2])))

    def sums(g: Graph) -> None:
        g.output("y", g.input("x", np.float32, [2]) + g.input("z", np.float32, [3]))  # <-

    compiler = Compiler().bind_backend("backend", Everything)
    compiler.compile(module(roots))
    with refused(ValueTypeError, "2 and 3 do not broadcast"):
        compiler.compile(module(sums))


# --- operators that nothing runs


def test_operators_without_a_kernel_are_refused_at_compile_all_at_once(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", np.float32, [2])
        noise = g.onnx.random_normal_like(x)  # <-
        g.output("y", x + noise + g.onnx.random_uniform_like(x))

    words = "RandomNormalLike", "RandomUniformLike", "bb.NumPyBackend", "g.rng_u64(trigger), 64 bits, or a"
    with refused(BackendLacksOps, *words):
        Compiler().compile(module(body))


def test_operators_in_a_branch_count(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x, c = g.input("x", np.float32, [2]), g.input("c", np.bool_, [])
        y = g.onnx.if_(c, lambda b: b.onnx.bernoulli(x), lambda b: b.onnx.relu(x))  # <-
        g.output("y", y)

    with refused(BackendLacksOps, "Bernoulli"):
        Compiler().compile(module(body))


def test_a_bound_backend_is_asked_by_its_class(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", np.float32, [2])
        g.output("y", g.onnx.softmax(x + x))  # <-

    with refused(BackendLacksOps, "test.OnlyAdd has no Softmax"):
        Compiler().bind_backend("backend", OnlyAdd).compile(module(body))
    Compiler().bind_backend("backend", "acme.OnTheDeviceAlone").compile(module(body))


# --- models that come as protos: the same rules, without a recorder


def proto(node: onnx.NodeProto, shape: list[int | str], **constants: list[int]) -> onnx.ModelProto:
    """A recorded program whose one op is `node`, over `x` of a shape."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y"))
    y.type.tensor_type.ClearField("shape")
    nodes = [helper.make_node("Constant", [], [name], value_ints=value) for name, value in constants.items()]
    function = helper.make_function(
        "acme", "Main", ["x"], ["y"], [*nodes, node], [helper.make_opsetid("", 21)], value_info=[x, y]
    )
    return helper.make_model(
        helper.make_graph([], "Main", [], []),
        functions=[function],
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)],
        ir_version=10,
    )


PROTOS: list[tuple[onnx.ModelProto, type[Any], str]] = [
    (proto(helper.make_node("Softmax", ["x"], ["y"], axis=3), [4]), TypeConstraintFailed, "axis 3"),
    (proto(helper.make_node("Softmax", ["x"], ["y"], axis=3), ["n", 4]), TypeConstraintFailed, "axis 3"),
    (proto(helper.make_node("ReduceSum", ["x", "a"], ["y"]), [4], a=[5]), TypeConstraintFailed, "axis 5"),
    (proto(helper.make_node("Squeeze", ["x", "a"], ["y"]), [4], a=[0]), TypeConstraintFailed, "4 elements"),
    (
        proto(helper.make_node("Gather", ["x", "a"], ["y"], axis=1), ["n", 4], a=[9]),
        TypeConstraintFailed,
        "index 9",
    ),
    (proto(helper.make_node("Reshape", ["x", "a"], ["y"]), [4], a=[3]), TypeConstraintFailed, "[3]"),
    (proto(helper.make_node("Cast", ["x"], ["y"], to=999), [4]), TypeConstraintFailed, "999"),
    (proto(helper.make_node("TopK", ["x", "a"], ["y", "i"]), [4], a=[9]), TypeConstraintFailed, "k=9"),
    (proto(helper.make_node("Gelu", ["x"], ["y"], approximate="no"), ["n", 4]), MalformedOp, "approximate"),
    (proto(helper.make_node("Softmax", ["x"], ["y"], axis=1.5), [4, 4]), MalformedOp, "axis must be an int"),
    (proto(helper.make_node("Softmax", ["x"], ["y"], axes=[1]), [4, 4]), MalformedOp, "attribute axes"),
]


@pytest.mark.parametrize(("model", "kind", "words"), PROTOS, ids=[words for *_, words in PROTOS])
def test_programs_that_come_as_protos_are_held_to_the_same(
    model: onnx.ModelProto, kind: type[Any], words: str
) -> None:
    with refused(kind, words, marked=False):
        Compiler().compile(model)


# --- and what is right stays right


def test_what_is_right_is_not_refused(compute: Callable[..., dict[str, Any]]) -> None:
    def body(g: Graph) -> None:
        m = g.input("m", np.float32, [None, 4])
        g.output("softmax", g.onnx.softmax(m, axis=-2))
        g.output("sum", g.onnx.reduce_sum(m, [-1], keepdims=False))
        g.output("last", m[:, -1])
        first, second = g.onnx.split(m, [1, 3], axis=1)
        g.output("first", first)
        g.output("second", second)
        g.output("flat", g.onnx.reshape(m, [-1]))
        g.output("noop", g.onnx.reduce_sum(m, [], noop=True))

    m = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = compute(body, {"m": m})
    np.testing.assert_array_equal(found["sum"], m.sum(-1))
    np.testing.assert_array_equal(found["last"], m[:, -1])
    np.testing.assert_array_equal(found["second"], m[:, 1:])
    np.testing.assert_array_equal(found["flat"], m.reshape(-1))
    np.testing.assert_array_equal(found["noop"], m)
