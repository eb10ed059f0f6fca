"""A cause may run as long as something of it has begun, waits to begin, or is still to come."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from envelopes import durable_message
from peers import HERE, SELF, A, B
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.engine.net.routing import cause_of
from bb_edge.engine.steps import Journal, PersistOutbox
from bb_edge.node import Node
from bb_edge.wire import envelope
from bb_edge.wire.durable_rows import record_row
from bb_edge.wire.envelope import RESPONSE, Envelope
from bb_edge.wire.outbox import Cause, OutboxRecord
from bb_edge.wire.resend import EnvelopeKey

NUMBERS = itertools.count(1000)
"""Of records that `may_run` hands to nodes; far above those that nodes give."""

OUTBOX_PER_PEER = 64
EPOCH = 9
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101, durable=1"
TELL = "wire.wire_id=4, wire.site_ids=d1, wire.type_hashes=101, durable=1"
HEAR = f"""
program Demo {{module=Demo}}
function program.Main() -> () {{entry=1, partition=Main}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  late: Trigger = syscall.Sleep<duration_ns=1000000000>(x)
  y: F32[1] = syscall.GateDispatch(x, late)
  h: Trigger = wire.Send(y, s) {{{TELL}}}
"""
ASK = "wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, durable=1"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=b1, wire.type_hashes=101, durable=1"
ASKS = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], all: PeerIdVec) -> () {{entry=1, partition=Main}}
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=9000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  late: Trigger = syscall.Sleep<duration_ns=1000000000>(y)
  z: F32[1] = syscall.GateDispatch(y, late)
  syscall.AppEmit<name="z">(z)
"""
ROUNDS = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=Main}
  round: I64[] = syscall.Repeat<times=2, pause_ns=1000000000>()
  late: Trigger = syscall.Sleep<duration_ns=1000000000>(round)
  again: I64[] = syscall.GateDispatch(round, late)
  syscall.AppEmit<name="again">(again)
