"""Cyclon as a network of nodes under simulated time (no presence unless said)."""

# ruff: noqa: E501  (programs in the text notation have one op a line)

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from simulations import advance, failures
from times import MS, S

from bb_edge.components import Cyclon
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.node import Node
from bb_edge.roles import TRIGGER, ComponentEnv, ComponentError, ComponentStateError
from bb_edge.transport.in_process import Simulation
from bb_edge.wire import cbor, envelope
from bb_edge.wire.envelope import Envelope, Fill
from tests.aids.peers import numbered

GOSSIP = """program Demo {module=Demo, binding.Main.peers="peer_selector|bb.Cyclon|3"}
function program.Main(go: Trigger) -> () {entry=1, partition=self}
  slot peers: peer_selector
  view: PeerIdVec = role.peer_selector.CurrentView(go) {slot=peers, control_inputs=1}
  two: PeerIdVec = role.peer_selector.Sample<n=2>(go) {slot=peers, control_inputs=1}
  syscall.AppEmit<name="view">(view)
  syscall.AppEmit<name="two">(two)
"""

COUNT, VIEW = 24, 5


class Gossip:
    """COUNT nodes that know n0 only."""

    def __init__(self, compile_text: Any, seed: int = 0) -> None:
        self.sim = Simulation(seed=seed, jitter_ns=5 * MS, presence=False)
        self.data = compile_text(GOSSIP)
        self.nodes = [self.node(n) for n in range(COUNT)]
        for node in self.nodes:
            self.sim.add(node)

    def node(self, n: int) -> Any:
        config = {
            "introducer_names": ["n0"] if n else [],
            "view_size": VIEW,
            "shuffle_size": 3,
            "period_ns": 1 * S,
        }
        return install(
            PeerId.from_name(f"n{n}"), (), self.data, ["Main"], components={"peers": config}, seed=100 + n
        )

    def views(self) -> dict[PeerId, set[PeerId]]:
        return {node.peer_id: view_of(node) for node in self.nodes}


def view_of(node: Node) -> set[PeerId]:
    return set(node.component("peers").current_view(None))


def reached(views: dict[PeerId, set[PeerId]], start: PeerId) -> set[PeerId]:
    found, todo = {start}, [start]
    while todo:
        for peer in views.get(todo.pop(), set()):
            if peer not in found:
                found.add(peer)
                todo.append(peer)
    return found


@pytest.fixture
def gossip(compile_text):
    return Gossip(compile_text)


def test_views_fill_and_join_everybody(gossip):
    advance(gossip.sim, 40 * S)
    views = gossip.views()
    everybody = set(views)
    for peer, view in views.items():
        assert peer not in view, "nobody gossips with itself"
        assert VIEW - 2 <= len(view) <= VIEW, "one or two exchanges are on their way"
        assert view <= everybody
        assert reached(views, peer) == everybody
    known_by = Counter(peer for view in views.values() for peer in view)
    assert len(known_by) == COUNT
    assert known_by[PeerId.from_name("n0")] <= 3 * VIEW, (
        "whom everybody began with is known like anybody else"
    )
    assert max(known_by.values()) <= 3 * VIEW
    assert failures(gossip.sim) == []
    assert all(
        node.counters["executions.ended"] == 0 for node in gossip.nodes if "executions.ended" in node.counters
    )


def test_views_change_and_are_seen_by_programs(gossip):
    advance(gossip.sim, 30 * S)
    node = gossip.nodes[7]
    for _ in range(2):
        node.invoke("Main", {"go": TRIGGER})
        advance(gossip.sim, 20 * S)
    first, second = (e.value for e in gossip.sim.events("view"))
    assert first == tuple(sorted(first)) and set(first) != set(second)
    for event, view in zip(gossip.sim.events("two"), (first, second), strict=True):
        assert len(event.value) == 2 and set(event.value) <= set(view)


def test_addresses_travel_with_the_peers(gossip):
    advance(gossip.sim, 30 * S)
    for node in gossip.nodes:
        peers = node.inspect().peers
        for peer in view_of(node):
            assert peers[str(peer)]["addresses"][0] == str(Address.empty().with_peer(peer))
        assert node.counters.get("wire.unresolved", 0) == 0


def test_who_dies_is_forgotten_and_who_comes_is_found(gossip):
    advance(gossip.sim, 30 * S)
    dead = [gossip.nodes.pop() for _ in range(8)]
    for node in dead:
        gossip.sim.remove(node.peer_id)
    newcomer = gossip.node(99)
    gossip.sim.add(newcomer)
    gossip.nodes.append(newcomer)
    advance(gossip.sim, 60 * S)
    views = gossip.views()
    gone = {node.peer_id for node in dead}
    assert not any(gone & view for view in views.values())
    assert all(reached(views, peer) == set(views) for peer in views)
    assert newcomer.peer_id in {peer for view in views.values() for peer in view}
    assert sum(node.component("peers").unanswered for node in gossip.nodes) > 0


def test_same_seed_same_gossip(compile_text):
    hashes = []
    for _ in range(2):
        net = Gossip(compile_text, seed=4)
        advance(net.sim, 10 * S)
        hashes.append(net.sim.trace_hash())
    assert hashes[0] == hashes[1]


def test_presence_introduces_where_nobody_is_named(compile_text):
    data = compile_text(GOSSIP)
    sim = Simulation(seed=1)
    nodes = [install(PeerId.from_name(f"p{n}"), (), data, ["Main"], seed=n) for n in range(3)]
    for node in nodes:
        sim.add(node)
    advance(sim, 10 * S)
    for node in nodes:
        others = {n.peer_id for n in nodes if n is not node}
        assert view_of(node) <= others
        assert node.component("peers").shuffles > 0


