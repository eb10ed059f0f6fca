"""Nodes whose components and ops hold something: programs that are played (plays.py)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from arrays import f32
from components import Diary, Restartable
from kinds_of_steps import of
from peers import HERE, A, B
from plays import Play
from times import MS, S

from bb_edge import PeerId
from bb_edge.engine.entries.bootstrap import BootstrapRequest, ModuleNames, ModuleRequests, Slots
from bb_edge.engine.steps import (
    SendEnvelope,
)
from bb_edge.ir.address import Address
from bb_edge.ir.opsets import Opset, Table
from bb_edge.ir.values import TRIGGER
from bb_edge.roles import Index, ProtocolComponent
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import RESPONSE, Envelope, Fill

# --- ops with state ------------------------------------------------------------------------------------

STATEFUL = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  slot i: index
  kept: CommandId = role.index.Add(x) {slot=i}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  y: F32[2] = syscall.GateDispatch(x, in)
  z: F32[2] = module.Twice(y)
  again: Trigger = syscall.After<delay_ns=2000000>(in)
  w: F32[2] = syscall.GateDispatch(z, again)
  syscall.AppEmit<name="w">(w)
  n: Trigger = syscall.Threshold<n=3>(again)
  syscall.AppNotify<name="third">(n)
  syscall.Hold.Stash<slot="h">(z)
  h: F32[2] = syscall.Hold.Flush<slot="h">(again)
  syscall.AppEmit<name="held">(h)
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(w)
  taken: F32[2] = syscall.Serialize.Dequeue<queue="q">(go)
  syscall.AppEmit<name="taken">(taken)
  syscall.Record<name="r">(z)
  r: U64 = syscall.RngU64(again)
  syscall.AppEmit<name="random">(r)
  token: CorrelationToken = syscall.CorrelateTag(again)
  syscall.AppEmit<name="token">(token)
  let: F32[2] = syscall.Gate<across=1>(x, in)
  syscall.AppEmit<name="let">(let)
  tick: I64 = syscall.Interval<period_ns=2000000>()
  syscall.AppNotify<name="tick">(tick)
  round: I64[] = syscall.Repeat<times=3, pause_ns=4000000>()
  syscall.AppEmit<name="round">(round)
  up: EventKind = syscall.EventSource<kind=2>()
  syscall.AppEmit<name="up">(up)
  out: Trigger = syscall.Limit.Release<name="l">(w)
function module.Twice(v: F32[2]) -> (w) {}
  s: Trigger = syscall.Sleep<duration_ns=1000000>(v)
  u: F32[2] = syscall.GateDispatch(v, s)
  w: F32[2] = Add(u, u)
"""


def stateful_ops(play: Play) -> None:
    """Timers, permits, holds, queues, rings, gates, random numbers, rounds, ticks; an index with rows."""
    play.begin(STATEFUL, max_executions=play.draw(1, 2, 16))
    play.moment(0)
    now_ns = 0
    for value in range(3):
        play.node.invoke("Main", {"x": f32(value, value), "go": TRIGGER})
        if play.draw(True, False):
            play.node.peer_presence(play.draw(A, B), play.draw(True, False), (HERE,), epoch=1)
        now_ns = play.until(now_ns + play.draw(1, 2, 9) * MS, now_ns)
    play.until(now_ns + 60 * MS, now_ns)
    play.said += [("ring", str(row.tolist())) for row in play.node.ring("r")]


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


def later_answers(play: Play) -> None:
    """Ops that wait for a component's answer, and some that wait for the component."""
    play.begin(PARKED, Restartable)
    for value in range(play.draw(1, 2, 3)):
        play.node.invoke("Main", {"x": f32(value, value), "go": TRIGGER})
    play.poll(1)
    play.moment(2)
    later, tensor = play.node.component("a").open.pop()
    match play.draw("result", "odd", "error"):
        case "result":
            later.complete(tensor)
        case "odd":
            later.complete(object())
        case "error":
            later.fail(ValueError(play.draw("", "the sensor is gone")))
    play.poll(4)
    play.moment(5)


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


def claims(play: Play) -> None:
    """A component that one execution holds while others and a bootstrap wait for it."""
    play.begin(CLAIMS, Diary, targets=("Main", "Other"))
    play.poll(1)
    play.node.invoke("Main", {"x": f32(1)})
    play.poll(2)
    for value in range(play.draw(1, 2)):
        play.node.invoke("Main", {"x": f32(value)})
    if play.draw(True, False):
        play.node.run_bootstrap(ModuleNames(("Other",)))
    now_ns = play.until(6 * MS, 3)
    play.node.invoke("Main", {"x": f32(8)})
    now_ns = play.until(S, now_ns)
    play.moment(now_ns)
    play.said.append(("diary", str(play.node.component("m").log)))


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


