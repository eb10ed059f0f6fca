"""Writes the state folders of two nodes, as a version of this software does it, for `test_older_folders.py`.

    git worktree add --detach ../older COMMIT
    cp tests/bb_edge/state/data/write.py ../older && cd ../older
    PYTHONPATH=.:kernels:firmware_shims python write.py FOLDER

It needs what that version needs, and nothing else of the repository. A hub asks a device durably for what it
has learned, in rounds; the device tells the hub durably what its clock has counted. In the end neither hears
of the other: reports, a question and its answer wait in the outboxes. Each node takes a snapshot, and goes on
for a while, so that its journal has something that the snapshot has not.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bb_edge import NodeConfig, PeerId, install
from bb_edge.components import FedAvg, GraphModel, PresenceSelector
from bb_edge.engine import steps
from bb_edge.state import StateStore
from bb_edge.state.keeper import Keeper
from bb_host import MS, AggregatorSlot, Compiler, ModelSlot, Module, PeerSelectorSlot
from bb_host.build import build_edge
from bb_host.learn import mlp, trainable
from bb_shims import StorageError, detect

S = 1_000_000_000
HERE = b"\xe2\x01" + bytes(8)
WALL_NS = 1_780_000_000 * S
"""What the clocks of both show when they start."""


class Field(Module):
    """Rounds of the hub end in the ring `rounds`; what devices count comes in its ring `reports`."""

    name, home = "Field", "Hub"
    devices = PeerSelectorSlot("devices", peer_class="Device", at="Hub")
    hubs = PeerSelectorSlot("hubs", peer_class="Hub", at="Device")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Hub")

    def body(self, g: Any) -> None:
        with g.rounds(None, pause_ns=40 * MS) as start:
            peers = self.devices.sample(g, n=1, min=1, after=start)
            params = self.model.params(g, after=start)
            r = g.request("ask", peers, params, deadline_ns=600 * S, durable=True)
            done = self.model.load_parameters(g, r.value)
            learned = self.model.params(g, after=done) * 0.5
            r.reply([learned, g.constant(np.float32(3))])
            values, weight = r.answer
            self.agg.contribute(g, values, weight=weight, peer=r.answer.sender)
            new, _ = self.agg.aggregate(g, after=r.closed)
            self.model.load_parameters(g, new)
            g.record("rounds", start.round)
            g.hold_stash("last", start.round)
        with g.at("Device"):
            with g.rounds(None, pause_ns=15 * MS) as tick:
                hub = self.hubs.sample(g, n=1, min=1, after=tick)
                number = g.net_out("report", hub, tick.round, durable=True)
                g.record("told", tick.round)
            g.record("reports", number)


def artifacts() -> dict[str, bytes]:
    """Both partitions, by target."""
    model = trainable(mlp([2, 3, 2], seed=1), loss="softmax_cross_entropy", learning_rate=0.1)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, model)
        .bind_aggregator("agg", FedAvg)
        .bind_peer_selector("devices", PresenceSelector)
        .bind_peer_selector("hubs", PresenceSelector)
    )
    return {made.target: made.data for made in build_edge(Field(), compiler).artifacts}


class Kept:
    """A node and the folder that it is kept in."""

    def __init__(self, folder: Path, target: str, data: bytes) -> None:
        self.target, self.data = target, data
        self.storage = detect().storage(folder / target)
        peer = PeerId.from_name(target.lower())
        self.node = install(
            peer, (HERE,), data, [target], NodeConfig.edge(), clock_offset_ns=WALL_NS, seed=1, durable=True
        )
        known = inspect.signature(StateStore).parameters
        more = {"owner": self._owner()} if "owner" in known else {}
        self.store = StateStore(self.storage, (StorageError,), **more)
        self.store.open()
        self.keeper = Keeper(self.node, self.store)

    def _owner(self) -> Any:
        from bb_edge.engine.snapshot import Identity
        from bb_edge.state.record_framing import Owner

        node = self.node
        identity = Identity.of(node.peer_id, node.program, node.targets)
        return Owner(node.peer_id.to_bytes(), identity.program)

    def poll(self, now_ns: int) -> list[Any]:
        found = self.node.poll(now_ns)
        self.keeper.take(found, now_ns)
        return [step for step in found if isinstance(step, steps.SendEnvelope)]


def greet(here: Any, other: Any) -> None:
    """`here` sees the presence of `other`."""
    meta = getattr(other, "presence_meta", {})
    here.peer_presence(other.peer_id, True, (HERE,), meta, epoch=other.epoch, classes=tuple(other.targets))


def main(folder: Path) -> None:
    """Writes both artifacts, both state folders, and what the nodes have said in the end."""
    folder.mkdir(parents=True)
    nodes = []
    for target, data in sorted(artifacts().items()):
        (folder / f"{target}.onnx").write_bytes(data)
        nodes.append(Kept(folder, target, data))
    greet(nodes[0].node, nodes[1].node)
    greet(nodes[1].node, nodes[0].node)
    now_ns = 0

    def run(until_ns: int, deliver: tuple[str, ...] = ("Device", "Hub")) -> None:
        nonlocal now_ns
        while now_ns < until_ns:
            now_ns += MS
            for kept in nodes:
                due = kept.node.next_deadline_ns()
                if due is None or due > now_ns:
                    continue
                for step in kept.poll(now_ns):
                    (to,) = [other for other in nodes if other.node.peer_id == step.peer]
                    if to.target in deliver:
                        body = getattr(step, "body", b"")
                        to.node.deliver_inbound(body + step.payload, kept.node.peer_id)

    run(330 * MS)
    for kept in nodes:
        kept.keeper.snapshot(now_ns)
    run(400 * MS)  # what comes now is in the journals
    run(460 * MS, ("Hub",))  # which takes it, but nobody hears that
    run(520 * MS, ())
    for kept in nodes:
        kept.storage.close()
    told = {
        kept.target: {
            "rings": {name: [float(np.ravel(v)[0]) for v in kept.node.ring(name)] for name in names},
            "rounds_ended": kept.node.counters.get("rounds.ended", 0),
            "pending": kept.node.pending_sends,
        }
        for kept, names in zip(nodes, (["told"], ["rounds", "reports"]), strict=True)
    }
    (folder / "told.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
