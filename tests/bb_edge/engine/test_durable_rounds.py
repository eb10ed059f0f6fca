"""A round that runs again after a crash: what it told before keeps its number, whichever attempt told it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from durable_program import records, rows, tells
from envelopes import durable_message
from kinds_of_steps import of
from peers import HERE, SELF, A, B
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine.steps import (
    EngineStep,
    Journal,
    OutboundDropped,
    PersistOutbox,
    RoundBackedOff,
    RoundsCompleted,
    SendEnvelope,
)
from bb_edge.node import Node
from bb_edge.wire.envelope import Ack, Envelope, decode, encode
from bb_edge.wire.outbox import OutboxRecord

TELLS = tells(1, 1_000_000)


class Life:
    """One life of a node, from what an earlier one left in its outbox."""

    def __init__(self, data: bytes, outbox: tuple[bytes, ...] = (), now_ns: int = 0, **limits: int) -> None:
        more: dict[str, Any] = {"seed": 3, "durable": True}
        config = replace(NodeConfig.edge(), **limits)
        self.node: Node = install(SELF, (HERE,), data, ["Main"], config, **more)
        self.node.adopt_outbox(outbox, now_ns, now_ns)
        self.now_ns = now_ns

    def up(self, *peers: PeerId) -> None:
        for peer in peers:
            self.node.peer_presence(peer, True, (HERE,), epoch=1, classes=("Main",))

    def run(self) -> list[EngineStep]:
        """Ten polls, a second from one to the next."""
        found: list[EngineStep] = []
        for _ in range(10):
            self.now_ns += S
            steps = self.node.poll(self.now_ns)
            for step in of(PersistOutbox, steps):
                self.node.persisted(step.token)
            found += steps
        return found

    def told_nobody(self) -> None:
        assert {(step.round, step.reason) for step in of(RoundBackedOff, self.run())} == {(1, "nobody told")}


@pytest.fixture
def begin(compile_text):
    data = compile_text(TELLS)
    return lambda *outbox: Life(data, outbox)


def told(found: list[EngineStep]) -> list[PeerId]:
    """Whom the round tells with a new number; it is over."""
    assert of(RoundsCompleted, found)
    return [record.key.peer for record in records(found)]


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("before", [0, 1], ids=["told at once", "told by a later attempt"])
@pytest.mark.parametrize("after", [0, 1], ids=["finds it at once", "finds it in a later attempt"])
def test_a_peer_is_told_of_a_round_under_one_number(begin, before, after, snapshots):
    first = begin()
    if before:
        first.told_nobody()
    first.up(A)
    again = begin(*rows(first.run()))
    if after:
        again.told_nobody()
    if snapshots:
        again.node.snapshot(again.now_ns)
        assert again.node.snapshot_written() == (), "the round is still to come"
    again.up(A)
    assert told(again.run()) == []
    assert again.node.counters["outbound.reused"] == 1


def test_what_a_round_told_is_needed_until_it_has_run_again_though_its_peer_has_it(begin):
    first = begin()
    first.up(A)
    found = first.run()
    sent = decode(of(SendEnvelope, found)[-1].payload, first.node.config.caps)  # it is repeated
    again = begin(*rows(found))
    again.told_nobody()
    again.node.deliver_inbound(encode(Envelope(acks=(Ack(sent.epoch, sent.seq),))), A)
    again.node.poll(again.now_ns)
    assert again.node.needs_row(1) and not again.node.needs_row(2)
    again.up(A)
    assert told(again.run()) == []
    assert not again.node.needs_row(1)


def test_who_is_up_only_now_is_told_too(begin):
    first = begin()
    first.up(A)
    again = begin(*rows(first.run()))
    again.told_nobody()
    again.up(A, B)
    assert told(again.run()) == [B]


def test_a_report_that_finds_no_room_is_told_with_its_round(compile_text):
    config = replace(NodeConfig.edge(), outbox_records=1)
    node: Node = install(SELF, (HERE,), compile_text(tells(3, 0)), ["Main"], config, seed=3, durable=True)
    found: list[EngineStep] = []
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Main",))
    node.poll(0)
    for _ in range(node.config.health_threshold):
        node.peer_failed(A)  # the next ones are for a peer that is away
    for now_s in range(1, 20):
        found += node.poll(now_s * S)
    dropped = of(OutboundDropped, found)
    assert [(step.durable, step.round) for step in dropped] == [(True, 2), (True, 3)]


def test_a_record_names_the_round_as_older_versions_wrote_it(begin):
    life = begin()
    life.told_nobody()
    life.up(A)
    (record,) = records(life.run())
    assert record.cause is not None and record.cause.seq == 1 << 32 | 1


def test_a_record_of_an_older_version_s_later_attempt_goes_with_its_round(begin):
    first = begin()
    first.up(A)
    (record,) = records(first.run())
    old = OutboxRecord(record.key, record.encoded, record.wire_id, record.cause._replace(seq=1 << 32 | 7), 1)
    again = begin(old.to_bytes())
    (anew,) = of(PersistOutbox, again.node.poll(0))
    assert anew.peer == A, "it is written down as this version does"
    again.node.persisted(anew.token)
    again.node.snapshot(0)
    assert again.node.snapshot_written() == (record.key,), "it was written down anew"
    again.node.snapshot(0)
    assert again.node.snapshot_written() == (), "its round is still to come"
    again.up(B)
    assert told(again.run()) == [B]
    again.node.snapshot(again.now_ns)
    assert 1 in again.node.snapshot_written()


def large(text: str) -> str:
    """The same with a value that is a body of its own."""
    shape = "  many: I64[1] = Constant<value=I64[1]{2000}>()\n"
    return text.replace("  h: Trigger", f"{shape}  z: F32[2000] = Expand(x, many)\n  h: Trigger").replace(
        "Send(x, some)", "Send(z, some)"
    )


def two_readings(compile_text, text: str = TELLS) -> tuple[bytes, bytes]:
    """The program as it reads at first, and as it reads after a crash."""
    cast = "  x: F32[] = Cast<to=1>(round)"
    reads, reads_anew = (
        compile_text(text.replace(cast, f"{cast.replace('x', 'y')}\n  x: F32[] = {op}(y)"))
        for op in ("Abs", "Neg")
    )
    return reads, reads_anew


@pytest.mark.parametrize("size", [str, large])
def test_a_round_that_runs_again_tells_what_it_reads_anew(size, compile_text):
    reads, reads_anew = two_readings(compile_text, size(TELLS))
    first = Life(reads)
    first.up(A)
    (before,) = records(taken := first.run())
    again = Life(reads_anew, rows(taken))
    again.up(A)
    (after,) = records(found := again.run())
    assert (before.body, before.encoded) != (after.body, after.encoded) and before.cause == after.cause
    assert bool(before.body_name) is (size is large)
    assert again.node.counters["outbound.told_anew"] == 1
    assert "outbound.reused" not in again.node.counters
    third = Life(reads_anew, rows(taken) + rows(found))
    third.up(A)
    assert told(third.run()) == [], "the last that it told is the same"
    assert third.node.counters["outbound.reused"] == 1


RELAY = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=Main}
  x: F32[1], s: PeerIdVec = wire.Recv() {wire.wire_id=2, wire.site_ids=c1, wire.type_hashes=101, durable=1}
  y: F32[1] = Abs(x)
  h: Trigger = wire.Send(y, s) {wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101, durable=1}
"""


