"""Models among control flow, calls and parameters; ports that contradict what is declared."""

from __future__ import annotations

import numpy as np
import pytest

from bb_edge.backends.tflite.backend import TFLiteBackend
from bb_edge.backends.tflite.bodies import MAX_PROGRAMS
from bb_edge.backends.tflite.errors import TFLiteModelError
from bb_edge.backends.tflite.probe import interpreter
from bb_edge.ir import onnx_pb2, types
from bb_edge.ir.type_protos import value_info
from bb_edge.ir.types import ValueType
from bb_edge.roles.errors import BackendError, BackendRunError, BackendWalkError

pytestmark = pytest.mark.skipif(interpreter().make is None, reason=interpreter().why_not)

X = np.array([[-1, 2, -3, 4]], np.float32)
GRAPH = onnx_pb2.AttributeProto.GRAPH


def branch(node, name, op_type, given, made):
    graph = node.attribute.add(name=name, type=GRAPH).g
    graph.name = name
    graph.node.add(op_type=op_type, input=given.split(), output=[made])
    graph.output.add(name=made)
    return graph


@pytest.mark.parametrize("sign", [1, -1])
def test_an_if_captures_what_a_model_makes_and_a_model_reads_what_it_gives(make, sign):
    f = make.function("x c", "y")
    make.model_node(f, "x", "a")
    node = make.op(f, "If", "c", "b")
    branch(node, "then_branch", "Neg", "a", "t")
    branch(node, "else_branch", "Add", "a x", "e")
    make.model_node(f, "b a", "y", make.add())
    program = TFLiteBackend().prepare(f)
    for condition in (True, False):
        x = sign * X
        high = np.maximum(x, 0)
        want = (-high if condition else high + x) + high
        np.testing.assert_array_equal(program.run((x, np.array(condition)))[0], want)


def test_a_loop_between_two_models(make):
    f = make.function("x n", "y")
    make.model_node(f, "x", "a")
    make.op(f, "Loop", "n go a", "b").attribute.add(name="body", type=GRAPH)
    f.input.append("go")
    body = f.node[-1].attribute[0].g
    body.name = "body"
    for name in ("i", "going", "v"):
        body.input.add(name=name)
    body.node.add(op_type="Identity", input=["going"], output=["on"])
    body.node.add(op_type="Add", input=["v", "a"], output=["w"])
    for name in ("on", "w"):
        body.output.add(name=name)
    make.model_node(f, "b x", "y", make.add())
    program = TFLiteBackend().prepare(f)
    for n in (0, 1, 5):
        found = program.run((X, np.array(n, np.int64), np.array(True)))[0]
        np.testing.assert_array_equal(found, np.maximum(X, 0) * (n + 1) + X)


def test_a_model_inside_of_a_branch_is_refused_by_name(make):
    f = make.function("x c", "y")
    node = make.op(f, "If", "c", "y")
    make.model_node(branch(node, "then_branch", "Neg", "x", "t"), "x", "u")
    branch(node, "else_branch", "Neg", "x", "e")
    with pytest.raises(BackendError, match="Model"):
        TFLiteBackend().prepare(f)


def test_calls_of_functions_with_models_nest(make):
    inner = make.function("p", "q r", "inner")
    make.model_node(inner, "p", "q")
    make.op(inner, "Neg", "q", "r")
    middle = make.function("s", "t", "middle")
    make.call(middle, "inner", "s", "u v")
    make.model_node(middle, "u v", "w", make.add())
    make.op(middle, "Sub", "w s", "t")
    f = make.function("x", "y z")
    make.call(f, "middle", "x", "a")
    make.call(f, "middle", "a", "y")
    make.op(f, "Identity", "a", "z")
    program = TFLiteBackend().prepare(f, make.functions(inner, middle))
    y, z = program.run((X,))
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, -X)
    y[:] = 7
    np.testing.assert_array_equal(program.run((X,))[0], X)


