"""A program that says, asks and answers, all of it durably, and what nodes do with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from arrays import f32
from kinds_of_steps import of
from peers import HERE

from bb_edge import PeerId
from bb_edge.engine.steps import EngineStep, PersistOutbox
from bb_edge.node import Node
from bb_edge.wire import durable_rows
from bb_edge.wire.outbox import OutboxRecord, body_record
from bb_edge.wire.resend import EnvelopeKey

ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, durable=1"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101, durable=1"
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, durable=1"


def program(deadline_ns: int) -> str:
    """In the text notation; `deadline_ns` is for the answers to what it asks."""
    each = f"wire.answer_mode=each, deadline_ns={deadline_ns}"
    return f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], to: PeerIdVec, ask: PeerIdVec) -> () {{entry=1, partition=Main}}
  h: Trigger = wire.Send(x, to) {{{SAY}}}
  r: WireReqId = wire.SendReqBatched(x, ask, ask) {{{ASK}, {each}}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  syscall.AppEmit<name="missing">(missing)
  x2: F32[1], s2: PeerIdVec, r2: WireReqId = wire.RecvReq() {{{ASK}}}
  y2: F32[1] = Mul(x2, x2)
  k: Trigger = wire.SendResp(y2, s2, r2) {{{REPLY}}}
"""


def tells(times: int, pause_ns: int, least: int = 0) -> str:
    """A program whose rounds tell all that are there, and are put off where these are fewer than `least`."""
    return f"""
program Demo {{module=Demo, targets="Main", binding.Main.peers="peer_selector|bb.PresenceSelector|1"}}
function program.Main() -> () {{entry=1, partition=Main}}
  slot peers: peer_selector peer_class=Main
  round: I64[] = syscall.Repeat<times={times}, pause_ns={pause_ns}>()
  some: PeerIdVec = role.peer_selector.Sample<n=9, min={least}>(round) {{slot=peers, control_inputs=1}}
  x: F32[] = Cast<to=1>(round)
  h: Trigger = wire.Send(x, some) {{wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101, durable=1}}
"""


def rows(steps: Iterable[EngineStep]) -> list[bytes]:
    """All that the node asks to have in its outbox, bodies first."""
    asked = of(PersistOutbox, steps)
    bodies = {step.body_name: body_record(step.body) for step in asked if step.body}
    return [*bodies.values(), *(step.record for step in asked)]


def write_down(node: Node, steps: Iterable[EngineStep]) -> None:
    """The disk has taken all rows of the outbox that the node asked for."""
    for step in of(PersistOutbox, steps):
        node.persisted(step.token)


def kept(node: Node, now_ns: int) -> list[EngineStep]:
    """What the node says in four polls, with a disk that takes every row at once."""
    found: list[EngineStep] = []
    for number in range(4):
        steps = node.poll(now_ns + number)
        write_down(node, steps)
        found += steps
    return found


def greeted(node: Node, *peers: PeerId, now_ns: int = 1) -> Node:
    """The node, after each peer has said that it is there."""
    for peer in peers:
        node.peer_presence(peer, True, (HERE,), epoch=1)
    node.poll(now_ns)
    return node


def say(node: Node, to: tuple[PeerId, ...] = (), ask: tuple[PeerId, ...] = ()) -> None:
    """Starts the program, with only those peers that are named."""
    peers = {name: peers for name, peers in (("to", to), ("ask", ask)) if peers}
    node.invoke("Main", {"x": f32(1), **peers})


def records(steps: Iterable[EngineStep]) -> list[OutboxRecord]:
    """What the node asks to be written down before it leaves, each under the number that it has by then."""
    found = durable_rows.read(rows(steps), {})
    numbered = []
    for number, record in sorted(found.records.items()):
        peer = record.key.peer
        epoch = found.flows[peer].epoch if peer in found.flows else 0
        numbered.append(replace(record, key=EnvelopeKey(peer, epoch, found.numbers.get(number, 0))))
    return numbered
