"""Types inferred from ops in both directions, and contradictions that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from program_text import parse

from bb_edge.ir import types
from bb_edge.ir.types import ValueType
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from bb_host.ir.text.printer import print_type
from tests.aids.passes import pass_named


def solve(signature: str, *lines: str, strict: bool = True) -> dict[str, str]:
    """The types after the solver, printed."""
    text = f"function program.P({signature}) -> ()\n" + "\n".join("  " + line for line in lines)
    done = pass_named("type_solver").run(parse(text), Options(strict_types=strict), Stats())
    again = pass_named("type_solver").run(done, Options(strict_types=strict), Stats())
    assert again is done
    return {name: print_type(value) for name, value in done.functions[0].types.items()}


@pytest.mark.parametrize(
    ("signature", "op", "expected"),
    [
        ("x: F32[2,3]", "y = Relu(x)", "F32[2,3]"),
        ("x: F32[2,3], b: F32[3]", "y = Add(x, b)", "F32[2,3]"),
        ("x: F32[n,1], b: F32[1,4]", "y = Mul(x, b)", "F32[n,4]"),
        ("x: F32[2,3], w: F32[3,5]", "y = MatMul(x, w)", "F32[2,5]"),
        ("x: F32[3,2], w: F32[3,5]", "y = Gemm<transA=1>(x, w)", "F32[2,5]"),
        ("x: F32[2,3]", "y = Transpose(x)", "F32[3,2]"),
        ("x: I64[2,3], z: I64[4,3]", "y = Concat<axis=0>(x, z)", "I64[6,3]"),
        ("x: F32[2,3]", "y = Cast<to=7>(x)", "I64[2,3]"),
        ("x: F32[2,3], z: F32[2,3]", "y = Less(x, z)", "BOOL[2,3]"),
        ("c: BOOL[2], x: F32[2], z: F32[2]", "y = Where(c, x, z)", "F32[2]"),
        ("x: F32[2,3]", "y = ReduceSum<keepdims=0>(x)", "F32[]"),
        ("x: F32[2,3], i: I64[4]", "y = Gather(x, i)", "F32[4,3]"),
        ("x: F32[2,1,3]", "y = Squeeze(x)", "F32[2,3]"),
        ("p: PeerIdVec, i: I64[1]", "y = Gather(p, i)", "PeerIdVec"),
        ("p: PeerIdVec, q: PeerIdVec", "y = Concat<axis=0>(p, q)", "PeerIdVec"),
        ("t: Trigger", "y = Identity(t)", "Trigger"),
        ("x: F64[2]", "y = Pow(x, k)", "F64[2]"),
        ("x: F32[1,3,8,8], w: F32[4,3,3,3]", "y = Conv(x, w)", "F32[1,4,6,6]"),
        ("x: F32[2,5]", "y = ArgMax<axis=1, keepdims=0>(x)", "I64[2]"),
        ("x: F32[2,5]", "y = CumSum(x, i)", "F32[2,5]"),
        ("t: Trigger", "y = syscall.Clock(t)", "Timestamp"),
        ("x: F32[2], t: Trigger", "y = syscall.Gate(x, t)", "F32[2]"),
        ("x: F32[2], t: Trigger", "y = syscall.GateDispatch(x, t)", "F32[2]"),
        ("x: F32[2], z: F32[3]", "y = syscall.Any(x, z)", "F32"),
        ("x: F32[2]", "y = syscall.PassThrough(x)", "F32[2]"),
        ("x: F32", "y = composite.Bundle<.composite.child_count=1>(x)", "Composite"),
        ("c: Composite", 'y = composite.Unbundle<.composite.child_types="bb.peer_id_vec">(c)', "PeerIdVec"),
        ("x: Tensor", "y = role.model.Evaluate(x, x) {slot=m}", "F32"),
    ],
)
def test_what_an_op_yields(signature: str, op: str, expected: str) -> None:
    lines = [op]
    if "k)" in op:
        lines.insert(0, "k = Constant<value=I64[]{2}>()")
    if "i)" in op and "i:" not in signature:
        lines.insert(0, "i = Constant<value=I64[]{1}>()")
    assert solve(signature, *lines)["y"] == expected


def test_constants_have_the_type_of_their_value() -> None:
    found = solve(
        "",
        "a = Constant<value=F32[2]{1, 2}>()",
        "b = Constant<value_ints=[1, 2, 3]>()",
        "c = Constant<value_float=0.5>()",
        "d = syscall.Constant<value=3>()",
        "e = Constant<value_floats=[0.5, 1.5]>()",
    )
    assert list(found.values()) == ["F32[2]", "I64[3]", "F32[]", "I64[]", "F32[2]"]


def test_reshape_reads_the_constant_shape() -> None:
    found = solve("x: F32[2,6]", "s = Constant<value=I64[2]{3, -1}>()", "y = Reshape(x, s)")
    assert found["y"] == "F32[3,4]"


def test_element_types_flow_backwards_from_the_other_operand() -> None:
    found = solve(
        "p: F32[n,10]",
        "b: Tensor, l: Tensor = role.data_loader.NextBatch() {slot=d}",
        "e = Sub(p, l)",
        "c = role.model.Forward(b) {slot=m}",
    )
    assert found["l"] == "F32"
    assert found["b"] == "Tensor"
    assert found["e"] == "F32"


def test_an_untyped_input_takes_what_its_reader_wants() -> None:
    found = solve("x: Any", "role.model.ApplyDelta(x) {slot=m}")
    assert found["x"] == "F32"


def test_queues_and_holds_carry_types_along() -> None:
    found = solve(
        "x: I64[3], t: Trigger",
        'b = syscall.Hold.Flush<slot="s">(t)',
        'd = syscall.Serialize.Dequeue<queue="q">(t)',
        'syscall.Hold.Stash<slot="s">(x)',
        'e = syscall.Serialize.Enqueue<queue="q">(x)',
    )
    assert (found["b"], found["d"]) == ("I64[3]", "I64[3]")


def test_what_is_received_has_the_type_of_what_was_sent() -> None:
    found = solve(
        "x: F32[4], p: PeerIdVec",
        "a, s = wire.Send(x, p) {wire.wire_id=1}",
        "r, v, t = wire.SendReqBatched(x, p, p) {wire.wire_id=2}",
        "c, m, rs = wire.RecvRespBatched(r) {wire.wire_id=3, wire.request=2}",
        "w = Neg(v)",
        "an, as = wire.SendResp(w, t, r) {wire.wire_id=3, wire.request=2}",
    )
    assert (found["a"], found["s"], found["r"]) == ("F32[4]", "PeerIdVec", "WireReqId")
    assert (found["an"], found["c"], found["m"], found["rs"]) == (
        "F32[4]",
        "Trigger",
        "PeerIdVec",
        "F32[?,4]",
    )


def test_hand_made_ports_have_the_type_that_they_name() -> None:
    found = solve("", "a, s, q = wire.RecvReq<payload_type=type(F32[2])>() {wire.wire_id=1}")
    assert found == {"a": "F32[2]", "s": "PeerIdVec", "q": "WireReqId"}


def test_branches_give_their_types() -> None:
    found = solve(
        "c: BOOL[], x: F32[4]",
        "y = If<then_branch=graph t() -> (h) {\n    h: F32[4] = Neg(x)\n  }, "
        "else_branch=graph e() -> (h) {\n    init h = F32[4]{1, 2, 3, 4}\n  }>(c)",
    )
    assert found["y"] == "F32[4]"


def test_calls_have_the_types_of_the_function() -> None:
    text = """program P {module=P}

