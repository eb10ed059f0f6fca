"""Every op of the framework's own opsets, run by a real engine: what it does, said by one case at least.

A case is a function under `@case(domain, op, …)`; a test fails where a row of the catalog has none, and where
a case names an op that the catalog has not.
"""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.parking import OpError
from bb_edge.installer import install
from bb_edge.ir import keys
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.ir.opsets import FRAMEWORK_DOMAINS, OpKind, opset
from bb_edge.ir.opsets.wire import RECV_FLAVORED
from bb_edge.registry import Registry
from bb_edge.roles import TRIGGER, Composite, Model
from bb_edge.transport.in_process import Simulation

S = 1_000_000_000
MS = 1_000_000

CASES: dict[tuple[str, str], list[Callable[..., None]]] = {}


def case(domain: str, *ops: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a case for ops of a domain, named by its last words."""

    def take(check: Callable[..., None]) -> Callable[..., None]:
        for op in ops:
            CASES.setdefault((f"{keys.PREFIX}.{domain}", op), []).append(check)
        return check

    return take


def rows() -> set[tuple[str, str]]:
    """(domain, op) of every row that an engine must serve; ONNX's are the backends'."""
    found = set()
    for domain in FRAMEWORK_DOMAINS:
        table = opset(domain)
        assert table is not None
        found |= {(domain, name) for name in table.ops}
    return found


def test_every_op_of_the_catalog_has_a_case():
    assert rows() - set(CASES) == set()
    assert set(CASES) - rows() == set()


def f32(*values):
    return np.array(values, dtype=np.float32)


def i64(value):
    return np.asarray(value, dtype=np.int64)


PEER = PeerId.from_name("a")
OTHER = PeerId.from_name("b")


class Bed:
    """One node per call, fed by invokes."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        self.registry = Registry()
        self.registry.register(Affine)

    def run(
        self,
        body: str,
        inputs: str,
        *invokes: Mapping[str, object],
        slots: Mapping[str, str] | None = None,
        config: NodeConfig | None = None,
        components: Mapping[str, Mapping[str, object]] | None = None,
        settle: bool = True,
    ) -> Any:
        """Installs `body` and invokes it once per mapping; settles unless told otherwise."""
        bindings = "".join(
            f', binding.Main.{slot}="{bound}|{number}"'
            for number, (slot, bound) in enumerate((slots or {}).items(), 1)
        )
        declared = "".join(f"  slot {s}: {bound.split('|')[0]}\n" for s, bound in (slots or {}).items())
        text = (
            f"program Demo {{module=Demo{bindings}}}\n"
            f"function program.Main({inputs}) -> () {{entry=1, partition=self}}\n{declared}{body}\n"
        )
        b = self._bench(text, config=config, components=components, registry=self.registry)
        for values in invokes:
            b.node.invoke("Main", values)
        if settle:
            b.settle()
        return b


@pytest.fixture
def bed(bench):
    return Bed(bench)


def topics(b: Any) -> list[str]:
    return [e.topic for e in b.of(steps.AppEvent)]


def clean(b: Any) -> None:
    """Nothing failed, starved, or is left."""
    assert b.of(steps.OpFailed) == []
    assert b.of(steps.ExecutionStarved) == []
    assert b.node.counters["executions.active"] == 0
    assert b.node.counters["pending_async.count"] == 0


# --- entries ------------------------------------------------------------------------------------------


@case("syscall", "Pulse")
def pulse(bed):
    b = bed.run('  p: Trigger = syscall.Pulse()\n  syscall.AppNotify<name="p">(p)', "")
    assert topics(b) == ["p"]
    b.poll(S)
    assert topics(b) == ["p"], "once"


@case("syscall", "Interval")
def interval(bed):
    body = '  t: Timestamp = syscall.Interval<period_ns=100>()\n  syscall.AppEmit<name="t">(t)'
    b = bed.run(body, "", settle=False)
    b.now_ns = 5_000_000_000  # monotonic time does not begin at 0
    b.settle(until_ns=5_000_000_250)
    assert b.events("t") == [5_000_000_100, 5_000_000_200]


@case("syscall", "EventSource")
def event_source(bed):
    body = f'  e: EventKind = syscall.EventSource<kind={Bus.PEER_UP}>()\n  syscall.AppEmit<name="e">(e)'
    b = bed.run(body, "")
    b.node.peer_presence(PEER, True, epoch=1)
    b.node.peer_presence(OTHER, True, epoch=1)
    b.settle()
    assert b.events("e") == [Bus.PEER_UP] * 2
    assert len({e.execution for e in b.of(steps.AppEvent)}) == 2


@case("syscall", "LifecyclePhase")
def lifecycle(bed):
    body = '  t: Trigger = syscall.LifecyclePhase<phase=2>()\n  syscall.AppNotify<name="snapshot">(t)'
    b = bed.run(body, "")
    b.node.fire_lifecycle(steps.Phase.SHUTDOWN)
    b.settle()
    assert topics(b) == []
    b.node.fire_lifecycle(steps.Phase.SNAPSHOT)
    b.settle()
    assert topics(b) == ["snapshot"]


@case("syscall", "Repeat")
def repeat(bed):
    b = bed.run('  r: I64[] = syscall.Repeat<times=3>()\n  syscall.AppEmit<name="r">(r)', "", settle=False)
    b.poll()
    assert [int(v) for v in b.events("r")] == [1], "never twice in one poll"
    b.settle()
    assert [int(v) for v in b.events("r")] == [1, 2, 3]
    assert b.events("r")[0].shape == () and b.events("r")[0].dtype == np.int64


# --- triggers and time --------------------------------------------------------------------------------


@case("syscall", "OnTrigger")
def on_trigger(bed):
    body = '  t: Trigger = syscall.OnTrigger(go)\n  syscall.AppEmit<name="t">(t)'
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, {"go": TRIGGER})
    assert b.events("t") == [TRIGGER, TRIGGER]


