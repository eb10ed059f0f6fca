"""Deadlines nest: what is asked on behalf of somebody is over before nobody waits for it any more."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import pytest
from arrays import f32
from components import Diary, Slow
from envelopes import fill
from kinds_of_steps import of
from peers import HERE
from times import MS, S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.registry import Registry
from bb_edge.roles.errors import CompletionExpiredError
from bb_edge.transport.in_process import Simulation
from bb_edge.wire.caps import HOST_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Envelope, decode, encode

TIERS = """
program Demo {module=Demo, targets="Server,Relay,Leaf", binding.Server.relays="peer_selector|bb.PresenceSelector|1", binding.Relay.leaves="peer_selector|bb.PresenceSelector|1"}
function program.Server(x: F32[1]) -> () {entry=1, partition=Server}
  slot relays: peer_selector peer_class=Relay
  all: PeerIdVec = role.peer_selector.CurrentView() {slot=relays}
  req: WireReqId = wire.SendReqBatched(x, all, all) {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, deadline_ns=OUTER, wire.answer_mode=each, port=outer}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {wire.wire_id=2, wire.request=1}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {wire.wire_id=2, wire.request=1, wire.site_ids=a2, wire.type_hashes=101}
  syscall.AppEmit<name="sum">(y)
  syscall.AppEmit<name="missing">(missing)
