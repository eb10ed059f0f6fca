"""A tick that runs again after a crash samples again: whoever it tells is told once, and under one number."""

from __future__ import annotations

from collections import defaultdict

import pytest
from durable_machines import Crash, Machine
from peers import HERE
from times import MS

from bb_edge import PeerId
from bb_edge.components import PresenceSelector
from bb_edge.engine.steps import SendEnvelope
from bb_edge.wire import durable_rows, envelope
from bb_edge.wire.caps import EDGE_CAPS
from bb_edge.wire.codecs import decode_value
from bb_host import Compiler, Graph, Module, PeerSelectorSlot
from bb_host.ir.proto import to_bytes

PEERS = tuple(PeerId.from_name(name) for name in "bcdef")
TOLD, ROUNDS = 2, 3


class Tells(Module):
    """Rounds that tell two of the peers their number, durably."""

    name, home = "Tells", "Tells"
    peers = PeerSelectorSlot("peers", peer_class="Tells")

    def body(self, g: Graph) -> None:
        with g.rounds(ROUNDS, pause_ns=10 * MS) as tick:
            peers = self.peers.sample(g, n=TOLD, min=1, after=tick)
            heard = g.net_out("say", peers, tick.round, durable=True)
        g.app_emit("heard", heard)


class World:
    """One machine, what it sent by (peer, round), and peers that never acknowledge."""

    def __init__(self) -> None:
        data = to_bytes(Compiler().bind_peer_selector("peers", PresenceSelector).compile_program(Tells()))
        self.machine = Machine(data, "Tells", "a")
        self.numbers: dict[tuple[PeerId, int], set[tuple[int, int]]] = defaultdict(set)
        self.now_ns = 0
        self.crashes = 0

    def presence(self, up: tuple[PeerId, ...]) -> None:
        for peer in PEERS:
            self.machine.node.peer_presence(peer, peer in up, (HERE,), epoch=1, classes=("Tells",))

    def run(self, until_ns: int, *sets_of_peers: tuple[PeerId, ...]) -> None:
        """Runs on; after each crash the next set of peers is up."""
        self.presence(sets_of_peers[0])
        while self.now_ns < until_ns:
            self.now_ns += MS
            try:
                found = self.machine.poll(self.now_ns)
            except Crash:
                self.crashes += 1
                self.now_ns += 5 * MS
                self.machine.start(self.now_ns)
                self.presence(sets_of_peers[self.crashes % len(sets_of_peers)])
                continue
            for step in found:
                if isinstance(step, SendEnvelope):
                    message = envelope.decode(step.payload, EDGE_CAPS)
                    if message.fills:
                        said = int(decode_value(message.fills[0].type_hash, message.fills[0].payload))
                        self.numbers[step.peer, said].add((message.epoch, message.seq))

    def check(self) -> None:
        several = {what: numbers for what, numbers in self.numbers.items() if len(numbers) > 1}
        assert not several, "a peer that is told under two numbers counts twice"
        rows = durable_rows.read(self.machine.disk.outbox.values(), {})
        peers = {number: record.key.peer for number, record in rows.records.items()}
        on_disk = {(peers[n], rows.flows[peers[n]].epoch, seq) for n, seq in rows.numbers.items()}
        sent = {(peer, *number) for (peer, _), found in self.numbers.items() for number in found}
        assert sent <= on_disk, "nobody has acknowledged, so all stays"
        for number in range(1, ROUNDS + 1):
            assert sum(said == number for _, said in self.numbers) >= TOLD


def test_without_a_crash_each_round_tells_as_many_as_it_samples() -> None:
    world = World()
    world.run(100 * MS, PEERS)
    world.check()
    assert len(world.numbers) == TOLD * ROUNDS


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_a_tick_that_crashes_at_any_write_and_samples_others_tells_each_once(
    made: bool, with_snapshot: bool
) -> None:
    more = 0
    for at in range(1, TOLD * ROUNDS + 1):
        world = World()
        if with_snapshot:
            world.machine.take_snapshot(0)
            world.machine.disk.writes = 0
        world.machine.disk.crash_at = (at, made)
        world.run(200 * MS, PEERS[:2], PEERS[2:4])  # nobody of the first sample is up the second time
        assert world.crashes == 1
        world.check()
        more += len(world.numbers) > TOLD * ROUNDS
    assert more, "who was sampled first is told too: its record was on disk"


def test_a_tick_that_samples_the_same_peers_again_finds_its_records() -> None:
    for at in range(1, TOLD * ROUNDS + 1):
        world = World()
        world.machine.disk.crash_at = (at, True)
        world.run(200 * MS, PEERS[:2])
        assert world.crashes == 1
        world.check()
        assert len(world.numbers) == TOLD * ROUNDS
