"""The parts of `expand_ops` that text cannot show; cases/expand_ops.txt has the others."""

from __future__ import annotations

import numpy as np

from bb_edge.ir.onnx_pb2 import AttributeProto
from bb_host.compiler import Options, Stats
from bb_host.ir.program import Function, Op, Program, RawAttribute, Slot
from tests.aids.passes import pass_named


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
