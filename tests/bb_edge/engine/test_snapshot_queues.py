"""What stands in a queue when a node is written down goes on in the restored one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from components import Diary
from envelopes import fill
from snapshots import body_of, resealed, stands_in

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.entries.bootstrap import BootstrapStatus, ModuleNames
from bb_edge.engine.snapshot import SnapshotDamagedError
from bb_edge.engine.steps import AppEvent, OpFailed, SendEnvelope
from bb_edge.ir.address import Address
from bb_edge.ir.opsets import Opset, Table
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Aggregator, ProtocolComponent
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, Fill

MS, S = 1_000_000, 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
SELF, A, B = (PeerId.from_name(name) for name in ("node", "a", "b"))


class Case:
    """A program, and nodes of it: a first one, and what its snapshot gives at another time."""

    def __init__(self, data: bytes, target: str = "Main", *components: type, **config: int) -> None:
        self.registry = Registry()
        for component in components:
            self.registry.register(component)
        self.data, self.target = data, target
        self.config = NodeConfig.edge().with_(**config)
        self.targets = [target]

    def node(self, snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        more: dict[str, Any] = {"registry": self.registry, "seed": 5, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), self.data, self.targets, self.config, **more)

    def again(self, node: Node, now_ns: int, then_ns: int | None = None, but: Collection[str] = ()) -> Node:
        """What its snapshot gives; `but` as in `stands_in`."""
        written = node.snapshot(now_ns)
        restored = self.node(written, now_ns if then_ns is None else then_ns)
        if then_ns in (None, now_ns):
            stands_in(restored, written, now_ns, but)
        return restored


def events(found: list[steps.EngineStep], topic: str) -> list[Any]:
    return [np.asarray(s.value).tolist() for s in found if isinstance(s, AppEvent) and s.topic == topic]


def until(node: Node, end_ns: int, now_ns: int) -> list[steps.EngineStep]:
    """Polls whenever something is due."""
    found: list[steps.EngineStep] = []
    while (due := node.next_deadline_ns()) is not None and due <= end_ns:
        now_ns = max(now_ns + 1, due)
        found += node.poll(now_ns)
    assert not [s for s in found if isinstance(s, OpFailed)]
    return found


def sent(found: list[steps.EngineStep]) -> list[tuple[PeerId, Envelope]]:
    steps_ = [s for s in found if isinstance(s, SendEnvelope)]
    return [(s.peer, envelope.decode(s.payload, EDGE_CAPS)) for s in steps_]


# --- envelopes that wait for an execution -------------------------------------------------------------

SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
HEAR = f"""
program Demo {{module=Demo}}
function program.Main() -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(x)
  y: F32[1] = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="s">(s)
"""


def test_envelopes_that_wait_for_an_execution_are_delivered_with_their_senders_and_deadlines(compile_text):
    case = Case(compile_text(HEAR), max_executions=1)
    node = case.node()
    node.poll(1)
    rows = ((A, 1, 0), (B, 2, S), (B, 3, 15 * MS))  # the last one waits too long
    for seq, (peer, value, deadline_ns) in enumerate(rows, 1):
        message = Envelope([fill(0xC1, value)], remaining_deadline_ns=deadline_ns, epoch=9, seq=seq)
        node.deliver_inbound(envelope.encode(message), peer)
    node.poll(2)
    assert len(node.inspect().ingress["entries"]) == 2, "one runs"
    held = node.counters["ingress.bytes"]
    assert held > 100
    for shift_ns in (0, 50 * S):
        again = case.again(node, 3, 3 + shift_ns)
        assert again.counters["ingress.bytes"] == held
        assert again.inspect().ingress["bytes_by_peer"] == node.inspect().ingress["bytes_by_peer"]
        waiting = again.inspect().ingress["entries"]
        assert [entry["expires_ns"] for entry in waiting] == [S + 2 + shift_ns, 15 * MS + 2 + shift_ns]
        found = until(again, shift_ns + S, shift_ns + 3)
        assert events(found, "y") == [[1.0], [2.0]]
        assert [s.value for s in found if isinstance(s, AppEvent) and s.topic == "s"] == [(B,)]
        assert again.counters["deadlines.expired"] == 1
        assert again.counters["ingress.bytes"] == 0


# --- requests -----------------------------------------------------------------------------------------

ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
ASKS = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], all: PeerIdVec) -> () {{entry=1, partition=Main}}
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=4000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  syscall.AppEmit<name="y">(y)
  late: Trigger = syscall.Sleep<duration_ns=10000000>(closed)
  gone: PeerIdVec = syscall.GateDispatch(missing, late)
  syscall.AppEmit<name="missing">(gone)
"""