@case("syscall", "Threshold")
def threshold(bed):
    body = '  t: Trigger = syscall.Threshold<n=2>(a, b)\n  syscall.AppNotify<name="t">(t)'
    b = bed.run(body, "a: F32, b: F32", {"a": f32(1), "b": f32(1)}, {"a": f32(1)}, {"b": f32(1)})
    ends = [e.execution for e in b.of(steps.ExecutionEnded)]
    assert [e.execution for e in b.of(steps.AppEvent)] == [ends[0], ends[2]], "over executions, and re-armed"
    clean(b)


@case("syscall", "After")
def after(bed):
    body = '  t: Trigger = syscall.After<delay_ns=70>(go)\n  syscall.AppNotify<name="t">(t)'
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, settle=False)
    b.poll()
    b.poll(69)
    assert topics(b) == []
    b.poll(1)
    assert topics(b) == ["t"]
    clean(b)


@case("syscall", "Sleep")
def sleep(bed):
    body = '  t: Trigger = syscall.Sleep<duration_ns=70>(go)\n  syscall.AppNotify<name="t">(t)'
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, {"go": TRIGGER}, config=NodeConfig(max_timers=1))
    assert topics(b) == ["t"] and b.now_ns == 70
    (failed,) = b.of(steps.OpFailed)
    assert "max_timers" in str(failed.error)
    assert b.node.counters["executions.active"] == 0, "an op without a timer does not hold its execution open"


@case("syscall", "DeadlineMatch")
def deadline_match(bed):
    body = """  slow: Trigger = syscall.After<delay_ns=100>(go)
  late: Trigger = syscall.After<delay_ns=60>(go)
  first: Trigger = syscall.DeadlineMatch(slow, late)
  syscall.AppNotify<name="first">(first)"""
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, settle=False)
    b.poll()
    b.poll(60)
    assert topics(b) == ["first"]
    b.poll(40)
    assert topics(b) == ["first"], "the loser is dropped"
    clean(b)


@case("syscall", "Clock")
def clock(bed):
    body = '  t: Timestamp = syscall.Clock(go)\n  syscall.AppEmit<name="t">(t)'
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, settle=False)
    b.poll(42)
    assert b.events("t") == [42]


@case("syscall", "RngU64")
def rng(bed):
    body = '  r: U64[] = syscall.RngU64(go)\n  syscall.AppEmit<name="r">(r)'
    seen = []
    for _ in range(2):
        b = bed.run(body, "go: Trigger", {"go": TRIGGER}, {"go": TRIGGER})
        seen.append([int(v) for v in b.events("r")])
        assert all(v.dtype == np.uint64 and v.shape == () for v in b.events("r"))
    assert seen[0] == seen[1] and seen[0][0] != seen[0][1]


# --- flow ---------------------------------------------------------------------------------------------


@case("syscall", "Any")
def any_(bed):
    body = '  x: F32 = syscall.Any(a, b)\n  syscall.AppEmit<name="x">(x)'
    b = bed.run(body, "a: F32, b: F32", {"a": f32(1), "b": f32(2)}, {"b": f32(3)})
    assert [float(v[0]) for v in b.events("x")] == [1, 3]
    clean(b)


