"""Many peers that are told at once are known as if they had been told one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_ends import sources

from bb_edge.engine import steps
from bb_edge.engine.bus import Bus
from bb_edge.engine.config import NodeConfig
from bb_edge.engine.drawing import Drawing
from bb_edge.engine.ledger import Ledger
from bb_edge.engine.net.crowd import Crowd
from bb_edge.engine.net.ingress import Ingress
from bb_edge.engine.net.peer_limits import LIMITS_META
from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.engine.program.program import PeerClasses
from bb_edge.engine.runtime import Runtime
from bb_edge.ir.address import peer_address
from bb_edge.ir.ids import PeerId
from bb_edge.wire.caps import PeerLimits
from bb_edge.wire.delivery import Links
from bb_edge.wire.envelope import Envelope
from bb_edge.wire.programs import ProgramClaim

PEERS = tuple(PeerId.from_name(f"peer-{number}") for number in range(6))
CLAIM = ProgramClaim(b"p" * 32)
NODES = {"ours": CLAIM.meta(), "others": ProgramClaim(b"q" * 32).meta(), "nobody's": {}}

rows = st.tuples(st.sampled_from(PEERS), st.sampled_from((0, 1, 7, 1 << 55)), st.integers(0, 2))
classes = st.sampled_from((("Client",), ("Other",), ("Client", "Other")))
events = st.sampled_from(("up", "down", "fails", "sends", "asked"))
befores = st.lists(st.tuples(events, rows, classes), max_size=6)


class Told:
    """What a node knows of its peers."""

    def __init__(self, config: NodeConfig, asks: tuple[str, ...] | None) -> None:
        self.runtime = Runtime(config, PeerId.from_name("node"), Drawing(1), Drawing(2))
        self.runtime.bus.subscribed.add(Bus.PEER_UP)
        self.links = Links(1, sources())
        self.peers = PeerStates(self.runtime, self.links, ("Server",), CLAIM, PeerClasses(None, asks))
        self.ingress = Ingress(Ledger(8, 8, 1 << 20), 8)
        self.crowd = Crowd(self.runtime, self.links, self.peers, self.ingress)
        self.noted: list[PeerId] = []

    def happens(self, what: str, row: tuple[PeerId, int, int], classes: tuple[str, ...]) -> None:
        peer, epoch, session = row
        if what in ("up", "down"):
            self.peers.presence(peer, what == "up", epoch, classes, (), NODES["ours"], session)
        elif what == "fails":
            self.peers.failed(peer)
        elif what == "sends":
            self.peers.merge_addresses(peer, (peer_address(peer),), peer_address(PEERS[0]))
            self.links.mark(peer, Envelope(epoch=3, seq=1), 0)
        else:
            self.links.stamp(peer, Envelope(), 0, resend=True)

    def come(self, *args: Any) -> None:
        """Has the node take a crowd."""
        self.crowd.come(*args)
        (act, taken) = self.ingress.notices.popleft()
        act(*taken)

    def notes(self) -> None:
        self.peers.note = lambda peer, _presence: self.noted.append(peer)

    def all_of_it(self) -> dict[str, Any]:
        """All that the node knows, in the order in which it got to know it."""
        book, table = self.peers.address_book, self.peers.presences
        return {
            "saved": self.peers.save(),
            "steps": self.runtime.steps,
            "counters": self.runtime.counters,
            "bus": self.runtime.bus.events,
            "changes": self.peers.changes,
            "restarted": self.peers.restarted,
            "noted": self.noted,
            "up": {name: table.up_peers(name) for name in ("Client", "Other")},
            "known": {name: table.known_peers(name) for name in ("Client", "Other")},
            "counts": table.up_counts(),
            "bytes": table.bytes_held,
            "strangers": list(self.peers.programs.strangers),
            "links": self.links.snapshot(0),
            "due": self.links.next_deadline_ns(),
            "learned again": [book.learn(peer, (peer_address(peer),)) for peer in PEERS if peer in table],
        }


def both(config: NodeConfig, asks: tuple[str, ...] | None) -> tuple[Told, Told]:
    return Told(config, asks), Told(config, asks)


@given(
    befores,
    st.lists(rows, max_size=6),
    classes,
    st.sampled_from(tuple(NODES.values())),
    st.booleans(),
    st.sampled_from((None, ("Client",), ())),
    st.sampled_from((2, 4, 100)),
    st.sampled_from((250, 1 << 20)),
    st.booleans(),
)
def test_a_crowd_is_known_as_those_of_it_one_after_the_other(
    before, crowd, classes, claim, limited, asks, max_peers, peer_bytes, notes
) -> None:
    config = NodeConfig(max_peers=max_peers, peer_bytes=peer_bytes, health_threshold=2)
    meta = {**claim, LIMITS_META: PeerLimits.of(config.caps).meta()} if limited else claim
    together, singly = both(config, asks)
    for told in (together, singly):
        for what in before:
            told.happens(*what)
        if notes:
            told.notes()
    together.come(crowd, classes, meta)
    for peer, epoch, session in crowd:
        singly.peers.presence(peer, True, epoch, classes, (peer_address(peer),), meta, session)
    assert together.all_of_it() == singly.all_of_it()


def test_who_was_only_told_gets_a_link_when_something_goes_to_it() -> None:
    told, _ = both(NodeConfig(), None)
    told.come([(peer, 1, 1) for peer in PEERS], ("Client",), NODES["ours"])
    assert told.peers.up_peers("Client") == tuple(sorted(PEERS)) and len(told.links) == 0
    told.links.stamp(PEERS[0], Envelope(), 0)
    assert len(told.links) == 1


PROGRAM = """
program Demo {module=Demo}
function program.Main() -> () {entry=1, partition=Main}
  x: F32[1], s: PeerIdVec = wire.Recv() {wire.wire_id=1, wire.site_ids=a1, wire.type_hashes=101}
  syscall.AppEmit<name="y">(x)
"""


@pytest.mark.parametrize("restarts", [False, True])
def test_a_node_is_told_of_a_crowd_in_its_next_poll(bench, restarts) -> None:
    b = bench(PROGRAM)
    b.node.crowd.come([(peer, 5, 1) for peer in PEERS], ("Client",), {})
    assert b.node.peers_up("Client") == ()
    if restarts:
        b = bench(PROGRAM, snapshot=b.node.snapshot(0))
    b.poll()
    assert b.of(steps.PeerUp) == [steps.PeerUp(peer, ("Client",)) for peer in PEERS]
    assert b.node.peers_up("Client") == tuple(sorted(PEERS))
