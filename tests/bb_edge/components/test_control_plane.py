"""Components with ops of their own, and the way between them from node to node."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from arrays import f32
from simulations import advance
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.entries.bootstrap import Slots
from bb_edge.engine.errors import CapacityError, OpError
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Effect, Opset, Table
from bb_edge.registry import Registry
from bb_edge.roles import ProtocolComponent
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import envelope
from bb_edge.wire.envelope import Envelope, Fill, RttReport


class Echo(ProtocolComponent):
    """Keeps what it hears; `Ask` and `Tell` send from a graph, `Count` is an ordinary op."""

    TYPE_NAME: ClassVar[str] = "test.Echo"

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.replies: list[Any] = []
        self.ticks: list[int] = []
        self.hooks: list[str] = []
        self.later: Any = None

    @classmethod
    def construct(cls, env: Any) -> Echo:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.echo")
        table.op("Count", "x:Tensor", "n:Tensor<I64>", "by:int=1", effect=Effect.WRITE)
        table.op("Tell", "peers:PeerIdVec, x:Tensor", "cmd:CommandId")
        table.op("Ask", "peers:PeerIdVec, x:Tensor", "cmd:CommandId")
        table.op("Note", "sender:PeerId, payload:Bytes", "", remote=True)
        table.op("Double", "sender:PeerId, payload:Bytes", "reply:Bytes", remote=True)
        return table.opset()

    def count(self, ctx: Any, x: Any, *, by: int) -> Any:
        return np.asarray(len(x) * by)

    def tell(self, ctx: Any, peers: Any, x: Any) -> None:
        for peer in peers:
            ctx.send(peer, "Note", x.tobytes())

    def ask(self, ctx: Any, peers: Any, x: Any) -> None:
        for peer in peers:
            ctx.request(peer, "Double", x.tobytes(), 2 * S, self.answered)

    def answered(self, ctx: Any, reply: bytes | None) -> None:
        self.replies.append((ctx.now_ns, reply))

    def note(self, ctx: Any, sender: PeerId, payload: bytes) -> None:
        if payload == b"fail":
            raise ValueError("as asked")
        self.heard.append((sender, payload))

    def double(self, ctx: Any, sender: PeerId, payload: bytes) -> Any:
        if payload == b"fail":
            raise ValueError("as asked")
        if payload.startswith(b"later"):
            self.later = ctx.later(S // 4 if payload == b"later soon" else None)
            return None if payload == b"later not" else self.later
        if payload == b"foreign":
            return self.later
        if payload == b"elsewhere":
            return ctx.offload(lambda: b"worked")
        return None if payload == b"nothing" else payload + payload

    def started(self, ctx: Any) -> None:
        self.hooks.append("started")
        self.ctx = ctx
        ctx.scheduler.after(100, self.tick)

    def tick(self, ctx: Any) -> None:
        self.ticks.append(ctx.now_ns)
        if len(self.ticks) == 3:
            raise ValueError("enough")
        ctx.scheduler.after(100, self.tick)

    def stopping(self, ctx: Any) -> None:
        self.hooks.append("stopping")


class Slow(Echo):
    """One with a bootstrap."""

    TYPE_NAME: ClassVar[str] = "test.SlowEcho"

    def bootstrap(self, ctx: Any) -> Any:
        self.later = ctx.later()
        return self.later


@pytest.fixture
def registry():
    found = Registry()
    found.register(Echo)
    found.register(Slow)
    return found


TEXT = """program Demo {module=Demo, binding.Main.e="protocol|test.Echo|7"}
function program.Main(to: PeerIdVec, x: F32, ask: PeerIdVec) -> () {entry=1, partition=self}
  slot e: protocol
  n: I64[] = "test.echo"::Count<by=3>(x) {slot=e}
  told: CommandId = "test.echo"::Tell(to, x) {slot=e}
  asked: CommandId = "test.echo"::Ask(ask, x) {slot=e}
  syscall.AppEmit<name="n">(n)
