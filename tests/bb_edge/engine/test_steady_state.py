"""After install and warm-up a steady stream leaves live objects and memory flat (architecture rule 4).

`BB_STEADY=100000` runs the long version, half as many executions in each of three windows (with `-s --timeout=0`).
"""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import gc
import itertools
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from times import MS
from wire_ops import ASK, REPLY

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import Opset, Table
from bb_edge.registry import Registry
from bb_edge.roles import TRIGGER, ProtocolComponent
from tests.aids.peers import numbered

EXECUTIONS = int(os.environ.get("BB_STEADY", "480"))
WARM_UP = (
    300 if sys.version_info >= (3, 11) else 1100
)  # CPython 3.10 allocates a cache at a code object's 1024th call


FEDERATION = f"""
program Demo {{module=Demo, binding.Server.p="peer_selector|bb.PresenceSelector|1", binding.Server.agg="aggregator|bb.FedAvg|2"}}
function program.Server(x: F32[4], round: I64[]) -> () {{entry=1, partition=Server}}
  slot p: peer_selector peer_class=Client
  slot agg: aggregator
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}
  up: PeerIdVec = gate.PeerHealthGateTx(all)
  to: PeerIdVec = gate.BackoffGateTx(up)
  r: WireReqId = wire.SendReqBatched(x, to, all) {{{ASK}, wire.answer_mode=each, deadline_ns=5000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[4], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  w: F32[4] = Add(y, x)
  c: CommandId = role.aggregator.Contribute(w, "", who, round) {{slot=agg}}
  t: Tensor, n: F32[] = role.aggregator.Aggregate(closed) {{slot=agg, control_inputs=1}}
  syscall.AppEmit<name="t">(t)
function program.Client() -> () {{entry=1, partition=Client}}
  x0: F32[4], s0: PeerIdVec, r0: WireReqId = wire.RecvReq() {{{ASK}}}
  x: F32[4], s: PeerIdVec, r: WireReqId = gate.DedupGateRx(x0, s0, r0)
  y: F32[4] = Mul(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""

LOCAL = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  slot i: index
  late: Trigger = syscall.Sleep<duration_ns=1000>(go)
  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(late)
  y: F32[2] = syscall.GateDispatch(x, in)
  z: F32[2] = module.Twice(y)
  ids: I64, d: F32 = role.index.Search<k=1>(z) {slot=i}
  b: Composite = composite.Bundle<.composite.child_count=2, .composite.child_types="ai.bytesandbrains.tensor.f32,ai.bytesandbrains.tensor.f32">(x, z)
  syscall.AppEmit<name="b">(b)
  syscall.Record<name="r">(z)
  syscall.IncrMetric<name="m">(in)
  n: Trigger = syscall.Threshold<n=3>(in)
  syscall.AppNotify<name="n">(n)
  syscall.Hold.Stash<slot="h">(z)
  done: Trigger = syscall.Serialize.Enqueue<queue="q">(z)
  taken: F32[2] = syscall.Serialize.Dequeue<queue="q">(done)
function module.Twice(v: F32[2]) -> (w) {}
  w: F32[2] = Add(v, v)
"""


SAMPLES = 12
"""Per window. Heaps are cleaned of their dead now and then, so what is compared is the floor of the samples."""
WINDOWS = 3


def flat(work: Callable[[int], None], warm_up: int = WARM_UP) -> None:
    """Runs `work(i)` in windows and compares their floors of live objects and traced bytes.

    What leaks grows in every window. A table that finds its size late, or a heap whose cleaning falls between two
    samples, lifts one floor above the one before, so the least growth is what counts.
    """
    done = iter(range(10**9))
    tracemalloc.start()  # before the warm-up: what rings and pools held before is not traced, and gets replaced
    floors = []
    turns = EXECUTIONS // 2 // SAMPLES
    try:
        for _ in range(warm_up):
            work(next(done))
        for _ in range(WINDOWS):
            seen = []
            for _ in range(SAMPLES):
                for _ in range(turns):
                    work(next(done))
                gc.collect()
                seen.append((len(gc.get_objects()), tracemalloc.get_traced_memory()[0]))
            floors.append([min(column) for column in zip(*seen, strict=True)])
    finally:
        tracemalloc.stop()
    growth = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(floors)]
    objects, traced = map(min, zip(*growth, strict=True))
    print(f"{turns * SAMPLES} turns: {objects:+} objects, {traced:+} bytes")
    assert objects < turns * SAMPLES // 8, floors  # one per eight executions
    assert traced < turns * SAMPLES * 32, floors  # 32 bytes per execution


