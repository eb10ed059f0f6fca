"""What never leaves: full queues, and envelopes that their receiver would refuse."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from times import S

from bb_edge.engine import steps
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import envelope
from bb_edge.wire.caps import EDGE_CAPS, HOST_CAPS, PeerLimits
from bb_edge.wire.envelope import Fill

TEXT = """program Demo {{module=Demo, binding.L.p="peer_selector|bb.PresenceSelector|1"}}
function program.L(x: F32, y: F32, q: F32) -> () {{entry=1, partition=L}}
  slot p: peer_selector peer_class=R
  to: PeerIdVec = role.peer_selector.CurrentView() {{slot=p}}
  h: Trigger = wire.Send(x, to) {{wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101, batch_group_id=1{planned}}}
  i: Trigger = wire.Send(x, to) {{wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101, batch_group_id=1}}
  k: Trigger = wire.Send(y, to) {{wire.wire_id=3, wire.site_ids=a3, wire.type_hashes=101}}
  r: WireReqId = wire.SendReqBatched(q, to, to) {{wire.wire_id=4, wire.site_ids=a4, wire.type_hashes=101, deadline_ns=20000000000, port=ask}}
  c: Trigger, m: PeerIdVec = wire.RecvRespBatched(r) {{wire.wire_id=4, wire.answer_mode=none}}
  syscall.AppEmit<name="missing">(m)
function program.R() -> () {{entry=1, partition=R}}
  x: F32, s: PeerIdVec = wire.Recv() {{wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101{planned}}}
  z: F32, t: PeerIdVec = wire.Recv() {{wire.wire_id=2, wire.site_ids=a2, wire.type_hashes=101}}
  y: F32, u: PeerIdVec = wire.Recv() {{wire.wire_id=3, wire.site_ids=a3, wire.type_hashes=101}}
  q: F32, w: PeerIdVec, n: WireReqId = wire.RecvReq() {{wire.wire_id=4, wire.site_ids=a4, wire.type_hashes=101}}
  syscall.AppNotify<name="x">(x)
  syscall.AppNotify<name="z">(z)
  syscall.AppNotify<name="y">(y)