@case("syscall", "Gate")
def gate(bed):
    body = '  held: Trigger = syscall.After<delay_ns=10>(go)\n  x: F32 = syscall.Gate(a, held)\n  syscall.AppEmit<name="x">(x)'
    b = bed.run(body, "a: F32, go: Trigger", {"a": f32(1), "go": TRIGGER}, {"a": f32(2)})
    assert [float(v[0]) for v in b.events("x")] == [1] and b.now_ns == 10
    assert len(b.of(steps.ExecutionStarved)) == 1, "a gate that never opens"


@case("syscall", "PassThrough")
def pass_through(bed):
    body = '  x: PeerIdVec = syscall.PassThrough(a)\n  syscall.AppEmit<name="x">(x)'
    assert bed.run(body, "a: PeerIdVec", {"a": (PEER,)}).events("x") == [(PEER,)]


@case("syscall", "Tee")
def tee(bed):
    body = '  x: PeerIdVec, y: PeerIdVec, z: PeerIdVec = syscall.Tee<fanout=3>(a)\n  syscall.AppEmit<name="x">(x)\n  syscall.AppEmit<name="z">(z)\n  one: PeerIdVec = syscall.Tee<fanout=1>(y)\n  syscall.AppEmit<name="one">(one)'
    b = bed.run(body, "a: PeerIdVec", {"a": (PEER, OTHER)})
    assert b.events("x") == b.events("z") == b.events("one") == [(PEER, OTHER)]


@case("syscall", "Constant")
def constant(bed):
    body = '  c: F32[2] = syscall.Constant<value=F32[2]{1, 2}>()\n  x: F32[2] = Add(a, c)\n  syscall.AppEmit<name="x">(x)'
    assert bed.run(body, "a: F32[2]", {"a": f32(1, 1)}).events("x")[0].tolist() == [2, 3]


@case("syscall", "GateDispatch")
def gate_dispatch(bed):
    body = """  late: Trigger = syscall.After<delay_ns=10>(go)
  x: F32 = syscall.GateDispatch(a, go, late)
  syscall.AppEmit<name="x">(x)
  open: F32 = syscall.GateDispatch(a)
  syscall.AppEmit<name="open">(open)"""
    b = bed.run(body, "a: F32, go: Trigger", {"a": f32(1), "go": TRIGGER})
    assert topics(b) == ["open", "x"] and b.now_ns == 10


@case("syscall", "GateManyDispatch")
def gate_many_dispatch(bed):
    body = """  one: Trigger = syscall.After<delay_ns=10>(go)
  two: Trigger = syscall.After<delay_ns=30>(go)
  x: F32 = syscall.GateManyDispatch(a, one, two)
  syscall.AppEmit<name="x">(x)"""
    b = bed.run(body, "a: F32, go: Trigger", {"a": f32(1), "go": TRIGGER})
    assert topics(b) == ["x"] and b.now_ns == 30


@case("syscall", "CorrelateTag", "MintDispatch")
def tokens(bed):
    body = '  x: CorrelationToken = syscall.CorrelateTag(go)\n  y: CorrelationToken = syscall.MintDispatch(go)\n  syscall.AppEmit<name="x">(x)\n  syscall.AppEmit<name="y">(y)'
    b = bed.run(body, "go: Trigger", {"go": TRIGGER}, {"go": TRIGGER})
    assert len({*b.events("x"), *b.events("y")}) == 4


@case("syscall", "DeadlineCheck")
def deadline_check(bed):
    # Without a deadline of its execution the value passes; with one: see the wire cases.
    body = '  x: F32 = syscall.DeadlineCheck<deadline_ns=5>(a)\n  syscall.AppEmit<name="x">(x)'
    b = bed.run(body, "a: F32", {"a": f32(1)}, settle=False)
    b.poll(10)
    assert topics(b) == ["x"]


# --- state that belongs to ops ------------------------------------------------------------------------


@case("syscall", "Limit.Acquire", "Limit.Release")
def limit(bed):
    body = """  in: Trigger = syscall.Limit.Acquire<name="l", n=1>(go)
  slept: Trigger = syscall.Sleep<duration_ns=10>(in)
  syscall.Limit.Release<name="l">(slept)
  again: Trigger = syscall.Sleep<duration_ns=100>(slept)
  syscall.AppNotify<name="in">(in)"""
    b = bed.run(body, "go: Trigger", *[{"go": TRIGGER}] * 3, settle=False)
    entered = []
    b.poll()
    while b.node.next_deadline_ns() is not None:
        entered.append((b.now_ns, len(b.of(steps.AppEvent))))
        b.poll(10)
    assert [n for _, n in entered[:3]] == [1, 2, 3], "a permit is given back at Release, not at the end"
    clean(b)


