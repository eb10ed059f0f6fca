"""Pass 4."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_host import errors
from bb_host.compiler import Options, Stats
from bb_host.compiler.pipeline import pass_named
from bb_host.program import Function, Op, Program, RawAttribute, Slot
from bb_host.text import parse


def test_our_ops_get_their_defaults_and_onnx_ops_keep_theirs_implicit(
    run_pass: Callable[..., Program],
) -> None:
    text = """
        program P {module=P}

        function program.P(x: F32, t: Trigger) -> ()
          r = syscall.Repeat<times=3>()
          syscall.IncrMetric<name="n">(t)
          s = Softmax(x)
          d = Dot(x, s)
          z = Zeros<shape=[2, 3]>()
        """
    stats = Stats()
    ops = run_pass("expand_ops", text, stats).functions[0].ops
    assert ops[0].attrs == {"times": 3, "pause_ns": 0}
    assert ops[1].attrs == {"name": b"n", "delta": 1}
    assert ops[2].attrs == {}
    assert ops[3].op_type == "MatMul"
    value = ops[4].attrs["value"]
    assert ops[4].op_type == "Constant"
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, np.zeros((2, 3), np.float32))
    assert stats.counters["expansion_count"] == 4


@pytest.mark.parametrize(
    "op",
    [
        "syscall.Interval()",
        "syscall.Interval<period_ns=5, perod_ns=6>()",
        "Zeros<shape=[-1]>()",
        "Ones<shape=[100000, 100000]>()",
        "Zeros<shape=2>()",
    ],
)
def test_what_cannot_be_expanded_is_refused(op: str, program: Callable[[str], Program]) -> None:
    given = program(f"program P {{module=P}}\n\nfunction program.P() -> ()\n  a = {op} {{source=a.py:2}}")
    with pytest.raises(errors.MalformedOp) as caught:
        pass_named("expand_ops").run(given, Options(), Stats())
    assert caught.value.where == "a.py:2"


def test_a_constant_takes_the_attribute_of_its_function() -> None:
    proto = AttributeProto(name="value", type=AttributeProto.TENSOR, ref_attr_name="w")
    reference = RawAttribute(AttributeProto.TENSOR, proto.SerializeToString())
    weight = np.arange(3, dtype=np.float32)
    function = Function(
        "P",
        "d",
        ops=(Op("Constant", "", (), ("c",), {"value": reference}),),
        slots={"w": Slot("", state=weight)},
    )
    done = pass_named("expand_ops").run(Program("P", (function,)), Options(), Stats())
    assert done.functions[0].ops[0].attrs["value"] is weight


def test_full_ops_are_left_as_they_are() -> None:
    given = parse("function program.P() -> ()\n  r = syscall.Repeat<times=3, pause_ns=1>()")
    assert pass_named("expand_ops").run(given, Options(), Stats()) is given


def test_an_attribute_that_the_op_does_not_have_is_refused() -> None:
    """A Send's peers are an input: the static `peer` of other systems would be passed over."""
    text = 'function program.P(x: F32, p: PeerIdVec) -> ()\n  wire.Send<peer="x">(x, p) {source=a.py:2}'
    with pytest.raises(errors.MalformedOp, match="no attribute 'peer'") as caught:
        pass_named("expand_ops").run(parse(text), Options(), Stats())
    assert caught.value.where == "a.py:2"
    assert "deadline_ns" in caught.value.hint
