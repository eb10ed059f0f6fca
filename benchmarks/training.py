"""A training step on the device, against PyTorch: forward, backward, update, from the shard's next batch on.

Ours is a compiled program that an engine runs, op by op, as a client of a federation does; PyTorch's is the
loop that its users write: a module, cross entropy, SGD. Same data, batches, initial parameters and learning
rate, one thread; the parameters have to come out alike. Memory is the peak of fresh processes doing the same.

PyTorch is not a dependency of anything here. Without it our own figures are shown alone.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bb_edge import NodeConfig, PeerId, install, load
from bb_edge.components import ArrayDataSource, GraphModel
from bb_edge.engine.steps import AppEvent
from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
from bb_host.build import compile_edge
from bb_host.learn import mlp, trainable
from benchmarks.measuring import ROOT, Row, in_turns

STEPS = 100
"""Of one sample; divided out."""

BATCH = 32
LEARNING_RATE = 0.1
ROWS = 640
NETS = {"64-32-10": [64, 32, 10], "256-128-64-10": [256, 128, 64, 10]}
STEP_GOAL = 1.0
RSS_GOAL = 0.2
MISSING = "PyTorch is not installed here: the step is shown without it"


class Training(Module):
    """Local steps as a federation's client takes them."""

    name = "Training"
    model, shard = ModelSlot("model"), DataSourceSlot("shard")

    def body(self, g: Graph) -> None:
        done = g.input("start", np.int64, [])
        for _ in range(STEPS):
            x, y = self.shard.next_batch(g, after=done)
            p = g.onnx.softmax(self.model.forward(g, x), axis=1)
            done = self.model.step(g, after=self.model.backward(g, (p - y) / BATCH))
        g.output("params", self.model.params(g, after=done))


def write(layers: list[int], folder: Path) -> None:
    """The artifact, the data, and the initial parameters."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, layers[0])).astype(np.float32)
    y = rng.integers(0, layers[-1], ROWS)
    np.savez(folder / "shard.npz", x=x, y=y)
    compiler = (
        Compiler()
        .bind_model("model", GraphModel, trainable(mlp(layers, seed=1), learning_rate=LEARNING_RATE))
        .bind_data_source(
            "shard", ArrayDataSource, {"batch_size": BATCH, "one_hot": layers[-1], "shuffle": False}
        )
    )
    compile_edge(Training(), compiler, folder)
    np.savez(folder / "initial.npz", *parameters(layers))


def ours(folder: Path) -> Callable[[], np.ndarray]:
    """`STEPS` steps at each call; the parameters after them."""
    program = load(folder / "Training.Training.edge.onnx")
    node = install(
        PeerId.from_name("bench"),
        (),
        program,
        list(program.targets),
        NodeConfig(cycle_op_budget=1_000_000, app_event_bytes=1 << 20),
        components={"shard": {"path": str(folder / "shard.npz")}},
        seed=1,
    )
    (target,) = node.targets
    now = 0

    def run() -> np.ndarray:
        nonlocal now
        now += 1
        node.invoke(target, {"start": np.zeros((), np.int64)})
        found = node.poll(now)
        values = [step.value for step in found if isinstance(step, AppEvent)]
        assert len(values) == 1, f"the node says {found}"
        return np.array(values[0])

    return run


def parameters(layers: list[int]) -> list[np.ndarray]:
    """The initial ones of the model that `write` binds: per layer the weights and the bias."""
    return [np.asarray(array) for array in trainable(mlp(layers, seed=1)).model.parameters.values()]


def theirs(folder: Path, layers: list[int]) -> Callable[[], np.ndarray]:
    """The same with PyTorch."""
    import torch

    torch.set_num_threads(1)
    with np.load(folder / "shard.npz") as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    with np.load(folder / "initial.npz") as data:
        initial = [torch.from_numpy(data[name]) for name in data.files]
    parts: list[Any] = []
    turned: list[bool] = []
    for weights, bias in zip(initial[::2], initial[1::2], strict=True):
        linear = torch.nn.Linear(layers[len(turned)], layers[len(turned) + 1])
        turned.append(tuple(weights.shape) != tuple(linear.weight.shape))
        with torch.no_grad():
            linear.weight.copy_(weights.T if turned[-1] else weights)
            linear.bias.copy_(bias)
        parts += [linear, torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts[:-1])
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    loss_of = torch.nn.CrossEntropyLoss()
    step = 0

    def run() -> np.ndarray:
        nonlocal step
        for _ in range(STEPS):
            first = step * BATCH % ROWS
            step += 1
            optimizer.zero_grad()
            loss_of(net(x[first : first + BATCH]), y[first : first + BATCH]).backward()
            optimizer.step()
        found = []
        for linear, turn in zip(parts[::2], turned, strict=True):
            weights = linear.weight.detach().numpy()
            found += [(weights.T if turn else weights).reshape(-1), linear.bias.detach().numpy()]
        return np.concatenate(found)

    return run


def _microseconds(run: Callable[[], np.ndarray]) -> Callable[[], float]:
    def sample() -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) / STEPS * 1e6

    return sample


# --- memory ---------------------------------------------------------------------------------------

_OURS = """
from bb_edge import NodeConfig, PeerId, install, load
program = load(folder / "Training.Training.edge.onnx")
node = install(
    PeerId.from_name("bench"), (), program, list(program.targets),
    NodeConfig(cycle_op_budget=1_000_000, app_event_bytes=1 << 20),
    components={"shard": {"path": str(folder / "shard.npz")}}, seed=1,
)
def run(now=iter(range(1, 9))):
    node.invoke(node.targets[0], {"start": np.zeros((), np.int64)})
    assert any(getattr(step, "topic", "") == "params" for step in node.poll(next(now)))
