"""A round takes any number of answers within `ingress_bytes`: each is charged while it lives, and no longer."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from times import S

from bb_edge import NodeConfig, PeerId, install
from bb_edge.engine import steps
from bb_edge.node import Node
from bb_edge.targets import InstallError
from bb_edge.transport.in_process import Simulation

COUNT = 256
ENVELOPE = 4 * COUNT + 100  # most bytes of the envelope of one answer
SERVER = PeerId.from_name("server")
ASKED = np.arange(COUNT, dtype=np.float32)

ASK = "wire.wire_id=1, wire.site_ids=aa, wire.type_hashes=101"
REPLY = "wire.wire_id=2, wire.request=1, wire.site_ids=bb, wire.type_hashes=101"
TEXT = f"""
program Demo {{module=Demo, targets="Server,Client", binding.Server.peers="peer_selector|bb.PresenceSelector|1"}}
function program.Server(x: F32[{COUNT}]) -> () {{entry=1, partition=Server}}
  slot peers: peer_selector peer_class=Client
  all: PeerIdVec = role.peer_selector.CurrentView() {{slot=peers}}
  req: WireReqId = wire.SendReqBatched(x, all, all) {{{ASK}, deadline_ns=20000000000, wire.answer_mode=MODE, port=ask}}
  READ
  syscall.AppEmit<name="missing">(missing)
function program.Client() -> () {{entry=1, partition=Client}}
  x: F32[{COUNT}], sender: PeerIdVec, req: WireReqId = wire.RecvReq() {{{ASK}}}
  y: F32[{COUNT}] = Add(x, x)
  h: Trigger = wire.SendResp(y, sender, req) {{{REPLY}}}
"""
READS = {
    "each": f"""closed: Trigger, missing: PeerIdVec = wire.RecvRespBatched(req) {{wire.wire_id=2, wire.request=1}}
  a: F32[{COUNT}], who: PeerIdVec = wire.RecvResp() {{{REPLY}}}
  t: Trigger = syscall.OnTrigger(a)
  late: Trigger = syscall.Sleep<duration_ns=10000000>(t)
  b: F32[{COUNT}] = syscall.GateDispatch(a, late)
  syscall.AppEmit<name="answer">(b)""",
    "batch": f"""closed: Trigger, missing: PeerIdVec, stack: Tensor = wire.RecvRespBatched(req) {{{REPLY}}}
  syscall.AppEmit<name="stack">(stack)""",
}


class World:
    """A server that has asked all its clients; answers come within `spread_ns` of each other."""

    def __init__(self, data: bytes, clients: int, config: NodeConfig, spread_ns: int) -> None:
        self.data, self.config = data, config
        self.sim = Simulation(seed=3, jitter_ns=spread_ns)
        self.server = install(SERVER, (), data, ["Server"], config, seed=1)
        self.sim.add(self.server)
        for number in range(clients):
            name = PeerId.from_name(f"c{number}")
            self.sim.add(install(name, (), data, ["Client"], NodeConfig(), seed=10 + number))
        self.sim.run(for_ns=S // 10)
        self.server.invoke("Server", {"x": ASKED})

    def charged(self, node: Node | None = None) -> Any:
        """What the ledger of the server holds in bytes, in all and by peer."""
        found = (node or self.server).inspect().ingress
        return found["bytes"], found["bytes_by_peer"]

    def run_to_the_end(self) -> steps.RequestClosed:
        self.sim.run(until=lambda: bool(self.sim.events("missing")))
        (closed,) = [s.step for s in self.sim.seen if isinstance(s.step, steps.RequestClosed)]
        return closed


@pytest.fixture
def world(compile_text):
    """`world(mode, clients, spread_ns=…, **config)`"""

    def make(mode: str, clients: int, spread_ns: int = 0, **config: int) -> World:
        data = compile_text(TEXT.replace("MODE", mode).replace("READ\n", READS[mode] + "\n"))
        return World(data, clients, NodeConfig(**config), spread_ns)

    return make


def test_a_round_takes_more_answers_than_fit_at_once(world):
    """Forty answers where eight fit at a time: an answer is charged until its child execution has ended."""
    found = world("each", 40, spread_ns=2 * S, ingress_bytes=8 * ENVELOPE)
    closed = found.run_to_the_end()
    assert (closed.asked, closed.answered, closed.reason) == (40, 40, "all settled")
    assert len(found.sim.events("answer")) == 40
    assert found.charged() == (0, {})


def test_what_finds_no_room_is_not_acknowledged_and_comes_again(world):
    """All answers come at one instant, and three fit: the others are repeated by their peers, and count."""
    found = world("each", 9, max_children=1, ingress_bytes=3 * ENVELOPE + 100)
    closed = found.run_to_the_end()
    assert (closed.answered, closed.reason) == (9, "all settled")
    assert found.sim.lost > 0, "some found no room"
    assert "ingress.late_answers" not in found.server.counters
    assert sum(node.counters.get("wire.resent", 0) for node in found.sim.nodes) > 0
    assert not any(isinstance(s.step, steps.WireReceiveFailed) for s in found.sim.seen)
    assert found.charged() == (0, {})


def test_answers_that_wait_for_a_child_are_charged_to_their_peers(world):
    found = world("each", 4, max_children=1)
    found.sim.run(until=lambda: len(found.charged()[1]) == 4)
    total, by_peer = found.charged()
    assert len(by_peer) == 4 and sum(by_peer.values()) == total > 4 * 4 * COUNT
    again = install(
        SERVER, (), found.data, ["Server"], found.config, seed=1, snapshot=found.server.snapshot(0), now_ns=0
    )
    assert found.charged(again) == (total, by_peer)
    found.run_to_the_end()
    assert found.charged() == (0, {})


def test_answers_that_a_round_keeps_are_charged_until_it_ends(world):
    found = world("batch", 4)
    found.sim.nodes[-1].deliver_inbound = lambda *_arguments, **_more: None  # type: ignore[method-assign]
    found.sim.run(until=lambda: found.server.counters.get("requests.answers") == 3)
    total, by_peer = found.charged()
    assert total > 3 * 4 * COUNT and not by_peer
    assert found.run_to_the_end().answered == 3
    assert found.charged() == (0, {})


def test_a_round_that_keeps_its_answers_takes_as_many_as_fit(world):
    """Those that find no room stay unacknowledged: no answer is taken and thrown away."""
    found = world("batch", 6, spread_ns=S, ingress_bytes=4 * ENVELOPE)
    closed = found.run_to_the_end()
    assert (closed.answered, closed.reason) == (4, "deadline")
    (stack,) = found.sim.events("stack")
    assert stack.value.shape == (4, COUNT)
    (missing,) = found.sim.events("missing")
    assert len(missing.value) == 2
    assert found.charged() == (0, {})


def test_what_never_fits_is_refused_at_install(compile_text):
    planned = TEXT.replace("MODE", "each").replace("READ\n", READS["each"] + "\n")
    planned = planned.replace(f"{{{REPLY}}}", f"{{{REPLY}, wire.max_bytes=100000}}")
    data = compile_text(planned)
    with pytest.raises(
        InstallError, match="an envelope of 100000 bytes is never taken: ingress_bytes is 99999"
    ):
        install(SERVER, (), data, ["Server"], NodeConfig(ingress_bytes=99_999), seed=1)
    install(SERVER, (), data, ["Server"], NodeConfig(ingress_bytes=100_000), seed=1)
