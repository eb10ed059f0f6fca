"""What `against.py` measures, as a process per checkout: `python benchmarks/acts.py FOLDER GROUP`.

It uses the packages of FOLDER, another checkout's or this one's, and of them only what old ones have too.
The first line that it prints names the acts of its group; each line that it reads names one, and it prints
the CPU nanoseconds that one took, all processes of ours together.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bb_edge.node import Node

Act = Callable[[], object]
Clock = Callable[[], int]
"""CPU nanoseconds so far."""

FOLDERS = (".", "kernels", "firmware_shims", "examples")
MS = 1_000_000
CLIENTS, ROUNDS, REQUESTS, INFERENCES, CHAINS, TRIPS, BURST = 4, 20, 200, 20, 20, 100, 1000


def compiling(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Passes over a federation and over ONNX ops, whole compilations, recording, and a whole build."""
    from bb_host import Compiler
    from bb_host.build import build_edge
    from bb_host.ir.proto import to_proto
    from benchmarks.compile import OPS, Layers, federation
    from federated_digits.federation import program as digits

    program, compiler = federation(OPS)
    layers, (module, binds) = Layers(OPS).record(), digits()
    model, federated = to_proto(layers), to_proto(program)
    acts: dict[str, Act] = {
        "passes over 506 ops of a federation": lambda: compiler.run(program),
        "the same, proto to proto": lambda: compiler.compile(federated),
        "passes over 500 ONNX ops": lambda: Compiler().run(layers),
        "500 ONNX ops, proto to proto": lambda: Compiler().compile(model),
        "recording 500 ONNX ops": lambda: Layers(OPS).record(),
        "recording federated_digits": module.record,
        "federated_digits to its artifacts": lambda: build_edge(module, binds),
    }
    return acts, time.process_time_ns