"""
_THEIRS = """
from benchmarks.training import theirs
run = theirs(folder, [int(n) for n in sys.argv[3].split("-")])
"""
_END = """
for _ in range(3):
    run()
peak = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
sys.stdout.write(peak)
"""
_BEGIN = """
import sys
from pathlib import Path
import numpy as np
folder = Path(sys.argv[2])
"""


def _peak(script: str, folder: Path, net: str) -> float:
    """MiB."""
    folders = os.pathsep.join(str(ROOT / name) for name in (".", "kernels", "firmware_shims", "examples"))
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script + _END, "-", str(folder), net],
        env={**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"a fresh process failed: {done.stderr.strip().splitlines()[-1:]}"
    return int(done.stdout) / 1024


# --- all of it ------------------------------------------------------------------------------------


def _rows(net: str, layers: list[int], rounds: int, seconds: float, with_torch: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(layers, folder)
        runs = {"ours": ours(folder)}
        if with_torch:
            runs["PyTorch"] = theirs(folder, layers)
        ends = [run() for run in runs.values()]
        for other in ends[1:]:
            assert np.allclose(ends[0], other, atol=1e-4), f"{net}: the parameters differ after {STEPS} steps"
        times = in_turns({side: _microseconds(run) for side, run in runs.items()}, rounds, seconds)
        scripts = {"ours": _OURS, "PyTorch": _THEIRS}
        peaks = {
            side: median(_peak(scripts[side], folder, net) for _ in range(max(1, min(rounds, 3))))
            for side in runs
        }
    ratios = [found["ours"] / found["PyTorch"] if with_torch else None for found in (times, peaks)]
    return [
        Row(f"training step, {net}", times, "µs", ratios[0], STEP_GOAL if with_torch else None),
        Row(
            f"peak RSS of a process that trains {net}",
            peaks,
            "MiB",
            ratios[1],
            RSS_GOAL if with_torch else None,
        ),
    ]


def run(rounds: int = 30, seconds: float = 10.0) -> list[Row]:
    """Two rows per net."""
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        print(f"  {MISSING}", flush=True)
    return [row for net, layers in NETS.items() for row in _rows(net, layers, rounds, seconds, with_torch)]
