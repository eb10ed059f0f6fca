"""Peers that are known though not up: a durable send is written down for them, and sent when they are back."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import pytest
from arrays import f32
from durable_program import kept, records, write_down
from kinds_of_steps import of
from peers import HERE, SELF, A, B, C

from bb_edge import PeerId
from bb_edge.engine.errors import OpError
from bb_edge.engine.steps import SendEnvelope
from bb_edge.installer import install
from bb_edge.node import Node

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
    def make(send: str = SAY, durable: bool = True, config: str = KNOWN) -> Node:
        data = compile_text(program(send, durable, config))
        return install(SELF, (HERE,), data, ["Main"], seed=3, durable=True)

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
