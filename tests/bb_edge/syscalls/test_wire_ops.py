"""Wire, gate, composite and address book ops, op by op, in real engines."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import pytest
from arrays import f32
from times import MS, S
from wire_ops import ASK, REPLY

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.errors import OpError
from bb_edge.installer import install
from bb_edge.ir.address import Address, AddressError, site_suffix
from bb_edge.ir.ids import PeerId
from bb_edge.ir.missing import MissingReason
from bb_edge.roles import TRIGGER, Composite
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import envelope
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import Envelope, Fill

PEER = PeerId.from_name("a")
OTHER = PeerId.from_name("b")


# --- composite, address book --------------------------------------------------------------------------

_TWO = '<.composite.child_count=2, .composite.child_types="bb.peer_id_vec,ai.bytesandbrains.tensor.f32">'


@pytest.mark.covers("composite", "Bundle", "Unbundle")
def test_bundles(bed):
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


@pytest.mark.covers("address_book", "Insert", "InsertMany", "Lookup")
def test_address_book(bed):
    body = """  address_book.Insert(p, one)
  address_book.InsertMany(q, many)
  found: AddressVec = address_book.Lookup(wanted)
  syscall.AppEmit<name="found">(found)"""
    one, two, three = (Address(site=n) for n in (1, 2, 3))
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
    # Hosts may hand in encoded addresses; what is none does not get into the book.
    b = bed.run(
        body,
        "p: PeerId, one: Multiaddress, q: PeerId, many: AddressVec, wanted: PeerId",
        {"p": PEER, "one": one.to_bytes()},
        {"p": PEER, "one": b"\xff"},
        {"q": OTHER, "many": (two.to_bytes(), three)},
        {"wanted": PEER},
        {"wanted": OTHER},
    )
    assert b.events("found") == [(one,), (two, three)]
    assert [type(f.error) for f in b.of(steps.OpFailed)] == [AddressError]


# --- gates --------------------------------------------------------------------------------------------


@pytest.mark.covers("gate", "PeerHealthGateTx", "BackoffGateTx")
def test_tx_gates(bed):
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


@pytest.mark.covers("gate", "DedupGateRx", "PeerHealthGateRx", "BackoffGateRx")
def test_rx_gates(bed):
    body = """  a: F32, p: PeerIdVec = gate.DedupGateRx(x, s)
  b: F32, q: PeerIdVec = gate.PeerHealthGateRx(a, p)
  c: F32, r: PeerIdVec = gate.BackoffGateRx(b, q)
  syscall.AppEmit<name="c">(c)
  syscall.AppEmit<name="r">(r)"""
    b = bed.run(body, "x: F32, s: PeerIdVec", {"x": f32(3), "s": (PEER,)})
    assert b.events("c")[0].tolist() == [3] and b.events("r") == [(PEER,)]
    b.assert_clean()


@pytest.mark.covers("gate", "DedupGateRx")
@pytest.mark.parametrize("base", [0, 1], ids=["best effort", "durable"])
def test_an_envelope_that_is_delivered_twice_reaches_the_gate_once(bench, base):
    b = bench("""program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=self}
  x0: F32, s0: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  x: F32, s: PeerIdVec = gate.DedupGateRx(x0, s0)
  syscall.AppEmit<name="x">(x)
  syscall.AppEmit<name="s">(s)
""")
    type_hash, payload = encode_value(f32(3))
    fill = Fill(site_suffix(0xA1), payload, False, type_hash)
    data = envelope.encode(Envelope(fills=[fill], epoch=3, seq=1, base=base))
    for _ in range(2):
        b.node.deliver_inbound(data, PEER)
        b.settle()
    assert [x.tolist() for x in b.events("x")] == [[3]] and b.events("s") == [(PEER,)]
    assert b.node.counters["ingress.duplicates"] == 1
    b.assert_clean()


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


@pytest.mark.covers("wire", "Send", "Recv")
def test_send(compile_text):
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


@pytest.mark.covers("syscall", "DeadlineCheck")
def test_deadline_check_on_the_wire(compile_text):
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


ANSWERS = f"""  x: F32[1], s: PeerIdVec, r: WireReqId, t: Trigger = wire.RecvReq() {{{ASK}}}
  syscall.AppEmit<name="asked">(r)
  y: F32[1] = Add(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
  syscall.AppNotify<name="replied">(h)"""


@pytest.mark.covers("wire", "SendReqBatched", "RecvReq", "SendResp", "RecvRespBatched")
@pytest.mark.covers("syscall", "MissingReasons")
def test_request_batch(compile_text):
    sim, left, right = pair(
        compile_text,
        f"""  r: WireReqId = wire.SendReqBatched(x, to, everybody) {{{ASK}, wire.answer_mode=batch, deadline_ns=1000000000}}
  closed: Trigger, missing: PeerIdVec, stack: Tensor = wire.RecvRespBatched(r) {{{REPLY}}}
  syscall.AppNotify<name="closed">(closed)
  syscall.AppEmit<name="missing">(missing)
  why: I64[?] = syscall.MissingReasons(missing) {{wire.request=1}}
  syscall.AppEmit<name="why">(why)
  syscall.AppEmit<name="stack">(stack)""",
        "x: F32[1]",
        ANSWERS,
    )
    number = left.invoke("L", {"x": f32(4)})
    sim.run(for_ns=S)
    assert sim.events("why")[0].value.tolist() == []
    left.invoke("L", {"x": f32(4)})
    sim.remove(right.peer_id)
    sim.run(for_ns=S)
    assert sim.events("why")[1].value.tolist() == [MissingReason.DOWN]
    assert sim.events("missing")[1].value == (right.peer_id,)
    assert sim.events("stack")[0].value.tolist() == [[8]]
    assert sim.events("missing")[0].value == ()
    assert sim.events("closed")[0].execution == number
    assert 0 < sim.events("asked")[0].value < 2**64 and len(sim.events("replied")) >= 1
    assert left.counters["requests.open"] == 0


@pytest.mark.covers("wire", "RecvResp")
def test_request_each(compile_text):
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


@pytest.mark.covers("wire", "SendResp", "RecvResp")
def test_a_value_whose_type_is_open_may_be_of_float64(askers):
    fed = askers(clients=1)
    fed.clients[0].component("codec").mood = "widens"
    took, missing = fed.ask()
    assert took < 100 and not missing and not fed.failed
    assert fed.server.counters["requests.answers"] == 1
