"""Nodes that hold something of everything, at many moments: what a snapshot has to bring back.

Each function of `NODES` plays a program (plays.py); what it draws decides how much there is of what.
Those of components, and of ops with state, stand in busy_components.py.
"""

from __future__ import annotations

from arrays import f32
from busy_components import (
    bootstraps,
    calls,
    claims,
    later_answers,
    staged_bootstraps,
    stateful_ops,
)
from envelopes import durable_message, fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from plays import Play, installer
from times import MS, S
from wire_ops import ASK, ASK_ALL, REPLY, REPLY_ALL, SAY

from bb_edge import PeerId
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.engine.steps import (
    Journal,
    PersistOutbox,
    SendEnvelope,
)
from bb_edge.ir.address import Address
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.envelope import REQUEST, RESPONSE, Ack, Envelope, Fill, RttReport


def patience(wait_ns: int) -> bytes:
    """An envelope that asks to be sent nothing for a while."""
    suffix = Address.empty().with_component(0, "Backoff").to_bytes()
    notice = Fill(suffix, cbor.dumps({"min_backoff_ns": wait_ns}), False, 0x0B)
    return envelope.encode(Envelope([notice]))


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


def durable_sends(play: Play) -> None:
    """Durable sends that are asked for, failed, written, waiting for room or a snapshot; a journal."""
    play.begin(DURABLE, durable=True)
    play.greeted(A, B, C)
    for value in range(play.draw(1, 2, 66)):  # 64 to a peer have room
        play.node.invoke("Main", {"x": f32(value), "to": (A,)})
    play.node.invoke("Main", {"x": f32(1), "to": (A, B), "ask": (A, C)})
    steps = play.poll(2)
    play.moment(2)
    for step in of(PersistOutbox, steps):
        match play.draw("written", "failed", "later"):
            case "written":
                play.node.persisted(step.token)
            case "failed":
                play.node.persist_failed(step.token, OSError("full"))
    play.poll(3)
    play.moment(4)
    play.node.snapshot_written()
    steps = play.poll(5)
    for seq in (1, 2):
        deadline_ns = play.draw(0, 2 * S)
        asked = {"kind": REQUEST, "wire_req_id": 70 + seq, "remaining_deadline_ns": deadline_ns}
        play.node.deliver_inbound(durable_message(0xA1, seq, **asked), A, play.draw(None, HERE))
    steps += play.poll(6)
    play.moment(6)
    for step in of(Journal, steps)[: play.draw(1, 2)]:
        play.node.persisted(step.token)
    play.poll(7)
    for step in of(SendEnvelope, steps):
        sent = envelope.decode(step.payload, EDGE_CAPS)
        play.node.deliver_inbound(envelope.encode(Envelope(acks=(Ack(sent.epoch, sent.seq),))), step.peer)
    play.poll(8)
    play.moment(8)


def replayed_journal(play: Play) -> None:
    """Records of a journal, which polls deliver one after another."""
    play.begin(DURABLE, durable=True, max_executions=play.draw(1, 2, 16))
    asked = [durable_message(0xA1, seq, seq, REQUEST, wire_req_id=60 + seq) for seq in range(1, 4)]
    play.node.replay([JournalRecord(C, data, 1, HERE).to_bytes() for data in asked])
    for now_ns in range(1, 6):
        play.poll(now_ns)
    play.moment(6)


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
  syscall.AppEmit<name="missing">(missing)
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


def requests(play: Play) -> None:
    """Two requests of one execution, answers in any order, and two durable envelopes."""
    settings = {"cycle_op_budget": play.draw(1, 3, 1000), "max_children": play.draw(1, 2), "durable": True}
    play.begin(REQUESTS, targets=("Main", "Hear"), **settings)
    play.greeted(A, B, C)
    play.node.invoke("Main", {"x": f32(5), "all": (A, B, C)})
    now_ns, asked, answered = 1, dict[tuple[int, PeerId], int](), False
    while (due := play.node.next_deadline_ns()) is not None and due <= 10 * S:
        now_ns = max(now_ns + 1, due)
        steps = play.poll(now_ns)
        for step in of(Journal, steps):
            play.node.persisted(step.token)
        for step in of(SendEnvelope, steps):
            sent = envelope.decode(step.payload, EDGE_CAPS)
            if sent.kind == REQUEST:
                asked[sent.fills[0].dest_suffix[-1], step.peer] = sent.wire_req_id
        if len(asked) == 6 and not answered:
            answered = True
            replies = {0xA1: 0xB1, 0xA2: 0xB2}
            open_asks = sorted(asked)
            for seq in range(1, 1 + play.draw(3, 6)):
                site, peer = open_asks.pop(play.draw(*range(len(open_asks))))
                number = asked[site, peer]
                reply = durable_message(replies[site], seq, seq - 1, RESPONSE, wire_req_id=number)
                play.node.deliver_inbound(reply, peer)
            for seq, deadline_ns in ((11, 3 * S), (12, 0)):
                said = durable_message(0xC1, seq, 7, remaining_deadline_ns=deadline_ns)
                play.node.deliver_inbound(said, A)


# --- rounds of several nodes ---------------------------------------------------------------------------

