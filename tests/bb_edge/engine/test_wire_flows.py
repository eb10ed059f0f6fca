"""What passes between executions of several nodes, and of one with itself."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arrays import f32
from times import MS, S
from wire_ops import ASK, REPLY

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.ledger import IngressFull
from bb_edge.installer import install
from bb_edge.ir.address import Address, site_suffix
from bb_edge.ir.errors import BBError
from bb_edge.ir.ids import PeerId
from bb_edge.ir.tensors import encode_tensor
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import caps, cbor, envelope
from bb_edge.wire.envelope import Envelope, Fill


def head(*targets: str) -> str:
    slots = "".join(
        f', binding.{t}.p="peer_selector|bb.PresenceSelector|{n}"' for n, t in enumerate(targets, 1)
    )
    return f"program Demo {{module=Demo{slots}}}\n"


def main(target: str, inputs: str, body: str, peer_class: str = "") -> str:
    slot = (
        f"  slot p: peer_selector peer_class={peer_class}\n  to: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}\n"
        if peer_class
        else ""
    )
    return f"function program.{target}({inputs}) -> () {{entry=1, partition={target}}}\n{slot}{body}\n"


def emit(name: str) -> str:
    return f'  syscall.AppEmit<name="{name}">({name})\n'


ONE = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101"
LEFT = main("L", "x: F32[1]", f"  h: Trigger = wire.Send(x, to) {{{ONE}}}", "R")
RIGHT = main("R", "", f"  x: F32[1], s: PeerIdVec = wire.Recv() {{{ONE}}}\n{emit('x')}")


@pytest.fixture
def net(compile_text):
    """`net(text, {node name: targets}, config)`: (simulation, nodes by name), past the first presences."""

    def make(text: str, nodes: dict[str, Sequence[str]], config: NodeConfig | None = None) -> Any:
        data = compile_text(text)
        sim = Simulation(seed=3)
        made = {
            name: install(PeerId.from_name(name), (), data, targets, config, seed=n)
            for n, (name, targets) in enumerate(nodes.items())
        }
        for node in made.values():
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, made

    return make


def sent_by(node: Any) -> list[steps.SendEnvelope]:
    """Collects every envelope that the node hands out from now on."""
    found: list[steps.SendEnvelope] = []
    poll = node.poll

    def spy(now_ns: int) -> list[steps.EngineStep]:
        out = poll(now_ns)
        found.extend(s for s in out if isinstance(s, steps.SendEnvelope))
        return out

    node.poll = spy
    return found


def decoded(sent: Sequence[steps.SendEnvelope]) -> list[Envelope]:
    return [envelope.decode(s.payload, caps.HOST_CAPS) for s in sent]


# --- one node, several targets ------------------------------------------------------------------------

SERVER = main(
    "Server",
    "x: F32[1]",
    f"""  r: WireReqId = wire.SendReqBatched(x, to, to) {{{ASK}, wire.answer_mode=each, deadline_ns=2000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  c: CommandId = role.aggregator.Contribute(y) {{slot=agg}}
  total: Tensor, weight: F32[] = role.aggregator.Aggregate(closed) {{slot=agg, control_inputs=1}}
{emit("total")}{emit("weight")}{emit("missing")}""",
    "Client",
).replace("  to:", "  slot agg: aggregator\n  to:")
CLIENT = f"""function program.Client() -> () {{entry=1, partition=Client}}
  slot agg: aggregator
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Add(x, x)
  c: CommandId = role.aggregator.Contribute(y) {{slot=agg}}
  z: F32[1] = syscall.GateDispatch(y, c)
  h: Trigger = wire.SendResp(z, s, r) {{{REPLY}}}
"""
BOTH = (
    'program Demo {module=Demo, binding.Server.p="peer_selector|bb.PresenceSelector|1", '
    'binding.Server.agg="aggregator|bb.FedAvg|2", binding.Client.agg="aggregator|bb.FedAvg|2"}\n'
    + SERVER
    + CLIENT
)


def test_a_node_with_both_halves_asks_itself_too_and_shares_components(net):
    sim, nodes = net(BOTH, {"hub": ("Server", "Client"), "far": ("Client",)})
    sent = sent_by(nodes["hub"])
    nodes["hub"].invoke("Server", {"x": f32(3)})
    sim.run(for_ns=3 * S)
    assert sim.events("missing")[0].value == ()
    # Two answers of 6, and one 6 that the hub's own Client half contributed to the same component.
    assert float(sim.events("weight")[0].value) == 3
    assert sim.events("total")[0].value.tolist() == [6]
    assert {s.peer for s in sent} == {nodes["far"].peer_id}, "what goes to itself needs no transport"
    assert nodes["hub"].counters["ingress.bytes"] == 0


def test_a_full_own_queue_settles_the_request_instead_of_hanging(net):
    sim, nodes = net(BOTH, {"hub": ("Server", "Client")})
    hub = nodes["hub"]
    hub.ingress.offer_raw = lambda *a, **k: (_ for _ in ()).throw(IngressFull("full"))
    hub.invoke("Server", {"x": f32(3)})
    start = sim.now_ns
    sim.run(until=lambda: bool(sim.events("missing")))
    assert sim.events("missing")[0].value == (hub.peer_id,)
    assert sim.now_ns - start < S, "not its deadline ended it"


def test_requests_are_forgotten_when_they_are_over(net):
    sim, nodes = net(BOTH, {"hub": ("Server",), "far": ("Client",)}, NodeConfig(max_requests=2))
    for _ in range(20):
        nodes["hub"].invoke("Server", {"x": f32(3)})
        sim.run(for_ns=S)
    assert len(sim.events("missing")) == 20
    assert nodes["hub"].counters["requests.open"] == 0
    assert not [s for s in sim.seen if isinstance(s.step, steps.OpFailed)]


# --- requests within answers --------------------------------------------------------------------------

ASK2 = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
REPLY2 = "wire.wire_id=4, wire.request=3, wire.site_ids=d1, wire.type_hashes=101"


def test_a_child_execution_asks_in_its_turn(net):
    """Each answer is asked about again; the inner answers see the outer answer and the asking execution."""
    server = main(
        "Server",
        "x: F32[1]",
        f"""  r: WireReqId = wire.SendReqBatched(x, to, to) {{{ASK}, wire.answer_mode=each, deadline_ns=2000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  r2: WireReqId = wire.SendReqBatched(y, who, who) {{{ASK2}, wire.answer_mode=each, deadline_ns=1000000000}}
  closed2: Trigger, missing2: PeerIdVec = wire.RecvRespBatched(r2) {{wire.wire_id=4, wire.request=3}}
  z: F32[1], whose: PeerIdVec = wire.RecvResp() {{{REPLY2}}}
  zy: F32[1] = Add(z, y)
  sum: F32[1] = Add(zy, x)
{emit("sum")}  syscall.AppNotify<name="inner">(closed2)
  syscall.AppNotify<name="closed">(closed)""",
        "Client",
    )
    client = main(
        "Client",
        "",
        f"""  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Add(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
  v: F32[1], s2: PeerIdVec, r2: WireReqId = wire.RecvReq() {{{ASK2}}}
  w: F32[1] = Mul(v, v)
  h2: Trigger = wire.SendResp(w, s2, r2) {{{REPLY2}}}""",
    )
    sim, nodes = net(
        head("Server") + server + client, {"hub": ("Server",), "a": ("Client",), "b": ("Client",)}
    )
    nodes["hub"].invoke("Server", {"x": f32(3)})
    sim.run(for_ns=3 * S)
    assert [e.value.tolist() for e in sim.events("sum")] == [[36 + 6 + 3]] * 2
    order = [e.topic for e in sim.events() if e.topic in ("inner", "closed")]
    assert order == ["inner", "inner", "closed"]
    assert nodes["hub"].counters["executions.active"] == 0


# --- sending ------------------------------------------------------------------------------------------


def test_a_trigger_edge_carries_nothing(net):
    site = "wire.wire_id=1, wire.site_ids=a1, wire_transport=trigger_only, wire.type_hashes=a"
    left = main("L", "go: Trigger", f"  h: Trigger = wire.Send(go, to) {{{site}}}", "R")
    right = main(
        "R", "", f'  t: Trigger, s: PeerIdVec = wire.Recv() {{{site}}}\n  syscall.AppNotify<name="t">(t)'
    )
    sim, nodes = net(head("L") + left + right, {"l": ("L",), "r": ("R",)})
    sent = sent_by(nodes["l"])
    from bb_edge.roles import TRIGGER

    nodes["l"].invoke("L", {"go": TRIGGER})
    sim.run(for_ns=S)
    assert len(sim.events("t")) == 1
    (made,) = decoded(sent)
    assert [(f.trigger_only, bytes(f.payload)) for f in made.fills] == [(True, b"")]


def test_sends_of_one_burst_share_an_envelope(net):
    def site(n: int, more: str = "") -> str:
        return f"{{wire.wire_id={n}, wire.site_ids=a{n}, wire.type_hashes=101{more}}}"

    left = main(
        "L",
        "x: F32[1]",
        f"""  a: Trigger = wire.Send(x, to) {site(1, ", batch_group_id=1")}
  b: Trigger = wire.Send(x, to) {site(2, ", batch_group_id=1")}
  c: Trigger = wire.Send(x, to) {site(3, ", batch_group_id=2")}
  d: Trigger = wire.Send(x, to) {site(4, ", batch_group_id=1, deadline_ns=1000000000")}
  e: Trigger = wire.Send(x, to) {site(5)}""",
        "R",
    )
    right = main(
        "R",
        "",
        "".join(
            f'  x{n}: F32[1], s{n}: PeerIdVec = wire.Recv() {site(n)}\n  syscall.AppEmit<name="x{n}">(x{n})\n'
            for n in (1, 2, 3, 4, 5)
        ),
    )
    sim, nodes = net(head("L") + left + right, {"l": ("L",), "r": ("R",), "r2": ("R",)})
    sent = sent_by(nodes["l"])
    for _ in range(2):
        nodes["l"].invoke("L", {"x": f32(3)})
    sim.run(for_ns=S)
    shapes = sorted(
        len(e.fills) for s, e in zip(sent, decoded(sent), strict=True) if s.peer == nodes["r"].peer_id
    )
    assert shapes == [1, 1, 1, 1, 1, 1, 2, 2], "same group, deadline and execution"
    for n in (1, 2, 3, 4, 5):
        assert len(sim.events(f"x{n}")) == 4
    together = {e.execution for e in sim.events("x1")} & {e.execution for e in sim.events("x2")}
    assert len(together) >= 2, "one envelope, one execution"


def test_a_reply_inherits_the_deadline_of_what_it_answers(net):
    slow = "  t: Trigger = syscall.OnTrigger(x)\n  t2: Trigger = syscall.Sleep<duration_ns=300000000>(t)\n  x2: F32[1] = syscall.GateDispatch(x, t2)\n  y: F32[1] = Add(x2, x2)\n"
    text = BOTH.replace("  y: F32[1] = Add(x, x)\n", slow)
    sim, nodes = net(text, {"hub": ("Server",), "far": ("Client",)})
    sent = sent_by(nodes["far"])
    nodes["hub"].invoke("Server", {"x": f32(3)})
    sim.run(for_ns=S)
    reply = next(e for e in decoded(sent) if e.kind == envelope.RESPONSE)
    assert reply.remaining_deadline_ns == 1700 * MS, "2 s from its arrival, less what it took"
    assert 1700 * MS in [s.expires_in_ns for s in sent]


def test_an_unknown_peer_is_reported_and_nothing_sent(net):
    left = main(
        "L",
        "x: F32[1], who: PeerIdVec",
        f'  h: Trigger = wire.Send(x, who) {{{ONE}}}\n  syscall.AppNotify<name="h">(h)',
    )
    sim, nodes = net("program Demo {module=Demo}\n" + left, {"l": ("L",)})
    stranger = PeerId.from_name("stranger")
    nodes["l"].invoke("L", {"x": f32(1), "who": (stranger,)})
    sim.run(for_ns=S)
    (failed,) = [s.step for s in sim.seen if isinstance(s.step, steps.PeerResolveFailed)]
    assert failed.peer == stranger and nodes["l"].counters.get("wire.sent", 0) == 0


# --- receiving ----------------------------------------------------------------------------------------


def one_fill(value: Any, site: int = 0xA1, type_hash: int = 0x101, **more: Any) -> bytes:
    return envelope.encode(
        Envelope(fills=[Fill(site_suffix(site), encode_tensor(value), False, type_hash)], **more)
    )


def test_a_spoofed_source_is_refused_and_counted(net):
    sim, nodes = net(head("L") + LEFT + RIGHT, {"l": ("L",), "r": ("R",)})
    right = nodes["r"]
    honest, liar = nodes["l"].peer_id, PeerId.from_name("liar")
    right.deliver_inbound(one_fill(f32(1), src_peer=honest.to_bytes()), liar)
    right.deliver_inbound(one_fill(f32(2), src_peer=honest.to_bytes()), honest)
    sim.run(for_ns=S)
    assert [e.value.tolist() for e in sim.events("x")] == [[2]]
    assert right.counters["ingress.spoofed"] == 1
    assert [s.step.reason for s in sim.seen if isinstance(s.step, steps.IngressDropped)] == ["spoofed"]
    assert right.counters["ingress.bytes"] == 0


def test_a_fill_that_fails_leaves_its_siblings_alone(net):
    site = 'wire.wire_id=1, wire.site_ids="a1,a2", wire.type_hashes="101,101"'
    right = main("R", "", f"  x: F32, y: F32, s: PeerIdVec = wire.Recv() {{{site}}}\n{emit('x')}{emit('y')}")
    sim, nodes = net("program Demo {module=Demo}\n" + right, {"r": ("R",)})
    good = Fill(site_suffix(0xA2), encode_tensor(f32(5)), False, 0x101)
    for bad in (
        Fill(site_suffix(0xA1), encode_tensor(f32(5)), False, 0x102),
        Fill(site_suffix(0xA1), b"\xff", False, 0x101),
        Fill(site_suffix(0xFF), b"", False, 0x101),
        Fill(b"\x00", b"", False, 0x101),
        Fill(site_suffix(0xA1), b"", True, 0),
    ):
        nodes["r"].deliver_inbound(envelope.encode(Envelope(fills=[bad, good])), PeerId.from_name("x"))
    sim.run(for_ns=S)
    assert len(sim.events("y")) == 5 and sim.events("x") == []
    failures = [s.step.kind for s in sim.seen if isinstance(s.step, steps.WireReceiveFailed)]
    assert failures == ["TypeMismatch", "DecodeFailed", "Unroutable", "Unroutable", "TypeMismatch"]


def test_arrays_of_another_shape_than_the_compiler_knows_are_refused(net):
    site = (
        'wire.wire_id=1, wire.site_ids="a1,a2", wire.type_hashes="101,101", shapes="[2];[?,2]", port=report'
    )
    text = main("R", "", f"  x: F32, y: F32, s: PeerIdVec = wire.Recv() {{{site}}}\n{emit('x')}{emit('y')}")
    sim, nodes = net("program Demo {module=Demo}\n" + text, {"r": ("R",)})
    arrays = [(f32(1, 2), np.ones((3, 2))), (f32(), np.ones((0, 2))), (f32(1), f32(1, 2)), (f32(7)[0], f32())]
    for x, y in arrays:
        fills = [
            Fill(site_suffix(number), encode_tensor(np.asarray(array, np.float32)), False, 0x101)
            for number, array in ((0xA1, x), (0xA2, y))
        ]
        nodes["r"].deliver_inbound(envelope.encode(Envelope(fills=fills)), PeerId.from_name("x"))
    sim.run(for_ns=S)
    assert [e.value.tolist() for e in sim.events("x")] == [[1, 2], []], "an empty vector stands for nothing"
    assert [e.value.shape for e in sim.events("y")] == [(3, 2), (0, 2), (0,)]
    failures = [s.step for s in sim.seen if isinstance(s.step, steps.WireReceiveFailed)]
    assert {f.kind for f in failures} == {"ShapeMismatch"} and {f.peer for f in failures} == {
        PeerId.from_name("x")
    }
    assert [f.detail.partition(": ")[2] for f in failures] == [
        "[1] for payload 0 of 'report', [2] is expected",
        "[2] for payload 1 of 'report', [?,2] is expected",
        "[] for payload 0 of 'report', [2] is expected",
    ]


def test_a_damaged_stamp_of_shapes_is_refused_at_install(net):
    site = 'wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, shapes="[2"'
    text = main("R", "", f"  x: F32, s: PeerIdVec = wire.Recv() {{{site}}}\n{emit('x')}")
    with pytest.raises(BBError, match="is not a shape"):
        net("program Demo {module=Demo}\n" + text, {"r": ("R",)})


def test_a_damaged_stamp_of_bundles_is_refused_at_install(net):
    site = 'wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=302, wire.parts="(101[2]"'
    text = main("R", "", f"  x: Composite, s: PeerIdVec = wire.Recv() {{{site}}}\n{emit('x')}")
    with pytest.raises(BBError, match="says of no bundle what it holds"):
        net("program Demo {module=Demo}\n" + text, {"r": ("R",)})


def test_planned_sizes_raise_their_sites_cap_and_no_others(net):
    text = main("R", "", "".join(
        f"  x{n}: F32, s{n}: PeerIdVec = wire.Recv() {{wire.wire_id={n}, wire.site_ids=a{n}, wire.type_hashes=101{more}}}\n{emit(f'x{n}')}"
        for n, more in ((1, ", wire.max_bytes=200000"), (2, ""))
    ))  # fmt: skip
    sim, nodes = net("program Demo {module=Demo}\n" + text, {"r": ("R",)}, NodeConfig(app_event_bytes=2**20))
    right = nodes["r"]
    assert [(r.site, r.planned, r.granted) for r in right.raised_sites] == [(0xA1, 200_000, 200_000)]
    large = np.zeros(40_000, np.float32)  # 160 kB; a fill may have 64 KiB
    for site in (0xA1, 0xA2):
        right.deliver_inbound(one_fill(large, site), PeerId.from_name("x"))
    sim.run(for_ns=S)
    assert len(sim.events("x1")) == 1 and sim.events("x2") == []
    assert right.counters["wire.malformed"] == 1
    right.deliver_inbound(one_fill(np.zeros(60_000, np.float32), 0xA1), PeerId.from_name("x"))
    sim.run(for_ns=S)
    assert len(sim.events("x1")) == 1, "nor above what was planned"


# --- pressure -----------------------------------------------------------------------------------------

SLOW = main(
    "R",
    "",
    f"""  x: F32[1], s: PeerIdVec, t: Trigger = wire.Recv() {{{ONE}}}
  late: Trigger = syscall.Sleep<duration_ns=100000000>(t)
  y: F32[1] = syscall.GateDispatch(x, late)
  who: PeerIdVec = syscall.GateDispatch(s, late)
{emit("y")}{emit("who")}""",
)


class Loud:
    """A peer that sends as fast as it is let, and how often it was told to stop."""

    def __init__(self, sim: Simulation, name: str, node: Any) -> None:
        self.sim, self.node, self.peer = sim, node, PeerId.from_name(name)
        self.refused = self.notices = self.seq = 0
        node.peer_presence(self.peer, True, (Address.empty().with_peer(self.peer).to_bytes(),), epoch=1)
        poll = node.poll

        def listen(now_ns: int) -> list[steps.EngineStep]:
            out = poll(now_ns)
            for step in out:
                if isinstance(step, steps.SendEnvelope) and step.peer == self.peer:
                    (fill,) = envelope.decode(step.payload, caps.HOST_CAPS).fills
                    assert cbor.loads(fill.payload) == {"min_backoff_ns": S}
                    self.notices += 1
            return out

        node.poll = listen

    def send(self, count: int, floats: int = 1) -> None:
        for _ in range(count):
            self.seq += 1
            try:
                self.node.deliver_inbound(
                    one_fill(np.zeros(floats, np.float32), epoch=9, seq=self.seq), self.peer
                )
            except IngressFull:
                self.refused += 1


def test_a_flood_from_one_peer_leaves_the_others_served(net):
    config = NodeConfig(max_executions=4, ingress_entries=32, answer_entries=32, ingress_bytes=100_000)
    sim, nodes = net(head("L") + LEFT + SLOW, {"l": ("L",), "r": ("R",)}, config)
    right = nodes["r"]
    loud = Loud(sim, "loud", right)
    peak = 0
    for n in range(60):
        loud.send(500)
        peak = max(peak, right.counters["ingress.bytes"])
        nodes["l"].invoke("L", {"x": f32(n)})
        sim.run(for_ns=S // 10)
    sim.run(for_ns=3 * S)
    served = [e for e in sim.events("who") if e.value == (nodes["l"].peer_id,)]
    assert len(served) == 60, "each of the quiet peer's envelopes arrived"
    assert peak <= config.ingress_bytes
    assert loud.refused > 20_000
    assert 3 <= loud.notices <= 7, "told at most once a second"
    blocked = [s.step.peer for s in sim.seen if isinstance(s.step, steps.PeerBlocked)]
    assert blocked and set(blocked) == {loud.peer}, "who holds no more than others is left alone"
    assert right.counters["ingress.bytes"] == 0 and right.counters["executions.active"] == 0


def test_large_envelopes_of_one_peer_do_not_use_up_the_bytes(net):
    config = NodeConfig(max_executions=2, ingress_bytes=200_000)
    sim, nodes = net(head("L") + LEFT + SLOW, {"l": ("L",), "r": ("R",)}, config)
    loud = Loud(sim, "loud", nodes["r"])
    for n in range(20):
        loud.send(20, floats=5_000)
        assert nodes["r"].counters["ingress.bytes"] <= config.ingress_bytes
        nodes["l"].invoke("L", {"x": f32(n)})
        sim.run(for_ns=S // 10)
    sim.run(for_ns=S)
    assert len([e for e in sim.events("who") if e.value == (nodes["l"].peer_id,)]) == 20
    assert nodes["r"].counters["ingress.bytes"] == 0


def test_a_blocked_peer_is_heard_again_when_the_queue_has_drained(net):
    config = NodeConfig(max_executions=1, ingress_entries=8)
    sim, nodes = net("program Demo {module=Demo}\n" + SLOW, {"r": ("R",)}, config)
    loud = Loud(sim, "loud", nodes["r"])
    for _ in range(50):
        loud.send(4)
        sim.run(for_ns=S // 10)
    assert [s.step.peer for s in sim.seen if isinstance(s.step, steps.PeerBlocked)][:1] == [loud.peer]
    assert nodes["r"].counters["ingress.blocked"] > 0
    sim.run(for_ns=5 * S)
    before = len(sim.events("who"))
    loud.send(1)
    sim.run(for_ns=S)
    assert len(sim.events("who")) == before + 1


def test_a_peer_that_is_told_to_back_off_is_gated(net):
    left = LEFT.replace("wire.Send(x, to)", "wire.Send(x, ready)").replace(
        "  h:", "  ready: PeerIdVec = gate.BackoffGateTx(to)\n  h:"
    )
    sim, nodes = net(head("L") + left + RIGHT, {"l": ("L",), "r": ("R",)})
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    notice = Fill(suffix, cbor.dumps({"min_backoff_ns": 3 * S}), False, 0x0B)
    nodes["l"].deliver_inbound(envelope.encode(Envelope(fills=[notice])), nodes["r"].peer_id)
    for _ in range(4):
        nodes["l"].invoke("L", {"x": f32(1)})
        sim.at(sim.now_ns + S, lambda: None)
        sim.run(for_ns=S)
    assert len(sim.events("x")) == 1
    assert nodes["l"].counters["gates.backoff_tx.dropped"] == 3
    for broken in (b"", b"\xff", cbor.dumps({}), cbor.dumps({"min_backoff_ns": -1})):
        bad = Fill(suffix, broken, False, 0x0B)
        nodes["l"].deliver_inbound(envelope.encode(Envelope(fills=[bad])), nodes["r"].peer_id)
    sim.run(for_ns=S)
    assert nodes["l"].counters["wire.receive_errors"] == 4


def test_replies_to_a_peer_that_asked_for_patience_wait(net):
    sim, nodes = net(BOTH, {"hub": ("Server",), "far": ("Client",)})
    hub, far = nodes["hub"], nodes["far"]
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    notice = Fill(suffix, cbor.dumps({"min_backoff_ns": S}), False, 0x0B)
    far.deliver_inbound(envelope.encode(Envelope(fills=[notice])), hub.peer_id)
    start = sim.now_ns
    hub.invoke("Server", {"x": f32(3)})
    sim.run(until=lambda: bool(sim.events("missing")))
    assert S <= sim.now_ns - start < S + S // 10
    assert sim.events("missing")[0].value == () and far.counters["outbound.put_off"] == 1


def test_the_health_threshold_can_be_changed_while_it_runs(net):
    sim, nodes = net(BOTH, {"hub": ("Server",), "far": ("Client",)})
    hub = nodes["hub"]
    nodes["far"].deliver_inbound = lambda *args, **named: None
    assert hub.health_threshold == 5
    hub.health_threshold = 2
    for _ in range(2):
        assert not [s for s in sim.seen if isinstance(s.step, steps.PeerDown)]
        hub.invoke("Server", {"x": f32(3)})
        sim.at(sim.now_ns + 3 * S, lambda: None)
        sim.run(for_ns=3 * S)
    (down,) = [s.step for s in sim.seen if isinstance(s.step, steps.PeerDown)]
    assert down.reason == "unanswered"
