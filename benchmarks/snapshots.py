"""What a snapshot of a server costs: bytes, and milliseconds to take it and to write it.

    python benchmarks/snapshots.py [FOLDER]

A server of rounds with a model of 0.01, 1 and 5 MB takes one every round. Each is taken by the node, in the
thread that runs the program, and written with two synced calls into FOLDER (a temporary one without): name
one on the card whose wear and time are asked for. Medians of REPEATS.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("kernels", "firmware_shims", "examples"))]

from bb_edge import NodeConfig, PeerId, install  # noqa: E402
from bb_edge.components import FedAvg, GraphModel, PresenceSelector  # noqa: E402
from bb_edge.state import StateStore  # noqa: E402
from bb_host import AggregatorSlot, Compiler, Graph, ModelSlot, Module, PeerSelectorSlot, S  # noqa: E402
from bb_host.ir.proto import to_bytes  # noqa: E402
from bb_host.learn import mlp, trainable  # noqa: E402
from bb_shims import AtomicStorage, StorageError  # noqa: E402
from bb_shims.disk import LinuxDisk  # noqa: E402

REPEATS = 15
SIZES = ((64, 32, 10), (256, 960, 10), (1024, 1200, 10))
"""Layers of the models: some 10 KB, 1 MB and 5 MB of parameters."""


class Server(Module):
    """Rounds that ask clients for their parameters and average them."""

    home = "Server"
    clients = PeerSelectorSlot("clients", peer_class="Client", at="Server")
    model, agg = ModelSlot("model"), AggregatorSlot("agg", at="Server")

    def body(self, g: Graph) -> None:
        with g.rounds() as start:
            peers = self.clients.sample(g, n=2, after=start)
            r = g.request("ask", peers, self.model.params(g, after=start), deadline_ns=S)
            r.reply([self.model.params(g, after=self.model.load_parameters(g, r.value))])
            (weights,) = r.answer
            self.agg.contribute(g, weights, peer=r.answer.sender, round=start.round)
            new, total = self.agg.aggregate(g, after=r.closed)
            self.model.load_parameters(g, new)
            g.output("total", total)


class Cost(NamedTuple):
    """Of one snapshot: its bytes, and the milliseconds to take and to write it."""

    size: int
    take_ms: float
    write_ms: float


def measure(layers: Sequence[int], folder: Path, repeats: int = REPEATS) -> Cost:
    """The cost with a model of these layers, written into a folder that does not exist yet."""
    compiler = (
        Compiler()
        .bind_peer_selector("clients", PresenceSelector)
        .bind_model("model", GraphModel, trainable(mlp(list(layers))))
        .bind_aggregator("agg", FedAvg)
    )
    data = to_bytes(compiler.compile_program(Server()))
    node = install(PeerId.from_name("server"), (), data, ["Server"], NodeConfig.host(), seed=1)
    folder.mkdir()
    storage = AtomicStorage(LinuxDisk(folder))
    store = StateStore(storage, (StorageError,))
    store.open()
    took, wrote, size = [], [], 0
    for turn in range(repeats):
        node.poll(turn + 1)
        began = time.perf_counter()
        snapshot = node.snapshot(turn + 1)
        taken = time.perf_counter()
        store.write_snapshot(snapshot)
        wrote.append(time.perf_counter() - taken)
        took.append(taken - began)
        store.drop([])
        size = len(snapshot)
    storage.close()
    return Cost(size, 1e3 * median(took), 1e3 * median(wrote))


def main(arguments: Sequence[str]) -> int:
    """Prints a line per model."""
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as folder:
        for number, layers in enumerate(SIZES):
            cost = measure(layers, Path(folder) / str(number))
            print(
                f"{'-'.join(map(str, layers))}: {cost.size:,} bytes, {cost.take_ms:.2f} ms to take, "
                f"{cost.write_ms:.2f} ms to write"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
