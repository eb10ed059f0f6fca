"""Two Links over a network that loses, doubles and reorders, with restarts from snapshots: whatever must
arrive arrives, nothing arrives twice, and once the faults stop everything settles."""

from __future__ import annotations

import random

import pytest
from link_ends import sources, take
from times import MS

from bb_edge.ir.ids import PeerId
from bb_edge.wire import cbor
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.delivery import Links, Verdict
from bb_edge.wire.envelope import NONE, REQUEST, Envelope, Fill, decode, encode

NAMES = (PeerId.from_name("left"), PeerId.from_name("right"))


class Node:
    def __init__(self, me: int, random_epoch: random.Random) -> None:
        self.peer = NAMES[1 - me]
        self.me = me
        self.random = random_epoch
        self.links = Links(random_epoch.getrandbits(56), sources())
        self.delivered: list[bytes] = []
        self.must_arrive: set[bytes] = set()
        self.sent = 0

    def restart(self, now: int) -> None:
        """A restart right after a snapshot: nothing happened in between."""
        data = cbor.loads(cbor.dumps(self.links.snapshot(now)), 1_000_000)
        waiting = {fill for fill in self.must_arrive if fill.endswith(b"request")}
        self.links = Links(self.random.getrandbits(56), sources())
        self.links.restore(data, now)  # type: ignore[arg-type]
        # Unanswered best-effort requests are asked anew by the engine; here they just need not arrive any
        # more.
        self.must_arrive -= waiting


class Network:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = [Node(0, self.random), Node(1, self.random)]
        self.flying: list[tuple[int, int, bytes]] = []  # (arrival, to, bytes)
        self.now = 0
        self.faults = True

    def put(self, sender: Node, data: bytes) -> None:
        copies = 1
        if self.faults:
            copies = self.random.choices((0, 1, 2), (0.2, 0.7, 0.1))[0]
        for _ in range(copies):
            self.flying.append((self.now + self.random.randrange(1, 80 * MS), 1 - sender.me, data))

    def send(self, node: Node) -> None:
        kind, name = self.random.choice(((NONE, b"plain"), (REQUEST, b"request")))
        node.sent += 1
        payload = b"%d %d %s" % (node.me, node.sent, name)
        envelope = Envelope(fills=[Fill(payload=payload)], kind=kind)
        key = node.links.stamp(node.peer, envelope, self.now, kind != NONE)
        data = encode(envelope)
        node.links.sent(node.peer, key, data)
        if name != b"plain":
            node.must_arrive.add(payload)
        self.put(node, data)

    def arrive(self, node: Node, data: bytes) -> None:
        envelope = decode(data, EDGE_CAPS)
        node.links.acknowledged(node.peer, envelope.acks, self.now)
        if self.faults and envelope.fills and self.random.random() < 0.1:
            return  # no place in the queue: neither marked nor acknowledged
        if take(node.links, envelope, self.now, node.peer) is Verdict.NEW:
            node.delivered.append(bytes(envelope.fills[0].payload))

    def step(self, dt: int) -> None:
        self.now += dt
        self.flying.sort()
        while self.flying and self.flying[0][0] <= self.now:
            _, to, data = self.flying.pop(0)
            self.arrive(self.nodes[to], data)
        for node in self.nodes:
            for outgoing in node.links.due(self.now):
                self.put(node, outgoing.payload)


@pytest.mark.parametrize("seed", range(25))
def test_all_that_must_arrive_arrives_once(seed: int) -> None:
    network = Network(seed)
    for _ in range(400):
        for node in network.nodes:
            if network.random.random() < 0.6:
                network.send(node)
            if seed % 2 and network.random.random() < 0.01:
                node.restart(network.now)
        network.step(network.random.randrange(1, 60 * MS))
    network.faults = False
    for _ in range(4_000):
        network.step(100 * MS)
        if not network.flying and all(node.links.next_deadline_ns() is None for node in network.nodes):
            break
    for node, other in (network.nodes, network.nodes[::-1]):
        assert len(node.delivered) == len(set(node.delivered)), "something arrived twice"
        assert other.must_arrive <= set(node.delivered), "something was lost"
        assert node.links.pending == 0 and node.links.pending_bytes == 0


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[bytes]:
        network = Network(3)
        for _ in range(100):
            for node in network.nodes:
                network.send(node)
            network.step(30 * MS)
        return network.nodes[0].delivered + network.nodes[1].delivered

    assert run() == run()
