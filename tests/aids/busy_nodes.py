"""Nodes that hold something of everything, at many moments: what a snapshot has to bring back.

Each function of `NODES` runs programs through the public methods of nodes, and yields a `Moment` before each
poll, and where something has just come. `Draw` decides how much there is of what, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from arrays import f32
from components import Diary, Restartable
from envelopes import fill
from kinds_of_steps import of
from texts import compiled

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.entries.bootstrap import ModuleNames, Slots
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope
from bb_edge.ir.address import Address
from bb_edge.ir.opsets import Opset, Table
from bb_edge.ir.values import TRIGGER
from bb_edge.node import Node
from bb_edge.registry import Registry
from bb_edge.roles import Index, ProtocolComponent
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope, Fill, RttReport

MS, S = 1_000_000, 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
SELF, A, B, C = (PeerId.from_name(name) for name in ("node", "a", "b", "c"))


class Draw(Protocol):
    """Chooses one of several values."""

    def __call__(self, *values: Any) -> Any: ...


class Moment(NamedTuple):
    """A node between two polls; `install(snapshot, now_ns)` makes another one like it."""

    node: Node
    now_ns: int
    install: Callable[[bytes | None, int], Node]


Moments = Iterator[Moment]


def patience(wait_ns: int) -> bytes:
    """An envelope that asks to be sent nothing for a while."""
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    notice = Fill(suffix, cbor.dumps({"min_backoff_ns": wait_ns}), False, 0x0B)
    return envelope.encode(Envelope([notice]))


def installer(text: str, *components: type, targets: tuple[str, ...] = ("Main",), **more: Any) -> Any:
    """`install` of a `Moment`: `durable` and the numbers of NodeConfig may be given."""
    registry = Registry()
    for component in components:
        registry.register(component)
    durable = more.pop("durable", False)
    config = NodeConfig.edge().with_(**more)

    def make(snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        settings: dict[str, Any] = {"seed": 5, "durable": durable, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), compiled(text), targets, config, registry=registry, **settings)

    return make


ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
ASK_ALL = "wire.wire_id=5, wire.site_ids=a2, wire.type_hashes=101"
REPLY_ALL = "wire.wire_id=6, wire.request=5, wire.site_ids=b2, wire.type_hashes=101"

# --- what goes out durably, and the journal of what comes in -------------------------------------------

DURABLE = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], to: PeerIdVec, ask: PeerIdVec) -> () {{entry=1, partition=Main}}
  h: Trigger = wire.Send(x, to) {{{SAY}, durable=1}}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) \
{{{ASK}, durable=1, wire.answer_mode=each, deadline_ns=2000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}, durable=1}}
  syscall.AppEmit<name="missing">(missing)
  x2: F32[1], s2: PeerIdVec, r2: WireReqId = wire.RecvReq() {{{ASK}, durable=1}}
  y2: F32[1] = Mul(x2, x2)
  k: Trigger = wire.SendResp(y2, s2, r2) {{{REPLY}, durable=1}}
"""


def durable_sends(draw: Draw) -> Moments:
    """Durable sends that are asked for, failed, written, waiting for room or a snapshot; a journal."""
    make = installer(DURABLE, durable=True)
    node = make()
    for peer in (A, B, C):
        node.peer_presence(peer, True, (HERE,), epoch=1)
    node.poll(1)
    for value in range(draw(1, 2, 66)):  # 64 to a peer have room
        node.invoke("Main", {"x": f32(value), "to": (A,)})
    node.invoke("Main", {"x": f32(1), "to": (A, B), "ask": (A, C)})
    steps = list(node.poll(2))
    yield Moment(node, 2, make)
    for step in of(PersistOutbox, steps):
        match draw("written", "failed", "later"):
            case "written":
                node.persisted(step.token)
            case "failed":
                node.persist_failed(step.token, OSError("full"))
    node.poll(3)
    yield Moment(node, 4, make)
    node.snapshot_written()
    steps = list(node.poll(5))
    for seq in (1, 2):
        request = Envelope([fill(0xA1, 3)], REQUEST, 70 + seq, draw(0, 2 * S), epoch=9, seq=seq, base=1)
        node.deliver_inbound(envelope.encode(request), A, draw(None, HERE))
    steps += node.poll(6)
    yield Moment(node, 6, make)
    for step in of(Journal, steps)[: draw(1, 2)]:
        node.persisted(step.token)
    yield Moment(node, 6, make)
    node.poll(7)
    yield Moment(node, 7, make)
    for step in of(SendEnvelope, steps):
        sent = envelope.decode(step.payload, EDGE_CAPS)
        node.deliver_inbound(envelope.encode(Envelope(acks=(Ack(sent.epoch, sent.seq),))), step.peer)
    node.poll(8)
    yield Moment(node, 8, make)