def asking(compile_text) -> tuple[Case, Node, dict[PeerId, int]]:
    """A node that has asked A and B; their request ids."""
    case = Case(compile_text(ASKS))
    node = case.node()
    for peer in (A, B):
        node.peer_presence(peer, True, (HERE,), epoch=1)
    node.poll(1)
    node.invoke("Main", {"x": f32(5), "all": (A, B)})
    asked = sent(node.poll(2))
    assert [(peer, message.kind) for peer, message in asked] == [(A, REQUEST), (B, REQUEST)]
    return case, node, {peer: message.wire_req_id for peer, message in asked}


def answer(node: Node, peer: PeerId, number: int, value: float, seq: int = 1) -> None:
    message = Envelope([fill(0xB1, value)], RESPONSE, number, epoch=3, seq=seq)
    node.deliver_inbound(envelope.encode(message), peer)


def test_only_who_has_not_answered_is_asked_again_and_under_the_same_number(compile_text):
    case, node, numbers = asking(compile_text)
    answer(node, A, numbers[A], 1)
    assert events(node.poll(3), "y") == [[1.0]]
    again = case.again(node, 4, but=("outbound",))
    found = [(p, m) for p, m in sent(again.poll(5)) if m.kind == REQUEST]
    ((peer, message),) = found
    assert (peer, message.wire_req_id) == (B, numbers[B])
    assert message.remaining_deadline_ns == 4 * S + 2 - 5
    assert [bytes(f.payload) for f in message.fills] == [fill(0xA1, 5).payload]
    answer(again, A, numbers[A], 7, seq=2)
    answer(again, B, numbers[B], 2)
    found = until(again, S, 5)
    assert events(found, "y") == [[2.0]], "A has been heard"
    assert [s.value for s in found if isinstance(s, AppEvent) and s.topic == "missing"] == [()]


def test_what_is_closed_is_not_asked_again_and_goes_on(compile_text):
    case, node, numbers = asking(compile_text)
    for value, peer in enumerate((A, B)):
        answer(node, peer, numbers[peer], value)
    node.poll(3)
    again = case.again(node, 4)
    assert again.counters["requests.open"] == node.counters["requests.open"]
    found = until(again, S, 4)
    assert not [m for _, m in sent(found) if m.kind == REQUEST]
    assert [s.value for s in found if isinstance(s, AppEvent) and s.topic == "missing"] == [()]
    assert again.counters["requests.open"] == 0 and again.counters["executions.active"] == 0


