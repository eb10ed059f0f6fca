"""A number that becomes a shape fails its op on a node, with the key to raise, and takes no memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bb_edge import NodeConfig, PeerId, install, load, open_model
from bb_edge.cli import main
from bb_edge.engine import steps
from bb_edge.ir.errors import BBError
from bb_edge.roles.errors import TensorBytesError
from bb_host import Compiler, Graph, Module
from bb_host.build import compile_edge
from tests.aids.refusals import refused

MIB = 1 << 20


def expanded(g: Graph) -> None:
    """Eight values of the shape that a number says, and what is computed of them."""
    count = g.input("count", np.int64, [1])
    x = g.onnx.expand(g.constant(np.ones(1, np.float32)), count)
    g.output("total", g.onnx.reduce_sum(x * 2.0 + x, keepdims=0))


_PROCESS = """
import json, sys
import numpy as np
import bb_edge
from bb_edge.engine import steps
program = bb_edge.load(sys.argv[1])
node = bb_edge.install(bb_edge.PeerId.from_name("n"), (), program, list(program.targets), seed=1)
target = node.targets[0]
failed, totals, now = [], [], 0
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
def ask(count):
    global now
    node.invoke(target, {"count": np.array([count])})
    for _ in range(10):
        now += 1
        for step in node.poll(now):
            if isinstance(step, steps.OpFailed):
                failed.append(step.text)
            if isinstance(step, steps.AppEvent):
                totals.append(float(step.value))
ask(1000)
before = peak()
for count in json.loads(sys.argv[2]):
    ask(count)
after = peak()
ask(1000)
limit = node.config.tensor_bytes
print(json.dumps({"failed": failed, "totals": totals, "grown": after - before, "limit": limit}))
"""


def test_a_process_whose_peers_send_it_large_numbers(module: Callable[..., Module], tmp_path: Path) -> None:
    """5e8 took 340 MB, 6e8 a gigabyte, and the loop stood for seconds."""
    build = compile_edge(module(expanded), Compiler())
    path = tmp_path / "expanded.onnx"
    path.write_bytes(build.artifacts[0].data)
    numbers = [500_000_000, 600_000_000, 20_000_000, 2**40, 2**62]
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, str(path), json.dumps(numbers)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["limit"] == 64 * MIB
    assert found["totals"] == [3000.0, 3000.0]  # before and after
    assert found["grown"] < 4 * MIB
    assert len(found["failed"]) == len(numbers)
    for number, text in zip(numbers[:3], found["failed"][:3], strict=True):
        assert f"{4 * number} bytes" in text
    for text in found["failed"]:
        assert "tensor_bytes allows 67108864" in text
        assert "raise tensor_bytes" in text


def ended(config: NodeConfig, data: bytes, count: int) -> list[steps.OpFailed]:
    node = install(PeerId.from_name("n"), (), load(data), ["Main"], config, seed=1)
    node.invoke("Main", {"count": np.array([count])})
    return [s for now in range(1, 9) for s in node.poll(now) if isinstance(s, steps.OpFailed)]


def test_the_key_can_be_raised_and_lowered(module: Callable[..., Module]) -> None:
    portable = Compiler().compile(module(expanded)).SerializeToString()
    (artifact,) = compile_edge(module(expanded), Compiler()).artifacts
    for data in (portable, artifact.data):  # ops of their own, and one graph
        assert not ended(NodeConfig(tensor_bytes=4 * MIB), data, 100_000)
        (failure,) = ended(NodeConfig(tensor_bytes=MIB // 4), data, 100_000)
        assert isinstance(failure.error, TensorBytesError)
        assert failure.error.available == MIB // 4
        assert ended(NodeConfig(), data, 30_000_000)
    assert NodeConfig.host().tensor_bytes == 1024 * MIB


def test_shapes_that_are_known_when_a_program_is_compiled_are_not_counted(
    module: Callable[..., Module],
) -> None:
    def body(g: Graph) -> None:
        count = g.input("count", np.int64, [1])
        column = g.onnx.cast(count, to="F32") * np.ones((64, 1), np.float32)
        g.output("y", column * np.ones((1, 64), np.float32))

    (artifact,) = compile_edge(module(body), Compiler()).artifacts
    for data in (Compiler().compile(module(body)).SerializeToString(), artifact.data):
        assert not ended(NodeConfig(tensor_bytes=100), data, 3)


def test_a_planned_artifact_may_take_twice_its_plan(module: Callable[..., Module]) -> None:
    def body(g: Graph) -> None:
        x = g.input("x", np.float32, [3000, 3000])
        g.output("y", g.onnx.softmax(g.onnx.relu(x) * 2.0))

    (artifact,) = compile_edge(module(body), Compiler()).artifacts
    planned = max(graph.arena for graph in artifact.planned)
    node = install(PeerId.from_name("n"), (), load(artifact.data), ["Main"], NodeConfig(), seed=1)
    assert node.config.tensor_bytes == max(64 * MIB, 2 * planned)


def test_open_model_has_a_limit_of_its_own(module: Callable[..., Module]) -> None:
    (artifact,) = compile_edge(module(expanded), Compiler()).artifacts
    model = open_model(artifact.data)
    assert model(np.array([10])) == 30
    with refused(TensorBytesError, "4000000000000 bytes", "1073741824", marked=False):
        model(np.array([10**12]))


EXPLODING: dict[str, Callable[[Graph, Any], Any]] = {
    "expand": lambda g, x: g.onnx.expand(x, [2**40, 4]),
    "tile": lambda g, x: g.onnx.tile(x, [2**60]),
    "pad": lambda g, x: g.onnx.pad(x, [0, 2**40]),
    "reduced": lambda g, x: g.onnx.reduce_sum(g.onnx.expand(x, [2**36, 4]), keepdims=0),
    "a rank of 103": lambda g, x: g.onnx.reshape(x, [*([1] * 102), 4]),
}


@pytest.mark.parametrize("explode", EXPLODING.values(), ids=EXPLODING)
def test_a_program_whose_shapes_explode(
    explode: Any, module: Callable[..., Module], tmp_path: Path, capsys: Any
) -> None:
    """`check` and `bench` say so, `open_model` raises a typed error where it is opened or called."""

    def body(g: Graph) -> None:
        g.output("y", explode(g, g.input("x", np.float32, [4])))

    path = tmp_path / "m.onnx"
    path.write_bytes(Compiler().compile(module(body)).SerializeToString())
    with pytest.raises(BBError, match="cannot be allocated"):
        open_model(path)(np.ones(4, np.float32))
    assert main(["bench", str(path), "--runs", "1", "--no-cold-start"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be allocated" in line
    main(["check", str(path)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
