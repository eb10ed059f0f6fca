"""Asking and answering between real nodes, joined in process under simulated time."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import numpy as np
import pytest
from arrays import f32
from times import S

from bb_edge.cli.render import step_record
from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net.cohort import REQUEST
from bb_edge.installer import install
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from tests.aids.transitions import assert_decides_by

ASK, REPLY = "00000000000000aa", "00000000000000bb"

CLIENT = f"""
function program.Client() -> () {{entry=1, partition=Client}}
  x: F32[2], sender: PeerIdVec, req: WireReqId = wire.RecvReq() {{wire.wire_id=1, wire.site_ids={ASK}, wire.type_hashes=101}}
  y: F32[2] = Add(x, x)
  h: Trigger = wire.SendResp(y, sender, req) {{wire.wire_id=2, wire.site_ids={REPLY}, wire.type_hashes=101, wire.request=1}}
"""

SERVER = f"""
function program.Server(x: F32[2]) -> () {{entry=1, partition=Server}}
  slot peers: peer_selector peer_class=Client
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=peers}}
  req: WireReqId = wire.SendReqBatched(x, all, all) {{wire.wire_id=1, wire.site_ids={ASK}, wire.type_hashes=101, deadline_ns=5000000000, wire.answer_mode=MODE, ENOUGH port=ask}}
  ANSWERS
"""

EACH = f"""closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {{wire.wire_id=2, wire.request=1}}
  a: F32[2], who: PeerIdVec = wire.RecvResp() {{wire.wire_id=2, wire.request=1, wire.site_ids={REPLY}, wire.type_hashes=101}}
  both: F32[2] = Add(a, x)
  syscall.AppEmit<name="answer">(both)
  syscall.AppEmit<name="who">(who)
  syscall.AppEmit<name="missing">(missing)"""

BATCH = f"""closed: Trigger, missing: PeerIdVec, stack: Tensor = wire.RecvRespBatched(req) {{wire.wire_id=2, wire.request=1, wire.site_ids={REPLY}, wire.type_hashes=101}}
  syscall.AppEmit<name="stack">(stack)
  syscall.AppEmit<name="missing">(missing)"""

HEAD = 'program Demo {module=Demo, targets="Server,Client", binding.Server.peers="peer_selector|bb.PresenceSelector|1"}\n'


def server(answers: str, enough: int = 0) -> str:
    text = SERVER.replace("ANSWERS", answers).replace("MODE", "each" if answers is EACH else "batch")
    return text.replace("ENOUGH", f"enough={enough}," if enough else "")


@pytest.fixture
def federation(compile_text):
    """`federation(answers, clients=2, enough=0, config=None)`: (simulation, server, clients), settled."""

    def make(answers, clients=2, enough=0, config=None):
        data = compile_text(HEAD + server(answers, enough) + CLIENT)
        sim = Simulation(seed=3)
        asking = install(PeerId.from_name("server"), (), data, ["Server"], config, seed=1)
        asked = [
            install(PeerId.from_name(f"c{i}"), (), data, ["Client"], seed=10 + i) for i in range(clients)
        ]
        for node in (asking, *asked):
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, asking, asked

    return make


def test_an_answer_that_was_taken_counts_though_its_peer_goes_before_it_has_run(compile_text):
    """Its execution waits for another one; meanwhile the peer's presence says down, and the gates are asked."""
    gated = EACH.replace(
        "  both: F32[2] = Add(a, x)",
        """  up: F32[2], by: PeerIdVec = gate.PeerHealthGateRx(a, who)
  clear: F32[2], whom: PeerIdVec = gate.BackoffGateRx(up, by)
  t: Trigger = syscall.OnTrigger(clear)
  late: Trigger = syscall.Sleep<duration_ns=100000000>(t)
  passed: F32[2] = syscall.GateDispatch(clear, late)
  both: F32[2] = Add(passed, x)""",
    )
    text = server(gated).replace("answer_mode=batch", "answer_mode=each")
    sim = Simulation(seed=3)
    data = compile_text(HEAD + text + CLIENT)
    asking = install(PeerId.from_name("server"), (), data, ["Server"], NodeConfig(max_children=1), seed=1)
    sim.add(asking)
    for number in range(2):
        sim.add(install(PeerId.from_name(f"c{number}"), (), data, ["Client"], seed=10 + number))
    sim.run(for_ns=S // 10)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S // 20)
    for number in range(2):
        sim.remove(PeerId.from_name(f"c{number}"))
    sim.run(for_ns=S)
    assert asking.counters["peers.down"] == 2
    assert len(sim.events("answer")) == 2
    assert [e.value for e in sim.events("missing")] == [()]


def test_every_answer_runs_once_in_a_child_that_sees_its_parent(federation):
    sim, asking, asked = federation(EACH)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    answers = sim.events("answer")
    assert [a.value.tolist() for a in answers] == [[3, 6], [3, 6]]
    assert {w.value[0] for w in sim.events("who")} == {n.peer_id for n in asked}
    assert len({a.execution for a in answers}) == 2
    (missing,) = sim.events("missing")
    assert missing.value == ()
    (closed,) = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed)]
    assert (closed.asked, closed.answered, closed.reason) == (2, 2, "all settled")
    assert asking.counters["executions.active"] == 0