function program.Relay() -> () {entry=1, partition=Relay}
  slot leaves: peer_selector peer_class=Leaf
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  t: Trigger = syscall.OnTrigger(x)
  BEFORE
  below: PeerIdVec = role.peer_selector.CurrentView(go) {slot=leaves, control_inputs=1}
  req: WireReqId = wire.SendReqBatched(x, below, below) {wire.wire_id=3, wire.site_ids=b1, wire.type_hashes=101, deadline_ns=INNER, wire.answer_mode=batch, port=inner}
  closed: Trigger, missing: PeerIdVec, all: F32[?, 1] = wire.RecvRespBatched(req) {wire.wire_id=4, wire.request=3, wire.site_ids=b2, wire.type_hashes=101}
  axis: I64[1] = Constant<value=I64[1]{0}>()
  sum: F32[1] = ReduceSum<keepdims=0>(all, axis)
  h: Trigger = wire.SendResp(sum, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
  syscall.AppEmit<name="below">(missing)
function program.Leaf() -> () {entry=1, partition=Leaf}
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=3, wire.site_ids=b1, wire.type_hashes=101}
  t: Trigger = syscall.OnTrigger(x)
  LEAF
  y: F32[1] = syscall.GateDispatch(x, rested)
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=4, wire.site_ids=b2, wire.type_hashes=101, wire.request=3}
"""

RESTED = "rested: Trigger = syscall.OnTrigger(t)"
"""The leaf answers at once."""


@pytest.fixture
def tiers(compile_text):
    """`tiers(outer_ns, inner_ns, leaves, before, rest)`: (simulation, server, relay, leaves), in touch.

    `before` are ops of the relay that give `go` once it is to ask, `rest` ops of leaves that give `rested`.
    """

    def make(outer_ns, inner_ns, leaves=2, before="", rest=RESTED):
        ops = before or "go: Trigger = syscall.OnTrigger(t)"
        text = TIERS.replace("OUTER", str(outer_ns)).replace("INNER", str(inner_ns))
        data = compile_text(text.replace("BEFORE", ops).replace("LEAF", rest))
        sim = Simulation(seed=3)
        seats = [("hub", "Server"), ("relay", "Relay"), *((f"l{n}", "Leaf") for n in range(leaves))]
        made = [
            install(PeerId.from_name(name), (), data, [target], seed=n)
            for n, (name, target) in enumerate(seats, 1)
        ]
        for node in made:
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, made[0], made[1], made[2:]

    return make


def ask(sim, server, *values):
    """Asks; ms until the server's request is over, and what was told: (sums, missing of the server's)."""
    began = sim.now_ns
    server.invoke("Server", {"x": f32(*values)})
    sim.run(until=lambda: bool(sim.events("missing")))
    return (
        (sim.now_ns - began) // MS,
        [e.value.tolist() for e in sim.events("sum")],
        sim.events("missing")[-1].value,
    )


def reasons(sim, port):
    return [
        reason
        for s in of(steps.RequestClosed, (x.step for x in sim.seen))
        if s.port == port
        for _, reason in s.missing
    ]


def quiet(node):
    node.deliver_inbound = lambda *_arguments, **_more: None


@pytest.mark.parametrize("inner_ns", [8 * S, 5 * S, 4_900 * MS])
def test_a_partial_result_goes_home_where_the_inner_deadline_is_longer(tiers, inner_ns):
    """5 s less 5 %: the relay stops waiting after 4.75 s and answers with what it has."""
    sim, server, _, leaves = tiers(5 * S, inner_ns, leaves=3)
    quiet(leaves[0])
    took, sums, missing = ask(sim, server, 3)
    assert 4740 <= took < 4760
    assert sums == [[6]] and missing == ()
    assert reasons(sim, "inner") == ["cut"] and reasons(sim, "outer") == []


def test_who_is_not_there_goes_down_where_deadlines_are_cut_too(tiers):
    sim, server, relay, leaves = tiers(S, 5 * S)
    quiet(leaves[0])
    for _ in range(2 * relay.config.health_threshold):
        ask(sim, server, 3)
        sim.run(for_ns=60 * S)
    assert [s.peer for s in of(steps.PeerDown, (seen.step for seen in sim.seen))] == [leaves[0].peer_id]


def test_an_inner_deadline_that_is_shorter_stays_as_it_is(tiers):
    sim, server, _, leaves = tiers(5 * S, 2 * S)
    quiet(leaves[0])
    took, sums, _ = ask(sim, server, 3)
    assert 2000 <= took < 2010 and sums == [[3]]
    assert reasons(sim, "inner") == ["deadline"]


def test_the_reserve_is_50_ms_at_least(tiers):
    sim, server, _, leaves = tiers(200 * MS, 5 * S)
    quiet(leaves[0])
    took, sums, _ = ask(sim, server, 3)
    assert 145 <= took < 160 and sums == [[3]]


def test_where_less_than_the_reserve_remains_nobody_is_asked(tiers):
    late = "go: Trigger = syscall.Sleep<duration_ns=950000000>(t)"
    sim, server, relay, leaves = tiers(1 * S, 5 * S, before=late)
    took, sums, missing = ask(sim, server, 3)
    assert took < 1000 and sums == [[0]] and missing == ()
    assert reasons(sim, "inner") == ["cut", "cut"]
    assert [s.reason for s in of(steps.RequestClosed, (x.step for x in sim.seen)) if s.port == "inner"] == [
        "nobody asked"
    ]
    assert all("wire.received" not in leaf.counters for leaf in leaves)
    assert relay.counters["requests.opened"] == 1


def test_after_a_restart_the_deadline_is_still_that_of_whoever_asked(tiers):
    sim, server, relay, leaves = tiers(5 * S, 8 * S)
    quiet(leaves[0])
    server.invoke("Server", {"x": f32(3)})
    sim.run(for_ns=S)
    again = install(
        relay.peer_id,
        (),
        relay.program,
        ["Relay"],
        seed=9,
        snapshot=relay.snapshot(sim.now_ns),
        now_ns=sim.now_ns,
    )
    sim.add(again)
    (execution,) = again.inspect().executions
    assert execution["deadline_ns"] - execution["until_ns"] == 250 * MS
    sim.run(until=lambda: bool(sim.events("missing")))
    assert 4740 * MS < sim.now_ns < 4760 * MS
    assert [e.value.tolist() for e in sim.events("sum")] == [[3]]
    assert reasons(sim, "inner") == ["cut"]


LATER = """program Demo {module=Demo, binding.Main.s="codec|test.Slow|1"}
function program.Main() -> () {entry=1, partition=Main}
  slot s: codec
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  y: F32[1] = role.compressor.Compress(x) {slot=s}
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
"""


def test_a_component_that_answers_later_has_as_long_as_there_is(bench):
    """Its op fails before nobody waits for the reply any more, and that goes home."""
    registry = Registry()
    registry.register(Slow)
    b = bench(LATER, registry=registry)
    asker = PeerId.from_name("asker")
    b.node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
    b.poll()
    made = Envelope([fill(0xA1, 3)], REQUEST, 7, 2 * S, epoch=5, seq=1)
    b.node.deliver_inbound(encode(made), asker)
    b.settle()
    (failed,) = b.of(steps.OpFailed)
    assert isinstance(failed.error, CompletionExpiredError)
    assert "the request that it works for ends then" in str(failed.error)
    (answer,) = [m for s in b.of(steps.SendEnvelope) if (m := decode(s.payload, HOST_CAPS)).kind == RESPONSE]
    assert answer.failure is not None and answer.failure.name == "OUT_OF_TIME"
    assert answer.remaining_deadline_ns == 100 * MS


WAITS = """program Demo {module=Demo, binding.Main.s="codec|test.Slow|1"}
function program.Main() -> () {entry=1, partition=Main}
  slot s: codec
  x: F32[1], from: PeerIdVec, number: WireReqId = wire.RecvReq() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  t: Trigger = syscall.OnTrigger(x)
  FIRST
  h: Trigger = wire.SendResp(y, from, number) {wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, wire.request=1}
  LAST