def test_calls_that_never_end_or_multiply_are_refused(make):
    f = make.function("x", "y", "f")
    make.call(f, "f", "x", "a")
    make.model_node(f, "a", "y")
    with pytest.raises(BackendWalkError, match="deeper"):
        TFLiteBackend().prepare(f, make.functions(f))
    several = [make.function("x", "y", "f0")]
    make.model_node(several[0], "x", "y")
    for depth in range(1, 14):
        g = make.function("x", "y", f"f{depth}")
        for i in range(4):
            make.call(g, f"f{depth - 1}", "x" if i == 0 else f"v{i}", "y" if i == 3 else f"v{i + 1}")
        several.append(g)
    with pytest.raises(BackendWalkError, match=str(MAX_PROGRAMS)):
        TFLiteBackend().prepare(several[-1], make.functions(*several))
    # The same without any model is looked through once, not 4^13 times; NumPy has limits of its own.
    del several[0].node[:]
    make.op(several[0], "Neg", "x", "y")
    with pytest.raises(BackendError):
        TFLiteBackend().prepare(several[-1], make.functions(*several))
    with pytest.raises(BackendWalkError, match="other inputs or outputs than its function"):
        wrong = make.function("x", "y")
        make.call(wrong, "g", "x x", "y")
        g = make.function("x", "y", "g")
        make.model_node(g, "x", "y")
        TFLiteBackend().prepare(wrong, make.functions(g))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_model_reads_a_resident_input_in_place(make, mixed):
    f = make.function("x p c" if mixed else "x p", "y")
    if mixed:
        node = make.op(f, "If", "c", "b")
        branch(node, "then_branch", "Neg", "p", "t")
        branch(node, "else_branch", "Identity", "p", "e")
        make.op(f, "Add", "b p", "a")
        make.model_node(f, "a p", "s", make.add())
        make.op(f, "Mul", "s x", "y")
    else:
        make.model_node(f, "x p", "y", make.add())
    parameter = np.array([[1, 2, 3, 4]], np.float32)
    program = TFLiteBackend().prepare(f, {}, {"p": parameter})
    assert program.input_names == (("x", "c") if mixed else ("x",))
    for step in (0, 1):
        parameter += step
        if mixed:
            for condition in (True, False):
                want = (parameter if condition else 3 * parameter) * X
                np.testing.assert_array_equal(program.run((X, np.array(condition)))[0], want)
        else:
            np.testing.assert_array_equal(program.run((X,))[0], X + parameter)
    with pytest.raises(BackendRunError, match="not an input"):
        TFLiteBackend().prepare(f, {}, {"q": parameter})


def test_a_value_that_is_made_twice_is_refused(make):
    for made in ("x", "a"):
        f = make.function("x", "y")
        make.model_node(f, "x", "a")
        make.model_node(f, "x", made)
        make.op(f, "Neg", "a", "y")
        with pytest.raises(BackendWalkError, match="twice"):
            TFLiteBackend().prepare(f)
    f = make.function("x", "y")
    make.model_node(f, "b", "y")
    make.op(f, "Neg", "y", "b")
    with pytest.raises(BackendWalkError, match="nothing produces"):
        TFLiteBackend().prepare(f)


F32 = types.tensor_of_elem(1)
WRONG = [
    ("x", ValueType(types.tensor_of_elem(7), ("N", 4))),
    ("x", ValueType(F32, ("N", 5))),
    ("x", ValueType(F32, (4,))),
    ("y", ValueType(types.tensor_of_elem(10), ("N", 4))),
    ("y", ValueType(F32, (1, 4, 1))),
    ("y", ValueType(F32, (1, 3))),
]


@pytest.mark.parametrize(("port", "declared"), WRONG, ids=str)
@pytest.mark.parametrize("called", [False, True])
def test_ports_that_contradict_what_is_declared_are_refused(make, function_of, port, declared, called):
    f = function_of()
    functions = {}
    if called:  # the entry declares; what it calls holds the model
        inner = make.function("p", "q", "inner")
        make.model_node(inner, "p", "q")
        f, functions = make.function("x", "y"), make.functions(inner)
        make.call(f, "inner", "x", "y")
    f.value_info.append(value_info(port, declared))
    with pytest.raises(TFLiteModelError, match=f"{'input' if port == 'x' else 'output'} 0 of its model"):
        TFLiteBackend().prepare(f, functions)


FITS = [
    (-1, None),
    (-1, ("N", 4)),
    (-1, (None, 4)),
    (-1, (3, 4)),
    (-1, (1, None)),
    (3, ("N", 4)),
    (3, (3, 4)),
]


@pytest.mark.parametrize(("rows", "shape"), FITS, ids=str)
def test_ports_that_fit_what_is_declared_are_taken(make, function_of, rows, shape):
    f = function_of(make.relu(rows))
    f.value_info.append(value_info("x", ValueType(F32, shape)))
    f.value_info.append(value_info("y", ValueType(types.TENSOR, shape)))
    x = np.repeat(X, 3, 0)
    np.testing.assert_array_equal(TFLiteBackend().prepare(f).run((x,))[0], np.maximum(x, 0))
