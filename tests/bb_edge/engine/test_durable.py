"""Durable envelopes: nothing leaves, and nothing is acknowledged, before it is written down.

A node that comes back from what was written has each of them once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from durable_machines import Crash, Net
from durable_program import ASK, REPLY, SAY, records, write_down
from envelopes import durable_message
from peers import HERE
from times import MS, S

from bb_edge import PeerId, install
from bb_edge.engine import steps
from bb_edge.engine.net.journal import JournalRecord, JournalRecordError
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.steps import Journal, PersistOutbox, SendEnvelope, SnapshotWanted, StorageFailed
from bb_edge.installer import InstallError
from bb_edge.wire import cbor, envelope
from bb_edge.wire.caps import EDGE_CAPS, PeerLimits

TOLD = f"""
program Demo {{module=Demo}}
function program.Teller(x: F32[1], to: PeerIdVec) -> () {{entry=1, partition=Teller}}
  h: Trigger = wire.Send(x, to) {{{SAY}, deadline_ns=DEADLINE}}
function program.Hearer() -> () {{entry=1, partition=Hearer}}
  x: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.AppEmit<name="heard">(x)
  syscall.Record<name="ring">(x)
"""

ROUNDS = f"""
program Demo {{module=Demo, binding.Server.p="peer_selector|bb.PresenceSelector|1", binding.Server.agg="aggregator|bb.FedAvg|2", binding.Client.q="peer_selector|bb.PresenceSelector|3"}}
function program.Server() -> () {{entry=1, partition=Server}}
  slot p: peer_selector peer_class=Client
  slot agg: aggregator
  round: I64[] = syscall.Repeat<times=3, pause_ns=4000000>()
  ten: F32 = Cast<to=1>(round)
  ones: F32[1] = Constant<value=F32[1]{{1.0}}>()
  x: F32[1] = Add(ones, ten)
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}
  r: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, wire.answer_mode=each, deadline_ns=60000000000}}
  closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=2, wire.request=1}}
  y: F32[1], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  c: CommandId = role.aggregator.Contribute(y, "", who, round) {{slot=agg}}
  t: Tensor, n: F32[] = role.aggregator.Aggregate(closed) {{slot=agg, control_inputs=1}}
  syscall.AppEmit<name="t">(t)
  syscall.AppEmit<name="n">(n)
  said: F32[1], s: PeerIdVec = wire.Recv() {{{SAY}}}
  syscall.Record<name="ring">(said)
function program.Client() -> () {{entry=1, partition=Client}}
  slot q: peer_selector peer_class=Server
  x: F32[1], s: PeerIdVec, r: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[1] = Mul(x, x)
  h: Trigger = wire.SendResp(y, s, r) {{{REPLY}}}
  round: I64[] = syscall.Repeat<times=3, pause_ns=3000000>()
  f: F32 = Cast<to=1>(round)
  ones: F32[1] = Constant<value=F32[1]{{1.0}}>()
  z: F32[1] = Mul(ones, f)
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=q}}
  k: Trigger = wire.Send(z, all) {{{SAY}}}