@case("syscall", "Serialize.Enqueue", "Serialize.Dequeue")
def serialize(bed):
    body = """  done: Trigger = syscall.Serialize.Enqueue<queue="q">(put)
  out: F32 = syscall.Serialize.Dequeue<queue="q">(take)
  syscall.AppEmit<name="out">(out)"""
    puts = [{"put": f32(v)} for v in (1, 2)]
    takes = [{"take": TRIGGER}] * 3
    b = bed.run(body, "put: F32, take: Trigger", *takes[:1], *puts, *takes[1:])
    served = {e.execution: float(e.value[0]) for e in b.of(steps.AppEvent)}
    assert [served[number] for number in sorted(served)] == [1, 2], "first come, first served"
    assert b.node.counters["executions.active"] == 1, "a taker waits"
    b.node.invoke("Main", {"put": f32(3)})
    b.settle()
    assert sorted(float(v[0]) for v in b.events("out")) == [1, 2, 3]
    clean(b)


@case("syscall", "Hold.Stash", "Hold.Flush")
def hold(bed):
    body = '  syscall.Hold.Stash<slot="s">(x)\n  y: F32 = syscall.Hold.Flush<slot="s">(go)\n  syscall.AppEmit<name="y">(y)'
    flush = {"go": TRIGGER}
    b = bed.run(body, "x: F32, go: Trigger", flush, {"x": f32(1)}, {"x": f32(2)}, flush, flush)
    assert [float(v[0]) for v in b.events("y")] == [2]


# --- host ---------------------------------------------------------------------------------------------


@case("syscall", "AppEmit", "AppNotify")
def app_events(bed):
    body = '  syscall.AppEmit<name="x">(x)\n  syscall.AppNotify<name="n">(x)'
    b = bed.run(body, "x: F32", {"x": f32(1)})
    assert [
        (e.topic, e.target, e.value if e.value is None else e.value.tolist()) for e in b.of(steps.AppEvent)
    ] == [
        ("x", "Main", [1.0]),
        ("n", "Main", None),
    ]


@case("syscall", "Record", "IncrMetric")
def telemetry(bed):
    body = '  syscall.Record<name="r">(x)\n  syscall.IncrMetric<name="m", delta=3>(x)'
    b = bed.run(body, "x: F32", *({"x": f32(v)} for v in (1, 2, 3)), config=NodeConfig(record_entries=2))
    assert [float(v[0]) for v in b.node.ring("r")] == [2, 3]
    assert b.node.counters["m"] == 9


# --- composite, address book --------------------------------------------------------------------------

_TWO = '<.composite.child_count=2, .composite.child_types="bb.peer_id_vec,ai.bytesandbrains.tensor.f32">'


@case("composite", "Bundle", "Unbundle")
def bundles(bed):
    body = f'  c: Composite = composite.Bundle{_TWO}(p, x)\n  q: PeerIdVec, y: F32 = composite.Unbundle{_TWO}(c)\n  syscall.AppEmit<name="q">(q)\n  syscall.AppEmit<name="y">(y)'
    b = bed.run(body, "p: PeerIdVec, x: F32", {"p": (PEER,), "x": f32(4)})
    assert b.events("q") == [(PEER,)] and b.events("y")[0].tolist() == [4]
    wrong = bed.run(
        f"  q: PeerIdVec, y: F32 = composite.Unbundle{_TWO}(c)",
        "c: Composite",
        {"c": Composite(((0x12, (PEER,)), (0x12, (PEER,))))},
        {"c": Composite(((0x12, (PEER,)),))},
    )
    assert [type(f.error) for f in wrong.of(steps.OpFailed)] == [OpError, OpError]


