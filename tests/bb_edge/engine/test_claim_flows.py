"""Who has an unshared component while executions interleave."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from arrays import f32
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles import Model
from bb_edge.transport.in_process import Simulation


class Diary(Model):
    """Writes down who does what; `apply_delta` writes, `forward` reads."""

    TYPE_NAME: ClassVar[str] = "test.Diary"

    def __init__(self) -> None:
        self.entries: list[tuple[str, float]] = []

    @classmethod
    def construct(cls, env: Any) -> Diary:
        return cls()

    def forward(self, ctx: Any, input: Any) -> Any:
        self.entries.append(("read", float(input[0])))
        return input

    def apply_delta(self, ctx: Any, delta: Any) -> None:
        self.entries.append(("write", float(delta[0])))

    def load_parameters(self, ctx: Any, params: Any) -> None:
        self.entries.append(("load", float(params[0])))

    def params(self, ctx: Any) -> Any:
        return f32(0)

    def execution_ended(self, exec_id: int) -> None:
        self.entries.append(("end", exec_id))


@pytest.fixture
def registry():
    found = Registry()
    found.register(Diary)
    return found


HEAD = (
    'program Demo {module=Demo, binding.Main.m="model|test.Diary|1", binding.Main.o="model|test.Diary|2"}\n'
)

TWO_WRITES = HEAD + (
    "function program.Main(x: F32, r: F32, other: F32) -> () {entry=1, partition=self}\n"
    "  slot m: model\n  slot o: model\n"
    "  a: CommandId = role.model.ApplyDelta(x) {slot=m}\n"
    "  t: Trigger = syscall.OnTrigger(a)\n"
    "  WAIT\n"
    "  y: F32 = syscall.GateDispatch(x, late)\n"
    "  b: CommandId = role.model.ApplyDelta(y) {slot=m}\n"
    "  seen: F32 = role.model.Forward(r) {slot=m}\n"
    "  c: CommandId = role.model.ApplyDelta(other) {slot=o}\n"
)


def diary(b: Any, slot: str = "m") -> list[tuple[str, float]]:
    return [e for e in b.node.component(slot).entries if e[0] != "end"]


def test_an_execution_has_it_from_its_first_op_to_its_end(bench, registry):
    b = bench(
        TWO_WRITES.replace("WAIT", "late: Trigger = syscall.Sleep<duration_ns=10>(t)"), registry=registry
    )
    for n in (1, 2, 3):
        b.node.invoke("Main", {"x": f32(n)})
    b.node.invoke("Main", {"r": f32(9)})
    b.node.invoke("Main", {"other": f32(5)})
    b.poll()
    assert diary(b) == [("write", 1), ("read", 9)], "who only reads runs between the claimant's ops"
    assert diary(b, "o") == [("write", 5)], "another component is another claim"
    b.settle()
    assert diary(b)[2:] == [("write", n) for n in (1, 2, 2, 3, 3)], "first come, first served"
    assert b.now_ns == 30 and b.node.counters["executions.active"] == 0


def test_it_is_given_up_while_only_a_permit_is_waited_for(bench, registry):
    b = bench(
        TWO_WRITES.replace("WAIT", 'late: F32 = syscall.Serialize.Dequeue<queue="q">(t)').replace(
            "other: F32)", "other: F32, put: F32)"
        )
        + '  done: Trigger = syscall.Serialize.Enqueue<queue="q">(put)\n',
        registry=registry,
    )
    for n in (1, 2):
        b.node.invoke("Main", {"x": f32(n)})
    b.poll()
    assert diary(b) == [("write", 1), ("write", 2)]
    for _ in range(2):
        b.node.invoke("Main", {"put": f32(0)})
    b.settle()
    assert diary(b)[2:] == [("write", 1), ("write", 2)], "and claimed anew"
    assert b.node.counters["executions.active"] == 0


def test_who_waits_for_a_claim_past_its_deadline_is_let_go(compile_text, registry):
    sites = "{wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, deadline_ns=400000000}"
    data = compile_text(
        'program Demo {module=Demo, binding.L.p="peer_selector|bb.PresenceSelector|1", binding.R.m="model|test.Diary|2"}\n'
        "function program.L(x: F32[1]) -> () {entry=1, partition=Left}\n  slot p: peer_selector peer_class=Right\n"
        "  to: PeerIdVec = role.peer_selector.CurrentView() {slot=p}\n"
        f"  h: Trigger = wire.Send(x, to) {sites}\n"
        "function program.R(hold: F32[1]) -> () {entry=1, partition=Right}\n  slot m: model\n"
        "  a: CommandId = role.model.ApplyDelta(hold) {slot=m}\n  t: Trigger = syscall.OnTrigger(a)\n"
        "  late: Trigger = syscall.Sleep<duration_ns=2000000000>(t)\n"
        "  y: F32[1] = syscall.GateDispatch(hold, late)\n  b: CommandId = role.model.ApplyDelta(y) {slot=m}\n"
        f"  x: F32[1], s: PeerIdVec = wire.Recv() {sites}\n  c: CommandId = role.model.ApplyDelta(x) {{slot=m}}\n"
    )
    sim = Simulation()
    left, right = (install(PeerId.from_name(n), (), data, [n], registry=registry, seed=1) for n in ("L", "R"))
    sim.add(left)
    sim.add(right)
    sim.run(for_ns=S // 10)
    right.invoke("R", {"hold": f32(1)})
    left.invoke("L", {"x": f32(2)})
    sim.run(for_ns=S)
    assert right.counters["deadlines.expired"] == 1
    assert right.counters["executions.active"] == 1, "only the claimant is left"
    assert not [s for s in sim.seen if isinstance(s.step, steps.ExecutionStarved | steps.OpFailed)]
    left.invoke("L", {"x": f32(3)})
    sim.run(for_ns=4 * S)
    left.invoke("L", {"x": f32(4)})
    sim.run(for_ns=S)
    writes = [e for e in right.component("m").entries if e[0] == "write"]
    assert writes == [("write", 1), ("write", 1), ("write", 4)]
    assert right.counters["executions.active"] == 0


def test_an_observer_that_fails_does_not_stop_the_node(bench, registry):
    class Sulky(Diary):
        TYPE_NAME: ClassVar[str] = "test.Sulky"

        def execution_ended(self, exec_id: int) -> None:
            raise ValueError("no")

    registry.register(Sulky)
    b = bench(
        TWO_WRITES.replace("test.Diary|1", "test.Sulky|1").replace(
            "WAIT", "late: Trigger = syscall.OnTrigger(t)"
        ),
        registry=registry,
    )
    b.node.invoke("Main", {"x": f32(1)})
    b.settle()
    assert [f.op for f in b.of(steps.OpFailed)] == ["test.Sulky.execution_ended"]
    assert b.node.counters["components.failed"] == 1
    assert len(b.of(steps.ExecutionEnded)) == 1


def test_more_executions_than_places_come_through_one_claim(bench, registry):
    b = bench(
        TWO_WRITES.replace("WAIT", "late: Trigger = syscall.Sleep<duration_ns=1>(t)"),
        registry=registry,
        config=NodeConfig(max_executions=2),
    )
    for n in range(20):
        b.node.invoke("Main", {"x": f32(n)})
    b.settle()
    assert diary(b) == [("write", n) for n in range(20) for _ in (1, 2)]
    assert b.node.counters["executions.peak"] == 2