# --- requests, children, calls of functions, permits ---------------------------------------------------

MANY = ", ".join(str(float(n)) for n in range(64))
REQUESTS = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], all: PeerIdVec) -> () {{entry=1, partition=Main}}
  many: F32[64] = Constant<value=F32[64]{{{MANY}}}>()
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=4000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(y)
  v: F32[1] = syscall.GateDispatch(y, late)
  w: F32[1] = module.Twice(v)
  z: F32[1] = Add(w, x)
  syscall.AppEmit<name="z">(z)
  syscall.AppEmit<name="who">(who)
  q: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK_ALL}, wire.answer_mode=batch, deadline_ns=900000000}}
  over: Trigger, out: PeerIdVec, t: F32[n,1] = wire.RecvRespBatched(q) {{{REPLY_ALL}}}
  syscall.AppEmit<name="t">(t)
  sum: F32[64] = Add(many, x)
  syscall.AppEmit<name="sum">(sum)
function program.Hear() -> () {{entry=1, partition=Hear}}
  said: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(said)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  again: Trigger = syscall.After<delay_ns=5000000>(in)
  u: F32[1] = syscall.GateDispatch(said, again)
  syscall.AppEmit<name="said">(u)
  out: Trigger = syscall.Limit.Release<name="l">(u)
function module.Twice(v: F32[1]) -> (w) {{}}
  s: Trigger = syscall.Sleep<duration_ns=1000000>(v)
  u: F32[1] = syscall.GateDispatch(v, s)
  w: F32[1] = Add(u, u)
"""


def requests(draw: Draw) -> Moments:
    """Two requests of one execution, answers in any order, and two durable envelopes."""
    settings = {"cycle_op_budget": draw(1, 3, 1000), "max_children": draw(1, 2), "durable": True}
    make = installer(REQUESTS, targets=("Main", "Hear"), **settings)
    node = make()
    for peer in (A, B, C):
        node.peer_presence(peer, True, (HERE,), epoch=1)
    node.poll(1)
    node.invoke("Main", {"x": f32(5), "all": (A, B, C)})
    now_ns, sent, answered = 1, list[SendEnvelope](), False
    while (due := node.next_deadline_ns()) is not None and due <= 10 * S:
        now_ns = max(now_ns + 1, due)
        yield Moment(node, now_ns, make)
        steps = node.poll(now_ns)
        for step in of(Journal, steps):
            node.persisted(step.token)
        sent += of(SendEnvelope, steps)
        asks = [(step.peer, envelope.decode(step.payload, EDGE_CAPS)) for step in sent]
        asks = [(peer, ask) for peer, ask in asks if ask.kind == REQUEST]
        if len(asks) >= 6 and not answered:
            answered = True
            for seq in range(draw(3, 6)):
                peer, ask = asks.pop(draw(*range(len(asks))))
                site = {0xA1: 0xB1, 0xA2: 0xB2}[ask.fills[0].dest_suffix[-1]]
                reply = Envelope([fill(site, seq)], RESPONSE, ask.wire_req_id, epoch=9, seq=seq + 1, base=1)
                node.deliver_inbound(envelope.encode(reply), peer)
            for seq, deadline_ns in ((11, 3 * S), (12, 0)):
                said = Envelope([fill(0xC1, 7)], epoch=9, seq=seq, base=1, remaining_deadline_ns=deadline_ns)
                node.deliver_inbound(envelope.encode(said), A)


# --- ops with state ------------------------------------------------------------------------------------

STATEFUL = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  slot i: index
  kept: CommandId = role.index.Add(x) {slot=i}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  y: F32[2] = syscall.GateDispatch(x, in)
  again: Trigger = syscall.After<delay_ns=2000000>(in)
  w: F32[2] = syscall.GateDispatch(y, again)
  n: Trigger = syscall.Threshold<n=3>(again)
  syscall.AppNotify<name="third">(n)
  syscall.Hold.Stash<slot="h">(y)
  h: F32[2] = syscall.Hold.Flush<slot="h">(again)
  syscall.AppEmit<name="held">(h)
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(w)
  taken: F32[2] = syscall.Serialize.Dequeue<queue="q">(go)
  syscall.AppEmit<name="taken">(taken)
  syscall.Record<name="r">(y)
  r: U64 = syscall.RngU64(again)
  syscall.AppEmit<name="random">(r)
  let: F32[2] = syscall.Gate<across=1>(x, in)
  syscall.AppEmit<name="let">(let)
  tick: I64 = syscall.Interval<period_ns=2000000>()
  syscall.AppNotify<name="tick">(tick)
  round: I64[] = syscall.Repeat<times=3, pause_ns=4000000>()
  syscall.AppEmit<name="round">(round)
  up: EventKind = syscall.EventSource<kind=2>()
  syscall.AppEmit<name="up">(up)
  out: Trigger = syscall.Limit.Release<name="l">(w)
"""


