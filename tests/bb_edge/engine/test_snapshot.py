"""A node that is written down and restored at any poll goes on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from components import slow
from snapshots import body_of, resealed, stands_in

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.engine import steps
from bb_edge.engine.snapshot import (
    VERSION,
    SnapshotDamagedError,
    SnapshotForeignError,
    SnapshotVersionError,
)
from bb_edge.ir.values import TRIGGER

MS = 1_000_000

FEDERATION = """
program Demo {module=Demo, binding.Server.agg="aggregator|bb.FedAvg|1"}
function program.Server() -> () {entry=1, partition=Server}
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times=6, pause_ns=5000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[4] = Constant<value=F32[4]{1.0, 1.0, 1.0, 1.0}>()
  x: F32[4] = Add(ones, ten)
"""


def app_events(found: list[steps.EngineStep]) -> list[Any]:
    return [
        (s.topic, s.value.tolist() if isinstance(s.value, np.ndarray) else repr(s.value))
        for s in found
        if isinstance(s, steps.AppEvent)
    ]


class Reborn:
    """A node that may be replaced by its own snapshot between any two polls."""

    def __init__(
        self, data: bytes, target: str, when, name: str = "node", but: Collection[str] = (), **more: Any
    ) -> None:
        self.program = load(data)
        self.but = but  # parts that a restart changes
        self.args = (PeerId.from_name(name), (b"\xe2\x01" + bytes(8),), self.program, [target])
        self.more = {"config": NodeConfig.edge(), "seed": 7, **more}
        self.node = install(*self.args, **self.more)
        self.when = when
        self.polls = self.births = 0
        self.events: list[Any] = []

    def poll(self, now_ns: int) -> list[steps.EngineStep]:
        self.polls += 1
        if self.when(self.polls):
            self.births += 1
            data = self.node.snapshot(now_ns)
            self.node = install(*self.args, **self.more, snapshot=data, now_ns=now_ns)
            stands_in(self.node, data, now_ns, self.but)
        found = self.node.poll(now_ns)
        assert not [s for s in found if isinstance(s, steps.OpFailed)], found
        self.events += app_events(found)
        return found

    def run(self, until_ns: int, now_ns: int = 0) -> int:
        while True:
            due = self.node.next_deadline_ns()
            if due is None or due > until_ns:
                return now_ns
            now_ns = max(now_ns + 1, due)
            self.poll(now_ns)


STATEFUL = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(x: F32[2], go: Trigger) -> () {entry=1, partition=self}
  slot i: index
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
  out: Trigger = syscall.Limit.Release<name="l">(w)
function module.Twice(v: F32[2]) -> (w) {}
  s: Trigger = syscall.Sleep<duration_ns=1000000>(v)
  u: F32[2] = syscall.GateDispatch(v, s)
  w: F32[2] = Add(u, u)
"""

ALWAYS = [lambda n: True, lambda n: n % 3 == 0, lambda n: n % 2 == 1]


@pytest.mark.parametrize("when", ALWAYS)
def test_every_stateful_op_goes_on_where_it_was(compile_text, when):
    data = compile_text(STATEFUL)
    found = []
    for rule in (lambda n: False, when):
        one = Reborn(data, "Main", rule)
        now = 0
        for k in range(5):
            one.node.invoke("Main", {"x": np.full(2, k, np.float32), "go": TRIGGER})
            now = one.run(now + 2 * MS, now)
        one.run(10**12, now)
        assert one.node.ring("r")
        found.append((one.events, one.node.counters, [r.tolist() for r in one.node.ring("r")]))
    assert found[0][0], "it says something"
    assert found[0] == found[1]
    assert one.births > 3