def test_local_executions(bench):
    b = bench(LOCAL)
    node = b.node
    x = np.ones(2, np.float32)
    clock = [0]

    def work(_: int) -> None:
        node.invoke("Main", {"x": x, "go": TRIGGER})
        ended = 0
        while not ended:
            due = node.next_deadline_ns()
            assert due is not None
            clock[0] = max(clock[0] + 1, due)
            for step in node.poll(clock[0]):
                assert not isinstance(step, steps.OpFailed), step
                ended += isinstance(step, steps.ExecutionEnded)

    flat(work)


class Net:
    """Nodes joined directly: what one hands out, another is given in the next turn."""

    def __init__(self, nodes: dict[PeerId, Any]) -> None:
        self.nodes = nodes
        self.now_ns = 0
        self.events = 0

    def turn(self, until_events: int) -> None:
        for _ in range(50):
            if self.events >= until_events:
                return
            self.now_ns += MS
            for peer, node in self.nodes.items():
                for step in node.poll(self.now_ns):
                    assert not isinstance(step, steps.OpFailed | steps.WireReceiveFailed), step
                    if isinstance(step, steps.SendEnvelope):
                        self.nodes[step.peer].deliver_inbound(step.payload, peer)
                    self.events += isinstance(step, steps.AppEvent)
        raise AssertionError("a round without end")


@pytest.mark.parametrize("greeting", [(), (b"\xe2\x01" + bytes(8),)], ids=["silent", "with addresses"])
def test_rounds_of_requests(compile_text, greeting):
    data = compile_text(FEDERATION)
    config = NodeConfig(max_requests=4)
    made = [
        install(PeerId.from_name(name), greeting, data, [target], config, seed=n)
        for n, (name, target) in enumerate([("server", "Server"), ("a", "Client"), ("b", "Client")])
    ]
    net = Net({node.peer_id: node for node in made})
    for node in made:
        for other in made:
            if node is not other:
                address = b"\xe2\x01" + bytes(8)
                node.peer_presence(other.peer_id, True, (address,), epoch=1, classes=other.classes)
    x = np.ones(4, np.float32)

    def work(i: int) -> None:
        made[0].invoke("Server", {"x": x, "round": np.asarray(i, np.int64)})
        net.turn(net.events + 1)

    flat(work)
    assert made[0].counters["requests.open"] == 0


def test_envelopes_that_are_refused_leave_nothing(compile_text):
    """Garbage, spoofed, unroutable and late envelopes, and those of ever new peers."""
    data = compile_text(FEDERATION)
    config = NodeConfig(max_peers=32)
    node = install(PeerId.from_name("server"), (), data, ["Server", "Client"], config, seed=1)
    from bb_edge.ir.address import site_suffix
    from bb_edge.wire import envelope
    from bb_edge.wire.envelope import Ack, Envelope, Fill

    good = Fill(site_suffix(0xA1), b"\x08\x01\x10\x01J\x04\x00\x00\x80?", False, 0x101)
    envelopes = [
        b"\xff\xff",
        envelope.encode(Envelope(fills=[good], src_peer=PeerId.from_name("q").to_bytes())),
        envelope.encode(Envelope(fills=[Fill(site_suffix(0xFF), b"", True, 0)], epoch=3, seq=1)),
        envelope.encode(Envelope(fills=[good], kind=envelope.RESPONSE, wire_req_id=77, epoch=3, seq=2)),
        envelope.encode(Envelope(acks=(Ack(5, 6, (8,)),))),
        envelope.encode(Envelope(fills=[good], kind=envelope.REQUEST, wire_req_id=7, epoch=3, seq=3, remaining_deadline_ns=10)),
    ]  # fmt: skip
    peers = [numbered(n) for n in range(200)]
    clock = [0]

    def work(i: int) -> None:
        clock[0] += 100 * MS
        node.deliver_inbound(envelopes[i % len(envelopes)], peers[i * 7 % len(peers)])
        for _ in range(3):
            node.poll(clock[0])

    flat(work)
    assert node.counters["ingress.bytes"] == 0