"""
WAITING = {
    "for a time": "late: Trigger = syscall.Sleep<duration_ns=60000000000>(t)",
    "for a queue": 'late: Tensor = syscall.Serialize.Dequeue<queue="q">(t)',
    "for a permit": 'got: Trigger = syscall.Limit.Acquire<n=1, name="l">(t)\n  late: Trigger = syscall.Limit.Acquire<n=1, name="l">(got)',
    "for a component": "late: F32[1] = role.compressor.Compress(x) {slot=s}",
}


@pytest.fixture
def waits(bench):
    """`waits(first, last)`: a bench whose node answers with `y`, and the peer that asks it."""
    registry = Registry()
    registry.register(Slow)

    def make(first, last=""):
        config = NodeConfig(op_state_entries=4)
        b = bench(WAITS.replace("FIRST", first).replace("LAST", last), registry=registry, config=config)
        asker = PeerId.from_name("asker")
        b.node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
        b.poll()
        return b, asker

    return make


def asked(b, asker, seq=1):
    """Asks with a deadline of 2 s, and lets the node go on until nothing is to be done."""
    message = Envelope([fill(0xA1, 3)], REQUEST, 7 + seq, 2 * S, epoch=5, seq=seq)
    b.node.deliver_inbound(encode(message), asker)
    b.settle()


def answers(b):
    return [m for s in b.of(steps.SendEnvelope) if (m := decode(s.payload, HOST_CAPS)).kind == RESPONSE]


@pytest.mark.parametrize("kind", WAITING)
def test_what_an_asked_execution_waits_for_ends_with_its_asker(waits, kind):
    b, asker = waits(f"{WAITING[kind]}\n  y: F32[1] = syscall.GateDispatch(x, late)")
    asked(b, asker)
    (answer,) = answers(b)
    assert answer.failure.name == "OUT_OF_TIME" and answer.remaining_deadline_ns == 100 * MS
    assert b.node.inspect().executions == [] and b.node.counters["ingress.bytes"] == 0
    assert b.node.counters["executions.active"] == 0
    assert "executions.starved" not in b.node.counters, "it was ended, and lacks nothing"


def test_it_ends_as_well_where_its_reply_went_out(waits):
    b, asker = waits(
        "y: F32[1] = syscall.PassThrough(x)",
        'late: Trigger = syscall.Sleep<duration_ns=60000000000>(t)\n  syscall.AppNotify<name="late">(late)',
    )
    asked(b, asker)
    assert all(answer.failure is None and answer.fills for answer in answers(b)) and answers(b)
    assert b.node.inspect().executions == []
    (failed,) = b.of(steps.OpFailed)
    assert "waits no longer" in failed.text and not b.of(steps.AppEvent)


def test_places_in_line_are_free_again(waits):
    """Nobody ever puts anything into the queue; all who wait for it are ended."""
    b, asker = waits(f"{WAITING['for a queue']}\n  y: F32[1] = syscall.GateDispatch(x, late)")
    for seq in range(1, b.node.config.op_state_entries + 3):
        asked(b, asker, seq)
        told = b.of(steps.OpFailed)[-1].text
        assert "waits no longer" in told, told


def test_the_end_by_force_outlives_a_restart(tiers):
    late = "go: Trigger = syscall.Sleep<duration_ns=60000000000>(t)"
    sim, server, relay, _ = tiers(5 * S, 8 * S, before=late)
    server.invoke("Server", {"x": f32(3)})
    sim.run(for_ns=S)
    kept, program = relay.snapshot(sim.now_ns), relay.program
    sim.add(install(relay.peer_id, (), program, ["Relay"], seed=9, snapshot=kept, now_ns=sim.now_ns))
    sim.run(until=lambda: bool(sim.events("missing")))
    assert 4740 * MS < sim.now_ns < 4760 * MS
    assert reasons(sim, "outer") == ["out of time"]


def test_who_is_too_slow_for_a_whole_deadline_is_waited_for_five_times(tiers):
    """Later requests close at once: none waits for a deadline because of it."""
    sim, server, relay, _ = tiers(
        5 * S, 8 * S, before="go: Trigger = syscall.Sleep<duration_ns=60000000000>(t)"
    )
    often = server.config.failing_threshold
    for _ in range(often):
        server.invoke("Server", {"x": f32(3)})
        sim.run(for_ns=20 * S)
    assert reasons(sim, "outer") == ["out of time"] * often
    told = of(steps.RequestFailed, (seen.step for seen in sim.seen))
    assert {(s.peer, s.code) for s in told} == {(relay.peer_id, "OUT_OF_TIME")}
    assert [s.peer for s in of(steps.PeerFailing, (seen.step for seen in sim.seen))] == [relay.peer_id]
    server.invoke("Server", {"x": f32(3)})
    sim.run(for_ns=S)
    assert reasons(sim, "outer") == ["out of time"] * often + ["failing"]


def test_a_peer_that_was_given_too_little_time_stays_what_it_is(tiers):
    """The leaf says that its time was over; its request had less than it names, for the server's sake."""
    sim, server, relay, (leaf,) = tiers(
        5 * S, 8 * S, leaves=1, rest="rested: Trigger = syscall.Sleep<duration_ns=6000000000>(t)"
    )
    often = 2 * relay.config.failing_threshold
    for _ in range(often):
        server.invoke("Server", {"x": f32(3)})
        sim.run(for_ns=20 * S)
    assert reasons(sim, "inner") == ["cut"] * often
    told = of(steps.RequestFailed, (seen.step for seen in sim.seen))
    assert (leaf.peer_id, "OUT_OF_TIME") in {(s.peer, s.code) for s in told}
    failing = {s.peer for s in of(steps.PeerFailing, (seen.step for seen in sim.seen))}
    assert leaf.peer_id not in failing