def stateful_ops(draw: Draw) -> Moments:
    """Timers, permits, holds, queues, rings, gates, random numbers, rounds, ticks; an index with rows."""
    make = installer(STATEFUL, max_executions=draw(1, 2, 16))
    node, now_ns = make(), 0
    yield Moment(node, 0, make)
    for value in range(3):
        node.invoke("Main", {"x": f32(value, value), "go": TRIGGER})
        if draw(True, False):
            node.peer_presence(draw(A, B), draw(True, False), (HERE,), epoch=1)
        end_ns = now_ns + draw(1, 2, 9) * MS
        while (due := node.next_deadline_ns()) is not None and due <= end_ns:
            now_ns = max(now_ns + 1, due)
            yield Moment(node, now_ns, make)
            node.poll(now_ns)


# --- components ----------------------------------------------------------------------------------------

PARKED = """
program Demo {module=Demo, binding.Main.a="codec|test.Slow|1"}
function program.Main(x: F32[2], go: Trigger) -> (y) {entry=1, partition=self}
  slot a: codec
  z: F32[2] = role.compressor.Compress(x) {slot=a}
  y: F32[2] = Neg(z)
  late: Trigger = syscall.Sleep<duration_ns=10000000>(go)
  syscall.AppNotify<name="late">(late)
"""


def later_answers(draw: Draw) -> Moments:
    """Ops that wait for a component's answer, and some that wait for the component."""
    make = installer(PARKED, Restartable)
    node = make()
    for value in range(draw(1, 2, 3)):
        node.invoke("Main", {"x": f32(value, value), "go": TRIGGER})
    node.poll(1)
    yield Moment(node, 2, make)
    later, tensor = node.component("a").open.pop()
    match draw("result", "odd", "error"):
        case "result":
            later.complete(tensor)
        case "odd":
            later.complete(object())
        case "error":
            later.fail(ValueError(draw("", "the sensor is gone")))
    yield Moment(node, 3, make)
    node.poll(4)
    yield Moment(node, 5, make)


CLAIMS = """
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


def claims(draw: Draw) -> Moments:
    """A component that one execution holds while others and a bootstrap wait for it."""
    make = installer(CLAIMS, Diary, targets=("Main", "Other"))
    node, now_ns = make(), 3
    node.poll(1)
    node.invoke("Main", {"x": f32(1)})
    node.poll(2)
    for value in range(draw(1, 2)):
        node.invoke("Main", {"x": f32(value)})
    if draw(True, False):
        node.run_bootstrap(ModuleNames(("Other",)))
    while (due := node.next_deadline_ns()) is not None:
        now_ns = max(now_ns + 1, due)
        yield Moment(node, now_ns, make)
        node.poll(now_ns)
    yield Moment(node, now_ns, make)


class Store(Index):
    """Is filled by a bootstrap of its own, which a test completes."""

    TYPE_NAME: ClassVar[str] = "test.Store"

    def __init__(self) -> None:
        self.later: Any = None

    @classmethod
    def construct(cls, env: Any) -> Store:
        return cls()

    def bootstrap(self, ctx: Any) -> Any:
        self.later = ctx.later(deadline_ns=100 * S)
        return self.later

    def add(self, ctx: Any, vec: Any) -> None: ...

    def search(self, ctx: Any, query: Any, *, k: int) -> Any:
        return np.zeros(k, np.int64), np.zeros(k, np.float32)


STORES = """
program Demo {module=Demo, binding.Main.a="index|test.Store|1", binding.Main.b="index|test.Store|2"}
function program.Main(q_a: F32, q_b: F32) -> () {entry=1, partition=self}
  slot a: index
  slot b: index
  ids_a: I64, d_a: F32 = role.index.Search<k=1>(q_a) {slot=a}
  ids_b: I64, d_b: F32 = role.index.Search<k=1>(q_b) {slot=b}
  syscall.AppNotify<name="a">(ids_a)
  syscall.AppNotify<name="b">(ids_b)