ANSWERS = f"""
program Demo {{module=Demo}}
function program.Main() -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Mul(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""


def test_a_reply_that_is_put_off_leaves_when_its_peer_wants_it(compile_text):
    case = Case(compile_text(ANSWERS))
    node = case.node()
    node.peer_presence(A, True, (HERE,), epoch=1)
    notice = Fill(
        Address.empty().with_component(0, "Backoff").to_bytes(),
        cbor.dumps({"min_backoff_ns": S}),
        False,
        0x0B,
    )
    node.deliver_inbound(envelope.encode(Envelope([notice])), A)
    node.poll(1)
    message = Envelope([fill(0xA1, 3)], REQUEST, 77, 5 * S, epoch=9, seq=1)
    node.deliver_inbound(envelope.encode(message), A)
    assert [m.kind for _, m in sent(node.poll(2)) if m.kind == RESPONSE] == []
    again = case.again(node, 3, 3 + 20 * S)
    assert [m for _, m in sent(until(again, 20 * S + S // 2, 20 * S + 3)) if m.kind == RESPONSE] == []
    ((peer, reply),) = [(p, m) for p, m in sent(until(again, 22 * S, 20 * S + S // 2)) if m.kind == RESPONSE]
    assert (peer, reply.wire_req_id) == (A, 77)
    assert reply.remaining_deadline_ns == 4 * S + 1, "of five seconds that began one before it left"
    assert bytes(reply.fills[0].payload) == fill(0, 9).payload


# --- components ---------------------------------------------------------------------------------------


class Sum(Aggregator):
    """Takes each contribution when a test says so."""

    TYPE_NAME: ClassVar[str] = "test.Sum"
    restartable: ClassVar[bool] = True

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.open: list[Any] = []

    @classmethod
    def construct(cls, env: Any) -> Sum:
        return cls()

    def contribute(
        self,
        ctx: Any,
        contribution: Any,
        weight: Any = None,
        peer: Any = None,
        round: Any = None,
        sent: Any = None,
    ) -> Any:
        self.calls.append((contribution.tolist(), weight, peer, round))
        self.open.append(ctx.later(100 * S))
        return self.open[-1]

    def aggregate(self, ctx: Any, stack: Any = None, round: Any = None) -> Any:
        return f32(), np.float32(0)

    def current_tensor(self, ctx: Any, trigger: Any = None) -> Any:
        return f32()


CONTRIBUTES = """
program Demo {module=Demo, binding.Main.agg="aggregator|test.Sum|1"}
function program.Main(x: F32[1], who: PeerIdVec) -> () {entry=1, partition=self}
  slot agg: aggregator
  c: CommandId = role.aggregator.Contribute(x, "", who) {slot=agg}
  syscall.AppNotify<name="counted">(c)
"""


def test_an_op_that_runs_again_has_its_inputs_and_no_others(compile_text):
    case = Case(compile_text(CONTRIBUTES), "Main", Sum)
    node = case.node()
    node.invoke("Main", {"x": f32(4), "who": (A,)})
    node.poll(1)
    again = case.again(node, 2, but=("executions", "parked"))
    again.poll(3)
    assert again.component("agg").calls == [([4.0], None, (A,), None)] == node.component("agg").calls
    again.component("agg").open[0].complete(None)
    assert len([s for s in again.poll(4) if isinstance(s, AppEvent)]) == 1


class Caller(ProtocolComponent):
    """Asks its counterpart, by a method and by a closure; keeps time by both."""

    TYPE_NAME: ClassVar[str] = "test.Caller"

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes | None]] = []

    @classmethod
    def construct(cls, env: Any) -> Caller:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.caller")
        table.op("Ask", "peers:PeerIdVec", "cmd:CommandId")
        table.op("Double", "sender:PeerId, payload:Bytes", "reply:Bytes", remote=True)
        return table.opset()

    def double(self, ctx: Any, sender: PeerId, payload: bytes) -> bytes:
        return payload + payload

    def ask(self, ctx: Any, peers: Any) -> None:
        ctx.request(peers[0], "Double", b"method", 2 * S, self.answered)
        ctx.request(
            peers[0], "Double", b"closure", 2 * S, lambda _ctx, reply: self.heard.append(("closure", reply))
        )
        ctx.scheduler.after(S, self.rang)
        ctx.scheduler.after(S, lambda _ctx: self.heard.append(("rang, a closure", None)))

    def answered(self, ctx: Any, reply: bytes | None) -> None:
        self.heard.append(("method", reply))

    def rang(self, ctx: Any) -> None:
        self.heard.append(("rang", None))


CALLS = """
program Demo {module=Demo, binding.Main.e="protocol|test.Caller|7"}
function program.Main(to: PeerIdVec) -> () {entry=1, partition=self}
  slot e: protocol
  asked: CommandId = "test.caller"::Ask(to) {slot=e}
