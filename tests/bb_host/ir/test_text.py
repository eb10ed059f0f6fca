"""The text notation: what it says, that it comes back whole, and what it refuses."""

from __future__ import annotations

import textwrap

import numpy as np
import onnx
import pytest
from program_text import TextError, parse, parse_function

from bb_edge.ir import keys, types
from bb_edge.ir.types import ValueType
from bb_host.ir.facts import OpFacts
from bb_host.ir.program import Program, Subgraph
from bb_host.ir.proto import from_proto, to_bytes, to_proto
from bb_host.ir.spelling import written
from bb_host.ir.text import print_function, print_program

GOSSIP = """\
program Gossip {module=Gossip}

function program.Gossip(x: F32[n,64]) -> (y) {home=self}
  slot model: model
  slot peers: peer_selector peer_class=Client at=Server
  slot codec: codec = bb.Scalar8(0xa0)
  view: PeerIdVec = role.peer_selector.Sample<n=4>(x) {slot=peers, slot_id=1, source=a.py:12}
  seen: F32[n,64], sender: PeerIdVec = wire.Send(x, view) {wire.wire_id=1, port="say \\"hello\\""}
  "a::b": F32[?] = Softmax<axis=1, k=[1, 2], f=[0.1, 1.0], none=[], s=["a", "b"]>(seen) @named
  c: F32[2,2] = Constant<value=F32[2,2]{0.0, 0.1, -3.5, 1e-07}>()
  d: BOOL[] = Constant<value=BOOL[]{1}>()
  t: Trigger = syscall.Limit.Acquire<name="gate", n=2>("", "a::b")
  bundle: Composite = composite.Bundle<.composite.child_count=1, .composite.child_types="bb.trigger">(t)
  r = If<then_branch=graph then() -> (z) {
    meta {kind=branch}
    init w = F32[20]0xWEIGHTS
    z: F32[20] = Identity(w)
  }, else_branch=graph else() -> (z) {
    z: F32[20] = "user.app"::Make()
  }>(d)
  y: F32 = program.Child(c) {"other.key"=1}

function program.Child(a) -> (b)
  b: F32 = Neg(a)
""".replace("WEIGHTS", np.arange(20, dtype="<f4").tobytes().hex())


def test_a_text_comes_back_as_it_was_written() -> None:
    assert print_program(parse(GOSSIP)) == GOSSIP


def test_protos_lie_between_without_loss() -> None:
    program = parse(GOSSIP)
    model = to_proto(program)
    again = from_proto(model)
    assert to_proto(again) == model
    assert print_program(again) == GOSSIP


def test_what_the_words_mean() -> None:
    function = parse(GOSSIP).functions[0]
    sample, send, soft = function.ops[:3]
    assert (sample.domain, sample.op_type) == (keys.ROLE_PEER_SELECTOR_DOMAIN, "Sample")
    assert sample.facts == OpFacts(slot="peers", slot_id=1, source="a.py:12")
    assert sample.attrs == {"n": 4}
    assert send.outputs == ("seen", "sender")
    assert (soft.domain, soft.name) == ("", "named")
    assert function.types["seen"] == ValueType(types.TENSOR_F32, ("n", 64))
    assert function.types["view"].node is types.PEER_ID_VEC
    assert function.slots["peers"].peer_class == "Client"
    assert function.slots["peers"].at == "Server"
    assert function.slots["codec"].state == b"\xa0"
    assert function.slots["codec"].is_concrete
    assert not function.slots["model"].is_concrete
    assert function.ops[6].attrs[keys.CHILD_COUNT_ATTR] == 1
    assert function.opsets[keys.WIRE_DOMAIN] == 1
    assert function.opsets[""] == 21
    assert function.ops[5].inputs == ("", "a::b")
    assert (function.ops[5].domain, function.ops[5].op_type) == (keys.SYSCALL_DOMAIN, "Limit.Acquire")
    assert function.ops[8].facts == OpFacts(foreign={"other.key": "1"})


