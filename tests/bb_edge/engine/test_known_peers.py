"""Peers that are known though not up: a durable send is written down for them, and sent when they are back."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import pytest
from arrays import f32
from durable_program import kept, records, write_down
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C
from times import S

from bb_edge import PeerId
from bb_edge.adoption import Former, Row
from bb_edge.engine.errors import OpError
from bb_edge.engine.steps import PersistOutbox, SendEnvelope
from bb_edge.installer import install
from bb_edge.node import Node
from bb_edge.wire import cbor
from bb_edge.wire.durable_rows import RowName
from bb_edge.wire.outbox import OutboxRecordError

WIRE = "wire.wire_id=1, wire.site_ids=c1, wire.type_hashes=101"
SAY = f"  h: Trigger = wire.Send(x, all) {{{WIRE}, DURABLE}}"
GATED = f"  up: PeerIdVec = gate.PeerHealthGateTx(all) {{wire.wire_id=1}}\n  h: Trigger = wire.Send(x, up) {{{WIRE}, DURABLE}}"
ASK = f"  r: WireReqId = wire.SendReqBatched(x, all, all) {{{WIRE}, DURABLE, wire.answer_mode=none, deadline_ns=5000000000}}"
KNOWN = r"0xa1656b6e6f776ef5"  # {"known": true}


def program(send: str, durable: bool = True, config: str = KNOWN) -> str:
    return f"""program Demo {{module=Demo, binding.Main.peers="peer_selector|bb.PresenceSelector|1"}}