"""


def calling(compile_text) -> tuple[Case, Node, dict[bytes, int]]:
    case = Case(compile_text(CALLS), "Main", Caller)
    node = case.node()
    node.peer_presence(A, True, (HERE,), epoch=1)
    node.poll(1)
    node.invoke("Main", {"to": (A,)})
    asked = [m for _, m in sent(node.poll(2)) if m.kind == REQUEST]
    return case, node, {bytes(m.fills[0].payload): m.wire_req_id for m in asked}


@pytest.mark.parametrize("answered", [True, False])
def test_calls_and_timers_of_components_go_on_where_they_call_a_method(compile_text, answered):
    case, node, numbers = calling(compile_text)
    assert set(numbers) == {b"method", b"closure"}
    again = case.again(node, 3)
    heard = again.component("e").heard
    assert len(again.inspect().calls) == 2
    if answered:
        suffix = Address.empty().with_component(7, "Double").to_bytes()
        for seq, (name, number) in enumerate(numbers.items(), 1):
            message = Envelope([Fill(suffix, name * 2, False, 0x0B)], RESPONSE, number, epoch=2, seq=seq)
            again.deliver_inbound(envelope.encode(message), A)
    until(again, 10 * S, 3)
    expected = (
        [("method", b"methodmethod"), ("rang", None)] if answered else [("rang", None), ("method", None)]
    )
    assert heard == expected, "what was to call a closure calls nobody"
    assert len(again.inspect().calls) == 0, "and is over all the same"
    until(node, 10 * S, 3)
    assert len(node.component("e").heard) == 4


@pytest.mark.parametrize(("column", "value"), [(2, "x"), (4, "nothing_like_it")])
def test_a_call_of_a_slot_or_method_that_is_not_there_is_damage(compile_text, column, value):
    case, node, _ = calling(compile_text)
    body = body_of(node.snapshot(3))
    body["control"][0][column] = value
    with pytest.raises(SnapshotDamagedError, match="'control' does not fit"):
        case.node(resealed(body))


CLAIMED = """
program Demo {module=Demo, binding.Main.m="model|test.Diary|1", binding.Other.m="model|test.Diary|1"}
function program.Main(x: F32[1]) -> () {entry=1, partition=self}
  slot m: model
  c: CommandId = role.model.ApplyDelta(x) {slot=m}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(c)
  y: F32[1] = syscall.GateDispatch(x, late)
  d: CommandId = role.model.ApplyDelta(y) {slot=m}
function program.Other(x: F32[1]) -> (y) {entry=1, partition=other}
  y: F32[1] = Neg(x)
function program.Other__bootstrap() -> () {module_phase=bootstrap}
  slot m: model
  one: F32[1] = Constant<value=F32[1]{9.0}>()
  cmd: CommandId = role.model.ApplyDelta(one) {slot=m}
"""


def claimed(compile_text) -> tuple[Case, Node]:
    """A node whose component one execution holds while another execution and a bootstrap wait for it."""
    case = Case(compile_text(CLAIMED), "Main", Diary)
    case.targets = ["Main", "Other"]
    node = case.node()
    node.poll(1)
    node.invoke("Main", {"x": f32(1)})
    node.poll(2)
    node.invoke("Main", {"x": f32(2)})
    node.run_bootstrap(ModuleNames(("Other",)))
    node.poll(3)
    assert len(node.inspect().claims) == 2
    return case, node


def test_who_waits_for_a_component_gets_it_in_turn(compile_text):
    case, node = claimed(compile_text)
    again = case.again(node, 4)
    for one in (node, again):
        found = until(one, S, 4)
        assert one.component("m").log == [1, 1, 9, 2, 2]
        assert one.bootstrap_status("Other") is BootstrapStatus.DONE
        assert len([s for s in found if isinstance(s, steps.BootstrapComplete)]) == 1
        assert one.counters["executions.active"] == 0
        one.invoke("Main", {"x": f32(3)})
        until(one, 2 * S, S)
        assert one.component("m").log[5:] == [3, 3]