"""


@pytest.fixture
def net(compile_text, registry):
    """`net(names, config, kind)`: (simulation, nodes, their Echo components)."""

    def make(names: str = "ab", config: NodeConfig | None = None, kind: str = "test.Echo") -> Any:
        data = compile_text(TEXT.replace("test.Echo", kind))
        sim = Simulation(seed=1)
        nodes = [
            install(PeerId.from_name(n), (), data, ["Main"], config, registry=registry, seed=i)
            for i, n in enumerate(names)
        ]
        for node in nodes:
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, nodes, [node.component("e") for node in nodes]

    return make


def remote(ref: int, op: str, payload: bytes = b"x", **more: Any) -> bytes:
    suffix = Address.empty().with_component(ref, op).to_bytes()
    return envelope.encode(Envelope(fills=[Fill(suffix, payload, False, 0x0B)], **more))


def failures(sim: Simulation) -> list[steps.OpFailed]:
    return [s.step for s in sim.seen if isinstance(s.step, steps.OpFailed)]


def test_ops_of_its_own_run_in_graphs(net):
    sim, (a, _), _ = net()
    a.invoke("Main", {"x": f32(1, 2)})
    advance(sim, S)
    assert int(sim.events("n")[0].value) == 6


def test_a_message_reaches_the_same_slot_of_the_peer(net):
    sim, (a, b), (_, there) = net()
    a.invoke("Main", {"x": f32(5), "to": (b.peer_id,)})
    advance(sim, S)
    assert there.heard == [(a.peer_id, f32(5).tobytes())]
    assert b.counters["control.received"] == 1
    assert b.counters["executions.active"] == 0


def test_a_node_may_speak_to_itself(net):
    sim, (a, _), (here, _) = net()
    a.invoke("Main", {"x": f32(5), "to": (a.peer_id,), "ask": (a.peer_id,)})
    advance(sim, S)
    assert here.heard == [(a.peer_id, f32(5).tobytes())]
    assert [reply for _, reply in here.replies] == [f32(5, 5).tobytes()]


def test_a_request_is_answered(net):
    sim, (a, b), (here, _) = net()
    a.invoke("Main", {"x": f32(5), "ask": (b.peer_id,)})
    advance(sim, S)
    assert [reply for _, reply in here.replies] == [f32(5, 5).tobytes()]
    assert a.inspect().calls == []


def test_a_request_whose_op_gives_nothing_is_answered_with_nothing(net):
    sim, (_, b), (here, _) = net()
    here.ctx.request(b.peer_id, "Double", b"nothing", S, here.answered)
    advance(sim, S)
    assert [reply for _, reply in here.replies] == [b""]


@pytest.mark.parametrize("how", ["silent", "fails", "unknown", "down"])
def test_a_request_without_answer_ends(net, how):
    sim, (a, b), (here, _) = net()
    peer = PeerId.from_name("stranger") if how == "unknown" else b.peer_id
    start = sim.now_ns
    if how in ("silent", "down"):
        b.deliver_inbound = lambda *args, **named: None
    here.ctx.request(peer, "Double", b"fail" if how == "fails" else b"x", 2 * S, here.answered)
    if how == "down":
        sim.at(start + S // 2, lambda: sim.remove(b.peer_id))
    advance(sim, 3 * S)
    ((when, reply),) = here.replies
    assert reply is None
    expected = {"silent": 2 * S, "fails": 0, "unknown": 0, "down": S // 2}[how]
    assert expected <= when - start <= expected + 5 * MS
    if how == "silent":
        assert a.counters["control.unanswered"] == 1
    if how == "fails":
        assert [f.op for f in failures(sim) if "as asked" in str(f.error)] == ["e.Double"]


def test_lost_envelopes_of_requests_are_repeated(net):
    sim, (_, b), (here, _) = net()
    deliver, lost = b.deliver_inbound, []
    b.deliver_inbound = lambda data, *more: lost.append(data) if not lost else deliver(data, *more)
    here.ctx.request(b.peer_id, "Double", b"x", 5 * S, here.answered)
    advance(sim, 3 * S)
    assert [reply for _, reply in here.replies] == [b"xx"] and len(lost) == 1


def test_only_the_peer_that_was_asked_may_answer(net):
    sim, (a, b), (here, _) = net()
    b.deliver_inbound = lambda *args, **named: None
    here.ctx.request(b.peer_id, "Double", b"x", 2 * S, here.answered)
    (number,) = [call["number"] for call in a.inspect().calls]
    liar = PeerId.from_name("liar")
    a.deliver_inbound(remote(7, "Double", b"lie", kind=envelope.RESPONSE, wire_req_id=number), liar)
    a.deliver_inbound(remote(7, "Note", b"odd", kind=envelope.RESPONSE, wire_req_id=number), b.peer_id)
    advance(sim, S)
    assert [reply for _, reply in here.replies] == [None], "an answer to another op is none"
    assert a.counters["ingress.late_answers"] == 1


@pytest.mark.parametrize(
    ("ref", "op"), [(7, "Count"), (7, "Nothing"), (8, "Note"), (0, "Note"), (7, "Tell"), (7, "started")]
)
def test_only_ops_declared_remote_are_reached(net, ref, op):
    sim, (_, b), (_, there) = net()
    b.deliver_inbound(remote(ref, op), PeerId.from_name("x"))
    advance(sim, S // 10)
    assert b.counters["ingress.unroutable"] == 1 and there.heard == [] and there.hooks == ["started"]


def test_a_remote_op_that_fails_is_reported_and_the_node_goes_on(net):
    sim, (_, b), (_, there) = net()
    for payload in (b"fail", b"fine"):
        b.deliver_inbound(remote(7, "Note", payload), PeerId.from_name("x"))
    advance(sim, S // 10)
    assert [p for _, p in there.heard] == [b"fine"]
    assert [f.op for f in failures(sim) if "as asked" in str(f.error)] == ["e.Note"]


def test_hooks_and_timers(bench, registry):
    b = bench(TEXT, registry=registry)
    component = b.node.component("e")
    assert component.hooks == []
    b.now_ns = 5_000
    b.settle()
    assert component.ticks == [5_100, 5_200, 5_300]
    assert [f.op for f in b.of(steps.OpFailed)] == ["e.tick"], "a timer that fails fails alone"
    b.node.fire_lifecycle(steps.Phase.SHUTDOWN)
    b.settle()
    assert component.hooks == ["started", "stopping"]


def test_a_cancelled_timer_does_not_fire(bench, registry):
    b = bench(TEXT, registry=registry)
    b.poll()
    component = b.node.component("e")
    fired: list[int] = []
    token = component.ctx.scheduler.after(10, lambda ctx: fired.append(1))
    component.ctx.scheduler.after(20, lambda ctx: fired.append(2))
    component.ctx.scheduler.cancel(token)
    b.settle()
    assert fired == [2]


def test_bounds(net):
    sim, (_, b), (here, _) = net(config=NodeConfig(max_component_calls=2))
    b.deliver_inbound = lambda *args, **named: None
    for _ in range(2):
        here.ctx.request(b.peer_id, "Double", b"x", S, here.answered)
    with pytest.raises(CapacityError, match="max_component_calls"):
        here.ctx.request(b.peer_id, "Double", b"x", S, here.answered)
    with pytest.raises(OpError, match="deadline"):
        here.ctx.request(b.peer_id, "Double", b"x", 0, here.answered)
    with pytest.raises(OpError, match="no remote op 'Count'"):
        here.ctx.send(b.peer_id, "Count", b"x")
    with pytest.raises(OpError, match="later"):
        here.ctx.later()
    advance(sim, 2 * S)
    assert len(here.replies) == 2
    here.ctx.request(b.peer_id, "Double", b"x", S, here.answered)


def test_a_remote_op_may_answer_later(net):
    sim, (_, b), (here, there) = net()
    start = sim.now_ns
    here.ctx.request(b.peer_id, "Double", b"later", 5 * S, here.answered)
    sim.at(start + S, lambda: there.later.complete(b"at last"))
    advance(sim, 2 * S)
    ((when, reply),) = here.replies
    assert reply == b"at last" and S <= when - start <= S + 5 * MS
    assert not there.later.complete(b"twice")
    advance(sim, S)
    assert len(here.replies) == 1
    here.ctx.request(b.peer_id, "Double", b"elsewhere", 5 * S, here.answered)
    here.ctx.send(b.peer_id, "Double", b"elsewhere")  # nobody waits for this one
    advance(sim, S)
    assert [reply for _, reply in here.replies] == [b"at last", b"worked"]
    assert len(b.inspect().replies) == 0 and b.counters["completions.late"] == 1
    assert [f for f in failures(sim) if f.op == "e.Double"] == []


@pytest.mark.parametrize("how", ["soon", "request", "fails", "odd", "foreign", "withdrawn"])
def test_a_later_answer_that_is_none(net, how):
    sim, (_, b), (here, there) = net()
    payload = {"soon": b"later soon", "foreign": b"foreign", "withdrawn": b"later not"}.get(how, b"later")
    there.later = None
    if how == "foreign":
        here.ctx.request(b.peer_id, "Double", b"later", 5 * S, here.answered)
        advance(sim, MS * 10)
    here.ctx.request(b.peer_id, "Double", payload, S, here.answered)
    if how in ("fails", "odd"):
        advance(sim, MS * 10)
        there.later.fail(ValueError("no")) if how == "fails" else there.later.complete(3)
    advance(sim, 2 * S)
    if how == "withdrawn":
        assert [reply for _, reply in here.replies] == [b""]
        assert [f for f in failures(sim) if f.op == "e.Double"] == []
        assert there.later.handle.settled
    else:
        assert [reply for _, reply in here.replies] == [None]
        heard = [s.step for s in sim.seen if isinstance(s.step, steps.RequestFailed)]
        if how in ("fails", "odd", "foreign"):
            assert [(step.peer, step.code, step.port) for step in heard] == [
                (b.peer_id, "OP_FAILED", "Double")
            ]
        told = [str(f.error) for f in failures(sim) if f.op == "e.Double"]
        says = {"fails": "no", "odd": "not int", "foreign": "another call"}.get(how, "nobody completed")
        assert len(told) == 1 and says in told[0]
    assert len(b.inspect().replies) == (how == "foreign")
    assert b.counters.get("completions.expired", 0) == (how in ("soon", "request"))


def test_how_many_may_answer_later_is_bounded(net):
    sim, (_, b), (here, _) = net(config=NodeConfig(max_component_calls=2))
    for _ in range(3):
        here.ctx.send(b.peer_id, "Double", b"later")
    advance(sim, S)
    assert len(b.inspect().replies) == 2
    assert ["max_component_calls" in str(f.error) for f in failures(sim) if f.op == "e.Double"] == [True]
    advance(sim, 31 * S)
    assert len(b.inspect().replies) == 0


def test_one_that_asks_a_stranger_again_at_once_holds_up_nobody(bench, registry):
    b = bench(TEXT, registry=registry)
    b.poll()
    component, stranger = b.node.component("e"), PeerId.from_name("stranger")

    def again(ctx: Any, reply: bytes | None) -> None:
        component.replies.append(reply)
        ctx.request(stranger, "Double", b"x", S, again)

    again(component.ctx, None)
    for _ in range(5):
        b.poll(1)
    assert len(component.replies) == 6


def test_what_peers_say_of_round_trips_is_kept_bounded(net):
    sim, (a, b), _ = net(config=NodeConfig(max_peers=4))
    reports = [RttReport(7, 1, hop, 1000 * hop, 5, 9) for hop in range(6)]
    for some in (reports[:4], reports[2:], [RttReport(7, 1, 5, 1, 2, 3)]):
        b.deliver_inbound(envelope.encode(Envelope(seq=0, rtt_reports=tuple(some))), a.peer_id)
        advance(sim, MS)
    assert [(r.hop_index, r.srtt_ns) for r in b.rtt_reports[a.peer_id]] == [
        (2, 2000),
        (3, 3000),
        (4, 4000),
        (5, 1),
    ]
    assert b.counters["rtt.forgotten"] == 2 and a.rtt_reports == {}


def test_remote_ops_wait_for_the_components_bootstrap(net):
    """They are refused unmarked, so the request comes again when it is over."""
    sim, (_, b), (here, there) = net(kind="test.SlowEcho")
    b.run_bootstrap(Slots(("e",)))
    advance(sim, MS)
    here.ctx.request(b.peer_id, "Double", b"x", 5 * S, here.answered)
    advance(sim, S // 2)
    assert here.replies == [] and b.counters["ingress.bootstrapping"] == 1
    there.later.complete()
    advance(sim, 2 * S)
    assert [reply for _, reply in here.replies] == [b"xx"]


def test_remote_ops_wait_between_two_tries_and_meet_the_fresh_component(net):
    sim, (_, b), (here, there) = net(kind="test.SlowEcho")
    b.keep_bootstrapping()
    advance(sim, MS)
    there.later.fail(OSError("no link"))
    advance(sim, MS)
    here.ctx.request(b.peer_id, "Double", b"x", 9 * S, here.answered)
    advance(sim, S // 2)
    assert here.replies == [] and b.counters["ingress.bootstrapping"] == 1
    advance(sim, S)
    fresh = b.component("e")
    assert fresh is not there
    fresh.later.complete()
    here.ctx.send(b.peer_id, "Note", b"hello")
    advance(sim, 8 * S)
    assert [reply for _, reply in here.replies] == [b"xx"]
    assert [payload for _, payload in fresh.heard] == [b"hello"] and there.heard == []


def bad_opset(**more: Any) -> Any:
    table = Table("test.bad")
    table.op("Note", **{"inputs": "sender:PeerId, payload:Bytes", "remote": True, **more})
    return table.opset()


@pytest.mark.parametrize(
    ("opset", "says"),
    [
        (lambda: bad_opset(inputs="payload:Bytes"), "remote op takes"),
        (lambda: bad_opset(outputs="x:Tensor"), "remote op takes"),
        (lambda: Table("test.echo").opset(), "has no op test.echo::Count"),
    ],
)
def test_an_opset_that_cannot_be_served_is_refused_at_install(bench, opset, says):
    registry = Registry()
    registry.register(
        type("Bad", (Echo,), {"TYPE_NAME": "test.Echo", "atomic_opset": classmethod(lambda cls: opset())})
    )
    text = (
        TEXT
        if "Count" in says
        else TEXT.replace("\n  n: I64", "\n//")
        .replace("\n  told", "\n//")
        .replace("\n  asked", "\n//")
        .replace("\n  syscall", "\n//")
    )
    with pytest.raises(OpError, match=says):
        bench(text, registry=registry)


def test_a_component_that_is_no_protocol_has_no_ops(bench):
    text = TEXT.replace("protocol|test.Echo|7", "peer_selector|bb.ConstantView|7")
    with pytest.raises(OpError, match="has no op"):
        bench(text)