_HEAD = "program Demo {"
_BINDINGS = 'binding.Server.e="protocol|test.Steady|7", binding.Client.e="protocol|test.Steady|7", '
_ROUNDS = """  slot e: protocol
  round: I64[] = syscall.Repeat<times=0, pause_ns=1000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[4] = Constant<value=F32[4]{1.0, 1.0, 1.0, 1.0}>()
  x: F32[4] = Add(ones, ten)
  said: I64[] = "test.steady"::Tell(round) {slot=e}
  syscall.AppEmit<name="said">(said)
  syscall.Record<name="rounds">(ten)
"""
WHOLE = (
    FEDERATION.replace(_HEAD, _HEAD + _BINDINGS)
    .replace("(x: F32[4], round: I64[])", "()")
    .replace("  slot agg: aggregator\n", "  slot agg: aggregator\n" + _ROUNDS)
    .replace("  x0: F32[4], s0", "  slot e: protocol\n  x0: F32[4], s0", 1)
)


class Steady(ProtocolComponent):
    """Asks its counterparts in each round; they answer at once, later, or from elsewhere."""

    TYPE_NAME: ClassVar[str] = "test.Steady"

    def __init__(self) -> None:
        self.replies: Counter[bytes | None] = Counter()

    @classmethod
    def construct(cls, env: Any) -> Steady:
        return cls()

    @classmethod
    def atomic_opset(cls) -> Opset:
        table = Table("test.steady")
        table.op("Tell", "n:Tensor<I64>", "n:Tensor<I64>")
        table.op("Hear", "sender:PeerId, payload:Bytes", "reply:Bytes", remote=True)
        return table.opset()

    def tell(self, ctx: Any, n: Any) -> Any:
        for peer in ctx.peers.up_peers("Client"):
            ctx.request(peer, "Hear", bytes([int(n) % 5]), 20 * MS, self.heard)
            ctx.send(peer, "Hear", b"!")
        return n

    def heard(self, _ctx: Any, reply: bytes | None) -> None:
        self.replies[reply] += 1

    def hear(self, ctx: Any, sender: PeerId, payload: bytes) -> Any:
        if payload == b"\1":
            later = ctx.later()
            ctx.scheduler.complete_after(3 * MS, later, b"later")
            return later
        if payload == b"\2":
            return ctx.offload(lambda: b"worked")
        if payload == b"\3":
            ctx.later()  # and thinks better of it
        return b"at once"


def test_a_whole_node(compile_text):
    """Rounds, requests with children, the control plane with its deadlines, rings: all of a server and its clients."""
    registry = Registry()
    registry.register(Steady)
    data = compile_text(WHOLE)
    config = NodeConfig(max_requests=4)
    made = [
        install(PeerId.from_name(name), (), data, [target], config, registry=registry, seed=n)
        for n, (name, target) in enumerate([("server", "Server"), ("a", "Client"), ("b", "Client")])
    ]
    net = Net({node.peer_id: node for node in made})
    for node in made:
        for other in made:
            if node is not other:
                address = b"\xe2\x01" + bytes(8)
                node.peer_presence(other.peer_id, True, (address,), epoch=1, classes=other.classes)

    flat(lambda _: net.turn(net.events + 2), warm_up=4 * WARM_UP)
    replies = made[0].component("e").replies
    assert set(replies) == {b"at once", b"later", b"worked"}
    assert made[0].counters["rounds.ended"] > EXECUTIONS
    assert len(made[0].inspect().calls) <= 10
