"""Which ONNX ops become one call, which may not, and that nothing comes later or out differently."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx.checker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bb_edge.ir import keys
from bb_host.ir.facts import NO_FACTS, OpFacts
from bb_host.ir.program import Op, Program
from bb_host.ir.proto import to_bytes
from bb_host.ir.spelling import written
from bb_host.passes.tensor.collapse import collapse

CALL = "subgraph"


def shape(program: Program) -> list[str]:
    """The main's ops in order; a call with the number of ops in its body."""
    bodies = {f.name: len(f.ops) for f in program.functions if f.domain == keys.BACKEND_DOMAIN}
    return [
        f"{CALL}:{bodies[op.op_type]}" if op.op_type in bodies else op.op_type
        for op in program.functions[0].ops
    ]


def text(inputs: str, outputs: str, *lines: str) -> str:
    return f"function program.Main({inputs}) -> ({outputs})\n" + "".join(f"  {line}\n" for line in lines)


CASES = {
    "a chain": (
        text("x: F32[4]", "y", "a = Exp(x)", "b = Neg(a)", "y = Relu(b)"),
        ["subgraph:3"],
    ),
    "two chains that meet nowhere": (
        text("x: F32[4]", "p, q", "p = Exp(x)", "q = Neg(x)"),
        ["subgraph:1", "subgraph:1"],
    ),
    "an op that waits for one input more, and a result that does not": (
        text("x: F32[4], t: F32[4]", "e, b", "a = Exp(x)", "b = Add(a, t)", "e = syscall.PassThrough(a)"),
        ["subgraph:1", "subgraph:1", "PassThrough"],
    ),
    "the same, when nobody else reads the first result": (
        text("x: F32[4], t: F32[4]", "b", "a = Exp(x)", "b = Add(a, t)"),
        ["subgraph:2"],
    ),
    "an op of another kind between": (
        text("x: F32[4]", "y", "a = Exp(x)", "b = syscall.PassThrough(a)", "y = Neg(b)"),
        ["subgraph:1", "PassThrough", "subgraph:1"],
    ),
    "around an op of another kind": (
        text("x: F32[4]", "y", "a = Exp(x)", "b = syscall.PassThrough(a)", "y = Add(a, b)"),
        ["subgraph:1", "PassThrough", "subgraph:1"],
    ),
    "what fires on any input passes no arrivals on": (
        text(
            "x: F32[4], t: F32[4]",
            "p, u",
            "v = syscall.Any(x, t)",
            "w = Exp(v)",
            "u = Add(w, x)",
            "p = syscall.PassThrough(w)",
        ),
        ["Any", "subgraph:1", "subgraph:1", "PassThrough"],
    ),
    "outputs of a gate arrive together": (
        text(
            "x: F32[4], t: F32[4]",
            "p, u",
            "a, b = gate.DedupGateRx(x, t)",
            "w = Exp(a)",
            "u = Add(w, b)",
            "p = syscall.PassThrough(w)",
        ),
        ["DedupGateRx", "subgraph:2", "PassThrough"],
    ),
    "outputs of a Recv do not: one may fail to decode": (
        text("", "u", "a, b, s = wire.Recv()", "w = Exp(a)", "u = Add(w, b)"),
        ["Recv", "subgraph:1", "subgraph:1"],
    ),
    "not across a wait for the wire, even for the only reader": (
        text("x: F32[4]", "u", "a, s = wire.Recv()", "w = Exp(x)", "u = Add(w, a)"),
        ["Recv", "subgraph:1", "subgraph:1"],
    ),
    "other backends": (
        text(
            "x: F32[4]",
            "y",
            "a = Exp(x)",
            "b = Neg(a) {slot=fast}",
            "c = Abs(b) {slot=fast}",
            "y = Add(a, c)",
        ),
        ["subgraph:1", "subgraph:2", "subgraph:1"],
    ),
    "constants come along, control inputs do not": (
        text(
            "x: F32[4], t: Trigger",
            "y, r",
            "c = Constant<value=F32[]{2.0}>()",
            "y = Mul(x, c)",
            "r = RandomNormal<shape=[2]>(t) {control_inputs=1}",
        ),
        ["subgraph:2", "RandomNormal"],
    ),
    "peer lists are not tensors": (
        text("x: PeerIdVec", "y: PeerIdVec", "y: PeerIdVec = Identity(x)"),
        ["Identity"],
    ),
    "dead ops": (text("x: F32[4]", "y", "d = Exp(x)", "y = Neg(x)"), ["subgraph:1"]),
    "a constant that others read stays": (
        text(
            "x: F32[4]",
            "y, p",
            "c = Constant<value=F32[]{2.0}>()",
            "y = Mul(x, c)",
            "p = syscall.PassThrough(c)",
        ),
        ["Constant", "subgraph:2", "PassThrough"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_grouping(name, compiled, same_times):
    source, expected = CASES[name]
    program = compiled(source.replace("y: PeerIdVec)", "y)"))
    after = collapse(program).program
    assert shape(after) == expected
    same_times(program.functions[0], after.functions[0])


def test_a_large_constant_of_several_groups_stays_outside(compiled):
    source = text(
        "x: F32[4], t: F32[4]", "a, b", "c = Constant<value=F32[512]0x" + "00" * 2048 + ">()",
        "a = Sub(x, c)", "b = Sub(t, c)",
    )  # fmt: skip
    assert shape(collapse(compiled(source)).program) == ["Constant", "subgraph:1", "subgraph:1"]
    small = text(
        "x: F32[4], t: F32[4]", "a, b", "c = Constant<value=F32[]{1.0}>()", "a = Sub(x, c)", "b = Sub(t, c)"
    )
    assert shape(collapse(compiled(small)).program) == ["subgraph:2", "subgraph:2"]


def test_equal_groups_share_one_function(compiled):
    source = text("x: F32[4], t: F32[4]", "a, b", "p = Exp(x)", "a = Neg(p)", "q = Exp(t)", "b = Neg(q)")
    after = collapse(compiled(source)).program
    calls = after.functions[0].ops
    assert calls[0].op_type == calls[1].op_type
    assert len(after.functions) == 2


def test_bodies_are_named_by_content_and_hold_nothing_of_the_author(compiled):
    source = text("x: F32[4]", "y", "a = Exp(x) @first {source=f.py:1}", "y = Neg(a) {source=f.py:2}")
    renamed = source.replace("a ", "zz ").replace("(a)", "(zz)").replace("f.py", "other.py")
    found = [collapse(compiled(t)).program.functions[1] for t in (source, renamed)]
    assert found[0].name == found[1].name
    assert found[0].domain == keys.BACKEND_DOMAIN
    assert [op.facts for op in found[0].ops] == [NO_FACTS, NO_FACTS]
    assert {op.name for op in found[0].ops} == {""}


def test_the_backend_slot_stands_on_the_function(compiled):
    after = collapse(compiled(text("x: F32[4]", "y", "y = Neg(x) {slot=fast}"))).program
    assert written(after.functions[1].facts) == {keys.BACKEND_SLOT_KEY: "fast"}


def test_origins_lead_back(compiled):
    program = compiled(text("x: F32[4]", "y", "a = Exp(x)", "y = Neg(a)"))
    found = collapse(program)
    main, body = found.program.functions
    stands_for = found.origins[main.key, "y"]
    assert tuple(origin.op for origin in stands_for) == program.functions[0].ops
    assert [origin.value for origin in stands_for] == [op.outputs[0] for op in body.ops]


def test_an_output_that_ops_read_stays_an_output(compiled, run_main):
    """Its reader is inside the call with it, and the call gives both."""
    program = compiled(
        text("x: F32[4]", "a, y, c", "a = Exp(x)", "y = Neg(a)", "c = Constant<value_int=1>()")
    )
    after = collapse(program).program
    assert after.functions[0].outputs == ("a", "y", "c")
    (call,) = [op for op in after.functions[0].ops if op.domain == keys.BACKEND_DOMAIN]
    assert call.outputs == ("a", "y")
    inputs = {"x": np.ones(4, np.float32)}
    found = [run_main(to_bytes(p), inputs) for p in (program, after)]
    assert [sorted(f) for f in found] == [["a", "c", "y"]] * 2
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name])


def test_an_output_does_not_wait_for_what_its_readers_wait_for(compiled):
    """`a` hangs on x alone: a group that joined it to its reader would hold it back until z is there."""
    lines = ("a = Exp(x)", "y = Add(a, z)")
    for outputs, calls in (("a, y", 2), ("y", 1)):
        function = collapse(compiled(text("x: F32[4], z: F32[4]", outputs, *lines))).program.functions[0]
        assert [op.outputs for op in function.ops] == [("a",), ("y",)][-calls:]


def test_without_onnx_ops_nothing_changes(compiled):
    program = compiled(text("x: F32[4]", "y", "y = syscall.PassThrough(x)"))
    assert collapse(program).program is program


def test_running_it_again_changes_nothing(compiled):
    program = compiled(
        text("x: F32[4]", "y, q", "a = Exp(x)", "b = syscall.PassThrough(a)", "y = Neg(b)", "q = Abs(y)")
    )
    once = collapse(program).program
    assert to_bytes(collapse(once).program) == to_bytes(once)


def test_the_input_is_left_as_it_was(compiled):
    program = compiled(text("x: F32[4]", "y", "a = Exp(x)", "y = Neg(a)"))
    before = to_bytes(program)
    collapse(program)
    assert to_bytes(program) == before


def test_component_graphs_are_left_alone(compiled):
    graph = "function component.m.forward(x: F32[4]) -> (y)\n  a = Exp(x)\n  y = Neg(a)\n"
    program = compiled(text("x: F32[4]", "y", "y = Neg(x)"), graph)
    after = collapse(program).program
    assert after.functions[1] is program.functions[1]


def test_subgraphs_go_along_with_what_they_capture(compiled, run_main):
    source = text(
        "x: F32[4], c: BOOL[]", "y", "a = Exp(x)",
        "b = If<then_branch=graph t() -> (p) { p: F32[4] = Neg(a) }, else_branch=graph e() -> (q)"
        " { q: F32[4] = Abs(a) }>(c)",
        "y = Add(a, b)",
    )  # fmt: skip
    program = compiled(source)
    after = collapse(program).program
    assert shape(after) == ["subgraph:3"]
    x = np.arange(4, dtype=np.float32)
    for flag in (True, False):
        inputs = {"x": x, "c": np.array(flag)}
        found = [run_main(to_bytes(p), inputs)["y"] for p in (program, after)]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_allclose(found[1], np.exp(x) + (-np.exp(x) if flag else np.exp(x)))


def test_a_group_that_a_later_op_reads_through_another_kind_keeps_the_order(compiled):
    """The call stands where its first op stood, although a member reads what came after that."""
    source = text(
        "x: F32[4]", "y, z", "a = Exp(x)", "s = syscall.PassThrough(x)", "z = syscall.PassThrough(a)",
        "b = Add(a, x)", "y = Add(b, a)",
    )  # fmt: skip
    after = collapse(compiled(source)).program
    written = set(after.functions[0].inputs)
    for op in after.functions[0].ops:
        assert written.issuperset(op.inputs)
        written.update(op.outputs)


# --- random programs ------------------------------------------------------------------------------

UNARY = ["Exp", "Neg", "Tanh", "Abs"]
BINARY = ["Add", "Sub", "Mul"]


@st.composite
def programs(draw):
    """Random dataflow over four inputs: ONNX ops, constants, passing ops, ops that fire on any input."""
    values = ["x0", "x1", "x2", "x3"]
    ops: list[Op] = []
    for n in range(draw(st.integers(1, 14))):
        kind = draw(
            st.sampled_from(["unary"] * 4 + ["binary"] * 5 + ["pass", "gate", "any", "constant", "slot"])
        )
        pick = st.sampled_from(values)
        out = f"v{n}"
        if kind == "constant":
            value = np.array(draw(st.integers(-2, 2)), np.float32)
            ops.append(Op("Constant", "", (), (out,), {"value": value}))
        elif kind in ("unary", "slot"):
            facts = OpFacts(slot="other") if kind == "slot" else NO_FACTS
            ops.append(Op(draw(st.sampled_from(UNARY)), "", (draw(pick),), (out,), facts=facts))
        elif kind == "binary":
            ops.append(Op(draw(st.sampled_from(BINARY)), "", (draw(pick), draw(pick)), (out,)))
        elif kind == "pass":
            ops.append(Op("PassThrough", keys.SYSCALL_DOMAIN, (draw(pick),), (out,)))
        elif kind == "gate":
            second = f"w{n}"
            ops.append(Op("DedupGateRx", keys.GATE_DOMAIN, (draw(pick), draw(pick)), (out, second)))
            values.append(second)
        else:
            ops.append(Op("Any", keys.SYSCALL_DOMAIN, (draw(pick), draw(pick)), (out,)))
        values.append(out)
    made = [v for op in ops for v in op.outputs]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    return tuple(ops), tuple(outputs)


@settings(max_examples=150)
@given(programs())
def test_random_programs_lose_no_time(same_times, main, found):
    ops, outputs = found
    head = main(
        "function program.Main(x0: F32[3], x1: F32[3], x2: F32[3], x3: F32[3]) -> (v0)\n  v0 = Exp(x0)\n"
    )
    domains = {"": 21, keys.SYSCALL_DOMAIN: 1, keys.GATE_DOMAIN: 1, keys.PROGRAM_DOMAIN: 1}
    function = dataclasses.replace(head, ops=ops, outputs=outputs, opsets=domains)
    program = Program("M", (function,), opsets=domains)
    after = collapse(program).program
    same_times(function, after.functions[0])
    onnx.checker.check_model(to_bytes(after))
    assert to_bytes(collapse(after).program) == to_bytes(after)
    left = [op.op_type for op in after.functions[0].ops if not op.domain and op.op_type != "Constant"]
    assert left == []


@settings(max_examples=40)
@given(programs())
def test_random_programs_give_the_same_numbers(compiled, run_main, found):
    ops, outputs = found
    if any(op.domain == keys.GATE_DOMAIN for op in ops):
        return  # gates need a Recv before them
    program = compiled(
        "function program.Main(x0: F32[3], x1: F32[3], x2: F32[3], x3: F32[3]) -> (v0)\n  v0 = Exp(x0)\n"
    )
    bare = tuple(dataclasses.replace(op, facts=NO_FACTS) for op in ops)
    main = dataclasses.replace(program.functions[0], ops=bare, outputs=outputs)
    opsets = {"": 21, keys.SYSCALL_DOMAIN: 1, keys.PROGRAM_DOMAIN: 1}
    program = dataclasses.replace(
        program, functions=(dataclasses.replace(main, opsets=opsets),), opsets=opsets
    )
    rng = np.random.default_rng(1)
    inputs = {f"x{i}": rng.standard_normal(3).astype(np.float32) for i in range(4)}
    before, after = (run_main(to_bytes(p), inputs) for p in (program, collapse(program).program))
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)