# --- several nodes ------------------------------------------------------------------------------------

ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101"
ROUNDS = f"""
program Demo {{module=Demo, binding.Server.p="peer_selector|bb.PresenceSelector|1", binding.Server.agg="aggregator|bb.FedAvg|2"}}
function program.Server() -> () {{entry=1, partition=Server}}
  slot p: peer_selector peer_class=Client
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times=5, pause_ns=4000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[2] = Constant<value=F32[2]{{1.0, 1.0}}>()
  x: F32[2] = Add(ones, ten)
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=MODE, deadline_ns=900000000}}
  CLOSED
  syscall.AppEmit<name="t">(t)
  syscall.AppEmit<name="missing">(missing)
  tick: I64 = syscall.Interval<period_ns=7000000>()
  syscall.AppNotify<name="tick">(tick)
function program.Client() -> () {{entry=1, partition=Client}}
  x0: F32[2], s0: PeerIdVec, r0: WireReqId = wire.RecvReq() {{{ASK}}}
  x: F32[2], s: PeerIdVec, r: WireReqId = gate.DedupGateRx(x0, s0, r0)
  late: Trigger = syscall.Sleep<duration_ns=2000000>(x)
  z: F32[2] = syscall.GateDispatch(x, late)
  y: F32[2] = Mul(z, z)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""  # noqa: E501
EACH = (
    "closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {wire.wire_id=2, wire.request=1}\n"
    f"  y: F32[2], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}\n"
    "  late: Trigger = syscall.Sleep<duration_ns=3000000>(y)\n"
    "  v: F32[2] = syscall.GateDispatch(y, late)\n"
    "  w: F32[2] = Add(v, x)\n"
    '  c: CommandId = role.aggregator.Contribute(w, "", who, round) {slot=agg}\n'
    "  t: Tensor, n: F32[] = role.aggregator.Aggregate(closed) {slot=agg, control_inputs=1}"
)
BATCH = f"closed: Trigger, missing: PeerIdVec, t: F32[n,2] = wire.RecvRespBatched(r) {{{REPLY}}}"


class Net:
    """A server and clients; each of them may be replaced by its own snapshot before any poll."""

    def __init__(self, data: bytes, clients: int, when, **more: Any) -> None:
        asks_again = ("outbound",)
        self.nodes = {"server": Reborn(data, "Server", when, "server", asks_again, **more)}
        for n in range(clients):
            self.nodes[f"client-{n}"] = Reborn(data, "Client", when, f"client-{n}", **more)
        self.by_peer = {one.node.peer_id: one for one in self.nodes.values()}
        self.now_ns = 0
        for a in self.nodes.values():
            for b in self.nodes.values():
                if a is not b:
                    address = b"\xe2\x01" + bytes(8)
                    a.node.peer_presence(
                        b.node.peer_id, True, (address,), epoch=b.node.epoch, classes=b.node.classes
                    )

    def run(self, until_ns: int) -> None:
        while self.now_ns < until_ns:
            self.now_ns += MS
            for one in self.nodes.values():
                due = one.node.next_deadline_ns()
                if due is None or due > self.now_ns:
                    continue
                for step in one.poll(self.now_ns):
                    if isinstance(step, steps.SendEnvelope):
                        self.by_peer[step.peer].node.deliver_inbound(step.payload, one.node.peer_id)


@pytest.mark.parametrize("mode", ["each", "batch"])
@pytest.mark.parametrize("when", [*ALWAYS, None], ids=["always", "third", "odd", "some"])
def test_rounds_of_requests_go_on(compile_text, mode, when):
    text = ROUNDS.replace("MODE", mode).replace("CLOSED", EACH if mode == "each" else BATCH)
    found = []
    draw = random.Random(9)
    for chosen in (lambda n: False, when or (lambda n: draw.random() < 0.4)):
        net = Net(compile_text(text), 3, chosen)
        net.run(400 * MS)
        server = net.nodes["server"]
        ticks = [e for e in server.events if e[0] == "tick"]
        assert len(ticks) > 40
        rest = [e for e in server.events if e[0] != "tick"]
        if mode == "batch":  # the order of arrival may differ
            rest = [(topic, sorted(value) if topic == "t" else value) for topic, value in rest]
        found.append(rest)
        assert server.node.open_rounds == 0
        assert server.node.counters["requests.open"] == 0
    assert len(found[0]) == 10
    assert found[0] == found[1]


# --- bootstraps ---------------------------------------------------------------------------------------

STORE = """
program Demo {module=Demo, binding.Main.index="index|I|1", binding.Other.index="index|I|1"}
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
"""


@pytest.mark.parametrize("when", ALWAYS)
def test_bootstraps_that_run_wait_and_hold_up_others_go_on(compile_text, when):
    from bb_edge.engine.entries.bootstrap import (
        BootstrapRequest,
        BootstrapStatus,
        ModuleNames,
        ModuleRequests,
    )

    corpus = np.array([[0, 0], [5, 5]], np.float32)
    data = compile_text(STORE.replace("|I|", "|bb.FlatIndex|"))
    results = []
    for rule in (lambda n: False, when):
        one = Reborn(data, "Main", rule)
        one.args = (*one.args[:3], ["Main", "Other"])
        one.node = install(*one.args, **one.more)
        one.node.run_bootstrap(ModuleRequests((BootstrapRequest("Main", {"corpus": corpus}),)))
        one.node.run_bootstrap(ModuleNames(("Other",)))
        one.poll(1)
        one.node.invoke("Main", {"query": np.array([4, 4], np.float32)})
        one.run(100 * MS, 1)
        assert one.node.bootstrap_status("Main") is BootstrapStatus.DONE
        assert one.node.bootstrap_status("Other") is BootstrapStatus.DONE
        results.append((one.events, one.node.counters))
    assert results[0] == results[1]
    assert results[0][0][0][0] == "ids"


# --- answers that come later --------------------------------------------------------------------------


LATER = """
program Demo {module=Demo, binding.Main.c="codec|test.Slow|1"}
function program.Main(x: F32[2]) -> (y) {entry=1, partition=self}
  slot c: codec
  twice: F32[2] = Add(x, x)
  z: F32[2] = role.compressor.Compress(twice) {slot=c}
  y: F32[2] = Neg(z)