def test_a_component_that_misses_its_own_deadline_has_failed(bench):
    """The asker left time enough: it is the component that is late."""
    registry = Registry()
    registry.register(Slow)
    b = bench(LATER, registry=registry)
    asker = PeerId.from_name("asker")
    b.node.peer_presence(asker, True, (HERE,), {"features": ["failures"]}, epoch=1)
    b.poll()
    message = Envelope([fill(0xA1, 3)], REQUEST, 7, 2000 * S, epoch=5, seq=1)
    b.node.deliver_inbound(encode(message), asker)
    b.settle()
    assert {answer.failure.name for answer in answers(b)} == {"OP_FAILED"}


def test_an_answer_that_waits_for_a_component_until_the_end_does_not_count(compile_text):
    """Another execution has what the answer's is to write: it is neither counted nor refused."""
    registry = Registry()
    registry.register(Diary)
    text = TIERS.replace("OUTER", str(5 * S)).replace("INNER", str(8 * S))
    text = text.replace("BEFORE", "go: Trigger = syscall.OnTrigger(t)").replace("LEAF", RESTED)
    text = text.replace('leaves="peer', 'm="model|test.Diary|3", binding.Relay.leaves="peer')
    assert "test.Diary" in text
    before = text[text.index("deadline_ns=8000000000") : text.index("  h: Trigger = wire.SendResp(sum,")]
    each = """deadline_ns=8000000000, wire.answer_mode=each, port=inner}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {wire.wire_id=4, wire.request=3}
  a: F32[1], who: PeerIdVec = wire.RecvResp() {wire.wire_id=4, wire.request=3, wire.site_ids=b2, wire.type_hashes=101}
  put: CommandId = role.model.ApplyDelta(a) {slot=m}
  sum: F32[1] = syscall.GateDispatch(x, closed)
"""
    text = text.replace(before, each).replace(
        "function program.Relay() -> () {entry=1, partition=Relay}\n  slot leaves: peer_selector peer_class=Leaf\n",
        "function program.Relay(hold: F32[1]) -> () {entry=1, partition=Relay}\n"
        "  slot leaves: peer_selector peer_class=Leaf\n  slot m: model\n"
        "  one: CommandId = role.model.ApplyDelta(hold) {slot=m}\n"
        "  done: Trigger = syscall.OnTrigger(one)\n"
        "  two: Trigger = syscall.Sleep<duration_ns=60000000000>(done)\n"
        "  three: F32[1] = syscall.GateDispatch(hold, two)\n"
        "  four: CommandId = role.model.ApplyDelta(three) {slot=m}\n",
    )
    data = compile_text(text)
    sim = Simulation(seed=3)
    for seed, (name, target) in enumerate([("hub", "Server"), ("relay", "Relay"), ("leaf", "Leaf")], 1):
        sim.add(install(PeerId.from_name(name), (), data, [target], registry=registry, seed=seed))
    sim.run(for_ns=S // 10)
    server, relay, _ = sim.nodes
    relay.invoke("Relay", {"hold": f32(1)})
    server.invoke("Server", {"x": f32(3)})
    sim.run(until=lambda: bool(sim.events("missing")))
    assert reasons(sim, "inner") == ["cut"]
    assert relay.counters.get("requests.answers", 0) == 0
    assert not of(steps.AnswerRefused, (seen.step for seen in sim.seen))


def test_a_durable_request_that_waits_for_a_snapshot_is_waited_for_in_peace(compile_text):
    """The end of the request comes with the end by force, and goes on once a snapshot holds who is missing."""
    text = TIERS.replace("OUTER", str(5 * S)).replace("INNER", str(8 * S))
    text = text.replace("BEFORE", "go: Trigger = syscall.OnTrigger(t)").replace("LEAF", RESTED)
    data = compile_text(text.replace("port=inner", "port=inner, durable=1"))
    relay = install(PeerId.from_name("relay"), (), data, ["Relay"], seed=2, durable=True)
    hub, leaf = PeerId.from_name("hub"), PeerId.from_name("leaf")
    relay.peer_presence(hub, True, (HERE,), {"features": ["failures"]}, epoch=1, classes=("Server",))
    relay.peer_presence(leaf, True, (HERE,), epoch=1, classes=("Leaf",))
    relay.poll(1)
    relay.deliver_inbound(encode(Envelope([fill(0xA1, 3)], REQUEST, 7, 5 * S, epoch=5, seq=1)), hub)
    for written in of(steps.PersistOutbox, relay.poll(2)):
        relay.persisted(written.token)
    relay.poll(3)
    relay.snapshot(4)
    relay.snapshot_written()
    assert [s.peer for s in of(steps.SendEnvelope, relay.poll(5))] == [leaf]
    found = relay.poll(5 * S)
    assert of(steps.SnapshotWanted, found) and not of(steps.CycleBudgetExceeded, found)
    relay.snapshot(5 * S)
    relay.snapshot_written()
    found = [*relay.poll(5 * S + 1), *relay.poll(5 * S + 2)]
    assert of(steps.RequestClosed, found)
    assert relay.inspect().executions == [] and relay.counters["deadlines.expired"] == 1


def test_an_answer_for_which_no_time_is_left_is_cut_and_not_refused(compile_text):
    """The relay works on the leaf's answer until whoever asked it waits no longer."""
    text = TIERS.replace("OUTER", str(5 * S)).replace("INNER", str(8 * S))
    text = text.replace("BEFORE", "go: Trigger = syscall.OnTrigger(t)").replace("LEAF", RESTED)
    before = text[text.index("deadline_ns=8000000000") : text.index("  h: Trigger = wire.SendResp(sum,")]
    each = """deadline_ns=8000000000, wire.answer_mode=each, port=inner}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {wire.wire_id=4, wire.request=3}
  a: F32[1], who: PeerIdVec = wire.RecvResp() {wire.wire_id=4, wire.request=3, wire.site_ids=b2, wire.type_hashes=101}
  came: Trigger = syscall.OnTrigger(a)
  late: Trigger = syscall.Sleep<duration_ns=60000000000>(came)
  syscall.AppNotify<name="late">(late)
  sum: F32[1] = syscall.GateDispatch(x, closed)
"""
    data = compile_text(text.replace(before, each))
    sim = Simulation(seed=3)
    seats = [("hub", "Server"), ("relay", "Relay"), ("leaf", "Leaf")]
    for seed, (name, target) in enumerate(seats, 1):
        sim.add(install(PeerId.from_name(name), (), data, [target], seed=seed))
    sim.run(for_ns=S // 10)
    server, relay, _ = sim.nodes
    server.invoke("Server", {"x": f32(3)})
    sim.run(until=lambda: bool(sim.events("missing")))
    assert reasons(sim, "inner") == ["cut"]
    assert "requests.refused" not in relay.counters
    assert not of(steps.AnswerRefused, (seen.step for seen in sim.seen))
    for _ in range(2 * relay.config.failing_threshold):  # the leaf answers at once, each time
        server.invoke("Server", {"x": f32(3)})
        sim.run(for_ns=20 * S)
    assert set(reasons(sim, "inner")) == {"cut"}
    assert not of(steps.PeerFailing, (seen.step for seen in sim.seen)), "it is not the leaf's fault"
