"""Training steps of small nets on the NumPy kernels, and on a TFLite interpreter.

    python benchmarks/training_steps.py [FOLDER] [--tflite] [--torch PYTHON]

Each side is a process of its own with one thread: this checkout on NumPy, with --tflite compiled for an
interpreter too, another one in FOLDER (an older commit) likewise, and PyTorch of the interpreter PYTHON, of
an environment of its own (`pip install torch onnx`). In a new random order each time, a side does a block of
five steps that nobody counts and one that counts: a loop that only trains finds its caches warm. CPU time;
medians, and the ratio of ours to the others'. All sides begin with the same parameters and data, and have to
come to the same parameters.

Ours is a program that a node runs, from the next batch of its data to the update. PyTorch's is the loop that
its users write: forward, cross entropy, backward, SGD, over the operators of the same ONNX file.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".", "kernels", "firmware_shims", "examples")
BLOCK = 5
"""Steps of a block."""
LEARNING_RATE = 0.05
BATCHES = (8, 32, 128)
CLASSES = 10

Run = Callable[[], Sequence[np.ndarray]]


# --- the sides, each in a process of its own ------------------------------------------------------


def ours(folder: Path, *, tflite: bool = False) -> Run:
    """A block of steps that a node runs; the parameters after it."""
    import onnx

    from bb_edge import NodeConfig, PeerId, install, load
    from bb_edge.backends import NumPyBackend
    from bb_edge.components import ArrayDataSource, GraphModel
    from bb_edge.engine.steps import AppEvent
    from bb_host import Compiler, DataSourceSlot, Graph, ModelSlot, Module
    from bb_host.build import compile_edge
    from bb_host.learn import trainable

    with np.load(folder / "data.npz") as data:
        batch = len(data["x"])

    class Training(Module):
        """Local steps as a federation's client takes them."""

        name = "Training"
        model, shard = ModelSlot("model"), DataSourceSlot("shard")

        def body(self, g: Graph) -> None:
            done = g.input("start", np.int64, [])
            for _ in range(BLOCK):
                x, y = self.shard.next_batch(g, after=done)
                if hasattr(self.model, "train"):
                    done = self.model.train(g, x, y)
                else:  # an older commit
                    p = g.onnx.softmax(self.model.forward(g, x), axis=1)
                    done = self.model.backward(g, (p - y) / batch)
                done = self.model.step(g, after=done)
            g.output("params", self.model.params(g, after=done))

    model = trainable(onnx.load(folder / "model.onnx"), learning_rate=LEARNING_RATE)
    config = {"batch_size": batch, "one_hot": CLASSES, "shuffle": False}
    compiler = Compiler().bind_model("model", GraphModel, model).bind_backend("backend", NumPyBackend)
    compiler = compiler.bind_data_source("shard", ArrayDataSource, config)
    with tempfile.TemporaryDirectory() as artifacts:
        compile_edge(Training(), compiler, Path(artifacts), backend="tflite" if tflite else "numpy")
        program = load(Path(artifacts) / "Training.Training.edge.onnx")
    data = {"shard": {"path": str(folder / "data.npz")}}
    node_config = NodeConfig(cycle_op_budget=1_000_000, app_event_bytes=1 << 24)
    node = install(
        PeerId.from_name("bench"), (), program, list(program.targets), node_config, components=data, seed=1
    )
    (target,) = node.targets
    now = 0

    def run() -> Sequence[np.ndarray]:
        nonlocal now
        now += 1
        node.invoke(target, {"start": np.zeros((), np.int64)})
        found = node.poll(now)
        values = [step.value for step in found if isinstance(step, AppEvent)]
        assert len(values) == 1, f"the node says {found}"
        return [np.asarray(values[0])]

    return run


def theirs(folder: Path) -> Run:
    """The same with PyTorch: the operators of the file, one by one."""
    import onnx
    import torch
    from onnx import numpy_helper

    torch.set_num_threads(1)
    with np.load(folder / "data.npz") as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    graph = onnx.load(folder / "model.onnx").graph
    values: dict[str, Any] = {
        each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer
    }
    learned = (folder / "parameters.txt").read_text().split()
    parameters = [values[name].requires_grad_() for name in learned]

    def applied(node: Any, given: list[Any]) -> Any:
        attrs = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Conv":
            pads, group = attrs.get("pads", [0, 0])[:2], attrs.get("group", 1)
            return torch.nn.functional.conv2d(*given, padding=pads, groups=group)
        if node.op_type == "MaxPool":
            return torch.nn.functional.max_pool2d(given[0], attrs["kernel_shape"], attrs["strides"])
        known: dict[str, Callable[..., Any]] = {
            "Identity": lambda v: v,
            "Relu": torch.relu,
            "Clip": lambda v, low, high: torch.clamp(v, low.item(), high.item()),
            "Flatten": lambda v: v.flatten(1),
            "Add": torch.add,
            "Gemm": torch.nn.functional.linear,
            "GlobalAveragePool": lambda v: v.mean((2, 3), keepdim=True),
            "Div": torch.div,
            "LayerNormalization": lambda v, s, b: torch.nn.functional.layer_norm(v, s.shape, s, b),
            "MatMul": torch.matmul,
            "ReduceMean": lambda v: v.mean(attrs["axes"]),
            "Reshape": lambda v, to: v.reshape([d or v.shape[i] for i, d in enumerate(to.tolist())]),
            "Softmax": lambda v: v.softmax(-1),
            "Transpose": lambda v: v.permute(attrs["perm"]),
        }
        return known[node.op_type](*given)

    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)

    def run() -> Sequence[np.ndarray]:
        for _ in range(BLOCK):
            optimizer.zero_grad()
            known = {**values, graph.input[0].name: x}
            for node in graph.node:
                known[node.output[0]] = applied(node, [known[name] for name in node.input])
            torch.nn.functional.cross_entropy(known[graph.output[0].name], y).backward()
            optimizer.step()
        return [p.detach().numpy().reshape(-1) for p in parameters]

    return run