@case("address_book", "Insert", "InsertMany", "Lookup")
def address_book(bed):
    body = """  address_book.Insert(p, one)
  address_book.InsertMany(q, many)
  found: AddressVec = address_book.Lookup(wanted)
  syscall.AppEmit<name="found">(found)"""
    one, two, three = (Address.empty().with_site(n) for n in (1, 2, 3))
    b = bed.run(
        body,
        "p: PeerId, one: Multiaddress, q: PeerId, many: AddressVec, wanted: PeerId",
        {"p": PEER, "one": one},
        {"p": PEER, "one": two},
        {"q": OTHER, "many": (three, one)},
        {"q": OTHER, "many": ()},
        {"wanted": PEER},
        {"wanted": OTHER},
        {"wanted": PeerId.from_name("stranger")},
    )
    assert b.events("found") == [(one, two), (three, one)]
    assert len(b.of(steps.OpFailed)) == 2, "an empty list, and an unknown peer"


# --- gates --------------------------------------------------------------------------------------------


@case("gate", "PeerHealthGateTx", "BackoffGateTx")
def tx_gates(bed):
    body = """  up: PeerIdVec = gate.PeerHealthGateTx(p)
  ready: PeerIdVec = gate.BackoffGateTx(up)
  syscall.AppEmit<name="up">(up)
  syscall.AppEmit<name="ready">(ready)"""
    b = bed.run(body, "p: PeerIdVec", {"p": (PEER, OTHER)})
    assert b.events("up") == b.events("ready") == [(PEER, OTHER)], "peers that nobody has heard of are up"
    b.node.peer_presence(PEER, True, epoch=1)
    b.node.peer_presence(PEER, False, epoch=1)
    b.node.invoke("Main", {"p": (PEER, OTHER)})
    b.settle()
    assert b.events("up")[1:] == b.events("ready")[1:] == [(OTHER,)]
    assert b.node.counters["gates.peer_health_tx.dropped"] == 1


@case("gate", "DedupGateRx", "PeerHealthGateRx", "BackoffGateRx")
def rx_gates(bed):
    body = """  a: F32, p: PeerIdVec = gate.DedupGateRx(x, s)
  b: F32, q: PeerIdVec = gate.PeerHealthGateRx(a, p)
  c: F32, r: PeerIdVec = gate.BackoffGateRx(b, q)
  syscall.AppEmit<name="c">(c)
  syscall.AppEmit<name="r">(r)"""
    b = bed.run(body, "x: F32, s: PeerIdVec", {"x": f32(3), "s": (PEER,)})
    assert b.events("c")[0].tolist() == [3] and b.events("r") == [(PEER,)]
    clean(b)


# --- roles --------------------------------------------------------------------------------------------


class Affine(Model):
    """y = w·x, trained by hand: one parameter, gradient = grad·x."""

    TYPE_NAME: ClassVar[str] = "test.Affine"

    @classmethod
    def construct(cls, env: Any) -> Affine:
        return cls()

    def __init__(self) -> None:
        self.w, self.x, self.gradient = 2.0, 0.0, 0.0

    def forward(self, ctx: Any, input: Any) -> Any:
        self.x = float(input[0])
        return f32(self.w * self.x)

    def backward(self, ctx: Any, grad: Any) -> None:
        self.gradient += float(grad[0]) * self.x

    def step(self, ctx: Any, grads: Any = None) -> None:
        if grads is None:
            grads, self.gradient = (self.gradient,), 0.0
        self.w -= float(grads[0])

    def evaluate(self, ctx: Any, input: Any, target: Any) -> Any:
        return np.asarray((self.w * input - target) ** 2, np.float32).mean()

    def apply_delta(self, ctx: Any, delta: Any) -> None:
        self.w += float(delta[0])

    def load_parameters(self, ctx: Any, params: Any) -> None:
        self.w = float(params[0])

    def params(self, ctx: Any) -> Any:
        return f32(self.w)


MODEL = {"m": "model|test.Affine"}


@case("role.model", "Forward", "Backward", "Step", "Params", "LoadParameters", "ApplyDelta", "Evaluate")
def model(bed):
    body = """  y: F32 = role.model.Forward(x) {slot=m}
  cmd: CommandId = role.model.Backward(y) {slot=m}
  stepped: CommandId = role.model.Step(cmd) {slot=m, control_inputs=1}
  loaded: CommandId = role.model.LoadParameters(load) {slot=m}
  moved: CommandId = role.model.ApplyDelta(delta) {slot=m}
  given: CommandId = role.model.Step(grads) {slot=m}
  loss: F32[] = role.model.Evaluate(in, target) {slot=m}
  w: F32 = role.model.Params() {slot=m}
  both: F32 = syscall.GateDispatch(w, go)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="loss">(loss)
  syscall.AppEmit<name="w">(both)
  syscall.AppEmit<name="cmd">(stepped)"""
    inputs = "x: F32, load: F32, delta: F32, grads: F32, in: F32, target: F32, go: Trigger"
    look = {"go": TRIGGER}
    b = bed.run(
        body, inputs, look, {"load": f32(3)}, look, {"delta": f32(-1)}, look, {"grads": f32(0.5)}, look,
        {"in": f32(2), "target": f32(1)}, {"x": f32(2)}, look, slots=MODEL,
    )  # fmt: skip
    # 2 as built; loaded 3; moved by -1; stepped by 0.5; own gradient 3·2 of y = 1.5·2.
    assert [float(v[0]) for v in b.events("w")] == [2, 3, 2, 1.5, -4.5]
    assert b.events("y")[0].tolist() == [3] and float(b.events("loss")[0]) == 4
    assert isinstance(b.events("cmd")[0], int)
    clean(b)


