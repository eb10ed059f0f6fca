"""A roll-out that keeps what was learned: real nodes of one program stop, those of another go on."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("onnx", reason="compiling needs the host extra")

from averaging import compiled, write_flowers
from node_processes import PATIENCE_S

from bb_edge.cli import main
from bb_edge.components import ScalarQuantizer
from bb_edge.components.parameter_file import unpack

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NODES = {"server": "Server", "one": "Client", "two": "Client"}


@pytest.fixture
def fleet(tmp_path, mosquitto_broker, start):
    """`fleet(version, name, …)` runs a node of a version of the program, in the folder `version`/`name`."""
    data = {name: write_flowers(tmp_path / f"{name}.npz", seed) for seed, name in enumerate(NODES)}

    def run(version, name, *more, adopt=None):
        target = NODES[name]
        shard = "test" if target == "Server" else "shard"
        old = () if adopt is None else ("--adopt", str(tmp_path / adopt / name))
        return start(
            *("run", str(tmp_path / f"{version}-{target}.onnx"), "--target", target, "--peer", name),
            *("--broker", f"mqtt://{mosquitto_broker.host}:{mosquitto_broker.port}", "--json"),
            *("--state", str(tmp_path / version / name), "--set", f"{shard}.path={data[name]}", *old, *more),
        )

    def write(version, **options):
        (tmp_path / version).mkdir()
        for target, artifact in compiled(**options).items():
            (tmp_path / f"{version}-{target}.onnx").write_bytes(artifact)

    run.write = write
    return run


def parameters(folder, out):
    assert main(["export", "--state", str(folder), "--slot", "model", "-o", str(out)]) == 0
    return unpack(out.read_bytes()).arrays


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def loss_of(line):
    return json.loads(line)["value"][1]


def rounds_of(process):
    return [line for line in list(process.lines) if '"event": "round"' in line]


def learned_before(fleet, tmp_path, **options):
    """Three rounds of the old program, ended in order; the last loss and the server's parameters."""
    fleet.write("old", **options)
    nodes = [fleet("old", name) for name in NODES]
    nodes[0].says(r'"value": \[3, ')
    assert [node.end() for node in nodes] == [0, 0, 0]
    lines = rounds_of(nodes[0])
    assert loss_of(lines[-1]) < loss_of(lines[0])
    return loss_of(lines[-1]), parameters(tmp_path / "old" / "server", tmp_path / "old.npz")


CHANGES = {
    "learning rate and outputs": {"learning_rate": 0.05, "outputs": 2, "rounds": 3},
    "codec and momentum": {"codec": ScalarQuantizer, "momentum": 0.5, "rounds": 3},
    "codec of durable rounds": {"codec": ScalarQuantizer, "durable": True, "rounds": 3},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_recompiled_program_goes_on_with_what_was_learned(change, fleet, tmp_path):
    last_loss, learned = learned_before(fleet, tmp_path, durable=change.get("durable", False))
    kept = files_in(tmp_path / "old")
    fleet.write("new", **change)

    server = fleet("new", "server", adopt="old")  # alone: a round needs two clients
    server.says('"not adopted".*"slot": "rounds"')
    server.says('"adopted".*"slot": "model".*4 tensors')
    server.says("runs Server")
    assert server.end() == 0
    for name, array in parameters(tmp_path / "new" / "server", tmp_path / "new.npz").items():
        np.testing.assert_array_equal(array, learned[name])
        assert array.tobytes() == learned[name].tobytes()

    clients = [fleet("new", name, adopt="old") for name in ("one", "two")]
    for client in clients:
        client.says('"adopted".*"slot": "shard"')
    server = fleet("new", "server", "--until-done", adopt="old")  # the unit file keeps the flag
    server.says("was adopted before: the node goes on with its own state")
    assert server.process.wait(PATIENCE_S) == 0
    server.end()
    lines = rounds_of(server)
    assert len(lines) == 3
    assert loss_of(lines[0]) < 1.1 * last_loss  # not the loss of a fresh model
    for client in clients:
        assert client.end() == 0
    assert files_in(tmp_path / "old") == kept