def serve(side: str, where: str) -> None:
    """Writes the parameters after one block; then answers each line with CPU nanoseconds of a step."""
    folder = Path(where)
    run = theirs(folder) if side == "torch" else ours(folder, tflite=side.endswith("tflite"))
    found = np.concatenate(run())
    np.save(folder / f"{side}.npy", found)
    print("ready", flush=True)
    for _ in sys.stdin:
        run()
        began = time.process_time_ns()
        run()
        print((time.process_time_ns() - began) / BLOCK, flush=True)


# --- measuring ------------------------------------------------------------------------------------


class Side:
    """One process."""

    def __init__(self, name: str, python: str, root: Path, folder: Path) -> None:
        self.name = name
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        path = "" if name == "torch" else os.pathsep.join(str(root / each) for each in FOLDERS)
        # The file is run without its folder in front of sys.path, where `compile.py` would be found first.
        words = [python, "-c", _RUN, str(ROOT / "benchmarks" / "training_steps.py"), name, str(folder)]
        self._process = subprocess.Popen(
            words, cwd=root, env={**os.environ, **threads, "PYTHONPATH": path}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        if self._line() != "ready":
            raise SystemExit(f"{name} did not begin: {python} in {root}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def sample(self) -> float:
        """Microseconds of CPU time of one step."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._line()) / 1e3

    def end(self) -> None:
        self._process.communicate()


_RUN = "import runpy, sys; runpy.run_path(sys.argv[1])['serve'](*sys.argv[2:])"


def prepared(net: str, batch: int, folder: Path) -> None:
    """Writes what the sides begin with: the net, the names of its parameters, and one batch."""
    import onnx

    from bb_host.learn import trainable
    from benchmarks.training_nets import NETS

    model = NETS[net]()
    onnx.save(model, folder / "model.onnx")
    (folder / "parameters.txt").write_text("\n".join(trainable(model).model.parameters))
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, *shape)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=rng.integers(0, CLASSES, batch))


def measured(net: str, batch: int, others: dict[str, tuple[str, Path]], rounds: int) -> dict[str, float]:
    """Microseconds of a step by side."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepared(net, batch, folder)
        given = {"ours": (sys.executable, ROOT), **others}
        sides = [Side(name, python, root, folder) for name, (python, root) in given.items()]
        ends = {side.name: np.load(folder / f"{side.name}.npy") for side in sides}
        for name, end in ends.items():
            assert np.allclose(end, ends["ours"], atol=1e-4), f"{net}: {name} comes to other parameters"
        times: dict[str, list[float]] = {side.name: [] for side in sides}
        for _ in range(rounds):
            for side in random.sample(sides, len(sides)):
                times[side.name].append(side.sample())
        for side in sides:
            side.end()
    return {name: median(found) for name, found in times.items()}


def main(words: Sequence[str] | None = None) -> None:
    """A line per net and batch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of an older commit")
    parser.add_argument("--tflite", action="store_true", help="this checkout on a TFLite interpreter as well")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch and onnx")
    parser.add_argument("--net", action="append", help="repeatable; default: all")
    parser.add_argument("--batch", action="append", type=int, help=f"repeatable; default: {BATCHES}")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args(words)
    from benchmarks.training_nets import NETS

    others: dict[str, tuple[str, Path]] = {}
    if arguments.tflite:
        others["tflite"] = (sys.executable, ROOT)
    if arguments.torch:
        others["torch"] = (arguments.torch, ROOT)
    if arguments.folder:
        others["older"] = (sys.executable, arguments.folder.resolve())
    if arguments.folder and arguments.tflite:
        others["older tflite"] = (sys.executable, arguments.folder.resolve())
    for net in arguments.net or NETS:
        for batch in arguments.batch or BATCHES:
            found = measured(net, batch, others, arguments.rounds)
            figures = ", ".join(f"{side} {value:,.0f}" for side, value in found.items())
            pairs = [(one, other) for one in found if one in ("ours", "tflite") for other in others]
            ratios = ", ".join(f"{a} {found[a] / found[b]:.2f} of {b}" for a, b in pairs if a != b)
            print(f"| {net}, batch {batch} | {figures} µs | {ratios} |", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
    main()
