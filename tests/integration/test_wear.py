"""What a durable round writes to the disk: the budget of docs/reliability.md, in process, exactly."""

from __future__ import annotations

import pytest

from bb_edge.engine.config import NodeConfig
from bb_edge.installer import install
from bb_edge.ir.address import Address
from bb_edge.ir.ids import PeerId
from bb_edge.loading import load
from bb_edge.state import StateStore
from bb_edge.state.keeper import Keeper
from bb_edge.transport.in_process import Simulation
from bb_shims import AtomicStorage, StorageError
from bb_shims.testing import CrashMode, FakeDisk

SERVER_BYTES, CLIENT_BYTES = 150_000, 25_000
SERVER_SYNCS, CLIENT_SYNCS = 3, 1
ROUNDS = 20


@pytest.fixture
def kept(artifacts):
    """A durable digits federation under simulated time; `(simulation, keepers and disks by name)`."""
    server, client = artifacts.get(rounds=ROUNDS, local_steps=1, at_least=3, durable=True)
    world = Simulation(latency_ns=100_000)
    found = {}
    nodes = [("server", server, "Server", "test", artifacts.test)]
    nodes += [(f"client-{n}", client, "Client", "shard", path) for n, path in enumerate(artifacts.shards)]
    for number, (name, artifact, target, slot, path) in enumerate(nodes):
        peer = PeerId.from_name(name)
        node = install(
            peer,
            (Address.empty().with_peer(peer).to_bytes(),),
            load(artifact.read_bytes()),
            (target,),
            NodeConfig.host(),
            components={slot: {"path": str(path)}},
            seed=number,
            durable=True,
        )
        disk = FakeDisk()
        store = StateStore(AtomicStorage(disk.open()), (StorageError,))
        store.open()
        keeper = Keeper(node, store)
        world.add(node, keeper)
        found[name] = (keeper, disk)
    return world, found


def test_a_durable_round_writes_no_more_than_its_budget(kept):
    world, nodes = kept

    def figures():
        return {
            name: (
                keeper.counters["state.bytes_written"],
                disk.counts["sync"] + disk.counts["sync_folder"],
            )
            for name, (keeper, disk) in nodes.items()
        }

    world.run(until=lambda: len(world.events("round")) >= 5)
    before = figures()
    begun = len(world.events("round"))
    world.run(until=lambda: len(world.events("round")) >= ROUNDS)
    after, rounds = figures(), len(world.events("round")) - begun
    for name, (written, syncs) in after.items():
        most = (SERVER_BYTES, SERVER_SYNCS) if name == "server" else (CLIENT_BYTES, CLIENT_SYNCS)
        per_round = (written - before[name][0]) / rounds, (syncs - before[name][1]) / rounds
        assert per_round[0] <= most[0], (name, per_round)
        assert per_round[1] <= most[1], (name, per_round)
        assert per_round[0] > most[0] / 3, f"{name}: the budget is to be stated anew, it is {per_round}"


def test_the_folder_stays_small(kept):
    world, nodes = kept
    world.run(until=lambda: len(world.events("round")) >= ROUNDS)
    for name, (_, disk) in nodes.items():
        assert sum(map(len, disk.files.values())) < 1_000_000, name
        assert len(disk.files) <= 8, name
        disk.crash(CrashMode.LOSE)
        assert StateStore(AtomicStorage(disk.open()), (StorageError,)).open().losses == ()