def test_answers_stack_in_order_of_arrival(federation):
    sim, asking, _ = federation(BATCH, clients=3)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    (stack,) = sim.events("stack")
    assert stack.value.tolist() == [[2, 4]] * 3


def test_an_empty_peer_list_closes_at_once(federation):
    sim, asking, _ = federation(BATCH, clients=0)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    (stack,) = sim.events("stack")
    assert stack.value.shape == (0,)
    (closed,) = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed)]
    assert (closed.asked, closed.reason) == (0, "nobody asked")
    assert "list of peers is empty" in closed.remedy and "bb-edge peers" in closed.remedy


@pytest.mark.parametrize("clients", [0, 1])
def test_an_op_that_reads_the_answers_of_nobody_says_so(federation, clients):
    reads = BATCH.replace("  syscall", "  turned: Tensor = Transpose<perm=[1, 0]>(stack)\n  syscall", 1)
    sim, asking, _ = federation(reads, clients)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    failed = [s.step.text for s in sim.seen if isinstance(s.step, steps.OpFailed)]
    assert len(failed) == (0 if clients else 1)
    assert all("r.responses has no rows: wait for g.when(" in text for text in failed)
    (closed,) = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed)]
    assert bool(closed.remedy) == (not clients)
    assert ("remedy" in step_record(closed)) == (not clients)


@pytest.mark.parametrize(
    ("declared", "dtype", "shape"),
    [
        ("Tensor", np.float32, (0,)),
        ("F16", np.float16, (0,)),
        ("I64[?, 3]", np.int64, (0, 3)),
        ("U8[N, M, 2]", np.uint8, (0, 0, 2)),
        ("BOOL[4, ?]", np.bool_, (0, 0)),
    ],
)
def test_a_batch_that_nobody_answered_has_the_declared_type(federation, declared, dtype, shape):
    sim, asking, _ = federation(BATCH.replace("stack: Tensor", f"stack: {declared}"), clients=0)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    (stack,) = sim.events("stack")
    assert (stack.value.dtype, stack.value.shape) == (dtype, shape)


def test_enough_answers_close_a_request(federation):
    sim, asking, _ = federation(BATCH, clients=3, enough=2)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    (stack,) = sim.events("stack")
    assert stack.value.shape == (2, 2)
    assert len(sim.events("missing")[0].value) == 1
    assert asking.counters["ingress.late_answers"] == 1


