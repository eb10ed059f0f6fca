"""`Compiler` as a value: bindings, options, what it takes."""

from __future__ import annotations

import gc
from typing import ClassVar

import onnx
import pytest
from components import Slow
from program_text import parse

from bb_edge.ir import keys
from bb_host import errors
from bb_host.compiler import Compiler
from bb_host.compiler.driver import as_program
from bb_host.ir.program import Op, Program
from bb_host.ir.proto import from_proto, to_proto
from bb_host.ir.spelling import written

TEXT = """program P {module=P}

function program.P(x: F32[2]) -> (y)
  slot codec: codec
  slot model: model
  c: Tensor = role.compressor.Compress(x) {slot=codec, slot_id=1, required_trait=codec}
  y: Tensor = role.compressor.Decompress(c) {slot=codec, slot_id=1, required_trait=codec}
"""


class Halves(Slow):
    TYPE_NAME: ClassVar[str] = "test.Halves"


class Module:
    """Anything that records itself."""

    def record(self) -> Program:
        return parse(TEXT)


def test_a_compiler_is_a_value() -> None:
    empty = Compiler()
    bound = empty.bind_codec("codec", Halves)
    assert empty.bindings == ()
    assert bound.bindings[0].type_name == "test.Halves"
    assert bound.bindings[0].component is Halves
    assert empty.bind_codec("codec", "b.Codec").bindings[0].type_name == "b.Codec"
    assert len(bound.bind_codec("codec", "b.Codec", target="P").bindings) == 2
    assert not empty.with_strict_types(False).strict_types
    assert empty.with_per_hop_budget_ns(5).per_hop_budget_ns == 5
    with pytest.raises(errors.InfeasibleDeadline):
        empty.with_per_hop_budget_ns(-1)
    with pytest.raises(AttributeError):
        empty.strict_types = False  # type: ignore[misc]


@pytest.mark.parametrize("role", keys.ROLES)
def test_every_role_has_its_bind(role: str) -> None:
    bound = getattr(Compiler(), f"bind_{role}")("s", "some.Type", {"k": 1}, target="T")
    assert (bound.bindings[0].role, bound.bindings[0].slot, bound.bindings[0].target) == (role, "s", "T")


def test_modules_models_and_programs_compile_alike() -> None:
    compiler = Compiler().bind_codec("codec", Halves)
    model = compiler.compile(Module())
    assert isinstance(model, onnx.ModelProto)
    assert compiler.compile(parse(TEXT)) == model
    assert compiler.compile(to_proto(parse(TEXT))) == model
    assert to_proto(from_proto(model)) == model
    onnx.checker.check_model(model)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(errors.UnsupportedModule):
        as_program(3)  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedModule):
        Compiler().compile(Program("P"))


@pytest.mark.parametrize(
    ("bind", "what"),
    [
        (lambda c: c.bind_codec("kodec", Halves), "no slot 'kodec'"),
        (lambda c: c.bind_model("codec", "a.M"), "slot 'codec' is one of role codec"),
        (lambda c: c.bind_model("model", Halves), "is a component of role codec"),
        (lambda c: c.bind_model("model", "bb.FedAvg"), "is a component of role aggregator"),
        (lambda c: c.bind_codec("codec", object), "no TYPE_NAME"),
        (lambda c: c.bind_codec("codec", "a|b"), "no TYPE_NAME"),
        (lambda c: c.bind_codec("codec", Halves, {1: 2}), "key 1 is not text"),
        (lambda c: c.bind_codec("codec", Halves, {"k": object()}), "no CBOR form"),
        (lambda c: c.bind_codec("codec", Halves, 5), "a config is a mapping"),
        (lambda c: c.bind("poet", "codec", Halves), "no role 'poet'"),
    ],
)
def test_bindings_that_do_not_fit_are_refused(bind: object, what: str) -> None:
    with pytest.raises(errors.BindingError) as caught:
        bind(Compiler()).compile(parse(TEXT))  # type: ignore[operator]
    assert what in caught.value.what


def test_a_default_backend_may_be_bound_without_being_declared() -> None:
    done = (
        Compiler()
        .bind_codec("codec", Halves)
        .bind_backend("backend", "my.Backend")
        .compile_program(parse(TEXT))
    )
    assert written(done.facts)[keys.BINDING_PREFIX + "P.backend"] == "backend|my.Backend|2"


def test_relaxed_types() -> None:
    text = TEXT.replace("c: Tensor", "c: Tensor").replace("(x: F32[2])", "(x: F32[2], z: Any)")
    with pytest.raises(errors.UnresolvedType):
        Compiler().bind_codec("codec", Halves).compile(parse(text))
    Compiler().bind_codec("codec", Halves).with_strict_types(False).compile(parse(text))


def test_every_refusal_is_a_compile_error_of_its_own_name() -> None:
    from bb_edge.ir.errors import CompileError

    for name in (
        *(
            "CrossClassDataflow",
            "AmbiguousPlacement",
            "CrossExecutionJoin",
            "JoinAcrossSends",
            "WireInSubgraph",
        ),
        *("UnpairedWireRequest", "NotWireEligible", "WireInBootstrap", "AmbiguousRole", "UnresolvedType"),
        *(
            "TypeConstraintFailed",
            "BootstrapCompositionGap",
            "BootstrapCompositionCycle",
            "RuntimeIncomplete",
        ),
        *("MissingDeadline", "UnknownOp", "DanglingInput", "DuplicateOutput", "MissingTypeInfo"),
        *("MalformedSlotMetadata", "CyclicGraph", "OpsetNotImported", "UnboundSlot"),
    ):
        assert issubclass(getattr(errors, name), CompileError)


ADDS = """program P {module=P}

function program.P(x: F32[2]) -> (y)
  of_this_test: Tensor = Add(x, x)
  y: Tensor = Erf(of_this_test)
"""


def test_nothing_of_a_program_stays_behind_in_the_compiler() -> None:
    """What passes find out about ops lives with these ops, and no longer."""
    compiled = Compiler().compile_program(parse(ADDS))

    def alive() -> list[Op]:
        gc.collect()
        return [op for op in gc.get_objects() if type(op) is Op and "of_this_test" in op.outputs]

    assert alive()
    del compiled
    assert alive() == []


def test_a_binding_of_a_program_without_slots_says_so() -> None:
    with pytest.raises(errors.BindingError, match="has no slot 'codec'") as caught:
        Compiler().bind_codec("codec", "a.Codec").compile(
            parse("function program.P(x: F32) -> (y)\n  y = Relu(x)\n")
        )
    assert caught.value.hint == "it has no slots at all"