def _suffix(op: str) -> bytes:
    return Address.empty().with_component(3, op).to_bytes()


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", cbor.dumps({}), cbor.dumps([[b"x", 0, []]]), cbor.dumps([[numbered(1).to_bytes(), -1, []]]),
     cbor.dumps([[numbered(1).to_bytes(), 0, [b"x" * 300]]]), cbor.dumps([1] * 2000)],
)  # fmt: skip
def test_hostile_shuffles_change_nothing(compile_text, payload):
    sim = Simulation(presence=False)
    node = install(PeerId.from_name("n"), (), compile_text(GOSSIP), ["Main"], seed=1)
    sim.add(node)
    bad = Envelope(
        fills=[Fill(_suffix("Shuffle"), payload, False, 0x0B)], kind=envelope.REQUEST, wire_req_id=5
    )
    node.deliver_inbound(envelope.encode(bad), PeerId.from_name("x"))
    advance(sim, S // 10)
    assert view_of(node) == set()
    assert node.counters["components.failed"] == 1


def test_a_view_is_never_larger_than_it_may_be(compile_text):
    sim = Simulation(presence=False)
    node = install(
        PeerId.from_name("n"),
        (),
        compile_text(GOSSIP),
        ["Main"],
        components={"peers": {"view_size": 4}},
        seed=1,
    )
    sim.add(node)
    offered = [
        [numbered(n).to_bytes(), n, [Address.empty().with_peer(numbered(n)).to_bytes()]] for n in range(200)
    ]
    fill = Fill(_suffix("Shuffle"), cbor.dumps(offered), False, 0x0B)
    node.deliver_inbound(
        envelope.encode(Envelope(fills=[fill], kind=envelope.REQUEST, wire_req_id=5)), PeerId.from_name("x")
    )
    advance(sim, S // 10)
    assert len(view_of(node)) == 4


def test_state_survives(compile_text, gossip):
    advance(gossip.sim, 20 * S)
    component = gossip.nodes[3].component("peers")
    copy = Cyclon.construct(ComponentEnv("peers", config={"view_size": VIEW}))
    copy.restore(component.serialize())
    assert copy.serialize() == component.serialize()
    with pytest.raises(ComponentStateError):
        copy.restore(b"\x00")


def restarted(gossip: Gossip, n: int, now_ns: int, snapshot: bytes | None = None) -> Node:
    config = {"introducer_names": [], "view_size": VIEW, "shuffle_size": 3, "period_ns": 1 * S}
    node = gossip.nodes[n]
    return install(
        *(node.peer_id, (), gossip.data, ["Main"]),
        components={"peers": config},
        seed=200 + n,
        snapshot=snapshot or node.snapshot(now_ns),
        now_ns=now_ns,
    )


def test_a_restart_in_the_middle_of_an_exchange_forgets_nobody(gossip):
    """Whoever is asked is out of the view until the answer comes, which a restart never hears."""
    advance(gossip.sim, 20 * S)
    views, under_way = gossip.views(), 0
    for _ in range(220):  # a little more than a period
        advance(gossip.sim, 5 * MS)
        for n, node in enumerate(gossip.nodes):
            before, now = views[node.peer_id], view_of(node)
            gone = before - now
            if len(now) == len(before) - 1 and node.inspect().calls:
                under_way += 1
                again = restarted(gossip, n, gossip.sim.now_ns)
                assert view_of(again) == now | gone
                oldest = max(
                    cbor.loads(again.component("peers").serialize())["view"], key=lambda row: (row[1], row[0])
                )
                assert {PeerId.from_bytes(oldest[0])} == gone, "it is the one that is asked next"
        views = gossip.views()
    assert under_way >= COUNT


def test_nodes_that_keep_going_back_in_the_middle_of_exchanges_harm_no_view(gossip):
    """Each goes back by up to 2 s, to where it had given peers away that others hold by now."""
    advance(gossip.sim, 20 * S)
    everybody, kept, gone_back = set(gossip.views()), {}, 0
    for turn in range(300):
        advance(gossip.sim, 10 * MS)
        for n, node in enumerate(gossip.nodes):
            if n not in kept and node.inspect().calls:
                kept[n] = turn, node.snapshot(gossip.sim.now_ns)
            elif n in kept and turn > kept[n][0] + 10 + 7 * n:
                gossip.sim.remove(node.peer_id)
                gossip.nodes[n] = restarted(gossip, n, gossip.sim.now_ns, kept.pop(n)[1])
                gossip.sim.add(gossip.nodes[n])
                gone_back += 1
        for peer, view in gossip.views().items():
            assert peer not in view and view <= everybody and len(view) <= VIEW
    assert gone_back > COUNT
    advance(gossip.sim, 40 * S)
    views = gossip.views()
    assert all(len(view) >= VIEW - 2 and reached(views, peer) == everybody for peer, view in views.items())
    assert failures(gossip.sim) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"view_size": 0}, "view_size"),
        ({"introducers": ["?"]}, "peer id"),
        ({"introducers": "n"}, "list"),
        ({"vue": 1}, "vue"),
    ],
)
def test_cyclons_configuration_is_checked(config, says):
    with pytest.raises(ComponentError, match=says):
        Cyclon.construct(ComponentEnv("peers", config=config))