def test_what_an_envelope_set_off_is_told_once_whatever_it_is_by_now(compile_text):
    first = Life(compile_text(RELAY))
    first.up(A)
    first.run()
    first.node.deliver_inbound(durable_message(0xC1, 1), A)
    (journal,) = of(Journal, first.node.poll(first.now_ns))
    first.node.persisted(journal.token)
    found = first.run()
    assert len(records(found)) == 1
    again = Life(compile_text(RELAY.replace("Abs", "Neg")), rows(found), first.now_ns)
    again.node.replay([journal.record])
    again.up(A)
    assert not records(again.run())
    assert again.node.counters["outbound.reused"] == 1
    assert "outbound.told_anew" not in again.node.counters


def test_a_reading_that_waited_for_room_is_told_once_the_one_before_the_crash_has_left(compile_text):
    """Acknowledged meanwhile or not, the older one is another reading."""
    reads, reads_anew = two_readings(compile_text)
    first = Life(reads)
    first.up(A)
    taken = rows(first.run())
    again = Life(reads_anew, taken, outbox_records=1)
    again.up(A)
    found = again.run()
    assert again.node.counters["outbound.waiting"] == 1 and not records(found)
    for step in of(SendEnvelope, found):
        sent = decode(step.payload, again.node.config.caps)
        again.node.deliver_inbound(encode(Envelope(acks=(Ack(sent.epoch, sent.seq),))), step.peer)
    again.node.poll(again.now_ns)
    again.node.snapshot(again.now_ns)
    again.node.snapshot_written()
    (anew,) = records(again.run())
    assert anew.cause is not None and anew.cause.round == 1
    assert "outbound.reused" not in again.node.counters


def test_a_reading_that_finds_no_room_beside_the_one_before_the_crash_is_told_as_lost(compile_text):
    """Its peer is away: it does not wait, and the older one goes on as it was."""
    reads, reads_anew = two_readings(compile_text)
    first = Life(reads)
    first.up(A)
    again = Life(reads_anew, rows(first.run()), outbox_records=1)
    again.up(A)
    again.node.poll(again.now_ns)
    for _ in range(again.node.config.health_threshold):
        again.node.peer_failed(A)
    (dropped,) = of(OutboundDropped, again.run())
    assert (dropped.durable, dropped.round) == (True, 1)
    assert not again.node.counters.keys() & {"outbound.reused", "outbound.told_anew"}