@case("role.aggregator", "Contribute", "Aggregate", "CurrentTensor")
def aggregator(bed):
    body = """  c: CommandId = role.aggregator.Contribute(x, w, p, r) {slot=agg}
  t: Tensor, total: F32[] = role.aggregator.Aggregate(go) {slot=agg, control_inputs=1}
  syscall.AppEmit<name="t">(t)
  syscall.AppEmit<name="total">(total)
  now: Tensor = role.aggregator.CurrentTensor(look) {slot=agg}
  syscall.AppEmit<name="now">(now)"""
    inputs = "x: F32[1], w: F32[], p: PeerIdVec, r: I64[], go: Trigger, look: Trigger"

    def give(value: float, weight: float, peer: PeerId) -> dict[str, object]:
        return {"x": f32(value), "w": np.float32(weight), "p": (peer,), "r": i64(1)}

    b = bed.run(
        body, inputs, {"go": TRIGGER}, give(1, 1, PEER), give(4, 3, OTHER), give(100, 1, PEER), {"go": TRIGGER},
        {"look": TRIGGER}, slots={"agg": "aggregator|bb.FedAvg"},
    )  # fmt: skip
    assert [v.tolist() for v in b.events("t")] == [[], [3.25]], "first of a (round, peer) wins"
    assert [float(v) for v in b.events("total")] == [0, 4]
    assert b.events("now")[0].tolist() == [3.25]


@case("role.index", "Add", "Search", "Remove")
def index(bed):
    body = """  a: CommandId = role.index.Add(v) {slot=i}
  r: CommandId = role.index.Remove(gone) {slot=i}
  ids: I64, d: F32 = role.index.Search<k=2>(q) {slot=i}
  syscall.AppEmit<name="ids">(ids)"""
    query = {"q": f32(0, 0)}
    b = bed.run(
        body, "v: F32[3,2], gone: I64[1], q: F32[2]",
        {"v": np.array([[3, 3], [1, 1], [2, 2]], np.float32)}, query, {"gone": np.array([1], np.int64)}, query,
        slots={"i": "index|bb.FlatIndex"},
    )  # fmt: skip
    assert [v.ravel().tolist() for v in b.events("ids")] == [[1, 2], [2, 0]]


@case("role.compressor", "TrainCodebook", "Compress", "Decompress")
def compressor(bed):
    body = """  t: CommandId = role.compressor.TrainCodebook(x) {slot=c}
  y: F32[4] = syscall.GateDispatch(x, t)
  code: Tensor = role.compressor.Compress(y) {slot=c}
  back: Tensor = role.compressor.Decompress(code) {slot=c}
  syscall.AppEmit<name="code">(code)
  syscall.AppEmit<name="back">(back)"""
    values = f32(0, 1, 2, 3)
    b = bed.run(body, "x: F32[4]", {"x": values}, slots={"c": "codec|bb.ScalarQuantizer"})
    clean(b)
    assert b.events("code")[0].nbytes < values.nbytes
    np.testing.assert_allclose(b.events("back")[0], values, atol=0.02)