function program.Main(x: F32[1]) -> () {{entry=1, partition=Main}}
  slot peers: peer_selector peer_class=Client = bb.PresenceSelector({config})
  all: PeerIdVec = role.peer_selector.Sample<n=9, min=1>() {{slot=peers}}
{send.replace("DURABLE", f"durable={int(durable)}")}
"""


@pytest.fixture
def made(compile_text):
    def make(send: str = SAY, durable: bool = True, config: str = KNOWN, **more: bytes | Former) -> Node:
        data = compile_text(program(send, durable, config))
        return install(SELF, (HERE,), data, ["Main"], seed=3, durable=True, **more)

    return make


def told(node: Node, now_ns: int) -> list[PeerId]:
    """Starts the program; whom it writes a record for, which are all written."""
    node.invoke("Main", {"x": f32(1)})
    found = node.poll(now_ns)
    write_down(node, found)
    return sorted(record.key.peer for record in records(found))


def test_a_record_is_written_for_everybody_who_is_known(made):
    node = made()
    for peer in (A, B, C):
        node.peer_presence(peer, True, (HERE,), epoch=1, classes=("Client",))
    node.peer_presence(B, False, (), epoch=1, classes=("Client",))
    node.poll(1)
    assert node.peers_up("Client") == tuple(sorted((A, C)))
    assert told(node, 2) == sorted((A, B, C))
    node.poll(3)
    node.peer_presence(B, True, (HERE,), epoch=2, classes=("Client",))
    assert B in {step.peer for step in of(SendEnvelope, kept(node, 4))}
    node.presence_cleared(C, "Client")  # an operator forgets it
    assert told(node, 9) == sorted((A, B))


def test_without_it_only_those_that_are_up(made):
    node = made(config="0xa0")
    for peer, up in ((A, True), (B, False)):
        node.peer_presence(peer, up, (HERE,), epoch=1, classes=("Client",))
    assert told(node, 1) == [A]


@pytest.mark.parametrize(
    ("send", "durable", "why"),
    [
        (ASK, True, "a request"),
        (ASK, False, "a request"),
        (SAY, False, "not wait"),
        (GATED, False, "not wait"),
    ],
)
def test_what_waits_for_nobody_refuses_them_where_the_node_starts(made, send, durable, why):
    """An operator may have set it in the configuration: the compiler refuses it before."""
    with pytest.raises(OpError, match=rf"slot 'peers' may be away.*{why}.*without known"):
        made(send, durable)
    made(send, durable, "0xa0")


def rows_for(node: Node, now_ns: int) -> list[PersistOutbox]:
    """The rows that a poll asks for and that are not records; the disk takes them all."""
    found = node.poll(now_ns)
    write_down(node, found)
    return [step for step in of(PersistOutbox, found) if isinstance(step.name, RowName)]


def test_who_is_known_is_on_disk_before_any_snapshot_has_them(made):
    node = made()
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",), meta={"name": "a"})
    node.peer_presence(B, False, (), epoch=1, classes=("Client",))
    node.peer_presence(C, True, (HERE,), epoch=1, classes=("Other",))
    first = rows_for(node, 1)
    node.peer_presence(A, True, (HERE,), epoch=2, classes=("Client",), meta={"name": "a"})
    assert rows_for(node, 2) == [], "it is known already"
    node.peer_presence(C, True, (HERE,), epoch=1, classes=("Client",))
    again = rows_for(node, 3)
    assert [step.name for step in again] == [RowName(C, 0, 0)], "in another class"
    disk = {step.name: step.record for step in (*first, *again)}
    killed = made()
    killed.adopt_outbox(disk.values(), 4, 4)
    assert told(killed, 5) == sorted((A, B, C))
    killed.snapshot(6)
    gone = set(killed.snapshot_written())
    assert gone >= set(disk), "the snapshot has them"
    killed.snapshot(7)
    assert not {*killed.snapshot_written()} & {*disk}


def test_a_snapshot_has_who_is_known_and_could_not_be_written_down(made):
    node = made()
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",))
    (step,) = of(PersistOutbox, node.poll(1))
    node.persist_failed(step.token, OSError("full"))
    node.poll(2)
    node.snapshot(3)
    node.snapshot_written()
    assert rows_for(node, 10 * S) == [], "it is not tried again"
    node.peer_presence(B, True, (HERE,), epoch=1, classes=("Client",))
    (step,) = of(PersistOutbox, node.poll(11 * S))
    node.persist_failed(step.token, OSError("full"))
    assert [again.name for again in rows_for(node, 13 * S)] == [RowName(B, 0, 0)]


def test_what_a_row_says_of_a_peer_that_a_snapshot_has_is_its_classes(made):
    node = made()
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Other",))
    rows_for(node, 1)
    snapshot = node.snapshot(2)
    node.snapshot_written()
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",))
    (row,) = rows_for(node, 3)
    killed = made(snapshot=snapshot)
    killed.adopt_outbox([row.record], 4, 4)
    assert told(killed, 5) == [A]
    assert killed.peers_up("Other") == (A,)


@pytest.mark.parametrize("row", [cbor.dumps([3, b"nobody", b""]), cbor.dumps([3, 1, 2])])
def test_a_row_that_is_no_peer_is_refused(made, row):
    with pytest.raises(OutboxRecordError, match="not a row of a peer"):
        made().adopt_outbox([row], 1, 1)


def test_without_a_selector_that_sees_them_nobody_is_written_down(made):
    node = made(config="0xa0")
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",))
    assert rows_for(node, 1) == []


def test_who_takes_over_knows_whom_the_old_program_knew_as_if_they_were_away(made):
    old = made()
    claim = {"program": bytes(32), "contracts": {}, "name": "a"}
    old.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",), meta=claim)
    rows_for(old, 1)
    snapshot = old.snapshot(2)
    old.snapshot_written()
    old.peer_presence(B, True, (HERE,), epoch=1, classes=("Client",))
    former = Former.of(snapshot, [row.record for row in rows_for(old, 3)])
    node = made(adopt=former)
    assert [row for row in former.rows if row.name == "peers"] == [
        Row("peers", "", "2 peers of which it has heard")
    ]
    assert node.peers_up("Client") == ()
    assert told(node, 4) == sorted((A, B))
    node.peer_presence(A, True, (HERE,), epoch=1, classes=("Client",))
    node.poll(5)
    assert node.peers_up("Client") == (A,), "its last presence is a new one here"