def test_subgraphs_hold_initializers_and_ops() -> None:
    op = parse(GOSSIP).functions[0].ops[7]
    then = op.attrs["then_branch"]
    assert isinstance(then, Subgraph)
    np.testing.assert_array_equal(then.initializers["w"], np.arange(20, dtype=np.float32))
    assert then.types["z"] == ValueType(types.TENSOR_F32, (20,))
    assert [name for name, _ in op.subgraphs()] == ["then_branch", "else_branch"]


def test_a_text_without_program_line_is_named_after_its_first_function() -> None:
    program = parse("function program.Main(x) -> (y)\n  y = Relu(x)\n")
    assert program.name == "Main"
    assert written(program.facts) == {keys.MODULE_KEY: "Main"}
    assert program.opsets == {"": 21, keys.PROGRAM_DOMAIN: 1}
    onnx.checker.check_model(to_proto(program))


def test_opset_lines_stand_only_where_they_say_something() -> None:
    text = 'function program.Main(x) -> (y)\n  opset "" 17, wire 1\n  y = Relu(x)\n'
    function = parse_function(text)
    assert function.opsets == {"": 17, keys.WIRE_DOMAIN: 1}
    assert print_function(function) == text


def test_values_defined_nowhere_have_type_lines() -> None:
    text = "function program.Main() -> ()\n  type ghost: I64[2]\n  role.model.Step(ghost)\n"
    assert print_function(parse_function(text)) == text


def test_floats_and_integers_stay_apart() -> None:
    function = parse_function('function m() -> (y)\n  y = Op<a=1, b=1.0, c=-inf, d=nan, e="x", f=0xff>()\n')
    attrs = function.ops[0].attrs
    assert attrs["a"] == 1 and isinstance(attrs["a"], int)
    assert attrs["b"] == 1.0 and isinstance(attrs["b"], float)
    assert attrs["c"] == float("-inf")
    assert attrs["d"] != attrs["d"]
    assert (attrs["e"], attrs["f"]) == (b"x", b"\xff")


def test_comments_and_types_in_long_form_are_read() -> None:
    text = "// head\nfunction m(x: Tensor<F32>[1]) -> ()\n// tail\n  Foo(x) // end\n"
    function = parse_function(text)
    assert function.types["x"] == ValueType(types.TENSOR_F32, (1,))
    assert [op.op_type for op in function.ops] == ["Foo"]


def test_metadata_can_be_left_out() -> None:
    text = print_program(parse(GOSSIP), omit=("source",))
    assert "a.py" not in text
    assert "slot=peers" in text


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "neither a program nor a function", "1:1"),
        ("function m(x) -> (y)\n  y = Relu(x", "expected ','", "2:13"),
        ("function m(x) -> (y)\n  y: Nope = Relu(x)", "no type Nope", "2:11"),
        ("function m(x) -> (y)\n  y Relu(x)", "expected '='", "2:5"),
        ("function m() -> (y)\n  y = Constant<value=F32[2]{1}>()", "1 numbers for shape [2]", "2:31"),
        ("function m() -> (y)\n  y = Constant<value=[1, 2.0]>()", "a list holds", "2:30"),
        ("function m() -> ()\n  opset nope 1", "no domain nope", "2:14"),
        ("function m() -> (y)\n  y = A<x=0xabc>()", "expected bytes in hex", "2:16"),
        ("nonsense", "expected 'function'", "1:1"),
    ],
)
def test_refusals_name_line_and_column(text: str, what: str, where: str) -> None:
    with pytest.raises(TextError) as caught:
        parse(text)
    assert caught.value.what.startswith(what)
    assert caught.value.where == where


def test_indented_fixtures_parse() -> None:
    program = parse(textwrap.indent(GOSSIP, "      "))
    assert isinstance(program, Program)
    assert to_bytes(program) == to_bytes(parse(GOSSIP))