"""

SMALL = dataclasses.replace(EDGE_CAPS, total_bytes=4000, fills=4, fill_bytes=1000, ceiling_bytes=8000)
SENDER = PeerId.from_name("l")


@pytest.fixture
def pair(compile_text):
    """`pair(receiver caps, planned bytes, sender config, sender's addresses)`: (simulation, sender)."""

    def make(
        caps: Any = SMALL,
        planned: int = 0,
        sender: NodeConfig | None = None,
        addresses: tuple[bytes, ...] = (),
    ) -> Any:
        stamp = f", wire.max_bytes={planned}" if planned else ""
        data = compile_text(TEXT.format(planned=stamp))
        sim = Simulation(seed=3)
        left = install(SENDER, addresses, data, ["L"], sender or NodeConfig.host(), seed=1)
        right = install(PeerId.from_name("r"), (), data, ["R"], NodeConfig(caps=caps), seed=2)
        for node in (left, right):
            sim.add(node)
        sim.run(for_ns=S // 10)
        return sim, left

    return make


def dropped(sim: Simulation) -> list[str]:
    return [s.step.reason for s in sim.seen if isinstance(s.step, steps.OutboundDropped)]


def refused(sim: Simulation) -> list[Any]:
    kinds = steps.WireReceiveFailed | steps.IngressDropped
    return [s.step for s in sim.seen if isinstance(s.step, kinds)]


def arrived(sim: Simulation) -> list[str]:
    return sorted(e.topic for e in sim.events() if e.topic in "xyz")


def array(size: int) -> Any:
    return np.zeros(size // 4, np.float32)


def test_what_the_receiver_would_refuse_is_dropped_where_it_would_be_sent(pair):
    sim, left = pair()
    left.invoke("L", {"x": array(1200), "y": array(400)})
    sim.run(for_ns=S)
    assert arrived(sim) == ["y"] and refused(sim) == []
    assert ["the peer takes 1000" in reason for reason in dropped(sim)] == [True, True]
    assert left.counters["outbound.dropped"] == left.counters["outbound.too_large"] == 2


def test_a_request_that_is_too_large_does_not_wait_for_its_answer(pair):
    sim, left = pair()
    left.invoke("L", {"q": array(1200)})
    sim.run(for_ns=S)
    ((missing,),) = [e.value for e in sim.events("missing")]
    assert missing == PeerId.from_name("r") and sim.now_ns < 2 * S
    assert len(dropped(sim)) == 1


def test_what_a_site_was_planned_with_passes(pair):
    sim, left = pair(dataclasses.replace(SMALL, total_bytes=20_000), planned=3000)
    left.invoke("L", {"x": array(2900)})
    sim.run(for_ns=S)
    # The one without a plan, as large and of the same group, does not.
    assert refused(sim) == []
    assert arrived(sim) == ["x"]
    assert len(dropped(sim)) == 1


def test_whole_envelopes_are_judged_too(pair):
    caps = dataclasses.replace(SMALL, total_bytes=1000, fill_bytes=4000)
    sim, left = pair(caps)
    left.invoke("L", {"y": array(980), "q": array(980)})
    left.invoke("L", {"x": array(400)})
    sim.run(for_ns=S)
    assert ["envelope of" in reason for reason in dropped(sim)] == [True, True]
    assert refused(sim) == [] and arrived(sim) == ["x", "z"]
    assert len(sim.events("missing")) == 1


HERE = Address.empty().with_peer(SENDER).to_bytes()


def leaves(node: Any, sim: Simulation, size: int) -> list[Any]:
    """What becomes of one `y` of that many bytes: the addresses that its envelope tells, or why it is lost."""
    node.invoke("L", {"y": array(size)})
    outcome: list[Any] = []
    for _ in range(3):
        for step in node.poll(sim.now_ns):
            if isinstance(step, steps.SendEnvelope):
                outcome.append(envelope.decode(step.payload, HOST_CAPS).src_addresses)
            elif isinstance(step, steps.OutboundDropped):
                outcome.append(step.reason)
    return outcome


def test_the_first_envelope_to_a_peer_tells_the_addresses(pair):
    sim, left = pair(addresses=(HERE,))
    assert [leaves(left, sim, 40) for _ in range(3)] == [[(HERE,)], [()], [()]]


def test_addresses_are_left_out_where_they_make_an_envelope_too_large(pair):
    """The value leaves, and the next envelope that has room tells the addresses."""
    caps = dataclasses.replace(SMALL, total_bytes=1000, fill_bytes=4000)
    sim, left = pair(caps, addresses=(HERE,))
    assert [leaves(left, sim, size) for size in (940, 940, 40, 40)] == [[()], [()], [(HERE,)], [()]]


def test_an_envelope_that_never_leaves_has_told_no_addresses(pair):
    caps = dataclasses.replace(SMALL, total_bytes=1000, fill_bytes=4000)
    sim, left = pair(caps, addresses=(HERE,))
    (reason,) = leaves(left, sim, 980)
    assert reason.startswith("an envelope of")
    assert leaves(left, sim, 40) == [(HERE,)]


@pytest.mark.parametrize(("max_peers", "told_again"), [(2, True), (3, False)])
def test_the_peer_told_longest_ago_is_forgotten_where_there_are_too_many(pair, max_peers, told_again):
    sim, left = pair(sender=NodeConfig.host().with_(max_peers=max_peers), addresses=(HERE,))

    def tells(name: str) -> bool:
        """Whether an envelope tells the addresses to that peer, the only one that is up."""
        peer = PeerId.from_name(name)
        address = Address.empty().with_peer(peer).to_bytes()
        left.peer_presence(peer, True, (address,), {}, epoch=sim.now_ns, classes=("R",))
        (addresses,) = leaves(left, sim, 40)
        left.peer_presence(peer, False, epoch=sim.now_ns)
        return addresses == (HERE,)

    assert [tells(name) for name in "rstr"] == [True, True, True, told_again]


def test_sends_share_an_envelope_only_as_far_as_the_receiver_takes_it(pair):
    for fills, envelopes in ((1, 2), (4, 1)):
        sim, left = pair(dataclasses.replace(SMALL, fills=fills))
        before = left.counters.get("wire.sent", 0)
        left.invoke("L", {"x": array(40)})
        sim.run(for_ns=S)
        assert arrived(sim) == ["x", "z"] and refused(sim) == []
        assert left.counters["wire.sent"] - before == envelopes


def test_a_full_queue_drops_the_oldest_and_says_so(pair):
    sim, left = pair(sender=NodeConfig.host().with_(outbound_queue=2))
    left.invoke("L", {"x": array(40), "y": array(40)})
    sim.run(for_ns=S)
    assert dropped(sim) == ["outbound queue full"]
    assert left.counters["outbound.dropped"] == 1 and "outbound.too_large" not in left.counters
    assert len(arrived(sim)) == 2


def test_limits_travel_in_presence():
    limits = PeerLimits.of(EDGE_CAPS)
    assert PeerLimits.from_meta(limits.meta()) == limits
    for bad in (None, [], [1, 2, 3], [1, 2, 3, 0], [1, 2, 3, True], [1, 2, 3, "4"], {"a": 1}):
        assert PeerLimits.from_meta(bad) is None


def test_a_peer_that_says_nothing_is_sent_what_any_node_takes(pair):
    sim, left = pair(dataclasses.replace(EDGE_CAPS, fill_bytes=200_000))
    other = PeerId.from_name("r")
    assert PeerLimits.from_meta(left.inspect().peers[str(other)]["limits"]).fill_bytes == 200_000
    left.peer_presence(other, True, (), {LIMITS_META: "?"}, epoch=7, classes=("R",))
    left.poll(sim.now_ns)
    assert left.inspect().peers[str(other)]["limits"] is None
    left.invoke("L", {"y": array(100_000)})
    sim.run(for_ns=S)
    assert arrived(sim) == ["y"] and dropped(sim) == []
    fills = [Fill(b"", b"x" * 10)]
    assert PeerLimits.of(HOST_CAPS).refuse(fills * 257, {}).startswith("257 fills")
    assert envelope.encode(envelope.Envelope(fills=fills))