def bootstraps(play: Play) -> None:
    """Bootstraps of slots: queued, done, and with an op that waits for one."""
    play.begin(STORES, Store)
    play.moment(0)
    play.node.run_bootstrap(Slots(play.draw(("a",), ("b",), ("a", "b"))))
    play.poll(1)
    play.node.invoke("Main", {"q_a": f32(1), "q_b": f32(2)})
    play.poll(2)
    for now_ns in (3, 4):
        for slot in "ab":
            if (later := play.node.component(slot).later) is not None:
                later.complete(None)
        play.poll(now_ns)
    play.moment(5)


STAGED = """
program Demo {module=Demo, binding.Main.index="index|bb.FlatIndex|1", binding.Other.index="index|bb.FlatIndex|1"}
function program.Main(query: F32[2]) -> (ids) {entry=1, partition=self}
  slot index: index
  ids: I64, distances: F32 = role.index.Search<k=1>(query) {slot=index}
function program.Main__bootstrap(corpus: F32[2,2]) -> () {module_phase=bootstrap}
  slot index: index
  cmd: CommandId = role.index.Add(corpus) {slot=index}
  late: Trigger = syscall.Sleep<duration_ns=5000000>(cmd)
  more: F32[2,2] = syscall.GateDispatch(corpus, late)
  cmd2: CommandId = role.index.Add(more) {slot=index}
function program.Other(x: F32[2]) -> (y) {entry=1, partition=other}
  y: F32[2] = Neg(x)
function program.Other__bootstrap() -> () {module_phase=bootstrap}
  slot index: index
  one: F32[1,2] = Constant<value=F32[1,2]{9.0, 9.0}>()
  cmd: CommandId = role.index.Add(one) {slot=index}
  late: Trigger = syscall.Sleep<duration_ns=5000000>(cmd)
"""  # noqa: E501


def staged_bootstraps(play: Play) -> None:
    """Bootstraps of targets: with inputs, one after another, and an invoke that waits for them."""
    play.begin(STAGED, targets=("Main", "Other"))
    corpus = np.array([[0, 0], [5, 5]], np.float32)
    play.node.run_bootstrap(ModuleRequests((BootstrapRequest("Main", {"corpus": corpus}),)))
    play.moment(0)
    play.node.run_bootstrap(ModuleNames(("Other",)))
    play.poll(1)
    play.node.invoke("Main", {"query": f32(4, 4)})
    play.until(100 * MS, 1)


class Caller(ProtocolComponent):
    """Asks its counterpart, and keeps time: by methods, which a snapshot names."""

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

    def serialize(self) -> bytes:
        return cbor.dumps([list(row) for row in self.heard])

    def restore(self, state: bytes) -> None:
        self.heard = [(name, reply) for name, reply in cbor.loads(state, max_items=100, max_depth=4)]

    def double(self, ctx: Any, sender: PeerId, payload: bytes) -> bytes:
        return payload + payload

    def ask(self, ctx: Any, peers: Any) -> None:
        ctx.request(peers[0], "Double", b"method", 2 * S, self.answered)
        ctx.scheduler.after(S, self.rang)
        ctx.rng.random()

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


def doubled(number: int, payload: bytes, seq: int = 1) -> bytes:
    """An envelope that answers a call of a `Caller`."""
    suffix = Address.empty().with_component(7, "Double").to_bytes()
    return envelope.encode(
        Envelope([Fill(suffix, payload * 2, False, 0x0B)], RESPONSE, number, epoch=2, seq=seq)
    )


def calls(play: Play) -> None:
    """Calls and timers of a component: answered, and given up."""
    play.begin(CALLS, Caller)
    play.greeted(A)
    for _ in range(play.draw(1, 2)):
        play.node.invoke("Main", {"to": (A,)})
    sent = of(SendEnvelope, play.poll(2))
    play.moment(3)
    if play.draw(True, False):
        play.node.deliver_inbound(doubled(envelope.decode(sent[0].payload, EDGE_CAPS).wire_req_id, b"x"), A)
    for now_ns in (S + 3, 3 * S):
        play.poll(now_ns)
    play.moment(3 * S)
    play.said.append(("heard", str(play.node.component("e").heard)))
