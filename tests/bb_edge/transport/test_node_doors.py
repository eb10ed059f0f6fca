"""What a transport tells a node beside envelopes."""

from __future__ import annotations

from bb_edge.engine import steps
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
