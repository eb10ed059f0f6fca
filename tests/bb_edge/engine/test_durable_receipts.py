"""Which durable envelopes are taken, and what becomes of those that are not (docs/design/durability.md)."""

from __future__ import annotations

from typing import Any

import pytest
from durable_program import greeted, program, records
from envelopes import durable_message, fill
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from snapshots import body_of, sealed
from times import S

from bb_edge import NodeConfig, install
from bb_edge.engine.net.journal import JournalRecord
from bb_edge.engine.steps import IngressDropped, IngressPutOff, Journal, SendEnvelope, StorageFailed
from bb_edge.ir.address import site_suffix
from bb_edge.node import Node
from bb_edge.wire import cbor, envelope
from bb_edge.wire.envelope import REQUEST, Ack, Envelope, Fill
from bb_edge.wire.programs import ProgramClaim


@pytest.fixture
def make(compile_text):
    named = 'program Demo {module=Demo, program="0123456789abcdef0123456789abcdef"}'
    data = compile_text(program(2 * S).replace("program Demo {module=Demo}", named))

    def made(snapshot: bytes | None = None, now_ns: int = 0, **config: int) -> Node:
        configured = NodeConfig.edge().with_(**config)
        more: dict[str, Any] = {"seed": 3, "durable": True, "snapshot": snapshot, "now_ns": now_ns}
        return install(SELF, (HERE,), data, ["Main"], configured, **more)

    return made


def request(seq: int = 1, epoch: int = 9) -> bytes:
    return durable_message(0xA1, seq, kind=REQUEST, wire_req_id=77, epoch=epoch)


def acks(node: Node, found: list[Any]) -> list[Ack]:
    read = [envelope.decode(step.body + step.payload, node.config.caps) for step in of(SendEnvelope, found)]
    return [ack for message in read for ack in message.acks]


def test_what_a_snapshot_holds_is_taken_whatever_becomes_of_its_record(make):
    node = greeted(make(), A)
    node.deliver_inbound(request(), A)
    (step,) = of(Journal, node.poll(2))
    snapshot = node.snapshot(2)
    assert not records(node.poll(3)), "it is held until it is written down"
    node.snapshot_written()
    assert len(records(node.poll(4))) == 1
    node.persist_failed(step.token, OSError("full"))
    node.deliver_inbound(request(), A)
    found = node.poll(5)
    assert not of(StorageFailed, found) and not of(Journal, found), "it is known"
    again = make(snapshot, 6)
    again.replay([step.record])
    assert len(records([*again.poll(7), *again.poll(8)])) == 1
    assert again.counters["journal.known"] == 1


def test_what_came_after_the_snapshot_was_taken_is_not_in_it(make):
    node = greeted(make(), A)
    node.snapshot(2)
    node.deliver_inbound(request(), A)
    (step,) = of(Journal, node.poll(3))
    node.snapshot_written()
    assert not records(node.poll(4))
    node.persisted(step.token)
    assert len(records(node.poll(5))) == 1


def test_a_request_that_is_refused_for_good_is_written_down_without_its_content(make):
    node = make()
    stranger = ProgramClaim(b"x" * 32).meta()
    node.peer_presence(A, True, (HERE,), stranger, epoch=5, classes=("Main",))
    node.poll(1)
    node.deliver_inbound(request(), A)
    (step,) = of(Journal, found := node.poll(2))
    assert not acks(node, [*found, *node.poll(S // 2)])
    node.persisted(step.token)
    assert acks(node, [*node.poll(S), *node.poll(2 * S)]) == [Ack(9, 1)]
    assert node.counters["ingress.other_program"] == 1 and node.counters["ingress.bytes"] == 0
    kept = JournalRecord.from_bytes(step.record)
    assert not envelope.decode(kept.data, node.config.caps).fills

    again = make(make().snapshot(1), 2)
    again.replay([step.record])
    found = [*again.poll(3), *again.poll(4)]
    assert not records(found) and again.counters["journal.replayed"] == 1
    assert again.counters["ingress.bytes"] == 0
    again.deliver_inbound(request(), A)
    again.poll(5)
    assert again.counters["ingress.duplicates"] == 1


def test_a_snapshot_of_version_3_has_its_windows_in_its_links(make):
    node = greeted(make(), A, B)
    node.deliver_inbound(request(), A)
    (step,) = of(Journal, node.poll(2))
    node.persisted(step.token)
    body = body_of(node.snapshot(3))
    links = body["links"]
    windows = {bytes(peer): rows for peer, rows in links.pop("sources")}
    assert list(windows) == [A.to_bytes()]
    links["epochs"], links["first"] = [links.pop("epoch"), 77], [links["first"], 0]
    links["links"] = [
        [*row[:2], 0, *row[2:4], windows.pop(bytes(row[0]), []), row[4]] for row in links["links"]
    ]
    links["links"] += [[peer, 0, 0, None, [], rows, []] for peer, rows in windows.items()]
    for name in ("flows", "unwritten"):
        body["outbound"].pop(name)
    body["outbound"] |= {"writing": [], "next_token": 1}
    again = make(sealed(cbor.dumps(body), 3), 4)
    assert again.inspect().sources[str(A)]["windows"] == node.inspect().sources[str(A)]["windows"]
    again.deliver_inbound(request(), A)
    again.poll(5)
    assert again.counters["ingress.duplicates"] == 1


def test_no_window_is_forgotten_for_a_newcomer_who_is_refused_by_name(make):
    node = make(max_peers=1)
    node.deliver_inbound(request(), A)
    (step,) = of(Journal, node.poll(1))
    node.persisted(step.token)
    for peer in (B, C):
        node.deliver_inbound(request(), peer)
        found = node.poll(2)
        assert of(IngressPutOff, found) == [IngressPutOff(peer, "no_room")] and not of(Journal, found)
    node.deliver_inbound(request(), A)
    node.poll(3)
    assert (node.counters["ingress.no_room"], node.counters["ingress.duplicates"]) == (2, 1)
    assert list(node.inspect().sources) == [str(A)]


def test_a_durable_envelope_without_a_place_is_put_off_and_taken_when_it_comes_again(make):
    """It is not a loss, and neither its step nor its counter reads as one."""
    node = greeted(make(ingress_entries=1, answer_entries=16), A, B)
    node.deliver_inbound(envelope.encode(Envelope([fill(0xA1, 3)], epoch=9, seq=1)), B)
    node.deliver_inbound(request(), A)
    found = node.poll(1)
    assert of(IngressPutOff, found) == [IngressPutOff(A, "full")]
    assert not of(IngressDropped, found) and not of(Journal, found)
    assert (node.counters["ingress.full"], node.counters["ingress.put_off"]) == (1, 1)
    assert node.counters.get("ingress.dropped", 0) == 0
    node.poll(2)
    node.deliver_inbound(request(), A)
    assert len(of(Journal, node.poll(3))) == 1


def test_a_record_of_what_had_no_durable_number_is_delivered(make):
    node = greeted(make(), A)
    asked = Envelope([Fill(site_suffix(0xA1), b"", True, 0)], REQUEST, wire_req_id=77)
    node.replay([JournalRecord(A, envelope.encode(asked), 1).to_bytes()])
    node.poll(2)
    assert node.counters["journal.replayed"] == 1