@case("role.data_loader", "NextBatch", "NumSamples", "Reset", "OnDataLoaded")
def data_loader(bed, tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.arange(3))
    body = """  x: F32, y: I64 = role.data_loader.NextBatch(go) {slot=d, control_inputs=1}
  syscall.AppEmit<name="x">(x)
  n: I64[] = role.data_loader.NumSamples() {slot=d}
  counted: I64[] = syscall.GateDispatch(n, count)
  syscall.AppEmit<name="n">(counted)
  t: Trigger = role.data_loader.Reset(reset) {slot=d}
  syscall.AppNotify<name="reset">(t)
  loaded: Trigger = role.data_loader.OnDataLoaded() {slot=d}
  seen: Trigger = syscall.GateDispatch(loaded, count)
  syscall.AppNotify<name="loaded">(seen)"""
    go = {"go": TRIGGER}
    b = bed.run(
        body, "go: Trigger, count: Trigger, reset: Trigger", go, go, {"reset": TRIGGER}, go, {"count": TRIGGER},
        slots={"d": "data_source|bb.ArrayDataSource"},
        components={"d": {"path": str(tmp_path / "d.npz"), "batch_size": 1}},
    )  # fmt: skip
    first, second, again = (v.tolist() for v in b.events("x"))
    assert first != second and again == first
    assert int(b.events("n")[0]) == 3 and topics(b).count("reset") == topics(b).count("loaded") == 1
    clean(b)


@case("role.peer_selector", "Sample", "CurrentView")
def peer_selector(bed):
    body = """  all: PeerIdVec = role.peer_selector.CurrentView() {slot=p}
  two: PeerIdVec = role.peer_selector.Sample<n=2>() {slot=p}
  none: PeerIdVec = role.peer_selector.Sample<n=2, min=4>() {slot=p}
  a: PeerIdVec = syscall.GateDispatch(all, go)
  b: PeerIdVec = syscall.GateDispatch(two, go)
  c: PeerIdVec = syscall.GateDispatch(none, go)
  syscall.AppEmit<name="all">(a)
  syscall.AppEmit<name="two">(b)
  syscall.AppEmit<name="none">(c)"""
    names = ["a", "b", "c"]
    b = bed.run(
        body, "go: Trigger", {"go": TRIGGER},
        slots={"p": "peer_selector|bb.ConstantView"}, components={"p": {"names": names}},
    )  # fmt: skip
    (everybody,) = b.events("all")
    assert set(everybody) == {PeerId.from_name(n) for n in names}
    assert len(b.events("two")[0]) == 2 and set(b.events("two")[0]) < set(everybody)
    assert b.events("none") == [()]


# --- wire: two nodes under simulated time ------------------------------------------------------------

HERE = "  everybody: PeerIdVec = role.peer_selector.CurrentView() {slot=p}\n  to: PeerIdVec = gate.PeerHealthGateTx(everybody)"