def test_a_silent_peer_holds_a_request_to_its_deadline_only(federation):
    sim, asking, asked = federation(BATCH, clients=2)
    silent = asked[0]
    silent.deliver_inbound = lambda *a, **k: None
    start = sim.now_ns
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(until=lambda: bool(sim.events("stack")))
    assert 5 * S <= sim.now_ns - start < 5 * S + S // 100
    assert sim.events("stack")[0].value.shape == (1, 2)
    assert sim.events("missing")[0].value == (silent.peer_id,)
    assert asking.counters["requests.unanswered"] == 1


def test_a_peer_that_goes_down_settles_its_share(federation):
    sim, asking, asked = federation(BATCH, clients=2)
    asked[0].deliver_inbound = lambda *a, **k: None
    asking.invoke("Server", {"x": f32(1, 2)})
    start = sim.now_ns
    sim.at(start + S // 2, lambda: sim.remove(asked[0].peer_id))
    sim.run(until=lambda: bool(sim.events("stack")))
    assert sim.now_ns - start < S
    assert sim.events("missing")[0].value == (asked[0].peer_id,)


def test_children_beyond_the_bound_wait_and_all_run(federation):
    sim, asking, _ = federation(EACH, clients=6, config=NodeConfig(max_children=2))
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    assert len(sim.events("answer")) == 6


def test_an_answer_from_somebody_else_is_no_answer(federation):
    sim, asking, asked = federation(BATCH, clients=2)
    asked[0].deliver_inbound = lambda *a, **k: None
    sent: list = []
    original = asked[1].poll

    def spy(now_ns):
        found = original(now_ns)
        sent.extend(s for s in found if isinstance(s, steps.SendEnvelope))
        return found

    asked[1].poll = spy
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S // 2)
    replies = [s for s in sent if s.payload]
    assert replies
    asking.deliver_inbound(replies[-1].payload, asked[0].peer_id)
    sim.run(until=lambda: bool(sim.events("stack")))
    assert sim.events("missing")[0].value == (asked[0].peer_id,)


def test_same_seed_same_bytes(federation):
    hashes = set()
    for _ in range(2):
        sim, asking, _ = federation(EACH, clients=3)
        asking.invoke("Server", {"x": f32(1, 2)})
        sim.run(for_ns=S)
        hashes.add(sim.trace_hash())
    assert len(hashes) == 1


def test_garbage_is_counted_and_the_node_goes_on(federation):
    sim, asking, asked = federation(EACH)
    for data in (b"", b"\xff" * 50, b"\x0a\x05", bytes(range(200))):
        asked[0].deliver_inbound(data, asking.peer_id)
    asking.invoke("Server", {"x": f32(1, 2)})
    sim.run(for_ns=S)
    assert len(sim.events("answer")) == 2
    assert asked[0].counters["wire.malformed"] >= 2


def test_a_request_closes_and_fires_by_its_table(federation):
    def closed(answers=EACH, clients=2, enough=0, silent=0, leave=False):
        """How the one request of a federation ends, of whose clients some say nothing, or leave."""
        sim, asking, asked = federation(answers, clients, enough)
        for node in asked[:silent]:
            node.deliver_inbound = lambda *_arguments, **_more: None
            if leave:
                sim.at(sim.now_ns + S // 2, lambda peer=node.peer_id: sim.remove(peer))
        asking.invoke("Server", {"x": f32(1, 2)})
        sim.run(for_ns=6 * S)
        closings = [s.step for s in sim.seen if isinstance(s.step, steps.RequestClosed)]
        assert len(closings) == len(sim.events("missing")) == 1
        step = closings[0]
        assert len(sim.events("answer")) == step.answered
        assert not asking.inspect().executions
        return step.answered, step.reason

    def walk() -> None:
        assert closed() == (2, "all settled")
        assert closed(clients=0) == (0, "nobody asked")
        assert closed(enough=1) == (1, "enough")
        assert closed(silent=1) == (1, "deadline")
        assert closed(silent=1, leave=True) == (1, "all settled")

    assert_decides_by(REQUEST, walk)
