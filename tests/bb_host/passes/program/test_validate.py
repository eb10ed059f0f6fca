"""Each rule about the structure of a program, with one program that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Program
from tests.aids.passes import pass_named

HEAD = "program P {module=P}\n\n"


@pytest.mark.parametrize(
    ("body", "error", "what", "where"),
    [
        (
            "function program.P(x: F32) -> (y)\n  y = Frobnicate(x) {source=a.py:3}",
            errors.UnknownOp,
            "no op 'Frobnicate' in ai.onnx",
            "a.py:3",
        ),
        (
            'function program.P(x: F32) -> (y)\n  opset "" 21, "a.b" 1\n  y = "a.b"::Op(x) {source=a.py:4}',
            errors.UnknownOp,
            "no op 'Op' in a.b",
            "a.py:4",
        ),
        (
            "function program.P(x: F32) -> (y)\n  y = syscall.Snooze(x) {source=a.py:5}",
            errors.UnknownOp,
            "no op 'Snooze'",
            "a.py:5",
        ),
        (
            "function program.P(x: F32) -> (y)\n  y = Add(x, ghost) {source=a.py:6}",
            errors.DanglingInput,
            "reads 'ghost'",
            "a.py:6",
        ),
        (
            "function program.P(x: F32) -> (y, z)\n  y = Relu(x)",
            errors.DanglingInput,
            "output 'z'",
            "function P",
        ),
        (
            "function program.P(x: F32) -> (y)\n  y = Relu(x) {source=a.py:1}\n  y = Abs(x) {source=a.py:7}",
            errors.DuplicateOutput,
            "'y' is yielded by Relu → y (a.py:1)",
            "a.py:7",
        ),
        (
            "function program.P(x: F32) -> (x)\n  x = Relu(x) {source=a.py:2}",
            errors.DuplicateOutput,
            "'x' is yielded by an input",
            "a.py:2",
        ),
        (
            "function program.P(x: F32, x: F32) -> (y)\n  y = Relu(x)",
            errors.DuplicateOutput,
            "input 'x' is declared twice",
            "function P",
        ),
        (
            "function program.P(x) -> (y)\n  y = Relu(x)",
            errors.MissingTypeInfo,
            "input 'x' has no type",
            "function P",
        ),
        (
            "function program.P(x: F32) -> (y)\n  y = role.model.Forward(x) {source=a.py:8}",
            errors.MalformedSlotMetadata,
            "names no slot",
            "a.py:8",
        ),
        (
            "function program.P(x: F32) -> (y)\n  y = role.model.Forward(x) {slot=m, source=a.py:9}",
            errors.MalformedSlotMetadata,
            "neither a concrete type nor a required trait",
            "a.py:9",
        ),
        (
            (
                "function program.P(x: F32) -> (y)\n  y = role.model.Forward(x) "
                "{slot=m, required_trait=model, slot_id=1, concrete_type=T, instance=0}"
            ),
            errors.MalformedSlotMetadata,
            "both concrete and generic",
            "",
        ),
        (
            (
                "function program.P(x: F32) -> (y)\n  y = role.model.Forward(x) "
                '{slot="a.b", required_trait=model, slot_id=1}'
            ),
            errors.MalformedSlotMetadata,
            "'a.b' is not a valid name",
            "",
        ),
        (
            (
                "function program.P(x: F32) -> (a)\n  a = Add(x, b) {source=a.py:1}\n"
                "  b = Relu(a) {source=a.py:2}\n  c = Abs(b)"
            ),
            errors.CyclicGraph,
            "Add → a (a.py:1), Relu → b (a.py:2)",
            "function P",
        ),
        (
            "function program.P(x: F32) -> (y)\n  opset wire 1\n  y = Relu(x) {source=a.py:3}",
            errors.OpsetNotImported,
            "'ai.onnx' is not imported",
            "a.py:3",
        ),
        (
            (
                "function program.P(c: BOOL[], x: F32, p: PeerIdVec) -> (y)\n"
                "  y = If<then_branch=graph t() -> (h) {\n    h = wire.Send(x, p)\n"
                "  }, else_branch=graph e() -> (h) {\n    h = Identity(x)\n  }>(c) {source=a.py:11}"
            ),
            errors.WireInSubgraph,
            "Send stands in a branch",
            "a.py:11",
        ),
        (
            (
                "function program.P(c: BOOL[], x: F32) -> (y)\n"
                "  y = If<then_branch=graph t() -> (h) {\n    h = Identity(ghost)\n"
                "  }, else_branch=graph e() -> (h) {\n    h = Identity(x)\n  }>(c) {source=a.py:12}"
            ),
            errors.DanglingInput,
            "'ghost'",
            "a.py:12",
        ),
    ],
)
def test_refusals(
    body: str, error: type[errors.PassError], what: str, where: str, program: Callable[[str], Program]
) -> None:
    head = HEAD
    if error is errors.OpsetNotImported:
        head = "program P {module=P}\nopset wire 1, program 1\n\n"
    with pytest.raises(error) as caught:
        pass_named("validate").run(program(head + body), Options(module="P"), Stats())
    assert what in caught.value.what
    assert caught.value.where == where
    assert isinstance(caught.value, errors.ValidationError)


def test_an_authors_line_is_at_hand(program: Callable[[str], Program]) -> None:
    text = HEAD + 'function program.P(x: F32) -> (y)\n  y = Nope(x) @best {source="dir/a.py:41"}'
    with pytest.raises(errors.UnknownOp) as caught:
        pass_named("validate").run(program(text), Options(), Stats())
    assert (caught.value.file, caught.value.line, caught.value.op) == ("dir/a.py", 41, "Nope 'best'")


def test_ops_out_of_order_are_put_in_order_and_stay_where_they_can(
    run_pass: Callable[..., Program],
) -> None:
    text = """
        program P {module=P}

        function program.P(x: F32) -> (d)
          d = Add(c, b)
          a = Relu(x)
          c = Abs(b)
          b = Neg(a)
        """
    stats = Stats()
    done = run_pass("validate", text, stats)
    assert [op.outputs[0] for op in done.functions[0].ops] == ["a", "b", "c", "d"]
    assert stats.counters == {"nodes": 4, "validation_errors": 0}


def test_a_sound_program_is_left_as_it_is(program: Callable[[str], Program]) -> None:
    given = program(
        HEAD + "function program.P(c: BOOL[], x: F32) -> (y)\n"
        "  y = If<then_branch=graph t() -> (h) {\n    h = Neg(x)\n"
        "  }, else_branch=graph e() -> (h) {\n    h = CumSum(x, k)\n  }>(c)\n  k = Constant<value=I64[]{0}>()"
    )
    ordered = pass_named("validate").run(given, Options(), Stats())
    assert [op.op_type for op in ordered.functions[0].ops] == ["Constant", "If"]
    assert pass_named("validate").run(ordered, Options(), Stats()) is ordered


def test_ops_of_a_protocol_slot_without_its_class_are_taken_on_trust(
    program: Callable[[str], Program],
) -> None:
    given = program(
        HEAD + 'function program.P(x: F32) -> (y)\n  y: F32 = "my.ops"::Go(x) '
        "{slot=p, required_trait=protocol, slot_id=1}"
    )
    assert pass_named("validate").run(given, Options(), Stats()) is given
