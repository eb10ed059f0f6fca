"""A durable request that lacks an answer: who is missing is told once, the same before and after a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from durable_program import program
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.steps import AppEvent, Journal, PersistOutbox, RequestClosed, SendEnvelope, SnapshotWanted
from bb_edge.ir.address import site_suffix
from bb_edge.node import Node
from bb_edge.wire import envelope
from bb_edge.wire.codecs import encode_value
from bb_edge.wire.envelope import RESPONSE, Envelope, Fill

REASON = "a durable request that lacks an answer"


@pytest.fixture
def make(compile_text):
    data = compile_text(program(900 * S))

    def made(snapshot: bytes | None = None, now_ns: int = 0) -> Node:
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), data, ["Main"], NodeConfig.edge(), **more)

    return made


def up(node: Node, now_ns: int, *peers: PeerId) -> list[steps.EngineStep]:
    for peer in peers:
        node.peer_presence(peer, True, (HERE,), epoch=1)
    return node.poll(now_ns)


def keep(node: Node, now_ns: int) -> bytes:
    data = node.snapshot(now_ns)
    node.snapshot_written()
    return data


def ask(node: Node) -> tuple[bytes, list[bytes], dict[PeerId, int]]:
    """A and B are asked, at times 1 to 5: the snapshot that holds who asks, the outbox, the request ids."""
    up(node, 1, A, B)
    node.invoke("Main", {"x": np.ones(1, np.float32), "ask": (A, B)})
    written = of(PersistOutbox, node.poll(2))
    for step in written:
        node.persisted(step.token)
    assert [s.reason for s in of(SnapshotWanted, node.poll(3))] == ["a durable request"]
    data = keep(node, 4)
    out = [(s.peer, envelope.decode(s.payload, node.config.caps)) for s in of(SendEnvelope, node.poll(5))]
    return data, [step.record for step in written], {peer: m.wire_req_id for peer, m in out if m.wire_req_id}


def answer(node: Node, peer: PeerId, req_id: int, now_ns: int) -> tuple[list[bytes], list[steps.EngineStep]]:
    """It comes and is journaled: the records, and all that follows."""
    type_hash, payload = encode_value(np.full(1, 3, np.float32))
    fills = [Fill(site_suffix(0xB1), payload, False, type_hash)]
    made = Envelope(fills, RESPONSE, wire_req_id=req_id, epoch=9, seq=1, base=1)
    node.deliver_inbound(envelope.encode(made), peer)
    found = node.poll(now_ns)
    kept = of(Journal, found)
    for step in kept:
        node.persisted(step.token)
    return [step.record for step in kept], [*found, *node.poll(now_ns + 1), *node.poll(now_ns + 2)]


def missing(found: list[steps.EngineStep]) -> list[object]:
    return [step.value for step in of(AppEvent, found)]


def test_it_is_over_once_a_snapshot_says_who_is_missing(make):
    node = make()
    _, _, ids = ask(node)
    _, found = answer(node, A, ids[A], 10)
    node.peer_presence(B, False, epoch=1)
    found += [*node.poll(20), *node.poll(21)]
    assert [s.reason for s in of(SnapshotWanted, found)] == [REASON]
    assert not of(AppEvent, found) and not of(RequestClosed, found)
    keep(node, 22)
    assert node.next_deadline_ns() == 0
    found = node.poll(23)
    assert missing(found) == [(B,)]
    assert [(s.asked, s.answered, s.reason) for s in of(RequestClosed, found)] == [(2, 1, "all settled")]


def test_who_was_told_missing_is_missing_after_a_crash_though_it_is_back(make):
    node = make()
    before, outbox, ids = ask(node)
    journal, _ = answer(node, A, ids[A], 10)
    node.peer_presence(B, False, epoch=1)
    node.poll(20)
    data = keep(node, 21)
    assert missing(node.poll(22)) == [(B,)]

    again = make(data, 100)
    again.adopt_outbox(outbox, 100, 100)
    assert again.next_deadline_ns() == 0
    found = up(again, 101, A, B)
    records, more = answer(again, B, ids[B], 102)
    assert records and missing([*found, *more]) == [(B,)]

    # What was not told before the crash is still open, and B's answer counts.
    older = make(before, 200)
    older.adopt_outbox(outbox, 200, 200)
    older.replay(journal)
    found = up(older, 201, A, B)
    _, more = answer(older, B, ids[B], 202)
    assert missing([*found, *more]) == [()]


def test_an_answer_that_comes_while_it_waits_for_its_snapshot_is_too_late(make):
    node = make()
    _, _, ids = ask(node)
    answer(node, A, ids[A], 10)
    node.peer_presence(B, False, epoch=1)
    node.poll(20)
    up(node, 21, B)
    records, found = answer(node, B, ids[B], 22)
    assert records and not of(AppEvent, found)
    assert node.counters["ingress.late_answers"] == 1
    keep(node, 30)
    assert missing(node.poll(31)) == [(B,)]


def test_a_snapshot_that_was_taken_before_it_closed_does_not_hold_it(make):
    node = make()
    _, _, ids = ask(node)
    answer(node, A, ids[A], 10)
    node.snapshot(11)
    node.peer_presence(B, False, epoch=1)
    found = node.poll(20)  # against the rule that there is no poll meanwhile
    node.snapshot_written()
    found += node.poll(21)
    assert [s.reason for s in of(SnapshotWanted, found)] == [REASON, REASON], "asked for once more"
    assert not of(AppEvent, found)
    keep(node, 22)
    assert missing(node.poll(23)) == [(B,)]


def test_with_all_answers_nothing_waits(make):
    node = make()
    _, _, ids = ask(node)
    _, first = answer(node, A, ids[A], 10)
    _, second = answer(node, B, ids[B], 20)
    assert not of(AppEvent, first) and missing(second) == [()]
    assert not of(SnapshotWanted, [*first, *second])