def engine(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Chains of additions, and a small request to a node that answers it."""
    from benchmarks import walk
    from benchmarks.engine import engine_side

    def chains(floats: int, fused: bool) -> Act:
        once = engine_side(floats, fused)[1]
        return lambda: [once() for _ in range(CHAINS)]

    node, numbers = walk.answering_node(), iter(range(1, 1 << 40))

    def requests() -> None:
        for _ in range(REQUESTS):
            number = next(numbers)
            node.deliver_inbound(walk.request(number), walk.ASKER)
            node.poll(1 + number)

    acts: dict[str, Act] = {
        "unfused chain, 64 floats": chains(64, False),
        "fused chain, 64 floats": chains(64, True),
        "unfused chain, 4096 floats": chains(4096, False),
        "a small request": requests,
    }
    return acts, time.process_time_ns


def rounds(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Rounds of the digits federation in one process."""
    nodes, clock = _federation(Path(ends.enter_context(tempfile.TemporaryDirectory())))
    return {"rounds of four clients": lambda: _turn(nodes, clock)}, time.process_time_ns


def _federation(folder: Path) -> tuple[list[Node], Iterator[int]]:
    from bb_edge import NodeConfig, PeerId, install
    from bb_edge.components import ArrayDataSource, FedAvg, GraphModel, PresenceSelector
    from bb_edge.ir.address import Address
    from bb_host import Compiler
    from bb_host.build import build_edge
    from federated_digits import data
    from federated_digits.federation import FederatedDigits, model

    x, y = data.load_digits()
    test, shards = data.write_shards(folder, x, y, data.split(y, CLIENTS, seed=1))
    module = FederatedDigits(rounds=0, clients=CLIENTS, local_steps=1, at_least=CLIENTS)
    # What the example binds by itself has changed with the time.
    binds = Compiler().bind_model("model", GraphModel, model()).bind_aggregator("agg", FedAvg)
    binds = binds.bind_peer_selector("clients", PresenceSelector)
    for slot, batch in (("shard", 32), ("test", 0)):
        binds = binds.bind_data_source(slot, ArrayDataSource, {"batch_size": batch, "one_hot": 10})
    build = build_edge(module, binds)
    artifacts = {artifact.target: artifact.data for artifact in build.artifacts}
    nodes = []
    for number, path in enumerate((test, *shards)):
        target, slot = ("Client", "shard") if number else ("Server", "test")
        name, given = PeerId.from_name(f"node-{number}"), {slot: {"path": str(path)}}
        config = NodeConfig.host()
        nodes.append(install(name, (), artifacts[target], [target], config, components=given, seed=number))
    for node in nodes:
        for other in nodes:
            if other is not node:
                where = (Address.empty().with_peer(other.peer_id).to_bytes(),)
                node.peer_presence(other.peer_id, True, where, epoch=other.epoch, classes=other.classes)
    return nodes, iter(range(MS, 1 << 60, MS))


def _turn(nodes: list[Node], clock: Iterator[int]) -> None:
    """Polls all nodes until the server has told of ROUNDS rounds."""
    from bb_edge.engine.steps import AppEvent, SendEnvelope

    by_peer, told = {node.peer_id: node for node in nodes}, 0
    for _ in range(50 * ROUNDS):
        if told >= ROUNDS:
            return
        now = next(clock)
        for node in nodes:
            for step in node.poll(now):
                if isinstance(step, SendEnvelope):
                    by_peer[step.peer].deliver_inbound(step.payload, node.peer_id)
                told += isinstance(step, AppEvent)
    raise AssertionError(f"{told} rounds of {ROUNDS}")


def wire(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Envelopes over mosquitto, between this process and one more; both count, the broker does not."""
    import numpy as np

    from bb_edge.components import PresenceSelector
    from bb_host import Compiler
    from bb_host.build import compile_edge
    from benchmarks.wire import Echo, Ours
    from federated_digits.brokers import start_broker
    from federated_digits.processes import Child, Events

    folder, events = Path(ends.enter_context(tempfile.TemporaryDirectory())), Events()
    compile_edge(Echo(), Compiler().bind_peer_selector("listeners", PresenceSelector), folder)
    broker = start_broker(folder / "broker", events, "mosquitto", ["max_queued_messages 0"])
    ends.callback(broker.stop)
    run: list[str | Path] = [sys.executable, "-m", "bb_edge.cli", "run", folder / "Echo.Listener.edge.onnx"]
    run += ["--target", "Listener", "--peer", "listener", "--budget", "host", "--federation", "wire"]
    child = Child("listener", [*run, "--broker", broker.url], folder / "listener.log", events)
    ends.callback(lambda: child.end(within_s=0))
    ours = Ours(folder / "Echo.Asker.edge.onnx", broker.url, "wire")
    ends.callback(ours.stop)
    small, large = (np.zeros(size, np.uint8) for size in (100, 1_000_000))
    childs_clock = (~child.pid << 3) | 2  # the CPU clock of another process (clock_getcpuclockid(3))

    def trips(payload: Any, count: int) -> None:
        for _ in range(count):
            ours.trip(payload)

    acts: dict[str, Act] = {
        "round trips, 100 B": lambda: trips(small, TRIPS),
        "a burst, 100 B": lambda: ours.burst(small, BURST),
        "round trips, 1 MB": lambda: trips(large, TRIPS // 10),
    }
    return acts, lambda: time.process_time_ns() + time.clock_gettime_ns(childs_clock)


def inference(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Models on the NumPy backend, invoke to result."""
    from bb_host.plain import compile_plain_model
    from benchmarks import models
    from benchmarks.inference import Installed

    def inferences(name: str) -> Act:
        model = models.ALL[name]()
        node, inputs = Installed(compile_plain_model(model).SerializeToString(), name), models.example(model)
        return lambda: [node(inputs) for _ in range(INFERENCES)]

    return {name: inferences(name) for name in models.ALL}, time.process_time_ns


def start(root: Path, ends: ExitStack) -> tuple[dict[str, Act], Clock]:
    """Fresh processes: a model's first result, the same where its digest is not checked, the command line."""
    import numpy as np

    from bb_host.build import build_edge
    from benchmarks import models

    folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
    model = models.resnet8()
    (artifact,) = build_edge(model).artifacts
    (folder / "model.onnx").write_bytes(artifact.data)
    np.save(folder / "x.npy", models.example(model)["x"])
    given = (str(folder / "model.onnx"), str(folder / "x.npy"))
    # Compiled modules are kept, as an installed package has them.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    env["PYTHONPATH"] = os.pathsep.join(str(root / name) for name in FOLDERS)

    def fresh(*words: str) -> Act:
        return lambda: subprocess.run(
            [sys.executable, *words], env=env, check=True, stdout=subprocess.DEVNULL
        )

    first = "import sys, numpy as np, bb_edge; bb_edge.open_model(sys.argv[1])(np.load(sys.argv[2]))"
    acts = {"a model's first result": fresh("-c", first, *given)}
    if (root / "bb_edge" / "ir" / "seals.py").exists():
        unchecked = f"import bb_edge.ir.seals as s; s.check_seal = lambda *a: None; {first}"
        acts["the same, its digest unchecked"] = fresh("-c", unchecked, *given)
    else:  # artifacts had none
        acts["the same, its digest unchecked"] = acts["a model's first result"]
    acts["bb-edge --help"] = fresh("-m", "bb_edge.cli", "--help")

    def ended() -> int:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return int((used.ru_utime + used.ru_stime) * 1e9)

    return acts, ended


GROUPS = {
    "compile": compiling,
    "engine": engine,
    "rounds": rounds,
    "wire": wire,
    "inference": inference,
    "start": start,
}


def main(root: Path, group: str) -> None:
    warnings.simplefilter("ignore")
    with ExitStack() as ends:
        acts, clock = GROUPS[group](root, ends)
        for act in acts.values():
            act()
        print("\t".join(acts), flush=True)
        for line in sys.stdin:
            gc.collect()
            began = clock()
            acts[line.strip()]()
            print(clock() - began, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