ROUNDS = f"""
program Demo {{module=Demo, BINDINGS}}
function program.Server() -> () {{entry=1, partition=Server}}
  slot p: peer_selector peer_class=Client
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times=3, pause_ns=4000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[2] = Constant<value=F32[2]{{1.0, 1.0}}>()
  x: F32[2] = Add(ones, ten)
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=900000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[2], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  late: Trigger = syscall.Sleep<duration_ns=3000000>(y)
  v: F32[2] = syscall.GateDispatch(y, late)
  w: F32[2] = Add(v, x)
  c: CommandId = role.aggregator.Contribute(w, "", who, round) {{slot=agg}}
  t: Tensor, n: F32[] = role.aggregator.Aggregate(closed) {{slot=agg, control_inputs=1}}
  syscall.AppEmit<name="t">(t)
  syscall.AppEmit<name="missing">(missing)
function program.Client() -> () {{entry=1, partition=Client}}
  x0: F32[2], s0: PeerIdVec, r0: WireReqId = wire.RecvReq() {{{ASK}}}
  x: F32[2], s: PeerIdVec, r: WireReqId = gate.DedupGateRx(x0, s0, r0)
  late: Trigger = syscall.Sleep<duration_ns=2000000>(x)
  z: F32[2] = syscall.GateDispatch(x, late)
  y: F32[2] = Mul(z, z)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
""".replace(
    "BINDINGS",
    'binding.Server.p="peer_selector|bb.PresenceSelector|1", binding.Server.agg="aggregator|bb.FedAvg|2"',
)


def rounds(play: Play) -> None:
    """A server and two clients, one of which may come back."""
    server = play.draw(SELF, A)
    roles = {peer: "Server" if peer == server else "Client" for peer in (SELF, A, B)}
    play.begin(ROUNDS, targets=(roles[SELF],))
    others = {peer: installer(ROUNDS, targets=(roles[peer],), peer=peer)() for peer in (A, B)}
    for one in (play.node, *others.values()):
        for other in (play.node, *others.values()):
            if one is not other:
                one.peer_presence(other.peer_id, True, (HERE,), epoch=other.epoch, classes=other.classes)
    for now_ns in range(MS, 70 * MS, MS):
        for peer in roles:
            node = others.get(peer, play.node)
            if (due := node.next_deadline_ns()) is None or due > now_ns:
                continue
            found = node.poll(now_ns) if peer in others else play.poll(now_ns)
            if peer in others:
                play.take(step for step in found if not isinstance(step, SendEnvelope))
            for step in of(SendEnvelope, found):
                others.get(step.peer, play.node).deliver_inbound(step.payload, peer)


# --- queues, and what is known of peers ------------------------------------------------------------------

QUEUES = f"""
program Demo {{module=Demo}}
function program.Main(to: PeerIdVec) -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=10000000>(x)
  y: F32[1] = syscall.GateDispatch(x, late)
  syscall.AppEmit<name="y">(y)
  syscall.AppEmit<name="s">(s)
  syscall.AppEmit<name="to">(to)
function program.Reply() -> () {{entry=1, partition=Reply}}
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Mul(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
"""


def queues(play: Play) -> None:
    """Envelopes, notices and invokes that wait, replies put off, and all tables about peers."""
    play.begin(QUEUES, targets=("Main", "Reply"), max_executions=play.draw(1, 2))
    play.poll(1)
    limits = play.draw({}, {"limits": [1000, 2, 300, 400]}, {"limits": [0, 0, 0, 0]})
    play.node.peer_presence(A, True, (HERE,), limits, epoch=5, classes=("Main",))
    play.node.peer_presence(B, True, (HERE,), epoch=6)
    play.node.peer_failed(play.draw(A, B))
    for seq, (peer, value) in enumerate(((A, 1), (B, 2), (B, 3)), 1):
        said = Envelope(
            [fill(0xC1, value)],
            remaining_deadline_ns=play.draw(0, S, 15 * MS),
            epoch=9,
            seq=seq,
            rtt_reports=play.draw((), (RttReport(3, 1, 2, 40, 50, 6),)),
        )
        play.node.deliver_inbound(envelope.encode(said), peer, play.draw(None, HERE))
    play.poll(2)
    play.node.invoke("Main", {"to": (A, B)})
    play.moment(3)
    play.node.deliver_inbound(patience(play.draw(S, 3 * S)), play.draw(A, B))
    play.poll(4)
    for now_ns in (30 * MS, 60 * MS):
        play.poll(now_ns)
    for peer in (A, B):
        asked = Envelope([fill(0xA1, 3)], REQUEST, 77, 5 * S, epoch=9, seq=4)
        play.node.deliver_inbound(envelope.encode(asked), peer)
    for now_ns in (90 * MS, 120 * MS):
        play.poll(now_ns)
    for k in range(play.draw(1, 8)):
        play.node.peer_failed(B)
        play.poll(130 * MS + k)
    play.node.peer_presence(A, False, epoch=5)
    play.poll(140 * MS)
    play.until(10 * S, 140 * MS)


NODES = (
    *(durable_sends, replayed_journal, requests, rounds, stateful_ops, later_answers, claims),
    *(bootstraps, staged_bootstraps, calls, queues),
)