def pair(compile_text: Any, left: str, left_inputs: str, right: str, config: NodeConfig | None = None) -> Any:
    """(simulation, node of target L, node of target R), joined."""
    data = compile_text(
        'program Demo {module=Demo, binding.L.p="peer_selector|bb.PresenceSelector|1"}\n'
        f"function program.L({left_inputs}) -> () {{entry=1, partition=Left}}\n"
        f"  slot p: peer_selector peer_class=Right\n{HERE}\n{left}\n"
        f"function program.R() -> () {{entry=1, partition=Right}}\n{right}\n"
    )
    sim = Simulation(seed=2)
    nodes = [
        install(PeerId.from_name(name), (), data, [name], config, seed=number)
        for number, name in enumerate("LR")
    ]
    for node in nodes:
        sim.add(node)
    sim.run(for_ns=S // 10)
    return sim, *nodes


@case("wire", "Send", "Recv")
def send(compile_text):
    sites = '{wire.wire_id=1, wire.site_ids="a1,a2", wire.type_hashes="101,12"}'
    sim, left, right = pair(
        compile_text,
        f'  sent: Trigger = wire.Send(x, who, to) {sites}\n  syscall.AppNotify<name="sent">(sent)',
        "x: F32[2], who: PeerIdVec",
        f'  x: F32[2], who: PeerIdVec, s: PeerIdVec, t: Trigger = wire.Recv() {sites}\n  syscall.AppEmit<name="x">(x)\n  syscall.AppEmit<name="who">(who)\n  syscall.AppEmit<name="s">(s)\n  syscall.AppEmit<name="t">(t)',
    )
    left.invoke("L", {"x": f32(1, 2), "who": (PEER,)})
    sim.run(for_ns=S)
    assert sim.events("x")[0].value.tolist() == [1, 2]
    assert sim.events("who")[0].value == (PEER,)
    assert sim.events("s")[0].value == (left.peer_id,)
    assert sim.events("t")[0].value is TRIGGER and len(sim.events("sent")) == 1
    assert len({e.execution for e in sim.events() if e.topic != "sent"}) == 1, "one envelope, one execution"
    assert right.counters["ingress.bytes"] == 0


@case("syscall", "DeadlineCheck")
def deadline_check_on_the_wire(compile_text):
    sites = "{wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, deadline_ns=500000000}"
    right = """  slept: Trigger = syscall.Sleep<duration_ns=DELAY>(t)
  y: F32[1] = syscall.GateDispatch(x, slept)
  z: F32[1] = syscall.DeadlineCheck<deadline_ns=1>(y)
  syscall.AppEmit<name="z">(z)"""
    for delay, passes in ((100 * MS, True), (600 * MS, False)):
        sim, left, node = pair(
            compile_text,
            f"  sent: Trigger = wire.Send(x, to) {sites}",
            "x: F32[1]",
            f"  x: F32[1], s: PeerIdVec, t: Trigger = wire.Recv() {sites}\n"
            + right.replace("DELAY", str(delay)),
        )
        left.invoke("L", {"x": f32(1)})
        sim.run(for_ns=2 * S)
        assert (len(sim.events("z")) == 1) is passes
        assert node.counters.get("deadlines.expired", 0) == (0 if passes else 1)
        assert not [s for s in sim.seen if isinstance(s.step, steps.ExecutionStarved)]


ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
ANSWERS = f"""  x: F32[1], s: PeerIdVec, r: WireReqId, t: Trigger = wire.RecvReq() {{{ASK}}}
  syscall.AppEmit<name="asked">(r)
  y: F32[1] = Add(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
  syscall.AppNotify<name="replied">(h)"""


@case("wire", "SendReqBatched", "RecvReq", "SendResp", "RecvRespBatched")
def request_batch(compile_text):
    sim, left, _ = pair(
        compile_text,
        f"""  r: WireReqId = wire.SendReqBatched(x, to, everybody) {{{ASK}, wire.answer_mode=batch, deadline_ns=1000000000}}
  closed: Trigger, missing: PeerIdVec, stack: Tensor = wire.RecvRespBatched(r) {{{REPLY}}}
  syscall.AppNotify<name="closed">(closed)
  syscall.AppEmit<name="missing">(missing)
  syscall.AppEmit<name="stack">(stack)""",
        "x: F32[1]",
        ANSWERS,
    )
    number = left.invoke("L", {"x": f32(4)})
    sim.run(for_ns=S)
    assert sim.events("stack")[0].value.tolist() == [[8]]
    assert sim.events("missing")[0].value == ()
    assert [e.execution for e in sim.events("closed")] == [number]
    assert 0 < sim.events("asked")[0].value < 2**64 and len(sim.events("replied")) == 1
    assert left.counters["requests.open"] == 0


@case("wire", "RecvResp")
def request_each(compile_text):
    sim, left, right = pair(
        compile_text,
        f"""  r: WireReqId = wire.SendReqBatched(x, to, everybody) {{{ASK}, wire.answer_mode=each, deadline_ns=1000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec, t: Trigger = wire.RecvResp() {{{REPLY}}}
  slept: Trigger = syscall.Sleep<duration_ns=300000000>(t)
  z: F32[1] = syscall.GateDispatch(y, slept)
  sum: F32[1] = Add(z, x)
  syscall.AppEmit<name="sum">(sum)
  syscall.AppEmit<name="who">(who)
  syscall.AppNotify<name="closed">(closed)""",
        "x: F32[1]",
        ANSWERS,
    )
    number = left.invoke("L", {"x": f32(4)})
    sim.run(for_ns=S)
    (answer,) = sim.events("sum")
    assert answer.value.tolist() == [12] and answer.execution != number
    assert sim.events("who")[0].value == (right.peer_id,)
    order = [e.topic for e in sim.events() if e.topic in ("sum", "closed")]
    assert order == ["sum", "closed"], "a request is over when its children are"


# --- the test -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({check.__name__ for checks in CASES.values() for check in checks}))
def test_case(name, request, bed, compile_text, tmp_path):
    check = next(c for checks in CASES.values() for c in checks if c.__name__ == name)
    given = {"bed": bed, "compile_text": compile_text, "tmp_path": tmp_path}
    wanted = check.__code__.co_varnames[: check.__code__.co_argcount]
    check(**{k: given[k] for k in wanted})


def test_entries_never_run_as_ops(compile_text):
    """What starts executions is written from outside; no entry of the catalog has an input port."""
    for domain, name in rows():
        row = opset(domain).ops[name]
        if row.kind is OpKind.ENTRY:
            assert not row.inputs, name
        elif name in RECV_FLAVORED:
            assert name == "RecvRespBatched"