"""


def later_node(compile_text, restartable: bool, snapshot: bytes | None = None):
    from bb_edge.registry import Registry

    registry = Registry()
    registry.register(slow(restartable))
    peer = PeerId.from_name("node")
    return install(peer, (), compile_text(LATER), ["Main"], registry=registry, seed=1, snapshot=snapshot)


def test_an_op_whose_answer_was_to_come_later_is_dispatched_again(compile_text):
    node = later_node(compile_text, True)
    for k in (1, 2):  # the second waits until the component is free
        node.invoke("Main", {"x": np.full(2, k, np.float32)})
    node.poll(1)
    again = later_node(compile_text, True, node.snapshot(1))
    again.poll(2)
    component = again.component("c")
    ((later, t),) = component.open
    np.testing.assert_array_equal(t, [2, 2])
    later.complete(t)
    events = app_events(again.poll(3))
    component.open[1][0].complete(component.open[1][1])
    events += app_events(again.poll(4))
    assert events == [("y", [-2, -2]), ("y", [-4, -4])]


def test_a_completion_that_no_poll_has_seen_is_part_of_the_snapshot(compile_text):
    node = later_node(compile_text, True)
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    node.poll(1)
    node.component("c").open[0][0].fail(ValueError("the sensor is gone"))
    again = later_node(compile_text, True, node.snapshot(1))
    assert again.counters["pending_async.count"] == 0
    assert again.counters["executions.active"] == 1


def test_an_op_that_cannot_run_again_fails_with_completion_lost(compile_text):
    from bb_edge.roles.errors import CompletionLostError

    node = later_node(compile_text, False)
    node.invoke("Main", {"x": np.ones(2, np.float32)})
    node.poll(1)
    again = later_node(compile_text, False, node.snapshot(1))
    found = again.poll(2)
    (failed,) = [s for s in found if isinstance(s, steps.OpFailed)]
    assert isinstance(failed.error, CompletionLostError)
    assert any(isinstance(s, steps.ExecutionEnded) and s.failed for s in found)
    assert again.counters["executions.active"] == 0


def test_who_waited_for_an_op_that_cannot_run_again_has_its_turn(compile_text):
    node = later_node(compile_text, False)
    for k in (1, 2, 3):
        node.invoke("Main", {"x": np.full(2, k, np.float32)})
    node.poll(1)
    again = later_node(compile_text, False, node.snapshot(1))
    component = again.component("c")
    events, failed = [], []
    for now_ns in range(2, 8):
        found = again.poll(now_ns)
        events += app_events(found)
        failed += [s for s in found if isinstance(s, steps.OpFailed)]
        for later, t in component.open:
            later.complete(t)
        component.open.clear()
    assert len(failed) == 1
    assert events == [("y", [-4, -4]), ("y", [-6, -6])]
    assert again.counters["executions.active"] == 0


# --- refusals -----------------------------------------------------------------------------------------


@pytest.fixture
def written(compile_text):
    """(artifact, the snapshot of a node that has something in every queue)."""
    data = compile_text(STATEFUL)
    one = Reborn(data, "Main", lambda n: False)
    for k in range(3):
        one.node.invoke("Main", {"x": np.full(2, k, np.float32), "go": TRIGGER})
    one.run(4 * MS)
    return data, one.node.snapshot(4 * MS)


def reinstall(data: bytes, snapshot: bytes, name: str = "node", target: str = "Main"):
    return install(PeerId.from_name(name), (), data, [target], seed=7, snapshot=snapshot)


def test_every_damaged_byte_is_noticed(written):
    data, good = written
    rng = random.Random(5)
    for _ in range(300):
        bad = bytearray(good)
        at = rng.choice((rng.randrange(60), rng.randrange(len(bad))))
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises((SnapshotDamagedError, SnapshotVersionError)):
            reinstall(data, bytes(bad))
    for size in (0, 7, 8, 49, 50, 51, len(good) - 1):
        with pytest.raises(SnapshotDamagedError):
            reinstall(data, good[:size])
    reinstall(data, good)


def test_a_newer_schema_is_refused(written):
    data, good = written
    with pytest.raises(SnapshotVersionError, match="update the runtime"):
        reinstall(data, good[:8] + (VERSION + 1).to_bytes(2, "big") + good[10:])


def test_a_snapshot_of_somebody_else_is_refused(written, compile_text):
    data, good = written
    with pytest.raises(SnapshotForeignError, match="another peer"):
        reinstall(data, good, "another")
    with pytest.raises(SnapshotForeignError, match="another artifact"):
        reinstall(compile_text(STATEFUL.replace("duration_ns=3000000", "duration_ns=3")), good)


def test_a_whole_snapshot_that_says_what_cannot_be_is_damaged(written):
    data, good = written
    assert resealed(body_of(good)) == good
    for wrong in (b"", b"\x01", b"\xa0"):
        with pytest.raises(SnapshotDamagedError):
            reinstall(data, resealed({}) if not wrong else resealed({"identity": wrong}))
    body = body_of(good)
    for section in body:
        if section == "identity":
            continue
        for value in (None, [], {}, 7, [[]], {"id": 1}, [1, 2, 3]):
            try:
                reinstall(data, resealed({**body, section: value}))
            except SnapshotDamagedError:
                continue
            assert value in ([], {}, 7), (section, value)  # an empty table is a table
    other = body_of(good)
    other["components"][0][0] = "bb.Another"
    with pytest.raises(SnapshotDamagedError, match="components"):
        reinstall(data, resealed(other))
    unknown = body_of(good)
    unknown["timers"][1][0][2] = "nothing"
    with pytest.raises(SnapshotDamagedError, match="nothing here is called"):
        reinstall(data, resealed(unknown))


def test_a_value_without_a_written_form_is_named(compile_text):
    text = (
        "program Demo {module=Demo}\n"
        "function program.Main(x: Any, go: Trigger) -> () {entry=1, partition=self}\n"
        "  late: Trigger = syscall.Sleep<duration_ns=3000000>(go)\n  y: Any = syscall.GateDispatch(x, late)\n"
        '  syscall.AppEmit<name="y">(y)\n'
    )
    from bb_edge.engine.snapshot import SnapshotError

    one = Reborn(compile_text(text), "Main", lambda n: False)
    one.node.invoke("Main", {"x": object(), "go": TRIGGER})
    one.poll(1)
    with pytest.raises(SnapshotError, match="executions: a object cannot be written down"):
        one.node.snapshot(2)
    one.run(10 * MS, 2)
    assert one.events, "and the node goes on"
