"""Each table of a node, filled by hand, stands in the restored node as in the one that was written down."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import numpy as np
import pytest
from snapshots import body_of, resealed, stands_in

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.engine.steps import AppEvent, Journal, PersistOutbox, SendEnvelope
from bb_edge.node import Node

S = 1_000_000_000
SELF, OTHER = PeerId.from_name("node"), PeerId.from_name("other")
HERE = b"\xe2\x01" + bytes(8)
SAY = "wire.wire_id=3, wire.site_ids=c1, wire.type_hashes=101"
TEXT = f"""
program Demo {{module=Demo}}
function program.Main(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Main}}
  h: Trigger = wire.Send(x, to) {{{SAY}, durable=1}}
  said: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="ring">(said)
"""


@pytest.fixture
def make(compile_text):
    """`make(peer, snapshot)`: a node whose driver keeps things."""
    data = compile_text(TEXT)

    def made(peer: PeerId = SELF, snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        config = NodeConfig.edge()
        return install(
            peer, (HERE,), data, ["Main"], config, seed=3, durable=True, snapshot=snapshot, now_ns=now_ns
        )

    return made


def again(make, node: Node, now_ns: int, but: Collection[str] = ()) -> Node:
    """The restored node; every part of it, `but` these, would be written as it was."""
    before = node.snapshot(now_ns)
    restored: Node = make(node.peer_id, before, now_ns)
    stands_in(restored, before, now_ns, but)
    return restored


def envelopes(make, count: int) -> list[bytes]:
    """Durable envelopes of the other node."""
    other = make(OTHER)
    other.peer_presence(SELF, True, (HERE,), epoch=1)
    other.poll(1)
    for k in range(count):
        other.invoke("Main", {"x": np.full(1, k, np.float32), "to": (SELF,)})
    for step in other.poll(2):
        if isinstance(step, PersistOutbox):
            other.persisted(step.token)
    return [bytes(s.payload) for s in other.poll(3) if isinstance(s, SendEnvelope)]


def test_who_was_asked_to_slow_down_comes_back_and_the_times_move(make):
    body = body_of(make().snapshot(2 * S))
    body["neighbours"]["noticed"] = [[OTHER.to_bytes(), 1 * S, 1]]
    for now_ns, last_ns in ((2 * S, 1 * S), (102 * S, 101 * S)):
        restored = make(SELF, resealed(body), now_ns)
        found = body_of(restored.snapshot(now_ns))["neighbours"]["noticed"]
        assert found == [[OTHER.to_bytes(), last_ns, 1]]


def test_what_has_arrived_and_no_poll_has_seen_comes_back(make):
    (data,) = envelopes(make, 1)
    node = make()
    node.poll(1)
    node.deliver_inbound(data, OTHER, HERE)
    node.peer_presence(OTHER, True, (HERE,), epoch=5)
    restored = again(make, node, 2)
    (keep,) = [s for s in restored.poll(3) if isinstance(s, Journal)]
    restored.persisted(keep.token)
    restored.poll(4)
    assert [row.tolist() for row in restored.ring("ring")] == [[0.0]]


def test_what_is_held_or_waits_for_its_poll_is_delivered_once(make):
    first, second = envelopes(make, 2)
    node = make()
    node.poll(1)
    node.deliver_inbound(first, OTHER)
    (keep,) = [s for s in node.poll(2) if isinstance(s, Journal)]
    node.persisted(keep.token)
    node.deliver_inbound(second, OTHER)
    held = [s for s in node.poll(3) if isinstance(s, Journal)]  # the first is delivered, the second held
    assert len(held) == 1 and node.inspect().journal["held"]
    restored = again(make, node, 4, but=("ingress",))  # what was held counts as accepted
    restored.poll(5)
    restored.deliver_inbound(second, OTHER)
    found = [*restored.poll(6), *restored.poll(10 * S)]
    assert not [s for s in found if isinstance(s, Journal)], "its number is taken"
    assert [row.tolist() for row in restored.ring("ring")] == [[0.0], [1.0]]
    assert [s for s in found if isinstance(s, SendEnvelope)], "and it is acknowledged"


def test_a_journal_that_is_being_replayed_comes_back(make):
    node = make()
    node.replay([JournalRecord(OTHER, data, 1).to_bytes() for data in envelopes(make, 3)])
    restored = again(make, node, 1)
    restored.poll(2)
    assert [row.tolist() for row in restored.ring("ring")] == [[0.0], [1.0], [2.0]]


def test_records_that_are_being_written_are_asked_for_again_under_their_tokens(make):
    node = make()
    node.peer_presence(OTHER, True, (HERE,), epoch=1)
    node.poll(1)
    for k in range(70):  # more than there is room for
        node.invoke("Main", {"x": np.full(1, k, np.float32), "to": (OTHER,)})
    asked = {s.token: s.record for s in node.poll(2) if isinstance(s, PersistOutbox)}
    assert len(asked) == 64
    restored = again(make, node, 3, but=("core",))  # asking is counted
    restored.adopt_outbox(asked.values(), 3, 3)  # some of them had reached the disk
    found = {s.token: s.record for s in restored.poll(4) if isinstance(s, PersistOutbox)}
    assert found == asked
    assert restored.counters["outbound.waiting"] == 6


def test_a_node_that_keeps_things_reads_the_snapshot_of_one_that_did_not(compile_text):
    plain = compile_text(TEXT.replace(", durable=1", ""))
    node = install(SELF, (HERE,), plain, ["Main"], seed=1)
    node.poll(1)
    for durable in (True, False):
        one = install(SELF, (HERE,), plain, ["Main"], seed=1, durable=durable, snapshot=node.snapshot(2))
        assert not [s for s in one.poll(3) if isinstance(s, steps.OpFailed)]
        two = install(SELF, (HERE,), plain, ["Main"], seed=1, snapshot=one.snapshot(4))
        two.poll(5)


KEEPER = """
program Demo {module=Demo, binding.Main.i="index|bb.FlatIndex|1"}
function program.Main(q: F32[2]) -> () {entry=1, partition=Main}
  slot i: index
  n: I64[] = syscall.Repeat<times=9, pause_ns=1000000>()
  t: Trigger = syscall.Interval<period_ns=1000000000>()
  syscall.AppEmit<name="t">(t)
"""


@pytest.fixture
def keeper(compile_text):
    """`keeper(snapshot, now_ns)`: a node with a component, a round and a clock."""
    data = compile_text(KEEPER)

    def made(snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        return install(SELF, (HERE,), data, ["Main"], seed=3, snapshot=snapshot, now_ns=now_ns)

    return made


def test_a_clock_ticks_once_a_period_on_the_time_of_the_restored_node(keeper):
    node = keeper()
    for now_ns in (1, S + 1, 2 * S + 1):
        node.poll(now_ns)
    then_ns = 102 * S + S // 2
    restored = keeper(node.snapshot(2 * S + S // 2), then_ns)
    ticks = []
    for now_ns in range(then_ns, then_ns + 5 * S, S // 10):
        ticks += [now_ns - then_ns for s in restored.poll(now_ns) if isinstance(s, AppEvent)]
    assert len(ticks) == 5
    assert {b - a for a, b in itertools.pairwise(ticks)} == {S}