"""  # noqa: E501


def told(compile_text, deadline_ns: int = 0, **config: int) -> Net:
    text = TOLD.replace("DEADLINE", str(deadline_ns))
    return Net(compile_text(text), {"teller": "Teller", "hearer": "Hearer"}, **config)


def say(net: Net, number: float) -> None:
    hearer = net.machines["hearer"].node.peer_id
    net.machines["teller"].node.invoke("Teller", {"x": np.full(1, number, np.float32), "to": (hearer,)})


def decoded(step: SendEnvelope) -> envelope.Envelope:
    return envelope.decode(step.payload, EDGE_CAPS)


def published(net: Net) -> list[SendEnvelope]:
    """The durable envelopes that left anybody."""
    return [step for _, step in net.sent if step.durable]


# --- the order of things --------------------------------------------------------------------------------


def test_it_is_published_after_its_record_and_acknowledged_after_the_journal(compile_text):
    net = told(compile_text, knows_marks=False)
    teller, hearer = net.machines["teller"].node, net.machines["hearer"].node
    for node in (teller, hearer):
        node.poll(1)
    say(net, 5)
    found = teller.poll(2)
    record, numbers = [s for s in found if isinstance(s, PersistOutbox)]
    assert not [s for s in found if isinstance(s, SendEnvelope)]
    assert not [s for s in teller.poll(5 * S) if isinstance(s, SendEnvelope)], "not even after a long time"
    teller.persisted(record.token)
    assert not [s for s in teller.poll(5 * S) if isinstance(s, SendEnvelope)], "its number is on no disk"
    teller.persisted(numbers.token)
    assert teller.next_deadline_ns() <= 5 * S, "it is due at once"
    (sent,) = [s for s in teller.poll(5 * S + 1) if isinstance(s, SendEnvelope)]
    assert sent.durable
    (written,) = records(found)
    assert sent.payload.startswith(written.encoded)
    assert (decoded(sent).epoch, decoded(sent).seq) == (written.key.epoch, 1)

    hearer.deliver_inbound(sent.payload, teller.peer_id)
    found = hearer.poll(5 * S)
    (keep,) = [s for s in found if isinstance(s, Journal)]
    hearer.deliver_inbound(sent.payload, teller.peer_id)
    later = hearer.poll(9 * S)
    assert not [s for s in found if isinstance(s, SendEnvelope | steps.AppEvent)]
    assert not [s for s in later if isinstance(s, SendEnvelope | steps.AppEvent | Journal)]
    hearer.persisted(keep.token)
    found = [*hearer.poll(9 * S + 1), *hearer.poll(10 * S)]
    assert [s.value.tolist() for s in found if isinstance(s, steps.AppEvent)] == [[5.0]]
    (ack,) = [s for s in found if isinstance(s, SendEnvelope)]
    assert decoded(ack).acks
    teller.deliver_inbound(ack.payload, hearer.peer_id)
    teller.poll(5 * S + 2)
    assert not [s for s in teller.poll(50 * S) if isinstance(s, SendEnvelope)], "never again"
    teller.snapshot(50 * S)
    assert teller.snapshot_written() == (record.name, numbers.name)


def test_answers_for_nobody_are_no_harm(compile_text):
    net = told(compile_text)
    teller = net.machines["teller"].node
    for token in (0, 1, -1, 10**9):
        teller.persisted(token)
        teller.persist_failed(token, OSError("full"))
    teller.poll(1)
    assert "storage.failed" not in teller.counters


def test_what_cannot_be_written_is_asked_for_again_and_leaves_later(compile_text):
    net = told(compile_text)
    teller, hearer = net.machines["teller"], net.machines["hearer"]
    teller.disk.full = True
    say(net, 1)
    net.run(8 * S)
    asked = [s for s in teller.said if isinstance(s, PersistOutbox)]
    assert len(asked) == 8, "the record and its number, at 0, 1, 3 and 7 seconds"
    assert len([s for s in teller.said if isinstance(s, StorageFailed)]) == 8
    assert published(net) == []
    teller.disk.full, hearer.disk.full = False, True
    net.run(17 * S)
    assert hearer.events == []
    assert [s for s in hearer.said if isinstance(s, StorageFailed)]
    assert not [s for s in hearer.said if isinstance(s, SendEnvelope) and decoded(s).acks]
    hearer.disk.full = False
    net.run(60 * S)
    assert hearer.events == [("heard", [1.0])]


def test_what_expires_before_it_could_be_written_never_leaves(compile_text):
    net = told(compile_text, deadline_ns=2 * S)
    teller = net.machines["teller"]
    teller.disk.full = True
    say(net, 1)
    net.run(5 * S)
    teller.disk.full = False
    net.run(20 * S)
    assert published(net) == []
    teller.take_snapshot(20 * S)
    assert teller.disk.outbox == {}
    assert teller.node.next_deadline_ns() is None


def test_what_expires_while_it_is_written_down_is_not_published(compile_text):
    net = told(compile_text, deadline_ns=2 * S)
    teller = net.machines["teller"].node
    teller.poll(1)
    say(net, 1)
    write_down(teller, teller.poll(2))
    assert not [s for s in teller.poll(3 * S) if isinstance(s, SendEnvelope) and s.durable]


# --- room -----------------------------------------------------------------------------------------------


def test_the_65th_waits_in_order_until_there_is_room(compile_text):
    net = told(compile_text)
    net.run(2 * MS)
    say(net, -1)  # marks are exchanged for the first one
    net.run(S)
    for number in range(70):
        say(net, number)
    net.run(net.now_ns + 9 * MS, deliver=False)
    teller = net.machines["teller"]
    assert len(published(net)) == 1 + 64
    assert len([name for name in teller.disk.outbox if isinstance(name, int)]) == 71, "all are on disk"
    net.run(200 * S)
    heard = [value for _, (value,) in net.machines["hearer"].events]
    assert sorted(heard) == list(range(-1, 70))
    assert heard[65:] == [64, 65, 66, 67, 68, 69]


def test_too_many_that_wait_for_room_are_refused(compile_text):
    net = told(compile_text, deadline_ns=3 * S, outbound_queue=8, outbox_records=66)
    net.run(2 * MS)
    for number in range(8):
        for _ in range(9):
            say(net, number)
        net.run(net.now_ns + 2 * MS, deliver=False)
    for number in range(8):
        say(net, number)
    net.run(10 * S, deliver=False)
    counters = net.machines["teller"].node.counters
    assert counters["outbound.dropped"] >= 1
    assert [s for s in net.machines["teller"].said if isinstance(s, steps.OutboundDropped)]


@pytest.mark.parametrize("limit", [{"outbox_records": 4}, {"outbox_bytes": 160}])
def test_a_full_outbox_asks_for_a_snapshot_that_makes_room(compile_text, limit):
    net = told(compile_text, **limit)
    net.run(2 * MS)
    for number in range(12):
        say(net, number)
    net.run(30 * S)
    teller = net.machines["teller"]
    assert {s.reason for s in teller.said if isinstance(s, SnapshotWanted)} & {"outbox", "outbox full"}
    assert sorted(value for _, (value,) in net.machines["hearer"].events) == list(range(12))


def test_an_envelope_that_its_peer_would_refuse_is_lost_aloud(compile_text):
    net = told(compile_text)
    net.run(2 * MS)
    hearer = net.machines["hearer"].node.peer_id
    teller = net.machines["teller"]
    limits = PeerLimits(30, 16, 1 << 10, 1 << 20)
    teller.node.peer_presence(hearer, True, (HERE,), {LIMITS_META: limits.meta()}, epoch=1)
    say(net, 1)
    net.run(S)
    assert net.sent == []
    assert teller.disk.outbox == {}
    (dropped,) = [s for s in teller.said if isinstance(s, steps.OutboundDropped)]
    assert "the peer takes 30" in dropped.reason


def test_an_outbox_full_of_what_nobody_acknowledges_asks_for_no_snapshots(compile_text):
    net = told(compile_text, outbox_records=4)
    net.run(2 * MS)
    for number in range(12):
        say(net, number)
    net.run(20 * S, deliver=False)
    teller = net.machines["teller"]
    assert len([name for name in teller.disk.outbox if isinstance(name, int)]) == 4
    assert not [s for s in teller.said if isinstance(s, SnapshotWanted)]


def test_a_snapshot_is_asked_for_before_the_outbox_is_full_where_it_makes_room(compile_text):
    net = told(compile_text, outbox_records=8)
    net.run(2 * MS)
    for number in range(8):
        say(net, number)
        net.run(net.now_ns + S)
    teller = net.machines["teller"]
    assert [s.reason for s in teller.said if isinstance(s, SnapshotWanted)] == ["outbox"]
    assert len(teller.disk.outbox) < 8


def test_the_lifecycle_asks_for_a_snapshot(compile_text):
    net = told(compile_text)
    teller = net.machines["teller"]
    for phase in (steps.Phase.SNAPSHOT, steps.Phase.SHUTDOWN, steps.Phase.SNAPSHOT):
        teller.node.fire_lifecycle(phase)
    net.run(5 * MS)
    assert [s.reason for s in teller.said if isinstance(s, SnapshotWanted)] == ["lifecycle"], "once"
    teller.node.fire_lifecycle(steps.Phase.SNAPSHOT)
    net.run(9 * MS)
    assert len([s for s in teller.said if isinstance(s, SnapshotWanted)]) == 2
    assert teller.disk.writes == 2


def test_what_waits_for_room_in_a_snapshot_is_sent_once(compile_text):
    net = told(compile_text, outbox_records=4)
    net.run(2 * MS)
    for number in range(12):
        say(net, number)
    teller, heard = net.machines["teller"], net.machines["hearer"].events
    while len(heard) < 8:
        net.run(net.now_ns + MS)
    teller.start(net.now_ns)  # from a snapshot in which the second four wait, with their records on disk
    net.greet(teller)
    net.run(net.now_ns + 60 * S)
    assert teller.node.counters["outbound.reused"] == 4
    assert sorted(value for _, (value,) in heard) == list(range(12))


# --- crashes --------------------------------------------------------------------------------------------


def federation(compile_text) -> Net:
    machines = {"server": "Server", "client-0": "Client", "client-1": "Client"}
    return Net(compile_text(ROUNDS), machines)


def outcome(net: Net) -> tuple[Any, Any, Any]:
    server = net.machines["server"]
    means = {tuple(value) for topic, value in server.events if topic == "t"}
    weights = {value for topic, value in server.events if topic == "n"}
    return means, weights, sorted(row.tolist() for row in server.node.ring("ring"))


@pytest.mark.parametrize("who", ["server", "client-0"])
@pytest.mark.parametrize("made", [True, False], ids=["written", "not-written"])
def test_a_crash_at_any_write_changes_nothing(compile_text, who, made):
    calm = federation(compile_text)
    calm.run(2 * S)
    expected = outcome(calm)
    assert expected == ({(4.0,), (9.0,), (16.0,)}, {2.0}, [[1.0], [1.0], [2.0], [2.0], [3.0], [3.0]])
    total = calm.machines[who].disk.writes
    assert total > 8
    for at in range(1, total + 1):
        net = federation(compile_text)
        net.machines[who].disk.crash_at = (at, made)
        net.run(20 * S)
        assert net.machines[who].starts == 2, at
        assert outcome(net) == expected, at
        assert not [s for m in net.machines.values() for s in m.said if isinstance(s, steps.OpFailed)]


def test_a_question_that_was_written_down_but_never_asked_is_asked_by_the_round_that_runs_again(compile_text):
    net = federation(compile_text)
    server = net.machines["server"]
    server.take_snapshot = lambda now_ns: (_ for _ in ()).throw(Crash)  # the records are there, no snapshot
    while not net.down:
        net.run(net.now_ns + MS)
    assert len([name for name in server.disk.outbox if isinstance(name, int)]) == 2
    del server.take_snapshot
    net.run(2 * S)
    assert outcome(net)[0] == {(4.0,), (9.0,), (16.0,)}
    assert net.now_ns < 60 * S, "and nobody waited for the deadline of the first"


def test_records_that_expired_while_the_node_was_down_are_not_sent(compile_text):
    net = told(compile_text, deadline_ns=2 * S)
    net.run(2 * MS)
    say(net, 1)
    net.run(3 * MS, deliver=False)
    teller = net.machines["teller"]
    assert 1 in teller.disk.outbox
    net.sent.clear()
    teller.start(10 * S)
    net.greet(teller)
    net.now_ns = 10 * S
    net.run(20 * S)
    assert published(net) == []
    teller.take_snapshot(20 * S)
    assert teller.disk.outbox == {}
    assert [step for step in teller.said if isinstance(step, steps.RecordExpired)] == [
        steps.RecordExpired(net.machines["hearer"].node.peer_id, 1)
    ]
    assert teller.node.counters["outbound.expired"] == 1


def test_what_expires_while_its_peer_is_away_is_told_by_its_record(compile_text):
    net = told(compile_text, deadline_ns=2 * S)
    net.run(2 * MS)
    say(net, 1)
    net.run(3 * MS, deliver=False)
    teller = net.machines["teller"]
    net.run(4 * S, deliver=False)
    assert [(step.record, step.peer) for step in teller.said if isinstance(step, steps.RecordExpired)] == [
        (1, net.machines["hearer"].node.peer_id)
    ]


def test_what_a_snapshot_has_and_the_disk_has_not_is_not_sent(compile_text):
    net = told(compile_text)
    net.run(2 * MS)
    say(net, 1)
    say(net, 2)
    net.run(6 * MS, deliver=False)
    teller = net.machines["teller"]
    teller.take_snapshot(net.now_ns)
    teller.disk.outbox.clear()
    net.sent.clear()
    teller.start(net.now_ns)
    net.greet(teller)
    net.run(10 * S)
    assert published(net) == []
    assert [s.records for s in teller.said if isinstance(s, steps.RecordsMissing)] == [(1, 2)]
    assert teller.node.counters["outbound.missing"] == 2
    teller.take_snapshot(net.now_ns)
    teller.said.clear()
    teller.start(net.now_ns)
    net.run(20 * S)
    assert not [s for s in teller.said if isinstance(s, steps.RecordsMissing)], "once"


def test_what_was_to_be_written_when_the_snapshot_was_taken_is_written_again(compile_text):
    net = told(compile_text)
    net.run(2 * MS)
    teller = net.machines["teller"]
    say(net, 7)
    teller.node.poll(3 * MS)  # the record is asked for, and not written
    for number in range(70):  # and more than there is room for
        say(net, number)
    teller.node.poll(3 * MS + 1)
    teller.take_snapshot(3 * MS + 1)
    teller.start(4 * MS)
    net.greet(teller)
    net.now_ns = 4 * MS
    net.run(100 * S)
    heard = sorted(value for _, (value,) in net.machines["hearer"].events)
    assert heard == sorted([*range(70), 7])


def test_a_journal_is_replayed_once_in_order_however_late(compile_text):
    net = told(compile_text, deadline_ns=5 * S)
    net.run(2 * MS)
    for number in range(3):
        say(net, number)
    net.run(10 * MS)
    hearer = net.machines["hearer"]
    assert len(hearer.disk.journal) == 3
    hearer.start(20 * MS)
    net.greet(hearer)
    net.now_ns = 20 * MS
    net.run(S)
    assert [row.tolist() for row in hearer.node.ring("ring")] == [[0.0], [1.0], [2.0]]
    hearer.node.replay(hearer.disk.journal)
    net.run(2 * S)
    assert hearer.node.counters["journal.known"] == 3
    hearer.start(60 * S)  # their deadline was for the way, and they had come
    hearer.node.poll(60 * S)
    hearer.node.poll(60 * S + 1)
    assert [row.tolist() for row in hearer.node.ring("ring")] == [[0.0], [1.0], [2.0]]
    assert "deadlines.expired" not in hearer.node.counters


def test_a_replayed_record_that_does_not_decode_is_counted(compile_text):
    net = told(compile_text)
    hearer = net.machines["hearer"].node
    hearer.replay([JournalRecord(PeerId.from_name("x"), b"\xff\xff", 1).to_bytes()])
    hearer.poll(1)
    assert hearer.counters["wire.malformed"] == 1


def test_a_node_that_keeps_nothing_refuses_durable_programs_and_ignores_the_doors(compile_text):
    text = TOLD.replace("DEADLINE", "0")
    for target in ("Teller", "Hearer"):
        with pytest.raises(InstallError, match="state folder"):
            install(PeerId.from_name("a"), (), compile_text(text), [target])
    plain = compile_text(text.replace(", durable=1", ""))
    hearer = install(PeerId.from_name("a"), (), plain, ["Hearer"])
    hearer.adopt_outbox([], 0, 0)
    hearer.replay([])
    hearer.persisted(1)
    hearer.persist_failed(1, OSError())
    assert hearer.snapshot_written() == ()
    hearer.deliver_inbound(durable_message(0xC1, 1, 5), PeerId.from_name("b"))
    found = [*hearer.poll(1), *hearer.poll(2)]
    assert [row.tolist() for row in hearer.ring("ring")] == [[5.0]], "a durable envelope is like any other"
    assert not [step for step in found if isinstance(step, Journal)]


# --- records --------------------------------------------------------------------------------------------


def test_a_journal_record_comes_back_and_anything_else_is_refused():
    record = JournalRecord(PeerId.from_name("x"), b"data", 12, b"seen")
    assert JournalRecord.from_bytes(record.to_bytes()) == record
    peer = PeerId.from_name("x").to_bytes()
    for row in (
        7,
        [1],
        [2, peer, b"", 1, None],
        [1, b"short", b"", 1, None],
        [1, peer, "text", 1, None],
        [1, peer, b"", b"", None],
        [1, peer, b"", 1, 1],
        [True, peer, b"", 1, None],
    ):
        with pytest.raises(JournalRecordError):
            JournalRecord.from_bytes(cbor.dumps(row))
    with pytest.raises(JournalRecordError, match="damaged"):
        JournalRecord.from_bytes(b"\xff")
