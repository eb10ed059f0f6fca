"""What a transport tells a node beside envelopes."""

from __future__ import annotations

import pytest

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.steps import SendEnvelope
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId

PROGRAM = """program P {module=P, targets="Main"}
function program.Main(x: F32) -> () {entry=1, partition=Main}
  syscall.AppEmit<name="x">(x)
"""


def test_refused_deliveries_count_against_a_peer_s_health(bench):
    node, peer = bench(PROGRAM).node, PeerId.from_name("other")
    node.peer_presence(peer, True, (Address.empty().with_peer(peer).to_bytes(),), epoch=1, classes=("C",))
    node.poll(1)
    for _ in range(node.config.health_threshold - 1):
        node.peer_failed(peer)
    assert not any(isinstance(step, steps.PeerDown) for step in node.poll(2))
    assert node.peers_up("C") == (peer,)
    node.peer_failed(peer)
    assert any(isinstance(step, steps.PeerDown) for step in node.poll(3))
    assert node.peers_up("C") == ()


@pytest.mark.broker
@pytest.mark.parametrize("polled", [True, False])
def test_an_envelope_that_waits_for_a_full_node_is_turned_away_and_not_dropped(
    mosquitto_broker, loop, doors, url, bench, polled
):
    config = NodeConfig(ingress_entries=2, answer_entries=8)
    node = bench(PROGRAM.replace("Main", "Client"), targets=("Client",), config=config).node
    a, where = doors("a"), url(mosquitto_broker)
    sender, receiver = loop.join(a, where), loop.join(node, where)
    loop.until(lambda: node.peer_id in a.presence)
    for _ in range(10):
        sender.send(SendEnvelope(node.peer_id, b"none"))
    loop.until(lambda: receiver.holding)
    assert node.counters["ingress.turned_away"] == 1
    if polled:
        node.poll(1)
    loop.until(lambda: not receiver.holding)
    assert receiver.counters["received"] == (10 if polled else 9)
    assert receiver.counters["turned_away"] == (0 if polled else 1)
    assert node.counters["ingress.turned_away"] == (1 if polled else 2), "each time that it was offered"
    assert node.counters["ingress.dropped"] == 0
