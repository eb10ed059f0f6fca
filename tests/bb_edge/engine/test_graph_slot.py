"""Functions compiled to integers: waiting counts, sources, regions, refusals."""

from __future__ import annotations

import pytest
from program_text import parse

from bb_edge.engine.errors import LoadError
from bb_edge.engine.program.build import build_graph
from bb_edge.engine.program.program import EAGER_MASK, LAZY, OUTPUT_OP
from bb_edge.ir.onnx_pb2 import ModelProto
from bb_host.ir.proto import to_bytes


def graph(body: str, inputs: str = "", outputs: str = "", entry: bool = False):
    text = f"program Demo {{module=Demo}}\nfunction program.Main({inputs}) -> ({outputs}) {{}}\n{body}"
    proto = ModelProto.FromString(to_bytes(parse(text))).functions[0]
    return build_graph(proto, entry)


def op(slot, kind):
    return next(o for o in slot.ops if o.op_type == kind)


def test_constants_are_in_the_template_and_not_waited_for():
    slot = graph("  c: F32[1] = Constant<value=F32[1]{3}>()\n  y: F32 = Add(x, c)\n", "x: F32")
    add = op(slot, "Add")
    assert add.waits == 1
    assert slot.values[add.inputs[1]].tolist() == [3.0]
    assert [o.op_type for o in slot.ops] == ["Add"]


def test_a_value_read_twice_is_waited_for_once():
    slot = graph("  y: F32 = Add(x, x)\n", "x: F32")
    assert op(slot, "Add").waits == 1


def test_sources_weigh_apart_and_are_pulled():
    slot = graph(
        "  p: Tensor = role.model.Params() {slot=m}\n  q: Tensor = Neg(p)\n  y: Tensor = Add(x, q)\n",
        "x: Tensor",
    )
    add, params = op(slot, "Add"), op(slot, "Params")
    assert (add.waits & EAGER_MASK, add.waits // LAZY) == (1, 1)
    assert add.pulls == (params.index,)
    assert params.waits == 1 and op(slot, "Neg").waits == 1


def test_after_makes_a_source_a_plain_op():
    slot = graph("  p: Tensor = role.model.Params(x) {slot=m, control_inputs=1}\n", "x: Tensor")
    params = op(slot, "Params")
    assert (params.inputs, len(params.controls), params.waits, params.pulls) == ((), 1, 1, ())


def test_any_style_ops_split_into_one_record_per_port():
    slot = graph("  y: F32 = syscall.Any(a, b)\n", "a: F32, b: F32")
    ports = [o for o in slot.ops if o.op_type == "Any"]
    assert [(o.port, o.waits, o.origin) for o in ports] == [(0, 1, ports[0].index), (1, 1, ports[0].index)]


def test_answers_open_a_region_that_imports_what_it_reads():
    slot = graph(
        "  r: WireReqId = wire.SendReqBatched(x, p, p) {wire.wire_id=1}\n"
        "  c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.request=1}\n"
        "  a: F32, s: PeerIdVec = wire.RecvResp() {wire.request=1}\n"
        "  y: F32 = Add(a, x)\n"
        "  z: F32 = Neg(x)\n",
        "x: F32, p: PeerIdVec",
    )
    assert [o.region for o in slot.ops if o.op_type in ("Add", "Neg", "RecvRespBatched")] == [0, 1, 0]
    assert slot.regions[1].imports == (slot.inputs["x"],)
    assert slot.regions[1].request == op(slot, "SendReqBatched").index


def test_each_declared_output_of_an_entry_surfaces():
    slot = graph("  y: F32 = Neg(x)\n  z: F32 = Neg(y)\n", "x: F32", "y, z, x", entry=True)
    assert [o.attrs["name"] for o in slot.ops if o.op_type == OUTPUT_OP] == ["y", "z", "x"]
    slot = graph("  y: F32 = Neg(x)\n", "x: F32", "y")
    assert not [o for o in slot.ops if o.op_type == OUTPUT_OP]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("  y: F32 = Neg(nowhere)\n", "nothing before it writes"),
        ("  x: F32 = Neg(x)\n", "written twice"),
        ("  a: F32, s: PeerIdVec = wire.RecvResp() {wire.request=9}\n", "without its request"),
        ("  y: F32 = Neg(x) {control_inputs=3}\n", "more control inputs"),
        ("  y: Tensor = Constant()\n", "needs a value"),
    ],
)
def test_what_no_compiler_emits_is_refused(body, says):
    with pytest.raises(LoadError, match=says):
        graph(body, "x: F32")


ROW = """  x: Tensor, y: Tensor = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  l: F32[] = role.model.Train(x, y) {slot=m}
  c: CommandId = role.model.Step(l) {slot=m, control_inputs=1}
"""


@pytest.mark.parametrize(
    ("more", "outputs", "row"),
    [
        ("", "", ["NextBatch", "Train"]),
        (
            "  p: Tensor = role.model.Params(c) {slot=m, control_inputs=1}\n",
            "",
            ["NextBatch", "Train", "Step"],
        ),
        ("  z: Tensor = Neg(x)\n", "", ["Train"]),
        ("  e: F32[] = role.model.Evaluate(x, y) {slot=m}\n", "", ["Train"]),
        ("  z: Tensor = Neg(l)\n", "", ["NextBatch"]),
        ("", "l: F32[]", ["NextBatch"]),
        ("", "y: Tensor", ["Train"]),
        (
            "  p: Tensor = role.model.ApplyDelta(w, c) {slot=m, control_inputs=1}\n",
            "",
            ["NextBatch", "Train"],
        ),
    ],
)
def test_ops_of_components_are_in_a_row_where_one_alone_waits_for_another_alone(more, outputs, row):
    slot = graph(ROW + more, "go: Trigger, w: Tensor", outputs)
    assert [slot.ops[index].op_type for index in sorted(slot.thens)] == row
    assert all(behind == index + 1 for index, behind in slot.thens.items())


def test_ops_behind_an_answer_are_in_no_row_with_what_they_read_of_the_request():
    slot = graph(
        """  x: Tensor, y: Tensor = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  r: WireReqId = wire.SendReqBatched(v, p, p) {wire.wire_id=1}
  c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {wire.request=1}
  a: F32, s: PeerIdVec = wire.RecvResp() {wire.request=1}
  l: F32[] = role.model.Train(x, y, a) {slot=m, control_inputs=1}
""",
        "go: Trigger, v: F32, p: PeerIdVec",
    )
    assert op(slot, "Train").region == 1 and slot.thens == {}


def test_no_op_is_in_a_row_with_one_that_pulls_sources():
    slot = graph(ROW.replace("NextBatch(go) {slot=d, control_inputs=1}", "NextBatch() {slot=d}"))
    assert op(slot, "Step").pulls == (op(slot, "NextBatch").index,)
    assert [slot.ops[index].op_type for index in slot.thens] == ["NextBatch"]