"""


@pytest.fixture
def make(compile_text):
    def made(text: str = HEAR, durable: bool = True, **config: int) -> Node:
        data = compile_text(text if durable else text.replace(", durable=1", ""))
        more: dict[str, Any] = {"seed": 3, "durable": durable}
        node = install(SELF, (HERE,), data, ["Main"], NodeConfig.edge().with_(**config), **more)
        for name in "abcdef":
            node.peer_presence(PeerId.from_name(name), True, (HERE,), epoch=1)
        node.poll(1)
        return node

    return made


def message(seq: int, site: int = 0xC1, **more: Any) -> bytes:
    return durable_message(site, seq, 1, epoch=EPOCH, **more)


def may_run(node: Node, *causes: Cause) -> list[bool]:
    """Whether each cause may still send: then a snapshot keeps the records of what it has sent.

    The node is given a record of each that is over already.
    """
    now_ns = node.inspect().node["now_ns"]
    nothing = envelope.encode(Envelope())
    records = {
        next(NUMBERS): OutboxRecord(EnvelopeKey(B, 0, 0), nothing, 4, cause, expires_wall_ns=1)
        for cause in causes
    }
    node.adopt_outbox([record_row(number, record) for number, record in records.items()], now_ns, 2)
    node.snapshot(now_ns)
    over = node.snapshot_written()
    return [number not in over for number in records]


def running(node: Node, up_to: int = 4, peer: PeerId = A) -> list[int]:
    """Which of the envelopes 1, 2, … of the peer may still send something."""
    numbers = range(1, up_to + 1)
    may = may_run(node, *(Cause(peer, EPOCH, seq) for seq in numbers))
    return [seq for seq, still in zip(numbers, may, strict=True) if still]


def hear(node: Node, now_ns: int, *numbers: int) -> list[int]:
    """Delivers the envelopes; gives back the tokens of their records."""
    for seq in numbers:
        node.deliver_inbound(message(seq), A)
    return [step.token for step in node.poll(now_ns) if isinstance(step, Journal)]


def test_only_durable_envelopes_are_causes():
    assert cause_of(A, Envelope(epoch=5, seq=6, base=1)) == Cause(A, 5, 6)
    assert cause_of(A, Envelope(epoch=5, seq=6)) is None


def test_from_its_arrival_to_the_end_of_its_execution(make):
    node = make()
    assert running(node) == []
    node.deliver_inbound(b"\xff\xff", A)  # no envelope at all is nothing's cause
    node.deliver_inbound(message(1), A)
    assert running(node) == [1], "it has arrived"
    (token,) = (step.token for step in node.poll(2) if isinstance(step, Journal))
    assert running(node) == [1], "it is being written down"
    node.persisted(token)
    assert running(node) == [1], "it waits for its poll"
    node.poll(3)
    assert running(node) == [1], "it runs"
    assert running(node, peer=PeerId.from_name("b")) == [], "and nothing of another peer"
    node.poll(4 * S)
    assert running(node) == [], "its execution has ended"


def test_what_could_not_be_written_down_is_over_until_it_comes_again(make):
    node = make()
    (token,) = hear(node, 2, 1)
    node.persist_failed(token, OSError("full"))
    assert running(node) == []


def test_what_waits_for_an_execution(make):
    node = make(max_executions=1)
    for token in hear(node, 2, 1, 2, 3):
        node.persisted(token)
    node.poll(3)
    assert len(node.inspect().ingress["entries"]) == 2
    assert running(node) == [1, 2, 3]


def test_what_the_host_asked_for_has_no_cause(make):
    node = make(ASKS, max_executions=1)
    for _ in range(3):
        node.invoke("Main", {"x": np.ones(1, np.float32), "all": (A,)})
    node.poll(2)
    assert len(node.inspect().ingress["entries"]) == 2
    assert running(node) == []


def test_a_journal_that_is_to_be_replayed(make):
    node = make()
    node.replay([JournalRecord(A, message(seq), 1).to_bytes() for seq in (2, 3)])
    assert running(node) == [2, 3]


def test_answers_that_wait_for_a_child(make):
    node = make(ASKS, max_children=1)
    peers = tuple(PeerId.from_name(name) for name in "abc")
    node.invoke("Main", {"x": np.ones(1, np.float32), "all": peers})
    for step in node.poll(2):
        if isinstance(step, PersistOutbox):
            node.persisted(step.token)
    (request,) = node.inspect().requests
    numbers = {peer: number for number, peer in request["numbers"].items()}
    for peer in peers:
        node.deliver_inbound(message(1, 0xB1, kind=RESPONSE, wire_req_id=numbers[str(peer)]), peer)
    for step in node.poll(3):
        if isinstance(step, Journal):
            node.persisted(step.token)
    node.poll(4)
    assert len(node.inspect().requests[0]["waiting"]) == 2
    assert [running(node, peer=peer) for peer in peers] == [[1]] * 3


def test_a_message_that_waits_for_room(make):
    node = make(outbox_records=OUTBOX_PER_PEER)
    numbers = range(1, OUTBOX_PER_PEER + 3)
    for seq in numbers:
        for token in hear(node, seq * 2 * S, seq):
            node.persisted(token)
    for more in (1, 2):
        node.poll((numbers[-1] + more) * 2 * S)
    assert len(node.inspect().outbox["waiting"]) == 2 and not node.inspect().executions
    assert running(node, numbers[-1]) == list(numbers[-2:])


def test_rounds_that_run_or_come(make):
    node = make(ROUNDS)

    def rounds() -> dict[str, Any]:
        (row,) = node.inspect().rounds
        return row

    own_number = rounds()["number"]

    def may(round_: int, attempt: int = 1, number: int = own_number) -> bool:
        (still,) = may_run(node, Cause(SELF, number, round_ << 32 | attempt))
        return still

    assert may(1) and may(1, 2) and may(2)
    node.poll(1_500_000_000)
    node.poll(1_500_000_001)
    while rounds()["round"] == 1:
        node.poll(node.next_deadline_ns() or 0)
    assert not may(1) and not may(1, 9) and may(2)
    assert not may(2, number=own_number + 1), "no such round, and nothing runs for it"
    (others,) = may_run(node, Cause(A, own_number, 2 << 32 | 1))
    assert not others, "a peer's envelope, with the number that the rounds here have for an epoch"
    while not rounds()["finished"]:
        node.poll(node.next_deadline_ns() or 0)
    assert not may(2)


def test_an_envelope_before_and_after_its_journal_is_written(make):
    node = make()
    node.deliver_inbound(message(1), A)
    assert running(node) == [1]
    (token,) = [step.token for step in node.poll(2) if isinstance(step, Journal)]
    assert running(node) == [1]
    node.persisted(token)
    for now_ns in (3, 4, 4 * S, 4 * S + 1):
        node.poll(now_ns)
    assert running(node) == []