function program.P(x: F32[2]) -> (y)
  y = program.Half(x)

function program.Half(a) -> (b)
  b = Neg(a)
"""
    done = pass_named("type_solver").run(parse(text), Options(), Stats())
    assert done.functions[0].types["y"] == ValueType(types.TENSOR_F32, (2,))
    assert done.functions[1].types["a"] == ValueType(types.TENSOR_F32, (2,))


@pytest.mark.parametrize(
    ("signature", "line", "what"),
    [
        ("x: F32[2], z: F64[2]", "y = Add(x, z)", "operands differ: x: F32[2], z: F64[2]"),
        ("x: F32[2,3], z: F32[2,4]", "y = Add(x, z)", "3 and 4 do not broadcast"),
        ("x: F32[2,3], w: F32[4,5]", "y = MatMul(x, w)", "inner dimensions 3 and 4"),
        ("x: F32[2,3]", "y: F32[2,4] = Relu(x)", "'y' is F32[2,4]"),
        ("x: F32[2]", "y: F64[2] = Relu(x)", "operands differ"),
        ("x: F32[2,3]", "y: F32[3] = Relu(x)", "'y' is F32[3], and this needs or yields F32[2,3]"),
        ("t: Trigger", "y = Relu(t)", "works on tensors"),
        ("p: PeerIdVec", "y = Neg(p)", "works on tensors"),
        ("x: F32[2], p: PeerIdVec", "y = role.model.Forward(p) {slot=m}", "'p' is PeerIdVec"),
        ("x: F32[2], p: PeerIdVec", "a, s = wire.Send(p, x) {wire.wire_id=1}", "'x' is F32[2]"),
        ("x: F32[2], p: PeerIdVec", "a, b, s = wire.Send(x, p) {wire.wire_id=1}", "1 payloads, and 2 values"),
        ("x: F32[2], p: PeerIdVec", "y = syscall.Any(x, p)", "values differ"),
        ("x: F32[2]", 'y = composite.Unbundle<.composite.child_types="bb.nope">(x)', "'x' is F32[2]"),
        ("c: Composite", 'y = composite.Unbundle<.composite.child_types="bb.nope">(c)', "no type 'bb.nope'"),
        (
            "c: Composite",
            'y = composite.Unbundle<.composite.child_types="bb.bytes,bb.bytes">(c)',
            "2 types for 1",
        ),
        ("x: I64[2]", "y = Sin(x)", "tensor(int64)"),
    ],
)
def test_contradictions_are_refused(signature: str, line: str, what: str) -> None:
    with pytest.raises(errors.TypeConstraintFailed) as caught:
        solve(signature, line if line.endswith("}") else f"{line} {{source=a.py:7}}")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "op",
    [
        "y = role.model.Evaluate(x) {slot=m, source=a.py:2}",
        "Add(x, x) {source=a.py:2}",
        "y = syscall.PassThrough(x, x) {source=a.py:2}",
        "y, z = syscall.PassThrough(x) {source=a.py:2}",
    ],
)
def test_too_few_or_too_many_inputs_or_outputs(op: str) -> None:
    with pytest.raises((errors.MalformedOp, errors.TypeConstraintFailed)) as caught:
        solve("x: F32[2]", op)
    assert caught.value.where == "a.py:2"


def test_a_refusal_names_the_authors_line() -> None:
    with pytest.raises(errors.TypeConstraintFailed) as caught:
        solve("x: F32[2], z: F64[2]", "y = Add(x, z) {source=a.py:9}")
    assert (
        str(caught.value) == "a.py:9: Add → y: its operands differ: x: F32[2], z: F64[2] (cast one of them)"
    )


def test_what_nothing_says_is_refused_unless_types_are_relaxed() -> None:
    line = 'y = syscall.Hold.Flush<slot="s">(t) {source=a.py:3}'
    with pytest.raises(errors.UnresolvedType) as caught:
        solve("t: Trigger", line)
    assert caught.value.where == "a.py:3"
    with pytest.raises(errors.UnresolvedType, match="input 'x'"):
        solve("x: Any", 'syscall.AppEmit<name="n">(x)')
    assert "y" not in solve("t: Trigger", line, strict=False)


def test_answers_that_are_no_tensors_cannot_be_stacked() -> None:
    with pytest.raises(errors.TypeConstraintFailed, match="cannot be stacked"):
        solve(
            "x: F32, p: PeerIdVec",
            "r, v, t = wire.SendReqBatched(x, p, p) {wire.wire_id=2}",
            "an, as = wire.SendResp(t, t, r) {wire.wire_id=3, wire.request=2}",
            "c, m, rs = wire.RecvRespBatched(r) {wire.wire_id=3, wire.request=2}",
        )


def test_counters(run_pass: Callable[..., Program]) -> None:
    stats = Stats()
    text = 'function program.P(t: Trigger) -> ()\n  y = syscall.Hold.Flush<slot="s">(t)\n  z = Identity(t)'
    run_pass("type_solver", text, stats, strict_types=False)
    assert stats.counters == {"types_resolved": 2, "types_unresolved": 1}


def test_ops_of_one_kind_are_told_apart_by_what_their_types_hang_on() -> None:
    """What the solver remembers of an op holds for the next one only where nothing differs."""
    found = solve(
        "x: F32[2,3], z: Tensor, u: Tensor",
        "s = Constant<value_ints=[6]>()",
        "t = Constant<value_ints=[3, 2]>()",
        "a = Reshape(x, s)",
        "b = Reshape(x, t)",
        "rows = Constant<value_ints=[0]>()",
        "columns = Constant<value_ints=[1]>()",
        "c = ReduceSum<keepdims=0>(x, rows)",
        "d = ReduceSum<keepdims=0>(x, columns)",
        "e = ReduceSum<keepdims=1>(x, columns)",
        "f = Add(z, z)",
        "g = Add(u, x)",
        "h = Add(f, z)",
        "i = Add(z, x)",
        "j = Transpose<perm=[0, 1]>(x)",
        "k = Transpose<perm=[1, 0]>(x)",
        "l = ArgMax<axis=0, keepdims=0>(x)",
        "m = ArgMax<axis=1, keepdims=0>(x)",
        "n = ArgMax<axis=1, keepdims=0>(b)",
    )
    assert [found[n] for n in "abcde"] == ["F32[6]", "F32[3,2]", "F32[3]", "F32[2]", "F32[2,1]"]
    assert [found[n] for n in "jklmn"] == ["F32[2,3]", "F32[3,2]", "I64[3]", "I64[2]", "I64[3]"]
    assert {found[n] for n in "zufghi"} == {"F32"}


def test_what_is_computed_from_a_constant_is_not_taken_for_it() -> None:
    """Both have one type, and the sizes of a result follow from the constant alone."""
    found = solve(
        "x: F32[2,3], k: I64[2]",
        "s = Constant<value_ints=[3, 2]>()",
        "t = Abs(s)",
        "u = Identity(s)",
        "v = syscall.PassThrough(s)",
        "w = Add(s, k)",
        "a = Reshape(x, s)",
        *(f"{result} = Reshape(x, {sizes})" for result, sizes in zip("bcde", "tuvw", strict=True)),
    )
    assert [found[n] for n in "kstuvw"] == ["I64[2]"] * 6
    assert [found[n] for n in "abcde"] == ["F32[3,2]", *["F32"] * 4]


def test_what_is_found_of_a_type_holds_for_all_records_of_it() -> None:
    text = """function program.P(x: F32[2,3], a: Tensor, b: Tensor, c: F32[2,3]) -> ()
  y = Add(x, a)
  z = Add(c, b)
  s = Constant<value_ints=[6]>()
  t = Constant<value_ints=[3, 2]>()
  u = Reshape(c, s)
  v = Reshape(x, t)
  w = Reshape(c, t)"""
    program = parse(text)
    function = program.functions[0]
    shared = {kind: kind for kind in function.types.values()}
    found = []
    for record in (shared.__getitem__, lambda kind: ValueType(*kind)):
        kinds = {name: record(kind) for name, kind in function.types.items()}
        own = program.with_functions([dataclasses.replace(function, types=kinds)])
        done = pass_named("type_solver").run(own, Options(), Stats())
        found.append({name: print_type(kind) for name, kind in done.functions[0].types.items()})
    assert found[0] == found[1]
    assert [found[0][name] for name in "abyz"] == ["F32"] * 4
    assert [found[0][name] for name in "uvw"] == ["F32[6]", "F32[3,2]", "F32[3,2]"]


_BOUNDS = (
    "s = Constant<value_ints=[{}]>()",
    "e = Constant<value_ints=[{}]>()",
    "a = Constant<value_ints=[1]>()",
)


@pytest.mark.parametrize(
    ("data", "start", "end", "most"),
    [
        ("F32", 0, 3, 3),
        ("F32", 2, 2**62, None),
        ("F32", -3, 2**62, 3),
        ("F32", -5, -2, 3),
        ("F32", 2, -1, None),
        ("F32", 5, 2, 0),
        ("F32[n,m]", 0, 3, 3),
        ("F32[n,5]", 2, 2**62, 3),
        ("F32[n,4]", 0, 2**62, 4),
    ],
)
def test_a_slice_is_refused_where_it_can_never_be_as_wide_as_its_reader_takes(
    data: str, start: int, end: int, most: int | None
) -> None:
    def sliced(width: int) -> dict[str, str]:
        bounds = [line.format(number) for line, number in zip(_BOUNDS, (start, end, 1), strict=True)]
        lines = ("y = Slice(x, s, e, a)", "z = Relu(y)", f"type y: F32[n,{width}]")
        return solve(f"x: {data}", *bounds, *lines)

    assert sliced(4 if most is None else most)["y"] == f"F32[n,{4 if most is None else most}]"
    if most is not None:
        refusal = rf"Slice.* yields {most} elements of axis 1.* read by Relu.* as F32\[n,{most + 1}\]"
        with pytest.raises(errors.TypeConstraintFailed, match=refusal):
            sliced(most + 1)
    if most is not None and data.endswith(("5]", "4]")):  # exactly as many, since the axis has a known size
        with pytest.raises(errors.TypeConstraintFailed, match=rf"yields {most} elements of axis 1, "):
            sliced(most - 1)


@pytest.mark.parametrize("bounds", ["(x, s, e, unknown)", "(x, unknown, e)", "(x, s, e, a, unknown)"])
def test_a_slice_whose_bounds_the_device_knows_is_taken(bounds: str) -> None:
    lines = [line.format(3) for line in _BOUNDS]
    kinds = solve("x: F32, unknown: I64[1]", *lines, f"y = Slice{bounds}", "type y: F32[n,9]")
    assert kinds["y"] == "F32[n,9]"
