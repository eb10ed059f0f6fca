"""From protos to flat graphs: names, calls, bodies, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bb_edge.backends import lowering
from bb_edge.backends.flat_graph import OMITTED
from bb_edge.backends.lowering import lower
from bb_edge.ir import onnx_pb2
from bb_edge.roles.errors import BackendWalkError

Make = Callable[..., onnx_pb2.FunctionProto]


def test_nodes_that_no_output_needs_are_dropped(make: Make) -> None:
    flat = lower(make("a b", "y", [("Add", "a b", "y"), ("Mul", "a b", "unused")]))
    assert [node.op_type for node in flat.nodes] == ["Add"]


def test_constants_become_arrays(make: Make) -> None:
    two = np.array([2.0], np.float32)
    flat = lower(make("a", "y", [("Constant", "", "c", {"value": two}), ("Mul", "a c", "y")]))
    assert [node.op_type for node in flat.nodes] == ["Mul"]
    (constant,) = flat.constants.values()
    np.testing.assert_array_equal(constant, two)


def test_omitted_values_have_no_number(make: Make) -> None:
    flat = lower(make("x hi", "y", [("Clip", "x _ hi", "y")]))
    assert flat.nodes[0].inputs[1] == OMITTED


def test_calls_are_inlined_with_their_attributes(make: Make) -> None:
    inner = make("p", "q", [("LeakyRelu", "p", "r"), ("Neg", "r", "q")], domain="d")
    inner.name = "g"
    reference = inner.node[0].attribute.add(name="alpha", type=onnx_pb2.AttributeProto.FLOAT)
    reference.ref_attr_name = "slope"
    inner.attribute.append("slope")
    outer = make("x", "y", [("d::g", "x", "t", {"slope": 0.25}), ("d::g", "t", "y", {"slope": 0.5})])
    flat = lower(outer, {("d", "g"): inner})
    assert [node.op_type for node in flat.nodes] == ["LeakyRelu", "Neg", "LeakyRelu", "Neg"]
    assert [flat.nodes[i].attrs["alpha"] for i in (0, 2)] == [0.25, 0.5]
    assert flat.nodes[2].inputs == flat.nodes[1].outputs


def test_an_attribute_default_of_a_function_applies(make: Make) -> None:
    function = make("x", "y", [("LeakyRelu", "x", "y")])
    function.node[0].attribute.add(name="alpha", type=1).ref_attr_name = "slope"
    function.attribute_proto.add(name="slope", type=1, f=0.125)
    assert lower(function).nodes[0].attrs["alpha"] == 0.125


def test_what_a_body_reads_from_outside_is_appended_to_its_inputs(
    make: Make, make_graph: Callable[..., onnx_pb2.GraphProto]
) -> None:
    then = make_graph("", "r", [("Add", "x z", "r")])
    other = make_graph("", "s", [("Neg", "x", "s")])
    flat = lower(make("c x z", "y", [("If", "c", "y", {"then_branch": then, "else_branch": other})]))
    (node,) = flat.nodes
    assert node.n_formal == 1
    assert set(node.inputs) == set(flat.inputs)
    assert len(node.bodies["then_branch"].captures) == 2
    assert len(node.bodies["else_branch"].captures) == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "nodes", "message"),
    [
        ("a", "y", [("Neg", "b", "y")], "nothing produces the value 'b'"),
        ("a", "y", [("Neg", "a", "t")], "nothing produces the value 'y'"),
        ("a", "y", [("Neg", "a", "y"), ("Abs", "a", "y")], "produced twice"),
        ("a a", "a", [], "produced twice"),
        ("a", "y", [("d::missing", "a", "y")], "no function d.missing"),
        ("a", "y", [("Neg", "t", "y"), ("Neg", "a", "t")], "nothing produces the value 't'"),
    ],
)
def test_malformed_graphs_are_refused(
    make: Make, inputs: str, outputs: str, nodes: list[tuple[str, str, str]], message: str
) -> None:
    with pytest.raises(BackendWalkError, match=message):
        lower(make(inputs, outputs, nodes))


def test_a_function_that_calls_itself_is_refused(make: Make) -> None:
    loop = make("p", "q", [("d::g", "p", "q")], domain="d")
    loop.name = "g"
    with pytest.raises(BackendWalkError, match="nest deeper"):
        lower(make("x", "y", [("d::g", "x", "y")]), {("d", "g"): loop})


def test_calls_that_grow_exponentially_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "MAX_NODES", 1000)
    functions = {}
    for level in range(20):
        below = "Neg" if level == 0 else f"d::f{level - 1}"
        function = make("p", "q", [(below, "p", "t"), (below, "t", "q")], domain="d")
        function.name = f"f{level}"
        functions["d", function.name] = function
    with pytest.raises(BackendWalkError, match="more than 1000 nodes"):
        lower(make("x", "y", [("d::f19", "x", "y")]), functions)