"""


def bootstraps(draw: Draw) -> Moments:
    """Bootstraps of slots: queued, done, and with an op that waits for one."""
    make = installer(STORES, Store)
    node = make()
    yield Moment(node, 0, make)
    node.run_bootstrap(Slots(draw(("a",), ("b",), ("a", "b"))))
    yield Moment(node, 1, make)
    node.poll(1)
    node.invoke("Main", {"q_a": f32(1), "q_b": f32(2)})
    yield Moment(node, 2, make)
    node.poll(2)
    for now_ns in (3, 4):
        for slot in "ab":
            if (later := node.component(slot).later) is not None:
                later.complete(None)
        node.poll(now_ns)
    yield Moment(node, 5, make)


class Caller(ProtocolComponent):
    """Asks its counterpart, and keeps time."""

    TYPE_NAME: ClassVar[str] = "test.Caller"

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
        ctx.scheduler.after(S, self.rang)
        ctx.rng.random()

    def answered(self, ctx: Any, reply: bytes | None) -> None: ...

    def rang(self, ctx: Any) -> None: ...


CALLS = """
program Demo {module=Demo, binding.Main.e="protocol|test.Caller|7"}
function program.Main(to: PeerIdVec) -> () {entry=1, partition=self}
  slot e: protocol
  asked: CommandId = "test.caller"::Ask(to) {slot=e}
"""


def calls(draw: Draw) -> Moments:
    """Calls and timers of a component."""
    make = installer(CALLS, Caller)
    node = make()
    node.peer_presence(A, True, (HERE,), epoch=1)
    node.poll(1)
    for _ in range(draw(1, 2)):
        node.invoke("Main", {"to": (A,)})
    for now_ns in (2, S + 3, 3 * S):
        node.poll(now_ns)
        yield Moment(node, now_ns, make)


# --- queues, and what is known of peers ------------------------------------------------------------------

QUEUES = f"""
program Demo {{module=Demo}}
function program.Main(to: PeerIdVec) -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(x)
  y: F32[1] = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="to">(to)
function program.Reply() -> () {{entry=1, partition=Reply}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Mul(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""


def queues(draw: Draw) -> Moments:
    """Envelopes, notices and invokes that wait, replies put off, and all tables about peers."""
    make = installer(QUEUES, targets=("Main", "Reply"), max_executions=draw(1, 2))
    node = make()
    node.poll(1)
    limits = draw({}, {"limits": [1000, 2, 300, 400]}, {"limits": [0, 0, 0, 0]})
    node.peer_presence(A, True, (HERE,), limits, epoch=5, classes=("Main",))
    node.peer_presence(B, True, (HERE,), epoch=6)
    node.peer_failed(draw(A, B))
    for seq, (peer, value) in enumerate(((A, 1), (B, 2), (B, 3)), 1):
        said = Envelope(
            [fill(0xC1, value)],
            remaining_deadline_ns=draw(0, S, 15 * MS),
            epoch=9,
            seq=seq,
            rtt_reports=draw((), (RttReport(3, 1, 2, 40, 50, 6),)),
        )
        node.deliver_inbound(envelope.encode(said), peer, draw(None, HERE))
    yield Moment(node, 2, make)
    node.poll(2)
    node.invoke("Main", {"to": (A, B)})
    yield Moment(node, 3, make)
    node.deliver_inbound(patience(draw(S, 3 * S)), draw(A, B))
    node.poll(4)
    for now_ns in (30 * MS, 60 * MS):
        node.poll(now_ns)
    for peer in (A, B):
        asked = Envelope([fill(0xA1, 3)], REQUEST, 77, 5 * S, epoch=9, seq=4)
        node.deliver_inbound(envelope.encode(asked), peer)
    for now_ns in (90 * MS, 120 * MS):
        node.poll(now_ns)
    yield Moment(node, 130 * MS, make)
    for k in range(draw(1, 8)):
        node.peer_failed(B)
        node.poll(130 * MS + k)
    node.peer_presence(A, False, epoch=5)
    node.poll(140 * MS)
    yield Moment(node, 150 * MS, make)


NODES = (
    *(durable_sends, requests, stateful_ops, later_answers, claims),
    *(bootstraps, calls, queues),
)
